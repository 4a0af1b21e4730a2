"""Rates of topics: what policies and resource groups let in and out, as buckets on live topics.

Is: buckets made from policies, the gate before a topic's publishers, the throttle of each subscription. Isn't: the buckets themselves
(`region_node.subscriptions.throttle`). Invariants: topics of one resource group share its buckets on this broker; a rate that did not change keeps
what was spent of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from heliograph.model.policies import ResourceGroup
from heliograph.model.policy_table import DEFAULTS, Applied
from heliograph.runtime.clock import Clock
from region_node.subscriptions.delayed import DelayWheel
from region_node.subscriptions.throttle import Bucket, PublishGate, Reader, Throttle, bucket

GroupRates = tuple[Bucket | None, Bucket | None]
"""(in, out) of a resource group; None: no limit."""
NO_GROUP: GroupRates = (None, None)


def has_rates(policies: Applied, groups: GroupRates) -> bool:
    """Whether anything of the topic is limited: most topics need no TopicRates."""
    values = policies.values
    names = ("dispatchRate", "subscriptionDispatchRate")
    limited = any(max(values[name]["dispatchThrottlingRateInMsg"], values[name]["dispatchThrottlingRateInByte"]) > 0 for name in names)
    return limited or "publishRate" in values or bool(values["dispatchRateOfSubscriptions"]) or groups != NO_GROUP


class TopicRates:
    """Of one topic. `readers`: the connections of its producers."""

    __slots__ = ("_clock", "_group_out", "_out", "_policies", "_readers", "_wheel", "gate")

    def __init__(self, clock: Clock, wheel: DelayWheel, readers: Callable[[], Iterable[Reader]]) -> None:
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
        own = bucket(policies.values.get("publishRate"), now, "publishThrottlingRateInMsg", "publishThrottlingRateInByte")
        buckets = [b for b in (own, groups[0]) if b is not None]
        self.gate = PublishGate(buckets, self._clock, self._wheel, self._readers) if buckets else None
        if policies.values.get("dispatchRate") != before.get("dispatchRate"):
            self._out = bucket(policies.values.get("dispatchRate"), now)
        self._group_out = groups[1]

    def throttle(self, subscription: str) -> Throttle | None:
        """None: everything may go out."""
        values = self._policies.values
        rate = values["dispatchRateOfSubscriptions"].get(subscription) or values.get("subscriptionDispatchRate")
        buckets = [b for b in (self._out, bucket(rate, self._clock.monotonic()), self._group_out) if b is not None]
        return Throttle(buckets, self._clock, self._wheel) if buckets else None

    def open(self) -> None:
        """Nobody waits any more."""
        if self.gate is not None:
            self.gate.open()


class Groups:
    """Resource groups of one broker. `find`: what the configuration says of one."""

    def __init__(self, find: Callable[[str], ResourceGroup | None], clock: Clock) -> None:
        self._find, self._clock = find, clock
        self._known: dict[str, tuple[ResourceGroup, GroupRates]] = {}

    def rates(self, name: str) -> GroupRates:
        """name: "" for none."""
        group = self._find(name) if name else None
        if group is None:
            return NO_GROUP
        known = self._known.get(name)
        if known is None or known[0] != group:
            into, out = (group.publish_messages, group.publish_bytes), (group.dispatch_messages, group.dispatch_bytes)
            known = self._known[name] = group, (self._bucket(*into), self._bucket(*out))
        return known[1]

    def _bucket(self, messages: int, size_bytes: int) -> Bucket | None:
        return Bucket(messages, size_bytes, self._clock.monotonic()) if max(messages, size_bytes) > 0 else None
