"""Processes: the children of one supervisor, from their start to their end.

Is: starting them, restarting what dies (with backoff, unless told otherwise), ending them in order. Isn't: which ones
there are, or what they are told (`supervisor`).
Invariants: what was started here is ended here, by its process object, and nothing else is; a child that is *held*
stays down until somebody wants it up; a start that is cancelled leaves no process that nobody knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.model.errors import ConfigError, HeliographError
from heliograph.runtime.task_set import TaskSet
from region_node.instance.nodes.forks import Forked, ForkServer
from region_node.instance.plan.layout import NodePlan

READY_S = 240.0
"""Longer than a process itself waits for what it needs: many that start at once, on few cores, take their time."""
STOP_S = 20.0
_BACKOFF_S = (0.2, 1.0, 2.0, 5.0, 10.0)
_STEADY_S = 30.0
_REFUSED = 2
"""The exit code of a process that has said why it does not start."""
_ENDS = (("broker",), ("bookie",), ("meta", "config"), ("toxiproxy",))
"""By first role: brokers first, so that they close their ledgers."""


@dataclass(slots=True)
class Child:
    """One process: what it is, and how it is doing."""

    name: str
    region: str
    roles: list[str]
    command: list[str]
    ports: dict[str, int]
    process: asyncio.subprocess.Process | Forked | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    commanded: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by one command after another; whoever gave it may be gone."""
    revived: Callable[[], Awaitable[None]] | None = None
    """Called after it has died and was started again."""
    vital: bool = True
    """The instance does not start without it. Once all have started, or of one that joined later: nothing depends on
    it.
    """
    held: bool = False
    """Not restarted when it dies: somebody wants it down."""
    killed: bool = False
    """By a command: none that was under way by then starts it again."""
    kills: int = 0
    """Commands to kill it, so far."""
    gone: bool = False
    """It was ended for good: no command that is under way starts it again."""
    deaths: int = 0
    restarts: int = 0
    started_at: float = 0.0

    @property
    def unwanted(self) -> bool:
        return self.held or self.killed or self.gone

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.returncode is None else None

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


def interpreter_of(node: NodePlan, children: Iterable[Child], own: str) -> str:
    """Which one starts a node's process: after an upgrade its own from before, else that of its region's processes,
    else of all. own: the supervisor's.

    Where they differ, in the middle of an upgrade, those of its role count, and the supervisor's own where these
    differ, too.
    """
    others = [child for child in children if child.region]  # no proxy of links
    near = [child for child in others if child.region == node.region]
    same = [child for child in near if child.name == node.name]
    alike = [child for child in near if list(child.roles) == list(node.roles)]
    for group in (same, near, alike, others):
        found = {child.command[0] for child in group}
        if len(found) == 1:
            return found.pop()
    return own


class Processes:
    """`children`: by name, in the order of their start."""

    def __init__(
        self, data: Path, stopping: asyncio.Event, *, restart: bool, on_fatal: Callable[[ConfigError], None]
    ) -> None:
        """stopping: once it is set, nothing is started again. on_fatal: told why the instance cannot start."""
        self._data, self._stopping, self._restart, self._on_fatal = data, stopping, restart, on_fatal
        self.children: dict[str, Child] = {}
        self._environment = {"GRPC_VERBOSITY": "ERROR", **os.environ}
        self._forks = ForkServer(data, self._environment)
        self._watchers = TaskSet("the watch over a process has ended")

    def find(self, name: str) -> Child:
        try:
            return self.children[name]
        except KeyError as error:
            raise ConfigError(f"no process {name!r}; there are {', '.join(self.children)}") from error

    async def spawn(self, child: Child) -> None:
        """Starts it where it does not run; `child.ready` is set once it says so."""
        async with child.starting:  # its watcher and somebody's command may both want it up
            if child.pid is not None or child.killed or child.gone or self._stopping.is_set():
                return
            child.ready.clear()
            child.started_at = time.monotonic()
            spawning = asyncio.ensure_future(self._begin(child))
            try:
                child.process = await asyncio.shield(spawning)
            except (
                asyncio.CancelledError
            ):  # never in the middle of it: the process would be nobody's, and the loop would wait for it for ever
                child.process = await spawning
                raise
            self._watchers.spawn(self._watch(child, child.process))

    async def _begin(self, child: Child) -> asyncio.subprocess.Process | Forked:
        """Forked where that can be, else as a program. Raises OSError."""
        with self.log_of(child).open("ab") as log:
            if self._forks.takes(child.command):
                try:
                    return await self._forks.fork(child.command, log.fileno())
                except OSError as error:
                    say("process.not_forked", name=child.name, error=str(error))
            return await asyncio.create_subprocess_exec(
                *child.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd=self._data,
                env=self._environment,
            )

    def all_started(self) -> None:
        """From here on each start is a program's: a release may have been installed meanwhile."""
        self._forks.finish()

    async def start(self, child: Child) -> None:
        """One that somebody wanted down; returns once it is ready. Raises ConfigError with why it is not, OSError."""
        async with self._after_earlier(child):
            child.held = child.killed = False
            if child.pid is None:
                child.restarts += 1
                await self.spawn(child)
                if child.revived is not None:
                    await child.revived()
                await self.until_ready(child)

    async def restart(self, child: Child, python: str) -> None:
        """Drains it, waits until it has ended, and starts it again. python: another interpreter, from now on.

        Raises ConfigError with why it is not ready, OSError. Another interpreter has one try: a process that it does
        not start is started by the one from before again.
        """
        async with self._after_earlier(child):
            await self._restart_now(child, python)

    @contextlib.asynccontextmanager
    async def _after_earlier(self, child: Child) -> AsyncIterator[None]:
        """Behind the commands that were given before. Raises ConfigError where it was killed meanwhile: the kill is the
        later command, and stands.
        """
        kills = child.kills
        async with child.commanded:
            if child.kills != kills:
                raise ConfigError(
                    f"{child.name} was killed while this command waited for an earlier one; it stays down: give the "
                    "command again to start it"
                )
            yield

    async def _restart_now(self, child: Child, python: str) -> None:
        before, child.held, child.killed = child.command[0], True, False
        other = python not in ("", before)
        try:
            await self._drain(child)
            child.command[0] = python or before
            child.restarts += 1
            await self.spawn(child)
            child.held = other  # else its watcher starts it again if it dies
            await self.until_ready(child)
        except (ConfigError, OSError) as error:
            if not other:
                raise
            say("process.not_upgraded", name=child.name, python=python, error=str(error))
            await self._drain(child)
            child.command[0] = before
            await self.spawn(child)
            child.held = False
            await self.until_ready(child)
            raise ConfigError(
                f"{child.name} does not start with {python} ({error}); it runs with {before} again"
            ) from error
        finally:
            child.held = False
            await self.spawn(child)

    def kill(self, child: Child) -> int | None:
        """It stays down until the next command. Returns its process id."""
        child.held, child.killed, pid = True, True, child.pid
        child.kills += 1
        child.send(signal.SIGKILL)
        return pid

    async def until_ready(self, child: Child) -> None:
        """Raises ConfigError where it ends by a fault that another start does not mend, or is not ready in time."""
        if child.process is None or child.gone or self._stopping.is_set():
            raise ConfigError(f"{child.name} is not started: the instance is being stopped, or its region has left")
        ready, ended = asyncio.ensure_future(child.ready.wait()), asyncio.ensure_future(child.process.wait())
        deadline = time.monotonic() + READY_S
        try:
            await asyncio.wait({ready, ended}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
            over = ended.done() and (child.unwanted or ended.result() == _REFUSED or not self._restart)
            if ended.done() and not over:
                await asyncio.wait({ready}, timeout=deadline - time.monotonic())
        finally:
            ready.cancel()
            ended.cancel()
        if over or not child.ready.is_set():  # it may be set since an earlier life
            wrong = "ended" if over else f"was not ready within {READY_S:.0f} s"
            raise ConfigError(f"{child.name} {wrong}: {self.last_words(child)}; its log is {self.log_of(child)}")

    async def _drain(self, child: Child) -> None:
        child.send(signal.SIGTERM)
        if child.process is not None:
            try:
                await asyncio.wait_for(child.process.wait(), 2 * STOP_S)
            except TimeoutError:
                say("process.did_not_drain", name=child.name)
                child.send(signal.SIGKILL)
                await child.process.wait()

    async def retire(self, child: Child) -> None:
        """Drains it, and ends it for good, while the others go on."""
        child.held = child.gone = True
        async with child.starting:  # what is being started at this moment is ended, too
            pass
        await self._drain(child)

    async def end(self, children: list[Child]) -> None:
        """For good. Whoever does not end in time is killed."""
        for child in children:
            child.held = child.gone = True
            async with child.starting:  # what is being started at this moment is ended, too
                pass
        for roles in _ENDS:
            group = [c for c in children if c.roles[0] in roles and c.pid is not None]
            for child in group:
                child.send(signal.SIGTERM)
            exits = [asyncio.ensure_future(c.process.wait()) for c in group if c.process is not None]
            if exits:
                _, late = await asyncio.wait(exits, timeout=STOP_S)
                if late:
                    for child in group:
                        child.send(signal.SIGKILL)
                    await asyncio.wait(late)

    async def end_all(self) -> None:
        """Ends every child and every watcher. `stopping` is set before, or they would be started again."""
        await self.end(list(self.children.values()))
        await self._watchers.close()
        await self._forks.close()

    def last_words(self, child: Child) -> str:
        """The last line of its log."""
        try:
            lines = self.log_of(child).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it said nothing"

    async def _watch(self, child: Child, process: asyncio.subprocess.Process | Forked) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if b'"ready"' in line:
                child.ready.set()
        code = await process.wait()
        if self._is_over(child, process):
            return
        if child.vital and not child.ready.is_set() and child.deaths == 0 and code == _REFUSED:
            self._on_fatal(ConfigError(f"{child.name} could not start: {self.last_words(child)}"))
            return
        if time.monotonic() - child.started_at > _STEADY_S:
            child.deaths = 0
        if not self._restart:
            say("process.died", name=child.name, code=code)
            return
        delay = _BACKOFF_S[min(child.deaths, len(_BACKOFF_S) - 1)]
        child.deaths += 1
        say("process.died", name=child.name, code=code, restart_in_s=delay)
        await asyncio.sleep(delay)
        while not self._is_over(child, process):  # else it was wanted down meanwhile, or started by somebody
            try:
                await self.spawn(child)
                child.restarts += 1
            except OSError as error:  # no process to be had at this moment, or its program is gone
                say("process.not_started", name=child.name, error=str(error))
                await asyncio.sleep(_BACKOFF_S[-1])
        if child.process is process or child.revived is None:
            return
        try:
            await child.revived()
        except (HeliographError, OSError) as error:
            say("process.not_revived", name=child.name, error=str(error))

    def _is_over(self, child: Child, process: asyncio.subprocess.Process | Forked) -> bool:
        return self._stopping.is_set() or child.unwanted or child.process is not process

    def log_of(self, child: Child) -> Path:
        """What it says goes there."""
        return self._data / "logs" / f"{child.name}.log"


def say(event: str, **fields: object) -> None:
    """A line of the supervisor's own log."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(json.dumps({"at": stamp, "event": event, **fields}), file=sys.stderr, flush=True)
