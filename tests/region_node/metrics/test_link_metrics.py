"""Metrics of links: for how long each other region was not heard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from region_node.metrics import link_metrics
from replicator.health.incoming_stats import Heard, IncomingRegion


class Now:
    """A monotonic clock that a test moves."""

    at = 1000.0

    def __call__(self) -> float:
        return self.at


def silences(regions: dict[str, IncomingRegion]) -> dict[str, tuple[str, float]]:
    """Region -> kind and value of heliograph_replication_silent_seconds."""
    counts: dict[str, Any] = dict.fromkeys(("passes", "failed", "ranges", "entries", "size_bytes"), 0)
    auditor = SimpleNamespace(**counts, found=_zeros(), repaired=_zeros(), reports={})
    links: dict[str, Any] = {"region": "us", "restarts": {}, "parked": [], "logs": {}, "auditor": auditor}
    given = SimpleNamespace(**links, budgets=SimpleNamespace(traffic={}), incoming=SimpleNamespace(regions=regions))
    rows = [row for row in link_metrics.samples(cast(Any, given)) if row[0] == "heliograph_replication_silent_seconds"]
    assert all(labels.keys() == {"cluster", "remote_cluster"} and labels["cluster"] == "us" for _, _, labels, _ in rows)
    return {labels["remote_cluster"]: (kind, value) for _, kind, labels, value in rows}


def _zeros() -> dict[str, int]:
    return {str(fault): 0 for fault in link_metrics.Fault}


def test_each_region_that_was_ever_heard_tells_for_how_long_it_was_not() -> None:
    """Also where all its connections are gone: what an alert watches falls back to nothing only when it is heard."""
    now = Now()
    eu, ap, never = IncomingRegion(), IncomingRegion(), IncomingRegion()
    one, other, gone = Heard(now), Heard(now), Heard(now)
    eu.on, ap.on = [one, other], [gone]
    now.at += 7
    other.bytes()
    ap.end(gone)
    now.at += 3
    found = silences({"eu": eu, "ap": ap, "sa": never})
    assert found == {"eu": ("gauge", 3.0), "ap": ("gauge", 10.0), "sa": ("gauge", 0.0)}
    one.bytes()
    assert silences({"eu": eu})["eu"] == ("gauge", 0.0)
