"""What a survivor answers while regions, or the global configuration, say nothing: soon, and what it knows itself."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Put
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.leadership import Leadership, Writer, writer
from heliograph.model.errors import ConfigError, MetadataUnavailable, NotFound
from region_node.dr.drill_settings import DrillSettings
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.leadership.write_gates import Writing
from region_node.dr.operations.grouped_store import grouped
from region_node.dr.operations.operation import STEPS
from region_node.faces.admin.dr import disaster_recovery
from region_node.process.settings import BrokerSettings
from tests.region_node.dr.operations.world import NS, TOPIC, View, alone, lack, link

REGIONS = ("us", "eu", "ap", "sa", "af")
PATIENCE_S, ANSWERED_S = 2.0, 3.0


class Silent(EmbeddedStore):
    """A store that may have no majority: then nothing is answered, and nothing is refused."""

    silent = False

    async def get(self, key: str) -> Any:
        if self.silent:
            await asyncio.Event().wait()
        return await super().get(key)


class Survivor:
    """eu, asked about a namespace that is active in us. `silent` regions take the question and never answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *silent: str, passive: bool = True) -> None:
        self.silent, self.asked, self.began = set(silent), Counter[str](), list[float]()
        self.store = Silent()
        self.writing = Writing("eu", ttl_s=6, drift=0.1, now=lambda: 0.0)
        if passive:
            self.writing.on_record(NS, Leadership(active="us"), 1)
        view: Any = View()
        view.regions = REGIONS
        view.region = lambda name: SimpleNamespace(name=name, number=REGIONS.index(name) + 1)
        self.admin: Any = SimpleNamespace(
            region="eu",
            region_patience_s=PATIENCE_S,
            automatic=None,
            view=view,
            clock=SimpleNamespace(wall_ms=lambda: 7),
            step_ages=None,
            grouped=None,
            changed=lambda *_: None,
            drill=DrillSettings(),
            leases=SimpleNamespace(core=self.writing, store=self.store, settings=SimpleNamespace(ttl_ms=6000)),
            namespace=lambda _: NS,
            policies=lambda _: NamespacePolicies(regions=REGIONS),
        )
        monkeypatch.setattr(disaster_recovery, "facts_of", lambda *_: self._facts)

    async def _facts(self, region: str, namespace: str) -> dict[str, Any]:
        self.asked[region] += 1
        self.began.append(asyncio.get_running_loop().time())
        await (asyncio.Event().wait() if region in self.silent else asyncio.sleep(0.2))
        others = {other: link() for other in REGIONS if other != region}
        lacks = {other: lack(silent_s=40.0, connected=False) if other in self.silent else lack() for other in others}
        one = {"vector": {}, "links": others, "lacks": lacks, "subscriptions": {}, "producers": 0}
        return {"region": region, "missing": [], "topics": {TOPIC: one}, "unopened": alone(*others)}

    async def _told(self, work: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
        """The answer, and after how many seconds it came; nothing goes on behind it."""
        loop = asyncio.get_running_loop()
        before, began = asyncio.all_tasks(), loop.time()
        found = json.loads(json.dumps(await work()))
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before, "nobody is asked any longer"
        return found, loop.time() - began

    async def status(self) -> tuple[Any, float]:
        request: Any = None
        return await self._told(lambda: disaster_recovery.status(self.admin, request, NS))

    async def dry_run(self, monkeypatch: pytest.MonkeyPatch, to: str = "eu") -> tuple[Any, float]:
        request: Any = {}
        wanted = disaster_recovery.WantedOperation("failover", to, dry_run=True)
        return await self._told(lambda: disaster_recovery.begin(self.admin, request, NS, wanted))


@pytest.mark.parametrize("silent", (("us",), ("us", "ap"), ("us", "ap", "sa", "af")))
def test_status_waits_for_all_silent_regions_together_and_not_long(
    monkeypatch: pytest.MonkeyPatch, silent: tuple[str, ...]
) -> None:
    survivor = Survivor(monkeypatch, *silent)

    async def main() -> None:
        await Switching(survivor.store, lambda: 0).begin(NS, "us", {})
        found, took_s = await survivor.status()
        assert PATIENCE_S <= took_s <= ANSWERED_S
        assert survivor.asked == dict.fromkeys(REGIONS, 1) and len(set(survivor.began)) == 1, "once, side by side"
        assert found["active"] == "us" and found["configuration"] == "" and set(found["targets"]) == {*REGIONS} - {"us"}
        for region, target in found["targets"].items():
            assert not target["can_switch"] and "us does not answer" in target["because"]
            assert "within 2 s" in target["source"]["unreachable"]
            if region in silent:
                assert "unreachable" in target["target"]
            else:
                told = target["target"]
                assert told["messages"] == 0 and told["silent_s"] == 40.0, "no 0 without since when nothing is known"
                assert target["at_risk"]["messages"] is None and target["at_risk"]["last"]["ago_s"] == 40.0

    run_alone(main())


def test_status_waits_for_nobody_where_all_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    survivor = Survivor(monkeypatch)

    async def main() -> None:
        await Switching(survivor.store, lambda: 0).begin(NS, "us", {})
        found, took_s = await survivor.status()
        assert took_s < 0.5 and all(target["can_switch"] for target in found["targets"].values())

    run_alone(main())


def test_a_dry_run_of_a_failover_waits_as_short(monkeypatch: pytest.MonkeyPatch) -> None:
    survivor = Survivor(monkeypatch, "us", "af")

    async def main() -> None:
        await Switching(survivor.store, lambda: 0).begin(NS, "us", {})
        found, took_s = await survivor.dry_run(monkeypatch)
        assert PATIENCE_S <= took_s <= ANSWERED_S and survivor.asked == {"us": 1, "eu": 1}, "af has no part in it"
        assert found["dry_run"] and "unreachable" in found["cost"]["source"]
        assert found["cost"]["target"]["silent_s"] == 40.0
        shown, _ = await survivor.status()
        assert found["cost"]["at_risk"] == shown["targets"]["eu"]["at_risk"], "one answer, whoever is asked for it"
        _, took_s = await survivor.dry_run(monkeypatch, to="af")
        assert PATIENCE_S <= took_s <= ANSWERED_S

    run_alone(main())


def test_a_configuration_that_says_nothing_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region in two of which one is lost: no majority. What the broker's copy says is shown, and that it is a
    copy.
    """
    survivor = Survivor(monkeypatch, "us")
    survivor.store.silent = True

    async def main() -> None:
        found, took_s = await survivor.status()
        assert PATIENCE_S <= took_s <= ANSWERED_S
        assert found["active"] == "us" and "the copy here" in found["configuration"] and found["operation"] is None
        assert found["targets"]["eu"]["target"]["silent_s"] == 40.0
        found, took_s = await survivor.dry_run(monkeypatch)
        assert PATIENCE_S <= took_s <= ANSWERED_S and "the copy here" in found["cost"]["configuration"]

    run_alone(main())


def test_where_every_region_is_active_only_this_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks of a silent region is told with the silence; also while the configuration says nothing."""
    survivor = Survivor(monkeypatch, "us", passive=False)

    async def main() -> None:
        for survivor.store.silent in (False, True):
            survivor.asked.clear()
            found, took_s = await survivor.status()
            assert took_s <= ANSWERED_S and survivor.asked == {"eu": 1}
            assert found["mode"] == "active-active" and bool(found["configuration"]) is survivor.store.silent
            assert found["lacks"]["us"]["messages"] == 0 and found["lacks"]["us"]["silent_s"] == 40.0
            assert found["lacks"]["us"]["at_risk"]["messages"] is None
            assert found["lacks"]["ap"]["silent_s"] == 0.0 == found["lacks"]["ap"]["at_risk"]["messages"]
        with pytest.raises(MetadataUnavailable, match="does not answer"):
            await survivor.dry_run(monkeypatch)
        survivor.store.silent = False
        with pytest.raises(NotFound, match="active-active"):
            await survivor.dry_run(monkeypatch)

    run_alone(main())


@pytest.mark.parametrize("patience_s", (0.0, -1.0, 10.1))
def test_a_patience_that_makes_no_sense_is_refused(patience_s: float) -> None:
    with pytest.raises(ConfigError, match="region_patience_s"):
        BrokerSettings(region_patience_s=patience_s)


def test_one_request_goes_through_all_steps_and_waits_no_longer_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    survivor, request = Survivor(monkeypatch), cast(Any, {})
    survivor.admin.grouped = grouped(survivor.store)

    async def obey() -> None:
        obeys = Writer(since=survivor.store.machine.index, beside=("b",)).encode()
        await survivor.store.txn([Put(writer(region, "b", 1), obeys) for region in REGIONS])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await Switching(survivor.store, lambda: 0).begin(NS, "us", {})
        await obey()
        wanted = disaster_recovery.WantedOperation("failover", "eu")
        assert (await disaster_recovery.begin(survivor.admin, request, NS, wanted))["step"] == "measure"
        assert (await disaster_recovery.advance(survivor.admin, request, NS))["step"] == "fence", "a step, as ever"
        began = loop.time()
        found = await disaster_recovery.advance(survivor.admin, request, NS, through_s=2)
        assert found["step"] == "fence" and "brokers of us" in found["waiting"] and 2.0 <= loop.time() - began < 2.5
        heard = survivor.store.watch("/leadership/", lambda *_: tasks.append(loop.create_task(obey())))
        tasks = list[asyncio.Task[None]]()
        found, began = await disaster_recovery.advance(survivor.admin, request, NS, through_s=2), loop.time()
        assert found["state"] == "done" and found["id"] == 1 and loop.time() - began < 1.0
        assert [step["step"] for step in found["steps"]] == list(STEPS["failover"])
        heard()
        await asyncio.gather(*tasks)

    run_alone(main())
