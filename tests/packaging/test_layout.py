"""The servers' wheel beside a user's own folders of the same names: in our processes ours win, in theirs theirs do.

A user's folder writes down who imports it. It has nothing that we import, either, so a process of ours that took it
would not start.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from benchmarks.servers import free_port

pytestmark = [pytest.mark.long, pytest.mark.wan, pytest.mark.timeout(900)]  # one environment for all, in one process

BESIDE = ("global_config", "local_meta", "replicator", "storage")
HERE = (*BESIDE, "region_node", "heliograph", "lmdb")
"""What may lie in the current directory, too, where a process of the same release starts ours."""
THEIRS = """
import os, pathlib
with pathlib.Path({log!r}).open("a") as log:
    log.write(f"{{__name__}} by {{open('/proc/self/cmdline').read()}}\\n")
MARK = "theirs"
"""
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "heliograph" / "templates" / "_names.tpl"


def folders(top: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        (top / name).mkdir(parents=True)
        (top / name / "__init__.py").write_text(THEIRS.format(log=str(top.parent / "imported")))
    return top


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder, to be the current one."""
    return folders(tmp_path / "project", BESIDE)


def imported(project: Path) -> str:
    log = project.parent / "imported"
    return log.read_text() if log.exists() else ""


def run(folder: Path, *command: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """path: PYTHONPATH."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=200, cwd=folder, env=environment(path))


def environment(path: Path | None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return clean | ({"PYTHONPATH": str(path)} if path is not None else {})


def test_a_standalone_passes_a_message_beside_a_users_folders(programs: Path, tmp_path: Path) -> None:
    here, path = folders(tmp_path / "project", HERE), folders(tmp_path / "path", BESIDE)
    service, admin = str(free_port()), str(free_port())
    ports = ("--service-port", service, "--admin-port", admin)
    process = subprocess.Popen(
        [str(programs / "heliograph"), "standalone", *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=here,
        env=environment(path),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "is ready" in line, line + process.communicate()[1] + imported(here)
        children = [child.cmdline() for child in psutil.Process(process.pid).children(recursive=True)]
        roles = [words[words.index("--role") + 1] for words in children if "--role" in words]
        assert sorted(roles) == ["bookie", "bookie", "broker", "meta,config"]
        server = ("--service", f"pulsar://127.0.0.1:{service}")
        sent = run(here, programs / "heliograph", "produce", "hello", "-m", "beside", *server, path=path)
        assert sent.returncode == 0, sent.stderr
        received = run(here, programs / "heliograph", "consume", "hello", "-n", "1", *server, path=path)
        assert received.stdout == "beside\n", received.stderr
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=240)
        finally:
            process.kill()
    assert imported(here) == "", "all of ours ran on ours"


def test_a_supervisor_runs_in_the_background_beside_a_users_folders(programs: Path, tmp_path: Path) -> None:
    here, path = folders(tmp_path / "project", HERE), folders(tmp_path / "path", BESIDE)
    started = run(here, programs / "heliograph", "up", "--regions", "us", "--brokers", "1", "--bookies", "2", path=path)
    try:
        assert started.returncode == 0, started.stderr + imported(here)
    finally:
        stopped = run(here, programs / "heliograph", "down", path=path)
    assert stopped.returncode == 0 and imported(here) == "", stopped.stderr


@pytest.mark.parametrize("name", BESIDE)
def test_a_user_gets_their_own_folder(programs: Path, project: Path, name: str) -> None:
    (project / name / "__main__.py").write_text("from . import MARK; print(MARK)")
    (project / "program.py").write_text(f"import {name}; print({name}.MARK)")
    for words in (("-c", f"import {name}; print({name}.MARK)"), ("-m", name), ("program.py",)):
        done = run(project, programs / "python", *words)
        assert done.stdout == "theirs\n", done.stderr
    assert run(project.parent, programs / "python", "-c", f"import {name}", path=project).returncode == 0


@pytest.mark.parametrize("name", BESIDE)
def test_without_a_folder_there_is_nothing_by_that_name(programs: Path, tmp_path: Path, name: str) -> None:
    done = run(tmp_path, programs / "python", "-c", f"import {name}")
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: No module named '{name}'"


def named_by_the_chart() -> str:
    command = re.search(r"command: \[python, -m, ([\w.]+),", CHART.read_text())
    assert command is not None
    return command[1]


@pytest.mark.parametrize("module", ["region_node.process", "region_node.instance.child", named_by_the_chart()])
def test_a_process_starts_by_its_name_beside_a_users_folders(programs: Path, project: Path, module: str) -> None:
    """As a supervisor of an earlier release starts it (`rolling upgrade`), with the current directory in front."""
    done = run(project, programs / "python", "-m", module, "--help", path=project)
    assert done.stdout.startswith("usage: region_node.process ") and imported(project) == "", done.stderr
    done = run(project, programs / "python", "-m", module, "--settings", "absent.json", path=project)
    assert done.returncode == 2 and "absent.json" in done.stderr and imported(project) == "", done.stderr


def test_another_program_starts_by_a_child_beside_a_users_folders(programs: Path, project: Path) -> None:
    words = ("-m", "region_node.instance.child", "--exec", "/bin/echo", "-host", "here")
    assert run(project, programs / "python", *words, path=project).stdout == "-host here\n"


def test_a_supervisor_starts_by_its_name_beside_a_users_folders(programs: Path, project: Path) -> None:
    done = run(project, programs / "python", "-m", "region_node.instance.background", "absent", "1", path=project)
    assert done.returncode == 2 and "no instance in absent" in done.stdout and imported(project) == "", done.stderr


def test_a_keeper_starts_by_its_name_beside_a_users_folders(programs: Path, project: Path) -> None:
    keeper = subprocess.Popen(
        [str(programs / "python"), "-m", "region_node.hosts.keeper", "absent.json"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=project,
        env=environment(project),
    )
    try:
        assert keeper.stderr is not None
        line = keeper.stderr.readline()
        assert "absent.json" in line and imported(project) == "", line
    finally:
        keeper.terminate()
        keeper.communicate(timeout=60)
    assert keeper.returncode == 0


def test_a_process_that_has_theirs_is_told_so(programs: Path, project: Path) -> None:
    done = run(project, programs / "python", "-c", "import storage, region_node.process")
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: Heliograph's servers have a package storage, and this process has imported another one by that "
        f"name from {project}"
    )


FINDER = """
import sys
before = list(sys.path)

class First:
    def find_spec(self, name, path=None, target=None):
        assert name not in ("storage", "replicator", "local_meta", "global_config")

sys.meta_path.insert(0, First())
import region_node
sys.path.insert(0, sys.argv[1])
import storage.bookie, replicator, local_meta, global_config, region_node.process.role_process
print(sys.path[1:] == before)
"""


def test_ours_come_from_our_folder_alone_and_the_path_stays_as_it_is(programs: Path, project: Path) -> None:
    done = run(project.parent, programs / "python", "-c", FINDER, project)
    assert done.stdout == "True\n" and imported(project) == "", done.stderr
