"""IncomingStats: what a target knows of the links that come to it: how old messages are when they are stored, whose
clock is how far off, what is at risk.

Is: numbers, kept where runs and heartbeats arrive. Isn't: the source's own numbers (`replicator.links.link`), or a
decision.
Invariants: times of another region are corrected by the estimated offset between the clocks; what was told is shown
with the time since its teller was last heard, whether its connection stands or not, so that neither a cut link nor a
silent one is ever taken for one without risk.
Source: docs/protocols/links.md, "Risk".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.wire.links.audit_commands import Ask
from heliograph.wire.links.link_commands import Risk
from replicator.health.unopened_topics import UnopenedThere

SILENT_S = 2.0
"""A region that lives beats each second: above so many seconds without a word, what it told is told with its age."""
LOST_S = 5.0
"""From so many seconds without a word on, a link is not connected, at either end."""
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


class Heard:
    """When a connection was heard last, by any byte. Shared by all links that come on it: the idle ones cost nothing.

    at: seconds of the monotonic clock here, which no jump of a wall clock makes older or younger.
    """

    __slots__ = ("_monotonic", "at")

    def __init__(self, monotonic: Callable[[], float], at: float | None = None) -> None:
        """at: when it was heard; by default it is heard now."""
        self._monotonic = monotonic
        self.at = monotonic() if at is None else at

    def now(self) -> float:
        """The clock that `at` is of."""
        return self._monotonic()

    def bytes(self) -> None:
        """Notes that something came just now."""
        self.at = self._monotonic()

    def bytes_since(self, at: float) -> None:
        """Notes that something has come since then, nobody knows when."""
        self.at = max(self.at, at)

    @property
    def silent_s(self) -> float:
        """For how long nothing has come."""
        return max(0.0, self._monotonic() - self.at)

    def stopped(self) -> Heard:
        """The same time, for one link of a connection that goes on without it."""
        return Heard(self._monotonic, self.at)


@dataclass(slots=True)
class IncomingRegion:
    """One source region, as this broker hears it. clock_offset_ms: its clock is so far ahead of ours; clock_ahead_ms:
    of our monotonic one, None while it was not heard.
    """

    latency: IncomingLatency = field(default_factory=IncomingLatency)
    rtt_ms: float = 0.0
    clock_offset_ms: float = 0.0
    clock_ahead_ms: float | None = None
    on: list[Heard] = field(default_factory=list)
    """Its connections that have, or had, a stream here."""
    refused_claims: int = 0
    """How often it claimed what is another region's to say, since this broker began."""
    ended: Heard | None = None
    """The one that was heard last of the connections that are gone."""
    unopened: UnopenedThere = field(default_factory=UnopenedThere)
    """What its brokers told of topics that may not be here at all."""

    @property
    def silent_s(self) -> float:
        """For how long nothing has come on any connection; 0.0: there never was one."""
        ended = () if self.ended is None else (self.ended,)
        return min((one.silent_s for one in (*self.on, *ended)), default=0.0)

    def end(self, heard: Heard) -> None:
        """Takes note that a connection is gone."""
        self.on.remove(heard)
        if self.ended is None or self.ended.at < heard.at:
            self.ended = heard


@dataclass(slots=True)
class IncomingLink:
    """One topic from one source. risk: as the source told it last. open: its stream stands here."""

    region: IncomingRegion
    heard: Heard
    open: bool = False
    risk: Risk | None = None
    told: bool = False
    """Whether `risk` was told on this stream, and not on one before it."""
    messages: int = 0
    """Stored here of what came on it, since the topic was loaded."""
    size_bytes: int = 0
    """The bytes of those messages, as they were stored."""
    send_ask: Callable[[int, Ask], None] | None = None
    """Asks the source what it holds, for an audit; None: it cannot be asked now."""
    refusal: tuple[str, int] | None = None
    """What the source claimed last that is not its own to say, and wall ms when, since the topic was loaded."""
    before: IncomingLink | None = None
    """The one whose place it took: of another broker of the source, perhaps, and open for longer than this one."""

    def open_before(self) -> IncomingLink | None:
        """The last one before it that is open still."""
        found = self.before
        while found is not None and not found.open:
            found = found.before
        return found

    def follows(self, other: IncomingLink) -> None:
        """It stands for the source in the place of `other`: its counts go on, and what was told last stays known."""
        self.messages, self.size_bytes = max(self.messages, other.messages), max(self.size_bytes, other.size_bytes)
        if not self.told:
            self.risk = other.risk
        if other.refusal is not None and (self.refusal is None or other.refusal[1] > self.refusal[1]):
            self.refusal = other.refusal
        if (before := other if other.open else other.open_before()) is not self:
            self.before = before

    def end(self, heard: Heard) -> None:
        """Its stream is gone. heard: when the source was heard last, as it stays for this stream."""
        self.open, self.heard, self.send_ask = False, heard, None

    def refused(self, text: str, now_ms: int) -> None:
        """Takes note of a claim that was not believed."""
        self.refusal = (text, now_ms)
        self.region.refused_claims += 1

    @property
    def connected(self) -> bool:
        """Whether its source is heard: one that says nothing may be lost, also where no connection was closed."""
        return self.open and self.heard.silent_s < LOST_S

    def untold_s(self, now: float) -> float:
        """So long ago that was true which is known of its source; 0.0: it is as good as now. now: the monotonic
        clock's.
        """
        silent_s = max(0.0, now - self.heard.at)
        return silent_s if silent_s > SILENT_S or not self.open else 0.0

    def at_risk_s(self, now_ms: int, now: float) -> float:
        """What the oldest message that is not here may be old meanwhile; 0.0: nothing is missing, as far as it is
        known. now_ms: the wall clock's, now: the monotonic one's.
        """
        told, untold_s = self.risk, self.untold_s(now)
        return untold_s if told is None or not told.entries else max(untold_s, self._age_s(now_ms))

    def _age_s(self, now_ms: int) -> float:
        told = self.risk
        if told is None or not told.entries:
            return 0.0
        return max(0.0, (now_ms - (told.oldest_ms - self.region.clock_offset_ms)) / 1000)

    def status(self, now_ms: int) -> dict[str, object]:
        """For people. `age_s`: of the oldest message that is not here, as far as it is known; `age_s_max`: what it may
        be meanwhile.
        """
        told, now = self.risk, self.heard.now()
        return {
            "connected": self.connected,
            "told": self.told,
            "silent_s": max(0.0, now - self.heard.at),
            "entries": told.entries if told is not None else None,
            "messages": told.messages if told is not None else None,
            "bytes": told.size_bytes if told is not None else None,
            "age_s": self._age_s(now_ms) if told is not None else None,
            "age_s_max": self.at_risk_s(now_ms, now),
            "clock_offset_ms": self.region.clock_offset_ms,
            "rtt_ms": self.region.rtt_ms,
            "refused": None if self.refusal is None else {"text": self.refusal[0], "at_ms": self.refusal[1]},
        }


class IncomingStats:
    """Knows the regions that links come from at one broker; `region` makes what is not known yet."""

    def __init__(self) -> None:
        self.regions: dict[str, IncomingRegion] = {}

    def clocks(self) -> dict[str, float]:
        """Region -> how many ms its clock is ahead of our monotonic one, of those that were heard since the start."""
        return {name: ahead for name, found in self.regions.items() if (ahead := found.clock_ahead_ms) is not None}

    def region(self, name: str) -> IncomingRegion:
        found = self.regions.get(name)
        if found is None:
            found = self.regions[name] = IncomingRegion()
        return found
