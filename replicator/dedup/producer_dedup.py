"""Producers: which entries of local producers were published before.

Is: the two watermarks of each producer's sequences, and the exact ranges of those that came from other regions. Isn't:
waiting, or storage.
Invariants: a local producer is judged by its highest sequence, *submitted*; an answer goes by *durable*, which only
grows. Entries of other regions never raise either: their sequences are exact ranges, which answer a client's retry
after a failover, and nothing else. Exact ranges are of one leadership, the newest that was heard of: there one region
at a time publishes, so that one name is one producer, and whatever another region published lies under an epoch that
has ended, or ends the one before it. What was published while every region took messages is in none of them, and is
judged by none: one name in two regions may be two programs. But for names that say of themselves that they are one
producer everywhere (`heliograph.model.producer_names`).
Bounds: `producers_max` names (least recently used first) and `ranges_max` ranges (oldest producer first); what was
forgotten is counted. Of what is stored also
bytes: names may be long, and a state that no metadata takes would be the end of the topic.
Source: docs/protocols/links.md, "Producer sequences".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.producer_names import EVERYWHERE
from heliograph.wire.run import ProducerSegment, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSettings:
    producers_max: int = 10_000
    ranges_max: int = 16_384
    local_ranges_max: int = 2_048
    """The bound on ranges of local producers, beside the highest sequence of each: they are in every stored state."""
    durable_bytes_max: int = 320 << 10
    ranges_bytes_max: int = 320 << 10
    local_bytes_max: int = 64 << 10
    """The bound on these ranges in the stored state, which is one value of the metadata with all else that is known of
    the topic: what was heard of longest ago is left out.
    """


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


def _ends(segment: ProducerSegment) -> tuple[int, int]:
    """(lowest, highest sequence) of a segment."""
    _, count, first, pairs = segment
    return (first, first + count - 1) if pairs is None else (pairs[0][0], max(high for _, high in pairs))


def _within(ranges: Sequence[tuple[int, int]], low: int, high: int) -> bool:
    """Says whether one range holds all of low to high, inclusive. ranges: (low, high), disjoint and ascending."""
    i = bisect_right(ranges, (low, 1 << 63)) - 1
    return i >= 0 and ranges[i][0] <= low and high <= ranges[i][1]


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


class Producers:
    """Sequences of one topic's producers."""

    __slots__ = (
        "_durable",
        "_local",
        "_local_count",
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
        self._local: dict[str, list[tuple[int, int]]] | None = (
            None  # what is stored of local producers, exactly; the highest alone does not say that
        )
        self._local_count = 0
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

    def holds(self, name: str, low: int, high: int) -> bool:
        """Whether the sequences low..high were published under `leadership` and are stored here, each of them, wherever
        they were first published.
        """
        return _within(self._ranges.get(name, ()), low, high) or (
            self._local is not None and _within(self._local.get(name, ()), low, high)
        )

    def submit(self, run: Run, coming: Mapping[str, Sequence[tuple[int, int]]] | None = None) -> list[bool] | None:
        """Judges a local run and counts what is new in it as submitted. None: all of it is new; else one bool an entry,
        True = new.

        coming: ranges by producer that arrive from other regions, were published under the run's leadership, and are
        not durable yet; they count as here.
        """
        if coming:
            return self._submit_each(run, coming)
        ends: list[tuple[str, int]] = []
        for name, count, first, pairs in run.producers:
            high = self._submitted.get(name)
            if high is None:
                high = self._durable.get(name, -1)
            if first <= high or (name in self._ranges and self._compares(name, run.leadership)):
                return self._submit_each(run)
            if pairs is None:
                high = first + count - 1
            else:
                for sequence, highest in pairs:
                    if sequence <= high:
                        return self._submit_each(run)
                    high = max(sequence, highest)
            ends.append((name, high))
        if len(ends) > 1 and len({name for name, _ in ends}) < len(ends):
            return self._submit_each(run)
        if ends:
            self._submitted = own(self._submitted)
            self._submitted.update(ends)
        return None

    def _submit_each(
        self, run: Run, coming: Mapping[str, Sequence[tuple[int, int]]] | None = None
    ) -> list[bool] | None:
        new: list[bool] = []
        self._submitted = own(self._submitted)
        for name, count, first, pairs in run.producers:
            high = self._submitted.get(name, self._durable.get(name, -1))
            for sequence, highest in pairs or [(s, s) for s in range(first, first + count)]:
                if sequence < 0:  # a piece of a chunked message: the last one has its sequence, and is judged
                    new.append(True)
                    continue
                highest = max(sequence, highest)
                fresh = highest > high and not self._elsewhere(run, name, sequence, highest)
                if fresh and coming is not None and name in coming:
                    fresh = not any(first <= sequence and highest <= last for first, last in coming[name])
                new.append(fresh)
                if fresh:
                    high = self._submitted[name] = highest
        return None if all(new) else new

    def _elsewhere(self, run: Run, name: str, low: int, high: int) -> bool:
        """Whether the sequences low..high were all first published in another region, so that they say something of
        `run`, and are stored here.
        """
        return self._compares(name, run.leadership) and _within(self._ranges.get(name, ()), low, high)

    def answered(self, run: Run) -> bool:
        """Whether every entry of `run` (judged a duplicate before) is stored by now."""
        for name, count, first, pairs in run.producers:
            durable = self._durable.get(name, -1)
            for sequence, highest in pairs or ((s, s) for s in range(first, first + count)):
                highest = max(sequence, highest)
                if highest > durable and not self._elsewhere(run, name, sequence, highest):
                    return False
        return True

    def confirm(self, run: Run) -> None:
        """A local run is durable."""
        self._durable = own(self._durable)
        exactly = self._follows(run)
        for segment in run.producers:
            name = segment[0]
            high = _ends(segment)[1]
            if self._submitted.get(name, -1) <= high:
                self._submitted.pop(name, None)
            if exactly:
                self._remember(segment)
            high = max(high, self._durable.pop(name, -1))
            self._durable[name] = high
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
            name, high = segment[0], _ends(segment)[1]
            self._submitted[name] = max(high, self._submitted.get(name, self._durable.get(name, -1)))

    def confirm_replicated(self, run: Run) -> None:
        """A run of another region is durable: remembers its sequences exactly, where they may be needed."""
        exactly = self._follows(run)
        for name, count, first, pairs in run.producers:
            if not (exactly or name.startswith(EVERYWHERE)):
                continue
            if pairs is None:
                self._add_range(name, first, first + count - 1)
            else:
                for sequence, highest in pairs:
                    self._add_range(name, sequence, max(sequence, highest))

    def _compares(self, name: str, leadership: int) -> bool:
        """Whether what is remembered of that producer's sequences in other regions says something of a message that is
        published here under `leadership`.
        """
        return leadership == self.leadership or name.startswith(EVERYWHERE)

    def _follows(self, run: Run) -> bool:
        """Whether the sequences of `run` are to be remembered exactly. With the first one of a newer leadership what is
        remembered of the older is forgotten: between the two every region took messages.
        """
        if run.leadership > self.leadership:
            self.leadership = run.leadership
            kept = {name: ranges for name, ranges in self._ranges.items() if name.startswith(EVERYWHERE)}
            self._ranges, self._range_count = kept or NOTHING, sum(map(len, kept.values()))
            self._local, self._local_count = None, 0
        return bool(run.leadership) and run.leadership == self.leadership

    def _remember(self, segment: ProducerSegment) -> None:
        """Keeps the sequences of a local producer exactly: they mostly follow each other, and are one range."""
        name, count, first, pairs = segment
        local = self._local
        if local is None:
            local = self._local = {}
        local[name] = ranges = local.pop(name, None) or []  # to the end: the most recently heard of
        if pairs is None:
            self._local_count += _add(ranges, first, first + count - 1)
        else:
            for sequence, highest in pairs:
                self._local_count += _add(ranges, sequence, max(sequence, highest))
        if not ranges:  # sequences below 0 are nobody's
            del local[name]
        while self._local_count > self.settings.local_ranges_max:
            oldest = next(iter(local))
            del local[oldest][0]
            if not local[oldest]:
                del local[oldest]
            self._local_count -= 1

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
        bounds = self.settings.durable_bytes_max, self.settings.ranges_bytes_max, self.settings.local_bytes_max
        share = 1.0 if bytes_max is None else bytes_max / sum(bounds)
        parts: tuple[Mapping[str, Any], ...] = self._durable, self._ranges, self._local or {}
        kept = [_newest(part, int(bound * share)) for part, bound in zip(parts, bounds, strict=True)]
        return [*kept, self.leadership]

    def load(self, dumped: list[Any]) -> None:
        """Exact ranges that do not say of which leadership they are (an earlier version wrote them) are dropped."""
        durable, *exact = dumped
        ranges, local, self.leadership = exact if len(exact) == 3 else ((), (), 0)
        self._local = {name: [(low, high) for low, high in pairs] for name, pairs in local.items()} if local else None
        self._local_count = sum(map(len, self._local.values())) if self._local else 0
        self._durable = dict(durable) if durable else NOTHING
        self._ranges = (
            {name: [(low, high) for low, high in pairs] for name, pairs in ranges.items()} if ranges else NOTHING
        )
        self._range_count = sum(map(len, self._ranges.values()))
