"""SimConfigTransport: what the configuration nodes of all regions say to each other, over the simulated network.

Is: `global_config.transport.config_transport.ConfigTransport` on plain frames (u32 size | msgpack [kind, id, sender,
body]) between named hosts. Isn't: gRPC, TLS. Each pair has one connection a direction; what is sent while it is down is
lost, as Raft expects.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import msgpack

from global_config.transport.config_transport import ForwardHandler
from heliograph.model.errors import MetadataUnavailable, OutcomeUnknown, PeerError
from heliograph.raft.messages import Config

RAFT, REQUEST, ANSWER = 0, 1, 2
QUEUE_BYTES_MAX = 1 << 20


class SimConfigTransport:
    """peers: node id -> host. Every node listens on `port` of its own host."""

    def __init__(self, node: str, peers: dict[str, str], port: int, rng: random.Random) -> None:
        self.node, self.peers, self.port, self.rng = node, peers, port, rng
        self._receive: Callable[[str, bytes], None] = lambda sender, message: None
        self._handler: ForwardHandler | None = None
        self._out: dict[str, _Peer] = {}
        self._waiting: dict[int, asyncio.Future[bytes | None]] = {}
        self._next = 0
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> int:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Peer(self, ""), self.peers[self.node], self.port)
        return self.port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for peer in self._out.values():
            peer.close()

    def send(self, to: str, message: bytes) -> None:
        self._peer(to).put([RAFT, 0, self.node, message])

    def on_receive(self, callback: Callable[[str, bytes], None]) -> None:
        self._receive = callback

    def on_config(self, config: Config) -> None:
        """Every node of a simulation is known by its name."""

    async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
        number = self._next = self._next + 1
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._peer(to).put([REQUEST, number, self.node, request])
        try:
            answer: bytes | None = await asyncio.wait_for(future, timeout_s)
        except TimeoutError as error:
            raise OutcomeUnknown(f"{to} did not answer") from error
        finally:
            self._waiting.pop(number, None)
        if answer is None:
            raise MetadataUnavailable(f"{to} refused")
        return answer

    def on_forward(self, handler: ForwardHandler) -> None:
        self._handler = handler

    def _peer(self, to: str) -> _Peer:
        peer = self._out.get(to)
        if peer is None or peer.lost:
            peer = self._out[to] = _Peer(self, to)
            peer.connect()
        return peer

    def got(self, peer: _Peer, kind: int, number: int, sender: str, body: bytes | None) -> None:
        if kind == RAFT and body is not None:
            self._receive(sender, body)
        elif kind == REQUEST and body is not None:
            asyncio.get_running_loop().create_task(self._answer(peer, number, sender, body))
        elif (future := self._waiting.get(number)) is not None and not future.done():
            future.set_result(body)

    async def _answer(self, peer: _Peer, number: int, sender: str, body: bytes) -> None:
        assert self._handler is not None
        try:
            answer: bytes | None = await self._handler(body, (sender,))
        except PeerError:
            answer = None
        peer.put([ANSWER, number, self.node, answer])


class _Peer(asyncio.Protocol):
    """One connection, either direction."""

    def __init__(self, owner: SimConfigTransport, to: str) -> None:
        self.owner, self.to = owner, to
        self.lost = False
        self._transport: asyncio.Transport | None = None
        self._queue: list[bytes] = []
        self._buffer = bytearray()

    def connect(self) -> None:
        asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(2.0):
                await loop.create_connection(lambda: self, self.owner.peers[self.to], self.owner.port)
        except (OSError, TimeoutError):
            await asyncio.sleep(self.owner.rng.uniform(0.05, 0.3))
            self.lost = True

    def put(self, fields: list[Any]) -> None:
        body = msgpack.packb(fields)
        data = len(body).to_bytes(4, "big") + body
        if self._transport is None:
            self._queue.append(data)
        elif self._transport.get_write_buffer_size() < QUEUE_BYTES_MAX:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.writelines(self._queue)
        self._queue.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := int.from_bytes(buffer[:4], "big")):
            kind, number, sender, body = msgpack.unpackb(bytes(buffer[4 : 4 + size]))
            del buffer[: 4 + size]
            self.owner.got(self, kind, number, sender, body)
