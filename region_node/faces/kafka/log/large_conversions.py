"""Entries of Pulsar's clients that take long to convert, made off the event loop before they are sent.

Is: which entries of a read are so, by what they say of themselves, their batches, and where a read ends because of
them. Isn't: the conversion (`heliograph.wire.kafka.entry_conversion`), or what is done where there is none.
Why: an entry of 5 MB that holds 200,000 messages takes seconds, and one of some KiB that unpacks to 64 MiB too; other
clients, and leases, would wait so long.
Cost: nothing for batches of Kafka's clients; of others each entry's metadata is looked into where it is small.
Bounds: one thread a broker, for which tenants take turns; of a read what fits into the answer, at least one entry; a
request begins no other one after CONVERTING_S, and one that has waited so long for its turn, or whose client has gone,
is not made.
Invariants: no large entry is converted on the event loop, a corrupt one neither: an answer ends in front of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import NamedTuple

from heliograph.model.errors import CorruptData
from heliograph.runtime.compute_thread import Offload, Overloaded
from heliograph.wire.kafka.entry_conversion import as_batch
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, FLAG_MARKER, Buffer, Run

LARGE_BYTES, LARGE_COUNT = 256 << 10, 256
"""Below both an entry takes less than 20 ms."""
WAITING_MAX = 10_000
CONVERTING_S = 5.0
"""Clients take no answer for a failure after 30 s, and ask the same again."""


class Ahead(NamedTuple):
    """Index of an entry's first message in the topic -> its batch, or why it has none. stop: the index of the first
    entry that is not looked at any more: the answer ends in front of it; -1: all were looked at. full: it ends there
    because the thread has too much to do.
    """

    made: Mapping[int, bytes | CorruptData]
    stop: int = -1
    full: bool = False


NONE_AHEAD = Ahead({})


def size_of(entry: Buffer, count: int) -> tuple[int, bool]:
    """(bytes of an entry of `count` messages, unpacked, by what it says of itself; whether it takes long to convert
    it). Nothing is unpacked to know it.
    """
    size = len(entry)
    try:
        metadata, _ = entry_metadata(entry)
    except CorruptData:
        return size, count > LARGE_COUNT or size > LARGE_BYTES
    if metadata.compression:
        size = max(size, metadata.uncompressed_size)
    return size, max(count, metadata.num_messages_in_batch) > LARGE_COUNT or size > LARGE_BYTES


async def made_ahead(
    pieces: list[tuple[int, int, Run]],
    offset: int,
    max_bytes: int,
    thread: Offload,
    late: Callable[[], bool],
    *,
    who: Hashable = None,
    wanted: Callable[[], bool] | None = None,
    within_s: float = CONVERTING_S,
) -> Ahead:
    """The batches of the large entries that hold `offset` or come behind it, as far as they fit. late: asked before
    each, whether what is ready shall go out. who: takes turns with others. wanted: whether somebody still waits.
    within_s: what has waited so long for its turn is not made.
    """
    found: dict[int, bytes | CorruptData] = {}
    left, any_sent = max_bytes, False
    for _, _, run in pieces:
        base, flags = run.first_index, run.flags
        if flags is not None and bytes(flags).count(FLAG_KAFKA) == run.count:
            if base >= offset:
                left, any_sent = left - run.size_bytes, True
            continue
        for index, part in enumerate(run.parts):
            first, count, flag = (
                base,
                1 if run.counts is None else run.counts[index],
                0 if flags is None else flags[index],
            )
            base += count
            if base <= offset or flag & (FLAG_HIDDEN | FLAG_MARKER):
                continue
            if flag & FLAG_KAFKA:
                left, any_sent = left - len(part), True
                continue
            size, large = size_of(part, count)
            if any_sent and (left <= 0 or (large and size > left)):
                return Ahead(found, first)
            if large:
                if late():
                    return Ahead(found, first)
                try:
                    made = await thread.run(partial(as_batch, part, count), who=who, within_s=within_s, wanted=wanted)
                except CorruptData as error:
                    found[first] = error
                    continue
                except Overloaded:
                    return Ahead(found, first, full=True)
                found[first], size = made, len(made)
            left, any_sent = left - size, True
    return Ahead(found) if found else NONE_AHEAD
