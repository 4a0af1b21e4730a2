"""What is ready on a broker runs once each, in its order; who fails takes nobody's turn."""

from __future__ import annotations

import asyncio
from typing import Any

from region_node.runtime.ready_queue import ReadyQueue


class Item:
    def __init__(self, queue: ReadyQueue, left: int, ran: list[Item], error: Exception | None = None) -> None:
        self.queued = False
        self._queue, self._left, self._ran, self._error = queue, left, ran, error

    def run_ready(self) -> None:
        self._ran.append(self)
        if self._error is not None:
            raise self._error
        self._left -= 1
        if self._left:
            self._queue.push(self)


def test_who_has_more_to_do_waits_for_the_others_and_who_fails_holds_nobody_up() -> None:
    async def main() -> None:
        loop, reported, ran = asyncio.get_running_loop(), list[dict[str, Any]](), list[Item]()
        loop.set_exception_handler(lambda _loop, context: reported.append(context))
        queue = ReadyQueue(loop.call_soon)
        twice, bad, once = Item(queue, 2, ran), Item(queue, 1, ran, ValueError("no")), Item(queue, 1, ran)
        for item in (bad, once, twice, bad):
            queue.push(item)
        for _ in range(4):
            await asyncio.sleep(0)
        assert ran == [bad, once, twice, twice] and not any(item.queued for item in ran)
        assert [str(context["exception"]) for context in reported] == ["no"]

    asyncio.run(main())
