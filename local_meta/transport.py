"""FrameTransport: Raft messages between the voters of one region's metadata, in our own frames.

Is: one outgoing connection a peer, made on demand and remade with backoff, behind a bounded queue; what comes in
arrives by the MetaServer's listener.
Isn't: reliable: what doesn't fit the queue, or was under way when a connection broke, is lost, and Raft sends again.
Invariants: `send` never blocks and never raises; a message names its sender, and where that joined later, its address
too: a sender that could not be answered is refused.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Mapping

from heliograph.model.errors import PeerError
from heliograph.raft.membership import Addresses
from heliograph.raft.messages import Config
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import Rng
from heliograph.runtime.task_set import cancel_all
from heliograph.wire.metadata_frames import FEATURES, FRAME_BYTES_MAX, MAGIC, Frame, body, fields, frame

QUEUE_BYTES_MAX = 16 << 20
_BACKOFF = Backoff(0.05, 1.0)
CONNECT_TIMEOUT_S = 3.0


class FrameTransport:
    """Implements heliograph.raft.member.raft_node.RaftTransport. peers: node id -> `host:port` of its MetaServer, with
    or without this node.
    """

    def __init__(self, node_id: str, peers: Mapping[str, str], *, rng: Rng, ssl: tls.SSLContext | None = None) -> None:
        self.node_id, self._ssl, self._rng = node_id, ssl, rng
        self.addresses = Addresses(node_id, peers)
        self._links: dict[str, _Link] = {}
        self._callback: Callable[[str, bytes], None] = lambda sender, message: None

    def on_receive(self, callback: Callable[[str, bytes], None]) -> None:
        self._callback = callback

    def send(self, to: str, message: bytes) -> None:
        link = self._link(to)
        if link is not None and len(message) < FRAME_BYTES_MAX - 4096:
            link.send(frame(Frame.RAFT, 0, body(self.node_id, message, self.addresses.own)))

    def on_config(self, config: Config) -> None:
        self.addresses.learn(config)

    def on_frame(self, payload: bytes) -> None:
        """A RAFT frame that the listener read. Raises PeerError."""
        try:
            sender, message, address = fields(payload, str, bytes, str)
        except PeerError:  # of an older version
            sender, message, address = *fields(payload, str, bytes), ""
        if not self.addresses.hear(sender, address):
            raise PeerError(f"metadata: {sender[:100]!r} is no member of this group, and does not say where it is")
        self._callback(sender, message)

    def _link(self, to: str) -> _Link | None:
        address, link = self.addresses.of(to), self._links.get(to)
        if link is not None and link.address == address:
            return link
        if link is not None:  # it has moved
            link.close()
            del self._links[to]
        if address and to != self.node_id:
            link = self._links[to] = _Link(self, address)
            return link
        return None

    async def stop(self) -> None:
        for link in self._links.values():
            await link.stop()

    async def connect(self, address: str, link: _Link) -> asyncio.Transport:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            transport, _ = await loop.create_connection(
                lambda: _Protocol(link), host.strip("[]"), int(port), ssl=self._ssl
            )
        transport.write(frame(Frame.HELLO, 0, body(MAGIC, FEATURES, self.node_id)))
        return transport

    def pause_s(self, failures: int) -> float:
        return _BACKOFF.pause_s(failures, self._rng)


class _Link:
    """The outgoing half of one pair. While there is no connection, one task makes one; it ends when it has one."""

    def __init__(self, owner: FrameTransport, address: str) -> None:
        self._owner, self.address = owner, address
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._queue: list[bytes] = []
        self._queue_bytes = 0
        self._failures = 0
        self._stopped = False

    def send(self, data: bytes) -> None:
        if self._stopped:
            return
        if (
            self._transport is not None and self._transport.is_closing()
        ):  # it may have ended in the very pass in which it was made
            self._transport = None
        if self._transport is not None:
            if self._transport.get_write_buffer_size() + len(data) <= QUEUE_BYTES_MAX:
                self._transport.write(data)
            return
        if self._queue_bytes + len(data) <= QUEUE_BYTES_MAX:
            self._queue.append(data)
            self._queue_bytes += len(data)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        while not self._stopped:
            try:
                transport = await self._owner.connect(self.address, self)
            except (OSError, TimeoutError, ValueError):
                self._queue, self._queue_bytes = [], 0  # old messages help nobody
                self._failures += 1
                await asyncio.sleep(self._owner.pause_s(self._failures))
                continue
            self._transport, self._task = transport, None
            queue, self._queue, self._queue_bytes = self._queue, [], 0
            for data in queue:
                transport.write(data)
            return

    def on_heard(self) -> None:
        self._failures = 0

    def on_lost(self) -> None:
        self._transport = None

    def close(self) -> None:
        self._stopped = True
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        self.close()
        await cancel_all([self._task])


class _Protocol(asyncio.Protocol):
    """Nothing is read here but the peer's greeting and its heartbeats."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    def data_received(self, data: bytes) -> None:
        self._link.on_heard()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.on_lost()
