"""The balancer on virtual time: several brokers over one metadata table, loads that a model gives them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.bundles import BundleTable
from heliograph.model.errors import NotOwner
from local_meta import keys
from region_node.placement.balance.balance_book import BalanceBook
from region_node.placement.balance.balancer import Balancer
from region_node.placement.balance.load_report import LoadReport, Pause
from region_node.placement.balance.load_score import BundleTraffic
from region_node.placement.balance.load_shedding import BrokerLoad, Bundle
from region_node.placement.balance.settings import BalanceSettings, SheddingSettings
from region_node.placement.ownership.broker_records import BrokerRecord


class Region:
    """`owner` and `loads` of bundles are the truth; moves change them after 50 ms."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.table = sim, KvMachine()
        self.owner: dict[Bundle, str] = {}
        self.loads: dict[Bundle, float] = {}
        self.balancers: dict[str, Balancer] = {}
        self.moved: list[tuple[Bundle, str, str]] = []
        self.refuse = False
        self.memory: dict[str, float] = {}
        """Of brokers; it stays where it is, whatever moves."""
        self.permit: Callable[[Bundle], list[str]] = lambda bundle: []
        """Who may serve it; nobody named: everybody."""
        self.settings = BalanceSettings(shedding=SheddingSettings(cool_down_s=60))

    async def boot(self, name: str) -> None:
        started = asyncio.get_running_loop().create_future()

        async def main(machine: Machine) -> None:
            store = EmbeddedStore(self.table)
            broker = Broker(self, name, await store.grant(3000))
            asyncio.get_running_loop().create_task(keep(store, broker.lease))
            made = Balancer(
                broker=name,
                mover=broker,
                meta=store,
                gauge=broker,
                book=BalanceBook(machine.clock, machine.rng),
                settings=self.settings,
            )
            self.balancers[name] = made
            made.start()
            started.set_result(None)

        self.sim.machine(name).start(main)
        await started

    def of(self, name: str) -> float:
        return sum(load for bundle, load in self.loads.items() if self.owner[bundle] == name)

    def leaders(self) -> set[str]:
        return {balancer.leader for balancer in self.balancers.values()}


async def keep(store: EmbeddedStore, lease: int) -> None:
    while True:
        await asyncio.sleep(1)
        await store.renew(lease)


class Broker:
    """Mover and gauge of one broker."""

    def __init__(self, region: Region, name: str, lease: int) -> None:
        self._region, self._name, self.lease = region, name, lease

    async def transfer(self, namespace: str, bundle: int, to: str) -> bool:
        await asyncio.sleep(0.05)
        if self._region.refuse:
            raise NotOwner("it moves already")
        where = (namespace, bundle)
        self._region.moved.append((where, self._region.owner[where], to))
        self._region.owner[where] = to
        return True

    def brokers(self) -> list[BrokerRecord]:
        return [BrokerRecord(name) for name in self._region.balancers]

    def permitted(self, bundle: Bundle) -> list[str]:
        found = self._region.permit(bundle) or list(self._region.balancers)
        return sorted(name for name in found if name in self._region.balancers)

    def misplaced(self) -> list[tuple[Bundle, str]]:
        return [(bundle, name) for bundle, name in self._region.owner.items() if name not in self.permitted(bundle)]

    def owned(self) -> list[Bundle]:
        return sorted(bundle for bundle, name in self._region.owner.items() if name == self._name)

    def bundles(self, namespace: str) -> BundleTable | None:
        return BundleTable.equal(100)

    def used(self) -> dict[str, float]:
        return {"cpu": self._region.of(self._name), "memory": self._region.memory.get(self._name, 0.05)}

    async def traffic(self) -> tuple[Mapping[Bundle, BundleTraffic], tuple[float, float]]:
        mine = {
            b: BundleTraffic(messages_s=load * 1000, topics=1)
            for b, load in self._region.loads.items()
            if self._region.owner[b] == self._name
        }
        return mine, (0.0, 0.0)


def run(seed: int, scenario: Callable[[Region], Coroutine[Any, Any, None]]) -> None:
    with Simulation(seed) as sim:
        sim.run(scenario(Region(sim)), limit_s=2000)


async def loaded(region: Region) -> None:
    """Three brokers at 80, 60, and 10 %."""
    for name, share in (("a", 0.8), ("b", 0.6), ("c", 0.1)):
        for index in range(10):
            region.owner[f"t/{name}", index], region.loads[f"t/{name}", index] = name, share / 10
        await region.boot(name)


def test_memory_that_stays_where_it_is_moves_no_bundle_and_is_given_none() -> None:
    async def scenario(region: Region) -> None:
        region.memory["a"] = 0.75
        for name in "abcd":
            for index in range(8):
                region.owner[f"t/{name}", index], region.loads[f"t/{name}", index] = name, 0.05 / 8
        for name in "abcd":
            await region.boot(name)
        await asyncio.sleep(900)
        assert region.moved == [], "a move would free none of it"
        leader = region.balancers["b"]
        assert leader.reports["a"].load == 0.75 and leader.reports["a"].carried.load == pytest.approx(0.05, abs=0.01)
        assert {leader.book.place("abcd", ("t/new", index)) for index in range(50)} == {"b", "c", "d"}
        region.memory["a"] = 0.9
        for index in range(8):
            region.loads["t/b", index] = 0.08
            region.loads["t/a", index] = 0.0
        await asyncio.sleep(300)
        assert region.moved and {to for _, _, to in region.moved} <= {"c", "d"}, (
            "the emptiest by its work has no memory left"
        )

    run(3, scenario)


@pytest.mark.parametrize("seed", range(10))
def test_the_load_is_spread_by_one_leader_and_then_rests(seed: int) -> None:
    async def scenario(region: Region) -> None:
        await loaded(region)
        await asyncio.sleep(120)
        assert max(region.of(name) for name in "abc") <= 0.6001, "what is far above the average is met first"
        await asyncio.sleep(600)
        assert len(region.leaders()) == 1 and region.leaders() < {"a", "b", "c"}
        assert {to for _, _, to in region.moved[:3]} == {"c"} and "c" not in {source for _, source, _ in region.moved}
        done = len(region.moved)
        await asyncio.sleep(600)
        assert len(region.moved) == done == len({bundle for bundle, _, _ in region.moved}), "no bundle moved twice"
        assert [region.balancers[n].moves for n in "abc"].count(0) == 2
        told = [row for n in "abc" for row in region.balancers[n].recent]
        assert [
            ((row["namespace"], row["bundle"]), row["from"], row["to"]) for row in told if row["moved"]
        ] == region.moved

    run(seed, scenario)


@pytest.mark.parametrize("seed", range(5))
def test_another_broker_leads_once_the_leader_is_dead(seed: int) -> None:
    async def scenario(region: Region) -> None:
        region.settings = BalanceSettings(shedding=SheddingSettings(moves_per_minute=0))
        await loaded(region)
        await asyncio.sleep(60)
        (leader,) = region.leaders()
        region.sim.machine(leader).kill()
        alive = [balancer for name, balancer in region.balancers.items() if name != leader]
        await asyncio.sleep(40)
        assert {balancer.leader for balancer in alive} in [{b.broker} for b in alive]
        assert all(leader not in balancer.reports for balancer in alive), "its report went with its lease"

    run(seed, scenario)


def test_nothing_moves_during_a_pause_and_the_pause_ends_by_itself() -> None:
    async def scenario(region: Region) -> None:
        await region.boot("x")
        await region.sim.machine("x").ask(region.balancers["x"].set_pause, "an operator", 300.0)
        await loaded(region)
        await asyncio.sleep(200)
        assert region.moved == [] and all(balancer.book.paused for balancer in region.balancers.values())
        await asyncio.sleep(200)
        assert region.moved and not any(balancer.book.paused for balancer in region.balancers.values())

    run(1, scenario)


def test_a_pause_is_ended_by_hand() -> None:
    async def scenario(region: Region) -> None:
        await region.boot("x")
        ask = region.sim.machine("x").ask
        await ask(region.balancers["x"].set_pause, "an operator", 300.0)
        await asyncio.sleep(1)
        assert region.balancers["x"].book.paused
        await ask(region.balancers["x"].set_pause, "", 0.0)
        await asyncio.sleep(1)
        assert not region.balancers["x"].book.paused

    run(1, scenario)


def test_a_move_that_is_refused_is_tried_again_without_rest() -> None:
    async def scenario(region: Region) -> None:
        region.settings = BalanceSettings(shedding=SheddingSettings(cool_down_s=80_000))
        region.refuse = True
        await loaded(region)
        await asyncio.sleep(200)
        region.refuse = False
        await asyncio.sleep(800)
        assert max(region.of(name) for name in "abc") <= 0.6001

    run(1, scenario)


@pytest.mark.parametrize("seed", range(5))
def test_misplaced_bundles_move_within_a_few_cycles_whatever_the_load(seed: int) -> None:
    async def scenario(region: Region) -> None:
        region.settings = BalanceSettings(shedding=SheddingSettings(moves_per_minute=0), misplaced_per_cycle=8)
        await loaded(region)
        await asyncio.sleep(60)
        assert region.moved == []
        region.permit = lambda bundle: ["b", "c"] if bundle[0] == "t/a" else ["a", "b", "c"]
        while not region.moved:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        assert len(region.moved) == 8, "so many a cycle"
        await asyncio.sleep(11)
        assert {to for _, _, to in region.moved} <= {"b", "c"} and len(region.moved) == 10
        assert {bundle[0] for bundle, _, _ in region.moved} == {"t/a"} and "a" not in {
            region.owner["t/a", n] for n in range(10)
        }

    run(seed, scenario)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_shed_to_a_broker_that_may_not_serve_it(seed: int) -> None:
    async def scenario(region: Region) -> None:
        may = {"t/a": ["a"], "t/b": ["a", "b", "c"], "t/c": ["a", "b", "c"]}
        region.permit = lambda bundle: may[bundle[0]]
        await loaded(region)
        await asyncio.sleep(900)
        assert region.moved and all(to in may[bundle[0]] for bundle, _, to in region.moved)
        assert region.of("a") == pytest.approx(0.8) and region.of("b") < 0.5

    run(seed, scenario)


@pytest.mark.parametrize("seed", range(5))
def test_brokers_between_which_nothing_may_move_are_balanced_by_themselves(seed: int) -> None:
    async def scenario(region: Region) -> None:
        region.permit = lambda bundle: ["a", "d"] if bundle[0] in ("t/a", "t/d") else ["b", "c"]
        for name, share in (("a", 0.9), ("b", 0.1), ("c", 0.1), ("d", 0.5)):
            for index in range(10):
                region.owner[f"t/{name}", index], region.loads[f"t/{name}", index] = name, share / 10
            await region.boot(name)
        await asyncio.sleep(200)
        assert {(source, to) for _, source, to in region.moved} == {("a", "d")}
        assert abs(region.of("a") - region.of("d")) < 0.15, "though both are above the average of all"

    run(seed, scenario)


def test_a_quiet_broker_writes_little() -> None:
    async def scenario(region: Region) -> None:
        await region.boot("a")
        written: list[int] = []
        EmbeddedStore(region.table).watch(keys.load("a"), lambda key, value, version: written.append(version))
        await asyncio.sleep(600)
        assert 8 <= len(written) <= 11, "one a minute"

    run(1, scenario)


def test_a_report_of_another_version_is_left_alone() -> None:
    async def scenario(region: Region) -> None:
        await loaded(region)
        store = EmbeddedStore(region.table)
        await store.put(keys.load("newer"), b"\x81\xa6format\x63")
        await store.put(keys.BALANCE_PAUSED, b"\xff")
        await asyncio.sleep(120)
        assert max(region.of(name) for name in "abc") <= 0.6001 and "newer" not in region.balancers["a"].reports

    run(1, scenario)


def test_values_come_back_as_they_were() -> None:
    report = LoadReport(BrokerLoad(0.5, [(("t/n", 3), 0.25)]), 17, 4, {"cpu": 0.5})
    assert LoadReport.decode(report.encode()) == report
    assert Pause.decode(Pause("me", 5).encode()) == Pause("me", 5)
