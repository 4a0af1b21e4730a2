"""The audit between regions: whatever one copy lacks, has wrong, or has too much is found, told, and put right from
another one.

A mutant is the same code with one rule taken out; the damage must then stay, or harm be done, so that the tests cannot
go blind unseen.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from geo_tests.sim.damage import with_part
from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import NotAllowed
from heliograph.model.positions import Position
from heliograph.wire.links import audit_commands
from heliograph.wire.links.audit_commands import Ask
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from replicator.audit import audit_pass, audit_repair, audit_scan
from replicator.audit.audit_findings import Fault
from replicator.audit.audit_holes import Holes
from replicator.audit.audit_settings import AUDIT_LIMITS, AuditLimits, AuditSettings
from replicator.coordinates.late_entries import LateMap
from replicator.links import link
from replicator.log.replicated_entries import is_passing, received
from replicator.manager.link_manager import LinkSettings
from replicator.receiving import receiver_stream
from tests.broken_rules import BrokenRules
from tests.replicator.audit.audit_world import Damaged, held
from tests.replicator.link_instance import Instance, TestRegion

Scenario = Callable[[Damaged, random.Random], Coroutine[Any, Any, None]]
ONLY_WHEN_ASKED = AuditSettings(period_s=0)


def play(
    scenario: Scenario,
    *,
    seed: int = 1,
    names: tuple[str, ...] = ("us", "eu", "ap"),
    settings: AuditSettings = ONLY_WHEN_ASKED,
    limits: AuditLimits = AUDIT_LIMITS,
) -> None:
    with Simulation(seed) as sim:

        async def main() -> None:
            instance = Instance(sim, names, 1, LinkSettings(audit=settings, audit_limits=limits))
            for a in names:
                for b in names:
                    if a < b:
                        sim.network.latency(a, b, 0.01, 0.02)
            await instance.load()
            damaged = Damaged(instance)
            await scenario(damaged, random.Random(seed))
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=4000)


async def fill(damaged: Damaged, rng: random.Random, turns: int = 12) -> None:
    """Every region publishes, some of it for one other region only, over several ledgers."""
    regions = list(damaged.instance.regions.values())
    for _ in range(turns):
        for region in regions:
            to = () if rng.random() < 0.8 else (rng.choice(regions).name,)
            region.publish(rng.randrange(1, 40), to)
        await asyncio.sleep(rng.choice((0.0, 0.05)))
        if rng.random() < 0.3:
            await asyncio.sleep(0.2)
            rng.choice(regions).ledger.rollover()
    await asyncio.sleep(3)
    damaged.remember()


def spoil(damaged: Damaged, region: TestRegion, rng: random.Random) -> None:
    """One to three things go wrong in one region; never the same entry in two regions, nor its only copy, nor a hole
    where a place is gone as well.
    """
    copies, truth = damaged.copies[region.name], damaged.truth[region.name]
    elsewhere = Counter(c for name in damaged.truth if name != region.name for c, _ in damaged.truth[name].values())
    places = [at for at, (coordinate, _) in truth.items() if elsewhere[coordinate]]
    cut_off = False
    for _ in range(rng.randrange(1, 4)):
        at = rng.choice(places)
        match rng.randrange(5):
            case 0:
                if cut_off:
                    continue
                for entry in range(at[1], at[1] + rng.randrange(1, 30)):
                    if (at[0], entry) in places:
                        copies.gone[at[0], entry] = copies.holed[at[0], entry] = None
                    else:
                        break
            case 1:
                if at not in copies.gone:
                    copies.flip(at, rng, consistent=False)
            case 2:
                if at not in copies.gone and copies.entry(at).origin is not None:
                    copies.flip(at, rng, consistent=True)
            case 3:
                if at not in copies.gone and (entry := copies.entry(at)).origin is not None and not is_passing(entry):
                    region.log.append_late(entry, lambda _: None, lambda _: None)
            case 4:
                last = max(p for p in truth if p[0] == at[0])
                end = max((ledger, first + count - 1) for (ledger, first), count, _ in copies.store.blocks)
                if (
                    last in places
                    and not copies.gone
                    and copies.entry(last).origin is not None
                    and last < end
                    and held_last(copies, last)
                ):
                    copies.cut_off(last[0])
                    cut_off = True


def held_last(copies: Any, position: Position) -> bool:
    """Whether the ledger ends there."""
    return (
        max(first + count - 1 for (ledger, first), count, _ in copies.store.blocks if ledger == position[0])
        == position[1]
    )


def check(damaged: Damaged) -> None:
    """Every region holds each coordinate once, with the bytes that it had, and where it had it, unless no place was
    left.

    Where several other regions' entries lay in one hole, their order among each other may be another one; that of each
    region's is not.
    """
    for name, region in damaged.instance.regions.items():
        truth, now = damaged.truth[name], held(region)
        assert not damaged.copies[name].gone, name
        assert Counter(c for c, _ in now.values()) == Counter(c for c, _ in truth.values()), name
        wanted = dict(truth.values())
        holes = damaged.copies[name].holed
        for at, (coordinate, data) in now.items():
            assert data == wanted[coordinate], (name, at)
            assert at in holes or truth.get(at, (coordinate,))[0] == coordinate, (name, at)
        for origin in {c[0] for c, _ in now.values()}:
            assert [now[at][0] for at in sorted(holes) if now[at][0][0] == origin] == [
                truth[at][0] for at in sorted(holes) if truth[at][0][0] == origin
            ], name


async def audit_until_quiet(damaged: Damaged, rounds: int = 4) -> None:
    for _ in range(rounds):
        reports = [await damaged.audit(region) for region in damaged.instance.regions.values()]
        if not any(report.found or report.unchecked or report.error for report in reports):
            return
    raise AssertionError([report.shown() for report in reports])


async def spoilt_and_repaired(damaged: Damaged, rng: random.Random) -> None:
    await fill(damaged, rng)
    for region in rng.sample(list(damaged.instance.regions.values()), 1):
        spoil(damaged, region, rng)
    await audit_until_quiet(damaged)
    check(damaged)


@pytest.mark.parametrize("block", range(4))
def test_what_is_spoilt_in_one_region_is_found_and_put_right(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        try:
            play(spoilt_and_repaired, seed=seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


async def passed_on_and_spoilt(damaged: Damaged, rng: random.Random) -> None:
    """Over a chain: regions on the way hold, hidden, what is meant for those behind them."""
    damaged.instance.choose({"kind": "chain", "regions": list(damaged.instance.names)})
    await asyncio.sleep(2)
    damaged.instance.regions["us"].publish(5, ("sa",))
    await fill(damaged, rng)
    await asyncio.sleep(3)
    damaged.remember()
    region = rng.choice([damaged.instance.regions[name] for name in ("eu", "ap")])
    copies = damaged.copies[region.name]
    hidden = [at for at, (_, data) in damaged.truth[region.name].items() if data.startswith(b"passing ")]
    shown = region.bodies()
    kind, at = rng.randrange(3), rng.choice(hidden)
    if kind:
        copies.flip(at, rng, consistent=kind == 1)
    else:
        copies.gone[at] = copies.holed[at] = None
    report = await damaged.audit(region)
    wanted = (Fault.UNREADABLE, Fault.DIFFERENT, Fault.DAMAGED)[kind]
    assert report.found == report.repaired == Counter({str(wanted): 1}) and not report.unchecked, report.shown()
    check(damaged)
    spoil(damaged, region, rng)
    await audit_until_quiet(damaged)
    check(damaged)
    assert sorted(region.bodies()) == sorted(shown), "what was hidden stays so"


@pytest.mark.parametrize("block", range(2))
def test_what_a_region_only_passes_on_is_compared_and_put_right_too(block: int) -> None:
    for seed in range(block * 4, block * 4 + 4):
        try:
            play(passed_on_and_spoilt, seed=seed, names=("us", "eu", "ap", "sa"))
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


async def without_its_origin(damaged: Damaged, rng: random.Random) -> None:
    """us is gone for good: what eu has lost of it comes back from ap, and nothing that was never meant for eu."""
    await fill(damaged, rng)
    us, eu = damaged.instance.regions["us"], damaged.instance.regions["eu"]
    us.publish(6, ("ap",))
    us.publish(6)
    await asyncio.sleep(3)
    damaged.remember()
    for name in ("eu", "ap"):
        damaged.instance.sim.network.cut("us", name)
        damaged.instance.sim.network.reset("us", name)
    damaged.auditor(us).storage = None
    copies = damaged.copies["eu"]
    elsewhere = {coordinate for coordinate, _ in damaged.truth["ap"].values()}
    of_us = [
        at
        for at, (coordinate, _) in damaged.truth["eu"].items()
        if coordinate[0] == us.log.origin and coordinate in elsewhere
    ]
    lost, flipped = rng.sample(of_us, 2)
    copies.gone[lost] = copies.holed[lost] = None
    copies.flip(flipped, rng, consistent=False)
    report = await damaged.audit(eu)
    assert (
        report.found == report.repaired == Counter({"unreadable": 1, "damaged": 1})
        and report.unchecked
        and not report.gone
    ), report.shown()
    assert report.shown()["unchecked_of"] == {"us": report.unchecked}
    damaged.instance.view.remove("us")
    report = await damaged.audit(eu)
    assert (report.found, report.unchecked, set(report.gone)) == (Counter(), 0, {"us"}), report.shown()
    check(damaged)


async def late_and_its_origin_gone(damaged: Damaged, rng: random.Random) -> None:
    """What was published for eu alone, and appended there late, is no extra entry because no other region has it; and
    what ap lacks of it comes from eu.
    """
    us, eu, ap, _ = damaged.instance.regions.values()
    for region in (eu, ap):
        us.publish(5)
        us.publish(1, (region.name,))
        await asyncio.sleep(1)
        region.ledger.rollover()
    us.publish(1, ("eu", "ap"))
    await asyncio.sleep(2)
    eu.ledger.rollover()
    us.publish(5)
    await asyncio.sleep(2)
    shown = sorted(eu.bodies()), sorted(ap.bodies())
    for ledger in sorted({number for (number, _), _, _ in eu.store.blocks})[:2]:
        damaged.copies["eu"].cut_off(ledger)
    report = await damaged.audit(eu)
    assert report.found == report.repaired == Counter({"lost": 2}), report.shown()
    for name in ("eu", "ap", "sa"):
        damaged.instance.sim.network.cut("us", name)
        damaged.instance.sim.network.reset("us", name)
    damaged.auditor(us).storage = None
    damaged.instance.view.remove("us")
    await asyncio.sleep(10)
    for _ in range(2):
        report = await damaged.audit(eu)
        assert not report.found and report.gone, report.shown()
    last = next(run for _, _, run in reversed(eu.store.runs()) if not run.flags)
    assert last.spans[0][:2] < eu.log.vector.prefix(us.log.origin), "it lies behind higher ones"
    ap_lacks = next(
        (ledger, first)
        for ledger, first, run in ap.store.runs()
        if run.coordinate(run.count - 1) == last.coordinate(last.count - 1)
    )
    damaged.copies["ap"].gone[ap_lacks] = damaged.copies["ap"].holed[ap_lacks] = None
    report = await damaged.audit(ap)
    assert report.found == report.repaired == Counter({"unreadable": 1}), report.shown()
    assert (sorted(eu.bodies()), sorted(ap.bodies())) == shown


def test_what_lies_late_is_told_and_kept_where_its_origin_is_gone(broken: BrokenRules) -> None:
    play(late_and_its_origin_gone, names=("us", "eu", "ap", "sa"))
    broken.setattr(LateMap, "between", lambda *_: [])
    with broken.found():
        play(late_and_its_origin_gone, names=("us", "eu", "ap", "sa"))


def test_what_lies_late_is_kept_where_its_origin_has_trimmed_it() -> None:
    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        us, eu = damaged.instance.regions.values()
        for _ in range(3):
            us.publish(5)
            await asyncio.sleep(1)
            for region in (us, eu):
                region.ledger.rollover()
        us.publish(5)
        await asyncio.sleep(2)
        shown = sorted(eu.bodies())
        damaged.copies["eu"].cut_off(min(number for (number, _), _, _ in eu.store.blocks))
        report = await damaged.audit(eu)
        assert report.found == report.repaired == Counter({"lost": 1}), report.shown()
        places = sorted(held(us))
        us.ledger.trim(places[9])
        assert us.ledger.first_position() > places[4], "what lies late in eu is trimmed in us"
        report = await damaged.audit(eu)
        assert not report.found, report.shown()
        assert sorted(eu.bodies()) == shown

    play(scenario, names=("us", "eu"))


def test_where_a_region_is_gone_the_others_put_each_other_right() -> None:
    for seed in range(6):
        try:
            play(without_its_origin, seed=seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_mutant_nobody_else_is_asked(broken: BrokenRules) -> None:
    async def nothing(*_: Any) -> None: ...

    broken.setattr(audit_pass.AuditPass, "_look_elsewhere", nothing)
    with broken.found():
        play(without_its_origin)


def test_an_origin_that_knows_of_no_such_question_is_asked_for_what_is_shown() -> None:
    """An earlier version at the other end: it tells of what was published for the asker, and nothing that is only
    passed on is missed.
    """

    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(link, "ask_frame", earlier)
            patch.setattr(receiver_stream, "ask_frame", earlier)
            damaged.instance.choose({"kind": "chain", "regions": list(damaged.instance.names)})
            await asyncio.sleep(2)
            await fill(damaged, rng)
            await asyncio.sleep(3)
            assert any(
                data.startswith(b"passing ")
                for data in (data for _, data in held(damaged.instance.regions["eu"]).values())
            )
            for region in damaged.instance.regions.values():
                report = await damaged.audit(region)
                assert not report.found and not report.unchecked and not report.error, report.shown()

    def earlier(stream: int, request: int, ask: Ask) -> Any:
        return real(stream, request, dataclasses.replace(ask, passing=False))

    real = audit_commands.ask_frame
    play(scenario, names=("us", "eu", "ap", "sa"))


def test_a_whole_copy_says_nothing_is_wrong_and_asks_once_a_range() -> None:
    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        await fill(damaged, rng)
        for region in damaged.instance.regions.values():
            report = await damaged.audit(region)
            assert (report.found, report.unchecked, report.error) == (Counter(), 0, "") and report.entries >= len(
                held(region)
            )
            assert report.ranges <= 2 + report.entries // 512

    play(scenario)


def test_each_fault_is_named() -> None:
    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        await fill(damaged, rng)
        eu = damaged.instance.regions["eu"]
        copies = damaged.copies["eu"]
        foreign = [at for at in damaged.truth["eu"] if copies.entry(at).origin is not None]
        own = [at for at in damaged.truth["eu"] if copies.entry(at).origin is None]
        copies.gone[foreign[3]] = copies.gone[own[5]] = None
        copies.flip(foreign[50], rng, consistent=False)
        copies.flip(foreign[60], rng, consistent=True)
        eu.log.append_late(copies.entry(foreign[70]), lambda _: None, lambda _: None)
        await asyncio.sleep(1)
        report = await damaged.audit(eu)
        wanted = {Fault.UNREADABLE: 2, Fault.DAMAGED: 1, Fault.DIFFERENT: 1, Fault.TWICE: 1}
        assert report.found == Counter({str(fault): count for fault, count in wanted.items()}) == report.repaired, (
            report.shown()
        )
        assert {tuple(f.position) for f in report.findings if f.fault is Fault.UNREADABLE and f.position} == {
            foreign[3],
            own[5],
        }
        assert all(f.origin is not None and f.coordinate is not None for f in report.findings)
        await audit_until_quiet(damaged)
        check(damaged)

    play(scenario)


def test_an_entry_under_a_coordinate_where_its_origin_has_nothing_stays_whoever_else_has_nothing() -> None:
    """It may be the last copy of a tail that the origin has lost, and that no other region had got by then."""

    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        damaged.instance.regions["us"].publish(3)
        await asyncio.sleep(1)
        damaged.instance.regions["us"].ledger.rollover()
        await fill(damaged, rng)
        eu, us = damaged.instance.regions["eu"], damaged.instance.regions["us"]
        copies = damaged.copies["eu"]
        at = next(at for at in damaged.truth["eu"] if copies.entry(at).origin == us.log.origin)
        entry = copies.entry(at)
        ledgers = sorted({p[0] for p in damaged.truth["us"] if copies_of(damaged, "us", p).origin is None})
        beyond = (ledgers[0], 1_000_000)  # between two ledgers of us
        assert len(ledgers) > 1 and us.log.vector.prefix(us.log.origin) > beyond
        strange = with_part(entry, bytes(entry.parts[0]), entry.checksums)
        strange.spans = ((*beyond, 1),)
        eu.log.append_late(strange, lambda _: None, lambda _: None)
        await asyncio.sleep(1)
        report = await damaged.audit(eu)
        assert report.found == Counter({"extra": 1}) and report.left == 1, report.shown()
        await asyncio.sleep(1)
        left = [c for c, _ in held(eu).values() if c == (us.log.origin, beyond)]
        assert len(left) == 1 and "this copy is the last" in report.findings[0].left

    play(scenario, seed=3)
    play(scenario, seed=3, names=("us", "eu"))


async def wrong_at_its_origin(damaged: Damaged, rng: random.Random) -> None:
    """us has another entry than it published, which looks right in itself: the good copies in eu and ap stay, and say
    whose is the wrong one.
    """
    await fill(damaged, rng)
    us, eu, ap = damaged.instance.regions.values()
    in_all = {c for c, _ in damaged.truth["eu"].values()} & {c for c, _ in damaged.truth["ap"].values()}
    at = rng.choice(
        [
            at
            for at, (coordinate, _) in damaged.truth["us"].items()
            if coordinate[0] == us.log.origin and coordinate in in_all
        ]
    )
    copies, right = damaged.copies["us"], damaged.copies["us"].entry(at)
    copies.flip(at, rng, consistent=True)
    before = {name: held(region) for name, region in damaged.instance.regions.items()}
    for region, other in ((eu, "ap"), (ap, "eu"), (eu, "ap")):
        report = await damaged.audit(region)
        assert report.found == Counter({"different": 1}) and report.left == 1 and other in report.findings[0].left, (
            report.shown()
        )
    damaged.instance.sim.network.cut("eu", "ap")
    damaged.instance.sim.network.reset("eu", "ap")
    await asyncio.sleep(12)
    report = await damaged.audit(eu)
    assert report.left == 1 and "cannot say now" in report.findings[0].left, report.shown()
    damaged.instance.sim.network.heal("eu", "ap")
    await asyncio.sleep(12)
    assert {name: held(region) for name, region in damaged.instance.regions.items()} == before
    copies.put(at, right)
    await audit_until_quiet(damaged)
    check(damaged)


def test_a_wrong_copy_at_the_origin_is_not_spread() -> None:
    for seed in range(6):
        try:
            play(wrong_at_its_origin, seed=seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_mutant_the_origin_is_always_right(broken: BrokenRules) -> None:
    async def right(*_: Any) -> bool:
        return True

    broken.setattr(audit_repair.Repairer, "_origin_is_right", right)
    with broken.found():
        play(wrong_at_its_origin)


async def one_too_many(damaged: Damaged, rng: random.Random) -> None:
    """eu has an entry more in the name of us, under a coordinate where us has one of another region, or one that was
    not meant for eu.
    """
    us, eu = damaged.instance.regions["us"], damaged.instance.regions["eu"]
    us.publish(3, ("sa",))
    await fill(damaged, rng)
    await asyncio.sleep(3)
    of_us = [at for at in damaged.truth["eu"] if damaged.copies["eu"].entry(at).origin == us.log.origin]
    entry = damaged.copies["eu"].entry(of_us[-1])
    kept = {coordinate for coordinate, _ in damaged.truth["eu"].values()}
    taken = [
        at
        for at, (coordinate, _) in damaged.truth["us"].items()
        if at < entry.coordinate(0) and (us.log.origin, at) not in kept
    ]
    assert {damaged.truth["us"][at][0][0] == us.log.origin for at in taken} == {True, False}
    strange = with_part(entry, bytes(entry.parts[0]), entry.checksums)
    strange.spans = ((*rng.choice(taken), 1),)
    eu.log.append_late(strange, lambda _: None, lambda _: None)
    await asyncio.sleep(1)
    assert len(eu.bodies()) == len(kept) + 1
    report = await damaged.audit(eu)
    assert report.found == report.repaired == Counter({"extra": 1}) and not report.left, report.shown()
    await audit_until_quiet(damaged)
    check(damaged)


def test_where_the_origin_has_another_entry_one_too_many_goes_with_two_regions_as_well() -> None:
    for seed in range(8):
        try:
            play(one_too_many, seed=seed, names=("us", "eu"))
            play(one_too_many, seed=seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


async def one_too_many_beneath_a_skip(damaged: Damaged, rng: random.Random) -> None:
    """eu has an entry more in the name of us, in a range of which a SKIP says that us has nothing for eu: the range is
    compared with nobody, the entry is, all the same.
    """
    us, eu = damaged.instance.regions["us"], damaged.instance.regions["eu"]
    await fill(damaged, rng)
    damaged.instance.sim.network.cut("us", "eu")
    us.publish(6, ("sa",))
    last = us.log.last_own()[1]
    record = SkipRecord(us.log.origin, eu.log.vector.prefix(us.log.origin), last, SkipReason.FILTERED, "")
    eu.log.append_skip(record, lambda _: None, lambda _: None)
    damaged.instance.sim.network.heal("us", "eu")
    us.publish(3)
    await asyncio.sleep(30)
    damaged.remember()
    assert not (await damaged.audit(eu)).found
    at = next(at for at in damaged.truth["eu"] if damaged.copies["eu"].entry(at).origin == us.log.origin)
    entry = damaged.copies["eu"].entry(at)
    strange = with_part(entry, bytes(entry.parts[0]), entry.checksums)
    strange.spans = ((last[0], last[1] - rng.randrange(3), 1),)
    eu.log.append_late(strange, lambda _: None, lambda _: None)
    await asyncio.sleep(1)
    report = await damaged.audit(eu)
    assert report.found == report.repaired == Counter({"extra": 1}) and not report.left, report.shown()
    await audit_until_quiet(damaged)
    check(damaged)


def test_one_too_many_in_a_range_that_a_skip_covers_goes_too(broken: BrokenRules) -> None:
    play(one_too_many_beneath_a_skip, names=("us", "eu"))
    play(one_too_many_beneath_a_skip)

    async def unasked(*_: Any) -> bool:
        return False

    broken.setattr(audit_pass.AuditPass, "_is_extra", unasked)
    with broken.found():
        play(one_too_many_beneath_a_skip, names=("us", "eu"))


def test_an_origin_that_does_not_say_what_lies_there_is_not_enough(broken: BrokenRules) -> None:
    """An earlier version at the other end."""

    async def unsaid(*_: Any) -> int:
        return 0

    broken.setattr(audit_scan.Teller, "_taken", unsaid)
    with broken.found(match="'extra': 1"):
        play(one_too_many, names=("us", "eu"))
    broken.mend()
    play(one_too_many, names=("us", "eu"))


def copies_of(damaged: Damaged, name: str, at: Position) -> Any:
    return damaged.copies[name].entry(at)


def test_without_an_answer_nothing_is_said_and_nothing_done() -> None:
    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        await fill(damaged, rng)
        for name in ("us", "ap"):
            damaged.auditor(damaged.instance.regions[name]).storage = None
        eu = damaged.instance.regions["eu"]
        foreign = [at for at in damaged.truth["eu"] if damaged.copies["eu"].entry(at).origin is not None]
        damaged.copies["eu"].gone[foreign[3]] = None
        report = await damaged.audit(eu)
        assert report.unchecked == report.ranges and report.left == 1 and report.findings[0].fault is Fault.UNREADABLE
        for name in ("us", "ap"):
            damaged.auditor(damaged.instance.regions[name]).storage = damaged.copies[name]
        await audit_until_quiet(damaged)
        check(damaged)

    play(scenario)


def test_what_is_stored_under_another_coordinate_is_not_lost() -> None:
    """A producer tried again in the other region: the SKIP(alias) says that the message is here already."""

    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        await fill(damaged, rng)
        us, eu = damaged.instance.regions["us"], damaged.instance.regions["eu"]
        damaged.instance.sim.network.cut("us", "eu")
        us.publish(3)
        last = us.log.last_own()[1]
        record = SkipRecord(
            us.log.origin, eu.log.vector.prefix(us.log.origin), (last[0], last[1] - 1), SkipReason.ALIAS, ""
        )
        eu.log.append_skip(record, lambda _: None, lambda _: None)
        held_before = len(eu.bodies())
        damaged.instance.sim.network.heal("us", "eu")
        await asyncio.sleep(30)
        assert len(eu.bodies()) == held_before + 1
        report = await damaged.audit(eu)
        assert not report.found and not report.unchecked, report.shown()
        damaged.copies["eu"].gone[max(held(eu))] = None
        await audit_until_quiet(damaged)
        assert len(eu.bodies()) == held_before + 1

    play(scenario)


async def load_cuts_and_trims(damaged: Damaged, rng: random.Random) -> None:
    """Nothing is wrong, and much is going on: links are cut, ledgers end, what every link has is trimmed, runs fail.
    Audits go on all the time.
    """
    sim, regions = damaged.instance.sim, list(damaged.instance.regions.values())
    cut: set[tuple[str, str]] = set()
    ended = False

    async def audits() -> None:
        while not ended:
            region = rng.choice(regions)
            try:
                region.brokers[0].machine.run(damaged.auditor(region).want, region.log.topic)
            except NotAllowed:  # no link is open now
                pass
            await asyncio.sleep(rng.choice((0.05, 0.3, 1.0)))

    auditing = asyncio.get_running_loop().create_task(audits())
    for _ in range(60):
        region = rng.choice(regions)
        roll = rng.random()
        if roll < 0.6:
            to = () if rng.random() < 0.8 else (rng.choice(regions).name,)
            region.publish(rng.randrange(1, 30), to)
        elif roll < 0.75:
            pair = rng.choice((("us", "eu"), ("us", "ap"), ("eu", "ap")))
            (sim.network.heal if pair in cut else sim.network.cut)(*pair)
            cut ^= {pair}
        elif roll < 0.85:
            region.ledger.rollover()
        else:
            region.ledger.save()
            marks = [c.mark_delete for c in region.store.cursors.values()]
            region.ledger.trim(min(marks))
        await asyncio.sleep(rng.choice((0.0, 0.05, 0.5, 2.0)))
    for pair in cut:
        sim.network.heal(*pair)
    await asyncio.sleep(20)
    ended = True
    await auditing
    await asyncio.sleep(5)
    for region in regions:
        auditor = damaged.auditor(region)
        assert auditor.passes and not auditor.found, (region.name, auditor.reports)
        bodies = region.bodies()
        assert len(bodies) == len(set(bodies)), "nothing is here twice"


@pytest.mark.parametrize("block", range(3))
def test_where_nothing_is_wrong_nothing_is_found_whatever_goes_on(block: int) -> None:
    for seed in range(block * 5, block * 5 + 5):
        try:
            play(load_cuts_and_trims, seed=seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_topics_take_turns_within_the_period_and_an_idle_one_costs_nothing_between() -> None:
    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        await fill(damaged, rng, turns=3)
        auditor = damaged.auditor(damaged.instance.regions["eu"])
        await asyncio.sleep(2 * 300 + 60)
        assert 1 <= auditor.passes <= 3 and auditor.failed == 0
        before = auditor.entries
        await asyncio.sleep(100)
        assert auditor.entries - before <= len(damaged.truth["eu"]) + 10

    play(scenario, settings=AuditSettings(period_s=300))


def test_what_is_lost_here_is_asked_of_the_others_once_before_it_is_told() -> None:
    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        await fill(damaged, rng, turns=3)
        region = damaged.instance.regions["eu"]
        auditor, topic = damaged.auditor(region), region.log.topic
        asks = partial(region.brokers[0].machine.run, auditor.asked_since, topic)
        loop, before = asyncio.get_running_loop(), auditor.passes
        since = loop.time()
        assert not asks(since) and auditor.running(topic)
        for _ in range(600):
            if not auditor.running(topic):
                break
            await asyncio.sleep(0.1)
        assert asks(since) and asks(since) and auditor.passes == before + 1, "asked again, nobody is bothered"
        assert not asks(loop.time()), "what was lost since is asked for anew"
        assert auditor.asked_since("persistent://public/default/other", since), "no other region has it"

    play(scenario, settings=AuditSettings(period_s=0))


def test_what_was_asked_for_is_kept_of_however_many_topics() -> None:
    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        await fill(damaged, rng, turns=3)
        auditor = damaged.auditor(damaged.instance.regions["eu"])
        (topic,) = auditor._channels.topics()
        asked_ms = auditor._clock.wall_ms()
        auditor.want(topic)
        await asyncio.sleep(60)
        assert not auditor.running(topic) and topic not in auditor.reports
        assert (
            auditor.briefs[topic].began_ms >= asked_ms
            and auditor.briefs[topic].entries > 0
            and not auditor.briefs[topic].left
        )

    play(scenario, limits=AuditLimits(reports_max=0))


def test_a_pass_keeps_to_the_rate() -> None:
    async def scenario(damaged: Damaged, rng: random.Random) -> None:
        await fill(damaged, rng)
        eu = damaged.instance.regions["eu"]
        began = damaged.instance.sim.now()
        report = await damaged.audit(eu)
        assert damaged.instance.sim.now() - began >= report.entries / 100 * 0.8

    play(scenario, settings=AuditSettings(period_s=0, entries_per_s=100))


# -- rules taken out ---------------------------------------------------------------------------------------------------


def _harm(broken: BrokenRules, where: Any, name: str, wrong: Any) -> None:
    broken.setattr(where, name, wrong)
    broken.look(lambda seed: play(spoilt_and_repaired, seed=seed), range(40))


class _Agrees:
    def __eq__(self, other: object) -> bool:
        return True


def test_mutant_digests_that_always_agree(broken: BrokenRules) -> None:
    _harm(broken, audit_pass, "digest", lambda rows: _Agrees())


def test_mutant_lost_ones_are_appended_without_a_look_at_holes(broken: BrokenRules) -> None:
    _harm(broken, Holes, "around", lambda self, origin, at: range(0))


def test_mutant_what_passes_is_not_told_of(broken: BrokenRules) -> None:
    broken.setattr(audit_scan, "_reach", lambda log, piece, ask, to: frozenset((to,)))
    with broken.found():
        play(passed_on_and_spoilt, names=("us", "eu", "ap", "sa"))


def test_mutant_what_passed_is_shown_after_its_repair(broken: BrokenRules) -> None:
    broken.setattr(audit_repair, "fetched", lambda run, name, region: [received(run, name)])
    with broken.found():
        play(passed_on_and_spoilt, names=("us", "eu", "ap", "sa"))


def test_mutant_late_ones_are_not_remembered(broken: BrokenRules) -> None:
    _harm(broken, audit_pass.AuditPass, "_note_late", lambda *_: None)


def test_mutant_what_is_fetched_is_put_anywhere(broken: BrokenRules) -> None:
    place = audit_repair.Repairer._place

    def shuffled(self: Any, group: Any, findings: Any) -> Any:
        placed = place(self, group, findings)
        return [p._replace(run=q.run) for p, q in zip(placed, reversed(placed), strict=True)]

    _harm(broken, audit_repair.Repairer, "_place", shuffled)
