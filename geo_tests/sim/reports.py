"""Reports: whatever a region says of what is missing is compared with the truth, again and again while a world runs.

Is: the facts of topics that `dr status`, failovers, and the console are made of, for each pair of regions: what the
source says that its target lacks, what the target says that it lacks of the source. Isn't: a vector's missing ranges,
which `trimming` looks at where something may be missing.

Nothing is told too low: the source counts all that was confirmed there and is not durable in its target, at any moment;
the target, where it says that it has heard of the source just now, all that was confirmed there TOLD_S ago and is not
here, also in topics that it never had. Nothing is told too high for long: once everything is healed, each says that
nothing is missing.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from geo_tests.sim.region import NAMESPACE
from heliograph.model.positions import BEFORE_ALL, Position
from region_node.dr.operations.namespace_facts import (
    lack_facts,
    lacking,
    link_facts,
    merged,
    topic_facts,
    unopened_facts,
)
from replicator.health.incoming_stats import LOST_S

if TYPE_CHECKING:
    from geo_tests.sim.world import World

TOLD_S = 3.0
"""What was confirmed so long ago is told of by the source's heartbeats, or the silence is, which is none up to 2 s."""
SLACK_S = 0.5
"""What had arrived when a path was cut may be read a little later."""
UNTOLD_MAX = 5
"""So many looks may find otherwise: what waited while a path was cut comes in one go, old heartbeats first; and an
owner that was fenced says what it knew, until it notices.
"""


class _Confirmed:
    """What was confirmed of one topic in one region, by position: `all` of it, and what is `told`, TOLD_S later."""

    __slots__ = ("_young", "all", "told")

    def __init__(self) -> None:
        self.all: list[Position] = []
        self.told: list[Position] = []
        self._young: deque[tuple[float, Position]] = deque()

    def add(self, now: float, position: Position) -> None:
        insort(self.all, position)
        self._young.append((now, position))

    def keep(self, ledgers: Collection[int]) -> None:
        """What lay in other ledgers is gone."""
        self.all = [at for at in self.all if at[0] in ledgers]
        self.told = [at for at in self.told if at[0] in ledgers]
        self._young = deque(young for young in self._young if young[1][0] in ledgers)

    def settle(self, now: float) -> None:
        while self._young and self._young[0][0] <= now - TOLD_S:
            insort(self.told, self._young.popleft()[1])


class Reports:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[str, int] = {}
        """Topic -> how many of its receipts are noted in `_confirmed`."""
        self._confirmed: dict[tuple[str, str], _Confirmed] = {}
        self._low: dict[tuple[str, str, str, str], int] = {}
        """(topic, who says it, "its target", "itself", or "alone", the other region) -> looks in a row that found
        more.
        """
        self._back = ""
        """A region that was put back to a backup: until it is heard of again it is believed to have what it had."""
        self._met: set[tuple[str, str]] = set()
        """(region, topic) that was ever loaded there."""
        self._stood: dict[str, float] = {}
        """Broker -> when it was last seen to stand still."""

    def look(self) -> None:
        """Raises Violation."""
        self._note()
        owners = {
            (region, topic): (node, log)
            for region, topic, node, log in self._world.probes.owners()
            if topic in self._world.histories
        }
        self._met.update(owners)
        self._look_at_what_one_has_alone()
        gone = {
            (region, topic): max(self._emptied(region, topic), _before(log.ledger.first_position()))
            for (region, topic), (_, log) in owners.items()
        }
        for region, topic, node, log in self._world.probes.claims():
            if topic in self._world.histories:
                self._look_at_silence(region, topic, node, log)
        for (region, topic), (node, log) in owners.items():
            if log.state.trees:
                continue
            confirmed = self._of(topic, region).all
            for target, link in link_facts(node.roles[0].topics.loaded[topic], node.roles[0].links).items():
                if (target, topic) in owners and (target != self._back or link["connected"]):
                    there = _reached(owners[target, topic][1], log)
                    lacks = self._above(confirmed, max(there, gone[region, topic]))
                    self._compare(topic, region, "its target", target, link["messages"], lacks)
            for source, told in lack_facts(log, node.machine.clock.wall_ms()).items():
                if (source, topic) in owners and told["told"]:  # else it is said to be of an earlier connection
                    has = max(_reached(log, owners[source, topic][1]), gone[source, topic])
                    lacks = self._above(self._of(topic, source).told, has)
                    silent = log.incoming[source].untold_s(log.incoming[source].heard.now())
                    self._compare(topic, region, "itself", source, told["messages"], 0 if silent else lacks)

    def _look_at_what_one_has_alone(self) -> None:
        """What lies in topics that a region never had is told there, where it says that it hears the source."""
        for region in self._world.regions:
            roles: list[tuple[Any, Any]] = [
                (node.roles[0], node.machine.clock) for node in self._world.regions[region].brokers if node.is_ready()
            ]
            parts = [
                {"topics": {}, "unopened": unopened_facts(role.links.incoming, (NAMESPACE,), 0, clock.monotonic())}
                for role, clock in roles
            ]
            for source in self._world.regions if parts else ():
                if source == region:
                    continue
                lag = lacking(merged(region, parts, [], NAMESPACE), source)
                alone = sum(
                    len(self._of(topic, source).told)
                    for topic in self._world.histories
                    if (region, topic) not in self._met and (source, topic) in self._met
                )
                silent = lag["silent_s"] or lag["untold"]
                self._world.verdict.reports["alone"] += bool(alone and not silent)
                self._compare(NAMESPACE, region, "alone", source, lag["messages"], 0 if silent else alone)

    def _look_at_silence(self, region: str, topic: str, node: Any, log: Any) -> None:
        """Where nothing can have come for LOST_S, nobody says `connected`, whatever stays open: of a region, of the
        machine that a link leads to, or of anybody.
        """
        now, network = self._world.sim.now(), self._world.sim.network
        if node.machine.life.held is not None:
            self._stood[node.name] = now  # what had come before that is read after it
        longest = now - self._stood.get(node.name, 0.0) - SLACK_S
        for other, link in node.roles[0].links.links(topic).items():
            if link.connection is None:
                continue
            host = link.connection.key[1].host
            silent_s = max(network.cut_s(host, node.name), network.cut_s(other, node.name)) - SLACK_S
            if min(longest, silent_s) >= LOST_S:
                self._world.verdict.reports["silence"] += 1
                if link.stats().connected:
                    text = f"{node.name} says that its link to {other} is connected: nothing comes of {host}"
                    raise Violation(f"{topic}: {text}")
        for other in self._world.regions:
            if other == region or min(longest, network.cut_s(other, node.name) - SLACK_S) < LOST_S:
                continue
            self._world.verdict.reports["silence"] += 1
            told = lack_facts(log, node.machine.clock.wall_ms()).get(other)
            if told is not None and told["connected"]:
                raise Violation(f"{topic}: {node.name} says that {other} is connected: nothing comes: {told}")

    def went_back(self, region: str, ledgers: Collection[int]) -> None:
        """It knows of these ledgers alone: of what lay in others it sends nothing. Who lacks that fetches it, and no
        link counts it.
        """
        self._back = region
        self._note()
        for (_, there), confirmed in self._confirmed.items():
            if there == region:
                confirmed.keep(ledgers)

    def nothing_missing(self) -> str:
        """What is still told to be missing: "": nothing."""
        for region, topic, node, _ in self._world.probes.owners():
            if topic not in self._world.histories:
                continue
            facts = topic_facts(node.roles[0].topics.loaded[topic], node.roles[0].links, node.machine.clock.wall_ms())
            self._world.verdict.reports["nothing is missing"] += 1
            for kind in ("links", "lacks"):
                for other, told in facts[kind].items():
                    if told["messages"]:
                        return f"{topic}: {region} says {kind} {other} {told}"
            if facts["missing"] and topic not in self._world.trimmings:
                return f"{topic}: {region} says that {facts['missing']} is missing"
        return ""

    def confirmed(self, topic: str, region: str, since_s: float) -> list[Position]:
        """What was confirmed there since_s ago, TOLD_S or 0."""
        self._note()
        found = self._of(topic, region)
        return list(found.told if since_s else found.all)

    def lacks(self, topic: str, region: str, source: str, positions: list[Position]) -> int:
        """How many of those, which `source` confirmed, the region does not have now; 0 where nobody owns the topic."""
        logs = {there: log for there, name, _, log in self._world.probes.owners() if name == topic}
        if region not in logs or source not in logs:
            return 0
        return self._above(positions, _reached(logs[region], logs[source]))

    def _note(self) -> None:
        now = self._world.sim.now()
        for topic, history in self._world.histories.items():
            for message, position in islice(history.acknowledged.items(), self._seen.get(topic, 0), None):
                if position > BEFORE_ALL:
                    self._of(topic, history.submitted[message][0]).add(now, position)
            self._seen[topic] = len(history.acknowledged)
        for confirmed in self._confirmed.values():
            confirmed.settle(now)

    def _of(self, topic: str, region: str) -> _Confirmed:
        found = self._confirmed.get((topic, region))
        if found is None:
            found = self._confirmed[topic, region] = _Confirmed()
        return found

    def _emptied(self, region: str, topic: str) -> Position:
        trimmed = self._world.trimmings.get(topic)
        return BEFORE_ALL if trimmed is None else trimmed.emptied(region)

    def _above(self, positions: list[Position], position: Position) -> int:
        return len(positions) - bisect_right(positions, position)

    def _compare(self, topic: str, region: str, whom: str, other: str, told: int, lacks: int) -> None:
        if whom != "alone":
            self._world.verdict.reports["risk" if whom == "its target" else "lacking"] += 1
        key = (topic, region, whom, other)
        if told >= lacks:
            self._low.pop(key, None)
            return
        count = self._low[key] = self._low.get(key, 0) + 1
        if count > UNTOLD_MAX:
            lacking = f"{other} lacks" if whom == "its target" else f"it lacks of {other}"
            raise Violation(f"{topic}: {region} says that {lacking} {told} messages: {lacks} are missing")


def _reached(log: Any, source: Any) -> Position:
    """How far it has what was first published in `source`, under whatever epoch."""
    return max(log.vector.prefix(origin) for origin in source.state.own_origins())


def _before(position: Any) -> Position:
    return (position[0], position[1] - 1)
