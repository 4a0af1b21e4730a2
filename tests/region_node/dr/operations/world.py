"""Regions as an operation sees them, with links that lag as a test says, and a conductor that may die at any step."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo
from heliograph.model.configuration.leadership import Leadership, Writer, leadership, writer
from heliograph.model.errors import MetadataUnavailable, OutcomeUnknown
from region_node.dr.drill_settings import DrillSettings
from region_node.dr.operations.drill import Drill
from region_node.dr.operations.operation import Operation, StepAges
from region_node.dr.operations.operation_steps import Conductor
from storage.managed_ledger.append_counts import FINE_S

_DROPPED = 50
NS, TOPIC = "t/n", "persistent://t/n/x"


class Interrupted(EmbeddedStore):
    """The `at`-th write is lost before or after it happened, once."""

    def __init__(self, at: int, after: bool) -> None:
        super().__init__()
        self.at, self.after, self.writes = at, after, 0

    async def txn(self, ops: Sequence[Op]) -> int:
        self.writes += 1
        if self.writes != self.at:
            return await super().txn(ops)
        if self.after:
            await super().txn(ops)
        raise OutcomeUnknown("interrupted")


class View:
    regions: tuple[str, ...] = ("us", "eu")

    def region(self, name: str) -> RegionInfo | None:
        return RegionInfo(name=name, number={"us": 1, "eu": 2, "ap": 3}[name])

    def namespace(self, name: str) -> NamespacePolicies | None:
        return NamespacePolicies(regions=self.regions) if name == NS or name.startswith(f"{NS}-drill-") else None


def link(**changed: Any) -> dict[str, Any]:
    return {"connected": True, "cause": "", "entries": 0, "messages": 0, "bytes": 0, "age_s": 0.0, **changed}


def lack(**changed: Any) -> dict[str, Any]:
    return {"connected": True, "messages": 0, "bytes": 0, "age_s_max": 0.0, "silent_s": 0.0, **changed}


def alone(*regions: str, ago_s: float = 0.0, whole: bool = True, **row: Any) -> dict[str, Any]:
    """What a broker of each of the regions told of topics of NS that it alone has; by default there are none."""
    rows = {NS: {"topics": 1, "messages": 0, "bytes": 0, "age_s": 0.0, **row}} if row else {}
    return {region: {f"{region}-b": {"ago_s": ago_s, "whole": whole, "namespaces": rows}} for region in regions}


class RegionsOfDrills:
    """What a drill asks of regions: audits that are done, shadows with topics in each region, messages that are stored,
    and how long publishing takes.
    """

    def __init__(self) -> None:
        self.there: dict[str, dict[str, set[str]]] = {}
        """Shadow -> region of it -> its topics there."""
        self.parted: dict[str, int] = {}
        self.away = False
        """The regions whose shadows they are do not look."""
        self.signed = 0
        self.clients_there: dict[str, dict[str, Any]] = {}
        """Shadow -> what its clients have seen."""
        self.connects = self.follows = True
        """Whether clients reach the region that is left, and come to the other."""
        self.most_at_once = 0
        """Topics that were asked for in one step."""
        self.fails_at, self.calls = 0, 0
        """So many-th call about a shadow's topics reaches nobody, once."""
        self.counted: dict[str, list[int]] = {region: [0] * (len(FINE_S) + 1) for region in ("us", "eu")}
        """Region -> entries by how long they took, as its only broker counts them."""

    def published(self, region: str, took_ms: float, entries: int = 1000) -> None:
        self.counted[region][bisect_left(FINE_S, took_ms / 1000)] += entries

    async def audit(self, region: str, namespace: str, since_ms: int) -> dict[str, Any]:
        return {
            "topics": 1,
            "entries": 9,
            "ranges": 1,
            "unchecked": 0,
            "left": 0,
            "found": {},
            "errors": [],
            "running": [],
        }

    async def make(self, shadow: str, policies: NamespacePolicies) -> None:
        self.there.setdefault(shadow, {region: set() for region in policies.regions})

    async def partition(self, partitions: Mapping[str, int]) -> None:
        self.parted.update(partitions)

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise MetadataUnavailable("the region does not answer")

    async def fill(self, region: str, shadow: str, topics: Sequence[str]) -> None:
        self._call()
        self.most_at_once = max(self.most_at_once, len(topics))
        self.there[shadow][region].update(topics)

    async def probe(self, region: str, shadow: str, topics: Sequence[str]) -> list[float]:
        self._call()
        assert topics and self.there[shadow][region].issuperset(topics)
        return [12.0 for _ in topics]

    async def clients(self, verb: str, region: str, shadow: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
        nobody: dict[str, Any] = {"count": 0, "ready": 0, "acked_s": [], "read_s": [], "said": ""}
        if verb == "PUT":
            assert given is not None and self.there[shadow][region].issuperset(given["topics"])
            count = len(given["topics"])
            found = self.clients_there.setdefault(shadow, {**nobody, "count": count})
            found["ready"] = count if self.connects else 0
        found = self.clients_there.get(shadow, nobody)
        if verb == "POST":
            found["switched"] = True
        elif verb == "GET" and found.get("switched"):
            each = range(found["count"] if self.follows else found["count"] - 1)
            found |= {"acked_s": [1.0 + n for n in each], "read_s": [1.5 + n for n in each]}
        elif verb == "DELETE":
            self.clients_there.pop(shadow, None)
        return dict(found)

    async def drop(self, shadow: str, region: str) -> int:
        """As a region does it: some of them, and behind the last topic of the last region the namespace."""
        self._call()
        self.clients_there.pop(shadow, None)
        found = self.there.get(shadow, {})
        for topic in sorted(found.get(region, ()))[:_DROPPED]:
            found[region].discard(topic)
        if found.get(region):
            return len(found[region])
        found.pop(region, None)
        if not found:
            self.there.pop(shadow, None)
        return 0

    async def latencies(self, region: str, namespace: str) -> dict[str, list[int]]:
        return {"b": list(self.counted[region])}

    def here(self) -> list[str]:
        return [] if self.away else sorted(self.there)

    async def sign(self, report: dict[str, Any]) -> dict[str, Any]:
        self.signed += 1
        return {**report, "signature": "s"}


class World:
    """Two regions of one topic, whose facts a test says; brokers that obey when they are told to."""

    def __init__(self, store: EmbeddedStore | None = None) -> None:
        self.store = store or EmbeddedStore()
        self.down: set[str] = set()
        self.later_ms = 0
        """For how long somebody waited."""
        self.ahead_ms = 0
        """By how much the clock of who asks for the next steps is ahead of that of who asked for the others."""
        self.ages = StepAges(lambda: self.later_ms / 1000)
        self.facts: dict[str, dict[str, Any]] = {
            region: {
                "region": region,
                "namespace": NS,
                "missing": [],
                "unopened": alone(other),
                "topics": {
                    TOPIC: {
                        "vector": {"1.1.a": [7, 9]},
                        "links": {other: link()},
                        "lacks": {other: lack()},
                        "subscriptions": {},
                        "producers": 1,
                    }
                },
            }
            for region, other in (("us", "eu"), ("eu", "us"))
        }
        self.shadows = RegionsOfDrills()
        self.drills = DrillSettings(latency_before_s=0)
        self.tail: dict[str, Any] = {
            "entries": 2,
            "messages": 3,
            "bytes": 30,
            "first": "1.1.a:7:10",
            "last": "1.1.a:7:11",
            "left": [],
        }
        self.spans: list[dict[str, Any]] = []
        """What the next questions for spans are answered."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.conductor = self.make()

    def make(self) -> Conductor:
        made = Conductor(
            self.store,
            View(),
            facts_of=self._facts,
            counts_of=self._counts,
            wall_ms=lambda: 1_000 + self.store.machine.index + self.later_ms + self.ahead_ms,
            ages=self.ages,
        )
        made.drill = Drill(
            self.shadows, made, View().namespace, self._facts, lambda: 1_000 + self.later_ms, 6.0, self.drills
        )
        return made

    async def _facts(self, region: str, namespace: str) -> dict[str, Any]:
        if region in self.down:
            raise MetadataUnavailable(f"region {region} does not answer")
        return self.facts[region]

    async def _counts(self, region: str, namespace: str, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((what, dict(given)))
        if what == "tails":
            assert given == {TOPIC: {"1.1.a": [7, 9]}}
            return {"region": region, "topics": {TOPIC: self.tail}, "missing": []}
        return {"region": region, "topics": {TOPIC: self.spans.pop(0)}, "missing": []}

    def have(self, names: Sequence[str]) -> None:
        """Both regions have these topics, and no others."""
        for region in ("us", "eu"):
            topic = self.topic(region)
            self.facts[region]["topics"] = {name: {**topic} for name in names}

    def topic(self, region: str) -> dict[str, Any]:
        found: dict[str, Any] = self.facts[region]["topics"][TOPIC]
        return found

    async def begin(self) -> None:
        """The namespace is active in us, and the broker of every region has heard of it."""
        await self.conductor.switching.begin(NS, "us", {})
        for region in View.regions:
            await self.obey(region)

    async def obey(self, region: str) -> None:
        """Its broker does what every leadership asks for."""
        await EmbeddedStore.txn(
            self.store, [_put(writer(region, "b", 1), Writer(since=self.store.machine.index, beside=("b",)).encode())]
        )

    async def leadership(self) -> Leadership:
        found = await self.store.get(leadership(NS))
        assert found is not None
        return Leadership.decode(found[0])


def _put(key: str, value: bytes) -> Op:
    from heliograph.kv.metadata_store import Put

    return Put(key, value)


class Clock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


class Obeying:
    """Both regions' brokers do what they are told, again and again."""

    def __init__(self, world: World) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(world))

    async def _run(self, world: World) -> None:
        while True:
            await asyncio.sleep(0.2)
            for region in ("us", "eu"):
                await world.store.put(
                    writer(region, "b", 1), Writer(since=world.store.machine.index, beside=("b",)).encode()
                )

    def stop(self) -> None:
        self._task.cancel()


async def steps(world: World, kind: str, target: str = "eu") -> Operation:
    """As the command does it: again and again, by anybody, until it is done; an error is an interruption."""
    for _ in range(60):
        try:
            conductor = world.make()
            found, _ = await conductor.operation(NS)
            if found is None or found.kind != kind or (not found.running and not found.steps):
                await conductor.begin(kind, NS, target, "op")
            after = await conductor.advance(NS)
        except OutcomeUnknown:
            continue
        if not after.running:
            return after
        for region in ("us", "eu"):
            await world.obey(region)
    raise AssertionError(f"never done: {after}")


async def failed_over(world: World) -> None:
    """us was lost, eu took over, and has its tail since."""
    await world.begin()
    await steps(world, "failover")
    world.topic("eu")["vector"] = {"1.1.a": [7, 11]}
