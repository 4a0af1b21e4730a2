"""Opened batches: what must be looked at within batches before they are stored, off the event loop where that takes
long.

Is: older formats made new, and whether all records of a batch have a key, as a compacted topic needs. Isn't: storage,
or rights: both are asked before.
Why: a set of 1 KB can be 16 MiB unpacked, and a batch of 5 MB a quarter of a million records; others, and leases, would
wait for it.
Bounds: one thread a broker, for which tenants take turns; what has waited for its turn for CONVERTING_S is refused, and
comes again. Of what was unpacked nothing is kept. On the loop keys are looked for in KEYS_AT_ONCE of a request, by what
its batches hold, not by what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from heliograph.model.errors import CorruptData, HeliographError
from heliograph.model.topic_names import TopicName
from heliograph.runtime.compute_thread import Offload, Overloaded
from heliograph.runtime.throttle import RowPace, pause
from heliograph.wire.kafka.message_codec import Fields, Request
from heliograph.wire.kafka.record_batches import (
    CODEC,
    HEADER_BYTES,
    RECORDS_MAX,
    ReadRoom,
    Record,
    all_keyed,
    build_batch,
    format_of,
    old_records,
)
from heliograph.wire.payload_compression import TooLarge
from heliograph.wire.pulsar.frame_cutter import MESSAGE_BYTES_MAX
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.log.large_conversions import CONVERTING_S

T = TypeVar("T")

ONLY_NEW = 3
"""The first version of Produce whose records have format 2."""

KEYS_AT_ONCE = 2 << 20, 4096
"""(bytes, also unpacked; records) of one request in which keys are looked for without a pause: some 10 ms. What has
more has another way, on which its connection has nothing else under way.
"""


class NamedLog(Protocol):
    """What is needed of a partition's log."""

    @property
    def name(self) -> str:
        """The topic's full name, without a partition."""
        ...

    @property
    def compacts(self) -> bool: ...


class Renewed(NamedTuple):
    """A set of an older format, as the batch that is stored. keyed: each of its records has a key."""

    records: int
    highest_time: int
    keyed: bool
    batch: bytes


def renewed(view: memoryview, records_max: int = RECORDS_MAX) -> Renewed | None:
    """None: it has format 2. Raises CorruptData, Refused: it has none, or more than `records_max`, records."""
    if format_of(view) == 2:
        return None
    records: list[Record] = []
    for record in old_records(view):
        records.append(record)
        if len(records) > records_max:
            raise Refused(Code.MESSAGE_TOO_LARGE, f"more than {records_max} records for a partition")
    if not records:
        raise Refused(Code.INVALID_RECORD, "no records for a partition")
    keyed = all(key is not None for _, key, _, _ in records)
    return Renewed(len(records), max(time for time, *_ in records), keyed, build_batch(records, codec=view[17] & CODEC))


def keys_known(log: NamedLog, request: Request, part: Fields, room: ReadRoom) -> bool:
    """Notes whether all records have a key, where the topic needs that and there is room to look at once. False:
    `open_batches` must look.
    """
    if part["records"] is None or not log.compacts or "keyed" in part:
        return True
    view = _view(request, part)
    if len(view) < HEADER_BYTES or view[16] != 2:
        return True  # it is refused anyway
    try:
        part["keyed"] = all_keyed(view, room)
    except TooLarge:
        return False
    except CorruptData as error:
        part["keyed"] = error
    return True


def check_keys(part: Fields, view: memoryview) -> None:
    """Raises Refused (INVALID_RECORD) where a record has no key: a compacted topic cannot take it. Raises also what
    was met when it was looked at.
    """
    if isinstance(known := part.get("keyed"), HeliographError):
        raise known
    check_keyed(all_keyed(view) if known is None else known)


def check_keyed(keyed: bool) -> None:
    if not keyed:
        raise Refused(Code.INVALID_RECORD, "Compacted topic cannot accept message without key")


async def open_batches(
    thread: Offload, request: Request, logs: Mapping[tuple[str, int], NamedLog | HeliographError]
) -> None:
    """Notes what must be known of each batch that a log is there for: "renewed", "keyed", or why it cannot be told."""
    pace, room = RowPace(), ReadRoom(*KEYS_AT_ONCE)
    for topic in request.fields["topic_data"]:
        for part in topic["partition_data"]:
            await pace.row()
            log = logs[topic["name"], part["index"]]
            if isinstance(log, HeliographError) or part["records"] is None or part["records"][1] > MESSAGE_BYTES_MAX:
                continue
            view = _view(request, part)
            if request.version < ONLY_NEW and len(view) > 16 and view[16] < 2:
                part["renewed"] = await _off_loop(thread, log, partial(renewed, view))
                continue
            if keys_known(log, request, part, room):
                continue
            await pause()
            room = ReadRoom(*KEYS_AT_ONCE)
            if not keys_known(log, request, part, room):
                part["keyed"] = await _off_loop(thread, log, partial(all_keyed, view))


async def _off_loop(thread: Offload, log: NamedLog, work: Callable[[], T]) -> T | HeliographError:
    try:
        return await thread.run(work, who=TopicName.parse(log.name).tenant, within_s=CONVERTING_S)
    except HeliographError as error:
        return error
    except Overloaded:
        return Refused(Code.REQUEST_TIMED_OUT, "too many batches wait to be opened here; send it again")


def _view(request: Request, part: Fields) -> memoryview:
    start, size = part["records"]
    return memoryview(request.frame)[start : start + size]
