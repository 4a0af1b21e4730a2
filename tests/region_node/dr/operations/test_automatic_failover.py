"""A namespace that fails over by itself: when, where to, by whom, and what keeps it from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.model.configuration.leadership import DRAINING, FENCED, OPEN, Leadership, leadership
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.operations import automatic_failover
from region_node.dr.operations.automatic_failover import AutomaticFailover, majority
from region_node.dr.operations.automatic_policy import BY, Automatic, automatic, held, hold
from region_node.dr.operations.operation import CANCELLED, DONE, FAILOVER, REJOIN, RUNNING, Operation, operation_key
from tests.region_node.dr.operations.automatic_instance import Instance
from tests.region_node.dr.operations.world import NS

AFTER_S = 20.0


def with_instance(
    test: Callable[[Instance], Awaitable[None]],
    *regions: str,
    brokers: int = 1,
    without_admin: Sequence[str] = (),
    **wanted: Any,
) -> None:
    async def main() -> None:
        instance = await Instance(*regions, brokers=brokers, without_admin=without_admin).start(
            **{"after_s": AFTER_S, **wanted}
        )
        try:
            await test(instance)
        finally:
            await instance.stop()

    run_alone(main(), limit_s=3000.0)


def test_a_region_that_is_lost_is_failed_over_from_once_and_says_who_why_and_what_was_at_risk() -> None:
    async def test(instance: Instance) -> None:
        await instance.lose("us")
        await asyncio.sleep(AFTER_S)
        assert instance.leadership().active == "us", "its leases count for 6 s more"
        await asyncio.sleep(15)
        record, op = instance.leadership(), await instance.operation()
        assert record.active in ("eu", "ap") and (record.epoch, record.state) == (2, OPEN)
        assert op is not None and (op.kind, op.by, op.state, op.id) == (FAILOVER, BY, DONE, 1)
        assert op.report["automatic"]["lost_s"] >= AFTER_S and op.report["automatic"]["said_by"] == ["eu", "ap"]
        assert op.report["after"]["messages"] == 0
        assert [event["event"] for event in instance.events] == ["failover.begun", "failover.done"]
        begun, done = instance.events
        assert begun["by"] == "automatic"
        assert "us has had no lease for 20 s, and eu, ap heard nothing" in begun["because"]
        assert "0 messages (0 bytes) of us are missing" in done["because"] and done["at_risk"] == op.report["after"]

    with_instance(test, brokers=2)


def test_without_having_been_wanted_nothing_moves_and_nothing_is_asked() -> None:
    async def test(instance: Instance) -> None:
        await instance.store.delete(automatic(NS))
        await asyncio.sleep(2)
        before = instance.asked
        await instance.lose("us")
        await asyncio.sleep(120)
        assert instance.leadership().active == "us" and instance.asked == before

    with_instance(test)


def test_while_every_region_is_there_a_look_asks_and_writes_nothing() -> None:
    async def test(instance: Instance) -> None:
        await asyncio.sleep(10)
        before = instance.asked
        await asyncio.sleep(60)
        assert instance.asked == before and not instance.store.machine.under("/dr/silences/")

    with_instance(test)


def test_a_region_that_has_leases_is_left_alone_whatever_the_links_say() -> None:
    async def test(instance: Instance) -> None:
        instance.hush("us")
        await asyncio.sleep(200)
        assert instance.leadership().epoch == 1

    with_instance(test)


def test_one_regions_own_cut_link_is_no_reason_and_a_majority_is() -> None:
    async def test(instance: Instance) -> None:
        instance.hush("us", by=("eu",))
        for broker in instance.of("us"):
            await broker.cut_off()
        await asyncio.sleep(100)
        assert instance.leadership().epoch == 1
        assert "of eu, ap only eu says that nothing came from us for 20 s" in instance.said("eu")
        instance.hush("us")
        await asyncio.sleep(AFTER_S + 15)
        assert instance.leadership().epoch == 2

    with_instance(test)


def test_what_a_majority_is() -> None:
    assert majority(["eu"], ["eu"]) and majority(["eu", "ap"], ["eu", "ap"])
    assert not majority(["eu"], ["eu", "ap"]) and not majority([], [])
    assert majority(["eu", "ap"], ["eu", "ap", "sa"]) and not majority(["eu", "ap"], ["eu", "ap", "sa", "af"])


def test_a_broker_that_hears_it_speaks_for_its_whole_region() -> None:
    async def test(instance: Instance) -> None:
        await instance.lose("us")
        other = instance.of("eu")[1]
        for _ in range(60):
            other.incoming.region("us").on[0].bytes()
            await asyncio.sleep(1)
        assert instance.leadership().epoch == 1
        await asyncio.sleep(AFTER_S + 15)
        assert instance.leadership().epoch == 2

    with_instance(test, "us", "eu", brokers=2)


def test_a_broker_without_an_admin_interface_says_what_it_hears_and_another_one_begins() -> None:
    async def test(instance: Instance) -> None:
        await instance.lose("us")
        other = instance.of("eu")[0]
        for _ in range(60):
            other.incoming.region("us").on[0].bytes()
            await asyncio.sleep(1)
        assert instance.leadership().epoch == 1, "it hears us"
        await asyncio.sleep(AFTER_S + 15)
        assert instance.leadership().active == "eu" and other.tried == 0

    with_instance(test, "us", "eu", brokers=2, without_admin=("eu-0",))


def test_a_region_without_any_admin_interface_counts_and_is_left_out_where_it_is_named_to_take_over() -> None:
    async def test(instance: Instance) -> None:
        await instance.lose("us")
        await asyncio.sleep(AFTER_S + 15)
        op, record = await instance.operation(), instance.leadership()
        assert record.active == "ap" and op is not None
        assert op.report["automatic"]["said_by"] == ["eu", "ap"]

    with_instance(test, without_admin=("eu-0",), to=("eu", "ap"))


def test_a_broker_that_takes_no_part_is_named() -> None:
    async def test(instance: Instance) -> None:
        await instance.of("eu")[1].automatic.stop()
        await instance.lose("us")
        await asyncio.sleep(60)
        assert instance.leadership().epoch == 1
        assert "no majority; nothing is said by eu-1." in instance.said("eu")

    with_instance(test, "us", "eu", brokers=2)


def test_silence_that_is_interrupted_begins_anew() -> None:
    async def test(instance: Instance) -> None:
        await instance.lose("us")
        for _ in range(6):
            await asyncio.sleep(AFTER_S - 2)
            for region in ("eu", "ap"):
                for broker in instance.of(region):
                    broker.incoming.region("us").on[0].bytes()
        assert instance.leadership().epoch == 1
        await asyncio.sleep(AFTER_S + 15)
        assert instance.leadership().epoch == 2

    with_instance(test)


def test_behind_a_move_nothing_moves_by_itself_for_as_long_as_it_holds() -> None:
    async def test(instance: Instance) -> None:
        await instance.lose("us")
        await asyncio.sleep(AFTER_S + 15)
        first = instance.leadership()
        await instance.back("us")
        await instance.lose(first.active)
        await asyncio.sleep(200)
        assert instance.leadership().epoch == 2
        assert f"a failover to {first.active} holds it for 300 s" in instance.said("us")
        await asyncio.sleep(150)
        assert instance.leadership().epoch == 3

    with_instance(test, hold_s=300.0)


@pytest.mark.parametrize("namespace", (NS, ""))
def test_an_operator_holds_it(namespace: str) -> None:
    async def test(instance: Instance) -> None:
        await hold(instance.store, namespace, 100.0, "anna", 0)
        await instance.lose("us")
        await asyncio.sleep(90)
        assert instance.leadership().epoch == 1 and instance.said("eu") == "anna holds it for 100 s"
        assert instance.of("eu")[0].automatic.held(NS)
        await asyncio.sleep(30)
        assert instance.leadership().epoch == 2

    with_instance(test, to=("eu",))


@pytest.mark.parametrize("namespace", (NS, ""))
def test_a_hold_that_comes_behind_the_look_at_it_counts(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(instance: Instance) -> None:
        async def nothing_yet(*_: Any) -> str:
            if not await held(instance.store, NS):
                await hold(instance.store, namespace, 100.0, "anna", 0)
            return ""

        monkeypatch.setattr(automatic_failover, "held", nothing_yet)
        await instance.lose("us")
        await asyncio.sleep(90)
        assert instance.leadership().epoch == 1 and await instance.operation() is None

    with_instance(test, to=("eu",))


def test_beside_another_operation_none_is_begun() -> None:
    async def test(instance: Instance) -> None:
        other = Operation.new(7, REJOIN, NS, "ap", "us", "anna", 0)
        await instance.store.put(operation_key(NS), other.encode())
        await instance.lose("us")
        await asyncio.sleep(100)
        assert await instance.operation() == other and instance.leadership().epoch == 1
        assert "a rejoin to us is under way" in instance.said("eu")
        await instance.store.put(operation_key(NS), other.cancelled(1).encode())
        await asyncio.sleep(15)
        assert instance.leadership().epoch == 2

    with_instance(test)


def test_the_first_of_the_named_regions_that_is_there_takes_over_else_who_lacks_least() -> None:
    async def named(instance: Instance) -> None:
        await instance.lose("ap")
        await instance.lose("us")
        await asyncio.sleep(AFTER_S + 20)
        assert instance.leadership().active == "sa"

    async def least(instance: Instance) -> None:
        instance.lacks = {"eu": {"messages": 5}, "ap": {"messages": 3}, "sa": {"messages": None}}
        await instance.lose("us")
        await asyncio.sleep(AFTER_S + 20)
        assert instance.leadership().active == "ap"

    with_instance(named, "us", "eu", "ap", "sa", "af", to=("ap", "sa", "eu"))
    with_instance(least, "us", "eu", "ap", "sa")


def test_a_region_that_lacks_too_much_does_not_take_over_and_says_so() -> None:
    async def test(instance: Instance) -> None:
        instance.lacks = {"eu": {"messages": 5}}
        await instance.lose("us")
        await asyncio.sleep(100)
        assert instance.leadership().epoch == 1
        status = instance.of("eu")[0].automatic.status(NS)
        assert status is not None and "eu does not take over: it lacks 5 messages" in status["said"]
        assert status["lost_s"] > 60 and status["held"] == "" and status["risk_messages"] == 4
        samples = {name: value for name, _, _, value in instance.of("eu")[0].automatic.samples()}
        assert samples["heliograph_dr_automatic_after_seconds"] == AFTER_S
        assert samples["heliograph_dr_active_lost_seconds"] > 60
        assert samples["heliograph_dr_automatic_failovers_total"] == 0
        instance.lacks = {}
        await asyncio.sleep(15)
        assert instance.leadership().epoch == 2

    with_instance(test, "us", "eu", risk_messages=4)


def test_another_broker_goes_on_with_one_that_was_left_behind() -> None:
    async def test(instance: Instance) -> None:
        instance.lacks = {"eu": {"messages": 0}}
        await instance.lose("us")
        mark = (await instance.begun()).report["automatic"]["broker"].partition(".")[0]
        first = next(broker for broker in instance.of("eu") if broker.name == mark)
        await first.automatic.stop()
        await asyncio.sleep(30)
        op = await instance.operation()
        assert op is not None and op.state == DONE and op.id == 1 and instance.leadership().active == "eu"

    with_instance(test, "us", "eu", brokers=2)


def test_where_the_region_that_was_to_take_over_is_lost_too_the_first_goes_on() -> None:
    async def test(instance: Instance) -> None:
        instance.missing_closed = ["persistent://t/n/y"]
        await instance.lose("us")
        await instance.begun()
        await asyncio.sleep(5)
        assert instance.leadership().state == FENCED
        await instance.lose("eu")
        await asyncio.sleep(40)
        await instance.back("us")
        record, op = instance.leadership(), await instance.operation()
        assert (record.active, record.state, record.epoch) == ("us", OPEN, 1)
        assert op is not None and op.state == CANCELLED
        assert "eu is lost, too" in instance.events[-1]["because"]

    with_instance(test, to=("eu",))


def test_where_it_is_lost_once_it_is_the_active_one_nothing_is_given_up_and_the_next_one_takes_over() -> None:
    """The flip had its effect, and nobody came to writing that down."""

    async def test(instance: Instance) -> None:
        await instance.lose("us")
        await asyncio.sleep(AFTER_S + 15)
        op = await instance.operation()
        assert op is not None and op.state == DONE and instance.leadership().active == "eu"
        await instance.lose("eu")
        left = replace(op, state=RUNNING, step="flip", steps=op.steps[:3], ended_ms=0)
        await instance.store.put(operation_key(NS), left.encode())
        await instance.back("us")
        await asyncio.sleep(100)
        assert await instance.operation() == left, "it is held"
        await asyncio.sleep(100)
        assert instance.leadership().active in ("us", "ap") and instance.leadership().epoch == 3
        history = await instance.conductor(instance.brokers[-1]).history(NS)
        assert [(one.id, one.state) for one in history] == [(1, DONE), (2, DONE)]

    with_instance(test, to=("eu", "us", "ap"), hold_s=150.0)


def test_a_region_that_has_not_loaded_every_topic_does_not_take_over() -> None:
    async def next_one(instance: Instance) -> None:
        instance.missing = {"eu": ["persistent://t/n/y"]}
        await instance.lose("us")
        await asyncio.sleep(AFTER_S + 20)
        record = instance.leadership()
        assert (record.active, record.epoch) == ("ap", 2)

    async def nobody(instance: Instance) -> None:
        instance.missing = {region: ["persistent://t/n/y"] for region in instance.regions}
        await instance.lose("us")
        await asyncio.sleep(AFTER_S + 20)
        assert instance.leadership().state == OPEN and await instance.operation() is None
        assert "eu has not loaded persistent://t/n/y" in instance.said("eu")

    for to in (("eu", "ap"), ()):
        with_instance(next_one, to=to)
        with_instance(nobody, to=to)


def test_what_waits_while_the_region_that_was_lost_is_there_again_is_given_up() -> None:
    async def test(instance: Instance) -> None:
        instance.missing_closed = ["persistent://t/n/y"]
        await instance.lose("us")
        await instance.begun()
        await asyncio.sleep(5)
        assert instance.leadership().state == FENCED
        await instance.back("us")
        await asyncio.sleep(30)
        record, op = instance.leadership(), await instance.operation()
        assert (record.active, record.state, record.epoch) == ("us", OPEN, 1)
        assert op is not None and op.state == CANCELLED
        assert [event["event"] for event in instance.events] == ["failover.begun", "failover.given_up"]
        assert "us is there again, and boundary waits: eu has not loaded" in instance.events[-1]["because"]

    with_instance(test, to=("eu",), brokers=2)


@pytest.mark.parametrize("brokers", (1, 2))
def test_what_has_closed_nothing_while_the_region_came_back_is_given_up_by_whoever_was_there(brokers: int) -> None:
    async def test(instance: Instance) -> None:
        instance.mute = instance.regions
        await instance.lose("us")
        op = await instance.begun()
        await asyncio.sleep(5)
        assert op.step == "measure" and instance.leadership().state == OPEN
        await instance.back("us")
        for broker in instance.of("us"):
            await broker.automatic.stop()
        await asyncio.sleep(60)
        ended = await instance.operation()
        assert ended is not None and ended.state == CANCELLED and ended.id == op.id
        assert instance.events[-1]["because"] == "us is there again"

    with_instance(test, to=("eu",), brokers=brokers)


def test_a_broker_that_has_just_begun_gives_nothing_up_while_the_region_is_lost() -> None:
    async def test(instance: Instance) -> None:
        instance.mute = instance.regions
        await instance.lose("us")
        op = await instance.begun()
        await instance.back("ap")
        await asyncio.sleep(12)
        instance.mute = ()
        await asyncio.sleep(20)
        ended = await instance.operation()
        assert ended is not None and ended.state == DONE and ended.id == op.id
        assert [event["event"] for event in instance.events] == ["failover.begun", "failover.done"]

    with_instance(test, to=("eu",))


@pytest.mark.parametrize(("answers_after_s", "active", "count"), ((20, "eu", 1), (60, "ap", 2)))
def test_another_region_takes_a_colleagues_place_only_where_that_does_not_go_on(
    answers_after_s: float, active: str, count: int
) -> None:
    async def test(instance: Instance) -> None:
        instance.lacks, instance.mute = {"ap": {"messages": 5}}, ("eu",)
        await instance.lose("us")
        assert (await instance.begun()).target == "eu"
        await asyncio.sleep(answers_after_s)
        instance.mute = ()
        await asyncio.sleep(20)
        op, record = await instance.operation(), instance.leadership()
        assert op is not None and (op.id, op.target, op.state) == (count, active, DONE)
        assert (record.active, record.epoch) == (active, 2)

    with_instance(test)


def test_what_somebody_has_closed_says_so_where_its_region_is_lost() -> None:
    async def test(instance: Instance) -> None:
        draining = instance.leadership()
        draining = replace(draining, state=DRAINING, to="eu")
        await instance.store.put(leadership(NS), draining.encode())
        await instance.lose("us")
        await asyncio.sleep(60)
        assert instance.leadership() == draining and await instance.operation() is None
        assert instance.said("eu") == "it is closed for eu: finish what moves it, or cancel that"

    with_instance(test)


def test_what_asks_whether_it_still_is_to_moves_nothing_until_it_is_set_again() -> None:
    async def test(instance: Instance) -> None:
        wanted = Automatic(after_s=AFTER_S, asks="restored")
        await instance.store.put(automatic(NS), wanted.encode())
        await instance.lose("us")
        await asyncio.sleep(60)
        assert instance.leadership().epoch == 1
        status = instance.of("eu")[0].automatic.status(NS)
        assert status is not None and status["said"] == "restored: set it anew, or off"
        shown = {name: value for name, _, _, value in instance.of("eu")[0].automatic.samples()}
        assert shown["heliograph_dr_active_lost_seconds"] > shown["heliograph_dr_automatic_after_seconds"]
        await instance.store.put(automatic(NS), replace(wanted, asks="").encode())
        await asyncio.sleep(60)
        assert instance.leadership().epoch == 2

    with_instance(test)


def test_two_that_are_lost_of_three_leave_no_majority() -> None:
    async def test(instance: Instance) -> None:
        await instance.lose("us")
        await instance.lose("ap")
        await asyncio.sleep(200)
        assert instance.leadership().epoch == 1 and "no majority" in instance.said("eu")

    with_instance(test)


@pytest.mark.parametrize("rule", ("held", "majority"))
def test_the_hold_and_the_majority_are_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> str:
        return ""

    monkeypatch.setattr(automatic_failover, rule, nothing if rule == "held" else lambda *_: True)
    if rule == "held":
        monkeypatch.setattr(AutomaticFailover, "held", lambda *_: "")
        monkeypatch.setattr(automatic_failover, "hold_keys", lambda _: ())

    async def test(instance: Instance) -> None:
        if rule == "held":
            await hold(instance.store, NS, 100.0, "anna", 0)
            await instance.lose("us")
        else:
            for broker in instance.of("us"):
                await broker.cut_off()
        await asyncio.sleep(90)
        assert instance.leadership().epoch == 2, "so the tests above are of these rules"

    with_instance(test)


def test_many_namespaces_are_moved_in_turn_and_cost_nothing_while_their_region_is_there() -> None:
    """Of each a broker asks the configuration once when it hears of it, and then no more."""
    count = 20

    async def test(instance: Instance) -> None:
        names = [f"t/n{number}" for number in range(count)]
        for name in names:
            await Switching(instance.store, lambda: 0).begin(name, "us", {})
        await asyncio.sleep(20)
        for name in names:
            await instance.store.put(automatic(name), Automatic(after_s=AFTER_S).encode())
        await asyncio.sleep(20)
        before = instance.asked
        await asyncio.sleep(60)
        assert instance.asked == before and before <= 2 * 2 * (count + 1)
        await instance.lose("us")
        await asyncio.sleep(AFTER_S + 60)
        found = [instance.store.machine.get(leadership(name)) for name in names]
        assert {Leadership.decode(row[0]).active for row in found if row is not None} == {"eu"}

    with_instance(test, "us", "eu")


def test_very_many_go_side_by_side_at_brokers_that_begin_apart_and_ask_the_configuration_together() -> None:
    count = 96

    async def test(instance: Instance) -> None:
        names = [f"t/n{number:03}" for number in range(count)]
        await instance.store.delete(automatic(NS))
        for name in names:
            await Switching(instance.store, lambda: 0).begin(name, "us", {})
        await asyncio.sleep(20)
        for name in names:
            await instance.store.put(automatic(name), Automatic(after_s=AFTER_S).encode())
        await asyncio.sleep(20)
        for broker in instance.brokers:
            broker.store.calls.clear()
            broker.store.moment_s = 0.001
        await instance.lose("us")
        await asyncio.sleep(AFTER_S + 60)
        found = [instance.store.machine.get(leadership(name)) for name in names]
        assert {Leadership.decode(row[0]).active for row in found if row is not None} == {"eu"}
        begun = [event["namespace"] for event in instance.events if event["event"] == "failover.begun"]
        assert sorted(begun) == names
        assert sum(broker.tried for broker in instance.of("eu")) <= 1.5 * count, "two brokers, mostly at others"
        assert sum(broker.store.calls.total() for broker in instance.of("eu")) <= 25 * count, "each alone: 57"

    with_instance(test, "us", "eu", brokers=2)


def test_what_is_left_behind_keeps_no_other_waiting() -> None:
    count = automatic_failover.AT_ONCE + 8

    async def test(instance: Instance) -> None:
        names = [f"t/n{number:03}" for number in range(count)]
        await instance.store.delete(automatic(NS))
        for name in names:
            await Switching(instance.store, lambda: 0).begin(name, "us", {})
        await asyncio.sleep(20)
        for name in names:
            await instance.store.put(automatic(name), Automatic(after_s=AFTER_S).encode())
        await asyncio.sleep(5)
        await instance.lose("us")
        await asyncio.sleep(10)
        for name in names[:-1]:
            left = Operation.new(1, FAILOVER, name, "us", "eu", BY, 0)
            await instance.store.put(operation_key(name), left.encode())
        most = 0
        for _ in range(400):
            await asyncio.sleep(0.1)
            most = max(most, len(instance.of("eu")[0].automatic._waiting))
        assert most > automatic_failover.AT_ONCE, "those that it waits for take no place"

    with_instance(test, "us", "eu")
