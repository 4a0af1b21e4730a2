"""A host for tests with a real systemd as its first process: it boots, is rebooted, and is gone, all on one machine.

Is: `Machine`, in namespaces of its own (processes, mounts, network, host name, control groups): /usr is this machine's,
read-only; /etc is a copy of it; /opt, /srv, /tmp, and /var are its own and stay over a reboot. Isn't: anything of
Heliograph. Wants root, util-linux, and Debian's package systemd.
Invariants: nothing of this machine is written. The kernel's settings are read-only inside, clocks and modules out of
reach; `close` ends every process, and takes away what was made.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from tests.region_node.live import until
from tests.system.hosts import PYTHON

SYSTEMD = Path("/lib/systemd/systemd")
PYTHON_INSIDE = "/srv/python/bin/python3"
"""This machine's Python as a unit sees it: where it is here may be somebody's home, which units may not look into."""
_OWN = (
    "opt",
    "srv",
    "tmp",
    "var/lib",
    "var/log/journal",
    "var/tmp",
    "var/spool",
    "root",
    "run",
    "proc",
    "sys",
    "dev",
    "usr",
    "old",
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_MASKED = (
    "systemd-logind.service",
    "systemd-udevd.service",
    "systemd-timesyncd.service",
    "getty.target",
    "systemd-sysctl.service",
)
"""What has to do with seats, devices, clocks, and the kernel's settings."""
_JOURNAL = "[Journal]\nStorage=persistent\nSystemMaxUse=1G\nSystemKeepFree=1M\nRateLimitIntervalSec=0\n"
"""Nothing is left out, whatever this machine's own settings are, and however full its disk is."""
_LEFT_OUT = "-sys_module,-sys_time,-sys_rawio,-mknod"
_READY_S = 180.0


class Machine:
    """`root`: its files, as this machine sees them."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("a systemd of its own wants root, which this user is not")
        if missing := [
            name
            for name in ("unshare", "nsenter", "pivot_root", "setpriv", "useradd")
            if shutil.which(name, path=_PATH) is None
        ]:
            pytest.skip(f"a systemd of its own wants {missing[0]} of util-linux or passwd, which is absent")
        if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
            pytest.skip(
                "a systemd of its own is found by its parent's /proc/PID/task/PID/children, which this kernel has not"
            )
        if not SYSTEMD.exists():
            pytest.skip(f"{SYSTEMD} is absent: this machine has not Debian's package systemd")
        self.root, self._group = folder / "root", _control_groups() / f"heliograph-test-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._booted = False
        self._log = folder / "boot.log"
        for name in _OWN:
            (self.root / name).mkdir(parents=True)
        (self.root / "tmp").chmod(0o1777)
        subprocess.run(["cp", "-a", "/etc", str(self.root)], check=True)
        for name in ("bin", "sbin", "lib", "lib64", "lib32"):
            if Path("/", name).is_symlink():
                (self.root / name).symlink_to(os.readlink(f"/{name}"))
        units = self.root / "etc" / "systemd" / "system"
        shutil.rmtree(units)
        units.mkdir()
        for name in _MASKED:
            (units / name).symlink_to("/dev/null")
        (self.root / "etc" / "fstab").write_text("")
        (self.root / "etc" / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        (units.parent / "journald.conf.d").mkdir(exist_ok=True)
        (units.parent / "journald.conf.d" / "zz-kept.conf").write_text(_JOURNAL)
        (self.root / "srv" / "python").mkdir()
        (self.root / "etc" / "ld.so.conf.d" / "00-python.conf").write_text(
            "/srv/python/lib\n"
        )  # where it is now, it does not find its own library
        (folder / "boot.sh").write_text(self._script())
        self._boot = ["sh", str(folder / "boot.sh")]

    def _script(self) -> str:
        """What its first process does before it is systemd."""
        root = shlex.quote(str(self.root))
        devices = "\n".join(f"touch dev/{name}; mount --bind /dev/{name} dev/{name}" for name in _DEVICES)
        return f"""set -eu
if [ "${{1:-}}" != inside ]; then
  echo 0 > {self._group}/cgroup.procs
  exec unshare --cgroup sh "$0" inside
fi
mount --make-rprivate /
mount --bind {root} {root}
cd {root}
mount --bind /usr usr
mount -o remount,bind,ro usr
mount --bind {shlex.quote(str(Path(PYTHON).parents[1]))} srv/python
mount -o remount,bind,ro srv/python
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
{devices}
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
pivot_root . old
cd /
umount -l old
ldconfig
exec env -i container=heliograph PATH={_PATH} setpriv --bounding-set={_LEFT_OUT} {SYSTEMD} --unit=multi-user.target --show-status=0
"""  # noqa: E501

    def boot(self) -> None:
        """Returns once every unit that was to start has been started. Skips where this machine does not allow what
        comes before systemd.
        """
        try:
            self._group.mkdir(exist_ok=True)
        except OSError as error:
            pytest.skip(f"a systemd of its own wants control groups, and none can be made here: {error}")
        with self._log.open("ab") as log:
            words = [
                "setpriv",
                "--pdeathsig",
                "KILL",
                "unshare",
                "--mount",
                "--uts",
                "--ipc",
                "--net",
                "--pid",
                "--fork",
                "--kill-child=SIGKILL",
            ]
            self._process = subprocess.Popen(
                [*words, *self._boot], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until(self._is_up, _READY_S)

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            said = self._log.read_text()[-2000:]
            if not self._booted:
                pytest.skip(
                    "a systemd of its own cannot be booted here: "
                    f"{' '.join(said.splitlines()[-1:]) or 'it ended without a word'}"
                )
            raise AssertionError(f"systemd has ended as it booted: {said}")
        first = self._first()
        self._booted = self._booted or bool(first)
        return bool(first) and self.run("systemctl is-system-running", check=False).strip() in ("running", "degraded")

    def _first(self) -> int:
        """The process id that systemd has on this machine; 0: it is not there yet."""
        assert self._process is not None
        words = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(words[0]) if words and Path(f"/proc/{words[0]}/comm").read_text().strip() == "systemd" else 0

    def run(self, command: str, *, check: bool = True) -> str:
        """A line of shell inside, as root; returns what it prints."""
        enter = ["nsenter", "-t", str(self._first()), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        words = [
            *enter,
            "--",
            "env",
            "-i",
            f"PATH=/opt/heliograph/current/bin:{_PATH}",
            "HOME=/root",
            "LANG=C.UTF-8",
            "sh",
            "-c",
            command,
        ]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
        assert not check or done.returncode == 0, (
            f"{command}: {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
        return done.stdout

    def reached(self, *words: str) -> str:
        """A program of this machine that speaks to it over its network; returns what it prints."""
        done = subprocess.run(
            ["nsenter", "-t", str(self._first()), "--net", "--", *words], capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def reboot(self) -> None:
        """As an operator gives it: units are stopped, the machine goes, and comes back with its disks."""
        assert self._process is not None
        self.run("systemctl reboot", check=False)  # its own process ends with the machine
        self._process.wait(_READY_S)
        self.boot()

    def close(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                os.kill(self._process.pid, signal.SIGKILL)  # and its first process with it, and so all of them
            self._process.wait()
        deadline = time.monotonic() + _READY_S
        while self._group.exists():
            for group in sorted(self._group.rglob("*/"), reverse=True):
                _remove(group)
            _remove(self._group)
            assert time.monotonic() < deadline, f"{self._group} is in use: {(self._group / 'cgroup.procs').read_text()}"


_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def _remove(group: Path) -> None:
    try:
        if group.is_dir():
            group.rmdir()
    except OSError:
        time.sleep(0.05)  # a process of it is still going


def _control_groups() -> Path:
    """Where version 2 is: alone, or beside version 1."""
    for place in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (place / "cgroup.procs").exists() and (place / "cgroup.controllers").exists():
            if os.access(place, os.W_OK):
                return place
            pytest.skip(f"a systemd of its own wants control groups, and {place} cannot be written here")
    pytest.skip("a systemd of its own wants control groups of version 2, which this kernel has not mounted")
