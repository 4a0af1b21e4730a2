"""Messages that flow while something is broken, and what of them every region has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pulsar

from region_node.chaos.regions import PATIENCE_S, Regions, eventually


class Stream:
    """Publishes numbered messages from one region, and knows which were acknowledged. `repeats`: those whose receipt
    names no position.

    The C++ client that is given no first sequence takes the broker's last one whenever it connects and has no receipt
    yet, and so begins anew behind messages that it has sent: what follows are repeats, and not stored. With a first
    sequence it never does: what is missing then was lost.
    """

    def __init__(self, regions: Regions, region: str, topic: str, first_sequence: int | None = 1) -> None:
        self.region, self.sent, self.acked = region, 0, 0
        self.repeats: set[int] = set()
        settings = {
            "batching_enabled": False,
            "block_if_queue_full": True,
            "send_timeout_millis": 0,
            "initial_sequence_id": first_sequence,
        }
        self._producer = regions.client(region).create_producer(topic, f"p-{region}", **settings)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._producer.send_async(f"{self.region}-{self.sent}".encode(), partial(self._acked, self.sent))
            self.sent += 1

    def _acked(self, number: int, result: Any, where: Any) -> None:
        if "Ok" in str(result):
            if where.ledger_id() < 0:
                self.repeats.add(number)
            self.acked += 1

    def bodies(self) -> list[str]:
        return [f"{self.region}-{n}" for n in range(self.sent)]

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        self._producer.flush()
        eventually(lambda: self.acked == self.sent, f"{self.region}: all acknowledged", patience_s)


class Arrivals:
    """How many messages of each source the regions' copies of a topic have. What was read once is not read again: a run
    of an hour has a million of them.
    """

    def __init__(self, regions: Regions, topic: str) -> None:
        self._regions, self._topic = regions, topic
        self._seen: dict[str, tuple[Any, Counter[str]]] = {}

    def of(self, region: str) -> Mapping[str, int]:
        """Source -> how many of its messages can be read in `region` now."""
        last, counts = self._seen.get(region, (pulsar.MessageId.earliest, Counter()))
        for message in self._regions.read_on(region, self._topic, last):
            counts[message.data().decode().rpartition("-")[0]] += 1
            last = message.message_id()
        self._seen[region] = (last, counts)
        return counts


def missing(stream: Stream, copy: list[str]) -> str:
    """What is wrong with a region's copy of what the stream published; "": nothing."""
    mine = [int(body.rpartition("-")[2]) for body in copy if body.startswith(f"{stream.region}-")]
    if mine == list(range(stream.sent)):
        return ""
    lost, twice = sorted(set(range(stream.sent)) - set(mine)), len(mine) - len(set(mine))
    repeats = f", {len(stream.repeats & set(lost))} of them answered as repeats" if lost else ""
    what = f"{len(lost)} lost ({lost[0]} to {lost[-1]})" if lost else "none lost"
    return f"{what}{repeats}, {twice} twice, in order: {mine == sorted(mine)}"
