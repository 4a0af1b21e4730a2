"""Offload: what runs beside the loop, how many may wait, and what it raises."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from heliograph.runtime.compute_thread import Offload, Overloaded


def test_offload_is_bounded() -> None:
    async def run() -> None:
        offload = Offload(waiting_max=2)
        first = [asyncio.ensure_future(offload.run(lambda: sum(range(1000)))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await offload.run(lambda: 1)
        assert await asyncio.gather(*first) == [499_500] * 2
        assert await offload.run(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await offload.run(lambda: 1 // 0)
        offload.close()

    asyncio.run(run())


class Held:
    """An offload whose thread waits for `go_on`; `made`: what it computed, in order."""

    def __init__(self) -> None:
        self.offload, self.go_on, self.made = Offload(), threading.Event(), list[str]()
        self.first = asyncio.ensure_future(self.offload.run(lambda: self.go_on.wait(60)))

    def ask(
        self, name: str, who: str, within_s: float = 60, wanted: Callable[[], bool] | None = None
    ) -> asyncio.Future[None]:
        work = self.offload.run(lambda: self.made.append(name), who=who, within_s=within_s, wanted=wanted)
        return asyncio.ensure_future(work)


def test_nobodys_second_call_goes_before_anothers_first_one() -> None:
    async def run() -> None:
        held = Held()
        await asyncio.sleep(0)
        asked = [held.ask(f"many {i}", "many") for i in range(4)] + [held.ask(f"few {i}", "few") for i in range(2)]
        await asyncio.sleep(0)
        held.go_on.set()
        await asyncio.gather(held.first, *asked)
        assert held.made == ["many 0", "few 0", "many 1", "few 1", "many 2", "many 3"]
        held.offload.close()

    asyncio.run(run())


def test_nobody_takes_all_places() -> None:
    async def run() -> None:
        held = Held()
        await asyncio.sleep(0)
        asked = {who: [held.ask(who, who) for _ in range(64)] for who in "abcd"}
        few = [held.ask(f"few {i}", "few") for i in range(20)]
        await asyncio.sleep(0)
        held.go_on.set()
        await asyncio.wait([*few, *(one for calls in asked.values() for one in calls)])
        refused = {
            who: sum(isinstance(one.exception(), Overloaded) for one in calls)
            for who, calls in {**asked, "few": few}.items()
        }
        assert refused["few"] == 20 - 12, "each has a fifth of 63 places, or one more"
        assert sum(refused.values()) == 64 * 4 + 20 - 63 and max(refused.values()) <= 64 - 12
        assert not isinstance(asked["a"][0].exception(), Overloaded), "whose turn comes last has to go"
        held.offload.close()

    asyncio.run(run())


def test_where_each_has_one_place_another_one_is_refused() -> None:
    async def run() -> None:
        held = Held()
        await asyncio.sleep(0)
        asked = [held.ask(f"{i}", f"{i}") for i in range(64)]
        await asyncio.sleep(0)
        assert isinstance(asked[63].exception(), Overloaded)
        asked[0].cancel()
        await asyncio.wait([asked[0]])
        asked.append(held.ask("next", "next"))
        held.go_on.set()
        await asyncio.wait(asked)
        assert sorted(held.made) == sorted([*(f"{i}" for i in range(1, 63)), "next"])
        held.offload.close()

    asyncio.run(run())


def test_what_nobody_waits_for_any_more_is_neither_computed_nor_kept() -> None:
    class Large:
        """What a call holds."""

    async def run() -> None:
        held, large = Held(), Large()
        await asyncio.sleep(0)
        kept = weakref.ref(large)
        late = asyncio.ensure_future(held.offload.run(partial(id, large), who="a", within_s=0))
        left, closed, stays = held.ask("left", "a"), held.ask("closed", "a", wanted=lambda: False), held.ask("b", "b")
        del large
        await asyncio.wait([late])
        assert isinstance(late.exception(), Overloaded)
        del late
        gc.collect()
        assert kept() is None, "though the thread is busy with another one"
        left.cancel()
        held.go_on.set()
        with pytest.raises(Overloaded):
            await closed
        await stays
        assert held.made == ["b"] and left.cancelled()
        held.offload.close()

    asyncio.run(run())


def test_what_waits_is_dropped_at_the_end() -> None:
    async def run() -> None:
        held = Held()
        await asyncio.sleep(0)
        waits = held.ask("waits", "a")
        await asyncio.sleep(0)
        held.offload.close()
        with pytest.raises(asyncio.CancelledError):
            await waits
        held.go_on.set()
        assert await held.first and not held.made

    asyncio.run(run())
