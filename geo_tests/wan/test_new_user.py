"""What a newcomer does, and what can go wrong: each ends in one clear sentence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from benchmarks.servers import free_port
from geo_tests.wan import instance
from geo_tests.wan.instance import PROGRAM, eventually, heliograph


def standalone(data: Path, service: int, admin: int, *more: str) -> subprocess.Popen[str]:
    command = [
        PROGRAM,
        "standalone",
        "--data",
        str(data),
        "--service-port",
        str(service),
        "--admin-port",
        str(admin),
        *more,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "is ready" in line, line + process.communicate()[1]


def end(process: subprocess.Popen[str]) -> str:
    """By Ctrl-C. Returns what it said on stderr; whatever happens, it does not stay."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=240)[1]
    finally:
        process.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int, int]]:
    data = tmp_path_factory.mktemp("standalone") / "data"
    service, admin = free_port(), free_port()
    process = standalone(data, service, admin)
    try:
        wait_ready(process)
        yield data, service, admin
    finally:
        end(process)


def test_hello(running: tuple[Path, int, int]) -> None:
    _, service, _ = running
    client = pulsar.Client(f"pulsar://127.0.0.1:{service}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        client.create_producer("hello").send(b"round the world")
        assert (
            client.create_reader("hello", pulsar.MessageId.earliest).read_next(timeout_millis=60_000).data()
            == b"round the world"
        )
    finally:
        client.close()


def test_a_second_one_on_the_same_folder(running: tuple[Path, int, int]) -> None:
    data, service, admin = running
    done = heliograph(
        "standalone", "--data", str(data), "--service-port", str(service), "--admin-port", str(admin), check=False
    )
    assert done.returncode == 2 and "in use" in done.stderr and done.stderr.count("\n") == 1


def test_a_taken_port(running: tuple[Path, int, int], tmp_path: Path) -> None:
    _, service, _ = running
    done = heliograph(
        "standalone",
        "--data",
        str(tmp_path / "other"),
        "--service-port",
        str(service),
        "--admin-port",
        str(free_port()),
        check=False,
    )
    assert done.returncode == 2 and f"port {service}" in done.stderr and "--service-port" in done.stderr


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "my-thesis.txt").write_text("precious")
    done = heliograph("standalone", "--data", str(tmp_path), check=False)
    assert done.returncode == 2 and "not empty" in done.stderr
    assert os.listdir(tmp_path) == ["my-thesis.txt"]


def test_a_folder_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "instance.json").write_text('{"format": 99}')
    done = heliograph("up", "--data", str(tmp_path), check=False)
    assert done.returncode == 2 and "format 99" in done.stderr


WRONG = (
    ("up", "--bookies", "1"),
    ("up", "--regions", "a,a"),
    ("up", "--brokers", "x"),
    ("standalone", "--service-port", "0"),
    ("nonsense",),
)


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_options(arguments: tuple[str, ...], tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "d")) if arguments != ("nonsense",) else ()
    done = heliograph(*arguments, *data, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_nothing_runs(tmp_path: Path) -> None:
    for command in ("status", "down"):
        done = heliograph(command, "--data", str(tmp_path), check=False)
        assert done.returncode == 2 and "heliograph up" in done.stderr


def test_a_program_that_takes_too_long_here_is_interrupted_and_ends_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text(
        f"#!/bin/sh\nsleep 600 &\ntrap 'kill $!; wait; touch {tmp_path}/ended; exit 1' INT\ntouch "
        f"{tmp_path}/begun\nwait\n"
    )
    program.chmod(0o755)

    def asked(process: subprocess.Popen[str], timeout: float) -> None:
        eventually((tmp_path / "begun").exists, "the program runs")
        monkeypatch.undo()
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", asked)
    with pytest.raises(subprocess.TimeoutExpired):
        instance.heliograph("up", program=str(program))
    assert (tmp_path / "ended").exists()


MOMENTS = (
    "instance.json",
    "lock",
    "logs",
    "settings",
    "logs/standalone-bookie-1.log",
    "logs/standalone-broker-0.log",
    "control.json",
)


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_any_moment_leaves_nothing(moment: str, tmp_path: Path) -> None:
    """Each moment is the appearance of a file."""
    service, admin = free_port(), free_port()
    process = standalone(tmp_path / "data", service, admin)
    try:
        eventually((tmp_path / "data" / moment).exists, moment)
    finally:
        err = end(process)
    assert "Traceback" not in err, err

    def quiet() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", service)) != 0 and not _mentions(tmp_path)

    eventually(quiet, "no process and no port of it is left")


def _mentions(folder: Path) -> list[str]:
    """Processes that were started with something of this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def test_a_killed_supervisor_takes_its_processes_along(tmp_path: Path) -> None:
    process = standalone(tmp_path / "data", free_port(), free_port())
    try:
        wait_ready(process)
    finally:
        process.kill()
        process.communicate()
    eventually(lambda: not _mentions(tmp_path), "its processes end", 60)  # each drains for 30 s at most


def test_data_survives_a_restart(tmp_path: Path) -> None:
    service, admin = free_port(), free_port()
    for expected in ([], [b"one"], [b"one", b"two"]):
        process = standalone(tmp_path / "data", service, admin)
        try:
            wait_ready(process)
            client = pulsar.Client(
                f"pulsar://127.0.0.1:{service}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            )
            consumer = client.subscribe("kept", "s", initial_position=pulsar.InitialPosition.Earliest)
            got = [consumer.receive(timeout_millis=60_000).data() for _ in expected]
            assert got == expected
            client.create_producer("kept").send([b"one", b"two", b"three"][len(expected)])
            client.close()
        finally:
            end(process)
