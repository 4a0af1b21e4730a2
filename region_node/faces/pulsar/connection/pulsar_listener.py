"""PulsarListener: accepts Pulsar connections, and holds what they share.

Is: listening sockets, the byte budget of publishes in flight, one write per connection per loop pass, the keep-alive
tick.
Isn't: topics, or a protocol decision (`pulsar_connection`, and the handlers beside it).
Invariants: no timer per connection; publishes in flight of the whole broker stay within the budget plus one read per
connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from heliograph.model.errors import ConfigError
from heliograph.runtime.byte_budget import ByteBudget
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.compute_thread import Offload
from heliograph.runtime.listeners.address_counts import AddressCounts
from heliograph.runtime.listeners.tls_listener import Listening, listen
from heliograph.runtime.standstill import stood_still_s
from heliograph.wire.pulsar.frame_cutter import HANDSHAKE_BYTES_MAX, MESSAGE_BYTES_MAX
from heliograph.wire.run import Buffer
from region_node.faces.flow_control import Outbox, drained, look_at_each
from region_node.faces.pulsar.commands.replicator_producers import ClusterPort
from region_node.faces.pulsar.connection.pulsar_connection import PulsarConnection
from region_node.metrics.lookup_metrics import LookupCounts
from region_node.runtime.logged_tasks import logged_tasks
from region_node.security.authorization.security_service import Security, open_security
from region_node.topics.serving.topic_service import TopicService
from region_node.transactions.coordinators.transaction_service import Transactions
from region_node.usage.tenant_usage import Usage

log = logging.getLogger("region_node.pulsar")


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """Where a topic is served. `redirect`: ask the broker there again, with `authoritative` as given here."""

    url: str
    url_tls: str = ""
    redirect: bool = False
    authoritative: bool = False


class LookupPort(Protocol):
    """Who owns a topic, and how many partitions it has. Given by the broker."""

    async def lookup(self, topic: str, listener: str, authoritative: bool) -> TopicAddress: ...

    async def partitions(self, topic: str, create: bool) -> int: ...


class LinkFrames(Protocol):
    """`replicator.receiving.link_receiver.LinkReceiver`: the other half of one connection on a link listener."""

    hold: Callable[[bool], None] | None
    """Given to it: stops and continues reading."""
    refuse: Callable[[str], None]
    """Given to it: ends the connection with a sentence."""

    def on_bytes(self) -> None: ...

    def on_frame(self, kind: int, command: memoryview, payload: memoryview) -> None: ...

    def connection_lost(self) -> None: ...


LinkFactory = Callable[[Callable[[Sequence[Buffer]], None], str], LinkFrames]
"""(write, the region that the peer's certificate proves, "" without TLS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection may have at once. They are no operator's settings: no sane client comes near them."""

    requests_max: int = 4096
    """Requests that wait for their answer, producers and consumers included."""
    request_bytes_max: int = 16 << 20
    """Of those of more than LARGE_BYTES that wait: from there on nothing is read from the connection until half of
    it.
    """
    clients_max: int = 50_000
    """Producers and consumers."""
    metadata_bytes_max: int = 16 << 20
    """Of the producers, and of the consumers: what they say of themselves."""
    unanswered_acks_max: int = 100_000
    """So many acknowledgements that are not durable yet, and are to be answered, may wait; others are refused
    meanwhile.
    """
    conversion_again_s: float = 1.0
    """After so long it is tried again to convert entries of Kafka's clients where too many wait for the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    handshake_timeout_s: float = 10.0
    keep_alive_s: float = 30.0
    inflight_bytes_max: int = 64 << 20
    """Publishes that wait for their receipts, in the whole broker; above it reading stops."""
    write_buffer_bytes: int = 1 << 20
    """High-water mark of what waits to be written to one connection; above it dispatch to it stops."""
    unsent_bytes_max: int = 16 << 20
    """Of answers that one client does not take; above it nothing more is read from it."""
    message_bytes_max: int = MESSAGE_BYTES_MAX
    handshake_bytes_max: int = HANDSHAKE_BYTES_MAX
    connections_max: int = 10_000
    connections_per_address: int = 0
    """Bounds the connections that come from one address; 0: no limit."""
    proxy_protocol: bool = False
    """Connections to the plain ports begin with a load balancer's header."""
    drain_timeout_s: float = 2.0
    """How long closing waits for publishes in flight."""
    broker_entry_metadata: bool = False
    """Messages carry the broker's time and their index, for clients that understand it."""
    server_version: str = "Heliograph"
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)

    def __post_init__(self) -> None:
        if min(self.handshake_timeout_s, self.keep_alive_s) <= 0:
            raise ConfigError("handshake_timeout_s and keep_alive_s must be above 0")
        if not 1 <= self.message_bytes_max <= MESSAGE_BYTES_MAX:
            raise ConfigError(f"message_bytes_max must be 1 to {MESSAGE_BYTES_MAX}, not {self.message_bytes_max}")
        if self.inflight_bytes_max < self.message_bytes_max:
            raise ConfigError(
                f"inflight_bytes_max {self.inflight_bytes_max} is less than one message of {self.message_bytes_max} "
                "bytes"
            )


class PulsarListener:
    """`link_receivers`: makes the other half of each connection on a link listener. `security`: absent, nobody is asked
    for anything.
    """

    def __init__(
        self,
        *,
        topics: TopicService,
        lookup: LookupPort,
        link_receivers: LinkFactory | None = None,
        security: Security | None = None,
        usage: Usage | None = None,
        transactions: Transactions | None = None,
        clusters: ClusterPort | None = None,
        settings: ListenerSettings | None = None,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self.topics, self.lookup, self.link_receivers = topics, lookup, link_receivers
        self.security = security or open_security()
        self.usage = usage or Usage()
        self.transactions = transactions
        """None: clients are told that there are none."""
        self.clusters = clusters
        """None: nothing is exchanged with Pulsar clusters."""
        self.settings = settings or ListenerSettings()
        self.clock, self.rng = clock, rng
        self.tasks = logged_tasks()
        self.connections: dict[PulsarConnection, None] = {}
        self.created = self.refused = self.ended = 0
        """Connections since the start: all, those that were not accepted or not answered with CONNECTED, those that are
        gone.
        """
        self.admin_urls = "", ""
        """This broker's admin port without and with TLS, once it has one; "": not told. For who sends HTTP to this
        port.
        """
        self.lookups = LookupCounts()
        self.addresses = AddressCounts(self.settings.connections_per_address)
        self.loop = asyncio.get_running_loop()
        self.outbox: Outbox[PulsarConnection] = Outbox(self.loop.call_soon)
        self.budget: ByteBudget[PulsarConnection] = ByteBudget(
            self.settings.inflight_bytes_max, PulsarConnection.hold_reading
        )
        """Bounds the bytes of publishes that wait for their receipts."""
        self.converting = Offload(self.settings.connections_max)
        """Where large entries of Kafka's clients become Pulsar's; the other face has it too."""
        self._servers: list[Listening] = []
        self._names = 0
        self._tick_s = min(self.settings.keep_alive_s, self.settings.handshake_timeout_s) / 2
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the next tick should come."""

    async def start(
        self, host: str, port: int, *, ssl: tls.SSLContext | None = None, link: bool = False, reuse_port: bool = False
    ) -> int:
        """Listens, and returns the port. May be called several times. Raises ConfigError where the port is taken."""
        balanced = self.settings.proxy_protocol and ssl is None and not link
        try:
            server = await listen(
                lambda: PulsarConnection(self, link=link, balanced=balanced),
                host,
                port,
                ssl=ssl,
                timeout_s=self.settings.handshake_timeout_s,
                reuse_port=reuse_port,
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._servers.append(server)
        if self._timer is None:
            self._next_tick(self.clock.monotonic())
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def stop_listening(self, port: int) -> None:
        """Nobody connects there any more; who is connected stays."""
        for server in [s for s in self._servers if any(sock.getsockname()[1] == port for sock in s.sockets)]:
            server.close()
            self._servers.remove(server)

    def counts(self) -> tuple[int, int, int, int, int, int]:
        """Connections: open now; made, refused, and gone since the start; not read from just now, and those of them
        that the budget holds.
        """
        held = sum(connection.reading_held for connection in self.connections)
        return len(self.connections), self.created, self.refused, self.ended, held, self.budget.held

    def unique_name(self) -> str:
        """A producer name that nobody else has."""
        self._names += 1
        return f"heliograph-{self.rng.getrandbits(64):016x}-{self._names}"

    def _tick(self) -> None:
        now = self.clock.monotonic()
        stood_s = stood_still_s(self._due, now)

        def look(connection: PulsarConnection) -> bool:
            if stood_s:
                connection.spare(stood_s)
            connection.tick(now)
            return connection.closed

        look_at_each(iter(list(self.connections)), self.connections, look, self.loop.call_soon)
        self._next_tick(now)

    def _next_tick(self, now: float) -> None:
        self._due = now + self._tick_s
        self._timer = self.loop.call_later(self._tick_s, self._tick)

    def end_revoked(self) -> int:
        """Closes the connections whose credentials were revoked, and returns how many these were."""
        return sum(connection.identity.end_revoked() for connection in list(self.connections))

    def disconnect_all(self) -> None:
        """Closes every connection; the listener goes on."""
        for connection in list(self.connections):
            connection.close()

    async def close(self) -> None:
        """Takes nothing more, answers what is in flight (so that clients do not send it again), then closes every
        connection.
        """
        for server in self._servers:
            server.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.hold_reading(True)
        if not await drained(self.budget, self.settings.drain_timeout_s):
            log.warning("listener.not_drained", extra={"bytes": self.budget.used})
        self.disconnect_all()
        self.converting.close()
        await self.tasks.close()
