"""A host of Heliograph under a real systemd that is booted for it: units start, are started again, come back with the
host, and leave nothing.

`docs/operating/systemd.md` is given to it command by command; what Terraform does over SSH (install.sh, the rendered
folder, `host activate`) is done by hand.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from geo_tests.wan.instance import eventually
from tests.guide.page import Command, Page, path_of
from tests.guide.shell import Reader, pattern
from tests.system import programs
from tests.system.machine import PYTHON_INSIDE, Machine
from tests.system.releases import INSTALL, wheels

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]
HELIOGRAPH = str(Path(sys.executable).with_name("heliograph"))
ADDRESS = "127.0.1.1"
TOPIC = "persistent://public/default/kept"
UNITS = ("eu-a-bookie-0", "eu-a-bookie-1", "eu-a-broker-0", "eu-a-meta")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine")
    try:
        made.boot()
        yield made
    finally:
        made.close()


def copied(machine: Machine, tmp_path: Path, settings: dict[str, object]) -> None:
    """The host's folder, as Terraform copies it."""
    host = {"address": ADDRESS, "roles": ["meta", "config", "bookie", "broker"], "bookies": 2}
    described = {"name": "test", "regions": {"eu": {"number": 1, "hosts": {"eu-a": host}}}, "settings": settings}
    (tmp_path / "instance.json").write_text(json.dumps(described))
    command = [
        HELIOGRAPH,
        "hosts",
        "render",
        str(tmp_path / "instance.json"),
        "--ca",
        str(tmp_path / "ca"),
        "--out",
        str(tmp_path / "hosts"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    staged = machine.root / "opt" / "heliograph" / "etc.next"
    shutil.copytree(tmp_path / "hosts" / "eu-a", staged)
    for path in staged.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)


class Inside:
    """The machine as a reader's shell."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def run(self, command: Command | str, *, codes: Sequence[int] = (0,)) -> str:
        assert isinstance(command, Command) and tuple(codes) == (0,)
        said = self._machine.run(command.text)
        shown = "".join(f"{' '.join(line.split())}\n" for line in said.strip().splitlines())
        assert not command.shown or pattern(command.shown).fullmatch(shown), (
            f"{command.text}\nprints\n{said}\nand the page shows\n{command.shown}"
        )
        return said


def test_units_of_a_host_from_its_first_boot_to_its_last(machine: Machine, tmp_path: Path) -> None:
    shutil.copytree(wheels(tmp_path / "release", "0.1.0"), machine.root / "srv" / "wheels")
    machine.run("cd /srv/wheels && sha256sum *.whl > /srv/wheels.sums")
    shutil.copy(INSTALL, machine.root / "srv" / "install.sh")
    install = "sh /srv/install.sh /opt/heliograph {} {} /srv/wheels heliograph '--no-compile' heliograph-server"
    machine.run("mkdir /root/python && mount --bind /srv/python /root/python")
    refused = machine.run(f"{install.format('r0', '/root/python/bin/python3')} 2>&1", check=False)
    assert (
        "/root/python/bin/python3 lies in a home (/root/python)" in refused
        and not (machine.root / "opt/heliograph/releases/r0").exists()
    ), refused
    machine.run(install.format("r1", PYTHON_INSIDE))
    copied(machine, tmp_path, {"broker": {"cache_mb": 16}, "log": {"format": "json"}})
    assert machine.run("/opt/heliograph/releases/r1/bin/heliograph host activate --release r1").split()[-1] == "started"
    machine.run("heliograph host provision && heliograph host well")

    open_to_others = "find /var/lib/heliograph /opt/heliograph/etc ! -type l -perm /077"
    assert machine.run(open_to_others) == ""

    reader = Reader(Page.read("systemd.md"), Inside(machine))  # type: ignore[arg-type]
    reader.section("What runs")
    limited(machine)
    service = ("--service", f"pulsar://{ADDRESS}:6650")
    consume = (HELIOGRAPH, "consume", TOPIC, "-s", "all", *service)
    machine.reached(*consume, "-n", "0", "--timeout", "1")
    machine.reached(HELIOGRAPH, "produce", TOPIC, "-m", "before", *service)
    killed = {name: pid_of(machine, name) for name in ("eu-a-broker-0", "eu-a-bookie-0")}
    for command, said in reader.steps("A process dies"):
        assert said.strip() != "NRestarts=0"
        if "kill" in command:
            for name, former in killed.items():
                eventually(
                    lambda name=name, former=former: pid_of(machine, name) not in (0, former),
                    f"{name} is started again",
                )
    assert machine.reached(*consume, "-n", "1", "--timeout", "300").split() == ["before"]
    logged = [
        json.loads(line) for line in reader.section("Its log")[0].splitlines() if '"event": ' in line
    ]  # `{"ready": …}` is no line of a log
    assert logged and all(line["node"] == "eu-a-broker-0" for line in logged)
    shipped(machine)
    reader.section("Limits")
    assert machine.run("systemctl show --property=NRestarts --value heliograph-eu-a-meta").split() == ["0"]

    # An upgrade: the host's turn, its processes stopped and started by systemd, another release in use.
    machine.run("cp -a /opt/heliograph/releases/r1 /opt/heliograph/releases/r2")
    copied(machine, tmp_path, {"broker": {"cache_mb": 24}, "log": {"format": "json"}})
    before = {name: pid_of(machine, name) for name in UNITS}
    assert machine.run("heliograph host activate --release r2").split()[-1] == "changed"
    assert all(pid_of(machine, name) not in (0, pid) for name, pid in before.items())
    assert machine.run("readlink /opt/heliograph/current").split() == ["releases/r2"]

    # A reboot: every unit is enabled, nothing is lost, and each process ended by itself.
    machine.reached(HELIOGRAPH, "produce", TOPIC, "-m", "before the reboot", *service)
    machine.reboot()
    machine.run("heliograph host well")
    assert machine.reached(*consume, "-n", "1", "--timeout", "300").strip() == "before the reboot"
    stopped = reader.section("Stop, and start")
    assert stopped[1] == "", "no unit is left running"
    reader.finish()
    for name in UNITS:
        assert "Result=success" in machine.run(f"systemctl show --property=Result heliograph-{name}")
    late = machine.run(
        "journalctl --no-pager --output=cat -u 'heliograph-*' --grep='timed out|Killing process'", check=False
    )
    assert late.strip() in ("", "-- No entries --")
    said = machine.run(
        "journalctl --no-pager --output=cat -u 'heliograph-*' --grep='Deactivated successfully'"
    ).splitlines()
    for name in UNITS:  # at the upgrade, at the reboot, by `host stop`
        assert said.count(f"heliograph-{name}.service: Deactivated successfully.") >= 3, said

    # Taken away, nothing is left.
    machine.run("heliograph host leave --whole-region")
    assert machine.run("systemctl list-unit-files --no-legend 'heliograph-*'", check=False) == ""
    assert (
        machine.run("ls /etc/systemd/system | grep heliograph", check=False) == ""
        and machine.run("ls /var/lib").count("heliograph") == 0
    )
    assert machine.run("pgrep -u heliograph", check=False) == ""


def shipped(machine: Machine) -> None:
    """logs.md's rsyslog, both sides here: every line of every process arrives in its file, also those that were written
    while the log server was away.
    """
    program = programs.rsyslogd()
    inside = Path("/srv/rsyslog")
    shutil.copytree(program.parents[2], machine.root / "srv" / "rsyslog")
    modules = next(path for path in program.parents[1].glob("lib/*/rsyslog"))
    for side, text in zip(
        ("agent", "server"), re.findall(r"```rsyslog\n(.*?)```", path_of("logs.md").read_text(), re.DOTALL), strict=True
    ):
        placed = text.replace("logs.example", "127.0.0.1").replace("/var/spool/rsyslog", f"/var/spool/rsyslog-{side}")
        (machine.root / "srv" / f"{side}.conf").write_text(placed)
        (machine.root / "var" / "spool" / f"rsyslog-{side}").mkdir()
    libraries = programs.libraries(program).replace(str(program.parents[2]), str(inside))

    def start(side: str) -> None:
        words = (
            f"{inside}/usr/sbin/rsyslogd -n -i NONE -f /srv/{side}.conf -M "
            f"{inside / modules.relative_to(program.parents[2])}"
        )
        machine.run(f"systemd-run --quiet --collect --unit=ship-{side} --setenv=LD_LIBRARY_PATH={libraries} {words}")

    def written(name: str) -> list[str]:
        said = machine.run(f"journalctl --no-pager --output=cat _SYSTEMD_UNIT=heliograph-{name}.service").splitlines()
        return [line for line in said if '"event": ' in line]

    def arrived(name: str) -> list[str]:
        path = machine.root / "var" / "log" / "heliograph" / "eu" / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []

    def in_step() -> bool:
        """All are there. A line may come twice: the agent sends again what was not answered, and the journal gives
        again what it was at as its file changed.
        """
        return all(list(dict.fromkeys(arrived(name))) == list(dict.fromkeys(written(name))) for name in UNITS)

    start("agent")
    start("server")
    eventually(in_step, "every line arrives, in order")
    machine.run("systemctl stop ship-server")
    before = len(written("eu-a-broker-0"))
    machine.run("systemctl restart heliograph-eu-a-broker-0")
    eventually(lambda: len(written("eu-a-broker-0")) > before, "it writes on")
    start("server")
    eventually(in_step, "what was written meanwhile, too")
    machine.run("systemctl stop ship-agent ship-server")
    assert [line for name in UNITS for line in arrived(name) if json.loads(line)["region"] != "eu"] == []


def pid_of(machine: Machine, name: str) -> int:
    return int(machine.run(f"systemctl show --property=MainPID --value heliograph-{name}"))


def limited(machine: Machine) -> None:
    """What units ask for is what processes have: who they are, files, shares, and where they may write."""
    for name in UNITS:
        pid = pid_of(machine, name)
        files = re.search(r"Max open files\s+(\d+)", machine.run(f"cat /proc/{pid}/limits"))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert files is not None and int(files[1]) in (1048576, hard), files
        assert machine.run(f"stat -c %U /proc/{pid}").strip() == "heliograph"
        shares = machine.run(f"systemctl show --property=IOWeight --property=CPUWeight heliograph-{name}").split()
        assert sorted(shares) == ["CPUWeight=100", f"IOWeight={100 if 'bookie' in name else 400}"]
        assert f"0::/system.slice/heliograph-{name}.service" in machine.run(f"cat /proc/{pid}/cgroup").splitlines()
        sees = f"nsenter -t {pid} --mount --"
        assert machine.run(f"{sees} touch /var/lib/heliograph/{name}.here && echo may") == "may\n"
        assert "Read-only" in machine.run(f"{sees} touch /opt/heliograph/there 2>&1", check=False)
        assert machine.run(f"{sees} ls /root 2>/dev/null", check=False) == ""
