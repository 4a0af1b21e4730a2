"""Producers: which entries of local producers were published before.

Is: the two watermarks of each producer's sequences, and the exact ranges of those that came from other regions. Isn't:
waiting, or storage.
Invariants: a local producer is judged by its highest sequence, *submitted*; an answer goes by *durable*, which only
grows. Entries of other regions never raise either: their sequences are exact ranges, which answer a client's retry
after a failover, and nothing else. Exact ranges are of one leadership, the newest that was heard of: there one region
at a time publishes. What was published while every region took messages is in none of them, and is
judged by none: one name in two regions may be two programs. So it may be in two regions one after the other: a process
that takes a name over goes on from what had arrived. So a message is one of another region only where its bytes are
(`replicator.dedup.published_checksums`); what is not proven is stored. But for names that say of themselves that they
are one producer everywhere (`heliograph.model.producer_names`): of these a region is believed as many sequences as
messages came with them.
Bounds: `producers_max` names (least recently used first) and `ranges_max` ranges (oldest producer first); what was
forgotten is counted. Of what is stored also
bytes: names may be long, and a state that no metadata takes would be the end of the topic.
Source: docs/protocols/links.md, "Producer sequences".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.producer_names import EVERYWHERE
from heliograph.wire.run import ProducerSegment, Run
from replicator.dedup.published_checksums import PublishedChecksums, entries

_STORED_BYTES = (320 << 10, 320 << 10, 64 << 10)
_CHECKSUMS_BYTES = 64 << 10
"""The bounds on highest sequences, ranges, and ranges of local producers, and on checksums, in the stored state, which
is one value of the metadata with all else that is known of the topic: what was heard of longest ago is left out.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSettings:
    producers_max: int = 10_000
    ranges_max: int = 16_384
    local_ranges_max: int = 2_048
    """The bound on ranges of local producers, beside the highest sequence of each: they are in every stored state."""


def _newest(mapping: Mapping[str, Any], bytes_max: int) -> Mapping[str, Any]:
    """What fits, about: the names at the end, which were heard of last."""
    if not mapping:
        return mapping
    left = bytes_max - sum(_bytes(name, value) for name, value in mapping.items())
    if left >= 0:
        return mapping
    kept = dict(mapping)
    for name, value in mapping.items():
        if left >= 0:
            break
        left += _bytes(name, value)
        del kept[name]
    return kept


def _bytes(name: str, value: object) -> int:
    """At most so many bytes in the stored state."""
    return (len(name) if name.isascii() else 4 * len(name)) + 12 + (19 * len(value) if isinstance(value, list) else 0)


def ends(segment: ProducerSegment) -> tuple[int, int]:
    """(lowest, highest sequence) of a segment."""
    _, count, first, pairs = segment
    return (first, first + count - 1) if pairs is None else (pairs[0][0], max(high for _, high in pairs))


def _within(ranges: Sequence[tuple[int, int]], low: int, high: int) -> bool:
    """Says whether one range holds all of low to high, inclusive. ranges: (low, high), disjoint and ascending."""
    i = bisect_right(ranges, (low, 1 << 63)) - 1
    return i >= 0 and ranges[i][0] <= low and high <= ranges[i][1]


def _claimed(pairs: Sequence[tuple[int, int]]) -> int:
    """How many sequences entries say that they hold."""
    return sum([max(low, high) - low + 1 for low, high in pairs if low >= 0])


def _messages(run: Run, start: int, stop: int) -> int:
    return stop - start if run.counts is None else sum(run.counts[start:stop])


def _touch(ranges: Sequence[tuple[int, int]], low: int, high: int) -> bool:
    """Says whether one of the ranges holds some of low to high."""
    i = bisect_right(ranges, (high, 1 << 63)) - 1
    return i >= 0 and low <= ranges[i][1]


def _add(ranges: list[tuple[int, int]], low: int, high: int) -> int:
    """Takes low..high in; returns how many ranges there are more."""
    before = len(ranges)
    if low < 0:
        return 0
    if ranges and ranges[-1][1] < low:
        if ranges[-1][1] == low - 1:
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    else:
        kept = [r for r in ranges if r[1] < low - 1 or r[0] > high + 1]
        touched = [r for r in ranges if not (r[1] < low - 1 or r[0] > high + 1)]
        kept.append((min([low, *(r[0] for r in touched)]), max([high, *(r[1] for r in touched)])))
        ranges[:] = sorted(kept)
    return len(ranges) - before


class _LocalRanges:
    """Sequences of local producers, exactly; the least recently heard of first."""

    __slots__ = ("_count", "names")

    def __init__(self, names: dict[str, list[tuple[int, int]]]) -> None:
        self.names = names
        self._count = sum(map(len, names.values()))

    def add(self, segment: ProducerSegment, ranges_max: int) -> None:
        """They mostly follow each other, and are one range."""
        name, count, first, pairs = segment
        self.names[name] = ranges = self.names.pop(name, None) or []  # to the end: the most recently heard of
        if pairs is None:
            self._count += _add(ranges, first, first + count - 1)
        else:
            for sequence, highest in pairs:
                self._count += _add(ranges, sequence, max(sequence, highest))
        if not ranges:  # sequences below 0 are nobody's
            del self.names[name]
        while self._count > ranges_max:
            oldest = next(iter(self.names))
            del self.names[oldest][0]
            if not self.names[oldest]:
                del self.names[oldest]
            self._count -= 1


Coming = Mapping[str, Sequence[tuple[int, int, int]]]
"""Producer -> (lowest, highest sequence, checksum) of each entry that is appended and not durable."""


def is_coming(coming: Coming, name: str, low: int, high: int, checksum: int) -> bool:
    """Whether that very message is among them; of a name that is one producer everywhere, its sequences."""
    if name.startswith(EVERYWHERE):
        return any(first <= low and high <= last for first, last, _ in coming.get(name, ()))
    return (low, high, checksum) in coming.get(name, ())


def _nothing(_: int) -> Coming:
    return {}


class Producers:
    """Sequences of one topic's producers."""

    __slots__ = (
        "_checksums",
        "_durable",
        "_local",
        "_range_count",
        "_ranges",
        "_submitted",
        "forgotten",
        "leadership",
        "settings",
    )

    def __init__(self, settings: DedupSettings) -> None:
        self.settings = settings
        self._durable: dict[str, int] = NOTHING  # local: the highest sequence that is stored; least recently used first
        self._submitted: dict[str, int] = NOTHING  # local: the highest one on its way, only of names that have one
        self._ranges: dict[str, list[tuple[int, int]]] = NOTHING  # of other regions, disjoint and ascending
        self._range_count = 0
        self._local: _LocalRanges | None = None  # what is stored; the highest alone does not say that
        self._checksums: PublishedChecksums | None = None
        self.forgotten = 0
        self.leadership = 0
        """That the exact ranges are of, as `Run.leadership`, but for names that are one producer everywhere; 0: of none
        so far."""

    def last_sequence(self, name: str, leadership: int) -> int:
        """The highest sequence stored here that was first published here, or wherever under `leadership`; -1."""
        ranges = self._ranges.get(name) if self._compares(name, leadership) else None
        return max(self._durable.get(name, -1), ranges[-1][1] if ranges else -1)

    def durable(self, name: str) -> int:
        return self._durable.get(name, -1)

    def holds(self, name: str, low: int, high: int, checksum: int) -> bool:
        """Whether that message, of the sequences low..high, was published under `leadership` and is stored here,
        wherever it was first published. checksum: of the entry as it was first published.
        """
        there = _within(self._ranges.get(name, ()), low, high) or (
            self._local is not None and _within(self._local.names.get(name, ()), low, high)
        )
        return there and self._same(name, low, checksum)

    def touches(self, name: str, low: int, high: int) -> bool:
        """Whether some sequence of low..high was published under `leadership`, and its message is stored here."""
        return _touch(self._ranges.get(name, ()), low, high) or (
            self._local is not None and _touch(self._local.names.get(name, ()), low, high)
        )

    def _same(self, name: str, low: int, checksum: int) -> bool:
        return name.startswith(EVERYWHERE) or (
            self._checksums is not None and self._checksums.holds(name, low, checksum)
        )

    def lead(self, leadership: int, epoch: int) -> None:
        """Something is about to be published here under that leadership, in that epoch of it. What was published here
        in an earlier one may have been overtaken elsewhere, by another process of the same name. Where a newer one was
        heard of, the word of it is only late here, or it does not exist, which whoever decides says (`disown`).
        """
        if leadership < self.leadership or epoch == leadership:
            return
        if leadership == self.leadership and self._checksums is not None and self._checksums.epoch == epoch:
            return
        self._follow(leadership)
        if self._checksums is None:
            self._checksums = PublishedChecksums()
        self._checksums.begin(epoch, self._submitted)

    def submit(
        self, run: Run, coming: Coming | None = None, on_its_way: Callable[[int], Coming] = _nothing
    ) -> list[bool] | None:
        """Judges a local run and counts what is new in it as submitted. None: all of it is new; else one bool an entry,
        True = new.

        coming: what arrives from other regions, was published under the run's leadership, and is not durable yet; it
        counts as here. on_its_way: tells that, and what was first published here, of a leadership.
        """
        if coming:
            return self._submit_each(run, coming, on_its_way)
        ends: list[tuple[str, int]] = []
        for name, count, first, pairs in run.producers:
            high = self._submitted.get(name)
            if high is None:
                high = self._durable.get(name, -1)
            if first <= high or (
                name in self._ranges and first <= self._ranges[name][-1][1] and self._compares(name, run.leadership)
            ):
                return self._submit_each(run, coming, on_its_way)
            if pairs is None:
                high = first + count - 1
            else:
                for sequence, highest in pairs:
                    if sequence <= high:
                        return self._submit_each(run, coming, on_its_way)
                    high = max(sequence, highest)
            ends.append((name, high))
        if len(ends) > 1 and len({name for name, _ in ends}) < len(ends):
            return self._submit_each(run, coming, on_its_way)
        if ends:
            self._submitted = own(self._submitted)
            self._submitted.update(ends)
        return None

    def _submit_each(self, run: Run, coming: Coming | None, on_its_way: Callable[[int], Coming]) -> list[bool] | None:
        new: list[bool] = []
        self._submitted = own(self._submitted)
        for name, low, highest, checksum in entries(run):
            if low < 0:  # a piece of a chunked message: the last one has its sequence, and is judged
                new.append(True)
                continue
            high = self._submitted.get(name, self._durable.get(name, -1))
            if highest > high:
                fresh = not self._elsewhere(run, name, low, highest, checksum) and not (
                    coming and is_coming(coming, name, low, highest, checksum)
                )
            else:
                fresh = self._is_another(run, name, low, checksum) and not is_coming(
                    on_its_way(run.leadership), name, low, highest, checksum
                )
            new.append(fresh)
            if fresh:
                self._submitted[name] = max(high, highest)
        return None if all(new) else new

    def _elsewhere(self, run: Run, name: str, low: int, high: int, checksum: int) -> bool:
        """Whether that message was first published in another region, so that this says something of `run`, and is
        stored here.
        """
        return (
            self._compares(name, run.leadership)
            and _within(self._ranges.get(name, ()), low, high)
            and self._same(name, low, checksum)
        )

    def _is_another(self, run: Run, name: str, low: int, checksum: int) -> bool:
        """Whether a message that is not above what was first published here may be another one: its producer may come
        from a region that was the active one since.
        """
        return (
            run.leadership == self.leadership
            and self._checksums is not None
            and low <= self._checksums.before(name)
            and not self._same(name, low, checksum)
        )

    def answered(self, run: Run) -> bool:
        """Whether every entry of `run` (judged a duplicate before) is stored by now."""
        return all(
            (highest <= self._durable.get(name, -1) and not self._is_another(run, name, low, checksum))
            or self._elsewhere(run, name, low, highest, checksum)
            for name, low, highest, checksum in entries(run)
        )

    def repeats_others(self, run: Run) -> bool:
        """Whether an entry of `run` is stored, and was first published in another region."""
        return any(self._elsewhere(run, *entry) for entry in entries(run))

    def confirm(self, run: Run) -> None:
        """A local run is durable."""
        self._durable = own(self._durable)
        exactly = self._follows(run)
        for segment in run.producers:
            name = segment[0]
            high = max(ends(segment)[1], self._durable.pop(name, -1))
            if self._submitted.get(name, -1) <= high:
                self._submitted.pop(name, None)
            if exactly:
                self._local = self._local or _LocalRanges({})
                self._local.add(segment, self.settings.local_ranges_max)
            self._durable[name] = high
        if exactly:
            self._remember(run, 0)
        while len(self._durable) > self.settings.producers_max:
            del self._durable[next(iter(self._durable))]
            self.forgotten += 1

    def rollback(self) -> None:
        """What was submitted and not confirmed has failed."""
        self._submitted.clear()

    def submit_again(self, run: Run) -> None:
        """After a rollback: `run` is still on its way."""
        self._submitted = own(self._submitted)
        for segment in run.producers:
            name, high = segment[0], ends(segment)[1]
            self._submitted[name] = max(high, self._submitted.get(name, self._durable.get(name, -1)))

    def confirm_replicated(self, run: Run, *, own: bool = False) -> None:
        """A run of another region is durable: remembers its sequences exactly, where they may be needed. own: it was
        published in this one, which had lost it; its producers may try again here under whatever leadership.
        """
        exactly, behind = self._follows(run) or (own and run.leadership == self.leadership), 0
        for name, count, first, pairs in run.producers:
            at, behind = behind, behind + count
            if name.startswith(EVERYWHERE):
                if pairs is not None and _claimed(pairs) > _messages(run, at, behind):
                    continue  # such a name has a sequence for each message: the others are claimed, and not here
            elif not exactly:
                continue
            if pairs is None:
                self._add_range(name, first, first + count - 1)
            else:
                for sequence, highest in pairs:
                    self._add_range(name, sequence, max(sequence, highest))
        if exactly and run.origin is not None:
            self._remember(run, run.origin[0])

    def _remember(self, run: Run, region: int) -> None:
        if self._checksums is None:
            self._checksums = PublishedChecksums()
        self._checksums.stored(run, region)

    def _compares(self, name: str, leadership: int) -> bool:
        """Whether what is remembered of that producer's sequences in other regions says something of a message that is
        published here under `leadership`.
        """
        return leadership == self.leadership or name.startswith(EVERYWHERE)

    def _follows(self, run: Run) -> bool:
        """Whether the sequences of `run` are to be remembered exactly."""
        self._follow(run.leadership)
        return bool(run.leadership) and run.leadership == self.leadership

    def _follow(self, leadership: int) -> None:
        """With the first run of a newer leadership what is remembered of the older is forgotten: between the two every
        region took messages.
        """
        if leadership > self.leadership:
            self.leadership = leadership
            self._forget()

    def disown(self, known: int) -> bool:
        """known: the newest leadership that there is. What was believed of a newer one is forgotten; whether there was
        something.
        """
        if self.leadership <= known:
            return False
        self._forget()
        self.leadership = 0
        return True

    def _forget(self) -> None:
        kept = {name: ranges for name, ranges in self._ranges.items() if name.startswith(EVERYWHERE)}
        self._ranges, self._range_count = kept or NOTHING, sum(map(len, kept.values()))
        self._local = self._checksums = None

    def _add_range(self, name: str, low: int, high: int) -> None:
        if low < 0:
            return
        ranges = self._ranges.pop(name, [])  # to the end: the most recently heard of
        self._ranges = own(self._ranges)
        self._ranges[name] = ranges
        self._range_count += _add(ranges, low, high)
        while self._range_count > self.settings.ranges_max:
            oldest = next(iter(self._ranges))
            del self._ranges[oldest][0]
            if not self._ranges[oldest]:
                del self._ranges[oldest]
            self._range_count -= 1
            self.forgotten += 1

    def dump(self, bytes_max: int | None = None) -> list[Any]:
        """bytes_max: of all of it, where there is less room than usual."""
        share = 1.0 if bytes_max is None else bytes_max / (sum(_STORED_BYTES) + _CHECKSUMS_BYTES)
        local = {} if self._local is None else self._local.names
        parts: tuple[Mapping[str, Any], ...] = self._durable, self._ranges, local
        kept = [_newest(part, int(bound * share)) for part, bound in zip(parts, _STORED_BYTES, strict=True)]
        if self._checksums is None:
            return [*kept, self.leadership]
        return [*kept, self.leadership, self._checksums.dump(int(_CHECKSUMS_BYTES * share))]

    def load(self, dumped: list[Any]) -> None:
        """Exact ranges that do not say of which leadership they are (an earlier version wrote them) are dropped."""
        durable, *exact = dumped
        ranges, local, self.leadership = exact[:3] if len(exact) >= 3 else ((), (), 0)
        self._local = (
            _LocalRanges({name: [(low, high) for low, high in pairs] for name, pairs in local.items()})
            if local
            else None
        )
        self._checksums = None
        if len(exact) > 3:
            self._checksums = PublishedChecksums()
            self._checksums.load(exact[3])
        self._durable = dict(durable) if durable else NOTHING
        self._ranges = (
            {name: [(low, high) for low, high in pairs] for name, pairs in ranges.items()} if ranges else NOTHING
        )
        self._range_count = sum(map(len, self._ranges.values()))
