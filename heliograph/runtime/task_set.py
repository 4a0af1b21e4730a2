"""TaskSet: the background tasks of one owner, and their end.

Is: where a shell starts coroutines that nobody awaits at once, and how they are ended together. Isn't: a place for work
that comes with every entry, or a limit of how much runs at once.
Invariants: no task is lost to the garbage collector; an error that its coroutine did not expect is told, never silent;
once closed, nothing of it runs any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from heliograph.model.errors import HeliographError

T = TypeVar("T")


class TaskSet:
    """Started tasks, until they end or are cancelled together.

    failed: the sentence for an error that nobody expected: it reaches the loop's exception handler, which logs it; in
    the simulator it ends the run. on_error: called with the error instead, where such a failure is an event of its
    owner's log.
    """

    __slots__ = ("_closed", "_failed", "_on_error", "_running")

    def __init__(
        self, failed: str = "background work failed", *, on_error: Callable[[BaseException], None] | None = None
    ) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}
        self._closed = False
        self._failed, self._on_error = failed, on_error

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts `work` in the next turn of the loop. After `close` the task is cancelled before its first step: who
        still hears of something while all ends may ask without looking.
        """
        task = asyncio.get_running_loop().create_task(work)
        if self._closed:
            task.cancel()
            return task
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def __len__(self) -> int:
        """How many run."""
        return len(self._running)

    async def close(self) -> None:
        """Cancels what still runs, and waits for it; the task that calls this goes on. Raises nothing that they
        raise.
        """
        self._closed = True
        await cancel_all(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._on_error is not None:
            self._on_error(error)
        else:
            task.get_loop().call_exception_handler({"message": self._failed, "exception": error, "task": task})


def report_error(error: Exception, what: str) -> None:
    """For who must go on whatever happens: it is told as that of a TaskSet is. what: the sentence."""
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})


def report_unexpected(error: Exception, what: str) -> None:
    """The same, but of errors of ours, of files, and of connections (HeliographError, OSError), which the caller sees
    to.
    """
    if not isinstance(error, HeliographError | OSError):
        report_error(error, what)


async def cancel_all(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancels them, and waits until all have ended; None: there is none. The task that calls this is left out.

    Raises nothing that they raise. Whoever is cancelled while it waits here hears of that, as everywhere.
    """
    this = asyncio.current_task()
    others = [task for task in tasks if task is not None and task is not this]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
    for task in others:
        if not task.cancelled():
            task.exception()  # asked for, so that nobody says that it never was
