"""Traffic tiers: which topics share a query, by how many bytes a second they get. `python -m
heliograph.spark.jobs.tiers` prints job files' topic lists.

Is: pure functions of loads, and asking brokers for the loads. Isn't: moving a topic from a running query to another
(`tiered_queries`).
Light topics share one query, and cost it nothing by themselves; middling ones are packed, the biggest first, each into
the query that has the least; a heavy one has a query of its own, so that its backlog holds up nobody. A topic that
moves costs two queries a stop, so who is near a limit stays where it is.
Source: docs/spark.md, "Traffic tiers".
"""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

import typer

from heliograph.client.admin_http import Http
from heliograph.model.errors import ConfigError, NotFound
from heliograph.model.topic_names import TopicName
from heliograph.spark.scan.source_options import Options

LIGHT_BYTES_S, HEAVY_BYTES_S = 100_000.0, 10_000_000.0
MIDDLE_BYTES_S = 10_000_000.0
TRIGGERS = {"light": "60 seconds", "middle": "10 seconds", "heavy": "0 seconds"}
_SLACK = 2.0


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """Topics of one query. tier: light, middle, heavy; bytes_s: of all of them."""

    name: str
    tier: str
    topics: tuple[str, ...]
    bytes_s: float

    @property
    def trigger(self) -> str:
        return TRIGGERS[self.tier]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLimits:
    """middle_bytes_s: what a query of middling topics should get at most; queries_max: of all tiers together. Raises
    ConfigError.
    """

    light_bytes_s: float = LIGHT_BYTES_S
    heavy_bytes_s: float = HEAVY_BYTES_S
    middle_bytes_s: float = MIDDLE_BYTES_S
    queries_max: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.light_bytes_s <= self.heavy_bytes_s or self.middle_bytes_s <= 0 or self.queries_max < 1:
            raise ConfigError(
                "light_bytes_s is at most heavy_bytes_s, middle_bytes_s is above 0, and queries_max at least 1"
            )


def plan(loads: Mapping[str, float], limits: TierLimits) -> list[TopicGroup]:
    """loads: bytes a second by topic.

    Where there are more heavy topics than queries, the lightest of them are packed like middling ones. Same loads, same
    plan.
    """
    light_bytes_s, heavy_bytes_s, middle_bytes_s, queries_max = (
        limits.light_bytes_s,
        limits.heavy_bytes_s,
        limits.middle_bytes_s,
        limits.queries_max,
    )
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
    count = min(
        len(middle), room - own, max(1, -(-int(sum(loads[topic] for topic in middle)) // max(1, int(middle_bytes_s))))
    )
    groups = [_group(f"heavy-{number}", "heavy", [topic], loads) for number, topic in enumerate(heavy)]
    groups += [
        _group(f"middle-{number}", "middle", topics, loads)
        for number, topics in enumerate(packed(middle, loads, count))
    ]
    return groups + ([_group("light", "light", light, loads)] if light else [])


def replanned(now: Sequence[TopicGroup], loads: Mapping[str, float], limits: TierLimits) -> list[TopicGroup]:
    """The same from what is there, with few moves. now: groups of an earlier plan; `light` may be left out, whose
    topics are those of no other.

    A topic comes into a higher tier at its limit, and leaves it below half of that. Heavy ones keep their query.
    Middling ones keep theirs, and new ones come to the query that has the least, until one has more than twice what the
    most loaded had if all were packed anew, or the number of queries changes.
    """
    tiers = {topic: group.tier for group in now for topic in group.topics}
    sticky = {topic: _sticky(load, tiers.get(topic, "light"), limits) for topic, load in loads.items()}
    fresh = plan(sticky, limits)
    made = [_group(group.name, group.tier, group.topics, loads) for group in fresh if group.tier == "light"]
    homes = {group.topics[0]: group.name for group in now if group.tier == "heavy"}
    heavy = [group.topics[0] for group in fresh if group.tier == "heavy"]
    free = (
        name
        for number in range(len(heavy) + len(homes))
        if (name := f"heavy-{number}") not in {homes[topic] for topic in heavy if topic in homes}
    )
    made += [_group(homes.get(topic) or next(free), "heavy", [topic], loads) for topic in heavy]
    return [
        *made,
        *_middling(
            [group for group in now if group.tier == "middle"],
            [group for group in fresh if group.tier == "middle"],
            loads,
        ),
    ]


def _middling(now: Sequence[TopicGroup], fresh: Sequence[TopicGroup], loads: Mapping[str, float]) -> list[TopicGroup]:
    wanted = {topic for group in fresh for topic in group.topics}
    homes = {group.name: [topic for topic in group.topics if topic in wanted] for group in now}
    if len(homes) == len(fresh):
        sizes = {name: sum(loads[topic] for topic in topics) for name, topics in homes.items()}
        for topic in sorted(wanted.difference(*homes.values()), key=lambda topic: (-loads[topic], topic)):
            least = min(homes, key=lambda name: (sizes[name], name))
            homes[least].append(topic)
            sizes[least] += loads[topic]
        most = max((group.bytes_s for group in fresh), default=0.0)
        if all(homes.values()) and max(sizes.values(), default=0.0) <= _SLACK * most:
            return [_group(name, "middle", topics, loads) for name, topics in homes.items()]
    return [_group(group.name, "middle", group.topics, loads) for group in fresh]


def _sticky(load: float, tier: str, limits: TierLimits) -> float:
    """What it counts as: of a topic that is in a higher tier already, that one's limit, unless it has come far
    below.
    """
    if tier == "heavy" and load * _SLACK >= limits.heavy_bytes_s:
        return max(load, limits.heavy_bytes_s)
    if tier != "light" and load * _SLACK >= limits.light_bytes_s:
        return max(load, limits.light_bytes_s)
    return load


def packed(topics: Sequence[str], loads: Mapping[str, float], count: int) -> list[list[str]]:
    """In `count` heaps: each topic, the biggest first, to the one that has the least. No heap is empty where there are
    topics enough.
    """
    heaps: list[tuple[float, int, list[str]]] = [(0.0, number, []) for number in range(count)]
    for topic in sorted(topics, key=lambda topic: (-loads[topic], topic)):
        size, number, members = heapq.heappop(heaps)
        members.append(topic)
        heapq.heappush(heaps, (size + loads[topic], number, members))
    return [members for _, _, members in sorted(heaps, key=lambda heap: heap[1])]


def _group(name: str, tier: str, topics: Sequence[str], loads: Mapping[str, float]) -> TopicGroup:
    return TopicGroup(name, tier, tuple(sorted(topics)), sum(loads[topic] for topic in topics))


def measured(http: Http, topics: Sequence[str]) -> dict[str, float]:
    """Bytes a second that are published to each, as its broker says. Partitions count for their topic; one that is gone
    meanwhile is left out.
    """
    found: dict[str, float] = {}
    for topic in topics:
        name = TopicName.parse(topic)
        path = f"/admin/v2/persistent/{name.tenant}/{name.namespace_local}/{quote(name.local, safe='')}/stats"
        try:
            rate = float(http.json("GET", path)["msgThroughputIn"])
        except NotFound:
            continue
        whole = str(name.partitioned)
        found[whole] = found.get(whole, 0.0) + rate
    return found


def loads(given: Mapping[str, str]) -> dict[str, float]:
    """Measures all topics that a source with those options reads, as they are now, in bytes a second. Asks once for
    each topic and partition. Raises as Options and Http do.
    """
    options = Options(dict(given))
    reader, http = options.reader(), Http(options.admin_url, token=options.current_token(), tls=options.tls())
    try:
        return measured(http, options.topics(reader))
    finally:
        reader.close()
        http.close()


def main(
    admin_url: Annotated[str, typer.Option(help="Of any broker of the region.")],
    namespace: Annotated[str, typer.Option(help="tenant/name")],
    topics_pattern: Annotated[
        str, typer.Option(help="A regular expression for the last part of the topics' names.")
    ] = ".*",
    token_file: Annotated[str, typer.Option(help="A file with a token, where the region wants one.")] = "",
    light_bytes_s: Annotated[float, typer.Option(help="Topics with less share one query.")] = LIGHT_BYTES_S,
    heavy_bytes_s: Annotated[
        float, typer.Option(help="Topics with as much have a query of their own.")
    ] = HEAVY_BYTES_S,
    queries_max: Annotated[int, typer.Option(help="Of all tiers together.")] = 20,
) -> None:
    """Ask brokers how much each topic gets, and print groups of topics as JSON: name, tier, trigger, bytes_s,
    topics.
    """
    limits = TierLimits(light_bytes_s=light_bytes_s, heavy_bytes_s=heavy_bytes_s, queries_max=queries_max)
    given = {"admin_url": admin_url, "namespace": namespace, "topics_pattern": topics_pattern} | (
        {"token_file": token_file} if token_file else {}
    )
    for group in plan(loads(given), limits):
        row = {
            "name": group.name,
            "tier": group.tier,
            "trigger": group.trigger,
            "bytes_s": round(group.bytes_s),
            "topics": group.topics,
        }
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    typer.run(main)
