"""What lies in a compacted ledger: entries of a topic with the positions that they have in its log. A core.

Is: one entry as it is stored there, and pieces for a dispatcher out of such entries. Isn't: reading or writing ledgers.
Invariants: positions ascend; an entry is found again under the position, with the time and the message index, that it
always had.

An entry, big endian, then the entry of the log as clients are to see it:

    0  u8  version (1)          9  u64 entry                25 u64 index of its first message
    1  u64 ledger               17 u64 broker time, ms
"""

from __future__ import annotations

from struct import Struct

from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.wire.run import BYTES_MAX, COUNT_MAX, Buffer, Run
from region_node.runtime.cursor_ports import Piece

VERSION = 1
_HEAD = Struct(">BQQQQ")


def wrap(position: Position, time_ms: int, index: int, entry: Buffer) -> bytes:
    return b"".join([_HEAD.pack(VERSION, *position, time_ms, index), entry])


def position_of(stored: Buffer) -> Position:
    """Returns the position in the topic's log of an entry as it is stored. Raises CorruptData where it has no whole
    head, or another version.
    """
    if len(stored) < _HEAD.size or stored[0] != VERSION:
        raise CorruptData(
            f"an entry of a compacted ledger: version {stored[0] if len(stored) else 'none'} is not known here"
        )
    _, ledger, entry, _, _ = _HEAD.unpack_from(stored)
    return ledger, entry


def pieces_of(run: Run) -> list[Piece]:
    """What lies in a run of a compacted ledger; what was next to each other in the log is one piece. Raises
    CorruptData.
    """
    out: list[Piece] = []
    parts: list[Buffer] = []
    counts: list[int] = []
    start: tuple[int, int, int, int] | None = None
    due = (-1, -1, -1, -1)
    for at, part in enumerate(run.parts):
        position_of(part)
        _, ledger, entry, time_ms, index = _HEAD.unpack_from(part)
        count = 1 if run.counts is None else run.counts[at]
        if start is not None and (ledger, entry, time_ms, index) != due:
            out.append(_piece(start, parts, counts))
            start, parts, counts = None, [], []
        if start is None:
            start = (ledger, entry, time_ms, index)
        parts.append(memoryview(part)[_HEAD.size :])
        counts.append(count)
        due = (ledger, entry + 1, time_ms, index + count)
    if start is not None:
        out.append(_piece(start, parts, counts))
    return out


def _piece(start: tuple[int, int, int, int], parts: list[Buffer], counts: list[int]) -> Piece:
    ledger, entry, time_ms, index = start
    plain = None if all(count == 1 for count in counts) else counts
    return ledger, entry, Run(parts, [len(part) for part in parts], counts=plain, time_ms=time_ms, first_index=index)


class Gather:
    """Entries on their way into a compacted ledger, until they are a run."""

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._counts: list[int] = []
        self._bytes = 0

    def add(self, stored: bytes, messages: int) -> Run | None:
        """A run that is full now."""
        full = self.rest() if self._parts and self._bytes + len(stored) > BYTES_MAX else None
        self._parts.append(stored)
        self._counts.append(messages)
        self._bytes += len(stored)
        return full if full is not None or len(self._parts) < COUNT_MAX else self.rest()

    def rest(self) -> Run | None:
        if not self._parts:
            return None
        parts, counts = self._parts, self._counts
        self._parts, self._counts, self._bytes = [], [], 0
        return Run(parts, [len(part) for part in parts], counts=None if all(count == 1 for count in counts) else counts)
