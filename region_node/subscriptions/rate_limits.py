"""Rates: buckets of tokens, what dispatch may take from them, and the gate that publishers wait at.

Is: messages and bytes a second, spent by runs after the fact (a bucket may be overdrawn, and then takes as long to
recover). Isn't: a queue:
what may not go out stays where it is (in the ledger, or in the publisher's socket). Invariants: nothing is done an
entry; one timer wheel for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from heliograph.runtime.clock import Clock
from region_node.subscriptions.delayed_delivery import DelayWheel, Sleeper

NO_LIMIT = 1 << 60
LOOK_AGAIN_S = 1.0
"""Nobody sleeps longer than that: a bucket's rates may have grown meanwhile."""


class Bucket:
    """`messages`, `size_bytes`: a second, 0 or less: no limit. It holds `period_s` of them at most, and starts full."""

    __slots__ = ("_base", "_bytes_left", "_messages_left", "_now", "_period_s", "messages", "relative", "size_bytes")

    def __init__(self, messages: float, size_bytes: float, now: float, period_s: float = 1.0) -> None:
        self.messages = messages if messages > 0 else math.inf
        self.size_bytes = size_bytes if size_bytes > 0 else math.inf
        self._base = self.messages, self.size_bytes
        self.relative = False
        """Its rates are to be had beyond what is published."""
        self._period_s, self._now = period_s, now
        self._messages_left, self._bytes_left = self.messages * period_s, self.size_bytes * period_s

    def refill(self, now: float) -> None:
        elapsed, self._now = now - self._now, now
        if elapsed > 0:  # it holds one at least: else less than one a period would be nothing at all
            self._messages_left = min(
                self._messages_left + self.messages * elapsed, max(1.0, self.messages * self._period_s)
            )
            self._bytes_left = min(
                self._bytes_left + self.size_bytes * elapsed, max(1.0, self.size_bytes * self._period_s)
            )

    def spend(self, messages: int, size_bytes: int) -> None:
        self._messages_left -= messages
        self._bytes_left -= size_bytes

    def follow(self, messages: float, size_bytes: float) -> None:
        """What is published a second just now; without effect where the bucket is not relative to it."""
        if self.relative:
            self.messages, self.size_bytes = self._base[0] + messages, self._base[1] + size_bytes

    def set_rates(self, messages: float, size_bytes: float, now: float) -> None:
        """As given when it was made; what was spent stays spent."""
        self.refill(now)
        self.messages, self.size_bytes = (
            messages if messages > 0 else math.inf,
            size_bytes if size_bytes > 0 else math.inf,
        )
        self._base = self.messages, self.size_bytes
        self._messages_left = (
            min(self._messages_left, max(1.0, self.messages * self._period_s)) if messages > 0 else math.inf
        )
        self._bytes_left = (
            min(self._bytes_left, max(1.0, self.size_bytes * self._period_s)) if size_bytes > 0 else math.inf
        )

    @property
    def messages_left(self) -> int:
        """0: nothing may go, whichever of both is used up."""
        if self._messages_left < 1 or self._bytes_left < 1:
            return 0
        return NO_LIMIT if self._messages_left == math.inf else int(self._messages_left)

    @property
    def bytes_left(self) -> int:
        return NO_LIMIT if self._bytes_left == math.inf else max(0, int(self._bytes_left))

    @property
    def wait_s(self) -> float:
        """Until something may go again."""
        return max(0.0, (1 - self._messages_left) / self.messages, (1 - self._bytes_left) / self.size_bytes)


class CountingBucket(Bucket):
    """One that several brokers fill together: it says what was used of it here."""

    __slots__ = ("_counted_at", "_held_bytes", "_held_messages", "_used_bytes", "_used_messages")

    def __init__(self, messages: float, size_bytes: float, now: float) -> None:
        super().__init__(messages, size_bytes, now)
        self._used_messages = self._used_bytes = 0
        self._held_messages = self._held_bytes = False
        self._counted_at = now

    def spend(self, messages: int, size_bytes: int) -> None:
        self._messages_left -= messages
        self._bytes_left -= size_bytes
        self._used_messages += messages
        self._used_bytes += size_bytes
        if self._messages_left < 1:
            self._held_messages = True
        if self._bytes_left < 1:
            self._held_bytes = True

    def used(self, now: float) -> tuple[tuple[float, bool], tuple[float, bool]]:
        """(messages, bytes): each so many a second since the last call, and whether somebody had to wait for more."""
        elapsed, self._counted_at = max(1e-3, now - self._counted_at), now
        self.refill(now)
        found = (self._used_messages / elapsed, self._held_messages), (self._used_bytes / elapsed, self._held_bytes)
        self._used_messages = self._used_bytes = 0
        self._held_messages, self._held_bytes = self._messages_left < 1, self._bytes_left < 1
        return found


def bucket(
    rate: Mapping[str, Any] | None,
    now: float,
    messages: str = "dispatchThrottlingRateInMsg",
    size_bytes: str = "dispatchThrottlingRateInByte",
) -> Bucket | None:
    """Makes a bucket of Pulsar's rate, whose fields have these names; None where it lets everything pass. Its numbers
    are for `ratePeriodInSecond`.
    """
    if rate is None or (rate[messages] <= 0 and rate[size_bytes] <= 0):
        return None
    period_s = rate.get("ratePeriodInSecond", 1)
    made = Bucket(rate[messages] / period_s, rate[size_bytes] / period_s, now, period_s)
    made.relative = bool(rate.get("relativeToPublishRate"))
    return made


class DispatchThrottle:
    """What one subscription may hand out: no more than each of its buckets lets, as they were filled last."""

    __slots__ = ("_buckets", "_clock", "_wheel")

    def __init__(self, buckets: Sequence[Bucket], clock: Clock, wheel: DelayWheel) -> None:
        self._buckets, self._clock, self._wheel = tuple(buckets), clock, wheel

    def refill(self) -> None:
        """What has come since the last call may be taken from now on."""
        now = self._clock.monotonic()
        for bucket in self._buckets:
            bucket.refill(now)

    def messages(self) -> int:
        return min(bucket.messages_left for bucket in self._buckets)

    def bytes_left(self) -> int:
        return min(bucket.bytes_left for bucket in self._buckets)

    def spend(self, messages: int, size_bytes: int) -> None:
        for bucket in self._buckets:
            bucket.spend(messages, size_bytes)

    def follow(self, messages: float, size_bytes: float) -> None:
        for bucket in self._buckets:
            bucket.follow(messages, size_bytes)

    @property
    def wait_s(self) -> float:
        """Until something may go again."""
        return max(bucket.wait_s for bucket in self._buckets)

    def wake_later(self, sleeper: Sleeper) -> None:
        """`sleeper` is woken when something may go again."""
        self._wheel.wake_after(sleeper, min(self.wait_s, LOOK_AGAIN_S))


class PausableReader(Protocol):
    """A connection whose reading can be held back, by several at once."""

    def hold_reading(self, hold: bool, reason: object = None) -> None: ...


class PublishGate:
    """Keeps a topic's publishers to its rates: beyond them their connections are not read from until the buckets have
    recovered.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        clock: Clock,
        wheel: DelayWheel,
        readers: Callable[[], Iterable[PausableReader]],
    ) -> None:
        self._buckets, self._clock, self._wheel, self._readers = tuple(buckets), clock, wheel, readers
        self._held: dict[PausableReader, None] = {}
        self._closed = False
        self.closed_times = 0

    def spend(self, messages: int, size_bytes: int) -> None:
        """Takes a run, which was let in already, from every bucket; closes the gate where one is overdrawn."""
        for bucket in self._buckets:
            bucket.spend(messages, size_bytes)
        wait_s = self._wait_s()
        if wait_s > 0:
            if not self._closed:
                self._closed = True
                self.closed_times += 1
                self._wheel.wake_after(self, min(wait_s, LOOK_AGAIN_S))
            for reader in self._readers():
                self._hold(reader)

    def hold(self, reader: PausableReader) -> float:
        """Has a publisher wait that is none of the topic's producers, while the gate is closed. Returns for how many
        seconds.
        """
        if not self._closed:
            return 0.0
        self._hold(reader)
        return self._wait_s()

    def leave(self, reader: PausableReader) -> None:
        """A publisher that `hold` had wait does so no more."""
        self._held.pop(reader, None)

    def _hold(self, reader: PausableReader) -> None:
        if reader not in self._held:
            self._held[reader] = None
            reader.hold_reading(True, self)

    def _wait_s(self) -> float:
        now = self._clock.monotonic()
        for bucket in self._buckets:
            bucket.refill(now)
        return max(bucket.wait_s for bucket in self._buckets)

    def wake(self) -> None:
        if self._closed:
            wait_s = self._wait_s()
            if wait_s > 0:
                self._wheel.wake_after(self, min(wait_s, LOOK_AGAIN_S))
            else:
                self.open()

    def open(self) -> None:
        """Lets everybody go on: the buckets have recovered, or the gate is taken away."""
        held, self._held, self._closed = self._held, {}, False
        for reader in held:
            reader.hold_reading(False, self)
