"""Rates of topics: what policies and resource groups let in and out, as buckets on live topics.

Is: buckets made from policies, the gate before a topic's publishers, the throttle of each subscription. Isn't: the
buckets themselves (`region_node.subscriptions.rate_limits`), or how brokers divide a group's rates
(`resource_group_shares`).
Invariants: topics of one resource group share its buckets on this broker; a rate that did not change keeps what was
spent of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from heliograph.model.configuration.configuration_records import ResourceGroup
from heliograph.model.configuration.policy_table import DEFAULTS, Applied
from heliograph.runtime.clock import Clock
from region_node.runtime.prometheus_text import Sample
from region_node.subscriptions.delayed_delivery import DelayWheel
from region_node.subscriptions.rate_limits import (
    Bucket,
    CountingBucket,
    DispatchThrottle,
    PausableReader,
    PublishGate,
    bucket,
)
from region_node.topics.limits.resource_group_shares import Use, Uses, share

GroupRates = tuple[Bucket | None, Bucket | None]
"""(in, out) of a resource group; None: no limit."""
NO_GROUP: GroupRates = (None, None)
IDLE_S = 30.0
"""Who has not used a group for so long does not count among those that divide it; it begins anew with the floor of a
share.
"""
KINDS = ("publish_messages", "publish_bytes", "dispatch_messages", "dispatch_bytes")
"""In the order of Uses."""
_NOTHING_USED: Uses = ((0.0, False),) * 4


def has_rates(policies: Applied, groups: GroupRates) -> bool:
    """Whether anything of the topic is limited: most topics need no TopicRates."""
    values = policies.values
    names = ("dispatchRate", "subscriptionDispatchRate")
    limited = any(
        max(values[name]["dispatchThrottlingRateInMsg"], values[name]["dispatchThrottlingRateInByte"]) > 0
        for name in names
    )
    return limited or "publishRate" in values or bool(values["dispatchRateOfSubscriptions"]) or groups != NO_GROUP


class TopicRates:
    """Holds one topic's publishers and subscriptions to its rates. `readers`: the connections of its producers."""

    __slots__ = ("_clock", "_group_out", "_out", "_policies", "_readers", "_wheel", "gate")

    def __init__(self, clock: Clock, wheel: DelayWheel, readers: Callable[[], Iterable[PausableReader]]) -> None:
        self._clock, self._wheel, self._readers = clock, wheel, readers
        self._policies = DEFAULTS
        self._out: Bucket | None = None
        self._group_out: Bucket | None = None
        self.gate: PublishGate | None = None
        """None: publishers are not slowed."""

    def obey(self, policies: Applied, groups: GroupRates) -> None:
        before, self._policies = self._policies.values, policies
        now = self._clock.monotonic()
        self.open()
        own = bucket(
            policies.values.get("publishRate"), now, "publishThrottlingRateInMsg", "publishThrottlingRateInByte"
        )
        buckets = [b for b in (own, groups[0]) if b is not None]
        self.gate = PublishGate(buckets, self._clock, self._wheel, self._readers) if buckets else None
        if policies.values.get("dispatchRate") != before.get("dispatchRate"):
            self._out = bucket(policies.values.get("dispatchRate"), now)
        self._group_out = groups[1]

    def throttle(self, subscription: str) -> DispatchThrottle | None:
        """None: everything may go out."""
        values = self._policies.values
        rate = values["dispatchRateOfSubscriptions"].get(subscription) or values.get("subscriptionDispatchRate")
        buckets = [b for b in (self._out, bucket(rate, self._clock.monotonic()), self._group_out) if b is not None]
        return DispatchThrottle(buckets, self._clock, self._wheel) if buckets else None

    def readers(self) -> DispatchThrottle | None:
        """What holds for readers that are no subscription: the rate of the topic, and of its resource group. None:
        everything may go out.
        """
        buckets = [b for b in (self._out, self._group_out) if b is not None]
        return DispatchThrottle(buckets, self._clock, self._wheel) if buckets else None

    def open(self) -> None:
        """Lets all publishers go on that wait at the gate, when the rates change, or the topic is disconnected."""
        if self.gate is not None:
            self.gate.open()


class _Group:
    """One resource group on this broker: its buckets, which hold this broker's share of what is set."""

    __slots__ = ("_out", "_used_at", "into", "parts", "rates", "set", "uses")

    def __init__(self, group: ResourceGroup, now: float) -> None:
        self.set = group
        self.into = _counting(group.publish_messages, group.publish_bytes, now)
        self._out = _counting(group.dispatch_messages, group.dispatch_bytes, now)
        self.rates: GroupRates = (self.into, self._out)
        self.uses: Uses = _NOTHING_USED
        self._used_at = now
        self.parts: list[float] = [
            group.publish_messages,
            group.publish_bytes,
            group.dispatch_messages,
            group.dispatch_bytes,
        ]
        """What this broker may have of each; -1: there is no limit."""

    def measure(self, now: float) -> Uses | None:
        """Since the last call; None: nobody has used it for long."""
        none: tuple[Use, Use] = ((0.0, False), (0.0, False))
        uses_in = self.into.used(now) if self.into is not None else none
        uses_out = self._out.used(now) if self._out is not None else none
        self.uses = (*uses_in, *uses_out)
        if any(used > 0 or held for used, held in self.uses):
            self._used_at = now
        return self.uses if now - self._used_at < IDLE_S else None

    def divide(self, others: Sequence[Uses], now: float) -> None:
        group, mine = self.set, self.uses
        rates = group.publish_messages, group.publish_bytes, group.dispatch_messages, group.dispatch_bytes
        parts = self.parts = [
            share(rate, mine[at], [other[at] for other in others]) if rate > 0 else rate
            for at, rate in enumerate(rates)
        ]
        if self.into is not None:
            self.into.set_rates(parts[0], parts[1], now)
        if self._out is not None:
            self._out.set_rates(parts[2], parts[3], now)


class Groups:
    """Resource groups of one broker. `find`: what the configuration says of one."""

    def __init__(self, find: Callable[[str], ResourceGroup | None], clock: Clock) -> None:
        self._find, self._clock = find, clock
        self._known: dict[str, _Group] = {}
        self._others: Sequence[Mapping[str, Uses]] = ()

    def rates(self, name: str) -> GroupRates:
        """Returns this broker's buckets of a resource group; NO_GROUP for "", and for one that does not exist."""
        group = self._find(name) if name else None
        if group is None:
            return NO_GROUP
        known = self._known.get(name)
        if known is None or known.set != group:
            known = self._known[name] = _Group(group, self._clock.monotonic())
            self._divide(name, known)
        return known.rates

    def measure(self, now: float) -> dict[str, Uses]:
        """What is used here of each group, a second since the last call."""
        for name in [name for name in self._known if self._find(name) is None]:
            del self._known[name]
        measured = ((name, group.measure(now)) for name, group in self._known.items())
        return {name: uses for name, uses in measured if uses is not None}

    def divide(self, others: Sequence[Mapping[str, Uses]]) -> None:
        """others: what each other broker of the region uses, by group. From now on this broker's buckets have its
        shares.
        """
        self._others = others
        for name, group in self._known.items():
            self._divide(name, group)

    def samples(self, region: str) -> Iterable[Sample]:
        """What this broker may have of each group, and what it used when last looked at: a second."""
        for name, group in sorted(self._known.items()):
            for kind, part, (used, _) in zip(KINDS, group.parts, group.uses, strict=True):
                if part > 0:
                    labels = {"cluster": region, "resource_group": name, "kind": kind}
                    yield "heliograph_resource_group_share", "gauge", labels, part
                    yield "heliograph_resource_group_used", "gauge", labels, used

    def _divide(self, name: str, group: _Group) -> None:
        group.divide([uses for other in self._others if (uses := other.get(name)) is not None], self._clock.monotonic())


def _counting(messages: int, size_bytes: int, now: float) -> CountingBucket | None:
    return CountingBucket(messages, size_bytes, now) if max(messages, size_bytes) > 0 else None
