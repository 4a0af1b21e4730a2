"""A task that runs as long as its broker: one that ends by an error nobody expected is told, never silent."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def lasting(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """what: for the message. An error reaches the loop's handler, which logs it; in the simulator it ends the run."""
    loop = asyncio.get_running_loop()

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            loop.call_exception_handler({"message": f"{what} has ended", "exception": error, "task": task})

    task = loop.create_task(work)
    task.add_done_callback(ended)
    return task
