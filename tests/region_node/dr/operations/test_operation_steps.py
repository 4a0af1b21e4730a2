"""Operations: each step waits for what it must, and goes on where it was interrupted, wherever that was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import ABSENT, Check
from heliograph.model.configuration.leadership import (
    DRAINING,
    EPOCHS_IN_MS,
    EPOCHS_IN_MS_STEP,
    FENCED,
    FLOOR,
    OPEN,
    Leadership,
    following,
    leadership,
    preceding,
    writer,
)
from heliograph.model.errors import MetadataUnavailable, NotAllowed, NotFound, OutcomeUnknown
from region_node.dr.leadership.leadership_changes import closing, reopened
from region_node.dr.operations import namespace_facts
from region_node.dr.operations.automatic_policy import BY
from region_node.dr.operations.operation import (
    KEPT,
    STEPS,
    Operation,
    Planned,
    boundary_prefix,
    history_prefix,
    operation_key,
)
from region_node.dr.operations.operation_steps import reports_of
from tests.region_node.dr.operations.world import NS, TOPIC, Interrupted, View, World, failed_over, lack, link, steps


@pytest.mark.parametrize("kind", ("rejoin", "drill"))
@pytest.mark.parametrize("after", (False, True), ids=("lost", "answer-lost"))
def test_a_rejoin_or_a_drill_that_is_interrupted_at_any_write_goes_on(kind: str, after: bool) -> None:
    async def main() -> None:
        for at in range(1, 60):
            world = World(Interrupted(0, after))
            await world.begin()
            assert isinstance(world.store, Interrupted)
            if kind == "rejoin":
                await steps(world, "failover")
                world.topic("eu")["vector"] = {"1.1.a": [7, 11]}
            before = await world.leadership()
            world.store.at, world.store.writes = at, 0
            done = await steps(world, kind, "us" if kind == "rejoin" else "eu")
            assert done.state == "done" and len({step[0] for step in done.steps}) == len(done.steps) == len(
                STEPS[kind]
            ), f"interrupted at write {at}"
            assert await world.leadership() == before, "the namespace itself is left alone"
            assert (await world.conductor.advance(NS)).id == done.id and (await world.conductor.history(NS))[
                -1
            ].id == done.id
            if kind == "drill":
                reports = await reports_of(world.store, NS)
                assert [report["id"] for report in reports] == [done.id] and reports[0]["passed"], "kept once"
                assert not world.shadows.there and not [
                    name for name in await world.conductor.switching.all() if name != NS
                ], "the shadow is gone"
            if world.store.writes < at:
                return
        raise AssertionError("an operation has fewer writes than that")

    run_alone(main())


@pytest.mark.parametrize("kind", ("switchover", "failover"))
@pytest.mark.parametrize("after", (False, True), ids=("lost", "answer-lost"))
def test_interrupted_at_any_write_it_goes_on(kind: str, after: bool) -> None:
    async def main() -> None:
        for at in range(1, 30):
            world = World(Interrupted(0, after))
            await world.begin()
            assert isinstance(world.store, Interrupted)
            world.store.at, world.store.writes = at, 0
            done = await steps(world, kind)
            record = await world.leadership()
            assert (done.state, record.active, record.epoch, record.state) == ("done", "eu", 2, OPEN), (
                f"interrupted at write {at}"
            )
            assert (await world.conductor.advance(NS)).id == done.id and [
                op.id for op in await world.conductor.history(NS)
            ] == [done.id], "it is on record"
            assert len({step[0] for step in done.steps}) == len(done.steps) == (6 if kind == "switchover" else 5)
            if world.store.writes < at:
                return
        raise AssertionError("an operation has fewer writes than that")

    run_alone(main())


def test_a_switchover_waits_for_everything_that_could_lose_or_repeat() -> None:
    async def main() -> None:
        world = World()
        await world.conductor.switching.begin(NS, "us", {})
        await world.conductor.begin("switchover", NS, "eu", "op")
        world.topic("us")["links"]["eu"] = link(connected=False, cause="timeout")
        assert (
            "links that are down" in (await world.conductor.advance(NS)).waiting
            and (await world.leadership()).state == OPEN
        )
        world.topic("us")["links"]["eu"] = link(messages=4, entries=4)
        assert "no broker of eu holds a lease" in (await world.conductor.advance(NS)).waiting
        await world.obey("eu")
        await world.obey("us")
        assert (await world.conductor.advance(NS)).step == "drain"
        assert (
            "brokers of us" in (await world.conductor.advance(NS)).waiting
            and (await world.leadership()).state == DRAINING
        )
        await world.obey("us")
        assert (await world.conductor.advance(NS)).step == "deliver"
        assert "4 messages" in (await world.conductor.advance(NS)).waiting
        world.topic("us")["links"]["eu"] = link()
        world.facts["eu"]["missing"] = [TOPIC]
        assert "no broker has loaded" in (await world.conductor.advance(NS)).waiting
        world.facts["eu"]["missing"] = []
        claims = {"in_step": True, "told": {"eu": True}, "claims": {"origins": 1}, "parts": [3, 1], "heard": {}}
        world.topic("us")["subscriptions"] = {"s": claims}
        assert (await world.conductor.advance(NS)).step == "subscriptions"
        assert "s of" in (await world.conductor.advance(NS)).waiting
        there: dict[str, Any] = {"in_step": True, "told": {}, "claims": {}, "heard": {"us": {"origins": 1}}}
        world.topic("eu")["subscriptions"] = {"s": {**there, "heard_parts": {"us": [4, 1]}}}
        assert "s of" in (await world.conductor.advance(NS)).waiting, (
            "of a batch one message more was acknowledged than eu has heard"
        )
        world.topic("eu")["subscriptions"] = {"s": there}  # of an earlier version, which does not tell of parts
        assert (await world.conductor.advance(NS)).step == "flip" and (await world.leadership()).active == "us"
        assert (await world.conductor.advance(NS)).step == "open" and (await world.leadership()).active == "eu"
        assert "brokers of eu" in (await world.conductor.advance(NS)).waiting
        with pytest.raises(NotAllowed, match="switch back"):
            await world.conductor.cancel(NS)
        await world.obey("eu")
        assert (await world.conductor.advance(NS)).state == "done"
        assert [op.kind for op in await world.conductor.history(NS)] == ["switchover"]

    run_alone(main())


def test_topics_that_are_not_meant_for_the_other_region_hold_nothing_up() -> None:
    """A shadow has its source's links; a topic with a policy of its own may stay where it is."""
    row = {
        "vector": {"1.1.b": [3, 4]},
        "links": {},
        "lacks": {},
        "subscriptions": {"s": {"in_step": False, "told": {}, "claims": {}}},
        "producers": 0,
    }
    shadow, local, lost = (f"persistent://public/shop/{name}" for name in ("shadow", "local", "lost"))

    async def main() -> None:
        world = World()
        await world.begin()
        await world.conductor.begin("switchover", NS, "eu", "op")
        for region in ("us", "eu"):
            await world.obey(region)
        topics = world.facts["us"]["topics"]
        topics |= {shadow: {**row, "shadow": TOPIC, "only": None}, local: {**row, "shadow": "", "only": ["us", "ap"]}}
        topics[lost] = {**row, "shadow": "", "only": ["us", "eu"], "subscriptions": {}}
        assert (await world.conductor.advance(NS)).waiting == f"links that are down: {lost}"
        topics[lost]["links"] = {"eu": link()}
        op = await world.conductor.advance(NS)
        assert op.step == "drain" and op.steps[-1][2].endswith(f"; {local} stays in us, by policy"), op.steps
        await world.obey("us")
        await world.conductor.advance(NS)
        await world.obey("us")
        for _ in range(6):
            op = await world.conductor.advance(NS)
            await world.obey("eu")
        assert op.state == "done", op.waiting
        assert namespace_facts.own_affair(world.facts["us"], "eu") == [shadow, local]
        unheard = {
            "topics": {shadow: {**row, "shadow": TOPIC}, local: {**row, "only": ["us"]}, lost: row},
            "missing": [],
        }
        assert namespace_facts.lacking(unheard, "eu")["unheard"] == [lost], (
            "of an earlier version, which tells of neither"
        )

    run_alone(main())


def test_where_consumers_go_on_acknowledging_what_they_had_before_is_enough() -> None:
    claims = {"origins": 1}
    here = {"in_step": False, "age_s": 0.3, "told": {"eu": True}, "claims": claims, "parts": [0, 0]}
    there = {
        "in_step": False,
        "applied": True,
        "told": {},
        "claims": {},
        "heard": {"us": claims},
        "heard_parts": {"us": [0, 0]},
    }
    sides = [{"topics": {TOPIC: {"subscriptions": {"s": side}}}} for side in (here, there)]
    assert namespace_facts.out_of_step(*sides, "us", "eu", 1.2) == [f"s of {TOPIC}"], (
        "its newest round may have been before that"
    )
    assert namespace_facts.out_of_step(*sides, "us", "eu", 1.4) == []
    there["applied"] = False
    assert namespace_facts.out_of_step(*sides, "us", "eu", 9.0)


@pytest.mark.parametrize("to", ("eu", "ap"))
def test_what_was_closed_anew_by_somebody_else_is_not_flipped_on_an_old_look(to: str) -> None:
    async def main() -> None:
        world = World()
        switching = world.conductor.switching
        await switching.begin(NS, "us", {})
        for region in ("us", "eu"):
            await world.obey(region)
        await world.conductor.begin("switchover", NS, "eu", "op")
        while (await world.conductor.advance(NS)).step != "flip":
            await world.obey("us")
        await switching.change(
            NS, lambda old: reopened(old, 2_000)
        )  # messages are taken again, and closed again, unseen by this operation
        await switching.change(NS, lambda old: closing(old, to, DRAINING, 3_000))
        await world.obey("us")
        found = await world.conductor.advance(NS)
        assert found.step == "flip" and f"is being moved to {to} by somebody else" in found.waiting
        record = await world.leadership()
        assert (record.active, record.state) == ("us", DRAINING)
        with pytest.raises(NotAllowed, match="somebody else"):
            await switching.flip(NS, "us", regions=())
        assert (await switching.flip(NS, to, regions=()))[0] is not None

    run_alone(main())


def test_cancelled_before_the_flip_the_region_goes_on() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        for region in ("us", "eu"):
            await world.obey(region)
        await world.conductor.begin("switchover", NS, "", "op")
        await world.conductor.advance(NS)
        await world.conductor.advance(NS)
        assert (await world.leadership()).state == DRAINING
        with pytest.raises(NotFound):
            await world.conductor.cancel(NS, 7)
        assert (await world.conductor.cancel(NS, 1)).state == "cancelled"
        record = await world.leadership()
        assert (record.active, record.state, record.epoch) == ("us", OPEN, 1)
        with pytest.raises(NotFound):
            await world.conductor.cancel(NS)

    run_alone(main())


@pytest.mark.parametrize("kind", ("switchover", "failover"))
@pytest.mark.parametrize("who", ("step", "cancel"))
def test_a_step_that_is_done_beside_a_cancel_leaves_nothing_closed(kind: str, who: str) -> None:
    """Somebody else's command goes on asking for steps. who: whose look at the operation comes first."""

    async def main() -> None:
        world = World()
        await world.begin()
        await world.conductor.begin(kind, NS, "eu", "op")
        while (await world.leadership()).state == OPEN:
            await world.conductor.advance(NS)
        assert (await world.conductor.advance(NS)).waiting == (await world.conductor.advance(NS)).waiting != ""
        first, second = world.make(), world.make()
        change = first.switching.change

        async def beside(namespace: str, how: Callable[[Leadership], Leadership]) -> tuple[Leadership, int]:
            first.switching.change = change  # type: ignore[method-assign]
            if who == "step":
                await second.cancel(NS)
                return await change(namespace, how)
            done = await change(namespace, how)
            await second.advance(NS)
            return done

        first.switching.change = beside  # type: ignore[method-assign]
        await (first.advance(NS) if who == "step" else first.cancel(NS))
        found, _ = await world.conductor.operation(NS)
        assert found is not None and found.state == "cancelled"
        record = await world.leadership()
        assert (record.active, record.state) == ("us", OPEN)

    run_alone(main())


def test_a_failover_needs_nothing_of_the_lost_region_and_passes_over_a_switchover() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        for region in ("us", "eu"):
            await world.obey(region)
        await world.conductor.begin("switchover", NS, "eu", "op")
        await world.conductor.advance(NS)
        world.down = {"us"}
        world.topic("eu")["lacks"]["us"] = lack(connected=False, messages=3, bytes=30, silent_s=4.0, age_s_max=4.0)
        await world.conductor.begin("failover", NS, "eu", "op")
        assert (await world.conductor.advance(NS)).report["before"]["messages"] == 3
        assert "brokers of us: b.1" in (await world.conductor.advance(NS)).waiting, "its lease has not ended"
        assert (await world.leadership()).state == FENCED
        await world.store.delete(writer("us", "b", 1))
        done = await steps(world, "failover")
        assert done.report["after"]["silent_s"] == 4.0 and done.report["epoch"] == 2
        assert [(op.kind, op.state) for op in await world.conductor.history(NS)] == [
            ("switchover", "cancelled"),
            ("failover", "done"),
        ]
        world.down = set()
        world.topic("eu")["lacks"]["us"] = lack()
        back = await world.conductor.begin("rejoin", NS, "us", "op")
        assert (back.source, back.target) == ("us", "eu")
        assert (
            await world.conductor.begin("rejoin", NS, "us", "op")
            == back
            == await world.conductor.begin("rejoin", NS, "", "op")
        ), "it goes on"
        world.topic("us")["links"]["eu"] = link(entries=2, messages=3)
        await world.obey("us")
        found = await world.conductor.advance(NS)
        found = await world.conductor.advance(NS)
        found = await world.conductor.advance(NS)
        assert found.report["tail"]["messages"] == 3 and found.step == "deliver"
        assert "3 messages" in (await world.conductor.advance(NS)).waiting
        world.topic("us")["links"]["eu"] = link()
        await world.conductor.advance(NS)
        assert "lacks the tail" in (await world.conductor.advance(NS)).waiting, "the link's word alone is not enough"
        world.topic("eu")["vector"] = {"1.1.a": [7, 11]}
        ended = await world.conductor.advance(NS)
        assert ended.state == "done" and (ended.report["kept"], ended.report["lost"]) == (3, 0)

    run_alone(main())


def test_what_began_by_itself_closes_nothing_where_the_region_that_was_lost_is_there_again() -> None:
    async def main() -> None:
        for by, state in ((BY, OPEN), ("anna", FENCED)):
            world = World()
            await world.begin()
            await world.conductor.begin("failover", NS, "eu", by)
            for _ in range(3):
                op = await world.conductor.advance(NS)
            assert op.step == "fence" and (await world.leadership()).state == state
        world = World()
        await world.begin()
        await world.conductor.begin("failover", NS, "eu", BY)
        await world.store.delete(writer("us", "b", 1))
        for _ in range(3):
            op = await world.conductor.advance(NS)
        assert op.step == "flip" and (await world.leadership()).state == FENCED

    run_alone(main())


def test_a_rejoin_counts_what_its_link_said_would_never_come() -> None:
    async def main() -> None:
        world = World()
        await failed_over(world)
        world.topic("eu")["missing"] = {"1.1.a": [[[7, 8], [7, 10]]], "2.1.b": [[[1, 1], [1, 2]]]}
        world.spans = [
            {"entries": 1, "messages": 2, "bytes": 20, "first": "1.1.a:7:10", "last": "1.1.a:7:10", "left": []}
        ]
        done = await steps(world, "rejoin", "us")
        assert (done.report["tail"]["messages"], done.report["kept"], done.report["lost"]) == (3, 1, 2)
        assert world.asked[-1] == ("spans", {TOPIC: [["1.1.a", [7, 9], [7, 10]]]}), (
            "of the origin that was lost, above what eu held then"
        )
        assert "2 stay in us alone" in done.steps[-1][2]

    run_alone(main())


def test_a_rejoin_ends_though_producers_go_on() -> None:
    """Of what is published all the time something is always on its way; the tails are what was there before."""

    async def main() -> None:
        world = World()
        await failed_over(world)
        world.topic("eu")["links"]["us"] |= {"entries": 3, "messages": 3, "age_s": 4.0}
        await world.conductor.begin("rejoin", NS, "us", "op")
        while (await world.conductor.advance(NS)).step != "deliver":
            pass
        for later_ms, age_s in ((0, 4.0), (3_000, 7.0), (2_000, 4.1)):
            world.later_ms += later_ms
            world.topic("eu")["links"]["us"]["age_s"] = age_s
            op = await world.conductor.advance(NS)
            assert op.step == "deliver" and "on their way" in op.waiting, "some of it was there when they were counted"
        world.topic("eu")["links"]["us"]["age_s"] = 0.2
        done = await steps(world, "rejoin", "us")
        assert done.state == "done" and "has come since" in done.steps[-2][2]

    run_alone(main())


@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_wrong_ends_no_rejoin_before_its_messages_are_there_and_keeps_none_from_its_end(
    ahead_ms: int,
) -> None:
    """The next step is asked for at a broker whose clock is an hour ahead, or behind."""

    async def main() -> None:
        world = World()
        await failed_over(world)
        world.topic("eu")["links"]["us"] |= {"entries": 3, "messages": 3, "age_s": 4.0}
        await world.conductor.begin("rejoin", NS, "us", "op")
        while (await world.conductor.advance(NS)).step != "deliver":
            pass
        world.ahead_ms, world.conductor = ahead_ms, world.make()
        op = await world.conductor.advance(NS)
        assert op.step == "deliver" and "on their way" in op.waiting
        world.later_ms += 5_500
        op = await world.conductor.advance(NS)
        assert op.step == "verify" and "has come since" in op.steps[-1][2]

    run_alone(main())


def test_where_another_region_took_over_since_a_rejoin_says_so() -> None:
    async def main() -> None:
        world = World()
        await failed_over(world)
        assert "only when eu took over" in (await steps(world, "rejoin", "us")).steps[1][2]
        await world.conductor.switching.change(NS, lambda old: closing(old, "ap", FENCED, 1))
        await world.obey("eu")
        await world.conductor.switching.flip(NS, "ap", regions=())
        world.facts["ap"] = {**world.facts["eu"], "region": "ap"}
        world.facts["us"]["topics"][TOPIC]["links"]["ap"] = link()
        await world.obey("us")
        await world.obey("ap")
        await world.conductor.begin("rejoin", NS, "us", "op")
        assert "only when another region (epoch 2) took over" in (await steps(world, "rejoin", "us")).steps[1][2]

    run_alone(main())


def test_epochs_of_a_restore_are_far_apart_and_a_rejoin_finds_its_own_at_once() -> None:
    class Counting(EmbeddedStore):
        reads = 0

        async def range(self, *of: Any, **more: Any) -> Any:
            self.reads += 1
            assert self.reads < 1000, "one read an epoch"
            return await super().range(*of, **more)

    async def main() -> None:
        for epoch in (1, EPOCHS_IN_MS - 1, EPOCHS_IN_MS, 1_700_000_000_000):
            assert preceding(following(epoch)) == epoch
        world = World(Counting())
        await world.store.put(FLOOR, b"1700000000000")
        await world.begin()
        with pytest.raises(NotFound, match="no failover of t/n away from eu is on record"):
            await world.conductor.begin("rejoin", NS, "eu", "op")
        await steps(world, "failover")
        assert await world.conductor.away(NS) == {"us": [(await world.leadership()).epoch]}
        world.topic("eu")["vector"] = {"1.1.a": [7, 11]}
        assert "only when eu took over" in (await steps(world, "rejoin", "us")).steps[1][2]

    run_alone(main())


def test_a_tail_too_long_for_one_request_is_counted_piece_by_piece() -> None:
    async def main() -> None:
        world = World()
        await failed_over(world)
        world.tail["left"] = [["1.1.a", [7, 11], [9, 99]]]
        world.spans = [
            {
                "entries": 5,
                "messages": 5,
                "bytes": 50,
                "first": "1.1.a:8:0",
                "last": "1.1.a:8:4",
                "left": [["1.1.a", [8, 4], [9, 99]]],
            },
            {"entries": 1, "messages": 1, "bytes": 10, "first": "1.1.a:9:0", "last": "1.1.a:9:0", "left": []},
        ]
        world.topic("eu")["vector"] = {"1.1.a": [9, 99]}
        done = await steps(world, "rejoin", "us")
        assert [what for what, _ in world.asked] == ["tails", "spans", "spans"] and world.asked[2][1] == {
            TOPIC: [["1.1.a", [8, 4], [9, 99]]]
        }
        (found,) = done.report["tail"]["topics"].values()
        assert (
            done.report["tail"]["messages"],
            done.report["tail"]["topics_count"],
            found["first"],
            found["last"],
        ) == (9, 1, "1.1.a:7:10", "1.1.a:9:0")

    run_alone(main())


@pytest.mark.parametrize("kind", ("switchover", "failover"))
def test_a_region_that_is_active_again_has_no_tail_any_more(kind: str) -> None:
    async def main() -> None:
        world = World()
        await failed_over(world)
        assert await world.conductor.away(NS) == {"us": [2]}
        await world.conductor.begin(kind, NS, "us", "op")
        await steps(world, kind, "us")
        assert await world.conductor.away(NS) == ({} if kind == "switchover" else {"eu": [3]})
        await world.conductor.begin("switchover", NS, "eu", "op")  # in order, long after
        await steps(world, "switchover", "eu")
        with pytest.raises(NotFound, match="no failover"):
            await world.conductor.begin("rejoin", NS, "us", "op")

    run_alone(main())


@pytest.mark.parametrize(("kind", "step"), [("failover", "fence"), ("switchover", "drain")])
def test_nothing_is_closed_for_a_region_that_has_left(kind: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        await world.conductor.begin(kind, NS, "eu", "op")
        while (await world.conductor.advance(NS)).step != step:
            pass
        monkeypatch.setattr(View, "regions", ("us",))
        assert "not in eu any more" in (await world.conductor.advance(NS)).waiting
        assert not (await world.leadership()).to

    run_alone(main())


def test_nothing_is_flipped_to_a_region_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        await world.conductor.begin("failover", NS, "eu", "op")
        await world.store.delete(writer("us", "b", 1))
        while (await world.conductor.advance(NS)).step != "flip":
            pass
        with monkeypatch.context() as left:
            left.setattr(View, "regions", ("us",))
            assert "not in eu any more" in (await world.conductor.advance(NS)).waiting
            assert (await world.leadership()).active == "us"
        assert (await steps(world, "failover")).state == "done" and (await world.leadership()).active == "eu"

    run_alone(main())


@pytest.mark.parametrize("restored", (False, True))
def test_a_failover_that_was_given_up_leaves_nothing_to_rejoin(restored: bool) -> None:
    async def main() -> None:
        world = World()
        if restored:
            await world.store.put(FLOOR, b"1700000000000")
        await world.begin()
        await world.conductor.begin("failover", NS, "eu", "op")
        await world.store.delete(writer("us", "b", 1))
        while (await world.conductor.advance(NS)).step != "flip":
            pass
        await world.conductor.cancel(NS)
        await world.obey("us")
        await steps(world, "switchover", "eu")
        epoch = (await world.leadership()).epoch
        assert epoch == (1_700_000_000_000 + 2 * EPOCHS_IN_MS_STEP if restored else 2)
        assert await world.conductor.away(NS) == {}

    run_alone(main())


@pytest.mark.parametrize("kind", ("switchover", "failover"))
def test_what_is_flipped_is_not_cancelled_also_where_that_was_not_recorded(kind: str) -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        op = await world.conductor.begin(kind, NS, "eu", "op")
        while op.step != "flip":
            op = await world.conductor.advance(NS)
            await world.obey("us")
        await world.conductor._flip(op)
        with pytest.raises(NotAllowed, match="eu is the active region already"):
            await world.conductor.cancel(NS)
        await world.obey("eu")
        assert (await steps(world, kind)).state == "done"

    run_alone(main())


@pytest.mark.parametrize("kind", ("switchover", "failover"))
def test_who_took_over_may_be_lost_before_it_is_seen_to_take_messages(kind: str) -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        await world.obey("us")
        await world.obey("eu")
        await world.conductor.begin(kind, NS, "eu", "op")
        for _ in range(20):
            if (await world.conductor.advance(NS)).step == "open":
                break
            for region in ("us", "eu"):
                await world.obey(region)
        assert (await world.leadership()).active == "eu"
        with pytest.raises(NotAllowed, match="under way"):
            await world.conductor.begin("switchover", NS, "us", "op")
        await world.store.delete(writer("eu", "b", 1))
        world.down = {"eu"}
        await world.conductor.begin("failover", NS, "us", "op")
        while (found := await world.conductor.advance(NS)).running:
            await world.obey("us")
        record = await world.leadership()
        assert (found.state, record.active, record.epoch) == ("done", "us", 3)
        first, second = await world.conductor.history(NS)
        assert first.steps[-1][2] == "eu was not seen to open" and second.kind == "failover"

    run_alone(main())


def test_another_region_may_take_over_where_the_next_one_is_lost_before_the_flip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(View, "regions", ("us", "eu", "ap"))

    async def main() -> None:
        world = World()
        await world.begin()
        await world.conductor.begin("failover", NS, "eu", "op")
        await world.conductor.advance(NS)
        world.down = {"us", "eu"}
        for region in ("us", "eu"):
            await world.store.delete(writer(region, "b", 1))
        world.facts["ap"] = {**world.facts["eu"], "region": "ap"}
        await world.obey("ap")
        await world.conductor.begin("failover", NS, "ap", "op")
        while (await world.conductor.advance(NS)).running:
            await world.obey("ap")
        assert (await world.leadership()).active == "ap"
        assert [(op.target, op.state) for op in await world.conductor.history(NS)] == [
            ("eu", "cancelled"),
            ("ap", "done"),
        ]

    run_alone(main())


def test_nothing_is_begun_by_a_plan_of_another_leadership_and_what_goes_on_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(View, "regions", ("us", "eu", "ap"))

    async def main() -> None:
        world = World()
        await world.begin()
        old = Planned(active="us", epoch=1, operation=0)
        await world.obey("ap")
        begun = await world.conductor.begin("failover", NS, "eu", "op", planned=old)
        with pytest.raises(NotAllowed, match="a failover to eu is under way at step measure"):
            await world.conductor.begin("failover", NS, "ap", "other", planned=old)
        assert await world.conductor.begin("failover", NS, "eu", "other", planned=old) == begun
        seen = Planned(active="us", epoch=1, operation=begun.id)
        assert (await world.conductor.begin("failover", NS, "ap", "other", planned=seen)).target == "ap"
        await world.conductor.begin("failover", NS, "eu", "op")
        assert (await steps(world, "failover")).state == "done"
        for kind, target in (("failover", "ap"), ("switchover", "ap"), ("drill", "us")):
            with pytest.raises(NotAllowed, match="it is active in eu under epoch 2"):
                await world.conductor.begin(kind, NS, target, "other", planned=old)
        assert (await world.leadership()).active == "eu"

    run_alone(main())


def test_nothing_is_begun_beside_another_one_where_that_was_asked_or_where_what_was_seen_is_gone() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        seen = Planned(active="us", epoch=1, operation=0, alone=True)
        gone = Check("/dr/silences/eu/b.1", 7)
        with pytest.raises(MetadataUnavailable):
            await world.conductor.begin("failover", NS, "eu", "automatic", planned=seen, checks=[gone])
        assert await world.conductor.operation(NS) == (None, ABSENT)
        await world.conductor.begin("switchover", NS, "eu", "op")
        with pytest.raises(NotAllowed, match="a switchover to eu is under way at step check"):
            await world.conductor.begin("failover", NS, "eu", "automatic", planned=seen)
        await world.conductor.cancel(NS)
        await world.conductor.begin("drill", NS, "eu", "op")
        report = {"automatic": {"lost_s": 30}}
        begun = await world.conductor.begin("failover", NS, "eu", "automatic", planned=seen, report=report)
        assert begun.kind == "failover" and begun.report == report, "a drill is in nobody's way"

    run_alone(main())


def test_nothing_takes_the_place_of_one_that_went_on_since_or_goes_on_where_it_was_moved_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(View, "regions", ("us", "eu", "ap"))

    async def main() -> None:
        world = World()
        await world.begin()
        await world.conductor.begin("failover", NS, "eu", "op")
        seen = Planned(active="us", epoch=1, operation=1, alone=True, step="measure")
        await world.conductor.advance(NS)
        with pytest.raises(NotAllowed, match="a failover to eu is under way at step fence"):
            await world.conductor.begin("failover", NS, "ap", "automatic", planned=seen)
        record, version = await world.conductor.switching.get(NS)
        moved = replace(record, active="ap", epoch=2)
        await world.store.put(leadership(NS), moved.encode(), expected=version)
        op = await world.conductor.advance(NS)
        assert op.step == "fence" and "active in ap by now" in op.waiting

    run_alone(main())


def test_a_boundary_that_is_written_is_there_whoever_writes_it_anew() -> None:
    async def main() -> None:
        world = World(Interrupted(0, False))
        await world.begin()
        assert isinstance(world.store, Interrupted)
        op = await world.conductor.begin("failover", NS, "eu", "op")
        while op.step != "boundary":
            op = await world.conductor.advance(NS)
            await world.obey("us")
        prefix = boundary_prefix(NS, 2)
        await world.store.put(f"{prefix}000500", b"of one that was given up")
        written = await world.conductor._boundary(op)
        assert written.step == "flip" and [row[0] for row in world.store.machine.under(prefix)] == [f"{prefix}000000"]
        world.store.writes, world.store.at = 0, 1
        with pytest.raises(OutcomeUnknown):
            await world.make()._boundary(op)
        assert [row[0] for row in world.store.machine.under(prefix)] == [f"{prefix}000000"]

    run_alone(main())


def test_a_failover_says_which_survivors_have_no_way_to_the_next_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "regions", ("us", "eu", "ap", "sa", "af"))

    async def main() -> None:
        world = World()
        await world.begin()
        await world.obey("eu")
        world.down = {"us"}
        links = world.topic("eu")["links"]
        links["us"], links["ap"], links["sa"] = (
            link(connected=False),
            link(connected=False, cause="unreachable"),
            link(),
        )  # to af nothing is replicated
        _, cost = await world.conductor.plan("failover", NS, "eu")
        assert cost["cut_off"] == {"ap": [f"{TOPIC} (unreachable)"]}
        await world.conductor.begin("failover", NS, "eu", "op")
        done = await steps(world, "failover")
        assert done.report["cut_off"] == {"ap": {"count": 1, "some": [f"{TOPIC} (unreachable)"]}}
        (text,) = [found for step, _, found in done.steps if step == "boundary"]
        assert "eu has no link to ap (1 topics)" in text

    run_alone(main())


def test_what_cannot_be_asked_for_is_refused() -> None:
    async def main() -> None:
        world = World()
        with pytest.raises(NotFound, match="active-active"):
            await world.conductor.begin("switchover", NS, "eu", "op")
        await world.begin()
        for kind, target in (("switchover", "us"), ("switchover", "ap"), ("dance", "eu")):
            with pytest.raises(NotAllowed):
                await world.conductor.begin(kind, NS, target, "op")
        with pytest.raises(NotFound, match="no failover"):
            await world.conductor.begin("rejoin", NS, "eu", "op")
        with pytest.raises(NotAllowed, match="switchover"):
            await world.conductor.switching.begin(NS, "eu", {})
        await world.conductor.begin("switchover", NS, "eu", "op")
        with pytest.raises(NotAllowed, match="under way"):
            await world.conductor.begin("rejoin", NS, "eu", "op")
        planned, cost = await world.conductor.plan("failover", NS, "eu")
        assert planned.id == 1 and cost["target"]["messages"] == 0 and (await world.leadership()).state == OPEN

    run_alone(main())


def test_what_is_not_loaded_is_never_counted_as_nothing() -> None:
    found = namespace_facts.merged("us", [{"topics": {"a": {"links": {}, "lacks": {}}}}], ["a", "b"])
    assert found["missing"] == ["b"]
    assert namespace_facts.not_in(found, "eu")["down"] == ["a"] and namespace_facts.lacking(found, "eu")["unheard"] == [
        "a"
    ]


def test_a_region_that_never_told_anything_is_silent_all_the_same() -> None:
    told = lack(connected=False, silent_s=4.0, messages=None)
    found = namespace_facts.lacking({"missing": [], "topics": {"a": {"lacks": {"us": told}}, "b": {"lacks": {}}}}, "us")
    assert found["unheard"] == ["a", "b"] and found["silent_s"] == 4.0


def test_silence_is_told_with_the_numbers_also_where_a_link_is_still_connected() -> None:
    """Above two seconds; below, a beat may only be on its way. A region of an earlier version does not say."""
    for silent_s, told in ((1.9, 0.0), (2.1, 2.1), (None, 0.0)):
        one = {"links": {"us": link(silent_s=silent_s)}, "lacks": {"us": lack(silent_s=silent_s, messages=0)}}
        facts = {"missing": [], "topics": {"a": one, "b": {"links": {"us": link()}, "lacks": {"us": lack()}}}}
        assert (
            namespace_facts.lacking(facts, "us")["silent_s"] == namespace_facts.not_in(facts, "us")["silent_s"] == told
        )


def test_topics_that_were_loaded_in_silence_are_named_with_how_long_nothing_is_known() -> None:
    topics = {"a": {"lacks": {}, "loaded_s": 3.0}, "b": {"lacks": {}, "loaded_s": 70.0}, "c": {"lacks": {"us": lack()}}}
    found = namespace_facts.lacking({"missing": [], "topics": topics}, "us")
    assert found["unheard"] == ["a", "b"] and found["unheard_s"] == 70.0 and found["messages"] == 0


def test_the_newest_operations_are_kept() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        old = Operation.new(1, "drill", NS, "us", "eu", "op", 7)
        for number in range(1, KEPT + 3):
            await world.store.put(f"{history_prefix(NS)}{number:08d}", replace(old, id=number).encode())
        await world.store.put(operation_key(NS), replace(old, id=KEPT + 2, state="done").encode())
        done = await steps(world, "failover")
        assert done.id == KEPT + 3
        assert [op.id for op in await world.conductor.history(NS)] == list(range(4, KEPT + 4))

    run_alone(main())
