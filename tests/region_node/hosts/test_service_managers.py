"""Keepers of a host without systemd: a real process is kept, started again when it dies, and ended with its keeper.
Units: what systemd is asked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from region_node.hosts.host_folders import HostManifest
from region_node.hosts.service_managers import Plain, Systemd
from tests.region_node.live import until

PATIENCE_S = 60.0


def manifest(prefix: Path) -> HostManifest:
    return HostManifest(
        host="h",
        region="eu",
        prefix=str(prefix),
        service="plain",
        nodes=("n",),
        meta=(),
        voters=(),
        bookies=(),
        brokers=(),
    )


def child_of(pid: int) -> int:
    """Process id of a process's only child; 0: it has none."""
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(words[0]) if words else 0


@pytest.mark.slow
def test_a_keeper_starts_its_process_again_and_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    settings = {
        "region": "eu",
        "node_id": "n",
        "data_dir": str(tmp_path / "data"),
        "roles": ["meta"],
        "meta_node": {"port": 0},
    }
    (tmp_path / "etc" / "n.json").write_text(json.dumps(settings))
    (tmp_path / "current").symlink_to(sys.prefix)
    plain = Plain(manifest(tmp_path))
    assert not plain.running("n")
    plain.start("n")
    try:
        assert plain.running("n")
        keeper = int((tmp_path / "run" / "n.pid").read_text().split()[0])
        plain.start("n")
        assert int((tmp_path / "run" / "n.pid").read_text().split()[0]) == keeper, "one keeper a node"
        first = until(lambda: child_of(keeper))
        os.kill(first, signal.SIGKILL)
        second = until(lambda: 0 if (now := child_of(keeper)) == first else now)
    finally:
        plain.stop("n")
    assert not plain.running("n") and not Path(f"/proc/{second}").exists() and not (tmp_path / "run" / "n.pid").exists()


def test_another_process_with_that_id_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "n.pid").write_text(f"{os.getpid()} 1")
    plain = Plain(manifest(tmp_path))
    assert not plain.running("n")
    plain.stop("n")  # and this process goes on


def test_a_unit_is_put_in_place_started_and_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "units").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "etc" / "heliograph-n.service").write_text("[Unit]\n")
    said = tmp_path / "said"
    (tmp_path / "bin" / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    systemd = Systemd(manifest(tmp_path), tmp_path / "units")
    systemd.start("n")
    systemd.start("n")
    assert (tmp_path / "units" / "heliograph-n.service").read_text() == "[Unit]\n"
    systemd.stop("n")
    (tmp_path / "units" / "heliograph-n.service.d").mkdir()
    (tmp_path / "units" / "heliograph-n.service.d" / "cpu.conf").write_text("[Service]\n")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr("region_node.hosts.service_managers.shutil.rmtree", killed)
        systemd.forget("n")
    systemd.forget("n")
    unit = "heliograph-n.service"
    started = [f"enable --quiet {unit}", f"start {unit}"]
    assert said.read_text().splitlines() == [
        "daemon-reload",
        *started,
        *started,
        f"stop {unit}",
        *[f"disable --quiet {unit}"] * 2,
        "daemon-reload",
    ]
    assert not list((tmp_path / "units").iterdir())


def test_units_are_ones_that_systemd_reads(tmp_path: Path, described: dict[str, object]) -> None:
    from region_node.hosts.host_folders import unit
    from region_node.hosts.inventory import nodes, parse

    inventory = parse({**described, "service": "systemd", "user": "root"})
    text = unit(inventory, "eu-c", nodes(inventory, "eu", "eu-c")[0]).replace(
        "/opt/heliograph/current/bin/python", sys.executable
    )
    (tmp_path / "heliograph-n.service").write_text(text)
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tmp_path / "heliograph-n.service")],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("systemd-analyze is absent")
    assert "heliograph-n.service" not in done.stderr, done.stderr
