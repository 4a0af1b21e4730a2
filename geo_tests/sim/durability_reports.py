"""Durability reports: what a topic says of receipts that mean several regions is compared with the truth.

Is: an eye on each receipt of a world whose topics have the policy `durability` (`WorldSettings.durable`), and on what
their owners show (`GET …/durability`). Isn't: another report of the product (`reports`).

A receipt for which no other region had the entry is on the list of affected ranges, of whichever owner is asked later;
nobody says that a region has more than it has. Once everything is healed, nothing waits or is degraded, and all that
was affected has arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.model.topic_names import TopicName
from replicator.log.region_durability import RegionWaits

if TYPE_CHECKING:
    from geo_tests.sim.world import World

DURABILITY: dict[str, Any] = {"durability": {"regions": 2, "degradeAfterMs": 600}}
"""The policy: a receipt means another region, or is on the list."""
SUSPICIONS_MAX = 3


class DurabilityReports:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._short: dict[tuple[str, str], set[Position]] = {}
        """(topic, region) -> what was confirmed there while no other region had it."""
        self._newest: dict[tuple[str, str], int] = {}
        """(topic, region) -> since when the newest of its owners had it; an older one is fenced, and knows less."""
        self._suspicions: dict[tuple[str, str, str], int] = {}

    def receipt(self, topic: str, region: str, position: Position) -> None:
        """A client got it just now."""
        if not self._world.settings.durable or position <= BEFORE_ALL:
            return
        logs = self._logs(topic)
        if logs.keys() != self._world.regions.keys():
            return  # somewhere nobody who lives knows what is there
        origins = logs[region].state.own_origins()
        if not any(log.vector.holds(one, position) for r, log in logs.items() if r != region for one in origins):
            if not self._short:
                self._world.verdict.kinds.append("receipts of one region")
            self._short.setdefault((topic, region), set()).add(position)

    def look(self) -> None:
        """Raises Violation."""
        if not self._world.settings.durable:
            return
        for topic in self._world.topics:
            logs = self._logs(topic)
            for region, log in logs.items():
                told = shown(log)
                self._compare_listed(topic, region, told)
                for other, reached in told["reached"].items():
                    if other in logs:
                        self._compare_reached(topic, region, other, tuple(reached), logs)

    def final(self) -> str:
        """What is not as it should be in the end: "": nothing."""
        for topic in self._world.topics if self._world.settings.durable else ():
            for region, log in self._logs(topic).items():
                told = shown(log)
                left = [one for one in told["affected"] if not one["arrived_since"]]
                if told["degraded"] or told["waiting"] or left or log.waits is None:
                    return f"{topic} in {region} says {told}"
        return ""

    def _logs(self, topic: str) -> dict[str, Any]:
        """Region -> the log of the newest owner that it ever had."""
        found = {}
        for region, name, node, log in self._world.probes.owners():
            if name == topic:
                since = owned_since(node, topic)
                if since >= self._newest.get((topic, region), since):
                    self._newest[topic, region] = since
                    found[region] = log
        return found

    def _compare_listed(self, topic: str, region: str, told: dict[str, Any]) -> None:
        ranges = [(tuple(one["after"]), tuple(one["through"])) for one in told["affected"]]
        self._world.verdict.reports["durability, affected"] += 1
        short = self._short.get((topic, region), set())
        if left := sorted(at for at in short if not any(after < at <= through for after, through in ranges)):
            raise Violation(
                f"{topic} in {region}: {left[:3]} were confirmed with no other region, and are not on the list {ranges}"
            )
        if told["affected_messages"] < len(short):
            raise Violation(f"{topic} in {region}: {told['affected_messages']} messages are affected: {sorted(short)}")

    def _compare_reached(self, topic: str, region: str, other: str, reached: Position, logs: dict[str, Any]) -> None:
        key = topic, region, other
        self._world.verdict.reports["durability, reached"] += 1
        there = max(logs[other].vector.prefix(origin) for origin in logs[region].state.own_origins())
        if reached <= there:
            self._suspicions.pop(key, None)
            return
        self._suspicions[key] = self._suspicions.get(key, 0) + 1
        if self._suspicions[key] > SUSPICIONS_MAX:
            raise Violation(f"{topic} in {region} says that {other} has it through {reached}: it has {there}")


def owned_since(node: Any, topic: str) -> int:
    """The version of the owner key by which a broker owns the topic's bundle."""
    ownership, namespace = node.roles[0].ownership, TopicName.parse(topic).namespace
    return int(ownership._core.held[namespace, ownership._book.of(namespace).of(topic)].version)


def shown(log: Any) -> dict[str, Any]:
    """As `GET …/durability` says it."""
    told: dict[str, Any] = (log.waits or RegionWaits.past(log)).shown()
    return told
