"""Official clients that come to the region that is not the active one, or are there when it becomes that."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

from geo_tests.wan.disaster import active_passive, dr, numbers
from geo_tests.wan.instance import Instance, eventually, rest


class LoggedClient:
    """`geo_tests.wan.logged_client` in a process of its own: where it fails, a signal ends it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "geo_tests.wan.logged_client", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.confirmed = 0
        self.last = ""
        self._threads = [threading.Thread(target=work) for work in (self._read, self._read_errors)]
        self._errors = ""
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = line.strip()
            if self.last.isdigit():
                self.confirmed = int(self.last)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors = (self._errors + line)[-2000:]

    def wait_for(self, more: int) -> None:
        wanted = self.confirmed + more
        eventually(lambda: self.process.poll() is not None or self.confirmed >= wanted, f"{more} more are confirmed")
        assert self.process.poll() is None, f"its process has ended: {self.process.returncode}\n{self._errors}"

    def end(self) -> str:
        """What it says at its end."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.wait(60) == 0, self._errors
        self.close()
        return self.last

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()


def clients(instance: Instance, region: str, topic: str) -> tuple[int, int]:
    """(Producers, consumers) of a topic in a region."""
    stats: dict[str, Any] = rest(
        "GET", f"{instance.admin(region)}/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats"
    )
    return len(stats["publishers"]), sum(len(found["consumers"]) for found in stats["subscriptions"].values())


def test_a_program_with_a_logger_of_its_own_is_led_to_the_active_region_and_publishes_each_message_once(
    pair: Instance,
) -> None:
    """Its own region has two brokers: whichever it asks, the owner knows what it is about."""
    namespace, topic = "public/logged", "persistent://public/logged/orders"
    active_passive(pair, namespace, "eu")
    program = LoggedClient(pair.state["regions"]["us"]["service_url"], topic, "logged")
    try:
        program.wait_for(100)
        assert clients(pair, "eu", topic) == (1, 0)
        for to in ("us", "eu"):
            dr(pair, "us", "switchover", namespace, "--to", to)
            program.wait_for(100)
            eventually(lambda to=to: clients(pair, to, topic)[0] == 1, f"it publishes in {to}")
            assert clients(pair, "us", topic)[1] == 1, "its consumer stays"
        said = program.end().split()
    finally:
        program.close()
    sent = int(said[1])
    assert said == ["sent", str(sent), "got", str(sent)]
    for region in ("us", "eu"):
        eventually(lambda region=region: len(numbers(pair, region, topic)) >= sent, f"everything is in {region}")
        assert numbers(pair, region, topic) == dict.fromkeys(range(sent), 1), "each message once"
