"""SimLoop: an asyncio event loop on virtual time, whose callbacks belong to processes that can die.

Is: the clock (it jumps to the next timer when nothing is ready), the ready queue, and the lives of simulated processes.
Isn't: sockets (`network`), files (`disk`), or the machine that puts them together (`simulation`, which is what most
tests want).

    sim = Simulation(seed=7)                     # geo_tests.sim.simulation
    a = sim.machine("us-a", zone="us")
    async def main() -> None:
        a.start(lambda: serve())                 # a task, and everything it schedules, belongs to this life of "us-a"
        await asyncio.sleep(3600)                # costs nothing
        a.kill()                                 # none of its callbacks, timers, or tasks runs again
    sim.run(main(), limit_s=7200)

How a crash works. Every handle of asyncio carries a `contextvars.Context`; a process's main coroutine is started in a
context where `LIFE` is set, and whatever it schedules, awaits, or creates inherits that. Before a handle runs, the loop
looks at its life and drops it where that has ended.
A process that is stopped (SIGSTOP) is passed over in the same way, and what it was to run waits until it goes on, while
its clock does not.

Nothing of a dead process runs: no `finally`, no `except CancelledError`. Its pending tasks are kept (a collected
coroutine would run its `finally` blocks) until the loop is closed: only then do those blocks run, where every call into
the loop, the network, and the disk is without effect.

Invariants: the same seed gives the same order of callbacks (tasks hash by number, so that asyncio's own sets iterate in
creation order; the collector is off while the loop runs); an exception that nobody handles ends the run, unless its
process is dead; time never goes backwards; a million callbacks at one instant, or a wait that nothing can end, is a
failure.
Source: the idea is FoundationDB's simulator; asyncio/base_events.py for the parts that are replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from geo_tests.sim.network import Network, SimServer

T = TypeVar("T")

START_S = 1000.0


class SimFailure(AssertionError):
    """The run failed: an exception that nobody handled, or a wait that never ends."""


class ProcessDied(BaseException):
    """Raised inside a process by the operation at which it dies, so that no further line of it runs. Never an
    `Exception`.
    """


class Life:
    """One life of one process: from its start to its end or crash. A restart is another life."""

    __slots__ = ("__weakref__", "alive", "held", "host", "number")

    def __init__(self, host: str, number: int) -> None:
        self.host, self.number, self.alive = host, number, True
        self.held: list[asyncio.Handle] | None = None
        """While the process is stopped: what it would have run, in order."""

    def __repr__(self) -> str:
        return f"{self.host}#{self.number}{'' if self.alive else ' (dead)'}"

    def context(self) -> contextvars.Context:
        """A fresh context in which everything belongs to this life."""
        context = contextvars.copy_context()
        context.run(LIFE.set, self)
        return context


LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("LIFE", default=None)
"""The life to which the running code belongs; None is the test itself, which never dies."""


class _Handle(asyncio.Handle):
    """What asyncio's is when nobody debugs, without what only debuggers ask for: a run makes some thousands of them for
    each virtual second.
    """

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: Sequence[Any], context: contextvars.Context | None = None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback, self._args, self._cancelled = callback, args, False

    def cancel(self) -> None:
        self._cancelled, self._callback, self._args = True, None, None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._callback!r} {self._args!r}>"


class _TimerHandle(asyncio.TimerHandle):
    """The same, at a time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        context: contextvars.Context | None = None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback, self._args, self._cancelled, self._when = callback, args, False, when

    def cancel(self) -> None:
        """The loop drops it when its time comes."""
        self._cancelled, self._callback, self._args = True, None, None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._when} {self._callback!r} {self._args!r}>"


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number, which it has before asyncio enters it in its set of all tasks."""

    number = 0
    life: Life | None = None

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    """See the module. `network` is set by `geo_tests.sim.network.Network`."""

    network: Network

    def __init__(self, *, callbacks_max: int = 1_000_000) -> None:
        """callbacks_max: at one instant; beyond it time stands still, and the run fails."""
        super().__init__()
        self._callbacks_max = callbacks_max
        self.failures: list[tuple[str, BaseException | None]] = []
        self.callbacks_run = 0
        self.now = START_S
        """Seconds; what `time` returns."""
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign,assignment]
        self._limit = float("inf")
        self._dead_tasks: list[asyncio.Task[Any]] = []
        self._task_count = 0
        self._closing = False
        self._current: asyncio.Handle | None = None
        self.set_task_factory(self._make_task)

    # -- for tests ------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T], *, limit_s: float = 600.0) -> T:
        """Runs `main` to its end, at most `limit_s` virtual seconds. Raises SimFailure, or what `main` raised."""
        self._limit = self.now + limit_s
        task = self.create_task(main)
        task.add_done_callback(lambda _: self.stop())
        collecting = gc.isenabled()
        gc.disable()
        try:
            self.run_forever()
        finally:
            if collecting:
                gc.enable()
        if self.failures:
            text, cause = self.failures[0]
            task.cancel()
            raise SimFailure(text) from cause
        return task.result()

    def end(self, life: Life) -> None:
        """`life` is over: nothing of it runs any more."""
        if life.alive:
            life.alive, life.held = False, None
            known: Any = asyncio.tasks._all_tasks  # type: ignore[attr-defined]
            for reference in known.data.copy():  # one step: a collection takes entries out of it
                if isinstance(task := reference(), _Task) and task.life is life:
                    self._dead_tasks.append(task)

    def stop_life(self, life: Life) -> None:
        """SIGSTOP: nothing of it runs until `go_on`; time goes on."""
        if life.alive and life.held is None:
            life.held = []

    def go_on(self, life: Life) -> None:
        """SIGCONT: everything that has become due meanwhile runs now."""
        if life.held is not None:
            self._ready.extend(life.held)  # type: ignore[attr-defined]
            life.held = None

    def fail(self, text: str, cause: BaseException | None = None) -> None:
        """Ends the run with SimFailure."""
        self.failures.append((text, cause))
        self.stop()

    def close(self) -> None:
        """Drops everything that still waits; nothing of it runs."""
        if self._closing:
            return
        self._closing = True
        pending = [*self._dead_tasks, *asyncio.all_tasks(self)]
        for task in pending:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self._dead_tasks.clear()
        for task in sorted(pending, key=hash):
            _discard(task.get_coro())
        super().close()

    # -- what asyncio calls ---------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def _make_task(
        self, _loop: asyncio.AbstractEventLoop, coro: Any, context: contextvars.Context | None = None
    ) -> _Task:
        life = LIFE.get() if context is None else context.get(LIFE)
        self._task_count += 1
        task: _Task = _Task.__new__(_Task)
        task.number, task.life = self._task_count, life
        task.__init__(coro, loop=self, context=context)  # type: ignore[misc]
        return task

    def create_task(self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None) -> _Task:  # type: ignore[override]
        task = self._make_task(self, coro, context)
        if name is not None:
            task.set_name(name)
        return task

    get_debug = staticmethod(bool)  # type: ignore[assignment]
    """Nobody debugs, which each task and future asks."""

    def _run_once(self) -> None:
        """Runs instant after instant until the loop is to stop: to come back to asyncio for each would cost more than
        most callbacks do.
        """
        ready = self._ready  # type: ignore[attr-defined]
        scheduled, pop = self._scheduled, heapq.heappop  # type: ignore[attr-defined]
        life_of = LIFE
        budget = self._callbacks_max
        while not self._stopping:  # type: ignore[attr-defined]
            if not ready:  # to the next timer's time; what is due then is ready
                while scheduled:
                    when, handle = scheduled[0]
                    if not handle._cancelled and ((life := handle._context.get(life_of)) is None or life.alive):
                        break
                    pop(scheduled)
                else:
                    self.fail(
                        f"at {self.now - START_S:.3f} s: everything waits and nothing can happen any more"
                        f"{self._stacks()}"
                    )
                    continue
                if when > self._limit:
                    self.fail(f"not finished at the virtual limit, {self._limit - START_S:.3f} s{self._stacks()}")
                    continue
                if when > self.now:
                    self.now = when
                now = self.now
                while scheduled and scheduled[0][0] <= now:
                    ready.append(pop(scheduled)[1])
                budget = self._callbacks_max
                continue
            handle = ready.popleft()
            if handle._cancelled:
                continue
            life = handle._context.get(life_of)
            if life is not None and (life.held is not None or not life.alive):
                if life.alive:
                    life.held.append(handle)
                continue
            self._current = handle
            self.callbacks_run += 1
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler(
                    {"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle}
                )
            budget -= 1
            if not budget:
                self.fail(
                    f"at {self.now - START_S:.3f} s: {self._callbacks_max} callbacks and time stands still; "
                    f"last {handle!r}{self._stacks(60)}"
                )
        self._current = handle = None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody handled fails the run, unless it happened to a dead process or after the end."""
        error = context.get("exception")
        task = context.get("task") or context.get("future")
        life = (
            task.life
            if isinstance(task, _Task)
            else LIFE.get()
            if self._current is None
            else self._current._context.get(LIFE)
        )  # type: ignore[attr-defined]
        if self._closing or isinstance(error, ProcessDied) or (life is not None and not life.alive):
            return
        what = context.get("task") or context.get("future") or context.get("handle")
        self.fail(f"at {self.now - START_S:.3f} s in {life}: {context.get('message')}: {error!r} ({what!r})", error)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:  # type: ignore[override]
        handle = _Handle(callback, args, context)
        if not self._closing:
            self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:  # type: ignore[override]
        handle = _TimerHandle(when, callback, args, context)
        if not self._closing:
            heapq.heappush(self._scheduled, (when, handle))  # type: ignore[attr-defined]
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:  # type: ignore[override]
        when = self.now + delay
        handle = _TimerHandle(when, callback, args, context)
        if not self._closing:
            heapq.heappush(self._scheduled, (when, handle))  # type: ignore[attr-defined]
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("there is no selector")

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Runs `func` here and now."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **_: Any
    ) -> SimServer:  # type: ignore[override]
        return self.network.listen(protocol_factory, host, port or 0)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if isinstance(host, str):
            host.encode("idna")  # a real loop raises UnicodeError here, too
        return await self.network.connect(protocol_factory, host, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """A library that makes sockets of its own, as for HTTP, finds nobody."""
        raise ConnectionRefusedError(f"{address} is not in this network")

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", (host, port))]

    def _stacks(self, limit: int = 12) -> str:
        """Where the living tasks wait."""
        lines: Sequence[asyncio.Task[Any]] = sorted(
            (t for t in asyncio.all_tasks(self) if isinstance(t, _Task)), key=hash
        )
        text = ""
        for task in lines[:limit]:
            frames = [f"{f.f_code.co_qualname}:{f.f_lineno}" for f in task.get_stack()]
            text += f"\n  {task.get_name()}: {' < '.join(reversed(frames)) or 'no frame'}"
        return text


def run_alone(main: Coroutine[Any, Any, T], *, limit_s: float = 600.0) -> T:
    """Runs `main` on a loop of its own, which is the current one meanwhile. Raises as `SimLoop.run`."""
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run(main, limit_s=limit_s)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def collect() -> None:
    """Frees what a run has left, for who makes many of them.

    What is there after the first one (modules, most of all) stays, and is not looked at again: that would take longer
    than all else.
    """
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()


def _discard(coro: Any) -> None:
    """Ends a coroutine, whatever its `finally` blocks still wait for: left to the collector, it would complain on
    stderr.
    """
    for _ in range(100):
        if getattr(coro, "cr_frame", None) is None:
            return
        try:
            coro.close()
        except BaseException:
            continue
