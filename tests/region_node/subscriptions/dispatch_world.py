"""A subscription over a fake ledger, and consumers that note what they get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.run import Run
from region_node.runtime.logged_tasks import logged_tasks
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.delayed_delivery import DELAYED_MAX, DelayWheel
from region_node.subscriptions.subscription import Subscription
from tests.region_node.topics.fake_storage import FakeClock, FakeLedger


class Sink:
    """What one consumer got: (position, messages, redeliveries)."""

    def __init__(self) -> None:
        self.writable = True
        self.got: list[tuple[Position, int, int]] = []
        self.active: list[bool] = []
        self.closed = 0
        self.ack_sets: dict[Position, int] = {}

    def deliver(
        self,
        consumer: Consumer,
        ledger: int,
        first: int,
        run: Run,
        redeliveries: Sequence[int] | None,
        ack_sets: Mapping[int, int] | None = None,
    ) -> None:
        assert not consumer.busy
        self.ack_sets |= {(ledger, first + i): bits for i, bits in (ack_sets or {}).items()}
        for i in range(run.count):
            self.got.append(
                ((ledger, first + i), run.counts[i] if run.counts else 1, redeliveries[i] if redeliveries else 0)
            )

    def consumer_closed(self, consumer: Consumer) -> None:
        self.closed += 1

    def consumer_active(self, consumer: Consumer, active: bool) -> None:
        self.active.append(active)

    def reached_end(self, consumer: Consumer) -> None: ...


class World:
    def __init__(self, wheel: DelayWheel | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.tasks = logged_tasks()
        self.ledger = FakeLedger("t")
        self.cursor = self.ledger.add_cursor("s", BEFORE_ALL)
        self.subscription = Subscription(
            "s",
            self.ledger,
            self.cursor,
            ReadyQueue(loop.call_soon),
            BoundedReads(self.tasks, 2),
            durable=True,
            partition=-1,
            on_end=lambda: False,
            wheel=wheel,
        )
        self.ledger.wake_on_append(self.subscription.wake)
        self.sinks: dict[Consumer, Sink] = {}
        self.names = 0

    def append(self, count: int = 1, counts: list[int] | None = None, flags: list[int] | None = None) -> None:
        self.ledger.append_run(Run([b"x"] * count, [1] * count, counts=counts, flags=flags), lambda *_: None, None)

    def join(self, kind: SubscriptionType = SubscriptionType.SHARED, permits: int = 0, **fields: Any) -> Consumer:
        sink = Sink()
        self.names += 1
        consumer = Consumer(self.names, fields.pop("name", f"c{self.names}"), sink, **fields)
        self.subscription.add(consumer, kind)
        self.sinks[consumer] = sink
        if permits:
            self.subscription.flow(consumer, permits)
        return consumer

    async def settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    def entries(self, consumer: Consumer) -> list[int]:
        return [p[1] for p, _, _ in self.sinks[consumer].got]


def run(test: Callable[[World], Any]) -> None:
    async def main() -> None:
        world = World()
        await test(world)
        await world.tasks.close()

    asyncio.run(main())


class SetClock(FakeClock):
    """`ahead_s`: by what the wall clock was set to another time."""

    ahead_s = 0.0

    def wall_ms(self) -> int:
        return int((self.now + self.ahead_s) * 1000)


class Timers:
    """The loop's timers, by hand."""

    def __init__(self, delayed_max: int = DELAYED_MAX) -> None:
        self.clock = SetClock()
        self.clock.now = 1_000_000.0
        self.waiting: list[Timer] = []
        self.wheel = DelayWheel(self.call_later, self.clock, delayed_max)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        timer = Timer(self, self.clock.now + delay_s, action)
        self.waiting.append(timer)
        self.waiting.sort(key=lambda one: one.at)
        assert len(self.waiting) <= 2, "one timer a clock at a time"
        return timer

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def pass_ms(self, ms: float) -> None:
        end = self.clock.now + ms / 1000
        while self.waiting and self.waiting[0].at <= end:
            timer = self.waiting.pop(0)
            self.clock.now = max(self.clock.now, timer.at)
            timer.action()
        self.clock.now = end


class Timer:
    def __init__(self, timers: Timers, at: float, action: Callable[[], None]) -> None:
        self.timers, self.at, self.action = timers, at, action

    def cancel(self) -> None:
        self.timers.waiting.remove(self)
