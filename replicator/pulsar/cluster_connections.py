"""ClusterConnections: connections to the brokers of real Pulsar clusters, shared by the links of all topics that a
broker there owns.

Is: finding a topic's owner, which link a receipt is for, noticing that the other side is silent. Isn't: a link
(`replicator.pulsar.pulsar_link`), or when to try again.
Invariants: one connection to a broker; it is closed when the last link has left it; a connection from which nothing
came for `SILENT_S` is given up.
Source: docs/protocols/interop.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from heliograph.client.pulsar_connection import REDIRECTS_MAX, Address, BrokerConnection, ConnectionLost
from heliograph.model.configuration.configuration_records import PulsarCluster
from heliograph.model.errors import HeliographError, LinkError, NotAllowed
from heliograph.model.positions import Position
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand
from heliograph.wire.varint import signed
from replicator.health.link_causes import Cause
from replicator.pulsar.cluster_credentials import ClusterFiles

CONNECT_TIMEOUT_S = 10.0
_Key = tuple[PulsarCluster, Address]
"""With the registration: one that was changed, its token for one, is reached by a connection of its own."""
SILENT_S = 30.0


class ReceiptSink(Protocol):
    """A link, as its producer's connection sees it."""

    def on_receipt(self, sequence: int, highest: int, there: Position) -> None:
        """there: where it lies in the cluster's topic; an entry below 0: it had it before."""
        ...

    def on_ended(self, cause: Cause, text: str) -> None:
        """The producer, or the connection, is gone."""
        ...

    def on_writable(self) -> None: ...


class ClusterConnection:
    """One connection and its producers. `on_ended`: called once."""

    def __init__(
        self,
        client: BrokerConnection,
        address: Address,
        monotonic: Callable[[], float],
        on_ended: Callable[[ClusterConnection], None],
    ) -> None:
        self.client, self.address, self._monotonic, self._on_ended = client, address, monotonic, on_ended
        self.heard_at = monotonic()
        self._sinks: dict[int, ReceiptSink] = {}
        self._barriers: dict[int, asyncio.Future[Position]] = {}
        self._numbers = 0
        client.on_command, client.on_closed, client.on_writable = self._on_command, self._on_closed, self._on_writable

    @property
    def by_position(self) -> bool:
        """The cluster recognises what it has by its position at the source, and its receipts name that."""
        return bool(self.client.features.supports_repl_dedup_by_lid_and_eid)

    async def producer(self, sink: ReceiptSink, topic: str, name: str) -> int:
        """The id of a producer made for `sink`. Raises Refused, ConnectionLost, TimeoutError."""
        self._numbers += 1
        number = self._numbers
        self._sinks[number] = sink
        try:
            await self.client.producer(number, topic, name, timeout_s=CONNECT_TIMEOUT_S)
        except BaseException:
            self.leave(number)
            raise
        return number

    async def barrier(self, number: int, frame: bytes) -> Position:
        """Sends `frame` as the first thing of a new producer; returns where it lies: everything that was sent before it
        lies before it, and is stored.

        Raises TimeoutError, and what ended the connection or the producer.
        """
        waiting: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._barriers[number] = waiting
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self.client.write([frame])
                return await waiting
        finally:
            self._barriers.pop(number, None)

    def leave(self, number: int) -> None:
        """The link is done with its producer."""
        if self._sinks.pop(number, None) is not None and self.client.closed is None:
            self.client.close_producer(number)
            if not self._sinks:
                self.client.close(ConnectionLost("no link needs it"))

    @property
    def silent_s(self) -> float:
        """For how long nothing was heard, as of the last tick: an idle cluster is asked after a third of `SILENT_S`."""
        return max(0.0, self._monotonic() - self.heard_at)

    def tick(self, stood_s: float) -> None:
        """Called each `heartbeat_s`: pings a silent connection, and closes it after `SILENT_S`. stood_s: for so long
        this process has stood still since the last call.
        """
        now = self._monotonic()
        self.heard_at = min(now, self.heard_at + stood_s)
        if self.client.heard:
            self.client.heard, self.heard_at = False, now
        silent = self.silent_s
        if silent > SILENT_S:
            self.client.close(LinkError(Cause.HEARTBEAT_LOST, f"nothing heard for {SILENT_S:g} s"))
        elif silent > SILENT_S / 3:
            self.client.ping()

    def _on_command(self, command: BaseCommand) -> None:
        kind = command.type
        if kind == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            there = (signed(receipt.message_id.ledgerId), signed(receipt.message_id.entryId))
            if (waiting := self._barriers.get(receipt.producer_id)) is not None:
                if not waiting.done():
                    waiting.set_result(there)
            elif (sink := self._sinks.get(receipt.producer_id)) is not None:
                sink.on_receipt(receipt.sequence_id, receipt.highest_sequence_id, there)
        elif kind == BaseCommand.CLOSE_PRODUCER:
            self._end(command.close_producer.producer_id, Cause.MOVED, "the topic moves between brokers there")
        elif kind == BaseCommand.SEND_ERROR:
            self._end(
                command.send_error.producer_id,
                Cause.REFUSED,
                command.send_error.message or f"code {command.send_error.error}",
            )

    def _end(self, number: int, cause: Cause, text: str) -> None:
        if (waiting := self._barriers.get(number)) is not None and not waiting.done():
            waiting.set_exception(LinkError(cause, text))
        if (sink := self._sinks.get(number)) is not None:
            sink.on_ended(cause, text)

    def _on_closed(self, error: HeliographError) -> None:
        sinks, self._sinks = self._sinks, {}
        for waiting in self._barriers.values():
            if not waiting.done():
                waiting.set_exception(error)
        for sink in sinks.values():
            sink.on_ended(Cause.of(error), str(error))
        self._on_ended(self)

    def _on_writable(self) -> None:
        for sink in list(self._sinks.values()):
            sink.on_writable()


class ClusterProofs(Protocol):
    """By what this region proves to Pulsar clusters who it is."""

    @property
    def files(self) -> ClusterFiles: ...

    async def token(self, cluster: PulsarCluster) -> str:
        """One that an issuer gives for this region there (OAuth 2), or that of a file; "": none. Raises as
        `ClusterConnections.owner`.
        """
        ...


class ClusterConnections:
    """The connections of one broker to Pulsar clusters, by cluster and by the address of the broker there."""

    def __init__(self, monotonic: Callable[[], float], proofs: ClusterProofs | None = None) -> None:
        """proofs: None: files alone are read, from where the broker runs."""
        self._monotonic, self._proofs = monotonic, proofs
        self.files = proofs.files if proofs is not None else ClusterFiles()
        self._open: dict[_Key, ClusterConnection] = {}
        self._opening: dict[_Key, asyncio.Task[ClusterConnection]] = {}

    async def owner(self, cluster: PulsarCluster, topic: str, attempt: int) -> ClusterConnection:
        """To the broker that owns `topic` there. attempt: says which of several service addresses is asked first.

        Raises LinkError, Refused, ConnectionLost, OSError, TimeoutError, NotFound and NotAllowed (an address, a file).
        """
        hosts = cluster.service_url.partition("://")
        urls = [f"{hosts[0]}://{host}" for host in hosts[2].split(",") if host]
        if not urls:
            raise LinkError(Cause.NO_ADDRESS, f"cluster {cluster.name} has no brokerServiceUrl")
        address, authoritative = Address.parse(urls[attempt % len(urls)]), False
        for _ in range(REDIRECTS_MAX):
            connection = await self._connect(cluster, address)
            answer = await connection.client.lookup(topic, authoritative=authoritative, timeout_s=CONNECT_TIMEOUT_S)
            address, authoritative = answer.address(address.secure), answer.authoritative
            if not answer.redirect:
                return await self._connect(cluster, address)
        raise LinkError(Cause.LOOKUP_FAILED, f"the look-up of {topic} in {cluster.name} was redirected too often")

    async def _connect(self, cluster: PulsarCluster, address: Address) -> ClusterConnection:
        key = (cluster, address)
        found = self._open.get(key)
        if found is not None and found.client.closed is None:
            return found
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.get_running_loop().create_task(self._make(cluster, address))
            task.add_done_callback(lambda done: self._made(key, done))
        return await asyncio.shield(task)

    async def _make(self, cluster: PulsarCluster, address: Address) -> ClusterConnection:
        client = await self.alone(cluster, address)
        made = self._open[cluster, address] = ClusterConnection(client, address, self._monotonic, self._ended)
        return made

    async def alone(self, cluster: PulsarCluster, address: Address) -> BrokerConnection:
        """A connection that is shared with nobody; the caller closes it. Raises as `owner`."""
        if (cluster.certificate_file or cluster.oauth_file) and not address.secure:
            raise NotAllowed(
                f"cluster {cluster.name}: a certificate, or a token by OAuth, goes by TLS only: give it a "
                f"pulsar+ssl:// address, not {address}"
            )
        self.files.check_destination(cluster, address.host)
        tls = self.files.tls(cluster) if address.secure else None
        proofs = self._proofs if cluster.oauth_file else None
        token = self.files.token(cluster) if proofs is None else await proofs.token(cluster)
        by_certificate = bool(cluster.certificate_file)
        return await BrokerConnection.connect(
            address, ssl=tls, token=token, by_certificate=by_certificate, timeout_s=CONNECT_TIMEOUT_S, replicates=True
        )

    def _made(self, key: _Key, task: asyncio.Task[ClusterConnection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # was told to those who waited

    def _ended(self, connection: ClusterConnection) -> None:
        self._open = {key: other for key, other in self._open.items() if other is not connection}

    def tick(self, stood_s: float) -> None:
        for connection in list(self._open.values()):
            connection.tick(stood_s)

    def tasks(self) -> list[asyncio.Task[Any]]:
        return list(self._opening.values())

    def close(self) -> None:
        for connection in list(self._open.values()):
            connection.client.close(ConnectionLost("this broker stops"))
