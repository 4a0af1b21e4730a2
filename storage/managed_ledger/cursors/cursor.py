"""Cursor: what one subscription, or one link, has acknowledged of a topic.

Is: the mark-delete position, the acknowledged entries above it, and how both are stored. Isn't: what was delivered to
whom, or when it is written.
Invariants: the mark-delete position never passes an entry that was not acknowledged, and moves back only by `reset`;
what lies beyond the last confirmed entry can't be acknowledged; wherever a client has it begin, it can be stored.

Stored, msgpack behind a version byte: [mark-delete ledger, entry, [[ledger, start, stop, start, stop, ...], ...],
properties, partly, bits]; half-open ranges. partly: [[ledger, entry, bits], ...], batches of which single messages are
acknowledged; bit i of `bits` (bytes, little endian): message i is not. bits: [[ledger, chunk, bits], ...] of ledgers
with many ranges: bit i: entry chunk * 65,536 + i is acknowledged; with it the version is 2. What is absent at the end
is left out. Bounds: all of it fits in one value of the metadata. CURSOR_PROPERTIES_BYTES_MAX of properties, 64 KiB of
partly, and what they leave of `acked_bytes_max` for ranges and bits (bits of some seven million entries): what is
beyond, the newest first, is delivered again after a failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from heliograph.kv.metadata_store import VALUE_BYTES_MAX
from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.model.ledger_metadata import FORMAT, pack, unpack
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.wire.run import Run
from storage.managed_ledger.cursors.ack_intervals import Intervals
from storage.managed_ledger.cursors.ack_set_budget import COUNTED_BYTES, AckSetBudget
from storage.managed_ledger.metadata.ledger_catalog import Catalog

CURSOR_PROPERTIES_BYTES_MAX = 512 << 10
"""Those of users, and what the coordinator of transactions keeps there."""
GIVEN_BYTES_MAX = 64 << 10
"""How much of `CURSOR_PROPERTIES_BYTES_MAX` users may take, encoded."""
_RANGE_BYTES = 10
_CHUNK_BYTES = 24
_PART_BYTES = 24
_HELD_PART_BYTES = 208
"""A batch in part that is held, without its bits: its place in a dictionary, a position, and three numbers."""
_LOOKED_FOR_ONE = 8
"""So many batches in part are looked at for each entry that is acknowledged, at most."""
_VERSION_BITS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorSettings:
    """The bounds of one cursor. They go with the format of what is stored: no operator sets them."""

    acked_bytes_max: int = VALUE_BYTES_MAX - (16 << 10)
    """Properties, parts of batches, ranges, and bits together, as they are stored."""
    partly_max: int = 10_000
    """Batches of which a part is acknowledged, in memory; one more, and the oldest goes out whole again."""
    partly_memory_bytes_max: int = 4 << 20
    """Of those, in memory, likewise: 10,000 batches of 1,500 messages."""
    partly_bytes_max: int = 64 << 10
    """What is stored of those."""
    ack_sets: AckSetBudget = field(default_factory=AckSetBudget)
    """What the bits of all cursors of these settings, which are those of a process, take in memory."""
    intervals: type[Intervals] = Intervals
    """What holds the acknowledged entries of one ledger."""


CURSOR_SETTINGS = CursorSettings()


def check_properties(properties: dict[str, str], bytes_max: int = GIVEN_BYTES_MAX) -> None:
    """Raises NotAllowed: no write of the cursor would be taken."""
    if (size := len(pack([properties]))) > bytes_max:
        raise NotAllowed(f"properties of a subscription: {size} bytes; at most {bytes_max} are allowed")


def _part_bytes(left: int) -> int:
    """What a batch in part takes where the cursor is stored."""
    return (left.bit_length() + 7) // 8 + _PART_BYTES


def _held_bytes(left: int) -> int:
    """What it takes in memory, about."""
    return (left.bit_length() + 7) // 8 + _HELD_PART_BYTES


def _storable(position: Position) -> Position:
    """What clients ask for may be no entry at all, and beyond what can be written: then no cursor of the topic was."""
    ledger, entry = position
    return BEFORE_ALL if ledger < 0 else (ledger, min(max(entry, -1), AFTER_ALL[1]))


class Cursor:
    """Acknowledgements change it at once; they are durable when `flushed()` returns."""

    fits = True
    """Whether all of it was stored by the last write; False: beyond the bounds, so that some would be delivered again
    after a failure.
    """
    writes = write_errors = 0
    """How often this owner stored it, and how often that failed for the time being."""

    also: Callable[[], Mapping[str, str]] | None = None
    """Set by whoever knows properties that go with the mark-delete position: asked at each write, and stored in it."""

    _settings = CURSOR_SETTINGS
    """Those of the class, unless others were given: cursors are very many."""

    _partly_bytes = 0
    """What `partly_acked` takes; about, as what is acknowledged as a whole may still be there."""

    _taken_in = 0
    """Bytes that `partly_acked` took in since the budget of all cursors heard of them."""

    _whole_since = 0
    """Entries acknowledged since `partly_acked` was last looked through: so many of it may be so as a whole."""

    moves = 0
    """How often the mark-delete position moved, of this owner."""

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
        settings: CursorSettings = CURSOR_SETTINGS,
    ) -> None:
        if settings is not CURSOR_SETTINGS:
            self._settings = settings
        self.name, self.durable, self.properties = name, durable, properties
        self.mark_delete = _storable(mark_delete)
        self.key = ""
        """Its place in the metadata, once it was written: making it costs more than the rest of a write."""
        self.changes = 0
        """Grows with each change that is to be stored."""
        self.stored_bytes = 0
        """The size of its last encoding: large ones are written less often."""
        self._catalog = catalog
        self.reading: Callable[[], Position] | None = None
        """Set by whoever reads for it, for as long as it reads: where it reads next. For the entry cache."""
        self.on_moved: Callable[[], None] | None = None
        """Called when the mark-delete position has moved, by whomever."""
        self._read_at = -float("inf")
        self._request_flush, self._wait_flushed = request_flush, wait_flushed
        self._acked: dict[int, Intervals] = {}
        self._acked_count = 0
        self.partly_acked: dict[Position, int] = {}
        """Batches of which some messages are acknowledged -> bits of those that are not. May still hold entries
        acknowledged since.
        """

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
        single: dict[int, list[int]] = {}
        mark_ledger, mark_entry = self.mark_delete
        for ledger, first, last in ranges:
            if ledger < mark_ledger:
                continue
            stop = self._catalog.bounded(ledger, last + 1)
            start = max(first, mark_entry + 1 if ledger == mark_ledger else 0)
            if start >= stop:
                continue
            acked = self._acked.get(ledger)
            if acked is None:
                self._acked[ledger] = acked = self._settings.intervals()
            if acked.chunks is not None and stop - start == 1:
                single.setdefault(ledger, []).append(start)
            else:
                added += acked.add(start, stop)
        for ledger, entries in single.items():
            added += self._acked[ledger].add_ids(entries)
        self._acked_count += added
        if self.partly_acked:
            self._whole_since += added
        return added

    def ack_batch(self, position: Position, given: int) -> int:
        """Acknowledges messages of a batch: bit i of `given` says that message i is not. Returns the bits left, 0: the
        entry is acknowledged.
        """
        if (
            self.is_acked(position)
            or position[1] < 0
            or self._catalog.bounded(position[0], position[1] + 1) <= position[1]
        ):
            return 0
        before = self.partly_acked.get(position)
        left = given if before is None else before & given
        if left == before:
            return left
        if before is not None:
            self._partly_bytes -= _held_bytes(before)
        if not left:
            self.partly_acked.pop(position, None)
            self.ack([position])
        else:
            if before is None:
                self._make_room(_held_bytes(left))
                self._taken_in += _held_bytes(left)
            self.partly_acked[position] = left
            self._partly_bytes += _held_bytes(left)
            if self._taken_in >= COUNTED_BYTES:
                self._taken_in = 0
                self._settings.ack_sets.grown(self)
            self._changed()
        return left

    def _make_room(self, size_bytes: int) -> None:
        """For one more batch: what is acknowledged goes, else the oldest, which will be delivered whole again. All are
        looked through only where more than one in _LOOKED_FOR_ONE may have been acknowledged since the last time.
        """
        most, bytes_max = self._settings.partly_max, self._settings.partly_memory_bytes_max - size_bytes
        if len(self.partly_acked) < most and self._partly_bytes <= bytes_max:
            return
        if self._whole_since * _LOOKED_FOR_ONE > len(self.partly_acked):
            self._set_partly(self._still_partly())
        while self.partly_acked and (len(self.partly_acked) >= most or self._partly_bytes > bytes_max):
            self._partly_bytes -= _held_bytes(self.partly_acked.pop(next(iter(self.partly_acked))))

    @property
    def ack_set_bytes(self) -> int:
        """What `partly_acked` takes in memory, about."""
        return self._partly_bytes

    def give_up_ack_sets(self, bytes_max: int) -> None:
        """Keeps no more than that, the newest: the others will be delivered whole again."""
        kept, size = dict[Position, int](), 0
        for position, left in reversed(self._still_partly().items()):
            size += _held_bytes(left)
            if size > bytes_max:
                break
            kept[position] = left
        self._set_partly(dict(reversed(kept.items())))

    def _set_partly(self, partly: dict[Position, int]) -> None:
        self.partly_acked = partly
        self._partly_bytes = sum(map(_held_bytes, partly.values()))
        self._whole_since = 0

    def _still_partly(self) -> dict[Position, int]:
        return {position: left for position, left in self.partly_acked.items() if not self.is_acked(position)}

    def ack_cumulative(self, position: Position) -> None:
        """Acknowledges every entry up to `position`, and it."""
        upto = self._catalog.at_or_before(position)
        if upto is not None and upto > self.mark_delete:
            if self.partly_acked:
                self._whole_since += self._catalog.entries_between(self.mark_delete, upto)
            self._move(upto)
            self._advance()
            self._changed()

    def reset(self, mark_delete: Position) -> None:
        """Everything behind `mark_delete` counts as not acknowledged, everything up to it as acknowledged."""
        self.mark_delete = min(_storable(mark_delete), self._catalog.last)
        self._acked.clear()
        self._acked_count = 0
        self._set_partly({})
        self._changed()

    def begin_earlier(self, mark_delete: Position, start: Position, never: Sequence[tuple[int, int, int]]) -> None:
        """What lies in (mark_delete, start], and in `never`, (ledger, first entry, last entry), counts as not
        acknowledged; all else behind `start` stays as it is. In one write. Changes nothing where it raises
        MetadataUnavailable: pages of the ledgers from there on were not read.
        """
        ranges, partly, at = self.acked_ranges, self.partly_acked, start
        while (following := self._catalog.next(at)) <= self.mark_delete:
            at = min(self.mark_delete, (following[0], self._catalog.entries_of(following[0]) - 1))
            ranges.append((*following, at[1]))
        self.mark_delete = mark_delete
        self._acked, self._acked_count = {}, 0
        for ledger, first, last in ranges:
            for _, low, high in sorted(piece for piece in never if piece[0] == ledger):
                self._add([(ledger, first, min(last, low - 1))])
                first = max(first, high + 1)
            self._add([(ledger, first, last)])
        self._set_partly({position: left for position, left in partly.items() if position > start})
        self._advance()
        self._changed()

    def set_properties(self, properties: dict[str, str]) -> None:
        """Replaces all properties, to be stored with the next write. Raises NotAllowed where they have more than
        CURSOR_PROPERTIES_BYTES_MAX.
        """
        check_properties(properties, CURSOR_PROPERTIES_BYTES_MAX)
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

    def read_at(self, now: float) -> None:
        """Somebody reads for it who comes and goes, and did at that time of the event loop: the cache keeps what comes
        next for him for a while.
        """
        self._read_at = now

    def needed_from(self, now: float, since: float, *, by_mark_delete: bool) -> Position | None:
        """The first position that its readers need in the cache; None where nobody has read for it `since` then."""
        if self.reading is None:
            return self.read_position if self._read_at >= since else None
        self._read_at = now
        return self.read_position if by_mark_delete else self.reading()

    @property
    def holes(self) -> int:
        """Ranges acknowledged above the mark-delete position."""
        return sum(acked.ranges for acked in self._acked.values())

    @property
    def acked_ranges(self) -> list[tuple[int, int, int]]:
        """(ledger, first, last) acknowledged above the mark-delete position, in order."""
        return [
            (ledger, start, stop - 1) for ledger in sorted(self._acked) for start, stop in self._acked[ledger].pairs()
        ]

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
        partly, fits = self._encoded_partly()
        properties = self.properties if self.also is None else {**self.properties, **self.also()}
        left = (
            self._settings.acked_bytes_max
            - len(pack([properties]))
            - sum(len(bits) + _PART_BYTES for *_, bits in partly)
        )
        ranges: list[list[int]] = []
        chunks: list[tuple[int, int, bytes]] = []
        for ledger in sorted(self._acked):
            acked = self._acked[ledger]
            flat = [ledger]
            if acked.chunks is None:
                for start, stop in acked.pairs():
                    flat += (start, stop)
                left -= _RANGE_BYTES * (len(flat) // 2 + 1)
            for number in sorted(acked.chunks or ()):
                bits = (acked.chunks or {})[number]
                chunks.append((ledger, number, bits.to_bytes((bits.bit_length() + 7) // 8, "little")))
                left -= len(chunks[-1][2]) + _CHUNK_BYTES
                if left < 0:
                    chunks.pop()
                    break
            if left < 0:
                break
            if len(flat) > 1:
                ranges.append(flat)
        self.fits = fits and left >= 0
        more = [partly, chunks] if chunks else [partly] if partly else []
        blob = pack([*self.mark_delete, ranges, properties, *more], _VERSION_BITS if chunks else FORMAT)
        self.stored_bytes = len(blob)
        return blob

    def _encoded_partly(self) -> tuple[list[tuple[int, int, bytes]], bool]:
        """As many as there is room for, and whether that is all."""
        partly: list[tuple[int, int, bytes]] = []
        room = self._settings.partly_bytes_max
        self._set_partly(self._still_partly())
        for (ledger, entry), left in self.partly_acked.items():
            not_acked = left.to_bytes((left.bit_length() + 7) // 8, "little")
            room -= _part_bytes(left)
            if room < 0:
                return partly, False
            partly.append((ledger, entry, not_acked))
        return partly, True

    @staticmethod
    def begins_at(blob: bytes) -> int:
        """The ledger of the mark-delete position of what was stored. Raises CorruptData."""
        return int(unpack("cursor", blob, _VERSION_BITS)[0])

    @staticmethod
    def acked_in(blob: bytes, chunk_entries: int = CURSOR_SETTINGS.intervals.CHUNK) -> list[Position]:
        """Positions that were acknowledged, among them the last one of each ledger. Raises CorruptData."""
        ledger, entry, ranges, _, *more = unpack("cursor", blob, _VERSION_BITS)
        found = [(int(ledger), int(entry))]
        found += [(int(r[0]), int(r[-1]) - 1) for r in ranges]
        found += [(int(ledger), int(entry)) for ledger, entry, _ in (more[0] if more else ())]
        for ledger, number, bits in more[1] if len(more) > 1 else ():
            found.append((int(ledger), int(number) * chunk_entries + int.from_bytes(bits, "little").bit_length() - 1))
        return found

    @staticmethod
    def properties_in(blob: bytes) -> dict[str, str]:
        """The properties in a stored cursor, without making one. Raises CorruptData."""
        return dict(unpack("cursor", blob, _VERSION_BITS)[3])

    def restore(self, blob: bytes) -> None:
        """Takes over what was stored; of ranges, what still exists. Raises CorruptData."""
        fields = unpack("cursor", blob, _VERSION_BITS)
        try:
            ledger, entry, ranges, properties, *more = fields
            self.mark_delete = (int(ledger), int(entry))
            self.properties = dict(properties)
            self._add([(r[0], r[i], r[i + 1] - 1) for r in ranges for i in range(1, len(r), 2)])
            for ledger, number, bits in more[1] if len(more) > 1 else ():
                self._add_chunk(int(ledger), int(number), int.from_bytes(bits, "little"))
            self._advance()
            for ledger, entry, bits in more[0] if more else ():
                self.partly_acked[int(ledger), int(entry)] = int.from_bytes(bits, "little")
            self._set_partly(self._still_partly())
        except (ValueError, TypeError, IndexError) as error:
            raise CorruptData(f"cursor {self.name}: {error}") from error

    def _add_chunk(self, ledger: int, number: int, bits: int) -> None:
        size = self._settings.intervals.CHUNK
        room = min(self._catalog.entries_of(ledger) - number * size, size)
        below = max(0, self.mark_delete[1] + 1 - number * size) if ledger == self.mark_delete[0] else 0
        bits = bits & ((1 << room) - 1) >> below << below if room > below and ledger >= self.mark_delete[0] else 0
        if bits:
            acked = self._acked.setdefault(ledger, self._settings.intervals())
            before = acked.count
            acked.set_chunk(number, bits)
            self._acked_count += acked.count - before

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
        self.moves += 1
        if self.on_moved is not None:
            self.on_moved()
        if not self._acked:
            return
        ledger, entry = mark_delete
        for passed in [acked for acked in self._acked if acked < ledger]:
            self._acked_count -= self._acked.pop(passed).count
        here = self._acked.get(ledger)
        if here is not None:
            self._acked_count -= here.remove_below(entry + 1)
            if not here:
                del self._acked[ledger]

    def _changed(self) -> None:
        self.changes += 1
        if self.durable:
            self._request_flush(self)
