"""Traffic tiers: which topics share a query, by how many bytes a second they get. `python -m heliograph.spark.jobs.tiers` prints job files' topic lists.

Is: a pure function of loads, and asking brokers for the loads. Isn't: moving a topic from a running query to another: its position is in that one's checkpoint.
Light topics share one query, and cost it nothing by themselves; middling ones are packed, the biggest first, each into the query that has the least; a heavy
one has a query of its own, so that its backlog holds up nobody. Source: docs/spark.md, "Traffic tiers".
"""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from heliograph.client.http import Http
from heliograph.model.errors import ConfigError, NotFound
from heliograph.model.names import TopicName
from heliograph.spark.options import Access, Options

LIGHT_BYTES_S, HEAVY_BYTES_S = 100_000.0, 10_000_000.0
MIDDLE_BYTES_S = 10_000_000.0
_TRIGGERS = {"light": "60 seconds", "middle": "10 seconds", "heavy": "0 seconds"}


@dataclass(frozen=True, slots=True)
class Group:
    """Topics of one query. tier: light, middle, heavy; bytes_s: of all of them."""

    name: str
    tier: str
    topics: tuple[str, ...]
    bytes_s: float

    @property
    def trigger(self) -> str:
        return _TRIGGERS[self.tier]


def plan(
    loads: Mapping[str, float],
    *,
    light_bytes_s: float = LIGHT_BYTES_S,
    heavy_bytes_s: float = HEAVY_BYTES_S,
    middle_bytes_s: float = MIDDLE_BYTES_S,
    queries_max: int = 20,
) -> list[Group]:
    """loads: bytes a second by topic. middle_bytes_s: what a query of middling topics should get at most; queries_max: of all tiers together.

    Where there are more heavy topics than queries, the lightest of them are packed like middling ones. Same loads, same plan.
    """
    if not 0 <= light_bytes_s <= heavy_bytes_s or middle_bytes_s <= 0 or queries_max < 1:
        raise ConfigError("light_bytes_s is at most heavy_bytes_s, middle_bytes_s is above 0, and queries_max at least 1")
    ranked = sorted(loads, key=lambda topic: (-loads[topic], topic))
    light = [topic for topic in ranked if loads[topic] < light_bytes_s]
    busy = ranked[: len(ranked) - len(light)]
    own = sum(loads[topic] >= heavy_bytes_s for topic in busy)
    room = queries_max - bool(light)
    if busy and room < 1:
        return [_group("all", "light", ranked, loads)]  # one query is allowed, so it is one for all
    if own > room or (own == room and own < len(busy)):
        own = room - 1
    heavy, middle = busy[:own], busy[own:]
    count = min(len(middle), room - own, max(1, -(-int(sum(loads[topic] for topic in middle)) // max(1, int(middle_bytes_s)))))
    groups = [_group(f"heavy-{number}", "heavy", [topic], loads) for number, topic in enumerate(heavy)]
    groups += [_group(f"middle-{number}", "middle", topics, loads) for number, topics in enumerate(packed(middle, loads, count))]
    return groups + ([_group("light", "light", light, loads)] if light else [])


def packed(topics: Sequence[str], loads: Mapping[str, float], count: int) -> list[list[str]]:
    """In `count` heaps: each topic, the biggest first, to the one that has the least. No heap is empty where there are topics enough."""
    heaps: list[tuple[float, int, list[str]]] = [(0.0, number, []) for number in range(count)]
    for topic in sorted(topics, key=lambda topic: (-loads[topic], topic)):
        size, number, members = heapq.heappop(heaps)
        members.append(topic)
        heapq.heappush(heaps, (size + loads[topic], number, members))
    return [members for _, _, members in sorted(heaps, key=lambda heap: heap[1])]


def _group(name: str, tier: str, topics: Sequence[str], loads: Mapping[str, float]) -> Group:
    return Group(name, tier, tuple(sorted(topics)), sum(loads[topic] for topic in topics))


def measured(http: Http, topics: Sequence[str]) -> dict[str, float]:
    """Bytes a second that are published to each, as its broker says. Partitions count for their topic; one that is gone meanwhile is left out."""
    found: dict[str, float] = {}
    for topic in topics:
        name = TopicName.parse(topic)
        path = f"/admin/v2/persistent/{name.tenant}/{name.namespace_local}/{name.local}/stats"
        try:
            rate = float(http.json("GET", path)["msgThroughputIn"])
        except NotFound:
            continue
        whole = str(name.partitioned)
        found[whole] = found.get(whole, 0.0) + rate
    return found


def main(
    admin_url: Annotated[str, typer.Option(help="Of any broker of the region.")],
    namespace: Annotated[str, typer.Option(help="tenant/name")],
    topics_pattern: Annotated[str, typer.Option(help="A regular expression for the last part of the topics' names.")] = ".*",
    token_file: Annotated[str, typer.Option(help="A file with a token, where the region wants one.")] = "",
    light_bytes_s: Annotated[float, typer.Option(help="Topics with less share one query.")] = LIGHT_BYTES_S,
    heavy_bytes_s: Annotated[float, typer.Option(help="Topics with as much have a query of their own.")] = HEAVY_BYTES_S,
    queries_max: Annotated[int, typer.Option(help="Of all tiers together.")] = 20,
) -> None:
    """Ask brokers how much each topic gets, and print groups of topics as JSON: name, tier, trigger, bytes_s, topics."""
    given = {"admin_url": admin_url, "namespace": namespace, "topics_pattern": topics_pattern} | ({"token_file": token_file} if token_file else {})
    options = Options(given)
    reader = options.reader()
    topics = options.topics(reader)
    reader.close()
    access = Access({key: value for key, value in given.items() if key in ("admin_url", "token_file")}, "tiers")
    http = Http(access.admin_url, token=access.current_token(), tls=access.tls())
    try:
        loads = measured(http, topics)
    finally:
        http.close()
    for group in plan(loads, light_bytes_s=light_bytes_s, heavy_bytes_s=heavy_bytes_s, queries_max=queries_max):
        row = {"name": group.name, "tier": group.tier, "trigger": group.trigger, "bytes_s": round(group.bytes_s), "topics": group.topics}
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    typer.run(main)
