"""Hosts for tests: network namespaces with addresses, disks, and an SSH server of their own, on one machine.

Is: `Network`, a bridge in a namespace of its own, where a test's commands run too; hosts come and go. Each has its own
/opt, /srv, /tmp, and /run, and no systemd. Isn't: anything of Heliograph. Wants root and iproute2. The machine's own
network and folders are not touched; everything ends with `close`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.system import programs

PYTHON = str(Path(getattr(sys, "_base_executable", sys.executable)))
"""The machine's, from which hosts make environments."""
_SUBNET = "10.66.0"
_READY_S = 180.0
_PROGRAMS = "/run/sshd/programs"
"""Where a host sees the SSH server: the folder that it was unpacked to may lie below a /tmp that is not the host's."""


class Network:
    """`address(n)`: of the n-th host, from 2 on."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("network namespaces and an SSH server of their own want root, which this user is not")
        if shutil.which("ip") is None or shutil.which("ssh-keygen") is None or shutil.which("unshare") is None:
            pytest.skip("network namespaces want iproute2, OpenSSH's client, and util-linux, of which one is absent")
        self.folder, self._sshd = folder, programs.sshd()
        self._tag = f"hg{os.getpid()}"
        self._hosts: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self.key = folder / "key"
        for name in ("key", "host_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        done = subprocess.run(["ip", "netns", "add", self._tag], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
        try:
            self._ip("link", "add", "bridge", "type", "bridge")
            self._ip("addr", "add", f"{_SUBNET}.1/24", "dev", "bridge")
            for device in ("lo", "bridge"):
                self._ip("link", "set", device, "up")
        except BaseException:
            self.close()
            raise

    def _ip(self, *words: str) -> None:
        run("ip", "-n", self._tag, *words)

    @property
    def host_key(self) -> str:
        """The public key that every host shows."""
        return (self.folder / "host_key.pub").read_text().strip()

    @staticmethod
    def address(number: int) -> str:
        return f"{_SUBNET}.{number}"

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command where the hosts can be reached."""
        return ["ip", "netns", "exec", self._tag, *command]

    def disk(self, name: str, folder: str) -> Path:
        """A host's /opt or /srv, as this machine sees it."""
        return self.folder / "disks" / name / folder.strip("/")

    def add(self, name: str, number: int) -> str:
        """Starts a host with the disks of that name; returns its address."""
        space = f"{self._tag}-{name}"
        run("ip", "netns", "add", space)
        self._ip("link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
        self._ip("link", "set", f"v{number}", "master", "bridge", "up")
        run("ip", "-n", space, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", space, "link", "set", device, "up")
        for folder in ("opt", "srv", "tmp", _PROGRAMS):
            self.disk(name, folder).mkdir(parents=True, exist_ok=True)
        self.disk(name, "run/sshd").chmod(0o755)
        start = self._start_file(name, self.address(number))
        with (self.folder / f"{name}.sshd.log").open("ab") as log:
            command = ["ip", "netns", "exec", space, "unshare", "--mount", "--propagation", "private", "sh", str(start)]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._hosts[name] = (space, process)
        deadline = time.monotonic() + _READY_S
        probe = [
            sys.executable,
            "-c",
            f"import socket; socket.create_connection(('{self.address(number)}', 22), 2).close()",
        ]
        while subprocess.run(self.inside(probe), capture_output=True).returncode:
            said = (self.folder / f"{name}.sshd.log").read_text()
            assert process.poll() is None and time.monotonic() < deadline, (
                f"the SSH server of {name} does not answer: {said}"
            )
            time.sleep(0.1)
        return self.address(number)

    def _start_file(self, name: str, address: str) -> Path:
        passwd, config, start = (self.folder / f"{name}.{end}" for end in ("passwd", "sshd_config", "start"))
        passwd.write_text(Path("/etc/passwd").read_text() + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
        lines = {
            "HostKey": self.folder / "host_key",
            "ListenAddress": address,
            "AuthorizedKeysFile": self.folder / "key.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "MaxStartups": "100",
        }
        config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        mounts = [f"mount --bind '{self.disk(name, folder)}' /{folder}" for folder in ("opt", "srv", "run")]
        root = self._sshd.parents[2]
        server, library = (
            text.replace(str(root), _PROGRAMS) for text in (str(self._sshd), programs.libraries(self._sshd))
        )
        mounts.append(f"mount --bind '{root}' {_PROGRAMS}")
        # /tmp comes last: this very file may lie there.
        last = f"mount --bind '{self.disk(name, 'tmp')}' /tmp; exec {server} -D -e -f /run/sshd/config"
        copies = [f"cp '{config}' /run/sshd/config", f"cp '{self.folder}/host_key' '{self.folder}/key.pub' /run/sshd/"]
        text = config.read_text().replace(f"{self.folder}/", "/run/sshd/")
        config.write_text(text)
        start.write_text(
            "\n".join(
                [
                    "set -e",
                    f"mount --bind '{passwd}' /etc/passwd",
                    *mounts,
                    *copies,
                    f"export LD_LIBRARY_PATH='{library}'",
                    last,
                ]
            )
            + "\n"
        )
        return start

    def cable(self, number: int, *, plugged: bool) -> None:
        """Of the n-th host: nothing reaches it, and it reaches nobody, while it is out."""
        self._ip("link", "set", f"v{number}", "up" if plugged else "down")

    def processes(self, name: str) -> list[int]:
        """Of a host, but its SSH server: process ids."""
        space, server = self._hosts[name]
        found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in found if int(pid) != server.pid and b"sshd" not in _command(int(pid))]

    def break_down(self, name: str) -> None:
        """The host is gone, with its disks: all of its processes at once, then its network."""
        space, server = self._hosts.pop(name)
        remove_space(space)
        server.wait(_READY_S)
        shutil.rmtree(self.folder / "disks" / name, ignore_errors=True)

    def close(self) -> None:
        for name in list(self._hosts):
            self.break_down(name)
        remove_space(self._tag)


def remove_space(space: str) -> None:
    """A network namespace, with all of its processes."""
    for _ in range(600):
        pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split()
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)
    subprocess.run(["ip", "netns", "del", space], capture_output=True)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
