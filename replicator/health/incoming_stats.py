"""IncomingStats: what a target knows of the links that come to it: how old messages are when they are stored, whose
clock is how far off, what is at risk.

Is: numbers, kept where runs and heartbeats arrive. Isn't: the source's own numbers (`replicator.links.link`), or a
decision.
Invariants: times of another region are corrected by the estimated offset between the clocks; what was told is shown
with the time since it was told, so that a cut link is never taken for one without risk.
Source: docs/protocols/links.md, "Risk".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.wire.links.audit_commands import Ask
from heliograph.wire.links.link_commands import Risk

BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000)


class IncomingLatency:
    """From the broker's time at the origin to durable here, in messages."""

    __slots__ = ("counts", "messages", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.messages = 0
        self.sum_ms = 0.0

    def add(self, latency_ms: float, messages: int) -> None:
        self.counts[bisect_left(BOUNDS_MS, latency_ms)] += messages
        self.messages += messages
        self.sum_ms += latency_ms * messages

    def cumulative(self) -> list[tuple[float, int]]:
        """(bound in seconds, messages at or below it), the last bound is infinite."""
        out, total = [], 0
        for bound, count in zip((*BOUNDS_MS, float("inf")), self.counts, strict=True):
            total += count
            out.append((bound / 1000, total))
        return out


@dataclass(slots=True)
class IncomingRegion:
    """One source region, as this broker hears it. clock_offset_ms: its clock is so far ahead of ours."""

    latency: IncomingLatency = field(default_factory=IncomingLatency)
    rtt_ms: float = 0.0
    clock_offset_ms: float = 0.0


@dataclass(slots=True)
class Heard:
    """When a connection was heard last, in ms of the wall clock here; 0: never. Shared by all links that come on it:
    the idle ones cost nothing.
    """

    ms: int = 0


@dataclass(slots=True)
class IncomingLink:
    """One topic from one source. risk: as the source told it last."""

    region: IncomingRegion
    heard: Heard = field(default_factory=Heard)
    connected: bool = False
    risk: Risk | None = None
    messages: int = 0
    """Stored here of what came on it, since the topic was loaded."""
    size_bytes: int = 0
    """The bytes of those messages, as they were stored."""
    send_ask: Callable[[int, Ask], None] | None = None
    """Asks the source what it holds, for an audit; None: it cannot be asked now."""

    def at_risk_s(self, now_ms: int) -> float:
        """What the oldest message that is not here may be old meanwhile; 0.0: nothing is missing, as far as it is
        known.
        """
        told, age_s = self.risk, 0.0
        if told is not None and told.entries:
            age_s = max(0.0, (now_ms - (told.oldest_ms - self.region.clock_offset_ms)) / 1000)
        return age_s if self.connected or not self.heard.ms else max(age_s, (now_ms - self.heard.ms) / 1000)

    def status(self, now_ms: int) -> dict[str, object]:
        """For people. `age_s`: of the oldest message that is not here, as far as it is known; `age_s_max`: what it may
        be meanwhile.
        """
        silent_s = max(0.0, (now_ms - self.heard.ms) / 1000) if self.heard.ms else None
        told = self.risk
        age_s = 0.0
        if told is not None and told.entries:
            age_s = max(0.0, (now_ms - (told.oldest_ms - self.region.clock_offset_ms)) / 1000)
        return {
            "connected": self.connected,
            "silent_s": silent_s,
            "entries": told.entries if told is not None else None,
            "messages": told.messages if told is not None else None,
            "bytes": told.size_bytes if told is not None else None,
            "age_s": age_s if told is not None else None,
            "age_s_max": self.at_risk_s(now_ms),
            "clock_offset_ms": self.region.clock_offset_ms,
            "rtt_ms": self.region.rtt_ms,
        }


class IncomingStats:
    """Knows the regions that links come from at one broker; `region` makes what is not known yet."""

    def __init__(self) -> None:
        self.regions: dict[str, IncomingRegion] = {}

    def region(self, name: str) -> IncomingRegion:
        found = self.regions.get(name)
        if found is None:
            found = self.regions[name] = IncomingRegion()
        return found
