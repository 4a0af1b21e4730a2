"""Tasks: the background work of one broker's storage, owned by whoever ends it.

Is: where ledger shells start coroutines that nobody awaits at once. Isn't: a place for per-entry work.
Invariants: no task is lost to the garbage collector; an error that its coroutine did not expect reaches the loop's exception handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_FEW = 16


class Tasks:
    """Started tasks, until they end or are cancelled together."""

    def __init__(self) -> None:
        self.few = asyncio.Semaphore(_FEW)
        """For work that very many ledgers may have at the same moment, as when a bookie goes: so much of it runs at once."""
        self.closing = 0
        """Ledgers that are closed just now because nothing was appended for a while."""
        self._running: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancels what still runs, and waits for it."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": "background work of the storage failed", "exception": error, "task": task}
            )
