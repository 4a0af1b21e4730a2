"""Links between two regions on this machine: a backlog drained with and without a long way between them, and what
draining costs local publishing.

    python -m benchmarks.links [--megabytes 1024] [--rtt-ms 100]

All in one run, so that the noise of the machine is the same for both sides of each ratio:
- *distance*: throughput of draining one backlog with `rtt_ms` between the regions, over that of draining an equal one
  with none. Goal: 0.8 or more.
- *local*: median time of one publish in the source region while a backlog drains, over the median with nothing else to
  do. Goal: 1.5 or less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from geo_tests.wan.instance import Instance, eventually, rest

NAMESPACE = "public/links"
MESSAGE = bytes(64 << 10)


class Bench:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        instance.namespace(NAMESPACE, ["us", "eu"], deduplication=False)
        self.client = instance.client("us")
        self.proxies = instance.proxies("link", "us", "eu")
        self.lone: Any = self.client.create_producer(f"persistent://{NAMESPACE}/lone", batching_enabled=False)

    def publishes(self, seconds: float, until: Any = None) -> list[float]:
        """Milliseconds of each of the publishes that went one behind another, at most 50 a second."""
        took = []
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and (until is None or not until()):
            began = time.perf_counter()
            self.lone.send(b"x" * 100)
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(max(0.0, 0.02 - took[-1] / 1000))
        return took

    def left(self, topic: str) -> int:
        found = rest(
            "GET", f"{self.instance.admin('us')}/heliograph/v1/topics/{topic.removeprefix('persistent://')}/risk"
        )
        return int(found["not_yet_elsewhere"]["eu"]["messages"])

    def drain(self, name: str, megabytes: int, rtt_ms: int, watch: bool = False) -> tuple[float, list[float]]:
        """(MB/s, publishes meanwhile) of a backlog that piled up while the link was cut."""
        topic = f"persistent://{NAMESPACE}/{name}"
        producer = self.client.create_producer(
            topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=0
        )
        producer.send(b"first")
        eventually(lambda: self.left(topic) == 0, "the link is up")
        for proxy in self.proxies:
            self.instance.toxiproxy.cut(proxy.name)
        for _ in range(megabytes * 16):
            producer.send_async(MESSAGE, lambda *_: None)
        producer.flush()
        producer.close()
        for proxy in self.proxies:
            self.instance.toxiproxy.heal(proxy.name)
            self.instance.toxiproxy.latency(proxy.name, rtt_ms // 2, 0)
        total = megabytes * 16
        eventually(lambda: self.left(topic) < total, "the link goes on", 60)
        began, there = time.monotonic(), self.left(topic)
        took = self.publishes(600, lambda: self.left(topic) == 0) if watch else []
        eventually(lambda: self.left(topic) == 0, "drained", 600)
        return there / 16 / max(0.001, time.monotonic() - began), took


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.links", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rtt-ms", type=int, default=100)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wan = Path(folder) / "wan.json"
        wan.write_text(json.dumps({"us-eu": {"rtt_ms": 1}}))
        instance = Instance(Path(folder) / "data", regions=("us", "eu"), wan=str(wan))
        try:
            bench = Bench(instance)
            bench.publishes(2)
            alone = statistics.median(bench.publishes(8))
            near, meanwhile = bench.drain("near", chosen.megabytes, 0, watch=True)
            far, _ = bench.drain("far", chosen.megabytes, chosen.rtt_ms)
            again, _ = bench.drain("again", chosen.megabytes, 0)
            busy = statistics.median(meanwhile)
            print(
                f"draining {chosen.megabytes} MB: {near:.0f} and {again:.0f} MB/s without delay, {far:.0f} MB/s at "
                f"{chosen.rtt_ms} ms"
            )
            print(f"distance: {far / again:.2f} (goal 0.8 or more)")
            print(
                f"publish p50: {alone:.2f} ms alone, {busy:.2f} ms while draining ({len(meanwhile)} publishes): "
                f"{busy / alone:.2f} (goal 1.5 or less)"
            )
        finally:
            instance.down()


if __name__ == "__main__":
    main()
