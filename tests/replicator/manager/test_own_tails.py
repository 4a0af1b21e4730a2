"""A region whose metadata was restored from a backup gets back what it published since, from the regions that have it:
once, in order, under the old coordinates.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.coordinates import Origin, Vector
from heliograph.model.errors import LinkError
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.wire.links.audit_commands import Ask, What
from heliograph.wire.run import Run
from region_node.transactions.participants.topic_participant import TopicTransactions
from region_node.transactions.participants.transaction_errors import TransactionState
from replicator.audit.audit_scan import Teller
from replicator.audit.audit_settings import AUDIT_LIMITS
from replicator.dedup.producer_dedup import Producers
from replicator.log.coordinate_lookup import LookupStatus, came_back, coordinate_of, position_of, vector_at
from replicator.log.replicated_entries import checked_and_addressed, is_passing, passing, received
from replicator.log.routing_trees import is_skip
from replicator.log.topic_state import TopicState
from replicator.log.transaction_buffer import ABORT, COMMIT, TransactionBuffer, marker_run
from replicator.manager import ended_origins
from replicator.manager.ended_origins import never_from
from replicator.manager.link_manager import LinkSettings
from replicator.subscriptions.subscription_cursor import SyncedCursor
from replicator.subscriptions.subscription_state import SubscriptionState
from tests.broken_rules import BrokenRules
from tests.replicator.audit.audit_world import Copies, Damaged, held
from tests.replicator.link_instance import Instance, TestRegion
from tests.replicator.link_transactions import append, publish, shown
from tests.replicator.link_world import entry

Scenario = Callable[[Instance, Damaged], Coroutine[Any, Any, None]]
US = 1_000_000


def play(seed: int, scenario: Scenario, names: tuple[str, ...] = ("us", "eu", "ap")) -> None:
    with Simulation(seed) as sim:

        async def main() -> None:
            instance = Instance(sim, names, settings=LinkSettings(audit_limits=AUDIT_LIMITS))
            await instance.load()
            damaged = Damaged(instance)
            await scenario(instance, damaged)
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=900)


async def restore(region: TestRegion, damaged: Damaged, backup: Any) -> None:
    await region.restore(backup)
    damaged.copies[region.name] = damaged.auditor(region).storage = Copies(region.store)


def seen(region: TestRegion, number: int = 1) -> list[int]:
    """Bodies that the region of that number published, as clients of `region` get them."""
    return [body for body in region.bodies() if body // 1_000_000 == number]


def coordinates(region: TestRegion, origin: Origin) -> list[Position]:
    """Of everything in `region` that was published under `origin`, but SKIPs, in the order of its log."""
    state, out = region.log.state, []
    for ledger, first, run in region.store.runs():
        if is_skip(run) or (state.origin_at((ledger, first)) if run.origin is None else run.origin) != origin:
            continue
        out += [(ledger, first + i) if run.origin is None else run.coordinate(i) for i in range(run.count)]
    return out


async def consistent(instance: Instance, damaged: Damaged) -> None:
    """Audits find nothing, and what each region says of its log is what lies there."""
    for region in instance.regions.values():
        report = await damaged.audit(region)
        assert not report.findings, (region.name, report.findings)
        log, through = region.log, dict[Origin, Position]()
        for position, (coordinate, stored) in held(region).items():
            origin, at = coordinate
            assert at > through.get(origin, BEFORE_ALL), (region.name, coordinate)
            through[origin] = at
            if stored.startswith(b"passing "):
                continue
            found = await position_of(log, origin, at)
            assert (found.status, found.position) == (LookupStatus.HERE, position), (region.name, coordinate, found)
            assert (await coordinate_of(log, position)).coordinate == coordinate
            told = await vector_at(log, position)
            assert all(told.get(o, BEFORE_ALL) >= at for o, at in through.items())
            assert told.get(origin) == at


def test_what_was_published_since_the_backup_comes_back_once() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, ap = instance.regions.values()
        us.publish(5)
        eu.publish(2)
        await asyncio.sleep(3)
        before, backup = us.log.origin, us.back_up()
        us.ledger.rollover()
        us.publish(4)
        us.publish(2, to=("eu",))
        us.publish(2, to=("ap",))
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "ap")
        us.publish(3)
        eu.publish(2)
        await asyncio.sleep(3)
        whole, at = seen(us), us.log.vector.prefix(before)
        assert whole == [US + n for n in range(16)]
        counts = len(seen(eu)), len(seen(ap))
        await restore(us, damaged, backup)
        us.publish(3)
        await asyncio.sleep(60)
        assert us.log.origin[1] == 2 and seen(us) == [US + n for n in (*range(5), 16, 17, 18)], "ap may have more of it"
        assert (await position_of(us.log, before, at)).status is LookupStatus.AWAITED
        instance.sim.network.heal("us", "ap")
        await asyncio.sleep(20)
        assert sorted(seen(us)) == [US + n for n in range(19)]
        assert [body for body in seen(us) if body < US + 16] == whole
        assert us.log.vector.prefix(before) == at and not us.log.vector.missing(before)
        old, last = at
        entries = [entry for ledger, entry in coordinates(us, before) if ledger == old]
        assert len(entries) == 11
        for low, high in ((0, last + 9), (2, last - 1), (last, last)):
            told = await came_back(us.log, old, low, high)
            assert [entry for begin, end in told for entry in range(begin, end + 1)] == [
                entry for entry in entries if low <= entry <= high
            ]
        assert await came_back(us.log, us.log.ledger.last_confirmed[0], 0, 9) == [], "that one it has itself"
        assert (len(seen(eu)), len(seen(ap))) == (counts[0] + 3, counts[1] + 6), "each once"
        assert sorted(set(seen(ap))) == sorted(seen(ap)) == [US + n for n in (*range(9), *range(11, 19))]
        us.publish(2)
        await asyncio.sleep(60)
        assert len(seen(us)) == 21 and us.brokers[0].links.tails.entries == 11, "once"
        assert us.log.state.own_end() == us.log.vector.prefix(us.log.origin)
        assert {us.link(target).backlog_entries for target in ("eu", "ap")} == {0}
        assert (await position_of(us.log, before, (at[0], at[1] + 1))).status is LookupStatus.LOST
        await consistent(instance, damaged)
        await us.move(0)
        damaged.auditor(us).storage = damaged.copies["us"]
        await asyncio.sleep(5)
        assert us.log.vector.prefix(before) == at
        await consistent(instance, damaged)

    play(1, scenario)


def test_a_region_that_lacked_some_of_it_gets_it_from_the_restored_one_too() -> None:
    """us fetched it from eu, which is lost then; ap, which was cut off, has to get it from us."""

    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, ap = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        before, backup = us.log.origin, us.back_up()
        us.ledger.rollover()
        instance.sim.network.cut("us", "ap")
        us.publish(4)
        await asyncio.sleep(3)
        instance.sim.network.cut("eu", "ap")
        await restore(us, damaged, backup)
        for region in (us, eu):
            broker = region.brokers[0]
            broker.machine.run(broker.links.attach, region.log, ["us", "eu"])
            region.log.incoming = {name: link for name, link in region.log.incoming.items() if name != "ap"}
        await asyncio.sleep(20)
        assert len(seen(us)) == 9 and len(seen(ap)) == 5
        instance.sim.network.cut("eu", "us")
        instance.view.remove("eu")
        for region in (us, ap):
            broker = region.brokers[0]
            broker.machine.run(broker.links.attach, region.log, ["us", "ap"])
            region.log.incoming = {name: link for name, link in region.log.incoming.items() if name != "eu"}
        instance.sim.network.heal("us", "ap")
        del instance.regions["eu"]
        await asyncio.sleep(60)
        assert seen(ap) == seen(us) == [US + n for n in range(9)]
        assert coordinates(ap, before) == coordinates(us, before)
        await consistent(instance, damaged)

    play(2, scenario)


def test_a_question_over_both_parts_is_answered_as_before_the_loss() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us = instance.regions["us"]
        us.publish(5)
        await asyncio.sleep(3)
        before, backup = us.log.origin, us.back_up()
        us.ledger.rollover()
        us.publish(4)
        us.publish(2, to=("eu",))
        us.publish(2)
        await asyncio.sleep(3)
        through = us.log.vector.prefix(before)
        places = [BEFORE_ALL, *coordinates(us, before)[::2], through]
        asks = [
            (Ask(what, before, low, high, passing), to)
            for what in (What.ROWS, What.DIGEST, What.ENTRIES)
            for low in places
            for high in places
            if low < high
            for passing in (False, True)
            for to in ("eu", "ap")
        ]

        async def told() -> list[Any]:
            teller = Teller(damaged.copies["us"], _at_once)
            out = []
            for ask, to in asks:
                one = await teller.tell(us.log, ask, to)
                assert (one.refusal, one.holes) == ("", 0)
                runs = [
                    (run.coordinate(i), bytes(run.parts[i]), run.checksums[i])
                    for run in one.runs
                    if run.checksums
                    for i in range(run.count)
                ]
                out.append((one.upto, one.count, one.checksum, one.rows, runs))
            return out

        was = await told()
        await restore(us, damaged, backup)
        us.publish(3)
        await asyncio.sleep(20)
        assert len(seen(us)) == 16
        assert await told() == was

    play(3, scenario)


async def _at_once(_entries: int, _bytes: int) -> None:
    pass


def test_an_audit_puts_right_what_came_back_and_was_damaged() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us = instance.regions["us"]
        us.publish(5)
        await asyncio.sleep(3)
        before, backup = us.log.origin, us.back_up()
        us.ledger.rollover()
        us.publish(6)
        us.publish(2, to=("eu",))
        await asyncio.sleep(3)
        await restore(us, damaged, backup)
        us.publish(3)
        await asyncio.sleep(20)
        damaged.remember()
        copies, rng = damaged.copies["us"], random.Random(3)
        positions = [at for at, (coordinate, _) in held(us).items() if coordinate[0] == before]
        for at in (positions[1], positions[6], positions[8], positions[11]):
            copies.flip(at, rng, consistent=False)
        copies.gone[positions[9]] = None
        report = await damaged.audit(us)
        assert len(report.findings) == 5
        await consistent(instance, damaged)
        assert held(us) == damaged.truth["us"]

    play(4, scenario)


def test_what_came_back_is_told_also_where_all_before_it_is_trimmed() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, _ = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        before, backup = us.log.origin, us.back_up()
        us.ledger.rollover()
        us.publish(4)
        await asyncio.sleep(3)
        await restore(us, damaged, backup)
        us.publish(3)
        await asyncio.sleep(20)
        us.ledger.save()
        us.ledger.trim(us.log.state.past[0][1])
        came, teller = coordinates(us, before), Teller(damaged.copies["us"], _at_once)
        told = await teller.tell(us.log, Ask(What.ROWS, before, BEFORE_ALL, came[-1]), "eu")
        assert [at for at, _ in told.rows] == came == [(2, n) for n in range(4)] and told.low < came[0]
        told = await teller.tell(us.log, Ask(What.ROWS, before, BEFORE_ALL, (1, 4)), "eu")
        assert not told.rows and told.low == (1, 4), "it may have been there"
        assert (await position_of(us.log, before, (1, 2))).status is LookupStatus.TRIMMED
        damaged.copies["eu"].flip(
            next(at for at, (one, _) in held(eu).items() if one == (before, (2, 1))), random.Random(1), consistent=False
        )
        assert [str(one.fault) for one in (await damaged.audit(eu)).findings] == ["damaged"]
        await consistent(instance, damaged)

    play(9, scenario)


def test_what_came_back_is_looked_for_behind_the_end_alone() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us = instance.regions["us"]
        us.publish(5)
        us.ledger.rollover()
        us.publish(50)
        await asyncio.sleep(3)
        before, backup = us.log.origin, us.back_up()
        us.ledger.rollover()
        us.ledger.rollover()
        us.publish(4)
        await asyncio.sleep(3)
        await restore(us, damaged, backup)
        us.publish(3)
        await asyncio.sleep(20)
        us.ledger.save()
        us.ledger.trim((1, 99))
        read, end, through = list[int](), us.log.state.past[0][1], us.log.vector.prefix(before)

        async def take(entries: int, _bytes: int) -> None:
            read.append(entries)

        told = await Teller(damaged.copies["us"], take).tell(us.log, Ask(What.ROWS, before, end, through), "eu")
        assert [at for at, _ in told.rows] == coordinates(us, before)[-4:] and sum(read) == 4
        assert us.log.state.between(before, (end[0], end[1] + 1), (end[0], end[1] + 2))[0] > end
        found = await position_of(us.log, before, (end[0] + 1, 0))
        assert found.status is LookupStatus.FILTERED and found.following is not None, "nothing behind `end` is trimmed"

    play(13, scenario)


def test_what_follows_the_last_own_entry_of_an_epoch_is_the_first_that_came_back() -> None:
    """Between them lie eu's, and what was published since."""

    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, _ = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        eu.publish(2)
        await asyncio.sleep(3)
        before, backup, own = us.log.origin, us.back_up(), us.log.last_own()[1]
        us.ledger.rollover()
        us.publish(4)
        await asyncio.sleep(3)
        await restore(us, damaged, backup)
        us.publish(3)
        await asyncio.sleep(20)
        tail = [at for at, (one, _) in held(us).items() if one[0] == before and one[1][0] > 1]
        for at in ((own[0], own[1] + 1), us.log.state.past[0][1]):
            found = await position_of(us.log, before, at)
            assert (found.status, found.following) == (LookupStatus.UNKNOWN, tail[0])
        found = await position_of(us.log, us.log.origin, own)
        assert found.following == (us.ledger.ledger, 0), "of the new epoch nothing lies before it"
        assert (await floor(us, own))[before] == (2, -1), "only what came back is behind it"

    play(14, scenario)


async def floor(region: TestRegion, start: Position) -> dict[Origin, Position]:
    """By origin, what a subscription of `region` that begins behind `start` has nothing to do with."""
    return await SyncedCursor(region.log, "s", SubscriptionState(1), lambda _: 1)._floor(start)


def test_of_an_epoch_that_is_trimmed_nothing_lies_behind_any_position() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us = instance.regions["us"]
        us.publish(2)
        us.ledger.rollover()
        us.publish(3)
        await asyncio.sleep(3)
        before = us.log.origin
        await restore(us, damaged, us.back_up())
        us.publish(3)
        await asyncio.sleep(3)
        us.ledger.save()
        us.ledger.trim(us.log.state.past[0][1])
        assert (await floor(us, (1, 0)))[before] == us.log.vector.prefix(before)

    play(15, scenario)


@pytest.mark.parametrize("kind", ["chain", "star"])
def test_by_trees_too(kind: str) -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, ap = instance.regions.values()
        instance.choose(
            {"kind": "chain", "regions": ["us", "eu", "ap"]} if kind == "chain" else {"kind": "star", "center": "eu"}
        )
        await asyncio.sleep(2)
        us.publish(5)
        await asyncio.sleep(5)
        backup = us.back_up()
        us.ledger.rollover()
        us.publish(4)
        us.publish(2, to=("ap",))
        us.publish(2, to=("eu",))
        await asyncio.sleep(5)
        before = seen(us), seen(eu), seen(ap)
        await restore(us, damaged, backup)
        us.publish(3)
        await asyncio.sleep(60)
        fresh = [US + n for n in (13, 14, 15)]
        assert sorted(seen(us)) == before[0] + fresh
        assert not any(is_passing(run) for _, _, run in us.store.runs())
        assert (seen(eu), seen(ap)) == (before[1] + fresh, before[2] + fresh)
        us.publish(2)
        await asyncio.sleep(20)
        assert seen(ap)[-2:] == [US + 16, US + 17]
        await consistent(instance, damaged)

    play(5, scenario)


def test_it_comes_back_after_a_second_restore_too() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, ap = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        oldest = us.back_up()
        us.ledger.rollover()
        us.publish(4, to=("eu",))
        us.publish(4)
        await asyncio.sleep(3)
        backup = us.back_up()
        us.ledger.rollover()
        us.publish(3)
        await asyncio.sleep(3)
        await restore(us, damaged, backup)
        us.publish(2, to=("ap",))
        await asyncio.sleep(20)
        assert sorted(seen(us)) == [US + n for n in range(18)]
        others = seen(eu), seen(ap)
        await restore(us, damaged, oldest)
        await asyncio.sleep(20)
        assert us.log.origin[1] == 3 and sorted(seen(us)) == [US + n for n in range(18)]
        assert (seen(eu), seen(ap)) == others
        await consistent(instance, damaged)

    play(6, scenario)


def test_who_tries_again_what_came_back_is_no_double_and_who_begins_anew_is_not_refused() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, _ = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        backup, again = us.back_up(), us.back_up()
        us.ledger.rollover()
        us.publish(4)
        await asyncio.sleep(3)
        await restore(us, damaged, backup)
        await asyncio.sleep(20)
        assert us.log.last_sequence("us-producer") == 8
        us.sequence = 7
        us.publish(3)  # two of them again
        await asyncio.sleep(3)
        assert seen(us) == seen(eu) == [US + n for n in range(10)]
        await restore(us, damaged, again)
        await asyncio.sleep(20)
        us.sequence = 6
        us.publish(1, body_bytes=16)  # another message, of who had been told an older number
        await asyncio.sleep(3)
        assert seen(us) == seen(eu) == [*(US + n for n in range(10)), US + 6]

    play(7, scenario)


def test_who_repeats_what_came_back_hears_of_it_once_others_have_that() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us = instance.regions["us"]
        us.publish(5)
        await asyncio.sleep(3)
        before, backup = us.log.origin, us.back_up()
        us.ledger.rollover()
        us.publish(4)
        await asyncio.sleep(3)
        await restore(us, damaged, backup)
        await asyncio.sleep(20)
        broker, log, answered = us.brokers[0], us.log, list[Any]()
        broker.machine.run(broker.links.require, log, {"regions": 3, "degradeAfterMs": 60_000})
        told, now_ms = log.known["ap"]
        known = Vector()
        known.advance(before, log.state.past[0][1])
        log.known = {**log.known, "ap": (known, now_ms)}
        part = entry(US + 8, "us-producer", 8)
        run = Run([part], [len(part)], producers=(("us-producer", 1, 8, None),))
        broker.machine.run(log.publish, run, answered.append, answered.append)
        assert not answered, "ap has nothing of what came back, as far as it has told"
        broker.machine.run(log.learn, "ap", told, now_ms)
        assert answered == [[(1, -1, -1)]] and len(seen(us)) == 9

    play(16, scenario)


def test_a_transaction_that_was_committed_since_is_whole() -> None:
    """One began before the backup and ended behind it, one lies behind it as a whole, one was aborted there."""

    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, _ = instance.regions.values()
        publish(us, (0, 1), 2)
        publish(us, None, 2)
        backup = us.back_up()
        us.ledger.rollover()
        publish(us, (0, 1), 2)
        publish(us, (0, 2), 2)
        publish(us, (0, 3), 2)
        append(us, marker_run((0, 1), COMMIT, 1))
        append(us, marker_run((0, 2), COMMIT, 1))
        append(us, marker_run((0, 3), 1, 4))
        await asyncio.sleep(5)
        whole = shown(us)
        assert whole == shown(eu) and len(whole) == 8
        await restore(us, damaged, backup)
        assert shown(us) == []
        await asyncio.sleep(20)
        assert sorted(shown(us)) == sorted(whole) and len(shown(us)) == 8
        assert us.log.state.transactions is not None and not us.log.state.transactions.open
        await consistent(instance, damaged)

    play(8, scenario)


@pytest.mark.parametrize("more", [0, 4])
def test_an_end_that_another_region_published_is_passed(more: int) -> None:
    """The last position of the earlier epoch is eu's; others have trimmed what lies up to it, or `more` entries."""

    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, ap = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        eu.publish(2)
        await asyncio.sleep(3)
        before, backup, own = us.log.origin, us.back_up(), us.log.last_own()[1]
        if more:
            us.publish(more)
        await asyncio.sleep(3)
        for region in (eu, ap):
            region.ledger.rollover()
        us.publish(3)
        await asyncio.sleep(3)
        for region in (eu, ap):
            region.ledger.save()
            region.ledger.trim((1, 99))
        await restore(us, damaged, backup)
        await asyncio.sleep(120)
        end = us.log.state.past[0][1]
        assert end > own and seen(us) == [US + n for n in (*range(5), *range(5 + more, 8 + more))]
        assert us.log.vector.missing(before) == (((own, (end[0], end[1] + more)),) if more else ())
        assert sum(is_skip(run) for _, _, run in us.store.runs()) == bool(more)
        await consistent(instance, damaged)

    play(10, scenario)


def test_nothing_comes_back_that_others_tell_differently() -> None:
    """What it takes of its own past it stands for as its origin: an audit elsewhere believes it."""

    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, ap = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        before, backup = us.log.origin, us.back_up()
        us.ledger.rollover()
        us.publish(4)
        await asyncio.sleep(3)
        at = coordinates(us, before)[6]
        there = next(place for place, (one, _) in held(eu).items() if one == (before, at))
        copies = damaged.copies["eu"]
        right = copies.entry(there)
        copies.flip(there, random.Random(1), consistent=True)
        await restore(us, damaged, backup)
        await asyncio.sleep(60)
        assert len(seen(us)) == 5 and us.log.vector.prefix(before) == us.log.state.past[0][1]
        copies.put(there, right)
        await asyncio.sleep(120)
        assert seen(us) == seen(eu) == seen(ap) == [US + n for n in range(9)]
        await consistent(instance, damaged)

    play(11, scenario)


def test_nothing_comes_back_from_a_ledger_that_was_made_since() -> None:
    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, _ = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        before, backup = us.log.origin, us.back_up()
        us.ledger.rollover()
        us.publish(4)
        await asyncio.sleep(3)
        await restore(us, damaged, backup)
        assert never_from(us.log, before) == AFTER_ALL, "nothing was published since"
        us.publish(1)
        await asyncio.sleep(20)
        assert len(seen(us)) == 10 and never_from(us.log, before) == (us.ledger.ledger, 0)
        through, part = us.log.vector.prefix(before), entry(US + 99, "us-producer", 99)
        made = Run([part], [len(part)])
        checksums = checked_and_addressed(made, frozenset(("eu",)))[0]
        made = received(made.as_replicated(before, us.ledger.ledger, 3, checksums), "us")
        eu.brokers[0].machine.run(
            eu.log.append_replicated, through, made, lambda _: None, lambda error: eu.faults.append(repr(error))
        )
        await asyncio.sleep(60)
        assert US + 99 in seen(eu) and US + 99 not in seen(us) and us.log.vector.prefix(before) == through

    play(12, scenario)


@pytest.mark.parametrize("seed", range(12))
def test_all_regions_hold_the_same_in_the_end(seed: int) -> None:
    """What some other region held when the epoch rose is in the restored one, and nothing is anywhere twice."""
    rng = random.Random(seed)

    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us, eu, ap = instance.regions.values()
        origins, to = [us.log.origin], [(), ("eu",), ("ap",), ("eu", "ap")]
        backup = us.back_up()
        for _ in range(3):
            for _ in range(rng.randrange(3, 12)):
                match rng.randrange(7):
                    case 0:
                        (instance.sim.network.cut if rng.random() < 0.6 else instance.sim.network.heal)(
                            "us", rng.choice(("eu", "ap"))
                        )
                    case 1:
                        eu.publish(rng.randrange(1, 4))
                    case 2 if rng.random() < 0.5:
                        us.ledger.rollover()
                        backup = us.back_up()
                        us.ledger.rollover()
                    case 3:
                        us.ledger.rollover()
                    case _:
                        us.publish(rng.randrange(1, 6), to=rng.choice(to))
                await asyncio.sleep(rng.choice((0.0, 0.2, 2.0)))
            held_then = {name: set(seen(instance.regions[name])) for name in ("eu", "ap")}
            kept = set(seen_in(backup))
            await restore(us, damaged, backup)
            backup = us.back_up()
            origins.append(us.log.origin)
            us.publish(rng.randrange(0, 3) or 1)
            if rng.random() < 0.7:
                for other in ("eu", "ap"):
                    instance.sim.network.heal("us", other)
                await asyncio.sleep(rng.choice((1.0, 30.0)))
                backup = us.back_up() if rng.random() < 0.5 else backup
                us.ledger.rollover()
            wanted.update(held_then["eu"] | held_then["ap"] | kept)
        for other in ("eu", "ap"):
            instance.sim.network.heal("us", other)
        await asyncio.sleep(90)
        for region in (us, eu, ap):
            assert len(seen(region)) == len(set(seen(region)))
        assert wanted <= set(seen(us))
        assert set(seen(eu)) | set(seen(ap)) <= set(seen(us))
        for origin in origins:
            mine = coordinates(us, origin)
            assert mine == sorted(mine)
            for other in (eu, ap):
                assert set(coordinates(other, origin)) <= set(mine)
        await consistent(instance, damaged)

    wanted: set[int] = set()
    play(seed, scenario)


def seen_in(backup: Any) -> list[int]:
    return [
        body
        for _, _, run in backup.runs()
        for part in run.parts
        if not run.flags and (body := int.from_bytes(bytes(part)[-8:], "big")) // 1_000_000 == 1
    ]


def test_nothing_is_aborted_whose_commit_may_come_back() -> None:
    """Its coordinator, which was restored as well, aborts it when its time is over, or another one ends."""

    async def scenario(instance: Instance, damaged: Damaged) -> None:
        us = instance.regions["us"]
        publish(us, (0, 1), 2)
        publish(us, (0, 2), 2)
        backup = us.back_up()
        us.ledger.rollover()
        publish(us, (0, 1), 2)
        append(us, marker_run((0, 1), COMMIT, 1))
        append(us, marker_run((0, 2), ABORT, 1))
        await asyncio.sleep(5)
        instance.sim.network.cut("us", "ap")
        await restore(us, damaged, backup)
        await asyncio.sleep(5)
        topic = TopicTransactions(cast(Any, SimpleNamespace(log=us.log, text="orders", terminated=False, on_held=None)))

        async def end(number: int, *, commit: bool, low: int) -> None:
            await us.brokers[0].machine.ask(partial(topic.end, (0, number), commit=commit, low=low))

        for number in (1, 2):
            with pytest.raises(LinkError):
                await end(number, commit=False, low=1)
        await end(9, commit=True, low=3)
        assert topic.buffer is not None and list(topic.buffer.open) == [(None, 0, 1), (None, 0, 2)]
        instance.sim.network.heal("us", "ap")
        await asyncio.sleep(20)
        assert list(topic.buffer.open) == [(None, 0, 2)]
        with pytest.raises(TransactionState):
            await end(1, commit=False, low=1)
        await end(2, commit=False, low=1)
        assert shown(us) == [US, US + 1, US + 4, US + 5]

    play(17, scenario)


CONFIRM = Producers.confirm_replicated
MUTANTS: dict[str, tuple[Any, str, Any, Callable[[], None]]] = {
    "what came back lies at its coordinate": (
        TopicState,
        "local_prefix",
        lambda state, origin: state.vector.prefix(origin),
        test_what_was_published_since_the_backup_comes_back_once,
    ),
    "what was for others is hidden here": (
        ended_origins,
        "fetched",
        lambda run, name, region: passing(received(run, name), region),
        test_what_was_published_since_the_backup_comes_back_once,
    ),
    "a commit that came back ends nothing": (
        TransactionBuffer,
        "end_own",
        lambda *_: None,
        test_a_transaction_that_was_committed_since_is_whole,
    ),
    "sequences that came back are nobody's": (
        Producers,
        "confirm_replicated",
        lambda known, run, *, own=False: CONFIRM(known, run),
        test_who_tries_again_what_came_back_is_no_double_and_who_begins_anew_is_not_refused,
    ),
    "its own past is nobody's": (
        ended_origins.EndedOrigins,
        "_fetched",
        lambda self, log, origin, through: self.ended(origin) and not log.state.is_own(origin),
        test_it_comes_back_after_a_second_restore_too,
    ),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_each_rule_is_needed(rule: str, broken: BrokenRules) -> None:
    where, name, value, test = MUTANTS[rule]
    broken.setattr(where, name, value)
    with broken.found():
        test()
