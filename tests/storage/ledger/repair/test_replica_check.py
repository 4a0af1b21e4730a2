"""What bookies say that they hold, against what they should: found, marked, and brought to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from geo_tests.sim.simulation import Machine
from heliograph.kv.metadata_store import MetadataStore, prefix_end
from heliograph.model.errors import BookieUnavailable, CorruptData, MetadataUnavailable
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState, pack
from local_meta import keys
from storage.ledger.repair.autorecovery import AutoRecovery
from storage.ledger.repair.ledger_repair import LedgerRepair
from storage.ledger.repair.replica_holdings import expected, look, union, without
from storage.ledger.underreplicated_marks import Mark, mark_lacking
from storage.ledger.writing import ledger_handle
from tests.storage.ledger.fake_bookies import FakeBookie
from tests.storage.ledger.repair.lost_bookie_worlds import SETTINGS, Worlds, filled
from tests.storage.ledger.repair.three_bookies import QUICK, THREE, complete, lacking, one_history_of_pauses, three
from tests.storage.managed_ledger.world import Broker, read_all, until

NEVER = replace(SETTINGS, check_s=1e9, lost_after_s=1e6)


def test_ranges_are_subtracted_and_joined() -> None:
    rng = random.Random(7)
    for _ in range(300):
        one, other = ({n for n in range(40) if rng.random() < share} for share in (0.6, 0.5))
        ranges = [union((n, n) for n in rng.sample(sorted(of), len(of))) for of in (one, other)]
        assert [n for first, last in without(*ranges) for n in range(first, last + 1)] == sorted(one - other)
        assert [n for first, last in union(ranges[0] + ranges[1]) for n in range(first, last + 1)] == sorted(
            one | other
        )
        assert all(a[1] + 1 < b[0] for a, b in zip(ranges[0], ranges[0][1:], strict=False))


def test_a_place_is_expected_to_hold_its_stripes() -> None:
    plain, wide = (
        LedgerMetadata(1, 2, 2, ((0, ("a", "b")),)),
        LedgerMetadata(1, 2, 2, ((0, ("a", "b", "c")),), stride=4),
    )
    assert expected(plain, 3, 9, 0) == [(3, 9)]
    for place in range(3):
        entries = [entry for first, last in expected(wide, 2, 29, place) for entry in range(first, last + 1)]
        assert entries == [entry for entry in range(2, 30) if wide.fragments[0][1][place] in wide.write_set(entry)]


def test_a_mark_keeps_what_it_said_before_and_older_versions_read_their_part() -> None:
    mark = Mark(["a"], {"b": 4}).with_lacking({"b": 3, "c": 9})
    assert Mark.decode(mark.encode()) == Mark(("a",), {"b": 4, "c": 9})
    assert Mark.decode(pack([["x", "y"]])) == Mark(("x", "y")), "the mark of an older version"
    with pytest.raises(CorruptData):
        Mark.decode(pack([["x"], 7]))


def drop(bookie: FakeBookie, ledger: int, first: int, last: int) -> None:
    for entry in range(first, last + 1):
        del bookie.ledgers[ledger].blocks[entry]


def test_a_bookie_that_was_away_and_is_back_gets_what_it_missed_although_the_ledger_stays_open() -> None:
    async def work(world: Worlds) -> None:
        log, broker = await filled(world, 4), world.broker()
        (metadata,) = await world.ledgers()
        away = metadata.fragments[0][1][1]
        await world.lose(away)
        for number in range(4):  # the ledger is not full: it stays open
            broker.append(log, f"away{number}", pad=50)
        await until(lambda: len(broker.done) == 8)
        await asyncio.sleep(1.0)
        assert lacking(world, metadata, 7) == [(entry, away) for entry in range(4, 8)]
        await world.back(away)
        await until(lambda: not lacking(world, metadata, 7))
        (after,) = await world.ledgers()
        assert after == metadata, "the same ledger, open, on the same bookies"
        await complete(world)
        await log.close()
        await complete(world)
        assert len(await read_all(log)) == 8

    three(work, NEVER)  # no check, and nobody is lost: the writer alone says so


def test_what_a_replaced_bookie_has_not_got_of_the_earlier_fragment_is_brought_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others had acknowledged it, so that it was confirmed without it; the earlier fragment goes on naming it."""

    async def work(world: Worlds) -> None:
        log, broker = await filled(world, 4), world.broker()
        (metadata,) = await world.ledgers()
        name = metadata.fragments[0][1][1]
        slow = world.region.bookies[name]
        with monkeypatch.context() as patch:
            patch.setattr(slow, "delay", lambda: 30.0)
            for number in range(4):
                broker.append(log, f"slow{number}", pad=50)
            await until(lambda: len(broker.done) == 8)
            # until its acks are overdue
            while name in (metadata := (await world.ledgers())[0]).fragments[-1][1]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        slow.crash()  # what was under way to it is lost
        slow.start()
        assert lacking(world, metadata, 7) == [(entry, name) for entry in range(4, 8)]
        await until(lambda: not lacking(world, metadata, 7), 60.0)
        (after,) = await world.ledgers()
        assert after == metadata and after.state == LedgerState.OPEN
        await log.close()
        await complete(world)

    three(work, NEVER, bookies=4)


def test_only_ledgers_with_a_gap_are_marked_and_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[int] = []
    running = most = 0

    async def mark(meta: MetadataStore, ledger: int, bookies: Mapping[str, int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.5)
        await mark_lacking(meta, ledger, bookies)
        running -= 1
        marked.append(ledger)

    monkeypatch.setattr(ledger_handle, "mark_lacking", mark)

    async def work(world: Worlds) -> None:
        broker = world.broker()
        logs = [await broker.open(f"persistent://public/default/t{number}", quorums=THREE) for number in range(60)]
        for log in logs:
            broker.append(log, "a")
        await until(lambda: len(broker.done) == 60)
        await asyncio.sleep(1.0)
        await world.lose("b1")
        for log in logs[:40]:
            broker.append(log, "b")
        await until(lambda: len(broker.done) == 100)
        await asyncio.sleep(1.0)
        assert not marked, "it is away: nothing can be copied"
        await world.back("b1")
        used = {ledger for ledger, entry, _ in broker.done if entry == 1}
        await until(lambda: set(marked) == used)
        await complete(world)
        assert set(marked) == used and len(used) == 40 and most == 16
        assert not [one for m in await world.ledgers() for one in lacking(world, m, 1 if m.ledger in used else 0)]
        for log in logs:
            await log.close()

    three(work, NEVER)


def test_what_only_a_dead_writer_knew_to_be_missing_is_brought_when_its_bookie_is_back() -> None:
    async def work(world: Worlds) -> None:
        machine, names = world.sim.machine("writer"), list[str]()

        async def life(machine: Machine) -> None:
            broker = Broker(world.region)
            log = await broker.open(quorums=THREE)
            broker.append(log, *"abcd")
            await until(lambda: len(broker.done) == 4)
            await world.lose((await world.ledgers())[0].fragments[0][1][1])
            broker.append(log, "away")
            await until(lambda: len(broker.done) == 5)
            names.append("away")
            await asyncio.Event().wait()

        await until(lambda: any(part.check.passes for part in world.parts))  # the only walk of this test is over
        machine.start(life)
        await until(lambda: bool(names))
        machine.kill()
        again = await world.broker().open(quorums=THREE)
        (closed,) = await world.ledgers()
        name = closed.fragments[0][1][1]
        assert closed.state == LedgerState.CLOSED and lacking(world, closed, 4) == [(4, name)]
        await world.back(name)
        await complete(world, 20.0)
        await again.close()

    three(work, NEVER)


def test_a_mark_that_waits_for_a_bookie_that_is_away_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    run: Callable[..., Awaitable[None]] = LedgerRepair.run

    async def counted(self: LedgerRepair, ledger: int, mark: int, said: Mark) -> None:
        tried.append(ledger)
        await run(self, ledger, mark, said)

    monkeypatch.setattr(LedgerRepair, "run", counted)

    async def work(world: Worlds) -> None:
        await (await filled(world, 6)).close()
        (metadata,) = await world.ledgers()
        name = metadata.fragments[0][1][0]
        drop(world.region.bookies[name], metadata.ledger, 1, 4)
        await world.lose(name)
        await mark_lacking(world.meta, metadata.ledger, {name: 5})
        await asyncio.sleep(20.0)
        assert not tried and world.parts[0].repairs == 1
        await world.back(name)
        await complete(world, 10.0)

    three(work, NEVER)


def test_a_ledger_that_was_closed_while_a_bookie_was_away_is_completed_when_it_is_back() -> None:
    async def work(world: Worlds) -> None:
        log, broker = await filled(world, 4), world.broker()
        (metadata,) = await world.ledgers()
        away = metadata.fragments[0][1][1]
        await world.lose(away)
        broker.append(log, "away", pad=50)
        await until(lambda: len(broker.done) == 5)
        await log.close()
        (closed,) = await world.ledgers()
        assert lacking(world, closed, closed.last_entry) == [(4, away)]
        await asyncio.sleep(5.0)
        assert world.parts[0].repairs == 1, "it is away, and not lost: its copies are waited for"
        await world.back(away)
        await complete(world, 20.0)
        assert (await world.ledgers())[0] == closed

    three(work, NEVER)


@pytest.mark.parametrize("quorums", [THREE, (4, 3, 2)])
def test_the_check_finds_entries_that_were_deleted_under_a_bookie(quorums: tuple[int, int, int]) -> None:
    async def work(world: Worlds) -> None:
        await (await filled(world)).close()
        await complete(world)
        before = await world.ledgers()
        for metadata in before:
            bookie = world.region.bookies[metadata.write_set(5)[1]]
            for entry in [entry for entry in range(5, 9) if bookie.name in metadata.write_set(entry)]:
                drop(bookie, metadata.ledger, entry, entry)
        assert sum(len(lacking(world, m, m.last_entry)) for m in before) >= 2 * len(before)
        await complete(world, 40.0)
        assert await world.ledgers() == before, "to the same bookies"
        auditor = next(part for part in world.parts if part.auditor)
        assert auditor.check.found == len(before)
        passes, copied = auditor.check.passes, sum(part.repair.copied_bytes for part in world.parts)
        await until(lambda: auditor.check.passes >= passes + 2)
        assert auditor.check.found == len(before) and copied == sum(part.repair.copied_bytes for part in world.parts), (
            "what is whole costs no copy"
        )

    three(work, bookies=4 if quorums[0] == 4 else 3, quorums=quorums)


def test_the_check_looks_at_open_ledgers_up_to_what_is_confirmed() -> None:
    async def work(world: Worlds) -> None:
        log = await filled(world, 6)
        (metadata,) = await world.ledgers()
        await asyncio.sleep(1.0)  # LAC is told
        drop(world.region.bookies["b2"], metadata.ledger, 2, 3)
        await until(lambda: not lacking(world, metadata, 5), 60.0)
        (after,) = await world.ledgers()
        assert after == metadata and after.state == LedgerState.OPEN
        await log.close()

    three(work)


def test_what_a_slow_bookie_has_not_got_yet_is_not_marked() -> None:
    async def work(world: Worlds) -> None:
        log, broker = await filled(world, 6), world.broker()
        (metadata,) = await world.ledgers()
        await asyncio.sleep(1.0)
        context = broker.factory.context
        drop(world.region.bookies["b1"], metadata.ledger, 5, 5)
        found = await look(context, metadata)
        assert [(r.first, r.last, r.lost) for r in found.lacking] == [(5, 5, ("b1",))]
        check = next(part for part in world.parts if part.auditor).check
        check._next, check._credit = metadata.ledger, 1.0
        await check._check_next()
        assert await world.meta.get(keys.underreplicated(metadata.ledger)) is None and check._again
        due = asyncio.get_running_loop().time() + 2 * context.settings.add_timeout_s
        assert check._again == {metadata.ledger: (due, 5)}, (
            "by then its writer has replaced a bookie that does not answer"
        )
        world.region.bookies["b1"].ledgers[metadata.ledger].blocks[5] = (
            world.region.bookies["b0"].ledgers[metadata.ledger].blocks[5]
        )
        await check._look_again(metadata.ledger, 5)
        assert await world.meta.get(keys.underreplicated(metadata.ledger)) is None
        await log.close()

    three(work, replace(NEVER, tick_s=0.5))


@pytest.mark.parametrize("is_open", [False, True])
def test_a_lack_that_could_not_be_marked_is_found_again_with_the_next_tick(is_open: bool) -> None:
    async def work(world: Worlds) -> None:
        log = await filled(world, 6)
        await asyncio.sleep(1.0)  # LAC is told
        if not is_open:
            await log.close()
        for part in world.parts:
            await part.stop()
        (metadata,) = await world.ledgers()
        drop(world.region.bookies["b1"], metadata.ledger, 2, 3)
        check, failed = world.parts[0].check, list[str]()
        check._leads = lambda: True
        meta = check._context.meta
        put = meta.put

        async def fails_once(key: str, *rest: Any, **more: Any) -> int:
            if key == keys.underreplicated(metadata.ledger) and not failed:
                failed.append(key)
                raise MetadataUnavailable("away")
            return await put(key, *rest, **more)

        meta.put = fails_once  # type: ignore[method-assign]
        now = asyncio.get_running_loop().time()
        check._next, check._credit = 0, 1.0
        if is_open:
            await check._check_next()
            now = check._again[metadata.ledger][0]
        with pytest.raises(MetadataUnavailable):
            await check._go_on(now, 1.0)
        assert failed and not check.found and await world.meta.get(failed[0]) is None
        await check._go_on(now, 1e9)
        assert check.found == 1 and await world.meta.get(failed[0]) is not None and not check._again
        meta.put = put  # type: ignore[method-assign]

    three(work, NEVER)


def test_a_bookie_in_limbo_or_that_cannot_say_lacks_nothing_that_is_known() -> None:
    async def work(world: Worlds) -> None:
        await (await filled(world, 6)).close()
        (metadata,) = await world.ledgers()
        context = world.broker().factory.context
        drop(world.region.bookies["b1"], metadata.ledger, 2, 3)
        world.region.bookies["b1"].limbo = True
        found = await look(context, metadata)
        assert not found.lacking and not found.nowhere and list(found.silent) == ["b1"]
        mark = await world.meta.put(keys.underreplicated(metadata.ledger), Mark((), {"b1": 5}).encode())
        with pytest.raises(BookieUnavailable, match="b1 may lack entries"):
            await world.parts[0].repair.run(metadata.ledger, mark, Mark((), {"b1": 5}))
        world.region.bookies["b1"].limbo = False
        await world.parts[0].repair.run(metadata.ledger, mark, Mark((), {"b1": 5}))
        assert not lacking(world, metadata, metadata.last_entry)

    async def quiet(world: Worlds) -> None:
        await asyncio.sleep(1.0)
        for part in world.parts:
            await part.stop()
        await work(world)

    three(quiet, NEVER)


@pytest.mark.parametrize("lost", [(), ("b2", "b0")])
def test_what_a_bookie_lacks_is_not_made_good_while_who_alone_may_have_it_is_silent(lost: tuple[str, ...]) -> None:
    """As with a disk that is lost while the bookie beside it has no power: the mark stood for nothing."""

    async def work(world: Worlds) -> None:
        await (await filled(world, 6)).close()
        (metadata,) = await world.ledgers()
        drop(world.region.bookies["b1"], metadata.ledger, 0, 5)
        for other in ("b2", "b0"):
            world.region.bookies[other].limbo = True
        said = Mark(lost, {"b1": 5})
        found = await look(world.broker().factory.context, metadata, gone=lost)
        assert not found.lacking and bool(found.unknown) == (not lost)
        mark = await world.meta.put(keys.underreplicated(metadata.ledger), said.encode())
        if not lost:
            with pytest.raises(BookieUnavailable, match="has no copy of the entries 0 to 5"):
                await world.parts[0].repair.run(metadata.ledger, mark, said)
            for other in ("b2", "b0"):
                world.region.bookies[other].limbo = False
            await world.parts[0].repair.run(metadata.ledger, mark, said)
            assert not lacking(world, metadata, metadata.last_entry)

    async def quiet(world: Worlds) -> None:
        await asyncio.sleep(1.0)
        for part in world.parts:
            await part.stop()
        await work(world)

    three(quiet, NEVER)


def test_the_writer_knows_further_than_bookies_what_is_confirmed() -> None:
    async def work(world: Worlds) -> None:
        log = await filled(world, 6)
        (metadata,) = await world.ledgers()
        for part in world.parts:
            await part.stop()
        drop(world.region.bookies["b1"], metadata.ledger, 4, 5)
        for bookie in world.region.bookies.values():
            bookie.ledgers[metadata.ledger].lac = 2  # it comes to them with the next run, or later
        await mark_lacking(world.meta, metadata.ledger, {"b1": 5})
        stored = await world.meta.get(keys.underreplicated(metadata.ledger))
        assert stored is not None
        await world.parts[0].repair.run(metadata.ledger, stored[1], Mark.decode(stored[0]))
        assert not lacking(world, metadata, 5)
        await log.close()

    three(work, NEVER)


def test_what_a_mark_says_of_gaps_stays_when_the_auditor_adds_a_lost_bookie() -> None:
    async def work(world: Worlds) -> None:
        await (await filled(world, 6)).close()
        (metadata,) = await world.ledgers()
        lost, gap = metadata.fragments[0][1][:2]
        for bookie in (lost, gap):
            await world.lose(bookie)  # one spare is left, and two are needed: nothing is repaired yet
        await mark_lacking(world.meta, metadata.ledger, {gap: 5})
        auditor = next(part for part in world.parts if part.auditor)
        await until(
            lambda: metadata.ledger in auditor._marks and set(auditor._marks[metadata.ledger][1].lost) == {lost, gap},
            60.0,
        )
        assert auditor._marks[metadata.ledger][1].lacking == {gap: 5}

    async def ready(world: Worlds) -> None:
        await until(lambda: any(part.auditor for part in world.parts))
        await work(world)

    three(ready, replace(QUICK, check_s=1e9))


def test_gaps_that_wait_for_a_bookie_do_not_keep_its_loss_from_being_marked() -> None:
    """As many ledgers as may wait at one time were marked for a gap when a bookie went; then it goes for good, and
    older ledgers have to be marked first.
    """

    async def work(world: Worlds) -> None:
        log, broker = await filled(world, 12), world.broker()
        for number in range(48):
            broker.append(log, f"more{number}", pad=50)
            await until(lambda: not log.pending_bytes)
        await log.close()
        *older, last = await world.ledgers()
        lost = last.fragments[0][1][0]
        assert any(lost in ensemble for m in older for _, ensemble in m.fragments)
        await world.lose(lost)
        await mark_lacking(world.meta, last.ledger, {lost: last.last_entry})
        await complete(world)
        assert not any(lost in ensemble for m in await world.ledgers() for _, ensemble in m.fragments)

    three(work, replace(SETTINGS, marks_max=1, check_s=1e9), bookies=4)


def test_what_nobody_holds_is_said_and_not_marked() -> None:
    async def work(world: Worlds) -> None:
        await (await filled(world, 6)).close()
        (metadata,) = await world.ledgers()
        for bookie in world.region.bookies.values():
            drop(bookie, metadata.ledger, 3, 3)
        check = next(part for part in world.parts if part.auditor).check
        passes = check.passes
        await until(lambda: check.passes >= passes + 2)
        assert check.nowhere and not await world.meta.range(keys.UNDERREPLICATED, prefix_end(keys.UNDERREPLICATED))

    async def ready(world: Worlds) -> None:
        await until(lambda: any(part.auditor for part in world.parts))
        await work(world)

    three(ready)


def test_copies_that_a_bookie_does_not_take_any_more_go_to_a_spare() -> None:
    async def work(world: Worlds) -> None:
        await (await filled(world, 6)).close()
        (metadata,) = await world.ledgers()
        name = metadata.fragments[0][1][0]
        drop(world.region.bookies[name], metadata.ledger, 1, 4)
        await world.region.bookies[name].register(world.meta, writable=False)  # its disk is full
        await complete(world, 60.0)
        (after,) = await world.ledgers()
        assert name not in after.fragments[0][1]

    three(work, bookies=4)


def test_a_mark_that_is_made_again_during_a_repair_stays() -> None:
    async def work(world: Worlds) -> None:
        await (await filled(world, 6)).close()
        (metadata,) = await world.ledgers()
        await asyncio.sleep(1.0)
        for part in world.parts:
            await part.stop()
        await mark_lacking(world.meta, metadata.ledger, {"b1": 3})
        first = await world.meta.get(keys.underreplicated(metadata.ledger))
        await mark_lacking(world.meta, metadata.ledger, {"b1": 2})
        again = await world.meta.get(keys.underreplicated(metadata.ledger))
        assert first is not None and again is not None and again[1] != first[1], (
            "whoever began before it does not take it away"
        )
        assert Mark.decode(again[0]).lacking == {"b1": 3}

    three(work, NEVER)


def test_the_check_goes_on_where_the_last_auditor_was() -> None:
    async def work(world: Worlds) -> None:
        for part in world.parts:
            await part.stop()
        log, broker = await filled(world, 12), world.broker()
        for number in range(48):
            broker.append(log, f"more{number}", pad=50)
            await until(lambda: not log.pending_bytes)
        await log.close()
        ledgers = [m.ledger for m in await world.ledgers()]
        assert len(ledgers) >= 5
        await world.meta.put(keys.COPIES_CHECKED, pack([ledgers[3]]))
        again = AutoRecovery(world.broker().factory.context, "again", world.settings)
        await again.start()
        await until(lambda: again.check.checked == 1)
        assert again.check._next == ledgers[3] + 1
        await again.stop()

    three(work, NEVER)


@pytest.mark.parametrize("seed", range(6))
def test_bookies_that_pause_again_and_again_lack_nothing_in_the_end(seed: int) -> None:
    one_history_of_pauses(seed)
