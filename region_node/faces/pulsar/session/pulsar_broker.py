"""PulsarBroker: what all connections of one broker's Pulsar listeners share, and the port by which one is driven.

Is: the broker's parts that handlers use, settings, counts, and the byte budget of publishes in flight. Isn't: a
command's meaning, or a socket (`region_node.faces.pulsar.connection`).
Invariants: publishes in flight of the whole broker stay within the budget plus one read per connection.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from heliograph.model.configuration.configuration_records import PulsarCluster
from heliograph.model.errors import ConfigError
from heliograph.runtime.byte_budget import ByteBudget
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.compute_thread import Offload
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.frame_cutter import MESSAGE_BYTES_MAX, FrameCutter
from heliograph.wire.run import Buffer
from region_node.faces.pulsar.session.look_ups_to_come import LookUpsToCome
from region_node.metrics.lookup_metrics import LookupCounts
from region_node.runtime.logged_tasks import logged_tasks
from region_node.security.authorization.security_service import Security, open_security
from region_node.subscriptions.consumer import ConsumerSink
from region_node.topics.producers import ProducerSink
from region_node.topics.serving.topic_service import TopicService
from region_node.transactions.coordinators.transaction_service import Transactions
from region_node.usage.tenant_usage import Usage
from replicator.receiving.link_session import LinkSession

TOLD_MAX = 10_000
"""Look-ups of clients with several connections each that are remembered."""


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

    @property
    def admin_urls(self) -> tuple[str, str]:
        """This broker's admin port without and with TLS, once it has one; "": not told. For who sends HTTP to a port
        of Pulsar's clients.
        """
        ...


class ClusterPort(Protocol):
    """The Pulsar clusters that this region exchanges messages with."""

    def cluster(self, name: str) -> PulsarCluster | None:
        """None: there is none of that name, or its gateway is another region."""
        ...

    async def marker(self, topic: str, cluster: str, kind: int, payload: Buffer) -> None:
        """A marker came; everything before it is durable. Raises HeliographError, CorruptData."""
        ...


class LinkFrames(Protocol):
    """`replicator.receiving.link_receiver.LinkReceiver`: the other half of one connection on a link listener."""

    def on_bytes(self) -> None: ...

    def on_frame(self, kind: int, command: memoryview, payload: memoryview) -> None: ...

    def connection_lost(self) -> None: ...


LinkFactory = Callable[[LinkSession], LinkFrames]


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
    unsent_bytes_max: int = 16 << 20
    """Of answers that one client does not take; above it nothing more is read from it."""
    message_bytes_max: int = MESSAGE_BYTES_MAX
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


class AnsweredCommand(Protocol):
    """A command that is answered."""

    @property
    def request_id(self) -> int: ...

    def ByteSize(self) -> int: ...


class ClientSink(ProducerSink, ConsumerSink, Protocol):
    """Where the producers and the consumers of one connection hear from their topics."""


class ClientPort(ClientSink, Protocol):
    """`region_node.faces.pulsar.connection.pulsar_connection.PulsarConnection`, as a session and its parts drive it."""

    @property
    def address(self) -> str: ...

    @property
    def broker_metadata(self) -> bool: ...

    @property
    def by_position(self) -> bool: ...

    @property
    def certificate(self) -> dict[str, Any] | None: ...

    @property
    def client_version(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    @property
    def cutter(self) -> FrameCutter: ...

    @property
    def link(self) -> bool: ...

    @property
    def peer_region(self) -> str: ...

    @property
    def protocol_version(self) -> int: ...

    @property
    def tls(self) -> bool: ...

    def connect(self, command: pb.CommandConnect) -> None: ...

    def accept(self, command: pb.CommandConnect) -> None: ...

    def go_on(self) -> None: ...

    def pong(self) -> None: ...

    def close(self, reason: str = "", code: pb.ServerError.ValueType = pb.UnknownError) -> None: ...

    def write(self, data: Buffer) -> None: ...

    def flush(self) -> None: ...

    def send(self, command: pb.BaseCommand) -> None: ...

    def send_error(self, request_id: int, code: pb.ServerError.ValueType, text: str) -> None: ...

    def send_success(self, request_id: int) -> None: ...

    def refused(self, request_id: int, code: pb.ServerError.ValueType, text: str, **more: Any) -> None: ...

    def takes(self, request_id: int) -> bool: ...

    def answer(self, request: AnsweredCommand, work: Coroutine[Any, Any, None]) -> None: ...

    def call_later(self, wait_s: float, action: Callable[[], None]) -> object: ...

    async def room(self) -> None: ...


def _over_budget(port: ClientPort, over: bool) -> None:
    port.hold_reading(over)


@dataclass(slots=True, kw_only=True, eq=False)
class PulsarBroker:
    """Made once, by the composition. `link_receivers`: makes the other half of each connection on a link listener.
    `security`: absent, nobody is asked for anything. `transactions` None: clients are told that there are none.
    `clusters` None: nothing is exchanged with Pulsar clusters.
    """

    topics: TopicService
    lookup: LookupPort
    link_receivers: LinkFactory | None = None
    security: Security = field(default_factory=open_security)
    usage: Usage = field(default_factory=Usage)
    transactions: Transactions | None = None
    clusters: ClusterPort | None = None
    settings: ListenerSettings = field(default_factory=ListenerSettings)
    clock: Clock
    rng: Rng
    tasks: TaskSet = field(init=False, default_factory=logged_tasks)
    lookups: LookupCounts = field(init=False, default_factory=LookupCounts)
    budget: ByteBudget[ClientPort] = field(init=False)
    """Bounds the bytes of publishes that wait for their receipts."""
    converting: Offload = field(init=False)
    """Where large entries of Kafka's clients become Pulsar's; the other face has it too."""
    told: LookUpsToCome[tuple[str, str, str, str]] = field(init=False, default_factory=lambda: LookUpsToCome(TOLD_MAX))
    """Clients that look up on another connection than the one on which they were told to go on elsewhere."""
    _names: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.budget = ByteBudget(self.settings.inflight_bytes_max, _over_budget)
        self.converting = Offload(self.settings.connections_max)

    def unique_name(self) -> str:
        """Returns a producer name that nobody else has."""
        self._names += 1
        return f"heliograph-{self.rng.getrandbits(64):016x}-{self._names}"
