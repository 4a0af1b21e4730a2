"""Simulation: a loop, a network, and machines with disks, from one seed. What most tests start from.

Is: machines that run a coroutine, are killed, lose power, and come back with what their disks still hold. Isn't: what
runs on them (`world`).

    def test_it() -> None:
        with Simulation(seed=7) as sim:
            store = sim.machine("us-store", zone="us")

            async def serve(machine: Machine) -> None:                       # runs again at each start
                disk = machine.disk("journal")                               # this life's view of the platter "journal"
                server = await machine.loop.create_server(lambda: Protocol(disk), machine.host, 7000)

            async def main() -> None:
                store.start(serve)
                reply = await sim.call("client", ask, "us-store", 7000)      # as a process on a host of its own
                store.power_cut()  # callbacks stop, unsynced bytes are lost or torn, peers hear nothing
                await asyncio.sleep(1)
                store.start(serve)
            sim.run(main(), limit_s=60)

`store.kill()` is SIGKILL: peers see the connection end, and the disk keeps all. Code that a test calls on an object of
a machine must run in that machine's life: `store.run(method, argument)`, or `await store.ask(coroutine_function, ...)`.
`sim.rng(name)` is a generator for one purpose, `sim.clock(host)` a `heliograph.runtime.clock.Clock`; a machine has
`clock` and `rng` of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from geo_tests.sim.disk import Platter, SimDisk
from geo_tests.sim.loop import START_S, Life, SimLoop
from geo_tests.sim.network import Network

T = TypeVar("T")

WALL_MS = 1_700_000_000_000
"""Wall time at the start of every simulation."""


class SimClock:
    """Implements `heliograph.runtime.clock.Clock`. `offset_ms` sets the wall clock wrong."""

    def __init__(self, loop: SimLoop, offset_ms: int = 0) -> None:
        self.loop, self.offset_ms = loop, offset_ms

    def monotonic(self) -> float:
        return self.loop.now

    def wall_ms(self) -> int:
        return WALL_MS + self.offset_ms + int((self.loop.now - START_S) * 1000)


class SimUsage:
    """Implements `heliograph.runtime.process_usage.ProcessUsage`: nothing of the machine that the simulator runs on,
    whose load would make another world of the same seed.
    """

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self._loop, self._rng = loop, rng
        self._cpu_s, self._at = 0.0, loop.now

    def cpu_s(self) -> float:
        """Up to a fifth of a core, since the last call."""
        passed, self._at = self._loop.now - self._at, self._loop.now
        self._cpu_s += passed * self._rng.uniform(0.0, 0.2)
        return self._cpu_s

    def resident_bytes(self) -> int:
        return 256 << 20

    def memory_limit_bytes(self) -> int:
        return 1 << 30

    def cores(self) -> float:
        return 1.0


class Machine:
    """One host with disks, on which one process (life) at a time runs."""

    def __init__(self, sim: Simulation, host: str, zone: str) -> None:
        self.sim, self.host, self.zone = sim, host, zone
        self.loop = sim.loop
        self.clock = SimClock(sim.loop)
        self.usage = SimUsage(sim.loop, sim.rng(f"{host}:usage"))
        self.life: Life | None = None
        self.rng = sim.rng(host)
        self._platters: dict[str, Platter] = {}
        self._lives = 0

    @property
    def running(self) -> bool:
        return self.life is not None and self.life.alive

    def platter(self, path: str) -> Platter:
        """The directory `path`; it outlives the processes."""
        if path not in self._platters:
            platter = self._platters[path] = Platter(self.loop, self.sim.rng(f"{self.host}:{path}"))
            platter.on_power_cut = self.power_cut
            platter.fast = self.sim.rng(f"{self.host}:{path}:fast").random() < 0.5
        return self._platters[path]

    def platters(self) -> dict[str, Platter]:
        return self._platters

    def disk(self, path: str) -> SimDisk:
        """The directory `path` as this life of the process sees it: the runtime's disk factory."""
        return self.platter(path).disk()

    def start(self, main: Callable[[Machine], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Begins a life with `main`. The life outlasts `main`, as long as nobody ends it. An exception in `main` fails
        the run.
        """
        assert not self.running, f"{self.host} runs already"
        self._lives += 1
        self.life = Life(self.host, self._lives)
        self.rng = self.sim.rng(f"{self.host}#{self._lives}")
        self.sim.network.power(self.host, on=True)
        task = self.loop.create_task(main(self), name=f"{self.host}#{self._lives}", context=self.life.context())
        task.add_done_callback(self.sim.report, context=self.life.context())
        return task

    def kill(self) -> None:
        """SIGKILL: the process is gone, its kernel closes its connections, its files keep what was written."""
        self._end(silent=False)

    def stop(self) -> Life | None:
        """SIGSTOP: its connections stay open and silent, its clock goes on. Returns the life that `loop.go_on`
        continues.
        """
        if self.life is not None:
            self.loop.stop_life(self.life)
        return self.life

    def power_cut(self) -> None:
        """The process is gone, peers hear nothing, disks lose what was not synced."""
        if self.running:
            self._end(silent=True)
        self.sim.network.power(self.host, on=False)
        for path in sorted(self._platters):
            self._platters[path].power_cut()

    def run(self, call: Callable[..., T], *args: Any) -> T:
        """Calls something of this machine's process, so that what it schedules dies with it."""
        assert self.life is not None and self.life.alive, f"{self.host} does not run"
        return self.life.context().run(call, *args)

    async def ask(self, call: Callable[..., Coroutine[Any, Any, T]], *args: Any, limit_s: float = 60.0) -> T:
        """Awaits a coroutine of this machine's process. Raises TimeoutError where it does not answer (it may have
        died).
        """
        assert self.life is not None and self.life.alive, f"{self.host} does not run"
        task = self.loop.create_task(call(*args), context=self.life.context())
        done, _ = await asyncio.wait([task], timeout=limit_s)
        if not done:
            raise TimeoutError(f"{self.host} did not answer within {limit_s} s")
        return task.result()

    def _end(self, *, silent: bool) -> None:
        life = self.life
        if life is None or not life.alive:
            return
        self.loop.end(life)
        for path in sorted(self._platters):
            self._platters[path].unplug()
        self.sim.network.end_of_life(life, silent=silent)


class Simulation:
    """One run: everything follows from `seed`."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.loop = SimLoop()
        self.network = Network(self.loop, self.rng("network"))
        self.machines: dict[str, Machine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for machine in self.machines.values():
            machine.kill()
        self.loop.close()

    def rng(self, name: str) -> random.Random:
        """A generator that depends on the seed and `name` only."""
        return random.Random(f"{self.seed}/{name}")

    def clock(self) -> SimClock:
        return SimClock(self.loop)

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.loop.now - START_S

    def machine(self, host: str, *, zone: str = "") -> Machine:
        """The machine of that name; made when first asked for."""
        if host not in self.machines:
            self.network.add_host(host, zone or host)
            self.machines[host] = Machine(self, host, zone or host)
        return self.machines[host]

    async def call(
        self, host: str, call: Callable[..., Coroutine[Any, Any, T]], *args: Any, limit_s: float = 60.0
    ) -> T:
        """Awaits a coroutine on a host of its own, which is started if need be."""
        machine = self.machine(host)
        if not machine.running:
            machine.start(_idle)
        return await machine.ask(call, *args, limit_s=limit_s)

    def run(self, main: Coroutine[Any, Any, T], *, limit_s: float = 600.0) -> T:
        """Runs `main` on virtual time. Raises SimFailure with the seed in its text, or what `main` raised."""
        try:
            return self.loop.run(main, limit_s=limit_s)
        except BaseException as error:
            error.add_note(f"seed {self.seed}, virtual time {self.now():.6f} s")
            raise

    def report(self, task: asyncio.Task[Any]) -> None:
        """A process's main coroutine ended: by an error, the run fails."""
        if not task.cancelled() and (error := task.exception()) is not None and isinstance(error, Exception):
            self.loop.fail(f"{task.get_name()}: {error!r}", error)


async def _idle(_: Machine) -> None:
    pass
