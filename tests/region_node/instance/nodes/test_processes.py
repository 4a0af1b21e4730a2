"""Children of a supervisor, as real processes: started again when they die, once, and ended with it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from region_node.instance.nodes.processes import Child, Processes, interpreter_of
from region_node.instance.plan.layout import NodePlan

READY = "import sys, time; print('{\"ready\": 1}', flush=True); time.sleep(600)"


def with_processes(folder: Path, body: Callable[[Processes, list[ConfigError]], Awaitable[None]]) -> None:
    async def main() -> None:
        fatal: list[ConfigError] = []
        (folder / "logs").mkdir()
        processes = Processes(folder, asyncio.Event(), restart=True, on_fatal=fatal.append)
        try:
            await asyncio.wait_for(body(processes, fatal), 240)
        finally:
            processes._stopping.set()
            await processes.end_all()

    asyncio.run(main())


def watchers(processes: Processes) -> set[asyncio.Task[Any]]:
    return set(processes._watchers._running)


def child(processes: Processes, name: str, code: str) -> Child:
    made = processes.children[name] = Child(name, "us", ["broker"], [sys.executable, "-c", code], {"service": 1})
    return made


def test_what_dies_comes_back_and_who_starts_it_meanwhile_starts_it_once(tmp_path: Path) -> None:
    async def body(processes: Processes, fatal: list[ConfigError]) -> None:
        one = child(processes, "one", READY)
        await processes.spawn(one)
        await one.ready.wait()
        first, watcher = one.pid, watchers(processes)
        one.send(signal.SIGKILL)
        assert one.process is not None
        await one.process.wait()
        await asyncio.gather(processes.start(one), processes.spawn(one))
        second = one.pid
        assert second not in (None, first)
        await asyncio.wait(watcher)  # its pause before it would start it is over
        assert one.pid == second and one.restarts == 1 and len(processes._watchers) == 1 and fatal == []
        watcher = watchers(processes)
        one.send(signal.SIGKILL)
        await asyncio.wait(watcher)
        assert one.pid not in (None, second) and one.restarts == 2, "by itself"
        assert processes.find("one") is one
        with pytest.raises(ConfigError, match="no process 'two'; there are one"):
            processes.find("two")

    with_processes(tmp_path, body)


def test_one_that_is_wanted_down_stays_down_and_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def body(processes: Processes, fatal: list[ConfigError]) -> None:
        held, broken = child(processes, "held", READY), child(processes, "broken", "raise SystemExit(2)")
        await processes.spawn(held)
        watcher = watchers(processes)
        held.held = True
        held.send(signal.SIGKILL)
        await asyncio.wait(watcher)
        assert held.pid is None
        (tmp_path / "logs" / "broken.log").write_text("heliograph: no such setting\n")
        await processes.spawn(broken)
        await asyncio.wait(watchers(processes))
        assert [str(error) for error in fatal] == [
            "broken could not start: heliograph: no such setting"
        ] and broken.pid is None

    with_processes(tmp_path, body)


def test_another_interpreter_that_does_not_start_it_is_taken_back_and_one_that_does_is_kept(tmp_path: Path) -> None:
    def interpreter(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    async def body(processes: Processes, fatal: list[ConfigError]) -> None:
        one = child(processes, "one", READY)
        await processes.spawn(one)
        await processes.until_ready(one)
        first = one.pid
        for python, why in (
            (interpreter("refuses", "echo 'no such library' >&2; exit 2"), "one ended: no such library"),
            (interpreter("crashes", "echo 'Traceback' >&2; exit 1"), "one ended: Traceback"),
            (str(tmp_path / "is-not-there"), "No such file"),
        ):
            with pytest.raises(
                ConfigError, match=f"one does not start with {python} .*{why}.*; it runs with {sys.executable} again"
            ):
                await processes.restart(one, python)
            assert (
                one.ready.is_set()
                and one.pid not in (None, first)
                and one.command[0] == sys.executable
                and not one.held
            )
            first = one.pid
        other = interpreter("works", f'exec {sys.executable} "$@"')
        await processes.restart(one, other)
        assert one.ready.is_set() and one.pid not in (None, first) and one.command[0] == other and fatal == []

    with_processes(tmp_path, body)


def test_one_command_after_another_restarts_a_process(tmp_path: Path) -> None:
    async def body(processes: Processes, fatal: list[ConfigError]) -> None:
        one = child(processes, "one", READY)
        await processes.spawn(one)
        await asyncio.gather(processes.restart(one, ""), processes.restart(one, ""), processes.start(one))
        assert (
            one.ready.is_set()
            and one.pid is not None
            and one.restarts == 2
            and not one.held
            and len(processes._watchers) == 1
        )

    with_processes(tmp_path, body)


def test_what_was_ended_for_good_is_not_started_by_a_command_that_is_under_way(tmp_path: Path) -> None:
    async def body(processes: Processes, fatal: list[ConfigError]) -> None:
        one = child(processes, "one", READY)
        await processes.spawn(one)
        await processes.until_ready(one)
        restarting = asyncio.ensure_future(processes.restart(one, ""))
        await asyncio.sleep(0)
        assert one.commanded.locked() and one.held
        await processes.end([one])
        with pytest.raises(ConfigError, match="its region has left"):
            await restarting
        with pytest.raises(ConfigError, match="its region has left"):
            await processes.start(one)
        assert one.pid is None and one.restarts <= 2

    with_processes(tmp_path, body)


@pytest.mark.parametrize("python", ["", "other"])
def test_who_is_killed_while_it_is_restarted_stays_down(tmp_path: Path, python: str) -> None:
    async def body(processes: Processes, fatal: list[ConfigError]) -> None:
        one = child(
            processes, "one", "import time; time.sleep(600)"
        )  # it says nothing: nobody knows whether it is ready
        other = tmp_path / "other"
        other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        other.chmod(0o755)
        restarting = asyncio.ensure_future(processes.restart(one, str(other) if python else ""))
        for _ in range(6000):
            if one.pid is not None:
                break
            await asyncio.sleep(0.01)
        assert processes.kill(one) is not None
        with pytest.raises(ConfigError, match="one ended"):
            await restarting
        assert one.pid is None
        one.command = [sys.executable, "-c", READY]
        await processes.start(one)
        assert one.ready.is_set() and one.pid is not None and not one.unwanted
        restarting = asyncio.ensure_future(processes.restart(one, str(other) if python else ""))
        await asyncio.sleep(0)
        assert one.held and processes.kill(one) is not None, "before it has ended by itself"
        with pytest.raises(ConfigError, match="one ended"):
            await restarting
        assert one.pid is None

    with_processes(tmp_path, body)


@pytest.mark.parametrize("queued", ["start", "restart"])
def test_a_command_that_waits_for_an_earlier_one_does_not_undo_a_later_kill(tmp_path: Path, queued: str) -> None:
    async def body(processes: Processes, fatal: list[ConfigError]) -> None:
        one = child(processes, "one", READY)
        await processes.spawn(one)
        await processes.until_ready(one)
        earlier = asyncio.ensure_future(processes.restart(one, ""))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(processes.start(one) if queued == "start" else processes.restart(one, ""))
        await asyncio.sleep(0)
        assert one.commanded.locked()
        assert processes.kill(one) is not None
        with pytest.raises(ConfigError, match="one ended"):
            await earlier
        with pytest.raises(
            ConfigError, match="one was killed while this command waited for an earlier one; it stays down"
        ):
            await waiting
        assert one.pid is None and one.killed
        await processes.start(one)
        assert one.pid is not None and one.ready.is_set(), "a command that is given after the kill is obeyed"

    with_processes(tmp_path, body)


def test_where_nothing_is_restarted_who_dies_is_not_waited_for(tmp_path: Path) -> None:
    async def body(processes: Processes, fatal: list[ConfigError]) -> None:
        processes._restart = False
        one = child(processes, "one", "import sys; sys.exit('no luck')")
        with pytest.raises(ConfigError, match="one ended: no luck; its log is"):
            await processes.start(one)

    with_processes(tmp_path, body)


def test_what_is_being_started_while_all_are_ended_is_ended_and_nothing_is_started_behind_it(tmp_path: Path) -> None:
    async def body(processes: Processes, fatal: list[ConfigError]) -> None:
        late, later = child(processes, "late", READY), child(processes, "later", READY)
        starting = asyncio.ensure_future(processes.spawn(late))
        await asyncio.sleep(0)
        assert late.starting.locked()
        processes._stopping.set()
        await processes.end_all()
        await asyncio.gather(starting, processes.spawn(later))
        assert late.process is not None and late.pid is None and later.process is None

    with_processes(tmp_path, body)


def test_what_is_started_anew_after_an_upgrade_is_of_the_version_of_its_region() -> None:
    def made(name: str, python: str) -> Child:
        return Child(name, name.split("-")[0], [name.split("-")[1]], [python, "-m", "x"], {})

    def started(name: str, *others: Child) -> str:
        return interpreter_of(
            NodePlan(name=name, region=name.split("-")[0], roles=[name.split("-")[1]], ports={}),
            [proxy, *others],
            "own",
        )

    proxy = Child("toxiproxy", "", ["toxiproxy"], ["own"], {})
    upgraded = [made("us-bookie-0", "new"), made("us-broker-0", "new")]
    assert started("us-broker-0") == "own"
    assert started("us-broker-1", *upgraded) == started("us-bookie-0", *upgraded) == "new"
    assert started("ap-broker-0", *upgraded) == "new", "a region that joins"
    assert started("ap-broker-0", *upgraded, made("eu-broker-0", "old")) == "own"
    half = [
        made("us-bookie-0", "new"),
        made("us-bookie-1", "new"),
        made("us-broker-0", "old"),
        made("us-broker-1", "new"),
    ]
    assert [started(name, *half) for name in ("us-bookie-2", "us-broker-0", "us-broker-2")] == ["new", "old", "own"]
