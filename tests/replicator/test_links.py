"""Links end to end on the simulated loop: real managers, connections, and receivers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import MetadataUnavailable
from heliograph.model.positions import BEFORE_ALL
from replicator.health.link_causes import Cause
from replicator.manager.departed_regions import PROPERTY
from replicator.manager.link_manager import LinkSettings
from replicator.pulsar.pulsar_link import PulsarLink
from replicator.sending.link_sender import SenderSettings
from tests.replicator.fake_ledger import FakeLedger
from tests.replicator.link_instance import TOPIC, Instance, play
from tests.storage.managed_ledger.memory_log import MemoryCursor


def test_a_full_mesh_holds_the_same_entries_each_once_and_in_order() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        for turn in range(30):
            for region in instance.regions.values():
                region.publish(1 + turn % 7)
            await asyncio.sleep(0.02)
        await asyncio.sleep(1)
        us, eu, ap = instance.regions.values()
        assert sorted(us.bodies()) == sorted(eu.bodies()) == sorted(ap.bodies()) and len(us.bodies()) == 3 * us.sequence
        for region in (us, eu, ap):
            for origin in (1, 2, 3):
                mine = [b for b in region.bodies() if b // 1_000_000 == origin]
                assert mine == sorted(mine)
        for region in (us, eu, ap):
            for other in instance.regions:
                if other != region.name:
                    stats = region.link(other)
                    assert stats.connected and stats.backlog_entries == stats.backlog_bytes == 0 and stats.age_s == 0
                    assert 80 <= stats.rtt_ms <= 140
        assert us.log.known["eu"][0].prefix(ap.log.origin) == ap.log.vector.prefix(ap.log.origin), (
            "vectors travel in heartbeats"
        )
        assert us.log.source_ends["eu"][:2] == eu.log.last_own()
        await asyncio.sleep(30)
        for region in (us, eu, ap):
            links = region.brokers[0].links
            assert not links._active and links._rounds.idle, "an idle topic is in no round"

    play(scenario)


def test_backlog_and_age_are_true_while_the_link_is_cut_and_drain_after_it() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(1)
        sim.network.cut("us", "eu")
        began = sim.now()
        for _ in range(20):
            us.publish(5)
            await asyncio.sleep(0.5)
        stats = us.link("eu")
        assert not stats.connected and stats.cause in (Cause.HEARTBEAT_LOST, Cause.TIMEOUT), stats
        assert stats.backlog_entries == stats.backlog_messages == 100
        assert abs(stats.age_s - (sim.now() - began)) < 0.1
        assert stats.backlog_bytes == sum(run.size_bytes for _, _, run in us.store.runs()[1:])
        eu.publish(1)
        sim.network.heal("us", "eu")
        await asyncio.sleep(25)
        assert len(eu.bodies()) == len(us.bodies()) == 104
        stats = us.link("eu")
        assert stats.connected and stats.cause == Cause.NONE and (stats.backlog_entries, stats.age_s) == (0, 0)

    for seed in range(4):
        play(scenario, seed=seed, names=("us", "eu"))


def test_a_link_is_not_connected_from_five_seconds_unheard_on_also_before_anybody_has_looked() -> None:
    """Connections are looked at each second; what is told of them in between is as true."""

    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(2)
        sim.network.cut("us", "eu")
        connected: dict[str, set[bool]] = {"young": set(), "old": set()}
        while (stats := us.link("eu")).silent_s is not None and stats.silent_s < 12:
            there = eu.log.incoming["us"].status(eu.brokers[0].clock.wall_ms())
            for silent_s, told in ((stats.silent_s, stats.connected), (there["silent_s"], there["connected"])):
                assert isinstance(silent_s, float) and isinstance(told, bool)
                connected["young" if silent_s < 5 else "old"].add(told)
            assert stats.connected or (stats.cause != Cause.NONE and stats.remedy), stats
            await asyncio.sleep(0.05)
        assert connected == {"young": {True}, "old": {False}}
        sim.network.heal("us", "eu")
        await asyncio.sleep(12)
        stats = us.link("eu")
        assert stats.connected and stats.silent_s is not None and stats.silent_s < 2

    for seed in range(4):
        play(scenario, seed=seed, names=("us", "eu"))


def test_a_source_that_stood_still_takes_no_target_for_silent() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(2)
        link = us.outgoing("eu")
        connection = link.connection
        assert connection is not None
        for stood_s in (4.0, 6.0, 20.0, 200.0):
            life = us.brokers[us.owner].machine.stop()
            assert life is not None
            await asyncio.sleep(stood_s)
            sim.loop.go_on(life)
            await asyncio.sleep(3.3)
            assert link.connection is connection and not connection.closed, stood_s
        us.publish(3)
        await asyncio.sleep(2)
        assert len(eu.bodies()) == 6

    for seed in range(4):
        play(scenario, seed=seed, names=("us", "eu"))


def test_the_owner_moves_at_both_ends() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        for turn in range(24):
            us.publish(3)
            eu.publish(2)
            if turn % 8 == 3:
                await us.move(1 - us.owner)
            if turn % 8 == 6:
                await eu.move(1 - eu.owner)
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert sorted(us.bodies()) == sorted(eu.bodies()) and len(us.bodies()) == 24 * 5
        assert us.link("eu").connected and us.link("eu").backlog_entries == 0

    for seed in range(6):
        play(scenario, seed=seed, names=("us", "eu"), brokers=2)


def test_a_killed_broker_at_the_target() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(0.5)
        eu.brokers[0].machine.kill()
        us.publish(4)
        await asyncio.sleep(1)
        assert not us.link("eu").connected and us.link("eu").backlog_entries == 4
        eu.owner = 1
        await asyncio.sleep(8)
        assert len(eu.bodies()) == 7 and us.link("eu").connected

    play(scenario, names=("us", "eu"), brokers=2)


def test_what_is_for_some_regions_only_is_filtered_and_the_vector_follows_within_a_second() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu, ap = instance.regions.values()
        us.publish(3, to=("eu",))
        us.publish(2)
        us.publish(4, to=("ap",))
        await asyncio.sleep(3)
        assert len(eu.bodies()) == 5 and len(ap.bodies()) == 6
        for region in (eu, ap):
            assert region.log.vector.prefix(us.log.origin) == us.log.vector.prefix(us.log.origin)
            assert region.log.vector.missing(us.log.origin) == ()
            assert us.link(region.name).backlog_entries == 0

    play(scenario)


def test_what_was_trimmed_by_force_is_skipped_and_named() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(0.5)
        sim.network.cut("us", "eu")
        await asyncio.sleep(8)
        us.publish(4)
        us.ledger.rollover()
        lost = us.log.vector.prefix(us.log.origin)
        us.ledger.trim(us.ledger.last_confirmed)
        us.publish(2)
        sim.network.heal("us", "eu")
        await asyncio.sleep(25)
        assert [b - 1_000_000 for b in eu.bodies()] == [0, 1, 2, 7, 8]
        assert eu.log.vector.missing(us.log.origin) == (((1, 2), lost),)
        assert us.link("eu").backlog_entries == 0

    play(scenario, names=("us", "eu"))


def test_a_new_topic_begins_without_a_skip() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(2)
        assert eu.log.vector.missing(us.log.origin) == () and len(eu.bodies()) == 3
        assert all(run.flags is None for _, _, run in [*us.store.runs(), *eu.store.runs()])

    play(scenario, names=("us", "eu"))


def test_a_target_that_lost_its_copy_gets_what_is_left_again() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(1)
        await eu.move(1)
        eu.store.blocks, eu.store.snapshot = [], None  # deleted, and made again: another incarnation
        eu.brokers[1].log = None
        us.publish(2)
        await asyncio.sleep(8)
        assert [b - 1_000_000 for b in eu.bodies()] == [0, 1, 2, 3, 4]
        assert us.link("eu").backlog_entries == 0

    play(scenario, names=("us", "eu"), brokers=2)


def test_a_target_that_is_put_back_while_the_source_is_killed_gets_what_it_lost_again() -> None:
    """What the link had confirmed is in the topic's state too, which is stored less often than the link's cursor."""

    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(1)
        us.ledger.save()
        eu.ledger.save()
        backup = list(eu.store.blocks), eu.store.snapshot
        us.publish(3)
        await asyncio.sleep(1)
        assert len(eu.bodies()) == 6 and us.link("eu").backlog_entries == 0
        us.brokers[0].machine.kill()
        us.owner = 1
        await eu.move(1)
        eu.store.blocks, eu.store.snapshot = backup
        eu.brokers[1].log = None
        await asyncio.sleep(1)
        us.publish(2)
        await asyncio.sleep(8)
        assert [b - 1_000_000 for b in eu.bodies()] == [0, 1, 2, 3, 4, 5, 6, 7]

    play(scenario, names=("us", "eu"), brokers=2)


def test_backlog_that_is_not_cached_is_read_and_the_window_bounds_what_is_in_flight() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.ledger.cache = False
        sim.network.cut("us", "eu")
        await asyncio.sleep(8)
        for _ in range(200):
            us.publish(10)
        sim.network.heal("us", "eu")
        worst = 0
        for _ in range(600):
            await asyncio.sleep(0.05)
            worst = max(worst, us.link("eu").in_flight_bytes)
        assert len(eu.bodies()) == 2000
        assert worst <= 20_000 + 1_000

    play(scenario, names=("us", "eu"), sender=SenderSettings(window_bytes=20_000))


def test_causes_are_shown_and_a_region_that_gets_an_address_is_tried_at_once() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        info = eu.info
        await us.move(1)
        instance.view.set(replace(info, link_urls={}))
        await us.move(0)
        us.publish(1)
        await asyncio.sleep(4)
        assert us.link("eu").cause == Cause.NO_ADDRESS and us.link("eu").backlog_entries == 1
        instance.view.set(info)
        await asyncio.sleep(1)
        assert us.link("eu").connected and len(eu.bodies()) == 1
        for broker in eu.brokers:
            broker.machine.kill()
        await asyncio.sleep(6)
        assert us.link("eu").cause in (Cause.UNREACHABLE, Cause.CONNECTION_LOST)

    play(scenario, names=("us", "eu"), brokers=2)


@pytest.mark.parametrize("host", ("eu..example.com", "e" * 64 + ".example.com"))
def test_an_address_that_nobody_can_look_up_stops_no_other_link_and_is_corrected(host: str) -> None:
    """Each link waits for the one place there is to look owners up."""

    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, settings=LinkSettings(establishing_max=1))
            us, eu, ap = instance.regions.values()
            info, urls = eu.info, {source: [f"pulsar://{host}:6650"] for source in eu.info.link_urls}
            instance.view.infos["eu"] = replace(info, link_urls=urls)
            await instance.load()
            assert us.link("ap").connected and ap.link("us").connected
            waits = us.link("eu")
            assert not waits.connected and waits.cause == Cause.NO_ADDRESS and host in waits.cause_text
            instance.view.set(info)
            await asyncio.sleep(1)
            assert us.link("eu").connected and ap.link("eu").connected

        sim.run(main(), limit_s=300)


def test_a_link_whose_cursor_cannot_be_made_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, fails = FakeLedger.open_cursor, True

    async def open_cursor(ledger: FakeLedger, name: str, *given: Any, **named: Any) -> MemoryCursor:
        if fails:
            raise MetadataUnavailable("the metadata has no leader")
        return await made(ledger, name, *given, **named)

    monkeypatch.setattr(FakeLedger, "open_cursor", open_cursor)

    async def scenario(instance: Instance, sim: Simulation) -> None:
        nonlocal fails
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(3)
        link, links = us.link("eu"), us.brokers[0].links
        assert (link.connected, link.cause, link.backlog_messages) == (False, Cause.METADATA, 3) and link.age_s >= 3
        assert links.at_risk() == {TOPIC: link.age_s} and us.outgoing("eu").oldest_ms()
        cluster = us.brokers[0].machine.run(PulsarLink, links, us.log, "cloud")
        assert cluster.stats().backlog_messages == 3 and cluster.stats().age_s == link.age_s
        fails = False
        await asyncio.sleep(8)
        assert len(eu.bodies()) == 3 and us.link("eu").backlog_messages == 0 and not links.at_risk()

    play(scenario, names=("us", "eu"))


def test_links_that_idle_have_no_task_and_one_timer() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(2)
        links = us.brokers[0].links
        assert not len(links._tasks) and not links._owners.tasks() and links.timers._handle is not None
        assert us.log.vector.prefix(eu.log.origin) == BEFORE_ALL
        await us.brokers[0].machine.ask(links.close)
        assert links.stats() == []

    play(scenario, names=("us", "eu"))


def test_a_region_that_left_loses_its_cursor_also_where_the_topic_was_not_loaded() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us = instance.regions["us"]
        us.publish(5)
        await asyncio.sleep(1)
        cursors = us.store.cursors
        assert set(cursors) == {"pulsar.repl.eu", "pulsar.repl.ap"}
        broker = us.brokers[0]
        log = us.log
        await broker.machine.ask(broker.links.detach, log)
        broker.machine.run(broker.links.attach, log, ["eu"])  # ap left while nobody had it loaded
        await asyncio.sleep(0.1)
        assert set(cursors) == {"pulsar.repl.eu"}
        instance.view.namespaces.clear()
        broker.machine.run(broker.links.attach, log, [])
        await asyncio.sleep(0.1)
        assert set(cursors) == {"pulsar.repl.eu"}, "which regions a namespace has that nobody knows is not known either"
        instance.view.namespaces["t/n"] = "known"
        broker.machine.run(broker.links.attach, log, [])
        broker.machine.run(broker.links.attach, log, ["eu"])  # it comes back at once
        await asyncio.sleep(1)
        assert set(cursors) == {"pulsar.repl.eu"} and us.link("eu").connected
        us.publish(5)
        await asyncio.sleep(1)
        assert us.link("eu").backlog_entries == 0

    play(scenario, left_grace_s=0.0)


def test_a_region_that_left_and_comes_back_in_time_has_lost_nothing() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, ap = instance.regions["us"], instance.regions["ap"]
        us.publish(5)
        await asyncio.sleep(1)
        sim.network.cut("us", "ap")
        us.publish(5)
        broker, log, cursors = us.brokers[0], us.log, us.store.cursors
        broker.machine.run(broker.links.attach, log, ["eu"])
        us.publish(5)
        await asyncio.sleep(50)
        us.ledger.rollover()
        since = cursors["pulsar.repl.ap"].properties[PROPERTY]
        await broker.machine.ask(broker.links.detach, log)
        broker.machine.run(broker.links.attach, log, ["eu"])  # loaded anew: the cursor says since when
        assert cursors["pulsar.repl.ap"].properties[PROPERTY] == since
        us.ledger.trim(min(cursor.mark_delete for cursor in cursors.values()))
        sim.network.heal("us", "ap")
        broker.machine.run(broker.links.attach, log, ["eu", "ap"])
        await asyncio.sleep(10)
        assert ap.bodies() == instance.regions["eu"].bodies() and len(ap.bodies()) == 15
        assert PROPERTY not in cursors["pulsar.repl.ap"].properties
        broker.machine.run(broker.links.attach, log, ["eu"])  # it leaves again, and has all of its time again
        await asyncio.sleep(95)
        assert "pulsar.repl.ap" in cursors
        await asyncio.sleep(10)
        assert set(cursors) == {"pulsar.repl.eu"}, "its time is over"

    play(scenario, left_grace_s=100.0)


def test_a_region_that_is_gone_for_good_is_not_waited_for() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us = instance.regions["us"]
        us.publish(5)
        await asyncio.sleep(1)
        us.brokers[0].machine.run(us.brokers[0].links.attach, us.log, ["eu"])
        await asyncio.sleep(10)
        assert "pulsar.repl.ap" in us.store.cursors
        instance.view.remove("ap")
        await asyncio.sleep(2)
        assert set(us.store.cursors) == {"pulsar.repl.eu"}

    play(scenario)


@pytest.mark.parametrize("heard", ("after", "before"))
def test_a_region_that_an_older_copy_of_the_configuration_never_heard_of_keeps_its_cursor(heard: str) -> None:
    """A broker beside a node that replays its log, or a configuration that was restored, knows less than the cursors
    do.
    """

    async def scenario(instance: Instance, sim: Simulation) -> None:
        us = instance.regions["us"]
        us.publish(5)
        await asyncio.sleep(1)
        broker, log, info = us.brokers[0], us.log, instance.view.infos["ap"]
        instance.view.unheard["ap"] = None
        await broker.machine.ask(broker.links.detach, log)
        if heard == "before":
            instance.view.remove("ap")
        broker.machine.run(broker.links.attach, log, ["eu"])
        if heard == "after":
            instance.view.remove("ap")
        await asyncio.sleep(95)
        assert set(us.store.cursors) == {"pulsar.repl.eu", "pulsar.repl.ap"}, "it may be younger than the copy"
        instance.view.unheard.clear()
        instance.view.set(info)
        broker.machine.run(broker.links.attach, log, ["eu", "ap"])
        us.publish(5)
        await asyncio.sleep(10)
        assert len(instance.regions["ap"].bodies()) == 10
        instance.view.unheard["ap"] = None
        instance.view.remove("ap")
        broker.machine.run(broker.links.attach, log, ["eu"])
        await asyncio.sleep(110)
        assert set(us.store.cursors) == {"pulsar.repl.eu"}, "it has the grace period, and no more"

    play(scenario, left_grace_s=100.0)


def test_a_link_to_a_pulsar_cluster_that_idles_tends_a_subscription_that_is_replicated_from_now_on() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us = instance.regions["us"]
        links, link = us.brokers[0].links, PulsarLink.__new__(PulsarLink)
        links._links[us.log.topic]["cloud"] = link
        await us.log.ledger.open_cursor("s", us.log.ledger.last_confirmed)
        assert link not in links._active
        us.log.subscriptions.enable("s")
        assert link in links._active
        del links._active[link], links._links[us.log.topic]["cloud"]

    play(scenario, names=("us", "eu"))


def test_brokers_of_a_region_share_its_budget() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        links, live = us.brokers[0].links, 1
        links.budgets._brokers = lambda: live
        budget = links.budgets.to("eu")
        assert budget is not None and links.budgets.to("ap") is None
        for live in (1, 4, 2, 0):
            await asyncio.sleep(1.1)
            before = budget.spent_bytes
            for _ in range(30):
                us.publish(20, body_bytes=500)
            await asyncio.sleep(2)
            share = 60_000 / max(1, live)
            assert (
                budget.bytes_per_s == share
                and 0 < budget.spent_bytes - before <= 2 * share + budget.share_bytes + 20_000
            )
            await asyncio.sleep(40)
        assert eu.bodies() == us.bodies()

    play(scenario, names=("us", "eu"), budget={"eu": 60_000.0}, budget_shared=True)


def test_a_budget_that_lay_idle_is_not_overrun_by_a_whole_pass() -> None:
    """What a link sends at once is a share of the budget and an entry at most, also where nothing went before."""

    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        budget = us.brokers[0].links.budgets.to("eu")
        assert budget is not None
        sim.network.cut("us", "eu")
        await asyncio.sleep(8)
        for _ in range(30):
            us.publish(1, body_bytes=6_000)
        sim.network.heal("us", "eu")
        before, began = budget.spent_bytes, sim.now()
        while sim.now() - began < 60:
            spent, elapsed = budget.spent_bytes - before, sim.now() - began
            assert spent <= budget.bytes_per_s * elapsed + budget.share_bytes + 2 * 6_200, elapsed
            await asyncio.sleep(0.01)
        assert eu.bodies() == us.bodies()

    play(scenario, names=("us", "eu"), budget={"eu": 20_000.0})
