"""Times: how late the records of one partition are, block by block.

Is: the highest time in each block of the log, kept from what is appended and what is replayed. Isn't: reading
(`time_search`), or when it is stored (`sequence_store`).
Invariants: `[begin, end)` are the offsets that it knows, without a hole; no record in a block is later than the block's
highest time. So the first block that reaches a time holds the first record that does, in whatever order times come.
Bounds: BLOCKS_MAX blocks; beyond, two neighbours become one, and the next ones are twice as large.
Source: Kafka's time index; docs/protocols/kafka.md, "Offsets".

    /kafka/times/{topic}  ->  [1, ledger of the last record, begin, end, bytes of a block,
                               [first offset of each block], [its highest time]]
"""

from __future__ import annotations

from typing import Self
from urllib.parse import quote

import msgpack

from heliograph.model.errors import CorruptData
from heliograph.wire.kafka.entry_conversion import as_batch, batch_of
from heliograph.wire.kafka.record_batches import offsets_of, peek_batch, records_of
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, FLAG_MARKER, Buffer, Run

PREFIX = "/kafka/times/"
FORMAT = 1
BLOCK_BYTES = 4 << 20
BLOCKS_MAX = 2048
_ENTRY_BYTES = 16 << 10
"""What an entry counts for beside its bytes: small ones may each lie in a ledger of its own."""


def times_key(topic: str) -> str:
    return PREFIX + quote(topic, safe="")


UNSEEN = FLAG_HIDDEN | FLAG_MARKER
Found = tuple[int, int]
"""A record that was found: (offset, time in ms), or NONE."""
NONE: Found = (-1, -1)
Entry = tuple[int, int, Buffer, int]
"""(its first offset, how many it takes, its bytes, FLAG_*)."""


class Times:
    """Knows the highest time of each block of one partition, from offset `begin` on. block_bytes: what a block takes
    before the next one begins.
    """

    __slots__ = ("_block_bytes", "_filled_bytes", "_firsts", "_highest", "begin", "end")

    def __init__(self, begin: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.begin = self.end = begin
        self._firsts: list[int] = []
        self._highest: list[int] = []
        self._block_bytes, self._filled_bytes = block_bytes, 0

    def add(self, offset: int, count: int, highest: int, size_bytes: int, blocks_max: int = BLOCKS_MAX) -> None:
        """An entry of `count` offsets lies there. Does nothing where it is known already, or what lies before it is
        not. blocks_max: where there are so many blocks, two of them become one before another begins.
        """
        if offset != self.end:
            return
        if not self._firsts or self._filled_bytes >= self._block_bytes:
            if len(self._firsts) >= blocks_max:
                self._double()
            self._firsts.append(offset)
            self._highest.append(highest)
            self._filled_bytes = 0
        elif highest > self._highest[-1]:
            self._highest[-1] = highest
        self._filled_bytes += size_bytes + _ENTRY_BYTES
        self.end = offset + count

    def _double(self) -> None:
        self._firsts = self._firsts[::2]
        self._highest = [max(self._highest[at : at + 2]) for at in range(0, len(self._highest), 2)]
        self._block_bytes *= 2

    def blocks(self, start: int) -> list[tuple[int, int, int]]:
        """(first offset, the one behind its last, highest time) of each block that holds offsets from `start` on."""
        ends = [*self._firsts[1:], self.end]
        return [
            (max(first, start), end, highest)
            for first, end, highest in zip(self._firsts, ends, self._highest, strict=False)
            if end > start
        ]

    def forget_before(self, start: int) -> None:
        """The log begins there now; its first block may begin before that."""
        gone = 0
        while gone + 1 < len(self._firsts) and self._firsts[gone + 1] <= start:
            gone += 1
        if gone:
            del self._firsts[:gone], self._highest[:gone]
            self.begin = self._firsts[0]

    # -- storing -------------------------------------------------------------------------------------------------------

    def dump(self, ledger: int) -> bytes:
        packed: bytes = msgpack.packb(
            [FORMAT, ledger, self.begin, self.end, self._block_bytes, self._firsts, self._highest]
        )
        return packed

    @classmethod
    def load(cls, blob: bytes) -> tuple[int, Self]:
        """Reads what `dump` has written: (ledger of the last record, times). Raises CorruptData."""
        try:
            number, ledger, begin, end, block_bytes, firsts, highest = msgpack.unpackb(blob)
            if number != FORMAT:
                raise CorruptData(f"times of a partition: format {number}; this version reads {FORMAT}")
            made = cls(int(begin))
            made.end, made._block_bytes = int(end), int(block_bytes)
            made._firsts, made._highest = [int(each) for each in firsts], [int(each) for each in highest]
            made._filled_bytes = made._block_bytes  # what comes begins a block
            if (
                len(made._firsts) != len(made._highest)
                or len(made._firsts) > BLOCKS_MAX
                or made._firsts != sorted(made._firsts)
            ):
                raise CorruptData("times of a partition: blocks that are in no order")
            if made._firsts and not made.begin <= made._firsts[0] <= made._firsts[-1] <= made.end:
                raise CorruptData("times of a partition: blocks beyond what it knows")
            return int(ledger), made
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"times of a partition: {error}") from error


def highest_of(entry: Entry) -> int:
    """The highest time of an entry's records; -1: it shows none."""
    _, _, part, flag = entry
    if flag & UNSEEN:
        return -1
    if flag & FLAG_KAFKA:
        return peek_batch(batch_of(part)).max_time
    return max((time for _, time in times_of(entry)), default=-1)


def times_of(entry: Entry) -> list[Found]:
    """Returns (offset, time in ms) of each of an entry's records; [] where it shows none, or is damaged."""
    base, count, part, flag = entry
    if flag & UNSEEN:
        return []
    try:
        batch = batch_of(part) if flag & FLAG_KAFKA else memoryview(as_batch(part, count))
        return [(base + delta, record[0]) for delta, record in zip(offsets_of(batch), records_of(batch), strict=True)]
    except CorruptData:
        return []


def entries_of(run: Run) -> list[Entry]:
    out: list[Entry] = []
    base = run.first_index
    for index, part in enumerate(run.parts):
        count = 1 if run.counts is None else run.counts[index]
        out.append((base, count, part, 0 if run.flags is None else run.flags[index]))
        base += count
    return out
