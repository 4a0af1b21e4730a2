"""Aliases: a message that was published in two regions, because its producer tried again elsewhere, is stored once.

Is: which entries of a run repeat messages that the topic holds, or has on their way, and the run cut into what is
stored and SKIP(alias) records for what is not. Isn't: a maximum: older sequences that never arrived are stored,
whatever came after them.
Invariants: an entry is an alias only where one of that producer, sequence, and checksum, published under the same
leadership in another region, is stored, or lies before it in the order of appends (if that fails, this fails with it):
of that name and sequence may be two messages, where another process has taken the name over; the coordinates of a run
are all covered by its pieces, in order. Used for what was published while one region at a time published to the
namespace.
Source: docs/protocols/links.md, "Producer sequences".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise

from heliograph.model.positions import Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import ProducerSegment, Run
from replicator.dedup.producer_dedup import Coming, Producers, ends, is_coming
from replicator.dedup.published_checksums import entries


def under_way(runs: Iterable[Run]) -> Coming:
    found: dict[str, list[tuple[int, int, int]]] = {}
    for run in runs:
        for name, low, high, checksum in entries(run):
            found.setdefault(name, []).append((low, high, checksum))
    return found


class ComingSequences:
    """Up to which sequence of each producer something is on its way, or was, since this began: what lies above repeats
    nothing of it, and so each entry of it need not be looked at. A region that comes back has thousands of runs on
    their way, each above those before it. Bound: `NAMES_MAX` producers; with more of them everything is looked at.
    """

    NAMES_MAX = 10_000
    __slots__ = ("_highest",)

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._highest: dict[str, int] | None = {}
        for run in runs:
            self.note(run)

    def note(self, run: Run) -> None:
        """It is on its way from now on."""
        if (highest := self._highest) is None:
            return
        for segment in run.producers:
            name, high = segment[0], ends(segment)[1]
            if high > highest.get(name, -1):
                highest[name] = high
        if len(highest) > self.NAMES_MAX:
            self._highest = None

    def may_hold(self, run: Run) -> bool:
        """Whether something of `run` may be on its way already."""
        if (highest := self._highest) is None:
            return True
        return any(_lowest(segment) <= highest.get(segment[0], -1) for segment in run.producers)


def _lowest(segment: ProducerSegment) -> int:
    """The lowest sequence of a segment; those below 0 are nobody's."""
    _, count, first, pairs = segment
    low = first if pairs is None else min(pairs)[0]
    if low >= 0:
        return low
    lows = range(first, first + count) if pairs is None else [low for low, _ in pairs]
    return min([low for low in lows if low >= 0], default=sys.maxsize)


def repeats(run: Run, known: Producers | None, coming: Coming) -> list[bool] | None:
    """One bool an entry, True = an alias; None: all of it is new. known: what is stored, of the run's leadership."""
    if not any(
        segment[0] in coming or (known is not None and known.touches(segment[0], *ends(segment)))
        for segment in run.producers
    ):
        return None
    found = [
        low >= 0
        and (
            (known is not None and known.holds(name, low, high, checksum))
            or is_coming(coming, name, low, high, checksum)
        )
        for name, low, high, checksum in entries(run)
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
