"""One wheel for all links: what fails in one keeps no other from its time."""

from __future__ import annotations

import asyncio
from typing import Any

from heliograph.model.errors import LinkError
from replicator.links.timer_wheel import Timers


def test_a_timer_that_fails_is_told_and_those_behind_it_come() -> None:
    async def test() -> None:
        told: list[Any] = []
        loop, called, over = asyncio.get_running_loop(), list[str](), asyncio.Event()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        timers = Timers(loop)

        def fail() -> None:
            raise LinkError("refused", "nobody expected this")

        timers.after(0.0, fail)
        timers.after(0.0, lambda: called.append("at the same time"))
        timers.after(0.001, over.set)
        async with asyncio.timeout(10):
            await over.wait()
        assert called == ["at the same time"] and [str(error) for error in told] == ["nobody expected this"]

    asyncio.run(test())
