"""What some survivors of a region's loss have of it, the others fetch: all of it that is meant for them, once, in
order, and what none has is named.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.coordinates import Vector
from heliograph.model.errors import LinkError, PeerError
from heliograph.model.positions import BEFORE_ALL
from heliograph.wire.links import audit_commands
from heliograph.wire.links.audit_commands import Ask, AuditAnswer, What
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.pulsar.frame_cutter import MESSAGE_BYTES_MAX
from heliograph.wire.run import Run
from replicator.audit import audit_scan
from replicator.audit.audit_scan import Teller
from replicator.audit.audit_settings import AUDIT_LIMITS, AuditLimits
from replicator.coordinates.late_entries import ROWS_MAX, LateMap, _Row
from replicator.health.link_causes import Cause
from replicator.links import link
from replicator.log.coordinate_lookup import LookupStatus, position_of, vector_at
from replicator.log.replicated_entries import checked_and_addressed, is_passing, received
from replicator.log.routing_trees import Tree, is_skip
from replicator.log.transaction_buffer import ABORT, COMMIT, marker_run
from replicator.manager.ended_origins import EndedOrigins, common, in_order, may_be_lost
from replicator.manager.link_manager import LinkSettings
from replicator.receiving import receiver_stream
from replicator.sending.outgoing_runs import OutgoingRun
from tests.broken_rules import BrokenRules
from tests.replicator.audit.audit_world import Copies, Damaged
from tests.replicator.link_instance import Instance, TestRegion
from tests.replicator.link_transactions import append, publish, shown

Scenario = Callable[[Instance], Coroutine[Any, Any, None]]


def play(seed: int, names: tuple[str, ...], scenario: Scenario, limits: AuditLimits = AUDIT_LIMITS) -> None:
    with Simulation(seed) as sim:

        async def main() -> None:
            instance = Instance(sim, names, settings=LinkSettings(audit_limits=limits))
            await instance.load()
            Damaged(instance)  # what others ask is read from each region's store
            await scenario(instance)
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=900)


def lose(instance: Instance, name: str, *, rebuilt: bool) -> None:
    """For good: its machine is gone; it left the configuration, or what comes back under its name has another epoch."""
    region = instance.regions[name]
    leave(instance, name)
    if rebuilt:
        instance.view.set(replace(region.info, epoch=region.info.epoch + 1))
    else:
        instance.view.remove(name)


def leave(instance: Instance, name: str) -> None:
    """It is no region of the topic any more, and cannot be reached."""
    instance.regions.pop(name, None)
    for other in instance.regions:
        instance.sim.network.cut(name, other)
    for region in instance.regions.values():
        broker = region.brokers[region.owner]
        broker.machine.run(broker.links.attach, region.log, list(instance.regions))
        region.log.incoming = {source: link for source, link in region.log.incoming.items() if source != name}


def of(region: TestRegion, number: int) -> list[int]:
    """Bodies that the region of that number published, as they lie in `region`."""
    return [body for body in region.bodies() if body // 1_000_000 == number]


def fetched(instance: Instance) -> int:
    return sum(region.brokers[0].links.tails.entries for region in instance.regions.values())


@pytest.mark.parametrize("rebuilt", [False, True])
def test_what_only_one_survivor_has_the_other_gets_too(rebuilt: bool) -> None:
    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        instance.view.set(RegionInfo(name="earlier", number=9, epoch=2))  # somebody's origin has ended: us's has not
        us.publish(10)
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "ap")
        us.publish(7)
        us.publish(4, to=("eu",))
        us.publish(5, to=("ap",))
        us.publish(6, to=("eu", "ap"))
        eu.publish(3)
        await asyncio.sleep(5)
        assert len(of(eu, 1)) == 27 and len(of(ap, 1)) == 10
        leave(instance, "us")
        await asyncio.sleep(90)
        assert len(of(ap, 1)) == 10, "its origin may come back: nobody else speaks for it"
        instance.regions["us"] = us
        lose(instance, "us", rebuilt=rebuilt)
        await asyncio.sleep(15)
        lacked = [1_000_000 + n for n in (*range(17), *range(26, 32))]
        assert of(ap, 1) == lacked and of(ap, 2) == of(eu, 2)
        assert fetched(instance) == 13
        origin = us.log.origin
        assert ap.log.vector.prefix(origin) == eu.log.vector.prefix(origin)
        await asyncio.sleep(30)
        assert of(ap, 1) == lacked and fetched(instance) == 13, "once"
        beyond = (eu.log.vector.prefix(origin)[0], eu.log.vector.prefix(origin)[1] + 1)
        assert (await position_of(ap.log, origin, beyond)).status is LookupStatus.LOST
        assert (await position_of(ap.log, eu.log.origin, (1 << 20, 0))).status is LookupStatus.AWAITED
        names = {run.producers[0][0] for _, _, run in ap.store.runs() if run.origin == origin and run.producers}
        assert names == {"us-producer"}

    play(1, ("us", "eu", "ap"), scenario)


def test_who_cannot_be_asked_is_waited_for() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu, ap, af = instance.regions.values()
        instance.sim.network.cut("us", "ap")
        us.publish(5, to=("eu", "ap"))
        us.publish(5, to=("af", "ap"))
        us.publish(5)
        await asyncio.sleep(5)
        assert not of(ap, 1)
        instance.sim.network.cut("af", "ap")
        await asyncio.sleep(10)
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(60)
        assert not of(ap, 1), "by what eu has alone, af's would be passed over"
        instance.sim.network.heal("af", "ap")
        auditor = af.brokers[0].links.auditor
        storage, auditor.storage = auditor.storage, None
        await asyncio.sleep(30)
        assert not of(ap, 1), "af answers that it cannot say now"
        auditor.storage = storage
        await asyncio.sleep(30)
        assert of(ap, 1) == [1_000_000 + n for n in range(15)]
        assert len(of(eu, 1)) == 10 and len(of(af, 1)) == 10

    play(2, ("us", "eu", "ap", "af"), scenario)


def test_what_is_fetched_names_its_region_also_where_nothing_of_it_was_here_before() -> None:
    async def scenario(instance: Instance) -> None:
        us, _, ap = instance.regions.values()
        instance.sim.network.cut("us", "ap")
        us.publish(5)
        await asyncio.sleep(5)
        assert us.log.origin not in ap.log.vector
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(30)
        runs = [run for _, _, run in ap.store.runs() if run.origin == us.log.origin and not run.flags]
        assert {entry_metadata(run.parts[0])[0].replicated_from for run in runs} == {"us"}

    play(4, ("us", "eu", "ap"), scenario)


def test_what_nobody_was_heard_of_yet_is_not_lost() -> None:
    """The topic has just come to this broker: what others hold is not known, and no acknowledgement of it may be given
    up.
    """

    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "ap")
        us.publish(5)
        await asyncio.sleep(3)
        instance.sim.network.cut("eu", "ap")
        await asyncio.sleep(10)
        lose(instance, "us", rebuilt=False)
        origin, at = us.log.origin, eu.log.vector.prefix(us.log.origin)
        ap.log.known = {}
        assert (await position_of(ap.log, origin, at)).status is LookupStatus.AWAITED
        instance.sim.network.heal("eu", "ap")
        await asyncio.sleep(30)
        assert (await position_of(ap.log, origin, at)).status is LookupStatus.HERE

    play(4, ("us", "eu", "ap"), scenario)


def test_who_has_left_the_topic_is_not_waited_for() -> None:
    async def scenario(instance: Instance) -> None:
        us, _, ap, af = instance.regions.values()
        af.publish(1)
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "ap")
        us.publish(5)
        await asyncio.sleep(3)
        for region in instance.regions.values():
            broker = region.brokers[region.owner]
            broker.machine.run(broker.links.attach, region.log, [] if region is af else ["us", "eu", "ap"])
        del instance.regions["af"]
        await asyncio.sleep(10)
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(30)
        assert "af" in ap.log.incoming and len(of(ap, 1)) == 5

    play(5, ("us", "eu", "ap", "af"), scenario)


def test_a_region_that_only_sends_here_is_asked_too_also_before_it_has_come() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu, ap, _ = instance.regions.values()
        routes = {"us": ["eu", "ap", "af"], "eu": ["ap"], "ap": ["eu"], "af": ["ap"]}
        for region in instance.regions.values():
            broker = region.brokers[region.owner]
            broker.machine.run(broker.links.attach, region.log, routes[region.name])
            broker.machine.run(broker.links.obey, region.log, {"replicationRoutes": routes})
        us.publish(5)
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "ap")
        us.publish(5, to=("af", "ap"))
        us.publish(5)
        await asyncio.sleep(3)
        instance.sim.network.cut("af", "ap")
        await asyncio.sleep(10)
        instance.regions.pop("us")
        for other in ("eu", "ap", "af"):
            instance.sim.network.cut("us", other)
        ap.log.incoming = {}  # as after the topic came to another broker
        instance.view.remove("us")
        await asyncio.sleep(60)
        assert len(of(eu, 1)) == 10 and len(of(ap, 1)) == 5, "af, which has not come yet, may hold more"
        instance.sim.network.heal("af", "ap")
        await asyncio.sleep(60)
        assert of(ap, 1) == [1_000_000 + n for n in range(15)]

    play(6, ("us", "eu", "ap", "af"), scenario)


def test_a_region_that_cannot_be_read_has_not_ended() -> None:
    """The configuration has a value of it that only a newer version understands."""

    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        instance.sim.network.cut("us", "ap")
        us.publish(5)
        await asyncio.sleep(3)
        instance.view.broken["/regions/us"] = "of a version that is not known here"
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(60)
        assert len(of(eu, 1)) == 5 and not of(ap, 1)
        del instance.view.broken["/regions/us"]
        instance.view.set(eu.info)
        await asyncio.sleep(15)
        assert len(of(ap, 1)) == 5

    play(7, ("us", "eu", "ap"), scenario)


def test_topics_are_seen_to_one_behind_another_and_none_waits_for_one_that_cannot_be() -> None:
    origin = (1, 1, 5)

    class Seen(EndedOrigins):
        def lacking(self, log: Any) -> dict[Any, Any]:
            return {} if log.at else {origin: (1, 1)}

        async def _pull(self, log: Any, *_: Any) -> int:
            await asyncio.sleep(0)
            log.at = (1, 1)
            self.entries += 1
            return 1

    def log(number: int) -> Any:
        made = SimpleNamespace(topic=f"t{number}", incoming={}, at=())
        made.state = SimpleNamespace(intake=SimpleNamespace(submitted=lambda _: made.at))
        return made

    async def main() -> None:
        logs = {made.topic: made for made in map(log, range(300))}
        links = {topic: {"eu": SimpleNamespace(asks=number % 3 > 0)} for number, topic in enumerate(logs)}
        manager: Any = SimpleNamespace(
            region="ap",
            clock=SimpleNamespace(monotonic=lambda: 7.0),
            logs=logs,
            links=links.__getitem__,
            region_number=lambda _: 2,
            peers=lambda _: ["eu"],
            spawn=asyncio.ensure_future,
        )
        tails = Seen(manager)
        tails.regions_changed([RegionInfo(name="eu", number=2)], {1: "us", 2: "eu"})
        tails.tick()
        for _ in range(2000):
            await asyncio.sleep(0)
        assert tails.entries == 200 and all(bool(found.at) is links[found.topic]["eu"].asks for found in logs.values())

    asyncio.run(main())


def test_a_topic_that_cannot_be_fetched_holds_up_no_other_and_is_tried_ever_more_seldom() -> None:
    origin, now, tried = (1, 1, 5), [7.0], list[str]()

    class Refused(EndedOrigins):
        def lacking(self, log: Any) -> dict[Any, Any]:
            return {origin: (1, 1)} if log.lacks else {}

        async def _pull(self, log: Any, *_: Any) -> int:
            tried.append(log.topic)
            if log.topic == "bad":
                raise LinkError(Cause.REFUSED, "no")
            log.lacks = False
            return 1

    async def main() -> None:
        logs: dict[str, Any] = {
            topic: SimpleNamespace(
                topic=topic,
                lacks=True,
                incoming={},
                state=SimpleNamespace(intake=SimpleNamespace(submitted=lambda _: (1, 1))),
            )
            for topic in ("a", "bad", "c")
        }
        manager: Any = SimpleNamespace(
            region="ap",
            clock=SimpleNamespace(monotonic=lambda: now[0]),
            logs=logs,
            links=lambda _: {},
            peers=lambda _: [],
            spawn=asyncio.ensure_future,
        )
        tails = Refused(manager)
        for seconds in range(60):
            now[0] = 7.0 + seconds
            tails.tick()
            for _ in range(20):
                await asyncio.sleep(0)
            if seconds == 0:
                assert sorted(tried) == ["a", "bad", "c"]
        assert tried.count("bad") == 4 and len(tried) == 6, "after 0, 5, 15, and 35 s"
        logs["bad"].lacks = False
        tails.forget(logs["bad"])
        assert not tails._failed

    asyncio.run(main())


def test_an_origin_that_cannot_be_fetched_holds_up_no_other_of_its_topic() -> None:
    tried = list[int]()

    class Refused(EndedOrigins):
        async def _pull(self, log: Any, origin: Any, through: Any) -> int:
            tried.append(origin[0])
            if origin[0] == 1:
                raise LinkError(Cause.MOVED, "no")
            return 1

    async def main() -> None:
        log: Any = SimpleNamespace(
            topic="t", state=SimpleNamespace(intake=SimpleNamespace(submitted=lambda _: (1, 1))), incoming={}
        )
        clock = SimpleNamespace(monotonic=lambda: 7.0)
        tails = Refused(cast(Any, SimpleNamespace(region="ap", clock=clock, logs={"t": log})))
        await tails._see_to(log, {(number, 1, 5): (1, 1) for number in (3, 1, 2)})
        assert tried == [1, 2, 3] and tails._failed == {"t": (1, 12.0)}

    asyncio.run(main())


def test_who_claims_more_and_tells_nothing_of_it_is_left_after_so_many_questions() -> None:
    asked = list[Ask]()

    async def scenario(instance: Instance) -> None:
        us, _, ap = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        lose(instance, "us", rebuilt=False)
        tails, origin = EndedOrigins(ap.brokers[0].links, questions_max=7), us.log.origin

        async def ask(_: Any, region: str, ask: Ask) -> AuditAnswer:
            asked.append(ask)
            assert len(asked) <= 7, "for ever"
            return AuditAnswer("", ask.after, (ask.after[0], ask.after[1] + 1), whole=True)

        tails._manager.auditor.ask = ask  # type: ignore[method-assign]
        with pytest.raises(PeerError, match="told of no entry"):
            await tails._pull(ap.log, origin, (1 << 60, 0))
        assert tails.entries == 0 and of(ap, 1) == [1_000_000 + n for n in range(5)]

    play(8, ("us", "eu", "ap"), scenario)


def test_a_long_tail_is_fetched_in_several_looks() -> None:
    async def scenario(instance: Instance) -> None:
        us, _, ap = instance.regions.values()
        us.publish(1)
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "ap")
        for _ in range(10):
            us.publish(1)
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        lose(instance, "us", rebuilt=False)
        tails, origin = EndedOrigins(ap.brokers[0].links, questions_max=3), us.log.origin
        through = instance.regions["eu"].log.vector.prefix(origin)
        counts = [await tails._pull(ap.log, origin, through) for _ in range(4)]
        assert counts == [3, 3, 3, 1] and of(ap, 1) == [1_000_000 + n for n in range(11)]

    play(9, ("us", "eu", "ap"), scenario, replace(AUDIT_LIMITS, told_bytes=1, answer_bytes=1))


def test_what_may_be_lost_is_found_in_one_pass() -> None:
    """An answer can name 100,000 entries, and a region a thousand ranges."""
    compared = [0]

    class Counted(tuple[int, int]):
        def __lt__(self, other: Any) -> bool:
            compared[0] += 1
            return tuple.__lt__(self, other)

        def __le__(self, other: Any) -> bool:
            compared[0] += 1
            return tuple.__le__(self, other)

    ranges = [(Counted((7, 20 * n)), Counted((7, 20 * n + 10))) for n in range(300)]
    named = [(7, 20 * n + 5) for n in range(300)]
    assert len(common([ranges, ranges])) == 300 and compared[0] < 20_000
    compared[0] = 0
    assert len(may_be_lost([ranges, []], named)) == 599 and compared[0] < 20_000
    compared[0] = 0
    entry = Run([b"x"], [1], origin=(1, 1, 5), spans=((7, 0, 1),), checksums=[0])
    moves = in_order((1, 1, 5), (7, 0), (8, 0), dict.fromkeys(named, entry), ranges, "ap")
    assert sum(isinstance(move, SkipRecord) and move.loss for move in moves) == 600 and compared[0] < 20_000


def test_what_no_survivor_may_tell_of_is_named_as_missing() -> None:
    """eu has trimmed a part of it, ap was cut off from the beginning."""

    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        instance.sim.network.cut("us", "ap")
        us.publish(5)
        await asyncio.sleep(3)
        eu.ledger.rollover()
        us.publish(5)
        await asyncio.sleep(3)
        eu.ledger.trim((1, 99))
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(30)
        assert of(ap, 1) == [1_000_000 + n for n in range(5, 10)]
        origin = us.log.origin
        assert ap.log.vector.missing(origin) and not eu.log.vector.missing(origin)
        assert (await position_of(ap.log, origin, us.store.runs()[0][:2])).status is LookupStatus.LOST

    play(3, ("us", "eu", "ap"), scenario)


def test_what_was_meant_for_some_and_they_trimmed_it_is_named_too() -> None:
    """eu has trimmed what was for eu and ap; af has everything else, so nobody knows any more what lay between."""

    async def scenario(instance: Instance) -> None:
        us, eu, ap, _ = instance.regions.values()
        instance.sim.network.cut("us", "ap")
        us.publish(3)
        us.publish(2, to=("eu", "ap"))
        us.publish(3)
        await asyncio.sleep(3)
        eu.ledger.rollover()
        us.publish(2)
        us.publish(2, to=("eu",))
        us.publish(2)
        await asyncio.sleep(3)
        eu.ledger.trim((1, 99))
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(30)
        assert of(ap, 1) == [1_000_000 + n for n in (0, 1, 2, 5, 6, 7, 8, 9, 12, 13)]
        origin, (ledger, first, _) = us.log.origin, us.store.runs()[0]
        assert ap.log.vector.missing(origin) == (((ledger, first + 2), (ledger, first + 4)),), (
            "not what eu holds, and was for eu alone"
        )
        assert [(await position_of(ap.log, origin, (ledger, first + n))).status for n in (4, 10)] == [
            LookupStatus.LOST,
            LookupStatus.FILTERED,
        ]

    play(12, ("us", "eu", "ap", "af"), scenario)


@pytest.mark.parametrize("seed", range(12))
def test_all_survivors_hold_the_same_in_the_end(seed: int) -> None:
    told_bytes = random.Random(seed).choice((1, 300, 2 << 20))  # answers come in several parts
    all_survivors_hold_the_same(seed, limits=AuditLimits(told_bytes=told_bytes))


def all_survivors_hold_the_same(
    seed: int, topology: dict[str, Any] | None = None, limits: AuditLimits = AUDIT_LIMITS
) -> None:
    rng = random.Random(seed)

    async def scenario(instance: Instance) -> None:
        regions = dict(instance.regions)
        us, others = regions["us"], [name for name in regions if name != "us"]
        published: list[tuple[int, tuple[str, ...]]] = []
        if topology is not None:
            instance.choose(topology)
            await asyncio.sleep(2)
        for _ in range(rng.randrange(6, 14)):
            for other in others:
                if rng.random() < 0.4:
                    (instance.sim.network.cut if rng.random() < 0.6 else instance.sim.network.heal)("us", other)
            for _ in range(rng.randrange(1, 4)):
                to = tuple(rng.sample(others, rng.randrange(1, 3))) if rng.random() < 0.4 else ()
                count = rng.randrange(1, 6)
                published += [(1_000_000 + us.sequence + n, to) for n in range(count)]
                us.publish(count, to=to)
            if rng.random() < 0.5:
                regions[rng.choice(others)].publish(rng.randrange(1, 4))
            await asyncio.sleep(rng.uniform(0.01, 2))
        if rng.random() < 0.5:
            instance.sim.network.cut(*rng.sample(others, 2))
        lose(instance, "us", rebuilt=rng.random() < 0.5)
        await asyncio.sleep(rng.uniform(0, 8))
        for i, one in enumerate(others):
            for other in others[i + 1 :]:
                instance.sim.network.heal(one, other)
        regions[others[0]].publish(2)
        await asyncio.sleep(60)
        of_us = [
            run
            for name in others
            for _, _, run in regions[name].store.runs()
            if run.origin == us.log.origin and (not run.flags or is_passing(run))
        ]
        somewhere = {int.from_bytes(bytes(part)[-8:], "big") for run in of_us for part in run.parts}
        for name in others:
            wanted = [body for body, to in published if body in somewhere and (not to or name in to)]
            assert of(regions[name], 1) == wanted, name

    play(seed, ("us", "eu", "ap", "af"), scenario, limits)


async def lost_and_appended_late(instance: Instance) -> Damaged:
    """eu has lost the 6th of 12 entries of us without a place, and its audit has brought it back behind the others; ap
    has none of them. us is gone.
    """
    us, eu, _ = instance.regions.values()
    damaged = Damaged(instance)
    instance.sim.network.cut("us", "ap")
    us.publish(6)
    await asyncio.sleep(3)
    eu.ledger.rollover()
    us.publish(6)
    await asyncio.sleep(3)
    damaged.copies["eu"].cut_off(eu.store.blocks[0][0][0])
    report = await damaged.audit(eu)
    assert report.found == report.repaired == {"lost": 1} and of(eu, 1) == [
        1_000_000 + n for n in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 5)
    ]
    await eu.move(0)  # where it lies is known after a restart, too
    Damaged(instance)
    await asyncio.sleep(10)
    return damaged


def test_what_an_audit_had_to_append_at_the_end_is_fetched_and_found() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        await lost_and_appended_late(instance)
        origin, at = us.log.origin, (us.store.blocks[0][0][0], 5)
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(30)
        assert of(ap, 1) == [1_000_000 + n for n in range(12)]
        found = await position_of(eu.log, origin, at)
        end = eu.log.ledger.last_confirmed
        assert found.status is LookupStatus.HERE and found.position == end
        assert (await vector_at(eu.log, end))[origin] == eu.log.vector.prefix(origin), (
            "a reader of all of it has not gone back"
        )

    play(8, ("us", "eu", "ap"), scenario)


def test_mutant_where_late_entries_lie_is_not_known(broken: BrokenRules) -> None:
    broken.setattr(LateMap, "between", lambda *_: [])
    with broken.found():
        test_what_an_audit_had_to_append_at_the_end_is_fetched_and_found()


def test_late_entries_in_rows_that_grow_together() -> None:
    """However many there are: rows are bounded, and each of them leads to each of its entries; what was trimmed is
    forgotten.
    """
    origin, late, rng = (1, 1, 5), LateMap(), random.Random(3)
    lies: dict[tuple[int, int], tuple[int, int]] = {}
    entry = 0
    for at in rng.sample(range(10_000), 3 * ROWS_MAX):
        entry += 1 + (rng.random() < 0.9)
        lies[7, at] = (9, entry)
        run = Run([b"x"], [1], origin=origin, spans=((7, at, 1),), checksums=[0])
        for _ in range(2):  # replayed again
            late.add(run, 9, entry)
    again = LateMap()
    again.load(late.dump())
    for coordinate, position in lies.items():
        found = again.between(origin, (coordinate[0], coordinate[1] - 1), coordinate)
        assert any(first <= position <= last for first, last in found) and again.covers(origin, position, coordinate)
    assert again.dump() == late.dump() and len(late.dump()[0][3]) // 8 <= ROWS_MAX
    late.prune((9, entry))
    assert len(late.between(origin, (0, 0), (8, 0))) == 1
    late.prune((9, entry + 1))
    assert not late


def test_rows_that_grew_together_lead_to_each_entry_once_wherever_reads_are_cut() -> None:
    """A row that names too much covers part of a run that came in its order; whoever tells of the origin reads both,
    and cuts runs elsewhere.
    """

    async def scenario(instance: Instance) -> None:
        us, eu, _ = instance.regions.values()
        us.publish(40)
        await asyncio.sleep(5)
        origin, ((ledger, first), count, _) = us.log.origin, eu.store.blocks[-1]
        start = us.store.blocks[-1][0]
        assert count == 40
        late = eu.log.state.late
        late._of = {
            origin: [
                _Row((start[0], start[1] + 10), (start[0], start[1] + 29), (ledger, first + 5), (ledger, first + 33))
            ]
        }
        real = Copies.read

        async def read(copies: Copies, log: Any, ledger: int, at: int, last: int, max_bytes: int) -> Any:
            [(at, run)] = await real(copies, log, ledger, at, last, max_bytes)
            return [(at, run.cut(0, min(run.count, cut)))]

        async def take(entries: int, size_bytes: int) -> None:
            if moves:  # meanwhile the row grows together with another one
                late._of[origin] = [_Row(start, (start[0], start[1] + 39), (ledger, first), (ledger, first + 39))]

        for moves in (False, True):
            for cut in range(1, 42):
                late._of[origin] = (
                    late._of[origin] if not moves else [late._of[origin][0]._replace(low=(start[0], start[1] + 30))]
                )
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Copies, "read", read)
                    told = await Teller(Copies(eu.store), take).tell(
                        eu.log, Ask(What.ENTRIES, origin, BEFORE_ALL, (start[0], start[1] + 39), whole=True), "ap"
                    )
                found = [run.coordinate(i) for run in told.runs for i in range(run.count)]
                assert sorted(found) == [(start[0], start[1] + n) for n in range(40)], cut

    play(13, ("us", "eu", "ap"), scenario)


def test_no_answer_is_larger_than_a_frame_may_be() -> None:
    """Large messages behind smaller ones, and small ones that an audit has appended one by one: all of them come, in as
    many answers as it takes.
    """

    async def take(entries: int, size_bytes: int) -> None: ...

    async def told(
        eu: TestRegion, origin: Any, after: Any, through: Any, bytes_max: int, limits: AuditLimits = AUDIT_LIMITS
    ) -> list[Any]:
        found = []
        while after < through:
            answer = await Teller(Copies(eu.store), take, limits).tell(
                eu.log, Ask(What.ENTRIES, origin, after, through, whole=True), "ap"
            )
            assert (
                sum(map(len, audit_commands.tell_frame(1, 1, What.ENTRIES, answer))) <= bytes_max
                and answer.upto > after
            )
            found += [at for run in answer.runs for i in range(run.count) if (at := run.coordinate(i)) <= answer.upto]
            after = answer.upto
        return sorted(found)

    async def scenario(instance: Instance) -> None:
        us, eu, _ = instance.regions.values()
        for size_bytes in (1_900_000, 3_600_000):
            us.publish(1, body_bytes=size_bytes)
        us.publish(40)
        await asyncio.sleep(10)
        origin, ((start, _), _, _), ((ledger, first), count, _) = (
            us.log.origin,
            us.store.blocks[-1],
            eu.store.blocks[-1],
        )
        assert eu.log.vector.prefix(origin) == (start, 41) and count == 40
        wanted = [(start, n) for n in range(42)]
        assert await told(eu, origin, BEFORE_ALL, (start, 41), MESSAGE_BYTES_MAX) == wanted
        eu.log.state.late._of = {origin: [_Row((start, 2), (start, 41), (ledger, first), (ledger, first + 39))]}
        assert await told(eu, origin, BEFORE_ALL, (start, 41), MESSAGE_BYTES_MAX) == wanted
        small = AuditLimits(answer_bytes=5000)
        assert await told(eu, origin, (start, 1), (start, 41), 5000, small) == wanted[2:]

    play(14, ("us", "eu", "ap"), scenario)


TOPOLOGIES: tuple[dict[str, Any], ...] = (
    {"kind": "chain", "regions": ["us", "eu", "ap", "af"]},
    {"kind": "star", "center": "eu"},
    {"kind": "ring", "regions": ["us", "eu", "ap", "af"]},
    {"kind": "trees", "trees": {"us": {"eu": "us", "ap": "eu", "af": "eu"}}},
)


def test_what_goes_by_a_tree_is_taken_for_the_regions_behind_too(broken: BrokenRules) -> None:
    """ap, which af gets everything from, fetches from eu; af reaches ap alone, and could not fetch."""

    async def scenario(instance: Instance) -> None:
        us, eu, ap, af = instance.regions.values()
        instance.choose(TOPOLOGIES[0])
        await asyncio.sleep(2)
        us.publish(4)
        await asyncio.sleep(5)
        for one, other in (("eu", "ap"), ("eu", "af")):
            instance.sim.network.cut(one, other)
        us.publish(3, to=("af",))
        us.publish(2)
        us.publish(3, to=("ap", "af"))
        us.publish(2, to=("eu",))
        await asyncio.sleep(10)
        assert len(of(eu, 1)) == 8 and len(of(ap, 1)) == len(of(af, 1)) == 4
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(10)
        instance.sim.network.heal("eu", "ap")
        await asyncio.sleep(60)
        assert of(ap, 1) == [1_000_000 + n for n in (*range(4), 7, 8, *range(9, 12))]
        assert of(af, 1) == [1_000_000 + n for n in range(12)]

    play(9, ("us", "eu", "ap", "af"), scenario)
    broken.setattr(Tree, "reach", lambda _, region: frozenset((region,)))  # broken: each takes what is for itself alone
    with broken.found():
        play(9, ("us", "eu", "ap", "af"), scenario)


@pytest.mark.parametrize("seed", range(8))
def test_by_trees_too_all_survivors_hold_the_same_in_the_end(seed: int) -> None:
    all_survivors_hold_the_same(seed, TOPOLOGIES[seed % len(TOPOLOGIES)])


@pytest.mark.parametrize("seed", range(6))
def test_a_transaction_is_whole_in_all_survivors_or_open_in_all(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario(instance: Instance) -> None:
        regions = dict(instance.regions)
        us, others = regions["us"], [name for name in regions if name != "us"]
        under_way: list[int] = []
        for number in range(1, 16):
            for other in others:
                if rng.random() < 0.4:
                    (instance.sim.network.cut if rng.random() < 0.6 else instance.sim.network.heal)("us", other)
            if rng.random() < 0.5:
                under_way.append(number)
                publish(us, (0, number), rng.randrange(1, 4))
            publish(us, None, rng.randrange(1, 3))
            if under_way and rng.random() < 0.8:
                ended = under_way.pop(rng.randrange(len(under_way)))
                append(
                    us, marker_run((0, ended), COMMIT if rng.random() < 0.7 else ABORT, min([*under_way, number + 1]))
                )
            await asyncio.sleep(rng.choice((0.01, 0.5, 3)))
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(60)
        held = {name: coordinates_of(regions[name], us.log.origin) for name in others}
        assert held["eu"] == held["ap"], "entries, and the ends of transactions"
        assert shown(regions["eu"]) == shown(regions["ap"]) and set(shown(regions["eu"])) <= set(shown(us))
        eu, ap = (regions[name].log.state.transactions for name in others)
        assert (eu and list(eu.open)) == (ap and list(ap.open))

    play(seed, ("us", "eu", "ap"), scenario)


def coordinates_of(region: TestRegion, origin: Any) -> list[Any]:
    """Of everything there that was published under `origin`, but SKIPs."""
    return [
        run.coordinate(i)
        for _, _, run in region.store.runs()
        if run.origin == origin and not is_skip(run)
        for i in range(run.count)
    ]


def test_half_of_a_transaction_is_made_whole_and_an_older_version_is_not_asked_for_that(
    broken: BrokenRules,
) -> None:
    """eu was cut off between the entries and their end, which ap has."""

    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        instance.sim.network.cut("us", "eu")
        mine = publish(us, (0, 1), 5)
        append(us, marker_run((0, 1), COMMIT, 2))
        behind = publish(us, None, 2)
        await asyncio.sleep(5)
        ledger, at, first = next(found for found in us.store.runs() if found[2].transaction == (0, 1))
        half = received(
            first.as_replicated(us.log.origin, ledger, at, checked_and_addressed(first, frozenset(("eu",)))[0]).cut(
                0, 3
            ),
            "us",
        )
        eu.brokers[0].machine.run(
            eu.log.append_replicated, BEFORE_ALL, half, lambda _: None, lambda error: eu.faults.append(repr(error))
        )
        assert shown(eu) == [] and shown(ap) == [*mine, *behind]
        with pytest.MonkeyPatch.context() as patch:
            for module in (link, receiver_stream):
                patch.setattr(
                    module,
                    "ask_frame",
                    lambda stream, request, ask: real(stream, request, replace(ask, whole=False, passing=True)),
                )
            lose(instance, "us", rebuilt=False)
            await asyncio.sleep(30)
            assert shown(eu) == [] and len(of(eu, 1)) == 3, "ap does not tell how it ended: nothing is concluded"
        await asyncio.sleep(30)
        assert shown(eu) == [*mine, *behind]

    real = audit_commands.ask_frame
    play(10, ("us", "eu", "ap"), scenario)
    broken.setattr(audit_scan, "is_commit", lambda _: False)  # broken: their ends stay where they are
    with broken.found():
        play(10, ("us", "eu", "ap"), scenario)


def test_a_region_that_this_copy_of_the_configuration_never_heard_of_has_not_ended() -> None:
    """us is younger than the copy: what eu has of it may not be all."""

    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        instance.sim.network.cut("us", "ap")
        us.publish(5)
        await asyncio.sleep(3)
        instance.view.unheard["us"] = None
        lose(instance, "us", rebuilt=False)
        await asyncio.sleep(60)
        assert len(of(eu, 1)) == 5 and not of(ap, 1)
        instance.view.unheard.clear()
        instance.view.set(replace(eu.info, epoch=eu.info.epoch))
        instance.view.set(RegionInfo(name="later", number=8))
        await asyncio.sleep(15)
        assert len(of(ap, 1)) == 5

    play(11, ("us", "eu", "ap"), scenario)


def test_what_all_miss_is_missing_and_what_one_may_have_is_not() -> None:
    assert common([[((7, 0), (7, 9)), ((7, 20), (7, 30))], [((7, 5), (7, 25))]]) == [
        ((7, 5), (7, 9)),
        ((7, 20), (7, 25)),
    ]
    assert common([[((7, 0), (7, 9))], []]) == []
    assert may_be_lost([[((7, 0), (7, 9))], []], [(7, 1), (7, 2), (7, 5), (7, 6), (7, 12), (8, 1)]) == [
        ((7, 2), (7, 4)),
        ((7, 6), (7, 9)),
    ]
    assert may_be_lost([[((7, 4), (8, 3))], []], [(7, 3), (8, 1), (8, 2), (8, 6)]) == [
        ((8, -1), (8, 0)),
        ((8, 2), (8, 3)),
    ]
    origin = (1, 1, 5)
    entry = Run([b"x"], [1], origin=origin, spans=((7, 12, 1),), checksums=[0])
    moves = in_order(origin, (7, 3), (7, 30), {(7, 12): entry}, [((7, 5), (7, 9)), ((7, 20), (7, 25))], "ap")
    assert moves == [
        SkipRecord(origin, (7, 3), (7, 5), SkipReason.FILTERED, "ap"),
        SkipRecord(origin, (7, 5), (7, 9), SkipReason.LOST, "ap"),
        OutgoingRun((7, 9), entry),
        SkipRecord(origin, (7, 12), (7, 20), SkipReason.FILTERED, "ap"),
        SkipRecord(origin, (7, 20), (7, 25), SkipReason.LOST, "ap"),
        SkipRecord(origin, (7, 25), (7, 30), SkipReason.FILTERED, "ap"),
    ]
    vector = Vector()
    vector.advance(origin, (7, 3))
    for move in moves:
        if isinstance(move, SkipRecord) and move.loss:
            vector.skip(origin, move.after, move.through)
        else:
            vector.advance(origin, move.through if isinstance(move, SkipRecord) else (7, 12))
    assert vector.missing(origin) == (((7, 5), (7, 9)), ((7, 20), (7, 25)))
