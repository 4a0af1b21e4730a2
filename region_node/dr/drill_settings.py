"""Settings of drills: how large a rehearsal is, and what it may cost the namespace itself."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSettings:
    """They are those of the broker that is asked for a drill's steps."""

    topics_max: int = setting(1000, "topics", least=1, most=10_000)
    """A shadow has as many topics as its namespace, partitions counted, and no more than these."""
    clients: int = setting(8, "clients", least=0, most=100, means="how long clients take is not measured")
    """So many of Pulsar's protocol publish to a topic of the shadow each, and are led to the region that takes over."""
    latency_before_s: float = setting(10.0, "s", least=0, most=600, means="it is not measured")
    """For so long the publish latency of the namespace is measured before a drill does anything."""
    latency_times_max: float = setting(1.2, least=1)
    """The p99 during a drill is at most so many times that before, and `latency_more_ms_max` more."""
    latency_more_ms_max: float = setting(5.0, "ms", least=0)
    """So much more than `latency_times_max` times the p99 before: what is short is soon twice as long."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.drill")
