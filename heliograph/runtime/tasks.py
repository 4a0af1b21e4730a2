"""Tasks that work as long as their object lives.

Is: how one is ended. Isn't: a group of tasks, or what a task does.
"""

from __future__ import annotations

import asyncio
from typing import Any


async def end(task: asyncio.Task[Any] | None) -> None:
    """Cancels it, and waits until it has ended; None: there is none. Raises what the task ended by before, where that was an error.

    Whoever is cancelled while it waits here hears of that, as everywhere.
    """
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
