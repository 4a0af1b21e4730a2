"""Cursor: what one subscription, or one link, has acknowledged of a topic.

Is: the mark-delete position, the acknowledged entries above it, and how both are stored. Isn't: what was delivered to whom, or when it is written.
Invariants: the mark-delete position never passes an entry that was not acknowledged, and moves back only by `reset`; what lies beyond the
last confirmed entry can't be acknowledged.

Stored, msgpack behind a version byte: [mark-delete ledger, entry, [[ledger, start, stop, start, stop, ...], ...], properties, partly]; half-open
ranges, at most 10,000 of them: beyond, entries are delivered again after a failure. partly, only where there are any: [[ledger, entry, bits], ...],
batches of which single messages are acknowledged; bit i of `bits` (bytes, little endian): message i is not. At most 64 KiB of bits; the same holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from heliograph.model.errors import CorruptData
from heliograph.model.ledgers import pack, unpack
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from storage.managed_ledger.catalog import Catalog
from storage.managed_ledger.intervals import Intervals

RANGES_MAX = 10_000
PARTLY_MAX = 10_000
PARTLY_BYTES_MAX = 64 << 10


class Cursor:
    """Acknowledgements change it at once; they are durable when `flushed()` returns."""

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        mark_delete: Position,
        *,
        durable: bool,
        properties: dict[str, str],
        request_flush: Callable[[Cursor], None],
        wait_flushed: Callable[[Cursor], Awaitable[None]],
    ) -> None:
        self.name, self.durable, self.properties = name, durable, properties
        self.mark_delete = mark_delete
        self.changes = 0
        """Grows with each change that is to be stored."""
        self._catalog = catalog
        self._request_flush, self._wait_flushed = request_flush, wait_flushed
        self._acked: dict[int, Intervals] = {}
        self._acked_count = 0
        self.partly_acked: dict[Position, int] = {}
        """Batches of which some messages are acknowledged -> bits of those that are not. May still hold entries acknowledged since."""

    # -- acknowledging ------------------------------------------------------------------------------------------------

    def ack(self, positions: Sequence[Position]) -> None:
        """Acknowledges single entries. What is acknowledged, trimmed, or was never there is passed over."""
        self.ack_ranges([(ledger, entry, entry) for ledger, entry in positions])

    def ack_ranges(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Acknowledges (ledger, first entry, last entry) ranges."""
        if self._add(ranges):
            self._advance()
            self._changed()

    def _add(self, ranges: Iterable[tuple[int, int, int]]) -> int:
        added = 0
        mark_ledger, mark_entry = self.mark_delete
        for ledger, first, last in ranges:
            if ledger < mark_ledger:
                continue
            stop = min(last + 1, self._catalog.entries_of(ledger))
            start = max(first, mark_entry + 1 if ledger == mark_ledger else 0)
            if start >= stop:
                continue
            acked = self._acked.get(ledger)
            if acked is None:
                self._acked[ledger] = acked = Intervals()
            added += acked.add(start, stop)
        self._acked_count += added
        return added

    def ack_batch(self, position: Position, given: int) -> int:
        """Acknowledges messages of a batch: bit i of `given` says that message i is not. Returns the bits left, 0: the entry is acknowledged."""
        if self.is_acked(position) or not 0 <= position[1] < self._catalog.entries_of(position[0]):
            return 0
        before = self.partly_acked.get(position)
        left = given if before is None else before & given
        if not left:
            self.partly_acked.pop(position, None)
            self.ack([position])
        elif left != before:
            if before is None and len(self.partly_acked) >= PARTLY_MAX:
                self.partly_acked = self._still_partly()
                if len(self.partly_acked) >= PARTLY_MAX:  # the oldest will go out whole again
                    del self.partly_acked[next(iter(self.partly_acked))]
            self.partly_acked[position] = left
            self._changed()
        return left

    def _still_partly(self) -> dict[Position, int]:
        return {position: left for position, left in self.partly_acked.items() if not self.is_acked(position)}

    def ack_cumulative(self, position: Position) -> None:
        """Acknowledges every entry up to `position`, and it."""
        upto = self._catalog.at_or_before(position)
        if upto is not None and upto > self.mark_delete:
            self._move(upto)
            self._advance()
            self._changed()

    def reset(self, mark_delete: Position) -> None:
        """Everything behind `mark_delete` counts as not acknowledged, everything up to it as acknowledged."""
        self.mark_delete = min(mark_delete, self._catalog.last)
        self._acked.clear()
        self._acked_count = 0
        self.partly_acked.clear()
        self._changed()

    def set_properties(self, properties: dict[str, str]) -> None:
        self.properties = properties
        self._changed()

    # -- questions ----------------------------------------------------------------------------------------------------

    @property
    def backlog_entries(self) -> int:
        """Entries that are confirmed and not acknowledged."""
        return self._catalog.entries_between(self.mark_delete, self._catalog.last) - self._acked_count

    @property
    def backlog_bytes(self) -> int:
        """An estimate, from the mark-delete position on."""
        return self._catalog.bytes_between(self.mark_delete, self._catalog.last)

    @property
    def read_position(self) -> Position:
        """The first position that may hold something not acknowledged: where a reader starts."""
        return self._catalog.next(self.mark_delete)

    @property
    def acked_ranges(self) -> list[tuple[int, int, int]]:
        """(ledger, first, last) acknowledged above the mark-delete position, in order."""
        return [(ledger, start, stop - 1) for ledger in sorted(self._acked) for start, stop in self._acked[ledger].pairs()]

    def is_acked(self, position: Position) -> bool:
        if position <= self.mark_delete:
            return True
        acked = self._acked.get(position[0])
        return acked is not None and position[1] in acked

    def unacked_runs(self, runs: Sequence[tuple[int, int, Run]]) -> list[tuple[int, int, Run]]:
        """What of (ledger, first entry, run) is not acknowledged: the same runs, or pieces of them."""
        if not self._acked and (not runs or runs[0][:2] > self.mark_delete):
            return list(runs)
        out: list[tuple[int, int, Run]] = []
        for ledger, first, run in runs:
            start, stop = first, first + run.count
            if ledger < self.mark_delete[0]:
                continue
            if ledger == self.mark_delete[0]:
                start = max(start, self.mark_delete[1] + 1)
            acked = self._acked.get(ledger)
            if acked is None:
                if start < stop:
                    out.append((ledger, start, run.cut(start - first, run.count)))
                continue
            out += [(ledger, low, run.cut(low - first, high - first)) for low, high in acked.gaps(start, stop)]
        return out

    # -- storing ------------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """What changed is written within about 50 ms; so it is also without this call."""
        if self.durable:
            self._request_flush(self)

    async def flushed(self) -> None:
        """Returns once what was acknowledged before this call is durable. Raises what closed the topic."""
        if self.durable:
            await self._wait_flushed(self)

    def on_trimmed(self) -> None:
        """Ledgers have gone from the front of the catalog."""
        first = self._catalog.first()[0]
        for gone in [ledger for ledger in self._acked if ledger < first]:
            self._acked_count -= self._acked.pop(gone).count
        self._advance()

    def encode(self) -> bytes:
        left = RANGES_MAX
        ranges: list[list[int]] = []
        for ledger in sorted(self._acked):
            flat = [ledger]
            for start, stop in self._acked[ledger].pairs():
                if left == 0:
                    break
                flat += (start, stop)
                left -= 1
            if len(flat) > 1:
                ranges.append(flat)
        partly: list[tuple[int, int, bytes]] = []
        room = PARTLY_BYTES_MAX
        self.partly_acked = self._still_partly()
        for (ledger, entry), left_bits in self.partly_acked.items():
            bits = left_bits.to_bytes((left_bits.bit_length() + 7) // 8, "little")
            room -= len(bits) + 16
            if room < 0:
                break
            partly.append((ledger, entry, bits))
        return pack([*self.mark_delete, ranges, self.properties, *([partly] if partly else [])])

    def restore(self, blob: bytes) -> None:
        """Takes over what was stored; of ranges, what still exists. Raises CorruptData."""
        fields = unpack("cursor", blob)
        try:
            ledger, entry, ranges, properties, *more = fields
            self.mark_delete = (int(ledger), int(entry))
            self.properties = dict(properties)
            self._add([(r[0], r[i], r[i + 1] - 1) for r in ranges for i in range(1, len(r), 2)])
            self._advance()
            for ledger, entry, bits in more[0] if more else ():
                self.partly_acked[int(ledger), int(entry)] = int.from_bytes(bits, "little")
            self.partly_acked = self._still_partly()
        except (ValueError, TypeError, IndexError) as error:
            raise CorruptData(f"cursor {self.name}: {error}") from error

    # -- inside -------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Moves the mark-delete position over what is acknowledged right behind it."""
        at = self.mark_delete
        while True:
            ledger, entry = self._catalog.next(at)
            acked = self._acked.get(ledger)
            if acked is None:
                break
            end = acked.end_of(entry)
            if end == entry:
                break
            at = (ledger, end - 1)
        if at != self.mark_delete:
            self._move(at)

    def _move(self, mark_delete: Position) -> None:
        self.mark_delete = mark_delete
        if not self._acked:
            return
        ledger, entry = mark_delete
        for passed in [acked for acked in self._acked if acked < ledger]:
            self._acked_count -= self._acked.pop(passed).count
        here = self._acked.get(ledger)
        if here is not None:
            self._acked_count -= here.remove_below(entry + 1)
            if not len(here):
                del self._acked[ledger]

    def _changed(self) -> None:
        self.changes += 1
        if self.durable:
            self._request_flush(self)
