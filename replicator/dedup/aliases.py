"""Aliases: a message that was published in two regions, because its producer tried again elsewhere, is stored once.

Is: which entries of a run repeat (producer, sequence) pairs that the topic holds exactly, or has on their way, and the
run cut into what is stored and SKIP(alias) records for what is not. Isn't: a maximum: older sequences that never
arrived are stored, whatever came after them.
Invariants: an entry is an alias only where the very pair, published under the same leadership in another region, and so
under another epoch, is stored, or lies before it in the order of appends (if that fails, this fails with it); the
coordinates of a run are all covered by its pieces, in order. Used for what was published while one region at a time
published to the namespace: two regions' producers of one name are then one producer.
Source: docs/protocols/links.md, "Producer sequences".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from heliograph.model.positions import Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run

UnderWay = dict[str, list[tuple[int, int]]]
"""Producer -> ranges of sequences that are appended and not durable."""


def sequences(run: Run) -> Iterator[tuple[str, int, int]]:
    """(producer, lowest, highest sequence) of each entry."""
    for name, count, first, pairs in run.producers:
        if pairs is None:
            for sequence in range(first, first + count):
                yield name, sequence, sequence
        else:
            for sequence, highest in pairs:
                yield name, sequence, max(sequence, highest)


def under_way(runs: Iterable[Run]) -> UnderWay:
    found: UnderWay = {}
    for run in runs:
        for name, low, high in sequences(run):
            found.setdefault(name, []).append((low, high))
    return found


def in_ranges(ranges: Sequence[tuple[int, int]], low: int, high: int) -> bool:
    return any(first <= low and high <= last for first, last in ranges)


def repeats(run: Run, held: Callable[[str, int, int], bool], coming: UnderWay) -> list[bool] | None:
    """One bool an entry, True = an alias; None: all of it is new."""
    found = [
        low >= 0 and (held(name, low, high) or in_ranges(coming.get(name, ()), low, high))
        for name, low, high in sequences(run)
    ]
    return found if len(found) == run.count and any(found) else None


def pieces(run: Run, repeated: Sequence[bool], before: Position) -> list[Run | SkipRecord]:
    """before: what the topic holds of that origin before the first entry."""
    assert run.origin is not None
    cuts = [0, *(i for i in range(1, run.count) if repeated[i] != repeated[i - 1]), run.count]
    out: list[Run | SkipRecord] = []
    for start, stop in pairwise(cuts):
        if repeated[start]:
            out.append(
                SkipRecord(
                    run.origin,
                    before if start == 0 else run.coordinate(start - 1),
                    run.coordinate(stop - 1),
                    SkipReason.ALIAS,
                    "",
                )
            )
        else:
            out.append(run.cut(start, stop))
    return out
