"""Delayed messages: which entries wait for their time, and the wheels of timers of the whole broker.

Is: positions by due time in flat arrays (24 bytes each), the next time that anything is due. Isn't: persistent: an
entry that waits is not acknowledged, so that whoever dispatches the subscription next finds it again.
Invariants: nothing is due before its time, and at most one slot after, by a wall clock that runs, or, for what waits
for so long, by the monotonic one, whatever the other is set to; all subscriptions of
a broker together hold `DELAYED_MAX` entries at most, and no subscription, and no tenant, so many that nothing is left
for others (whose share is used up reads no further until some are due); two timers of the loop, whatever waits: for a
time of day, and for so long.

Far times share a bucket of a minute, which is dealt out to slots when it comes near: so the number of buckets is
bounded too.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.runtime.clock import Clock
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Run

SLOT_MS = 100
MINUTE_MS = 60_000
DELAYED_MAX = 4_000_000
ALONE, TOGETHER = 1, 3
"""A subscription, and all of a tenant's, hold at most so many times what is free: by themselves half, and three
quarters, of `DELAYED_MAX`; with n others as greedy as they are less each, and some is always free for who comes next.
"""
DEAL_MAX = 20_000
LATEST_MS = 1 << 43
LOOK_AGAIN_S = 60.0
"""No timer of the loop is set for longer: clocks on the wall are set anew, and machines sleep."""
_GONE_MAX = 64
"""Slots that are gone stay in the heap until they are so many more than what is there."""


class Sleeper(Protocol):
    def wake(self) -> None: ...


class DelayTimer(Protocol):
    def cancel(self) -> None: ...


DELAYED_ENTRY_BYTES = 24
"""What one entry that waits takes: three numbers."""


class TimerWheel:
    """Wakes sleepers at times of one clock, `now_ms`, with one timer of the loop."""

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], DelayTimer], now_ms: Callable[[], int]
    ) -> None:
        self._call_later, self.now_ms = call_later, now_ms
        self._slots: dict[int, dict[Sleeper, None]] = {}
        self._armed: dict[Sleeper, set[int]] = {}
        """Sleeper -> the slots that it is in."""
        self._heap: list[int] = []
        """All slots, and some that are gone."""
        self._timer: DelayTimer | None = None
        self._timer_slot = 0

    def arm(self, sleeper: Sleeper, at_ms: int) -> None:
        """`sleeper.wake()` is called once at `at_ms` or up to a slot later."""
        slot = -(-at_ms // SLOT_MS)
        if slot not in self._slots:
            self._slots[slot] = {}
            heappush(self._heap, slot)
        self._slots[slot][sleeper] = None
        self._armed.setdefault(sleeper, set()).add(slot)
        if self._timer is None or slot < self._timer_slot:
            self._start()

    def forget(self, sleeper: Sleeper) -> None:
        """Nothing wakes it any more, and it is held no longer."""
        for slot in self._armed.pop(sleeper, ()):
            self._slots[slot].pop(sleeper)
            if not self._slots[slot]:
                del self._slots[slot]
        if not self._slots:
            self.close()
        elif len(self._heap) > 2 * len(self._slots) + _GONE_MAX:
            self._heap = list(self._slots)
            heapify(self._heap)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = self._heap[0]
        wait_s = (self._timer_slot * SLOT_MS - self.now_ms()) / 1000
        self._timer = self._call_later(min(max(0.001, wait_s), LOOK_AGAIN_S), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self.now_ms()
        while self._heap and self._heap[0] * SLOT_MS <= now:
            slot = heappop(self._heap)
            woken = self._slots.pop(slot, ())
            for sleeper in woken:
                self._armed[sleeper].remove(slot)
                if not self._armed[sleeper]:
                    del self._armed[sleeper]
            for sleeper in woken:
                sleeper.wake()
        if self._heap and self._timer is None:
            self._start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots, self._armed, self._heap = {}, {}, []


class DelayWheel:
    """`held`: entries that wait, of all subscriptions of the broker. delayed_max: how many may."""

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], DelayTimer],
        clock: Clock,
        delayed_max: int = DELAYED_MAX,
    ) -> None:
        self._delayed_max = delayed_max
        self.held = 0
        self._shares: dict[str, WheelShare] = {}
        self._times = TimerWheel(call_later, clock.wall_ms)
        self._pauses = TimerWheel(call_later, lambda: int(clock.monotonic() * 1000))
        self.arm, self.forget = self._times.arm, self._times.forget

    @property
    def now_ms(self) -> int:
        return self._times.now_ms()

    def full(self, count: int, together: int = 0) -> bool:
        """Whether a subscription that holds `count`, of a tenant that holds `together`, may take no more."""
        free = self._delayed_max - self.held
        return count >= ALONE * free or together >= TOGETHER * free

    def hold(self, more: int) -> None:
        self.held += more

    @property
    def pauses(self) -> Pauses:
        """The same room, for what waits for so long, and not for a time of day."""
        return self.pauses_of(self)

    def pauses_of(self, room: Wheel) -> Pauses:
        return Pauses(room, self._pauses)

    def of(self, tenant: str) -> WheelShare:
        """As the tenant's subscriptions use it."""
        if (found := self._shares.get(tenant)) is None:
            found = self._shares[tenant] = WheelShare(self)
        return found

    def wake_after(self, sleeper: Sleeper, delay_s: float) -> None:
        """`sleeper.wake()` is called once after that, or up to a slot later, whatever the wall clock is set to."""
        self._pauses.arm(sleeper, self._pauses.now_ms() + math.ceil(delay_s * 1000))

    def close(self) -> None:
        self._times.close()
        self._pauses.close()


class WheelShare:
    """A tenant's part of it. `held`: what its subscriptions hold."""

    __slots__ = ("_wheel", "arm", "forget", "held")

    def __init__(self, wheel: DelayWheel) -> None:
        self._wheel, self.arm, self.forget, self.held = wheel, wheel.arm, wheel.forget, 0

    @property
    def now_ms(self) -> int:
        return self._wheel.now_ms

    @property
    def pauses(self) -> Pauses:
        return self._wheel.pauses_of(self)

    def full(self, count: int) -> bool:
        return self._wheel.full(count, self.held)

    def hold(self, more: int) -> None:
        self.held += more
        self._wheel.hold(more)


Wheel = DelayWheel | WheelShare


class Pauses:
    """A wheel's room, by the monotonic clock."""

    __slots__ = ("arm", "forget", "full", "hold", "now")

    def __init__(self, room: Wheel, timers: TimerWheel) -> None:
        self.full, self.hold, self.arm, self.forget, self.now = (
            room.full,
            room.hold,
            timers.arm,
            timers.forget,
            timers.now_ms,
        )

    @property
    def now_ms(self) -> int:
        return self.now()


class Delayed:
    """Holds the entries of one subscription that wait for their time. `count`: how many. `sleeper` is woken when some
    are due; it may wait in the wheel for something else, too.
    """

    def __init__(self, wheel: Wheel | Pauses, sleeper: Sleeper) -> None:
        """wheel: times are by its clock."""
        self.count = 0
        self._wheel, self._sleeper = wheel, sleeper
        self._slots: dict[int, array[int]] = {}
        """Slot -> ledger, entry, slot << 16 | hash, one entry behind another; so are the minutes."""
        self._near: list[int] = []
        self._minutes: dict[int, array[int]] = {}
        self._far: list[int] = []

    def wake(self) -> None:
        self._sleeper.wake()

    def add(self, position: Position, at_ms: int, hashed: int = 0) -> None:
        """`hashed`: given back with it, 0 to 65535."""
        self.count += 1
        self._wheel.hold(1)
        self._put(*position, -(-min(at_ms, LATEST_MS) // SLOT_MS) << 16 | hashed, self._wheel.now_ms)

    def _put(self, ledger: int, entry: int, slot_and_hash: int, now_ms: int) -> None:
        slot = slot_and_hash >> 16
        minute = slot * SLOT_MS // MINUTE_MS
        if (minute - 1) * MINUTE_MS > now_ms:
            bucket = self._minutes.get(minute)
            if bucket is None:
                bucket = self._minutes[minute] = array("q")
                heappush(self._far, minute)
                self._wheel.arm(self, (minute - 1) * MINUTE_MS)
        else:
            bucket = self._slots.get(slot)
            if bucket is None:
                bucket = self._slots[slot] = array("q")
                heappush(self._near, slot)
                self._wheel.arm(self, slot * SLOT_MS)
        bucket.extend((ledger, entry, slot_and_hash))

    def due(self, now_ms: int, count_max: int, deal_max: int = DEAL_MAX) -> list[tuple[Position, int]]:
        """Takes out up to `count_max` entries whose time has come: (position, hash). Fewer: nothing more is due, or the
        sleeper is woken again. deal_max: so many of a minute that is near get their slots at once.
        """
        self._deal(now_ms, deal_max)
        out: list[tuple[Position, int]] = []
        while self._near and self._near[0] * SLOT_MS <= now_ms and len(out) < count_max:
            bucket = self._slots[self._near[0]]
            some = 3 * (count_max - len(out))
            taken = bucket[:some]
            del bucket[:some]
            if not bucket:
                del self._slots[heappop(self._near)]
            out += [((taken[at], taken[at + 1]), taken[at + 2] & 0xFFFF) for at in range(0, len(taken), 3)]
        while (
            self._far and (self._far[0] + 1) * MINUTE_MS <= now_ms and len(out) < count_max
        ):  # nobody took anything for a while
            taken = self._taken(count_max - len(out))
            out += [((taken[at], taken[at + 1]), taken[at + 2] & 0xFFFF) for at in range(0, len(taken), 3)]
        if self._far:
            self._wheel.arm(self, max(now_ms, (self._far[0] - 1) * MINUTE_MS))
        if self._near and self._near[0] * SLOT_MS > now_ms:  # it may have been woken before the clock was set back
            self._wheel.arm(self, self._near[0] * SLOT_MS)
        self.count -= len(out)
        self._wheel.hold(-len(out))
        return out

    def _deal(self, now_ms: int, left: int) -> None:
        """Entries of a minute that is near get their slots: `left` of them at once, the others in the next pass."""
        while left and self._far and (self._far[0] - 1) * MINUTE_MS <= now_ms < (self._far[0] + 1) * MINUTE_MS:
            taken = self._taken(left)
            left -= len(taken) // 3
            for at in range(0, len(taken), 3):
                self._put(taken[at], taken[at + 1], taken[at + 2], now_ms)

    def _taken(self, count_max: int) -> array[int]:
        """From the nearest minute, which goes when it is empty."""
        bucket = self._minutes[self._far[0]]
        taken = bucket[-3 * count_max :]
        del bucket[-3 * count_max :]
        if not bucket:
            del self._minutes[heappop(self._far)]
        return taken

    def clear(self) -> None:
        self._wheel.hold(-self.count)
        self.count = 0
        self._slots, self._near, self._minutes, self._far = {}, [], {}, []
        self._wheel.forget(self)


_DELIVER_AT = b"\x98\x01"
"""The tag of `deliver_at_time` in an entry's metadata; where these bytes are found, the metadata is decoded to be
sure.
"""
_SMALL = 256
_SIZE = struct.Struct(">I").unpack_from


def delayed_entries(run: Run, now_ms: int) -> list[tuple[int, int]]:
    """(index, due time) of the entries that must wait, in order."""
    if run.body is not None and run.size_bytes < _SMALL * run.count and _DELIVER_AT not in bytes(run.body):
        return []
    out: list[tuple[int, int]] = []
    for index, part in enumerate(run.parts):
        at = 10 if part[0] == 14 else 4  # a checksum, or no metadata of 200 MB
        if _DELIVER_AT in bytes(part[at : at + _SIZE(part, at - 4)[0]]):
            try:
                metadata, _ = entry_metadata(part)
            except CorruptData:
                continue
            if metadata.deliver_at_time > now_ms:
                out.append((index, metadata.deliver_at_time))
    return out
