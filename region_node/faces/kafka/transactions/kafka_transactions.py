"""Transactions of Kafka's producers: ids and epochs, what each transaction touches, and its end, on the region's
transaction coordinators.

Is: the record of each transactional id, fencing by epoch, offsets that are committed with a transaction. Isn't: which
entries readers see (`region_node.transactions` and the topic's buffer), or whether a transaction has ended: its
coordinator's answer is the truth.
Invariants: of one transactional id only the newest epoch may do anything; offsets of a transaction are written only
while its record says that it is open, count once it has committed, and never where it has not; what a broker leaves
unfinished when it dies, the next one finishes before anything else of that id.
Source: Kafka KIP-98, KIP-360, KIP-447; docs/protocols/kafka.md, "Transactions".

    /kafka/transactions/{id}                   ->  [1, producer, epoch, time-out ms, transaction | None, intent]
                                                   intent: 0 open, 1 commit, 2 abort
    /kafka/producers/{producer}                ->  [1, epoch, transaction | None]
                                                   for brokers that lead partitions
    /kafka/txn-offsets/{id}/{group}/{topic}    ->  [1, producer, epoch, rows as `committed_offsets` has them]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

import msgpack

from heliograph.kv.metadata_store import ABSENT, Check, MetadataStore, Op, Put, pages_under
from heliograph.model.errors import CorruptData, HeliographError, NotAllowed, VersionConflict
from heliograph.wire.run import TxnId
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.committed_offsets import Row, decode, encode
from region_node.faces.kafka.transactions.transaction_offsets import TransactionOffsets
from region_node.faces.kafka.transactions.transactional_id_expiration import (
    TXN_OFFSETS,
    IdleIds,
    asked_key,
    deletions,
    producer_key,
)
from region_node.faces.kafka.transactions.transactional_id_rights import TransactionalIdRights
from region_node.security.authentication.principal import Principal
from region_node.transactions.coordinators.coordinator import TransactionStatus
from region_node.transactions.coordinators.stored_coordinator import as_stored
from region_node.transactions.participants.transaction_errors import (
    NoCoordinator,
    NoSuchTransaction,
    TransactionFull,
    TransactionState,
)

if TYPE_CHECKING:
    from heliograph.runtime.clock import Clock
    from heliograph.runtime.task_set import TaskSet
    from region_node.faces.kafka.kafka_settings import KafkaSettings
    from region_node.faces.kafka.log.partition_log import KafkaLog
    from region_node.faces.kafka.transactions.producer_ids import ProducerIds
    from region_node.security.authorization.security_service import Security
    from region_node.transactions.coordinators.transaction_service import Transactions

log = logging.getLogger("region_node.kafka")

IDS = "/kafka/transactions/"
FORMAT = 1
OPEN, COMMIT, ABORT = 0, 1, 2
EPOCH_MAX = (1 << 15) - 2
"""The last epoch of a producer; whoever begins then gets another one."""
_ID_BYTES_MAX = 1 << 10
ENDED_AT_ONCE = 32
"""Ids whose transactions are ended at once, because their producers do not."""
_ROOM_SHARE = 64
"""Where there are as many ids as may be, this share of them is forgotten at once: each look reads them all."""
_TRIES = 16


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """Holds what is stored of one transactional id. `version`: of its key, for compare-and-set."""

    producer: int
    epoch: int
    timeout_ms: int
    txn: TxnId | None = None
    intent: int = OPEN
    version: int = ABSENT

    def encode(self) -> bytes:
        txn = None if self.txn is None else list(self.txn)
        packed: bytes = msgpack.packb([FORMAT, self.producer, self.epoch, self.timeout_ms, txn, self.intent])
        return packed

    @classmethod
    def decode(cls, blob: bytes, version: int) -> TransactionRecord:
        try:
            number, producer, epoch, timeout_ms, txn, intent = msgpack.unpackb(blob)
            if number != FORMAT:
                raise CorruptData(f"transactional id: format {number}; this version reads {FORMAT}")
            return cls(producer, epoch, timeout_ms, None if txn is None else (txn[0], txn[1]), intent, version)
        except (ValueError, TypeError, IndexError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"transactional id: {error}") from error


def _asked_value(record: TransactionRecord) -> bytes:
    """The epoch with which its producer asks for the next one, and the transaction that is open meanwhile."""
    packed: bytes = msgpack.packb([FORMAT, record.epoch, None if record.txn is None else list(record.txn)])
    return packed


def _producer_value(record: TransactionRecord) -> bytes:
    packed: bytes = msgpack.packb([FORMAT, record.epoch, None if record.txn is None else list(record.txn)])
    return packed


async def _asked_again(meta: MetadataStore, record: TransactionRecord, producer: int, epoch: int) -> bool:
    """Whether the record's epoch was given to the producer that asks with `epoch` again, as it did not hear the
    answer, and has begun nothing with it since (KIP-360).
    """
    if (record.producer, record.epoch) != (producer, epoch + 1):
        return False
    found = await meta.get(asked_key(producer))
    try:
        _, asked_with, txn = msgpack.unpackb(found[0]) if found is not None else (FORMAT, -1, None)
        return asked_with == epoch and (record.txn is None or list(record.txn) == txn)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        return False


class TransactionalBroker(Protocol):
    """`region_node.faces.kafka.session.kafka_broker.KafkaBroker`, as it coordinates transactional ids."""

    @property
    def meta(self) -> MetadataStore: ...

    @property
    def settings(self) -> KafkaSettings: ...

    @property
    def security(self) -> Security: ...

    @property
    def producer_ids(self) -> ProducerIds: ...

    @property
    def tasks(self) -> TaskSet: ...

    @property
    def clock(self) -> Clock: ...


class KafkaTransactions:
    """Runs transactions of the ids that one broker coordinates. `service`: the region's coordinators that run here.
    `ending_s`: so long `recover` waits for those that it ends; what takes longer goes on.
    """

    def __init__(self, broker: TransactionalBroker, service: Transactions, *, ending_s: float = 10.0) -> None:
        assert service.named is not None, "what records name would be forgotten"
        self._broker, self._service, self._named, self._ending_s = broker, service, service.named, ending_s
        self._meta: MetadataStore = broker.meta
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        """Of ids that somebody holds, or waits for."""
        self._unfinished: dict[str, None] = {}
        """Ids whose transaction was decided, and may not have ended; or that has ended without its producer: its time
        was over.
        """
        self._ending: dict[str, None] = {}
        """Those of them that are being ended."""
        tenant = broker.settings.namespace.partition("/")[0]
        self.rights = TransactionalIdRights(broker.meta, broker.security.rights, tenant, self._producer_of)
        self._offsets = TransactionOffsets(broker.meta, broker.tasks)
        self._ids = 0
        """Ids that are coordinated here: as many as there were when a coordinator came here last, and new ones."""
        self._idle = IdleIds(broker.meta, broker.clock, broker.settings.transactional_id_expiration_s, IDS)

    def topic_of(self, transactional_id: str) -> str:
        """The topic whose owner coordinates that id. Raises Refused."""
        check_id(transactional_id)
        return self._service.topic_of(self._service.coordinator_of(transactional_id))

    # -- the record ----------------------------------------------------------------------------------------------------

    def _lock(self, transactional_id: str) -> asyncio.Lock:
        return self._locks.setdefault(transactional_id, asyncio.Lock())

    async def _get(self, transactional_id: str) -> TransactionRecord | None:
        found = await self._meta.get(IDS + quote(transactional_id, safe=""))
        return None if found is None else TransactionRecord.decode(*found)

    async def _producer_of(self, transactional_id: str) -> int | None:
        record = await self._get(transactional_id)
        return None if record is None else record.producer

    async def _put(
        self, transactional_id: str, record: TransactionRecord, more: Sequence[Op] = ()
    ) -> TransactionRecord:
        """Both keys at once, and `more`. Raises Refused where another broker has written meanwhile."""
        key = IDS + quote(transactional_id, safe="")
        producer = Put(producer_key(record.producer), _producer_value(record))
        ops = [Put(key, record.encode(), record.version), producer, *more]
        try:
            version = await self._meta.txn(ops)
        except VersionConflict as error:
            raise Refused(Code.NOT_COORDINATOR) from error
        return replace(record, version=version)

    async def _mine(self, transactional_id: str) -> None:
        """Raises Refused unless this broker coordinates that id."""
        try:
            await self._service.coordinator(self._service.coordinator_of(transactional_id))
        except NoCoordinator as error:
            raise Refused(Code.NOT_COORDINATOR, str(error)) from error

    async def _checked(self, transactional_id: str, producer: int, epoch: int) -> TransactionRecord:
        await self._mine(transactional_id)
        record = await self._get(transactional_id)
        if record is None or record.producer != producer:
            raise Refused(Code.INVALID_PRODUCER_ID_MAPPING)
        if record.epoch != epoch:
            raise Refused(Code.PRODUCER_FENCED)
        return record

    # -- requests ------------------------------------------------------------------------------------------------------

    async def begin_producer(
        self, transactional_id: str, timeout_ms: int, producer: int, epoch: int, principal: Principal | None = None
    ) -> tuple[int, int]:
        """InitProducerId: (producer, epoch); what the one before left open is aborted, or committed where that was
        decided. principal: who asks, None for the broker itself. Raises Refused.
        """
        check_id(transactional_id)
        if not 0 < timeout_ms <= self._broker.settings.transaction_timeout_max_ms:
            raise Refused(Code.INVALID_TRANSACTION_TIMEOUT)
        await self._mine(transactional_id)
        async with self._lock(transactional_id):
            record = await self._get(transactional_id)
            if principal is not None:
                await self._check_begins(principal, record, transactional_id)
            before = -1 if record is None else record.producer
            asked_again, asked = False, list[Op]()
            new = record is None
            if record is None:
                await self._check_room()
                record = TransactionRecord(await self._broker.producer_ids.next(), -1, timeout_ms)
            elif producer >= 0 and (record.producer != producer or record.epoch != epoch):
                asked_again = await _asked_again(self._meta, record, producer, epoch)
                if not asked_again:
                    raise Refused(Code.PRODUCER_FENCED)
            if not asked_again:
                if producer >= 0 and record.epoch >= 0:
                    asked = [Put(asked_key(record.producer), _asked_value(record))]
                record = replace(record, epoch=record.epoch + 1, timeout_ms=timeout_ms)
            if record.epoch > EPOCH_MAX:
                if record.txn is not None:  # what it holds is of the producer that it has until now
                    record = await self._put(transactional_id, record)
                    record = await self._finish(transactional_id, record, record.intent or ABORT)
                asked = deletions(record.producer)  # whose batches are refused then, as those of an unknown one
                record = replace(record, producer=await self._broker.producer_ids.next(), epoch=0, intent=OPEN)
            claim = await self.rights.claim(principal, before, record.producer)
            record = await self._put(transactional_id, record, [*claim, *asked])  # from here on the older one is fenced
            self._ids += new
            if record.txn is not None:
                record = await self._finish(transactional_id, record, record.intent or ABORT)
            return record.producer, record.epoch

    async def _check_room(self) -> None:
        """Comes before an id that is new. Raises Refused: there are too many, and all of them in transactions."""
        most = self._broker.settings.transactional_ids_max
        if self._ids < most:
            return
        async with self._idle.making_room:
            if self._ids >= most:
                loaded = dict(self._service.loaded)
                self._ids = await self._idle.make_room(
                    most,
                    max(1, most // _ROOM_SHARE),
                    lambda each: self._service.coordinator_of(each) in loaded,
                    self._idle_producer,
                )
        if self._ids >= most:
            raise Refused(
                Code.POLICY_VIOLATION,
                f"this broker coordinates {most} transactional ids, all of them in transactions, and takes no more "
                "(broker.kafka.transactional_ids_max): use the same ids again, or end what is open",
            )

    async def _check_begins(self, principal: Principal, record: TransactionRecord | None, name: str) -> None:
        if record is None:
            self.rights.check_new(principal, name)
        else:
            await self.rights.check(principal, record.producer, name)

    async def add_partitions(self, transactional_id: str, producer: int, epoch: int, topics: list[str]) -> None:
        """topics: full names. Raises Refused."""
        async with self._lock(transactional_id):
            record = await self._open(transactional_id, await self._checked(transactional_id, producer, epoch))
            assert record.txn is not None
            await self._asked(self._service.add_partitions(record.txn, topics), record)

    async def add_offsets(self, transactional_id: str, producer: int, epoch: int) -> None:
        """A group's offsets will be part of it. Raises Refused."""
        async with self._lock(transactional_id):
            await self._open(transactional_id, await self._checked(transactional_id, producer, epoch))

    async def _open(self, transactional_id: str, record: TransactionRecord) -> TransactionRecord:
        if record.intent:
            raise Refused(Code.CONCURRENT_TRANSACTIONS)
        if record.txn is None:
            number = self._service.coordinator_of(transactional_id)
            try:
                owner = await self.rights.owner(record.producer) or ""
                txn = await self._service.begin(number, record.timeout_ms, owner)
            except NotAllowed as error:
                raise Refused(Code.CONCURRENT_TRANSACTIONS, str(error)) from error
            record = await self._put(transactional_id, replace(record, txn=txn))
        assert record.txn is not None
        self._named.by_txn[record.txn] = transactional_id  # also of a put whose answer was lost
        return record

    async def _asked(self, work: object, record: TransactionRecord) -> None:
        try:
            await work  # type: ignore[misc]
        except (NoSuchTransaction, TransactionState) as error:  # its time is over
            raise Refused(Code.PRODUCER_FENCED, str(error)) from error
        except TransactionFull as error:  # a code that clients do not try again by
            raise Refused(Code.POLICY_VIOLATION, str(error)) from error
        except NoCoordinator as error:
            raise Refused(Code.NOT_COORDINATOR, str(error)) from error

    async def end(self, transactional_id: str, producer: int, epoch: int, commit: bool) -> None:
        """Commits or aborts what is open, if anything. Raises Refused, PRODUCER_FENCED where its time was over."""
        async with self._lock(transactional_id):
            record = await self._checked(transactional_id, producer, epoch)
            wanted = COMMIT if commit else ABORT
            if record.txn is None:  # nothing was in it, or its answer was lost
                return
            if record.intent not in (OPEN, wanted):
                raise Refused(Code.INVALID_TXN_STATE)
            self._unfinished[transactional_id] = None  # also where this write's answer is lost
            record = await self._put(transactional_id, replace(record, intent=wanted))
            if (await self._finish(transactional_id, record, wanted)).intent != OPEN:
                raise Refused(Code.PRODUCER_FENCED, "the transaction's time was over, and it was aborted")

    async def _finish(self, transactional_id: str, record: TransactionRecord, intent: int) -> TransactionRecord:
        """Ends it on its coordinator, then its offsets count, or go; then the record is free. The answer's intent is
        ABORT where it should have committed.
        """
        assert record.txn is not None
        self._named.by_txn[record.txn] = transactional_id
        happened = intent
        try:
            await self._service.end(record.txn, commit=intent == COMMIT)
        except (TransactionState, NoSuchTransaction) as error:
            log.info("kafka.transaction_was_aborted", extra={"id": transactional_id, "error": str(error)})
            happened = ABORT
        except NoCoordinator as error:
            raise Refused(Code.NOT_COORDINATOR, str(error)) from error
        await self._offsets.move(
            transactional_id, record.producer, self._broker.clock.wall_ms(), commit=happened == COMMIT
        )
        epoch = record.epoch + (happened != intent)  # a commit that did not happen is fenced, also when it comes again
        free = await self._put(transactional_id, replace(record, epoch=epoch, txn=None, intent=OPEN))
        self._unfinished.pop(transactional_id, None)
        self._named.by_txn.pop(record.txn, None)
        return free if happened == intent else replace(free, intent=ABORT)

    async def recover(self) -> None:
        """Finishes what was decided and not finished: what failed here, and where a coordinator has come from another
        broker all ids that are its. Ends what has ended without its producer. Forgets ids that nobody uses.

        Raises what the metadata raises: then the next call looks again.
        """
        loaded = dict(self._service.loaded)
        fresh = self._named.fresh(loaded)
        if fresh:
            count = 0
            async for rows in pages_under(self._meta, IDS):
                for key, blob, version in rows:
                    transactional_id = unquote(key.removeprefix(IDS))
                    number = self._service.coordinator_of(transactional_id)
                    count += number in loaded
                    if number in fresh:
                        self._found(transactional_id, blob, version)
            self._ids = count
            await self._idle.forget_left(lambda each: self._service.coordinator_of(each) in fresh, self._between)
        self._named.read(loaded)
        ended: dict[str, list[TxnId]] = {}
        for txn, transactional_id in list(self._named.by_txn.items()):
            if (coordinator := loaded.get(txn[0])) is None:
                del self._named.by_txn[txn]  # another broker has it by now
            elif (known := coordinator.core.open.get(txn[1])) is None or known.status is not TransactionStatus.OPEN:
                self._unfinished[transactional_id] = None
                ended.setdefault(transactional_id, []).append(txn)
        await self._end_some(ended)
        if self._idle.due():
            forgotten = await self._idle.look(
                lambda each: self._service.coordinator_of(each) in loaded, self._idle_producer
            )
            self._ids = max(0, self._ids - forgotten)

    async def _end_some(self, ended: Mapping[str, Sequence[TxnId]]) -> None:
        """Ends some of those that are unfinished, side by side. One that takes long, as where a topic of it cannot be
        told, goes on by itself, and holds up no other.

        ended: id -> transactions that its record names, or named, and that are not open any more.
        """
        waiting = [each for each in self._unfinished if each not in self._ending and not self._lock(each).locked()]
        tasks = []
        for transactional_id in waiting[: ENDED_AT_ONCE - len(self._ending)]:
            self._ending[transactional_id] = None
            work = self._end_unfinished(transactional_id, ended.get(transactional_id, ()))
            tasks.append(self._broker.tasks.spawn(work))
        if tasks:
            await asyncio.wait(tasks, timeout=self._ending_s)

    async def _end_unfinished(self, transactional_id: str, ended: Sequence[TxnId]) -> None:
        try:
            async with self._lock(transactional_id):
                await self._mine(transactional_id)
                if not await self._end_alone(transactional_id):
                    return  # its coordinator has yet to write down that its time is over: the next call tries again
                for txn in ended:  # its record names it no more
                    self._named.by_txn.pop(txn, None)
        except HeliographError as error:
            log.info("kafka.transaction_not_finished", extra={"id": transactional_id, "error": str(error)})
            if not isinstance(error, Refused):
                return  # the next call tries again
        finally:
            self._ending.pop(transactional_id, None)
        self._unfinished.pop(transactional_id, None)  # also where another broker has it by now

    def _found(self, transactional_id: str, blob: bytes, version: int) -> None:
        """A record that another broker, or this one in another life, may have left in the middle of something."""
        record = _readable(transactional_id, blob, version)
        if record is not None and record.txn is not None:
            self._named.by_txn[record.txn] = transactional_id
            if record.intent:
                self._unfinished[transactional_id] = None

    async def _end_alone(self, transactional_id: str) -> bool:
        """Ends what nobody asks for any more. Returns whether its record is free: False where the transaction is open
        as far as is stored. Raises Refused, and what the metadata raises.
        """
        record = await self._get(transactional_id)
        if record is None or record.txn is None:
            return True
        if not record.intent:
            stored = await as_stored(self._meta, record.txn)
            if stored is not None and stored.status == TransactionStatus.OPEN:
                return False
            # its time was over: what its producer still sends must not count for the next one, and its commit must not
            # be answered with success
            record = await self._put(transactional_id, replace(record, epoch=record.epoch + 1, intent=ABORT))
            log.info("kafka.transaction_timed_out", extra={"id": transactional_id, "producer": record.producer})
        await self._finish(transactional_id, record, record.intent)
        return True

    async def _between(self, transactional_id: str) -> int | None:
        """The version of its record where it is in no transaction; None: it is in one, or nobody can read it."""
        found = await self._meta.get(IDS + quote(transactional_id, safe=""))
        if found is None:
            return ABSENT
        record = _readable(transactional_id, *found)
        return record.version if record is not None and record.txn is None else None

    def _idle_producer(self, transactional_id: str, blob: bytes, version: int) -> int | None:
        record = _readable(transactional_id, blob, version)
        return (
            None
            if record is None or record.txn is not None or self._lock(transactional_id).locked()
            else record.producer
        )

    # -- offsets -------------------------------------------------------------------------------------------------------

    async def hold_offsets(
        self, transactional_id: str, producer: int, epoch: int, group: str, rows: dict[tuple[str, int], Row]
    ) -> None:
        """TxnOffsetCommit, at the group's coordinator: durable, and without effect until the transaction commits.
        Raises Refused.
        """
        record = await self._holds(transactional_id, producer, epoch)
        topics: dict[str, dict[int, Row]] = {}
        for (topic, partition), row in rows.items():
            topics.setdefault(topic, {})[partition] = row
        of_id = quote(transactional_id, safe="")
        for topic, fresh in topics.items():
            key = f"{TXN_OFFSETS}{of_id}/{quote(group, safe='')}/{quote(topic, safe='')}"
            for left in reversed(range(_TRIES)):
                stored = await self._meta.get(key)
                old = _held(stored[0], producer, epoch) if stored is not None else {}
                packed: bytes = msgpack.packb([FORMAT, producer, epoch, encode({**old, **fresh})])
                put = Put(key, packed, stored[1] if stored is not None else ABSENT)
                assert record.txn is not None
                more_bytes = len(packed) - len(stored[0]) if stored is not None else len(key) + len(packed)
                self._offsets.check(record.txn, more_bytes)
                try:
                    await self._meta.txn([Check(IDS + of_id, record.version), put])
                    self._offsets.grow(record.txn, more_bytes)
                    break
                except VersionConflict:
                    if not left:
                        raise
                    record = await self._holds(transactional_id, producer, epoch)

    async def _holds(self, transactional_id: str, producer: int, epoch: int) -> TransactionRecord:
        """The record, where its transaction takes offsets. Raises Refused."""
        record = await self._get(transactional_id)
        if record is None or record.producer != producer:  # offsets under an id that is not its would never be let go
            raise Refused(Code.INVALID_PRODUCER_ID_MAPPING)
        if record.epoch != epoch:
            raise Refused(Code.PRODUCER_FENCED)
        if record.txn is None:
            raise Refused(Code.INVALID_TXN_STATE)
        if record.intent:
            raise Refused(Code.INVALID_TXN_STATE, "the transaction is ending")
        return record

    async def unstable(self, group: str) -> set[tuple[str, int]]:
        """Partitions of which some transaction that is open holds offsets of this group."""
        return await self._offsets.of_group(group)

    # -- at the partitions ---------------------------------------------------------------------------------------------

    async def of_producer(self, producer: int) -> tuple[int, TxnId | None] | None:
        """(epoch, the transaction that is open), as it is now."""
        found = await self._meta.get(producer_key(producer))
        if found is None:
            return None
        _, epoch, txn = msgpack.unpackb(found[0])
        return epoch, None if txn is None else (txn[0], txn[1])

    async def txn_of(self, log_of: KafkaLog, producer: int, epoch: int) -> TxnId:
        """The transaction that a batch of this producer belongs to; its coordinator must know that it is open, and that
        this partition takes part.

        Else nobody would tell the partition of its end, and readers would wait behind it for ever. Raises Refused,
        CorruptData, and what the metadata raises.
        """
        found = await self.of_producer(producer)
        if found is None and not self._broker.producer_ids.given_here(producer):
            raise Refused(Code.INVALID_TXN_STATE, f"producer {producer} has its transaction in another region")
        if found is None or found[0] > epoch:
            raise Refused(Code.INVALID_PRODUCER_EPOCH, f"producer {producer} of epoch {epoch} is fenced")
        if found[0] < epoch or found[1] is None:
            raise Refused(Code.INVALID_TXN_STATE, f"producer {producer} has no transaction")
        txn = await as_stored(self._meta, found[1])
        if txn is None or txn.status != TransactionStatus.OPEN or log_of.topic.text not in txn.partitions:
            raise Refused(
                Code.INVALID_TXN_STATE, f"{log_of.topic.text} was not added to the transaction of producer {producer}"
            )
        log_of.transactions[producer] = (epoch, found[1])
        return found[1]


def check_id(transactional_id: str) -> None:
    """Comes before anything else is done with an id. Raises Refused."""
    if not transactional_id or len(transactional_id) > _ID_BYTES_MAX or len(transactional_id.encode()) > _ID_BYTES_MAX:
        raise Refused(Code.INVALID_REQUEST, "a transactional id has 1 to 1024 bytes")


def _readable(transactional_id: str, blob: bytes, version: int) -> TransactionRecord | None:
    try:
        return TransactionRecord.decode(blob, version)
    except CorruptData as error:  # its producer hears of it
        log.warning("kafka.transactional_id_unreadable", extra={"id": transactional_id, "error": str(error)})
        return None


def _held(blob: bytes, producer: int, epoch: int) -> dict[int, Row]:
    """What the same producer held before."""
    number, of, at, rows = msgpack.unpackb(blob)
    return decode(rows) if (number, of, at) == (FORMAT, producer, epoch) else {}
