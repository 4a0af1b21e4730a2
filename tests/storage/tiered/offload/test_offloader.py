"""Whose offload policies a tick asks: everybody's, or of very many topics the next ones, each once in a round."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from heliograph.model.errors import CorruptData
from heliograph.runtime.clock import CautiousClock
from heliograph.runtime.recent_latencies import Recent
from heliograph.runtime.task_set import TaskSet
from storage.tiered.offload.object_resealing import ObjectResealing
from storage.tiered.offload.offloader import _TOPICS_A_TICK, OffloadStatus, Tiering
from storage.tiered.tiered_settings import TieredSettings
from tests.region_node.topics.fake_storage import FakeClock


def made(opened: list[Any], settings: TieredSettings | None = None, context: Any = None, lender: Any = None) -> Tiering:
    nothing: Any = None
    return Tiering(
        region="us",
        context=context,
        stores=nothing,
        opened=lambda: opened,
        policy=nothing,
        describe=nothing,
        collects=lambda: False,
        clock=CautiousClock(FakeClock()),
        settings=settings or TieredSettings(),
        lender=lender,
    )


def test_a_tick_costs_no_more_however_many_topics_are_open() -> None:
    opened: list[Any] = [SimpleNamespace(topic=f"t{number}") for number in range(2 * _TOPICS_A_TICK + 700)]
    tiering = made(opened)
    for _ in range(2):
        turns = [tiering._next_topics() for _ in range(3)]
        assert sorted(map(len, turns)) == [700, _TOPICS_A_TICK, _TOPICS_A_TICK]
        assert sorted(ledger.topic for turn in turns for ledger in turn) == sorted(ledger.topic for ledger in opened)
    tiering._next_topics()
    del opened[_TOPICS_A_TICK:]
    assert [len(tiering._next_topics()) for _ in range(2)] == [_TOPICS_A_TICK, _TOPICS_A_TICK], "all of them, each time"


def test_a_topic_that_cannot_be_looked_at_is_told_of_and_the_others_have_their_turn() -> None:
    asked: list[str] = []

    class Ledger:
        failed = None

        def __init__(self, topic: str, error: Exception | None) -> None:
            self.topic, self.error = topic, error

        def unsettled(self) -> list[Any]:
            asked.append(self.topic)
            if self.error is not None:
                raise self.error
            return []

    damaged, odd = Ledger("damaged", CorruptData("page 7 cannot be read")), Ledger("odd", ZeroDivisionError("by zero"))
    opened: list[Any] = [damaged, odd, Ledger("whole", None)]
    tiering = made(opened)
    asyncio.run(tiering._tick_in_slices())
    assert asked == ["damaged", "odd", "whole"]
    assert tiering.failures() == {"damaged": 1, "odd": 1}
    assert (tiering.status("damaged").state, tiering.status("damaged").error) == ("ERROR", "page 7 cannot be read")
    tiering.tick()
    assert asked[3:] == ["whole"], "the others a while later"
    damaged.error = None
    tiering.status("damaged").not_before = 0.0
    tiering.tick()
    assert tiering.failures() == {"odd": 1} and tiering.status("damaged").error == ""


def test_nothing_is_kept_of_topics_that_are_other_brokers_by_now() -> None:
    opened: list[Any] = [SimpleNamespace(topic="stays"), SimpleNamespace(topic="goes")]
    tiering = made(opened)
    for topic in ("stays", "goes"):
        tiering._status[topic], tiering.read_ms[topic] = OffloadStatus(), Recent()
    tiering.read_ms[""] = Recent()  # of topics beyond those that are told apart
    del opened[1]
    tiering._next_topics()
    assert set(tiering.statuses()) == {"stays"} and set(tiering.read_ms) == {"stays", ""}


def test_so_many_topics_are_offloaded_at_the_same_time() -> None:
    async def run() -> None:
        tiering = made([], TieredSettings(uploads_max=2))
        now = most = 0
        room = asyncio.Event()

        async def steps(*_: Any) -> None:
            nonlocal now, most
            now, most = now + 1, max(most, now + 1)
            await room.wait()
            now -= 1

        running = [asyncio.ensure_future(tiering._run(f"t{number}", steps, OffloadStatus())) for number in range(5)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert (now, most) == (2, 2)
        room.set()
        await asyncio.gather(*running)
        assert (now, most) == (0, 2)

    asyncio.run(run())


def test_a_tick_looks_at_so_many_topics_that_nobody_has_loaded() -> None:
    context: Any = SimpleNamespace(meta=None)
    for count in (0, 7):
        tiering = made([], TieredSettings(sweep_topics=count), context=context, lender=context)
        assert (tiering.sweep._topics_a_step if tiering.sweep is not None else 0) == count


def test_an_error_that_nobody_expected_ends_a_topics_steps_as_any_other_does() -> None:
    async def run() -> None:
        told = list[BaseException]()
        nothing: Any = None
        tiering = made([], context=SimpleNamespace(tasks=TaskSet(on_error=told.append)))
        anew = ObjectResealing(tiering, nothing, nothing, TieredSettings(), nothing)

        async def steps(_: OffloadStatus) -> None:
            assert anew.busy("t")
            raise ValueError("odd")

        ledger: Any = SimpleNamespace(topic="t", failed=None)
        assert tiering.begin(ledger, steps, put_off=True)
        await tiering.idle()
        await asyncio.sleep(0)
        assert not anew.busy("t") and tiering.status("t").state == "ERROR" and tiering.status("t").error == "odd"
        assert [str(error) for error in told] == ["odd"]
        assert not tiering.begin(ledger, steps, put_off=True), "not again at once"

    asyncio.run(run())
