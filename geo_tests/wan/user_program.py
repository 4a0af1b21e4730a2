"""A user's program that publishes numbers in a process of its own, and how tests watch it.

Is: its process, what it says (a number: so many messages are confirmed), a line for it to end. Isn't: the program
(`logged_client`).
"""

from __future__ import annotations

import subprocess
import threading
from typing import Any

from geo_tests.wan.disaster import dr, numbers
from geo_tests.wan.instance import Instance, eventually, rest

_END_S = 60
_SHOWN = 2000


class UserProgram:
    """said: its lines that are no numbers."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.confirmed = 0
        self.said: list[str] = []
        self._errors = ""
        self._threads = [threading.Thread(target=work) for work in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in map(str.strip, self._process.stdout):
            if line.isdigit():
                self.confirmed = int(line)
            else:
                self.said.append(line)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = (self._errors + line)[-_SHOWN:]

    def wait_for(self, more: int) -> None:
        wanted = self.confirmed + more
        eventually(lambda: self._process.poll() is not None or self.confirmed >= wanted, f"{more} more are confirmed")
        assert self._process.poll() is None, f"its process has ended: {self._process.returncode}\n{self._errors}"

    def end(self) -> list[str]:
        """What it has said, to its end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._process.wait(_END_S) == 0, self._errors
        self.close()
        return self.said

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()


def clients(instance: Instance, region: str, topic: str) -> tuple[int, int]:
    """(Producers, consumers) of a topic in a region."""
    stats: dict[str, Any] = rest(
        "GET", f"{instance.admin(region)}/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats"
    )
    return len(stats["publishers"]), sum(len(found["consumers"]) for found in stats["subscriptions"].values())


def switched_to_and_fro(instance: Instance, program: UserProgram, topic: str) -> list[str]:
    """A program whose region is us publishes in eu, in us, in eu again, and ends. Returns what it has said."""
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    try:
        program.wait_for(100)
        assert clients(instance, "eu", topic) == (1, 0)
        consumers = clients(instance, "us", topic)[1]
        for to in ("us", "eu"):
            dr(instance, "us", "switchover", namespace, "--to", to)
            program.wait_for(100)
            eventually(lambda to=to: clients(instance, to, topic)[0] == 1, f"it publishes in {to}")
            assert clients(instance, "us", topic)[1] == consumers, "its consumers stay"
        return program.end()
    finally:
        program.close()


def check_once(instance: Instance, topic: str, sent: int) -> None:
    """Each of so many messages is in each region once."""
    for region in ("us", "eu"):
        eventually(lambda region=region: len(numbers(instance, region, topic)) >= sent, f"everything is in {region}")
        assert numbers(instance, region, topic) == dict.fromkeys(range(sent), 1), "each message once"
