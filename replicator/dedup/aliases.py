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

from collections.abc import Iterable, Sequence
from itertools import pairwise

from heliograph.model.positions import Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run
from replicator.dedup.producer_dedup import Coming, Producers, ends, is_coming
from replicator.dedup.published_checksums import entries


def under_way(runs: Iterable[Run]) -> Coming:
    found: dict[str, list[tuple[int, int, int]]] = {}
    for run in runs:
        for name, low, high, checksum in entries(run):
            found.setdefault(name, []).append((low, high, checksum))
    return found


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
