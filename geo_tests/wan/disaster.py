"""What tests of disaster recovery share: a load that counts, the commands, cutting a region off.

Is: around a running `Instance`. Isn't: a fixture (conftest.py), or a test.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

import pulsar

from geo_tests.wan.instance import Instance, eventually, heliograph, rest

stopped_pids: set[int] = set()
"""Processes that a test has stopped (SIGSTOP): continued when the instance ends, whatever happened."""


class Load:
    """One producer that sends numbers, each until it is confirmed, from a thread of its own."""

    def __init__(self, client: Any, topic: str, name: str, first: int = 0, every_s: float = 0.005) -> None:
        self.first, self.ids, self._every_s = first, dict[int, tuple[int, int]](), every_s
        self._producer = client.create_producer(
            topic, producer_name=name, send_timeout_millis=0, block_if_queue_full=True, batching_enabled=False
        )
        self.confirmed: list[int] = []
        self.sent = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            number = self.sent
            self.sent += 1
            self._producer.send_async(
                str(number).encode(), lambda result, at, number=number: self._answered(result, at, number)
            )
            self._stop.wait(self._every_s)

    def _answered(self, result: Any, at: Any, number: int) -> None:
        if result == pulsar.Result.Ok:
            self.ids[number] = (at.ledger_id(), at.entry_id())
            self.confirmed.append(number)

    def wait_for(self, more: int) -> None:
        wanted = len(self.confirmed) + more
        eventually(lambda: len(self.confirmed) >= wanted, f"{more} more messages are confirmed")

    def settled(self) -> int:
        """How many are confirmed, once the client has told of all that it was told: nothing more for three seconds."""
        last, since = len(self.confirmed), time.monotonic()

        def quiet() -> bool:
            nonlocal last, since
            if (now := len(self.confirmed)) != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since > 3

        eventually(quiet, "no receipt comes any more")
        return last

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        eventually(lambda: len(self.confirmed) == self.sent - self.first, "everything that was sent is confirmed")
        self._producer.close()


def dr(instance: Instance, region: str, *arguments: str, check: bool = True) -> Any:
    done = heliograph("dr", *arguments, "--admin", instance.admin(region), "--json", check=check)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def active_passive(instance: Instance, name: str, active: str) -> None:
    instance.namespace(name, ["us", "eu"])
    dr(instance, active, "set", name, "--active", active)
    eventually(lambda: takes(instance, active, name), f"{active} takes messages")


def takes(instance: Instance, region: str, name: str) -> bool:
    rows = rest("GET", f"{instance.admin(region)}/heliograph/v1/dr")["namespaces"]
    return any(row["namespace"] == name and row["writable_here"] for row in rows)


def cut_off(instance: Instance, region: str, *, cut: bool, kinds: tuple[str, ...] = ("link", "config")) -> None:
    """Every connection between `region` and the others, in both directions."""
    for name in instance.toxiproxy.proxies():
        kind, way, *_ = name.split(".")
        if kind in kinds and region in way.split("-"):
            (instance.toxiproxy.cut if cut else instance.toxiproxy.heal)(name)


def numbers(instance: Instance, region: str, topic: str) -> Counter[int]:
    return Counter(int(body) for body in instance.read_all(region, topic))


def back(instance: Instance, region: str, topic: str) -> list[str]:
    try:
        return instance.read_all(region, topic)
    except pulsar.PulsarException:
        return []
