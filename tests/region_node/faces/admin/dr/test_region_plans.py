"""The plan for many namespaces: one question to each region, and an answer soon, whoever is silent."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Put
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.drill_shadows import mark
from heliograph.model.configuration.leadership import Leadership, Writer, leadership, writer
from heliograph.model.errors import MetadataUnavailable, NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from heliograph.wire.links.unopened_topics import UnopenedTopics
from region_node.dr.drill_settings import DrillSettings
from region_node.dr.leadership.write_gates import Writing
from region_node.dr.operations import namespace_facts
from region_node.dr.operations.operation import Operation, operation_key
from region_node.faces.admin.calls.call_parameters import taken_by
from region_node.faces.admin.dr import region_plans
from replicator.health.incoming_stats import IncomingStats
from tests.region_node.dr.operations.world import lack, link

REGIONS = ("us", "eu", "ap")
PATIENCE_S = 2.0


class Silent(EmbeddedStore):
    """A store that may have no majority: then nothing is answered, and nothing is refused."""

    silent = False
    sleep_s, ranges = 0.0, 0
    silent_after = 1_000_000
    """So many ranges are answered."""

    async def get(self, key: str) -> Any:
        if self.silent:
            await asyncio.Event().wait()
        return await super().get(key)

    async def range(self, *of: Any, **more: Any) -> Any:
        self.ranges += 1
        if self.silent or self.ranges > self.silent_after:
            await asyncio.Event().wait()
        if self.sleep_s:
            await asyncio.sleep(self.sleep_s)
        return await super().range(*of, **more)


class Survivor:
    """eu, asked for a plan. Its namespaces have 5 topics each; `silent` regions take the question and never answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *silent: str) -> None:
        self.silent, self.asked = set(silent), Counter[str]()
        self.policies = dict[str, NamespacePolicies]()
        self.incoming = IncomingStats()
        for region in REGIONS:
            self.incoming.region(region).unopened.take(UnopenedTopics(region, "b"), 0.0)
        self.store, self.loaded = Silent(), dict[str, Any]()
        self.answer: Any = None
        self.slow, self.broken = dict[str, float](), set[str]()
        self.listing, self.listing_most = 0, 0
        self.writing = Writing("eu", ttl_s=6, drift=0.1, now=lambda: 0.0)
        self.admin: Any = SimpleNamespace(
            region="eu",
            region_patience_s=PATIENCE_S,
            view=SimpleNamespace(
                tenants=lambda: sorted({name.partition("/")[0] for name in self.policies}),
                tenant=lambda name: name if name in ("t", "shop") else None,
                namespaces=lambda tenant: [name for name in self.policies if name.startswith(f"{tenant}/")],
                namespace=self.policies.get,
                region=lambda name: SimpleNamespace(name=name) if name in REGIONS else None,
                regions=lambda: [SimpleNamespace(name=name) for name in REGIONS],
            ),
            policies=self.policies.__getitem__,
            clock=SimpleNamespace(wall_ms=lambda: 7, monotonic=lambda: 0.0),
            step_ages=None,
            drill=DrillSettings(),
            leases=SimpleNamespace(core=self.writing, store=self.store, settings=SimpleNamespace(ttl_ms=6000)),
            ownership=SimpleNamespace(brokers=list, record=SimpleNamespace(broker="b")),
            topics=SimpleNamespace(loaded=self.loaded, topics=self._topics),
            links=SimpleNamespace(incoming=self.incoming),
            balancer=None,
            recovery=None,
            tombstones=None,
        )
        monkeypatch.setattr(region_plans, "elsewhere", self._elsewhere)
        monkeypatch.setattr(region_plans.namespace_facts, "lag_facts", self._facts)

    async def add(
        self, name: str, active: str = "", regions: tuple[str, ...] = REGIONS, topics: int = 5, **policies: Any
    ) -> None:
        """active "": every region of it is."""
        self.policies[name] = NamespacePolicies(regions=regions, policies=policies)
        for number in range(topics):
            topic = TopicName.parse(f"persistent://{name}/x{number}")
            self.loaded[str(topic)] = SimpleNamespace(name=topic, text=str(topic), volatile=False, closed=False)
        if active:
            record = Leadership(active=active)
            await self.store.put(leadership(name), record.encode())
            self.writing.on_record(name, record, 1)

    async def heard(self) -> None:
        for region in REGIONS:
            obeys = Writer(since=self.store.machine.index, beside=("b",))
            await self.store.txn([Put(writer(region, "b", 1), obeys.encode())])

    async def _topics(self, namespace: str) -> list[str]:
        self.listing += 1
        self.listing_most = max(self.listing_most, self.listing)
        try:
            await asyncio.sleep(self.slow.get(namespace, 0.0))
        finally:
            self.listing -= 1
        if namespace in self.broken:
            raise MetadataUnavailable("too many wait for it")
        return sorted(text for text, topic in self.loaded.items() if topic.name.namespace == namespace)

    def _facts(self, *_: Any) -> dict[str, Any]:
        others = [region for region in REGIONS if region != "eu"]
        lacks = {other: lack(silent_s=40.0, connected=False) if other in self.silent else lack() for other in others}
        return {"links": {other: link() for other in REGIONS}, "lacks": lacks, "shadow": None, "only": None}

    async def _elsewhere(self, _: Any, __: Any, region: str, method: str, path: str, given: Any) -> Any:
        assert (method, path) == ("POST", "/heliograph/v1/dr/lags")
        self.asked[region] += 1
        await (asyncio.Event().wait() if region in self.silent else asyncio.sleep(0.2))
        lags = {"missing": [], "down": [], "uncounted": [], "messages": 3, "bytes": 30, "age_s": 1.0}
        told = {"eu": {"b": {"ago_s": 0.0, "whole": True, "namespaces": {}}}}
        lacks = namespace_facts.lacking({"topics": {}, "missing": [], "unopened": told}, "eu")
        return {
            "not_in": dict.fromkeys(given["not_in"], lags),
            "lacking": dict.fromkeys(given["lacking"], lacks),
            "topics": dict.fromkeys(given["not_in"], 5),
        }

    async def _something_else(self, *_: Any) -> Any:
        return self.answer

    async def plan(self, **given: Any) -> tuple[Any, float]:
        request: Any = {}
        loop = asyncio.get_running_loop()
        before, began = asyncio.all_tasks(), loop.time()
        found = json.loads(json.dumps(await region_plans.plan(self.admin, request, **given)))
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before, "nobody is asked any longer"
        return found, loop.time() - began


def verdicts(plan: dict[str, Any]) -> dict[str, str]:
    return {row["namespace"]: row["verdict"] for row in plan["namespaces"]}


def test_200_namespaces_of_a_region_that_is_silent_are_one_question_and_2_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survivor = Survivor(monkeypatch, "us")

    async def main() -> None:
        for number in range(200):
            await survivor.add(f"t/n{number:03}", "us")
        await survivor.heard()
        found, took_s = await survivor.plan(kind="failover", to="eu", region="us")
        assert PATIENCE_S <= took_s <= 2.5 and survivor.asked == {"us": 1}
        assert set(verdicts(found).values()) == {"moves"} and sum(row["topics"] for row in found["namespaces"]) == 1000
        for row in found["namespaces"]:
            assert row["at_risk"]["messages"] is None and row["at_risk"]["last"]["ago_s"] == 40.0

    run_alone(main())


def test_a_silent_region_and_a_silent_configuration_are_waited_for_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survivor = Survivor(monkeypatch, "us")

    async def main() -> None:
        await survivor.add("t/n", "us")
        await survivor.heard()
        planned, _ = await survivor.plan(kind="switchover", to="eu", region="us")
        assert set(verdicts(planned).values()) == {"cannot"}
        assert "within 2 s" in planned["namespaces"][0]["because"]
        survivor.store.silent = True
        found, took_s = await survivor.plan(kind="failover", to="eu", region="us", force=True)
        assert took_s <= 2.5 and "the copy here" in found["configuration"]
        assert set(verdicts(found).values()) == {"moves"}

    run_alone(main())


def test_a_namespace_whose_topics_are_not_read_in_time_keeps_no_other_from_moving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survivor = Survivor(monkeypatch)

    async def main() -> None:
        for number in range(200):
            await survivor.add(f"t/n{number:03}", "us")
        await survivor.heard()
        survivor.slow, survivor.broken = dict.fromkeys(survivor.policies, 0.1), {"t/n001"}
        survivor.slow["t/n000"] = 3.0
        found, took_s = await survivor.plan(kind="switchover", to="eu", region="us")
        assert took_s < PATIENCE_S and survivor.listing_most == 32
        wanted = dict.fromkeys(survivor.policies, "moves") | {"t/n000": "cannot", "t/n001": "cannot"}
        assert verdicts(found) == wanted
        assert "eu could not read which topics there are: not within 1 s" in found["namespaces"][0]["because"]
        assert "too many wait for it" in found["namespaces"][1]["because"]
        found, _ = await survivor.plan(kind="failover", to="eu", region="us")
        assert set(verdicts(found).values()) == {"moves"}

    run_alone(main())


def test_a_broker_of_the_region_that_does_not_answer_has_loaded_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    survivor = Survivor(monkeypatch)
    survivor.admin.ownership.brokers = lambda: [SimpleNamespace(broker="b"), SimpleNamespace(broker="c")]
    survivor.admin.call = lambda *_: asyncio.Event().wait()

    async def main() -> None:
        await survivor.add("t/n", "us")
        await survivor.heard()
        survivor.loaded.popitem()
        monkeypatch.setattr(survivor.admin.topics, "topics", survivor_all)
        found, took_s = await survivor.plan(kind="switchover", to="eu", region="us")
        assert took_s < PATIENCE_S and "eu has not loaded persistent://t/n/x4" in found["namespaces"][0]["because"]

    async def survivor_all(namespace: str) -> list[str]:
        return [f"persistent://{namespace}/x{number}" for number in range(5)]

    run_alone(main())


def test_very_many_namespaces_are_several_questions_and_none_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    survivor = Survivor(monkeypatch)

    async def main() -> None:
        for number in range(region_plans.ASKED_AT_ONCE + 1):
            await survivor.add(f"t/n{number}", "us", topics=0)
        await survivor.heard()
        found, _ = await survivor.plan(kind="switchover", to="eu", region="us")
        assert set(verdicts(found).values()) == {"moves"} and survivor.asked == {"us": 2}
        assert found["load"] == {"brokers": [], "bookies": []}

    run_alone(main())


@pytest.mark.parametrize(
    "answer",
    (
        None,
        [],
        "ok",
        {},
        {"not_in": {"t/n": {}}, "lacking": {}, "topics": {}},
        {"not_in": {"t/n": None}, "lacking": {}, "topics": {}},
        {"not_in": {}, "lacking": {"t/n": {"missing": 3}}, "topics": {}},
        {"not_in": {}, "lacking": {}, "topics": {"t/n": "many"}},
        {"not_in": {}, "lacking": {}, "topics": {}, "load": {"brokers": [{}], "bookies": []}},
    ),
    ids=str,
)
def test_a_lost_region_whose_address_answers_with_something_else_is_a_silent_one(
    monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    survivor = Survivor(monkeypatch)
    survivor.answer = answer
    monkeypatch.setattr(region_plans, "elsewhere", survivor._something_else)

    async def main() -> None:
        await survivor.add("t/n", "us")
        await survivor.heard()
        found, _ = await survivor.plan(kind="failover", to="eu", region="us")
        assert verdicts(found) == {"t/n": "moves"} and found["namespaces"][0]["topics"] == 5
        found, _ = await survivor.plan(kind="switchover", to="eu", region="us")
        assert verdicts(found) == {"t/n": "cannot"}
        assert "us does not answer: its address answers with something else" in found["namespaces"][0]["because"]

    run_alone(main())


def test_what_is_moved_what_not_and_what_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    survivor = Survivor(monkeypatch)

    async def main() -> None:
        await survivor.add("shop/a", "us")
        await survivor.add("shop/home", "eu")
        await survivor.add("t/asia", "ap")
        await survivor.add("t/everywhere")
        await survivor.add("t/narrow", "us", regions=("us", "ap"))
        await survivor.add("t/a-drill-1", "us", properties=mark("t/a-drill-1"))
        await survivor.heard()
        found, took_s = await survivor.plan(kind="switchover", to="eu", region="us")
        assert took_s < 0.5 and verdicts(found) == {"shop/a": "moves", "t/narrow": "cannot"}
        (row,) = (row for row in found["namespaces"] if row["namespace"] == "shop/a")
        assert (row["from"], row["topics"], row["at_risk"]["messages"]) == ("us", 5, 3)
        assert {tuple(part["some"]) for part in found["passed"]} == {("t/everywhere",), ("shop/home",), ("t/asia",)}
        found, _ = await survivor.plan(kind="switchover", to="eu")
        assert verdicts(found) == {"shop/a": "moves", "shop/home": "there", "t/asia": "moves", "t/narrow": "cannot"}
        found, _ = await survivor.plan(kind="failover", to="eu", tenant="shop")
        assert verdicts(found) == {"shop/a": "moves", "shop/home": "there"}
        found, _ = await survivor.plan(kind="failback", to="us", region="eu")
        assert not found["namespaces"] and any("did not come from us" in part["because"] for part in found["passed"])
        past = Operation.new(1, "switchover", "shop/home", "us", "eu", "op", 0)
        while past.running:
            past = past.passed("", 1)
        await survivor.store.put("/dr/history/shop/home/00000001", past.encode())
        await survivor.store.put(operation_key("shop/home"), past.encode())
        found, _ = await survivor.plan(kind="failback", to="us", region="eu")
        assert verdicts(found) == {"shop/home": "moves"}
        assert (found["namespaces"][0]["epoch"], found["namespaces"][0]["operation"]) == (1, 1)
        for given in ({"to": "mars"}, {"to": "eu", "region": "mars"}, {"to": "eu", "tenant": "nobody"}):
            with pytest.raises(NotFound):
                await survivor.plan(**given)
        with pytest.raises(NotAllowed, match="--to"):
            await survivor.plan()

    run_alone(main())


async def moved_and_drilled(survivor: Survivor, count: int, *, drilled: bool) -> None:
    """So many namespaces that eu took over of us, and as many that were at home in eu ever since."""
    for number in range(count):
        name = f"t/n{number:03}"
        await survivor.add(name, "eu", topics=0)
        await survivor.add(f"t/home{number:03}", "eu", topics=0)
        past = Operation.new(1, "switchover", name, "us", "eu", "op", 0)
        drill = Operation.new(2, "drill", name, "eu", "us", "op", 0).cancelled(1)
        while past.running:
            past = past.passed("", 1)
        await survivor.store.put(f"/dr/history/{name}/00000001", past.encode())
        await survivor.store.put(operation_key(name), (drill if drilled else past).encode())
    await survivor.heard()


@pytest.mark.parametrize(("drilled", "most"), ((False, 0), (True, 100)))
def test_a_failback_reads_little_of_the_configuration_and_that_side_by_side(
    monkeypatch: pytest.MonkeyPatch, drilled: bool, most: int
) -> None:
    survivor = Survivor(monkeypatch)

    async def main() -> None:
        await moved_and_drilled(survivor, 50, drilled=drilled)
        survivor.store.sleep_s = 0.1
        await survivor.plan(kind="switchover", to="us", region="eu")
        others, survivor.store.ranges = survivor.store.ranges, 0
        found, took_s = await survivor.plan(kind="failback", to="us", region="eu")
        assert verdicts(found) == {f"t/n{number:03}": "moves" for number in range(50)}
        assert survivor.store.ranges - others <= most and took_s < 1.0, (survivor.store.ranges, others, took_s)

    run_alone(main())


@pytest.mark.parametrize("answered", (0, 15))
def test_a_configuration_that_falls_silent_says_of_no_failback_that_it_moves(
    monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    survivor = Survivor(monkeypatch)

    async def main() -> None:
        await moved_and_drilled(survivor, 50, drilled=True)
        survivor.store.silent_after, survivor.store.ranges = answered, 0
        found, took_s = await survivor.plan(kind="failback", to="us", region="eu")
        assert took_s <= 2 * PATIENCE_S + 0.1 and "cannot" in verdicts(found).values()
        assert Counter(verdicts(found).values())["moves"] <= answered
        assert "it is not known whether it came from us" in found["namespaces"][-1]["because"]

    run_alone(main())


def test_a_region_says_nothing_of_a_namespace_that_it_does_not_know_and_is_not_written_down_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survivor = Survivor(monkeypatch)

    async def main() -> None:
        await survivor.add("t/n", "us")
        request: Any = {}
        asked = region_plans.AskedLags(not_in={"t/other": "us"}, lacking={"t/n": "us", "t/unknown": "us"}, load=True)
        found = await region_plans.lags(survivor.admin, request, asked)
        assert (list(found["lacking"]), found["not_in"], found["topics"]) == (["t/n"], {}, {"t/n": 5})
        assert found["load"] == {"brokers": [], "bookies": []} and request["passed_on"]

    run_alone(main())


def test_of_several_regions_each_namespace_has_its_own_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    survivor = Survivor(monkeypatch, "us")

    async def main() -> None:
        await survivor.add("t/wide", "us")
        await survivor.add("t/narrow", "us", regions=("us", "eu"))
        await survivor.add("t/there", "eu", regions=("us", "eu"))
        await survivor.heard()
        await survivor.store.delete(writer("ap", "b", 1))
        found, _ = await survivor.plan(kind="failover", to="ap,eu", region="us", force=True)
        rows = {row["namespace"]: row for row in found["namespaces"]}
        assert {name: (row["to"], row["verdict"]) for name, row in rows.items()} == {
            "t/wide": ("eu", "moves"),
            "t/narrow": ("eu", "moves"),
        }
        assert rows["t/wide"]["others"] == {"ap": "no broker of ap holds a lease: nobody there could confirm"}
        assert rows["t/narrow"]["others"] == {"ap": "it is not in ap; it is in us, eu"}
        assert set(found["loads"]) == {"ap", "eu"}
        found, _ = await survivor.plan(kind="failover", to="ap,eu", region="us", force=True, risk_messages=0)
        (row, _) = found["namespaces"]
        assert row["verdict"] == "cannot" and {row["to"], *row["others"]} == {"eu", "ap"}
        assert (found["risk_messages"], found["risk_s"]) == (0, None), "a caller sees that its bound was heard"
        with pytest.raises(NotAllowed, match="one region"):
            await survivor.plan(kind="failback", to="us,ap")
        with pytest.raises(NotFound, match="mars"):
            await survivor.plan(kind="failover", to="eu,mars")

    run_alone(main())


def test_a_request_says_what_a_plan_is_asked_for() -> None:
    named = {"kind", "to", "region", "tenant", "force", "risk_messages", "risk_s"}
    assert named == {one.name for one in taken_by(region_plans.plan) if one.of_query is not None}
