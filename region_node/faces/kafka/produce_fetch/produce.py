"""Produce: record batches of one request to their partitions, and the answer once all of them are durable.

Is: checking batches, older formats made new, repetitions of idempotent producers, the order of answers. Isn't: storage.
Invariants: a batch is answered with success only when it is durable by the topic's write quorum, whatever `acks` says;
batches of one partition are stored in the order in which they came on a session. On the hot path a batch costs no
copy: its entry's head is written in front of it.
Source: docs/protocols/kafka.md, "Produce".
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from heliograph.model.errors import HeliographError, LedgerFenced
from heliograph.runtime.throttle import RowPace, at_once
from heliograph.wire.kafka.entry_conversion import entry_in_place, entry_of
from heliograph.wire.kafka.message_codec import Fields, Request
from heliograph.wire.kafka.record_batches import (
    CONTROL,
    HEADER_BYTES,
    NO_TIME,
    RECORDS_MAX,
    TRANSACTIONAL,
    ReadRoom,
    check_batch,
    format_of,
    peek_batch,
    with_append_time,
)
from heliograph.wire.pulsar.frame_cutter import MESSAGE_BYTES_MAX
from heliograph.wire.run import FLAG_KAFKA, Buffer, Run, TxnId
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.log.partition_log import KafkaLog
from region_node.faces.kafka.log.producer_sequences import Sent
from region_node.faces.kafka.produce_fetch.opened_batches import (
    KEYS_AT_ONCE,
    ONLY_NEW,
    check_keyed,
    check_keys,
    keys_known,
    open_batches,
)
from region_node.faces.kafka.session.kafka_session import KafkaSession, Slot
from region_node.faces.kafka.session.refusals import refused
from region_node.faces.kafka.transactions.kafka_transactions import check_id
from region_node.runtime.topic_ports import Segments
from region_node.security.authorization.authorization_service import Action
from region_node.topics.admission import check_backlog, check_source

if TYPE_CHECKING:
    from collections.abc import Callable


_FLAGS = (FLAG_KAFKA,)
_BY_ID = 13
PARTS_AT_ONCE = 1024
"""Partitions of one request that are published without a pause."""


class _Batch:
    """One partition's part of a request, on its way."""

    __slots__ = ("highest_time", "log", "request", "row", "run", "sent")

    def __init__(self, request: ProduceRequest, row: Fields, log: KafkaLog) -> None:
        self.request, self.row, self.log = request, row, log
        self.highest_time = NO_TIME
        self.run: Run | None = None
        self.sent: Sent | None = None

    def done(self, _: Segments) -> None:
        assert self.run is not None
        offset = self.run.first_index
        if self.sent is not None:
            assert self.log.sequences is not None
            self.log.sequences.stored(self.sent, offset)
        self.log.times.add(offset, self.run.messages, self.highest_time, self.run.size_bytes)
        self.log.store.grown(self.run.size_bytes)
        self.stored(offset)

    def stored(self, offset: int) -> None:
        self.row["base_offset"] = offset
        self.row["log_start_offset"] = self.log.start_offset
        self.request.one_less()

    def failed(self, error: HeliographError) -> None:
        if self.sent is not None and self.log.sequences is not None:
            self.log.sequences.lost(self.sent, error)
        self.refused(error)
        if isinstance(error, LedgerFenced):
            self.log.topic.fatal(error)

    def refused(self, error: HeliographError) -> None:
        self.row["error_code"], self.row["error_message"] = code_of(error), str(error)
        self.row["base_offset"], self.request.refused = -1, True
        self.request.one_less()


class ProduceRequest:
    """One request. `finish` is called once, with the answer's fields."""

    __slots__ = ("_finish", "_left", "_request", "_session", "answer", "refused")

    def __init__(self, session: KafkaSession, request: Request, finish: Callable[[Fields], None]) -> None:
        self._session, self._request, self._finish = session, request, finish
        self._left = 1
        self.answer: Fields = {"responses": []}
        self.refused = False

    def one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self._session.broker.budget.give(len(self._request.frame))
            if self.refused:
                self._session.note_refusal(self._request, at_once(refused(self.answer)))
            self._finish(self.answer)

    def publish(self, logs: dict[tuple[str, int], KafkaLog | HeliographError]) -> Iterator[None]:
        """Appends every batch, in the order of the request. To be run to its end; of very many partitions others may
        have their turn wherever it stops.
        """
        self._session.broker.budget.take(self._session, len(self._request.frame))
        try:
            yield from self._publish_parts(logs)
            if (quotas := self._session.broker.quotas).active:
                wait_ms = quotas.produced(self._session, self._request.client, len(self._request.frame))
                self.answer["throttle_time"] = max(wait_ms, self.answer.get("throttle_time", 0))
        finally:
            self.one_less()

    def _publish_parts(self, logs: dict[tuple[str, int], KafkaLog | HeliographError]) -> Iterator[None]:
        fields, floor, count = self._request.fields, 0, 0
        acks_right = fields["acks"] in (-1, 0, 1)
        for topic in fields["topic_data"]:
            rows: list[Fields] = []
            self.answer["responses"].append(
                {"name": topic["name"], "topic_id": topic.get("topic_id"), "partition_responses": rows}
            )
            for part in topic["partition_data"]:
                row: Fields = {"index": part["index"], "error_code": 0, "base_offset": -1}
                rows.append(row)
                count += 1
                if not count % PARTS_AT_ONCE:
                    yield
                self._left += 1
                found = logs[topic["name"], part["index"]]
                if isinstance(found, HeliographError):
                    _Batch(self, row, None).refused(found)  # type: ignore[arg-type]
                    continue
                batch = _Batch(self, row, found)
                try:
                    if not acks_right:
                        raise Refused(Code.INVALID_REQUIRED_ACKS, f"acks must be -1, 0, or 1, not {fields['acks']}")
                    if part["records"] is None:
                        raise Refused(Code.INVALID_RECORD, "no records for a partition")
                    floor = self._append(batch, part, floor)
                except HeliographError as error:
                    batch.refused(error)

    def _append(self, batch: _Batch, part: Fields, floor: int) -> int:
        """Returns the end of the batch in the frame: what stands before the next one may be written over from there
        on.
        """
        where: tuple[int, int] = part["records"]
        broker, log, (start, size) = self._session.broker, batch.log, where
        frame = self._request.frame
        assert isinstance(frame, bytearray)
        own, topic = broker.configs.of(log.name), log.topic
        size_max = int(own["max.message.bytes"]) if "max.message.bytes" in own else broker.settings.message_bytes_max
        size_max = min(size_max, MESSAGE_BYTES_MAX, topic.policies.limit("maxMessageSize") or MESSAGE_BYTES_MAX)
        if size > size_max:
            raise Refused(Code.MESSAGE_TOO_LARGE, f"a batch of {size} bytes; at most {size_max} are taken")
        check_source(topic)
        check_backlog(topic)
        txn: TxnId | None = None
        view, now_ms = memoryview(frame)[start : start + size], broker.clock.wall_ms()
        counts = broker.counts
        entry: Buffer
        if format_of(view) < 2:
            renewed = part.get("renewed")
            if isinstance(renewed, HeliographError):
                raise renewed
            if renewed is None:
                raise Refused(Code.INVALID_RECORD, f"Produce of version {ONLY_NEW} and later takes records of format 2")
            count, batch.highest_time = renewed.records, renewed.highest_time
            if log.compacts:
                check_keyed(renewed.keyed)
            entry = entry_of(renewed.batch, count, now_ms)
            counts.converted_in += count
            topic.converted_in += count
        else:
            head = check_batch(view)
            count, batch.highest_time = head.offsets, head.max_time
            if count > RECORDS_MAX:  # the code that makes producers send it again in parts
                raise Refused(Code.MESSAGE_TOO_LARGE, f"a batch of {count} records; at most {RECORDS_MAX} are taken")
            if head.attributes & CONTROL:
                raise Refused(Code.INVALID_RECORD, "control records come from brokers only")
            if log.compacts:
                check_keys(part, view)
            if head.attributes & TRANSACTIONAL:
                if broker.security.rights.enabled and self._request.fields.get("transactional_id") is None:
                    raise Refused(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a batch of a transaction that has no id")
                txn = log.transactions.get(head.producer, (-1, None))[1]
                if txn is None or log.transactions[head.producer][0] != head.epoch:
                    raise Refused(Code.INVALID_TXN_STATE, f"producer {head.producer} has no transaction")
            elif (of := log.transactions.get(head.producer)) and log.transaction_of(head.producer, of[0]) is not None:
                raise Refused(
                    Code.INVALID_TXN_STATE, f"a batch outside the transaction that producer {head.producer} has open"
                )
            if head.producer >= 0:
                assert log.sequences is not None
                known = log.sequences.submit(head, now_ms)
                if known is not None:
                    if known.offset >= 0:
                        batch.stored(known.offset)
                    else:
                        known.waiting.append((batch.stored, batch.refused))
                    return start + size
                batch.sent = log.sequences.accept(head)
            if own.get("message.timestamp.type") == "LogAppendTime":
                entry = entry_of(with_append_time(view, now_ms), count, now_ms)
                batch.row["log_append_time"] = batch.highest_time = now_ms
            else:
                entry = entry_in_place(frame, start, size, floor, count, now_ms)
        run = batch.run = Run(
            [entry], [len(entry)], counts=None if count == 1 else (count,), flags=_FLAGS, transaction=txn
        )
        topic.last_publish_ms, topic.inactive_since = now_ms, 0.0
        counts.messages_in += count
        counts.bytes_in += size
        usage = broker.usage.of(topic.name.tenant)
        usage.messages_in += count
        usage.bytes_in += size
        topic.publish(run, batch.done, batch.failed)
        if (gate := topic.publish_gate) is not None:
            wait_ms = math.ceil(1000 * gate.hold(self._session))
            self.answer["throttle_time"] = max(wait_ms, self.answer.get("throttle_time", 0))
        return start + size


def begin_produce(session: KafkaSession, slot: Slot) -> bool:
    """Takes the request at once where every partition's log is loaded here; False: `produce` must load them first."""
    request, broker = slot.request, session.broker
    assert request is not None
    if (
        request.version < ONLY_NEW
        or sum(len(t["partition_data"]) for t in request.fields["topic_data"]) > PARTS_AT_ONCE
    ):
        return False
    begun, worked_s = broker.clock.monotonic() if broker.quotas.active else 0.0, 0.0
    transactional = request.fields.get("transactional_id") is not None
    logs: dict[tuple[str, int], KafkaLog | HeliographError] = {}
    room = ReadRoom(*KEYS_AT_ONCE)
    for topic in request.fields["topic_data"]:
        error = _refusal(session, request, topic)
        kafka = topic["name"]
        for part in topic["partition_data"]:
            if (kafka, part["index"]) in logs:
                logs[kafka, part["index"]] = error or _named_twice()
                continue
            found = error or broker.loaded(kafka, part["index"])
            if found is None or (
                isinstance(found, KafkaLog)
                and not (
                    keys_known(found, request, part, room)
                    and (not transactional or _takes_part(session, found, request, part))
                )
            ):
                return False
            logs[kafka, part["index"]] = found
    session.enqueue(slot)

    def finish(answer: Fields) -> None:
        if not session.closed and not _told_by_closing(session, request, answer):
            if begun:
                session.charge(request, answer, worked_s)
            session.answered(slot, [] if request.fields["acks"] == 0 else session.encode(request, answer))

    for _ in ProduceRequest(session, request, finish).publish(logs):
        pass
    if begun:
        worked_s = broker.clock.monotonic() - begun
    return True


def _named_twice() -> Refused:
    """What is looked at for one batch of a partition must not hold for another one."""
    return Refused(Code.INVALID_REQUEST, "a partition that the request names twice: send one batch of each")


def _told_by_closing(session: KafkaSession, request: Request, answer: Fields) -> bool:
    """With acks=0 there is no answer: as in Kafka a client whose batches failed learns by a closed connection to look
    for the leader again.
    """
    if request.fields["acks"] != 0:
        return False
    codes = [
        row["error_code"] for topic in answer["responses"] for row in topic["partition_responses"] if row["error_code"]
    ]
    if codes:
        session.close(f"a batch with acks=0 was not stored: {Code(codes[0]).name}")
    return bool(codes)


def _producer(request: Request, part: Fields) -> tuple[int, int]:
    """(id, epoch) of a batch, or (-1, -1) where it is too short to say."""
    if part["records"] is None or part["records"][1] < HEADER_BYTES:
        return -1, -1
    batch = peek_batch(memoryview(request.frame)[part["records"][0] :])
    return batch.producer, batch.epoch


def _takes_part(session: KafkaSession, log: KafkaLog, request: Request, part: Fields) -> bool:
    """Whether it is known here that the batch is of an open transaction, and that its producer is the client's."""
    producer, epoch = _producer(request, part)
    transactions, principal = session.broker.transactions, session.login.principal
    if log.transaction_of(producer, epoch) is None or transactions is None or principal is None:
        return False
    return transactions.rights.knows(principal, producer, epoch, request.fields["transactional_id"])


def _refusal(session: KafkaSession, request: Request, topic: Fields) -> HeliographError | None:
    """From version 13 on a topic comes by its id, and gets its name here; one that nothing has stands under its id."""
    try:
        if request.version >= _BY_ID:
            topic["name"] = topic["topic_id"]
            topic["name"] = session.broker.of_id(topic["topic_id"])
        assert session.login.principal is not None
        session.broker.check(session.login.principal, Action.PRODUCE, topic["name"])
    except HeliographError as error:
        return error
    return None


async def _take_part(session: KafkaSession, log: KafkaLog, producer: int, epoch: int, name: str) -> None:
    """name: the transactional id. Raises Refused, and what the metadata raises."""
    transactions = session.broker.opened_transactions()
    check_id(name)
    assert session.login.principal is not None
    if log.transaction_of(producer, epoch) is None:
        await transactions.txn_of(log, producer, epoch)
    await transactions.rights.check_batch(session.login.principal, producer, epoch, name)


async def produce(session: KafkaSession, request: Request) -> Fields | None:
    """The same where logs must be loaded first; nothing else of this connection is under way meanwhile."""
    broker = session.broker
    logs: dict[tuple[str, int], KafkaLog | HeliographError] = {}
    pace = RowPace()
    for topic in request.fields["topic_data"]:
        error = _refusal(session, request, topic)
        kafka = topic["name"]
        for part in topic["partition_data"]:
            await pace.row()
            if (kafka, part["index"]) in logs:
                logs[kafka, part["index"]] = error or _named_twice()
                continue
            try:
                log = error or await broker.log(kafka, part["index"])
                name = request.fields.get("transactional_id")
                if name is not None and isinstance(log, KafkaLog):
                    await _take_part(session, log, *_producer(request, part), name)
                logs[kafka, part["index"]] = log
            except HeliographError as failure:
                logs[kafka, part["index"]] = failure
    answered: Any = asyncio.get_running_loop().create_future()

    def finish(answer: Fields) -> None:
        if not answered.done():
            answered.set_result(answer)

    await open_batches(broker.converting, request, logs)
    for _ in ProduceRequest(session, request, finish).publish(logs):
        await asyncio.sleep(0)
    answer: Fields = await answered
    return None if _told_by_closing(session, request, answer) or request.fields["acks"] == 0 else answer
