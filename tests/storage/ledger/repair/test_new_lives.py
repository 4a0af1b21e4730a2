"""A new life of a bookie: its price, its grant, and the copies that are made again, over real bookies."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from geo_tests.sim.premises import Owner, Premises, on_premises
from heliograph.kv.metadata_store import prefix_end
from heliograph.model.errors import BookieUnavailable, NotAllowed
from heliograph.model.ledger_metadata import LedgerState, pack
from heliograph.runtime.throttle import Throttle
from local_meta import keys
from storage.ledger.bookies.bookie_cookie import BookieCookie
from storage.ledger.reading.ledger_reader import ledger_metadata, read_entries
from storage.ledger.recovery.ledger_recovery import recover_ledger
from storage.ledger.repair.autorecovery import AutoRecovery
from storage.ledger.repair.in_place_repair import Runs, refill
from storage.ledger.repair.new_lives import NewLife

ENTRIES = list("abcdef")
TOPICS = [f"persistent://sim/ns/topic-{number}" for number in range(7)]


async def stored(premises: Premises, topics: list[str], host: str = "first") -> tuple[Owner, list[int]]:
    """An owner, and the closed ledgers of these topics, with the same six entries each."""
    owner = await premises.owner(host)
    found: list[int] = []
    for topic in topics:
        ledger = await owner.open(topic)
        await owner.append(ledger, *ENTRIES)
        found.append(ledger.ledgers()[-1].ledger)
        await owner.do(lambda: recover_ledger(owner.context, found[-1]))
    return owner, found


async def audited(owner: Owner, *, marks_max: int = 1000, name: str = "auditor") -> AutoRecovery:
    # the daily walk over all ledgers has just been here: it finds nothing before tomorrow
    await owner.context.meta.put(keys.COPIES_CHECKED, pack([1 << 60]))
    recovery = AutoRecovery(
        owner.context, name, replace(Premises.settings.auto_recovery, marks_max=marks_max, lost_after_s=1e6)
    )
    await recovery.start()
    return recovery


async def emptied(premises: Premises, bookie: str) -> None:
    premises.empty(premises.bookie(bookie))
    premises.bookie(bookie).start()
    await asyncio.sleep(2.0)


async def holds(owner: Owner, bookie: str, ledger: int) -> bool:
    try:
        await owner.do(lambda: owner.context.pool.client(bookie).read(ledger, 0, 5, 1 << 20))
    except BookieUnavailable:
        return False
    return True


async def whole(owner: Owner, recovery: AutoRecovery, bookie: str, within_s: int) -> NewLife:
    for _ in range(within_s):
        found = await owner.do(lambda: recovery.new_lives.look(bookie))
        if found.state == "whole":
            return found
        await asyncio.sleep(1.0)
    raise AssertionError(found)


@pytest.mark.parametrize("marks_max", [1000, 2])
def test_what_a_bookie_lost_is_written_to_its_new_life_at_once(marks_max: int) -> None:
    """There is no spare: the copies come back where they were, the first half by one auditor, the rest by the next."""

    async def work(premises: Premises) -> None:
        owner, ledgers = await stored(premises, TOPICS)
        recovery = await owner.do(lambda: audited(owner, marks_max=marks_max))
        lost, other = (node.name for node in premises.region.bookies)
        await emptied(premises, lost)
        price = await owner.do(lambda: recovery.new_lives.look(lost))
        assert (price.state, price.ledgers_left, price.bytes_left) == ("limbo", 7, 42)
        assert price.one_copy == tuple(ledgers) and not price.no_copy_ledgers
        await asyncio.sleep(100.0)
        assert not any([await holds(owner, lost, ledger) for ledger in ledgers]), "nobody has said anything yet"
        granted = await owner.do(lambda: recovery.new_lives.grant(lost))
        assert granted == replace(price, state="granted")
        await asyncio.sleep(2.0)
        await owner.do(recovery.stop)
        recovery = await owner.do(lambda: audited(owner, marks_max=marks_max, name="next"))
        assert (await whole(owner, recovery, lost, 60)).ledgers_left == 0
        for ledger in ledgers:
            assert await holds(owner, lost, ledger) and await holds(owner, other, ledger)
            metadata = await owner.do(lambda ledger=ledger: ledger_metadata(owner.context, ledger))  # type: ignore[misc]
            assert set(metadata.fragments[-1][1]) == {lost, other}
        await emptied(premises, other)  # and now the other one may go
        assert (await owner.do(lambda: recovery.new_lives.grant(other))).no_copy_ledgers == 0
        await whole(owner, recovery, other, 60)
        await owner.do(recovery.stop)
        third = await premises.owner("third")
        for topic in TOPICS:
            assert await third.read(await third.open(topic)) == ENTRIES

    on_premises(work, bookies=2)


@pytest.mark.parametrize("force", [False, True])
def test_the_second_loss_is_refused_while_there_is_one_copy(force: bool) -> None:
    async def work(premises: Premises) -> None:
        owner, ledgers = await stored(premises, TOPICS[:2])
        first, second = (node.name for node in premises.region.bookies)
        recovery = await owner.do(lambda: audited(owner))
        await emptied(premises, first)
        premises.sim.network.cut(owner.machine.host, first)  # no copy gets there for now
        await owner.do(lambda: recovery.new_lives.grant(first))
        await asyncio.sleep(5.0)
        assert (await owner.do(lambda: recovery.new_lives.look(first))).state == "filling"
        await emptied(premises, second)
        with pytest.raises(NotAllowed, match="of 2 ledgers no other bookie"):
            await owner.do(lambda: recovery.new_lives.grant(second))
        assert second in owner.context.pool.limbo
        if force:
            price = await owner.do(lambda: recovery.new_lives.grant(second, force=True))
            assert price.no_copy == tuple(ledgers)
            await asyncio.sleep(3.0)
            assert second not in owner.context.pool.limbo
        await owner.do(recovery.stop)

    on_premises(work, bookies=2)


def test_a_bookie_that_is_well_gets_no_new_life() -> None:
    async def work(premises: Premises) -> None:
        owner, _ = await stored(premises, TOPICS[:1])
        recovery = await owner.do(lambda: audited(owner))
        for bookie in (premises.region.bookies[0].name, "nobody"):
            with pytest.raises(NotAllowed, match="is not in limbo"):
                await owner.do(lambda bookie=bookie: recovery.new_lives.grant(bookie, force=True))  # type: ignore[misc]
        assert (await owner.do(lambda: recovery.new_lives.look("nobody"))).state == "whole"
        await owner.do(recovery.stop)

    on_premises(work, bookies=2)


def test_no_broker_says_whole_before_the_auditor_has_found_so() -> None:
    """The ledger was open when the bookie lost its disks, which is known to the auditor alone; it is closed long
    after. Another broker is asked all the time.
    """

    async def work(premises: Premises) -> None:
        first = await premises.owner("first")
        ledger = await first.open()
        await first.append(ledger, *ENTRIES)
        number = ledger.ledgers()[-1].ledger
        await asyncio.sleep(1.0)
        first.machine.power_cut()
        owner, asked = await premises.owner("second"), await premises.owner("third")
        auditor = await owner.do(lambda: audited(owner))
        await asyncio.sleep(2.0)
        other = await asked.do(lambda: audited(asked, name="other"))
        assert auditor.auditor and not other.auditor
        lost = premises.region.bookies[0].name
        await emptied(premises, lost)
        await owner.do(lambda: auditor.new_lives.grant(lost, force=True))

        async def says() -> NewLife:
            found = await asked.do(lambda: other.new_lives.look(lost))
            assert found.state != "whole" or await holds(asked, lost, number), found
            return found

        for _ in range(20):
            found = await says()
            await asyncio.sleep(0.5)
        assert (found.state, found.ledgers_left) == ("filling", 1), "the open one is left"
        await owner.do(lambda: recover_ledger(owner.context, number))
        for _ in range(120):
            if (await says()).state == "whole":
                break
            await asyncio.sleep(0.25)
        else:
            raise AssertionError("it is never whole")
        for recovery, one in ((auditor, owner), (other, asked)):
            await one.do(recovery.stop)

    on_premises(work, bookies=2)


@pytest.mark.parametrize("again", ["", "open", "closed"])
def test_an_open_ledger_gets_its_copy_once_it_is_closed(again: str) -> None:
    """Its writer died; the auditor, or the one after it, waits until somebody takes the ledger over, or finds it closed
    already.
    """

    async def work(premises: Premises) -> None:
        first = await premises.owner("first")
        ledger = await first.open()
        await first.append(ledger, *ENTRIES)
        number = ledger.ledgers()[-1].ledger
        await asyncio.sleep(1.0)  # the bookies hear that all of it is confirmed: a recovery writes none of it again
        first.machine.power_cut()
        owner = await premises.owner("second")
        recovery = await owner.do(lambda: audited(owner))
        lost = premises.region.bookies[0].name
        await emptied(premises, lost)
        await owner.do(lambda: recovery.new_lives.grant(lost, force=True))
        await asyncio.sleep(20.0)
        if again:
            await owner.do(recovery.stop)
        if again == "closed":
            await owner.do(lambda: recover_ledger(owner.context, number))
        if again:
            recovery = await owner.do(lambda: audited(owner, name="next"))
            await asyncio.sleep(5.0)
        assert again == "closed" or not await holds(owner, lost, number)
        closed = await owner.do(lambda: recover_ledger(owner.context, number))
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 5)
        await asyncio.sleep(20.0)
        assert await holds(owner, lost, number)
        await owner.do(recovery.stop)

    on_premises(work, bookies=2)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_writer_without_a_spare_ends_the_ledger_of_which_a_bookie_has_forgotten(goes_on: bool) -> None:
    """Else nobody could say what the bookie lacks before the ledger is full, which may be never."""

    async def work(premises: Premises) -> None:
        owner = await premises.owner("first")
        ledger = await owner.open()
        await owner.append(ledger, *ENTRIES)
        recovery = await owner.do(lambda: audited(owner))
        lost = premises.region.bookies[0].name
        await emptied(premises, lost)
        await owner.do(lambda: recovery.new_lives.grant(lost, force=True))
        if goes_on:
            await owner.append(ledger, "g", "h")
        assert not (await whole(owner, recovery, lost, 60)).ledgers_left
        await owner.append(ledger, "i")
        first, *others = [info.ledger for info in ledger.ledgers()]
        assert others and await holds(owner, lost, first)
        assert await owner.read(ledger) == [*ENTRIES, *("gh" if goes_on else ""), "i"]
        await owner.do(recovery.stop)

    on_premises(work, bookies=2)


def test_a_ledger_without_a_writer_is_closed_though_there_is_no_spare() -> None:
    async def work(premises: Premises) -> None:
        first = await premises.owner("first")
        ledger = await first.open()
        await first.append(ledger, *ENTRIES)
        number = ledger.ledgers()[-1].ledger
        await asyncio.sleep(1.0)
        first.machine.power_cut()
        owner = await premises.owner("second")
        recovery = await owner.do(lambda: audited(owner))
        lost = premises.region.bookies[0].name
        await emptied(premises, lost)
        await owner.do(lambda: recovery.new_lives.grant(lost, force=True))
        await asyncio.sleep(Premises.settings.auto_recovery.abandoned_after_s - 60)
        assert not recovery.abandoned.closed
        await whole(owner, recovery, lost, 200)
        assert recovery.abandoned.closed == 1 and await holds(owner, lost, number)
        await owner.do(recovery.stop)

    on_premises(work, bookies=2)


def test_a_ledger_of_which_nobody_has_a_copy_is_closed_empty_once_all_have_said_so() -> None:
    async def work(premises: Premises) -> None:
        first = await premises.owner("first")
        ledger = await first.open()
        await first.append(ledger, *ENTRIES)
        number = ledger.ledgers()[-1].ledger
        first.machine.power_cut()
        owner = await premises.owner("second")
        recovery = await owner.do(lambda: audited(owner))
        for node in premises.region.bookies:
            await emptied(premises, node.name)
            with pytest.raises(BookieUnavailable):
                await owner.do(lambda: recover_ledger(owner.context, number))
        for node in premises.region.bookies:
            await owner.do(lambda node=node: recovery.new_lives.grant(node.name, force=True))  # type: ignore[misc]
        await asyncio.sleep(3.0)
        assert (await owner.do(lambda: recover_ledger(owner.context, number))).last_entry == -1
        await owner.do(recovery.stop)

    on_premises(work, bookies=2)


def test_a_cookie_and_a_ledger_that_cannot_be_read_stop_nobody() -> None:
    async def work(premises: Premises) -> None:
        owner, ledgers = await stored(premises, TOPICS[:3])
        meta = owner.context.meta
        recovery = await owner.do(lambda: audited(owner))
        lost = premises.region.bookies[0].name
        await emptied(premises, lost)
        await owner.do(lambda: meta.put(keys.bookie_cookie("strange"), b"\xff"))
        await owner.do(lambda: recovery.new_lives.grant(lost))
        rows = await owner.do(lambda: meta.range(keys.BOOKIE_COOKIES, prefix_end(keys.BOOKIE_COOKIES)))
        (blob,) = [blob for key, blob, _ in rows if key == keys.bookie_cookie(lost)]
        assert BookieCookie.decode(blob).floor > ledgers[-1]
        await whole(owner, recovery, lost, 60)
        await owner.do(recovery.stop)

    on_premises(work, bookies=2)


@pytest.mark.parametrize("force", [False, True])
def test_it_is_not_known_what_a_ledger_has_elsewhere_whose_record_cannot_be_read(force: bool) -> None:
    """The bookie may have its only copy, so that the loss is an operator's to decide, and has a number."""

    async def work(premises: Premises) -> None:
        owner, ledgers = await stored(premises, TOPICS[:3])
        meta = owner.context.meta
        recovery = await owner.do(lambda: audited(owner))
        lost = premises.region.bookies[0].name
        key = keys.ledger(ledgers[1])
        found = await owner.do(lambda: meta.get(key))
        assert found is not None
        await owner.do(lambda: meta.put(key, b"\xc1" + found[0]))
        await owner.do(lambda: meta.put(keys.ledger(ledgers[2]), b"\xc1 of others"))
        await emptied(premises, lost)
        price = await owner.do(lambda: recovery.new_lives.look(lost))
        assert (price.ledgers_left, price.unread_ledgers, price.unread) == (1, 1, (ledgers[1],))
        if force:
            assert (await owner.do(lambda: recovery.new_lives.grant(lost, force=True))).state == "granted"
        else:
            with pytest.raises(NotAllowed, match=rf"the records of 1 ledgers cannot be read.* {ledgers[1]}\)"):
                await owner.do(lambda: recovery.new_lives.grant(lost))
            await owner.do(lambda: meta.put(key, found[0]))
            granted = await owner.do(lambda: recovery.new_lives.grant(lost))
            assert granted.state == "granted" and not granted.unread
        await owner.do(recovery.stop)

    on_premises(work, bookies=2)


@pytest.mark.parametrize("marks_max", [1000, 2])
def test_a_new_life_ends_where_nobody_has_a_copy(marks_max: int) -> None:
    """What is lost is told; it holds up neither the marks of other ledgers, nor those who wait for copies."""

    async def work(premises: Premises) -> None:
        owner, ledgers = await stored(premises, TOPICS)
        recovery = await owner.do(lambda: audited(owner, marks_max=marks_max))
        names = [node.name for node in premises.region.bookies]
        first = await owner.do(lambda: ledger_metadata(owner.context, ledgers[0]))
        kept = await owner.do(lambda: read_entries(owner.context, first, 0, 5, 1 << 20))
        for name in names:
            await emptied(premises, name)
        for name in names:
            await owner.do(lambda name=name: recovery.new_lives.grant(name, force=True))  # type: ignore[misc]
        for name in names:
            found = await whole(owner, recovery, name, 120)
            assert (found.ledgers_left, found.lost_ledgers, found.lost_topics) == (0, 7, tuple(TOPICS))
        assert recovery.repairs == 0
        throttle = Throttle(1 << 30)
        done = await owner.do(lambda: refill(owner.context, ledgers[0], Runs(kept), throttle, first_index=0))
        assert (done.fetched_entries, done.missing) == (6, ())
        await asyncio.sleep(20.0)
        for name in names:
            found = await owner.do(lambda name=name: recovery.new_lives.look(name))  # type: ignore[misc]
            assert (found.state, found.lost_ledgers, found.lost_topics) == ("whole", 6, tuple(TOPICS[1:]))
        await owner.do(recovery.stop)

    on_premises(work, bookies=2)
