"""Probes: what the checkers look at inside living brokers, again and again while a world runs.

Is: the invariants that no client can see from outside: cursors that pass what they must not, vectors that go back,
queues beyond their bound. What regions say of each other is compared by `reports`.
Isn't: a wait for anything.

A probe knows of each topic and region what was ever seen durable there (the vector of a living owner), and what the
subscription acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import History, Violation
from geo_tests.sim.durability_reports import DurabilityReports, owned_since
from geo_tests.sim.reports import Reports
from heliograph.model.positions import BEFORE_ALL, Position

if TYPE_CHECKING:
    from geo_tests.sim.world import World

EVERY_S = 0.2
REPLICATION_CURSOR = "pulsar.repl."
SUSPICIONS_MAX = 3
CACHE_BYTES_MAX = 64 << 20
BACKLOG_BYTES_MAX = 4 << 20
WRITE_BUFFER_BYTES_MAX = 4 << 20


class Probes:
    """The probes of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.looked = 0
        self._durable: dict[tuple[str, str, tuple[int, int, int]], Position] = {}
        """(topic, region, origin) -> the furthest durable prefix that an owner there has shown."""
        self._suspicions: dict[tuple[str, str, str], int] = {}
        self.reports, self.durability = Reports(world), DurabilityReports(world)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                self.look()
            except Violation as violation:
                self.world.sim.loop.fail(str(violation), violation)

    def look(self) -> None:
        """Raises Violation."""
        self.looked += 1
        topics = list(self._topics())
        for region, topic, log in topics:
            for origin in log.vector:
                key, prefix = (topic, region, origin), log.vector.prefix(origin)
                self._durable[key] = max(self._durable.get(key, prefix), prefix)
        for region, topic, _, log in self.owners() if self.world.trimmings else ():
            if topic in self.world.trimmings:
                self.world.trimmings[topic].look(region, log)
        for region, topic, log in topics:
            self._look_at_subscription(region, topic, log)
            self._look_at_links(region, topic, log)
        self.reports.look()
        self.durability.look()
        self._look_at_bounds()

    def _topics(self) -> Iterator[tuple[str, str, Any]]:
        """(region, topic, its log) of every living broker that has it loaded, also where it is fenced and has not
        noticed.
        """
        for region in self.world.regions.values():
            for node in region.brokers:
                if node.is_ready():
                    for name, topic in node.roles[0].topics.loaded.items():  # type: ignore[attr-defined]
                        yield region.name, name, topic.log

    def owners(self) -> list[tuple[str, str, Any, Any]]:
        """(region, topic, node, log) of each topic where it is loaded by the broker that owns it: the one that took it
        last, where another one is cut off and has not noticed.
        """
        found: dict[tuple[str, str], tuple[int, Any, Any]] = {}
        for region, topic, node, log in self.claims():
            since = owned_since(node, topic)
            if (region, topic) not in found or found[region, topic][0] < since:
                found[region, topic] = since, node, log
        return [(region, topic, node, log) for (region, topic), (_, node, log) in found.items()]

    def claims(self) -> Iterator[tuple[str, str, Any, Any]]:
        """As `owners`, of each broker that believes that it owns the topic."""
        for region in self.world.regions.values():
            for node in region.brokers:
                if node.is_ready():
                    role: Any = node.roles[0]
                    for name, topic in role.topics.loaded.items():
                        if role.ownership.owns(name) and topic.log.ledger.failed is None:
                            yield region.name, name, node, topic.log

    def _look_at_subscription(self, region: str, topic: str, log: Any) -> None:
        """The mark-delete position never passes an entry that no consumer acknowledged."""
        cursor, history = log.ledger.cursors.get("sub"), self.world.histories.get(topic)
        if cursor is None or history is None:
            return
        if self.world.settings.replicated:
            delivered = set().union(*history.consumed.values())
            for message, position in history.acknowledged.items():
                if (
                    history.submitted[message][0] == region
                    and (-1, -1) < position <= cursor.mark_delete
                    and message not in delivered
                ):
                    raise Violation(
                        f"{topic} in {region}: the mark-delete position {cursor.mark_delete} has passed {message}, "
                        "which no region delivered"
                    )
            return
        consumers = [one for name, one in self.world.consumers if name == region and one.topic == topic]
        left = history.placed().get(region, set()).difference(*(consumer.acked for consumer in consumers))
        emptied, mark = self._emptied(region, topic), cursor.mark_delete
        if passed := [position for position in left if emptied < position <= mark]:
            raise Violation(
                f"{topic} in {region}: the mark-delete position {mark} has passed {min(passed)}, which nobody "
                "acknowledged"
            )

    def _emptied(self, region: str, topic: str) -> Position:
        """Up to here an admin took everything away there."""
        trimmed = self.world.trimmings.get(topic)
        return BEFORE_ALL if trimmed is None else trimmed.emptied(region)

    def _look_at_links(self, region: str, topic: str, log: Any) -> None:
        """A replication cursor never passes what is not durable in the other region, or named there by a SKIP, but for
        what an admin took away.

        An owner there may have died between two looks, right after its receipt: so a suspicion must last, with a living
        owner there.
        """
        history = self.world.histories.get(topic)
        if history is None:
            return
        emptied = self._emptied(region, topic)
        for name, cursor in log.ledger.cursors.items():
            if not name.startswith(REPLICATION_CURSOR):
                continue
            target = name.removeprefix(REPLICATION_CURSOR)
            there = max(self._durable.get((topic, target, origin), BEFORE_ALL) for origin in log.state.own_origins())
            passed = self._between(history, region, max(there, emptied), cursor.mark_delete)
            if not passed:
                self._suspicions.pop((topic, region, target), None)
            elif any(r == target and t == topic and other.ledger.failed is None for r, t, other in self._topics()):
                count = self._suspicions[topic, region, target] = self._suspicions.get((topic, region, target), 0) + 1
                if count > SUSPICIONS_MAX:
                    raise Violation(
                        f"{topic}: the link {region}->{target} stands at {cursor.mark_delete}, and {target} has "
                        f"{region} only through {there}: {passed[:3]}"
                    )

    def _between(self, history: History, region: str, after: Position, through: Position) -> list[Position]:
        """What was acknowledged of `region`, in (after, through]."""
        if after >= through:  # nearly always: nothing has to be looked through
            return []
        return sorted(at for at in history.placed().get(region, ()) if after < at <= through)

    def _look_at_bounds(self) -> None:
        """Every queue and cache keeps its bound."""
        for region in self.world.regions.values():
            for node in region.brokers:
                if node.is_ready():
                    factory = node.roles[0].topics._factory  # type: ignore[attr-defined]
                    if factory.cache.size_bytes > CACHE_BYTES_MAX:
                        raise Violation(f"{node.name}: the cache holds {factory.cache.size_bytes} bytes")
                    for bookie, client in factory.context.pool._clients.items():
                        if client.backlog_bytes > BACKLOG_BYTES_MAX:
                            raise Violation(f"{node.name}: {client.backlog_bytes} bytes wait for {bookie}")
        buffered = self.world.sim.network.worst_write_buffer
        if buffered > WRITE_BUFFER_BYTES_MAX:
            raise Violation(f"a connection buffers {buffered} bytes")

    async def final(self) -> None:
        self.look()
        await self.world._until("every region says that nothing is missing", self.reports.nothing_missing)
        await self.world._until("every receipt means what it should", self.durability.final)
