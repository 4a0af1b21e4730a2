"""TransactionCoordinator: the transactions of one coordinator: which are open, what takes part in them, and how they
end.

Is: the states of a transaction and the rules between them, its stored form. Isn't: storage, time, or the way to a
participant (`stored_coordinator`, `transaction_service`).
Invariants: a transaction that was told to commit never aborts, and the other way round; nothing joins one that is
ending; a transaction at or above `low_watermark` may still be open, none below it is. Asking for the same again is no
error.

    OPEN -> COMMITTING -> COMMITTED
    OPEN -> ABORTING -> ABORTED         every participant has ended it for good before the last step

Stored, msgpack behind a version byte (1):
    [status, ttl ms, opened ms, ended ms, owner, [topic ...], [[topic, subscription] ...]]
Source: docs/protocols/transactions.md, "The coordinator".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from heliograph.model.configuration.setting import check_bounds, setting
from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.model.ledger_metadata import pack, unpack
from region_node.transactions.participants.transaction_errors import (
    NoSuchTransaction,
    TransactionFull,
    TransactionState,
)

_BYTES_MAX = 512 << 10
"""Of one transaction as it is stored; the metadata takes no value above 1 MiB."""
_NAME_BYTES = 6
"""What msgpack puts before a name at most, and half of what it puts before a pair."""
_OTHER_BYTES = 64
"""What is stored of a transaction beside the names: of its owner, its topics, its subscriptions."""


class TransactionStatus(IntEnum):
    """Named as Pulsar's statistics do."""

    OPEN = 0
    COMMITTING = 1
    ABORTING = 2
    COMMITTED = 3
    ABORTED = 4

    @property
    def final(self) -> bool:
        return self >= TransactionStatus.COMMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    open_max: int = setting(100_000, "transactions", least=1, theirs="maxActiveTransactionsPerCoordinator")
    """Transactions that have not ended, of one coordinator."""
    open_max_of_role: int = setting(10_000, "transactions", least=1)
    """The same of one role; those of nobody in particular, as without authentication, are not counted."""
    open_max_of_tenant: int = setting(50_000, "transactions", least=1)
    """Transactions of one coordinator that have not ended, and in which topics of one tenant take part."""
    participants_max: int = setting(10_000, least=1)
    """Topics and subscriptions of one transaction, whose names have 512 KiB together at most."""
    bytes_max: int = setting(128 << 20, "bytes", least=1)
    """Of the names of topics and subscriptions that take part in transactions that have not ended, of one
    coordinator.
    """
    bytes_max_of_role: int = setting(16 << 20, "bytes", least=1)
    """The same of one role."""
    ttl_max_ms: int = setting(24 * 3600 * 1000, "ms", least=1)
    """The longest time that a transaction may ask for."""
    kept_ms: int = setting(120_000, "ms", least=1)
    """How long it is remembered how one ended, for clients that did not hear of it and ask again."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.transactions.limits")


class Txn:
    """One transaction. `partitions`, `subscriptions`: what takes part, in the order of joining."""

    __slots__ = (
        "ended_ms",
        "names_bytes",
        "number",
        "opened_ms",
        "owner",
        "partitions",
        "status",
        "subscriptions",
        "tenants",
        "timed_out",
        "ttl_ms",
    )

    def __init__(self, number: int, ttl_ms: int, opened_ms: int, owner: str) -> None:
        self.number, self.ttl_ms, self.opened_ms, self.owner = number, ttl_ms, opened_ms, owner
        self.status = TransactionStatus.OPEN
        self.ended_ms = 0
        self.partitions: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}
        self.tenants: dict[str, None] = {}
        """Those whose topics take part."""
        self.names_bytes = 0
        """What they take as they are stored, or a little more."""
        self.timed_out = False

    def add(self, topics: Sequence[str], pairs: Sequence[tuple[str, str]]) -> None:
        """Lets them take part; none of them does yet."""
        self.partitions.update(dict.fromkeys(topics))
        self.subscriptions.update(dict.fromkeys(pairs))
        self.tenants.update(dict.fromkeys(tenants_of([*topics, *(topic for topic, _ in pairs)])))
        self.names_bytes += _size_of(topics, pairs)

    def drop_names(self) -> None:
        """Nobody has a part in it any more."""
        self.partitions, self.subscriptions, self.tenants, self.names_bytes = {}, {}, {}, 0

    @property
    def participants(self) -> int:
        return len(self.partitions) + len(self.subscriptions)

    def encode(self) -> bytes:
        subscriptions = [list(pair) for pair in self.subscriptions]
        return pack(
            [
                int(self.status),
                self.ttl_ms,
                self.opened_ms,
                self.ended_ms,
                self.owner,
                list(self.partitions),
                subscriptions,
            ]
        )

    @classmethod
    def decode(cls, number: int, blob: bytes) -> Txn:
        """Reads what is stored under the transaction's number. Raises CorruptData."""
        fields = unpack("transaction", blob)
        try:
            status, ttl_ms, opened_ms, ended_ms, owner, partitions, subscriptions = fields[:7]
            made = cls(number, int(ttl_ms), int(opened_ms), str(owner))
            made.status, made.ended_ms = TransactionStatus(status), int(ended_ms)
            made.add([*map(str, partitions)], [(str(topic), str(name)) for topic, name in subscriptions])
            if made.status.final:  # an earlier version kept them
                made.drop_names()
        except (ValueError, TypeError) as error:
            raise CorruptData(f"transaction {number}: {error}") from error
        return made


def tenants_of(topics: Iterable[str]) -> set[str]:
    """topics: whole names, or short ones, as clients give them."""
    return {_tenant_of(topic.partition("://")[2] or topic) for topic in topics}


def _tenant_of(rest: str) -> str:
    tenant, slash, _ = rest.partition("/")
    return tenant if slash else "public"


def _size_of(topics: Iterable[str], pairs: Iterable[tuple[str, str]]) -> int:
    """What they add to a stored transaction, or a little more."""
    names = [*topics, *(name for pair in pairs for name in pair)]
    return sum(len(name.encode()) + _NAME_BYTES for name in names)


class TransactionCoordinator:
    """`open`: by number, ascending, those that have not ended for good; `final`: those that have, for a while, in the
    order of their ends. Its caller's times (`now_ms`) never go back, nor jump.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.open: dict[int, Txn] = {}
        self.final: dict[int, Txn] = {}
        self.next_number = 1
        self.created = self.committed = self.aborted = self.timed_out = 0
        self._of_role, self._of_tenant, self._bytes_of_role = Counter[str](), Counter[str](), Counter[str]()
        self._bytes = 0

    def restore(self, txns: Iterable[Txn], next_number: int, now_ms: int) -> None:
        """What an earlier owner stored, in the order of the numbers. What its clock was ahead with begins, or has
        ended, now.
        """
        for txn in txns:
            txn.opened_ms, txn.ended_ms = min(txn.opened_ms, now_ms), min(txn.ended_ms, now_ms)
            (self.final if txn.status.final else self.open)[txn.number] = txn
            if not txn.status.final:
                self._of_role[txn.owner] += 1
                self._of_tenant.update(txn.tenants.keys())
                self._count_bytes(txn.owner, txn.names_bytes)
        self.next_number = next_number

    @property
    def low_watermark(self) -> int:
        """No transaction below this number has not ended."""
        return next(iter(self.open), self.next_number)

    # -- requests: each returns the transaction that is to be stored, or None where nothing has changed ---------------

    def begin(self, number: int, ttl_ms: int, owner: str, now_ms: int) -> Txn:
        """number: at or above `next_number`. Raises NotAllowed: too many are open, or too many of the owner's."""
        if len(self.open) >= self.settings.open_max:
            raise NotAllowed(
                f"{len(self.open)} transactions of this coordinator are open, and no more are allowed: end some, or "
                "use another coordinator"
            )
        if owner and self._of_role[owner] >= self.settings.open_max_of_role:
            raise NotAllowed(
                f"{self._of_role[owner]} transactions of the role {owner!r} are open at this coordinator, and no more "
                "are allowed: end some, or raise broker.transactions.limits.open_max_of_role"
            )
        assert number >= self.next_number
        self.next_number = number + 1
        made = self.open[number] = Txn(number, max(1, min(ttl_ms, self.settings.ttl_max_ms)), now_ms, owner)
        self._of_role[owner] += 1
        self.created += 1
        return made

    def find(self, number: int, owner: str | None = None) -> Txn:
        """owner: who asks; None: an admin, or the broker itself. Raises NoSuchTransaction."""
        found = self.open.get(number) or self.final.get(number)
        if found is None or (owner is not None and found.owner != owner):
            raise NoSuchTransaction(
                f"transaction {number} is not known: it was never begun, ended long ago, or is somebody else's"
            )
        return found

    def join(
        self,
        number: int,
        owner: str | None,
        partitions: Iterable[str] = (),
        subscriptions: Iterable[tuple[str, str]] = (),
    ) -> Txn | None:
        """Raises NoSuchTransaction, TransactionState, TransactionFull, NotAllowed (too many of the tenant's): then
        nothing has joined.
        """
        txn = self.find(number, owner)
        topics = [topic for topic in dict.fromkeys(partitions) if topic not in txn.partitions]
        pairs = [pair for pair in dict.fromkeys(subscriptions) if pair not in txn.subscriptions]
        if txn.status is not TransactionStatus.OPEN:
            raise TransactionState(f"transaction {number} is {txn.status.name}: nothing can join it")
        if txn.participants + len(topics) + len(pairs) > self.settings.participants_max:
            raise TransactionFull(
                f"transaction {number}: more than {self.settings.participants_max} topics and subscriptions"
            )
        more = _size_of(topics, pairs)
        if more and _OTHER_BYTES + len(txn.owner.encode()) + txn.names_bytes + more > _BYTES_MAX:
            raise TransactionFull(
                f"transaction {number}: the names of its topics and subscriptions have more than {_BYTES_MAX} bytes "
                "together: use fewer of them in one transaction"
            )
        fresh = tenants_of([*topics, *(topic for topic, _ in pairs)]) - txn.tenants.keys()
        for tenant in fresh:
            if self._of_tenant[tenant] >= self.settings.open_max_of_tenant:
                raise NotAllowed(
                    f"{self._of_tenant[tenant]} transactions with topics of the tenant {tenant!r} are open at this "
                    "coordinator, and no more are allowed: end some, or raise "
                    "broker.transactions.limits.open_max_of_tenant"
                )
        self._check_room(txn.owner, more)
        self._of_tenant.update(fresh)
        self._count_bytes(txn.owner, more)
        txn.add(topics, pairs)
        return txn if topics or pairs else None

    def _check_room(self, owner: str, more: int) -> None:
        """Raises NotAllowed where `more` bytes of names are too many, of all or of the owner's."""
        if owner and more and self._bytes_of_role[owner] + more > self.settings.bytes_max_of_role:
            raise NotAllowed(
                f"the topics and subscriptions of open transactions of the role {owner!r} have names of "
                f"{self._bytes_of_role[owner]} bytes together at this coordinator, and no more are allowed: end some, "
                "or raise broker.transactions.limits.bytes_max_of_role"
            )
        if more and self._bytes + more > self.settings.bytes_max:
            raise NotAllowed(
                f"the topics and subscriptions of open transactions of this coordinator have names of {self._bytes} "
                "bytes together, and no more are allowed: end some, or raise broker.transactions.limits.bytes_max"
            )

    def _count_bytes(self, owner: str, more: int) -> None:
        self._bytes += more
        self._bytes_of_role[owner] += more
        if not self._bytes_of_role[owner]:
            del self._bytes_of_role[owner]

    def end(self, number: int, *, commit: bool, owner: str | None = None) -> Txn | None:
        """Decides it. Raises NoSuchTransaction, TransactionState where it ends, or has ended, the other way."""
        txn = self.find(number, owner)
        if txn.status is TransactionStatus.OPEN:
            txn.status = TransactionStatus.COMMITTING if commit else TransactionStatus.ABORTING
            return txn
        if commit != (txn.status in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)):
            why = ": its time was over" if txn.timed_out else ""
            raise TransactionState(f"transaction {number} is {txn.status.name}{why}")
        return None

    def done(self, number: int, now_ms: int) -> Txn | None:
        """Every participant has ended it for good."""
        txn = self.find(number)
        if txn.status.final:
            return None
        assert txn.status is not TransactionStatus.OPEN
        commit = txn.status is TransactionStatus.COMMITTING
        txn.status, txn.ended_ms = (TransactionStatus.COMMITTED if commit else TransactionStatus.ABORTED), now_ms
        self.final[number] = self.open.pop(number)
        self._of_role.subtract([txn.owner])
        self._of_tenant.subtract(txn.tenants.keys())
        for counts, gone in ((self._of_role, [txn.owner]), (self._of_tenant, [*txn.tenants])):
            for each in gone:
                if not counts[each]:
                    del counts[each]
        self._count_bytes(txn.owner, -txn.names_bytes)
        txn.drop_names()
        self.committed += commit
        self.aborted += not commit
        return txn

    # -- as time goes by ----------------------------------------------------------------------------------------------

    def expired(self, now_ms: int) -> list[Txn]:
        """Open ones whose time is over."""
        return [
            txn
            for txn in self.open.values()
            if txn.status is TransactionStatus.OPEN and now_ms - txn.opened_ms >= txn.ttl_ms
        ]

    def ending(self) -> list[Txn]:
        """Decided, and not ended everywhere."""
        return [
            txn
            for txn in self.open.values()
            if txn.status in (TransactionStatus.COMMITTING, TransactionStatus.ABORTING)
        ]

    def forget(
        self, now_ms: int, asked_for: Callable[[int], bool] = lambda _number: False, count_max: int = 500
    ) -> list[int]:
        """Those whose end nobody asks for any more: what is stored of them can go. asked_for: stays, however old."""
        gone: list[int] = []
        for number, txn in self.final.items():
            if len(gone) >= count_max or now_ms - txn.ended_ms < self.settings.kept_ms:
                break
            if not asked_for(number):
                gone.append(number)
        for number in gone:
            del self.final[number]
        return gone

    def slow(self, now_ms: int, older_ms: int) -> list[Txn]:
        """Not ended, and open for so long."""
        return [txn for txn in self.open.values() if now_ms - txn.opened_ms >= older_ms]
