"""PublishLatency: what publishing to a namespace costs before and during a drill, as its brokers measure it.

Is: a core: what was appended between two looks at the brokers' counts, the p99 of that, and a verdict. Isn't: counting
(`storage.managed_ledger.append_counts`), or asking brokers.
Invariants: where a window has too few messages for a p99 nothing is said to be well, nor where publishing has nearly
stopped; what a broker took along that ended meanwhile, or was started anew, is not made up; what nobody measured is not
kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from region_node.dr.drill_settings import DrillSettings
from storage.managed_ledger.append_counts import FINE_S

Counts = Mapping[str, Sequence[int]]
"""Broker -> its entries by FINE_S, since its start; empty: it does not know."""
KEPT, BROKEN, NO_TRAFFIC, TOO_LITTLE, NOT_MEASURED = (
    "kept",
    "broken",
    "no traffic",
    "too little traffic",
    "not measured",
)
_ENTRIES_LEAST = 100
"""Of fewer a p99 is one of them."""
_RATE_LEAST = 0.1
"""Of that before: with less the slow ones may be those that are not there."""


def between(before: Counts, after: Counts) -> list[int] | None:
    """What was appended meanwhile, at all brokers that are there after it. None: one of them does not count the
    namespace by itself, or one that had appended to it has ended or was started anew, with what it had counted.
    """
    if any(any(was) and broker not in after for broker, was in before.items()):
        return None
    out = [0] * (len(FINE_S) + 1)
    for broker, counts in after.items():
        if len(counts) != len(out):
            return None
        old = before.get(broker, ())
        if len(old) != len(counts) or any(now < was for was, now in zip(old, counts, strict=True)):
            if any(old):
                return None  # it was started since
            old = [0] * len(counts)
        for at, (was, now) in enumerate(zip(old, counts, strict=True)):
            out[at] += now - was
    return out


def p99_ms(counts: Sequence[int]) -> float | None:
    """Read off within a bucket as if it were filled evenly. None: longer than the last bound. counts: not all 0."""
    left = 0.99 * sum(counts)
    low = 0.0
    for bound, count in zip(FINE_S, counts, strict=False):
        if count and left <= count:
            return (low + (bound - low) * left / count) * 1000
        left, low = left - count, bound
    return None


def judged(
    before: Sequence[int] | None,
    during: Sequence[int] | None,
    settings: DrillSettings,
    times_s: tuple[float, float] = (1.0, 1.0),
) -> dict[str, Any]:
    """One region's part of the report. None: nobody looked. times_s: how long each of the two has lasted."""
    if before is None or during is None:
        return {"verdict": NOT_MEASURED}
    out: dict[str, Any] = {"entries_before": sum(before), "entries_during": sum(during)}
    if sum(before) >= _ENTRIES_LEAST and sum(during) * times_s[0] < _RATE_LEAST * sum(before) * times_s[1]:
        return {**out, "verdict": NOT_MEASURED}
    least = min(out.values())
    if least < _ENTRIES_LEAST:
        return {**out, "verdict": TOO_LITTLE if least else NO_TRAFFIC}
    was, now = p99_ms(before), p99_ms(during)
    out |= {"p99_before_ms": _rounded(was), "p99_during_ms": _rounded(now)}
    if was is None:  # it is slower than anything that is counted
        return {**out, "verdict": NOT_MEASURED}
    limit = was * settings.latency_times_max + settings.latency_more_ms_max
    return {**out, "limit_ms": _rounded(limit), "verdict": BROKEN if now is None or now > limit else KEPT}


def text(region: str, part: Mapping[str, Any]) -> str:
    """What the report says of one region, in words."""
    if "limit_ms" not in part:
        return f"{region}: {part['verdict']}"
    now = part["p99_during_ms"]
    shown = f"{FINE_S[-1] * 1000:g} ms or more" if now is None else f"{now:g} ms"
    before, limit = part["p99_before_ms"], part["limit_ms"]
    return f"{region}: {part['verdict']} (p99 {before:g} ms before, {shown} during, {limit:g} ms at most)"


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 2)
