"""Producers: which entries of local producers were published before.

Is: the two watermarks of each producer's sequences, and the exact ranges of those that came from other regions. Isn't: waiting, or storage.
Invariants: a local producer is judged by its highest sequence, *submitted*; an answer goes by *durable*, which only grows. Entries of other
regions never raise either: their sequences are exact ranges, which answer a client's retry after a failover, and nothing else.
Bounds: `producers_max` names (least recently used first) and `ranges_max` ranges (oldest producer first); what was forgotten is counted.
Source: docs/protocols/links.md, "Producer sequences".
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from heliograph.wire.run import ProducerSegment, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSettings:
    producers_max: int = 10_000
    ranges_max: int = 16_384


def _ends(segment: ProducerSegment) -> tuple[int, int]:
    """(lowest, highest sequence) of a segment."""
    _, count, first, pairs = segment
    return (first, first + count - 1) if pairs is None else (pairs[0][0], max(high for _, high in pairs))


class Producers:
    """Sequences of one topic's producers."""

    __slots__ = ("_durable", "_range_count", "_ranges", "_submitted", "forgotten", "settings")

    def __init__(self, settings: DedupSettings) -> None:
        self.settings = settings
        self._durable: dict[str, int] = {}  # local: the highest sequence that is stored; least recently used first
        self._submitted: dict[str, int] = {}  # local: the highest one on its way, only of names that have one
        self._ranges: dict[str, list[tuple[int, int]]] = {}  # of other regions, disjoint and ascending
        self._range_count = 0
        self.forgotten = 0

    def last_sequence(self, name: str) -> int:
        """Highest sequence stored here, wherever it was first published; -1."""
        ranges = self._ranges.get(name)
        return max(self._durable.get(name, -1), ranges[-1][1] if ranges else -1)

    def durable(self, name: str) -> int:
        return self._durable.get(name, -1)

    def submit(self, run: Run) -> list[bool] | None:
        """Judges a local run and counts what is new in it as submitted. None: all of it is new; else one bool an entry, True = new."""
        ends: list[tuple[str, int]] = []
        for name, count, first, pairs in run.producers:
            high = self._submitted.get(name)
            if high is None:
                high = self._durable.get(name, -1)
            if first <= high or name in self._ranges:
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
        self._submitted.update(ends)
        return None

    def _submit_each(self, run: Run) -> list[bool] | None:
        new: list[bool] = []
        for name, count, first, pairs in run.producers:
            high = self._submitted.get(name, self._durable.get(name, -1))
            for sequence, highest in pairs or [(s, s) for s in range(first, first + count)]:
                highest = max(sequence, highest)
                fresh = highest > high and not self._elsewhere(name, sequence, highest)
                new.append(fresh)
                if fresh:
                    high = self._submitted[name] = highest
        return None if all(new) else new

    def _elsewhere(self, name: str, low: int, high: int) -> bool:
        """Whether the sequences low..high were all first published in another region, and are stored here."""
        ranges = self._ranges.get(name)
        if not ranges:
            return False
        i = bisect_right(ranges, (low, 1 << 63)) - 1
        return i >= 0 and ranges[i][0] <= low and high <= ranges[i][1]

    def answered(self, run: Run) -> bool:
        """Whether every entry of `run` (judged a duplicate before) is stored by now."""
        for name, count, first, pairs in run.producers:
            durable = self._durable.get(name, -1)
            for sequence, highest in pairs or ((s, s) for s in range(first, first + count)):
                highest = max(sequence, highest)
                if highest > durable and not self._elsewhere(name, sequence, highest):
                    return False
        return True

    def confirm(self, run: Run) -> None:
        """A local run is durable."""
        for segment in run.producers:
            name = segment[0]
            high = _ends(segment)[1]
            if self._submitted.get(name, -1) <= high:
                self._submitted.pop(name, None)
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
        for segment in run.producers:
            name, high = segment[0], _ends(segment)[1]
            self._submitted[name] = max(high, self._submitted.get(name, self._durable.get(name, -1)))

    def confirm_replicated(self, run: Run) -> None:
        """A run of another region is durable: remembers its sequences exactly."""
        for name, count, first, pairs in run.producers:
            if pairs is None:
                self._add_range(name, first, first + count - 1)
            else:
                for sequence, highest in pairs:
                    self._add_range(name, sequence, max(sequence, highest))

    def _add_range(self, name: str, low: int, high: int) -> None:
        if low < 0:
            return
        ranges = self._ranges.pop(name, [])  # to the end: the most recently heard of
        self._ranges[name] = ranges
        before = len(ranges)
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
        self._range_count += len(ranges) - before
        while self._range_count > self.settings.ranges_max:
            oldest = next(iter(self._ranges))
            del self._ranges[oldest][0]
            if not self._ranges[oldest]:
                del self._ranges[oldest]
            self._range_count -= 1
            self.forgotten += 1

    def dump(self) -> list[Any]:
        return [self._durable, self._ranges]

    def load(self, dumped: list[Any]) -> None:
        durable, ranges = dumped
        self._durable = dict(durable)
        self._ranges = {name: [(low, high) for low, high in pairs] for name, pairs in ranges.items()}
        self._range_count = sum(map(len, self._ranges.values()))
