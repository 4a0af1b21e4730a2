"""Entries of Pulsar's clients that take long to convert, made off the event loop before they are sent.

Is: which entries of a read are so, by what they say of themselves, and their batches. Isn't: the conversion
(`heliograph.wire.kafka.entry_conversion`), or what is done where there is none.
Why: an entry of 5 MB that holds 200,000 messages takes seconds, and one of some KiB that unpacks to 64 MiB too; other
clients, and leases, would wait so long.
Cost: nothing for batches of Kafka's clients; of others each entry's metadata is looked into where it is small.
Bounds: one thread a broker; of a read what fits into the answer, at least one entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from heliograph.model.errors import CorruptData
from heliograph.runtime.compute_thread import Offload, Overloaded
from heliograph.wire.kafka.entry_conversion import as_batch
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, Buffer, Run

LARGE_BYTES, LARGE_COUNT = 256 << 10, 256
"""Below both an entry takes less than 20 ms."""
WAITING_MAX = 10_000
_NOT_CONVERTED = FLAG_KAFKA | FLAG_HIDDEN

Ahead = Mapping[int, bytes]
"""Index of an entry's first message in the topic -> its batch."""
NONE_AHEAD: Ahead = {}


def is_large(entry: Buffer, count: int) -> bool:
    """Whether it takes long to convert an entry of `count` messages; nothing is unpacked to know it."""
    if count > LARGE_COUNT or len(entry) > LARGE_BYTES:
        return True
    try:
        metadata, _ = entry_metadata(entry)
    except CorruptData:
        return False
    return metadata.num_messages_in_batch > LARGE_COUNT or bool(
        metadata.compression and metadata.uncompressed_size > LARGE_BYTES
    )


async def made_ahead(pieces: list[tuple[int, int, Run]], offset: int, max_bytes: int, thread: Offload) -> Ahead:
    """The batches of the large entries that hold `offset` or come behind it. One that has no form as a batch is left
    out: whoever sends it finds that out.
    """
    found: dict[int, bytes] = {}
    left = max_bytes
    for base, part, count in _of_pulsar(pieces, offset):
        if left <= 0 and found:
            break
        if not is_large(part, count):
            left -= len(part)
            continue
        try:
            found[base] = await thread.run(partial(as_batch, part, count))
        except CorruptData:
            continue
        except Overloaded:
            break
        left -= len(found[base])
    return found or NONE_AHEAD


def _of_pulsar(pieces: list[tuple[int, int, Run]], offset: int) -> Iterator[tuple[int, Buffer, int]]:
    """(index of its first message, entry, messages) of those that are converted."""
    for _, _, run in pieces:
        if run.flags is not None and bytes(run.flags).count(FLAG_KAFKA) == run.count:
            continue
        base = run.first_index
        for index, part in enumerate(run.parts):
            count = 1 if run.counts is None else run.counts[index]
            if base + count > offset and not (run.flags is not None and run.flags[index] & _NOT_CONVERTED):
                yield base, part, count
            base += count
