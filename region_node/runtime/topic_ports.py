"""What topics ask of the layers below. `replicator.log.replicated_log`, `storage.managed_ledger`, `global_config.view`
provide it; tests give small fakes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from heliograph.model.configuration.configuration_records import (
    ClusterMigration,
    NamespacePolicies,
    PulsarCluster,
    RegionInfo,
    ResourceGroup,
    TenantInfo,
    TenantQuota,
    TopicPolicies,
)
from heliograph.model.coordinates import Origin
from heliograph.model.errors import HeliographError
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import Position
from heliograph.model.topic_names import TopicName
from heliograph.wire.run import Run
from region_node.runtime.cursor_ports import CursorPort, LeadershipPort, LedgerPort
from region_node.runtime.ready_queue import YieldingPort

if TYPE_CHECKING:
    from replicator.log.transaction_buffer import TransactionBuffer
    from storage.ledger.known_losses import KnownLosses
    from storage.managed_ledger.log.log_reader import ColdReads

LeadershipOf = Callable[[TopicName, str, bool], LeadershipPort | None]
"""(topic, subscription, whether a policy wants it) -> its leadership; None: it may be active in every region."""
Segments = list[tuple[int, int, int]]
"""(count, ledger, first entry) in the order of a run; ledger -1: duplicates."""


class CursorOfLedger(CursorPort, Protocol):
    @property
    def name(self) -> str: ...

    @property
    def properties(self) -> dict[str, str]: ...


class ManagedLedgerPort(LedgerPort, Protocol):
    @property
    def owner(self) -> int:
        """This opening's number; every other one of the topic, wherever, has another."""
        ...

    @property
    def cursors(self) -> Mapping[str, CursorOfLedger]: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def entries(self) -> int: ...

    @property
    def created_ms(self) -> int:
        """Wall time at which the topic was made; 0: it is not stored."""
        ...

    @property
    def published_ms(self) -> int:
        """Wall time at which the last message came; 0: none is known."""
        ...

    @property
    def open_bytes(self) -> int: ...

    @property
    def next_index(self) -> int:
        """The index that the next message to be appended gets: messages are counted, not entries."""
        ...

    @property
    def confirmed_index(self) -> int:
        """Behind the last message that is confirmed."""
        ...

    def ledgers(self) -> list[LedgerInfo]:
        """Raises MetadataUnavailable where some of very many are only being read: see `whole`."""
        ...

    def ledgers_from(self, ledger: int) -> list[LedgerInfo]:
        """From this one on, and maybe some before it. Raises as `ledgers`, but not of ledgers that a cursor is
        before.
        """
        ...

    async def whole(self) -> None:
        """`ledgers` answers from then on."""
        ...

    def position_before(self, position: Position) -> Position:
        """The last one that exists strictly before it; (-1, -1): none. Raises as `ledgers`."""
        ...

    def first_position(self) -> Position: ...

    async def first_from(self, position: Position) -> Position | None:
        """The first one that exists at or behind it; None: there is none yet."""
        ...

    def bytes_between(self, after: Position, upto: Position) -> int: ...

    def wake_on_append(self, callback: Callable[[], None]) -> Callable[[], None]: ...

    async def open_cursor(
        self, name: str, initial: Position, *, durable: bool = True, properties: dict[str, str] | None = None
    ) -> CursorOfLedger: ...

    async def delete_cursor(self, name: str) -> None: ...

    def set_retention(self, minutes: int, mb: int) -> None: ...

    def set_quorums(self, ensemble: int, write_quorum: int, ack_quorum: int) -> None:
        """Sets what ledgers have that are opened from now on; the open one keeps its own."""
        ...

    def set_mark_delete_rate(self, per_s: float) -> None:
        """How often a second cursors are written at most, where nobody waits for it; 0: no limit."""
        ...

    def checkpoint(self) -> None:
        """The state's snapshot is written soon, where anything was appended since the last one."""
        ...

    def set_affinity(self, primary: Collection[str], secondary: Collection[str]) -> None:
        """Groups of bookies, of the ledgers that are opened from now on."""
        ...

    def follow_sealing(self) -> None:
        """Whether it is to be encrypted at rest may have changed."""
        ...

    async def oldest_unacked_ms(self, name: str) -> int:
        """When the first entry was stored that a cursor has not acknowledged; 0: none."""
        ...

    async def expire_before(self, time_ms: int, names: Sequence[str]) -> dict[str, int]:
        """Entries that were older, and now count as acknowledged: by cursor."""
        ...

    async def drop_to(self, size_bytes: int, names: Sequence[str]) -> dict[str, int]:
        """The same, of the oldest, until so many bytes of backlog are left."""
        ...

    async def truncate(self) -> dict[str, int]:
        """The same, of everything that is there, which is deleted."""
        ...

    async def terminate(self) -> Position: ...


class ReadablePort(LedgerPort, Protocol):
    """What clients may read of a topic: its ledger, or a view of it."""

    def ledgers(self) -> list[LedgerInfo]: ...

    def ledgers_from(self, ledger: int) -> list[LedgerInfo]: ...

    def position_before(self, position: Position) -> Position: ...


class Counted(Protocol):
    """`replicator.health.incoming_stats.IncomingLink`, as a topic uses it."""

    messages: int
    size_bytes: int


class SyncPort(Protocol):
    """`replicator.subscriptions.subscription_sync.SubscriptionSync`, as a topic uses it."""

    def moved(self, name: str) -> None:
        """A client or an operator has moved the subscription here."""
        ...


class FirstTransaction(Protocol):
    """`replicator.log.topic_state.TransactionHost`: a topic, as it hears that its first transaction has come."""

    def first_transaction(self) -> None: ...


class TransactionalLog(Protocol):
    """`replicator.log.replicated_log.ReplicatedLog`, as transactions and copies of its entries ask it."""

    @property
    def transactions(self) -> TransactionBuffer | None:
        """The transactions that it holds; None: it never held any."""
        ...

    @property
    def transaction_comes(self) -> bool:
        """Whether something that belongs to a transaction is on its way, of which the transactions do not know yet."""
        ...

    def awaits_past(self, position: Position) -> bool:
        """Whether the end of a transaction that began there may still come back from another region."""
        ...

    def origin_at(self, position: Position) -> Origin:
        """The origin of a stored entry that was first published here: it changes with the region's epoch."""
        ...

    def await_transaction(self, host: FirstTransaction) -> None:
        """Tells `host` when the first transaction comes while it is loaded."""
        ...


class LogPort(Protocol):
    """`replicator.log.replicated_log.ReplicatedLog`, as a topic uses it."""

    deduplication: bool

    @property
    def ledger(self) -> ManagedLedgerPort: ...

    @property
    def linked(self) -> bool:
        """Another region has it, too."""
        ...

    @property
    def transactional(self) -> TransactionalLog | None:
        """The same log, as transactions ask it; None: nothing of it is stored, and it takes part in none."""
        ...

    @property
    def incoming(self) -> Mapping[str, Counted]:
        """The links that bring messages, by region."""
        ...

    @property
    def syncing(self) -> SyncPort | None:
        """What keeps its subscriptions in step with other regions; None: there is nothing to keep."""
        ...

    def publish(
        self, run: Run, done: Callable[[Segments], None], failed: Callable[[HeliographError], None]
    ) -> None: ...

    def last_sequence(self, producer: str) -> int: ...

    def stand_behind(self, gate: LeadershipGatePort | None) -> None:
        """Where one region at a time publishes: a message whose producer tried again in another one is stored once."""
        ...

    async def close(self) -> None:
        """Waits for what is under way, and closes the managed ledger."""
        ...


class GatePort(Protocol):
    """What stands before a topic's publishers: nothing is published but through it."""

    @property
    def leadership(self) -> int:
        """As `heliograph.wire.run.Run.leadership`, of what is published now."""
        ...

    @property
    def epoch(self) -> int:
        """Rises within a leadership whenever another region becomes the one that publishes."""
        ...

    @property
    def open(self) -> bool:
        """Whether this region takes messages now."""
        ...

    def refusal(self) -> HeliographError | None: ...

    def enter(
        self, done: Callable[[Segments], None], failed: Callable[[HeliographError], None]
    ) -> PassagePort | HeliographError:
        """What to hear of a run in place of `done` and `failed`, or why it is not taken."""
        ...


class LeadershipGatePort(GatePort, Protocol):
    """The gate of an active-passive namespace as a topic uses it: `region_node.dr.leadership.write_gates.Gate`."""

    def taken_before(self) -> Callable[[], None]:
        """Something is on its way that was taken while no gate stood here. What is returned is called once it is
        answered.
        """
        ...


class PassagePort(Protocol):
    def done(self, segments: Segments) -> None: ...

    def failed(self, error: HeliographError) -> None: ...


class FactoryPort(Protocol):
    """`storage.managed_ledger.ManagedLedgerFactory`, as the service uses it."""

    @property
    def losses(self) -> KnownLosses | None:
        """What readers of this broker have found to be lost; None: nobody notes that."""
        ...

    @property
    def cold(self) -> ColdReads | None:
        """What reads ledgers that only an object store has; None: nothing does."""
        ...

    async def delete(
        self,
        topic: str,
        claimed: Callable[[], Awaitable[Sequence[int]]] | None = None,
        *,
        owner: int | None = None,
    ) -> None: ...

    async def exists(self, topic: str) -> bool: ...

    async def created_ms(self, topic: str) -> int: ...

    async def names(self, namespace: str) -> list[str]: ...

    def names_between(self, namespace: str, low: int, high: int) -> AsyncIterator[list[str]]: ...

    async def count(self, namespace: str) -> int: ...


class LinksPort(Protocol):
    """`replicator.manager.link_manager.LinkManager`, as the service uses it."""

    @property
    def yielding(self) -> YieldingPort | None:
        """To whom subscriptions give way that catch up; None: to nobody."""
        ...

    def attach(self, log: Any, targets: Sequence[str]) -> None: ...

    def schemas_changed(self, topic: str) -> None: ...

    def obey(self, log: Any, values: Mapping[str, Any]) -> None:
        """The policies that hold for the topic."""
        ...

    async def detach(self, log: Any) -> None: ...

    def stats(self, topic: str | None = None) -> Sequence[Any]: ...


class OwnRegion(Protocol):
    """`region_node.process.region_epoch.RegionEpoch`, as the service uses it."""

    @property
    def name(self) -> str:
        """Which never changes, whatever the configuration says."""
        ...

    def info(self) -> RegionInfo:
        """As topics may be opened under it. Raises MetadataUnavailable: not now. Nobody asks for it who only hears of
        a change.
        """
        ...


class ViewPort(Protocol):
    """`global_config.view.ConfigView`, as the service uses it."""

    restored: bytes

    def namespace(self, namespace: str) -> NamespacePolicies | None: ...

    def tenant(self, name: str) -> TenantInfo | None: ...

    def cluster(self, name: str) -> PulsarCluster | None: ...

    def migration(self, name: str) -> ClusterMigration | None: ...

    def migrated_in(self, namespace: str) -> tuple[str, ...]:
        """The regions that send the namespace's clients on."""
        ...

    def topic_policies(self, topic: str) -> TopicPolicies | None: ...

    def tenant_quota(self, tenant: str) -> TenantQuota | None: ...

    def namespaces(self, tenant: str) -> list[str]: ...

    def resource_group(self, name: str) -> ResourceGroup | None: ...

    def partitions(self, topic: str) -> int: ...

    def partitioned(self, namespace: str) -> list[str]:
        """Full names of the partitioned topics of a namespace."""
        ...

    def partitions_in(self, namespace: str) -> int:
        """How many partitions those have together."""
        ...

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]: ...
