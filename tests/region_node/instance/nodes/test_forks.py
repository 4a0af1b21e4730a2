"""Nodes that are forked: they are as a started program is, and end with whoever forks them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from region_node.instance.fork_server import COMMON, MODULES
from region_node.instance.nodes.forks import Forked, ForkServer
from region_node.instance.nodes.processes import Child, Processes
from region_node.runtime.module_command import module_command

pytestmark = [pytest.mark.wan, pytest.mark.skipif(sys.platform != "linux", reason="nodes are forked on Linux alone")]


def node(folder: Path, *, name: str = "us-meta-0", broken: bool = False) -> list[str]:
    """The command line of a metadata node alone in its region."""
    path = folder / f"{name}.json"
    settings = {
        "region": "us",
        "node_id": name,
        "roles": ["meta"],
        "data_dir": str(folder / name),
        "meta_node": {"port": 0},
    }
    path.write_text("{" if broken else json.dumps(settings))
    return module_command(sys.executable, "region_node.instance.child", "--role", "meta", "--settings", str(path))


def with_server(folder: Path, body: Callable[[ForkServer], Awaitable[None]]) -> None:
    async def main() -> None:
        (folder / "logs").mkdir()
        forks = ForkServer(folder, dict(os.environ))
        try:
            await asyncio.wait_for(body(forks), 120)
        finally:
            await forks.close()

    asyncio.run(main())


def of_process(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


async def forked(forks: ForkServer, folder: Path, command: list[str]) -> Forked:
    assert forks.takes(command)
    with (folder / "logs" / "node.log").open("ab") as log:
        return await forks.fork(command, log.fileno())


def test_a_node_is_a_process_of_its_own_that_says_its_ports_and_drains(tmp_path: Path) -> None:
    async def body(forks: ForkServer) -> None:
        one, other = [await forked(forks, tmp_path, node(tmp_path, name=name)) for name in ("us-meta-0", "us-meta-1")]
        said = json.loads(await one.stdout.readline())
        assert said["pid"] == one.pid != other.pid and said["ports"]["meta"]
        await other.stdout.readline()
        shown = of_process(one.pid, "cmdline").split("\0")
        assert shown[:3] == [sys.executable, "-m", "region_node.instance.child"]
        assert shown[5:7] == ["--settings", str(tmp_path / "us-meta-0.json")], "as `ps` shows it"
        assert os.getsid(one.pid) == one.pid and os.readlink(f"/proc/{one.pid}/cwd") == str(tmp_path)
        files = {os.readlink(f"/proc/{one.pid}/fd/{n}") for n in range(3)}
        assert files >= {os.devnull, str(tmp_path / "logs" / "node.log")}
        one.send_signal(signal.SIGTERM)
        other.send_signal(signal.SIGKILL)
        assert (await one.wait(), await other.wait()) == (0, -signal.SIGKILL)
        assert await one.stdout.read() == b"", "its pipe is at its end"
        with pytest.raises(ProcessLookupError):
            os.kill(one.pid, 0)
        one.send_signal(signal.SIGKILL)  # to nobody

    with_server(tmp_path, body)


def test_one_that_cannot_start_says_why_and_ends_with_its_code(tmp_path: Path) -> None:
    async def body(forks: ForkServer) -> None:
        one = await forked(forks, tmp_path, node(tmp_path, broken=True))
        assert await one.wait() == 2 and await one.stdout.read() == b""
        assert "us-meta-0.json" in (tmp_path / "logs" / "node.log").read_text()

    with_server(tmp_path, body)


def test_what_nobody_waits_for_any_more_ends_and_is_nobody_elses(tmp_path: Path) -> None:
    async def body(forks: ForkServer) -> None:
        first = await forked(forks, tmp_path, node(tmp_path))
        await first.stdout.readline()
        given_up = asyncio.ensure_future(forked(forks, tmp_path, node(tmp_path, name="us-meta-1")))
        await asyncio.sleep(0)  # it has asked
        given_up.cancel()
        second = await forked(forks, tmp_path, node(tmp_path, name="us-meta-2"))
        said = json.loads(await second.stdout.readline())
        assert said["pid"] == second.pid
        assert str(tmp_path / "us-meta-2.json") in of_process(second.pid, "cmdline").split("\0")
        for nobodys in set(forks._forked.values()) - {first, second}:
            assert await nobodys.wait() == -signal.SIGKILL
        assert set(forks._forked) == {first.pid, second.pid}

    with_server(tmp_path, body)


def test_nodes_end_with_whoever_forks_them(tmp_path: Path) -> None:
    async def body(forks: ForkServer) -> None:
        one = await forked(forks, tmp_path, node(tmp_path))
        await one.stdout.readline()
        await forks.close()
        assert await one.wait() == -signal.SIGTERM
        assert '"code": 0' in (log := (tmp_path / "logs" / "node.log").read_text()) or "code=0" in log, "it drained"
        assert not forks.takes(node(tmp_path))

    with_server(tmp_path, body)


def test_where_none_can_be_forked_a_program_is_started(tmp_path: Path) -> None:
    async def body() -> None:
        (tmp_path / "logs").mkdir()
        processes = Processes(tmp_path, asyncio.Event(), restart=True, on_fatal=lambda _: None)
        child = processes.children["us-meta-0"] = Child("us-meta-0", "us", ["meta"], node(tmp_path), {})
        try:
            await processes.spawn(child)
            await child.ready.wait()
            assert isinstance(child.process, Forked)
            server = int(of_process(child.process.pid, "stat").rpartition(")")[2].split()[1])
            os.kill(server, signal.SIGKILL)
            await child.process.wait()
            child.ready.clear()
            await child.ready.wait()  # its watcher has started it
            assert not isinstance(child.process, Forked)
            processes.all_started()
            await processes.restart(child, "")
            assert not isinstance(child.process, Forked)
        finally:
            processes._stopping.set()
            await processes.end_all()

    asyncio.run(asyncio.wait_for(body(), 120))


def test_what_is_imported_beforehand_starts_no_thread_and_is_there(tmp_path: Path) -> None:
    """A process with threads cannot be forked safely."""
    lines = (
        "import json, os, sys",
        "from region_node.instance.fork_server import MODULES, import_for",
        "import_for(list(MODULES))",
        "print(json.dumps([len(os.listdir('/proc/self/task')), list(sys.modules)]))",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    threads, imported = json.loads(done.stdout)
    assert threads == 1
    assert {module for modules in (COMMON, *MODULES.values()) for module in modules} <= set(imported)
