"""Enrolment: at its start a bookie is the one that the metadata knows, of the same life, or in limbo."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from geo_tests.sim.disk import UNLIMITED_BYTES, Platter
from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import MetadataUnavailable, NotAllowed, VersionConflict
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.clock import SystemClock
from heliograph.wire.bookie_frames import BookieCode, Kind
from local_meta import keys
from local_meta.metadata_age import put_mark
from storage.bookie.directories.cookie import DirectoryPlace, DiskIdentity
from storage.bookie.maintenance.garbage_collector import CollectorSettings, GarbageCollector
from storage.bookie.serving.bookie import Bookie
from storage.bookie.serving.enrolment import Enrolment, doubt_of
from storage.ledger.bookies.bookie_cookie import BookieCookie
from tests.storage.bookie.boxes import Asker
from tests.storage.bookie.history import SMALL, NotingPeer, add, send
from tests.storage.bookie.maintenance.garbage import QUICK


class Store(EmbeddedStore):
    """The region's metadata. `away`: nobody reaches it. `deaf`: it takes what is put, and its answer is lost.
    `refuses`: the keys are not for a bookie.
    """

    away = deaf = refuses = False

    async def get(self, key: str) -> tuple[bytes, int] | None:
        if self.refuses:
            raise NotAllowed("a bookie may not read that")
        if self.away:
            raise MetadataUnavailable("away")
        return await super().get(key)

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        version = await super().put(key, value, expected=expected, lease=lease)
        if self.deaf:
            raise MetadataUnavailable("no answer")
        return version


class Premises:
    """One bookie's id, its metadata, and disks; each `Life` is a process on some disks."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.store = sim, Store(KvMachine())
        self.disks = self.empty()
        self.lives = 0

    def empty(self) -> list[Platter]:
        return [Platter(self.sim.loop, self.sim.rng(name)) for name in ("journal", "ledgers")]

    def copy(self) -> list[Platter]:
        """A copy of what is on the disks, as of a volume."""
        copies = self.empty()
        for old, new in zip(self.disks, copies, strict=True):
            disk = new.disk()
            for name in old.disk().names():
                file = disk.open(name, create=True)
                file.pwritev([old.content(name)], 0)
                file.datasync()
            disk.sync_directory()
        return copies

    async def start(self, disks: list[Platter] | None = None) -> Life:
        self.lives += 1
        life = Life(self, disks or self.disks)
        await life.enrolment.start()
        return life

    async def name(self, ledger: int) -> None:
        """Some ledger counts on the bookie."""
        await self.store.put(keys.ledger(ledger), LedgerMetadata(ledger, 2, 2, ((0, ("b0", "b1")),)).encode())

    async def known(self) -> BookieCookie:
        found = await self.store.get(keys.bookie_cookie("b0"))
        assert found is not None
        return BookieCookie.decode(found[0])

    async def grant(self, floor: int) -> None:
        known = await self.known()
        granted = BookieCookie(salt=known.salt, start=known.start, by=known.by, floor=floor, granted=True)
        await self.store.put(keys.bookie_cookie("b0"), granted.encode())


class Life(Asker):
    def __init__(self, premises: Premises, disks: list[Platter]) -> None:
        self.disks, self.premises = disks, premises
        journal, ledgers = (DirectoryPlace(platter.disk()) for platter in disks)
        rng = premises.sim.rng(f"life {premises.lives}")
        self.bookie = Bookie([journal], [ledgers], SMALL, bookie_id="b0", instance="here", rng=rng, clock=SystemClock())
        self.bookie.open()
        self.peer = NotingPeer()
        self.enrolment = Enrolment(self.bookie, premises.store, rng=rng)

    async def store(self, ledger: int) -> bool:
        send(self.bookie, self.peer, add(ledger, 0, 5))
        await asyncio.sleep(0.1)
        return self.peer.acks.get(ledger) == 4

    def collector(self) -> GarbageCollector:
        return GarbageCollector(self.bookie, self.premises.store, QUICK, rng=self.premises.sim.rng("collector"))

    async def end(self) -> None:
        """The machine loses power."""
        await self.enrolment.stop()
        for platter in self.disks:
            platter.power_cut()


def scenario(body: Callable[[Premises], Awaitable[None]]) -> None:
    with Simulation(3) as sim:

        async def main() -> None:
            await body(Premises(sim))

        sim.run(main(), limit_s=1000)


DISK = DiskIdentity(7, 4, fresh=False)


@pytest.mark.parametrize(
    ("disk", "known", "doubt"),
    [
        (DISK, BookieCookie(salt=7, start=4), ""),
        (DISK, BookieCookie(salt=7, start=3), ""),
        (DISK, None, ""),
        (DISK, BookieCookie(salt=7, start=5), "older than its last start"),
        (DISK, BookieCookie(salt=8, start=4), "another life"),
        (DiskIdentity(9, 0, fresh=True), None, "empty"),
        (DiskIdentity(9, 0, fresh=True), BookieCookie(salt=9), "empty"),
        (DiskIdentity(9, 0, fresh=True), BookieCookie(salt=7, start=4, granted=True), ""),
        (DISK, BookieCookie(salt=8, start=9, granted=True), ""),
    ],
)
def test_whose_directories_they_are(disk: DiskIdentity, known: BookieCookie | None, doubt: str) -> None:
    found = doubt_of(disk, known)
    assert bool(found) == bool(doubt) and doubt in found


def test_a_new_bookie_is_enrolled_by_itself_and_known_from_then_on() -> None:
    async def body(premises: Premises) -> None:
        for start in (1, 2, 3):
            life = await premises.start()
            assert not life.bookie.limbo and await life.store(start)
            known = await premises.known()
            assert (known.salt, known.start, known.floor) == (life.bookie.identity.salt, start, 0)
            await premises.name(start)
            await life.end()

    scenario(body)


def test_one_that_is_refused_waits_in_limbo_and_is_asked_for_again() -> None:
    async def body(premises: Premises) -> None:
        premises.store.refuses = True
        life = await premises.start()
        await asyncio.sleep(5)
        assert life.bookie.limbo == "a bookie may not read that"
        premises.store.refuses = False
        await asyncio.sleep(2)
        assert not life.bookie.limbo and await life.store(1)
        premises.store.refuses = True
        await asyncio.sleep(60)
        assert not life.bookie.limbo, "it was admitted already"
        await life.end()

    scenario(body)


@pytest.mark.parametrize("how", ["empty", "older", "another life", "never enrolled"])
def test_one_that_a_ledger_names_and_that_comes_without_its_directories_is_in_limbo(how: str) -> None:
    async def body(premises: Premises) -> None:
        life = await premises.start()
        await life.store(5)
        await premises.name(5)
        disks = premises.copy() if how == "older" else premises.empty()
        await life.end()
        if how == "older":
            life = await premises.start()
            await life.end()
        if how == "never enrolled":
            await premises.store.delete(keys.bookie_cookie("b0"))
        if how == "another life":
            other = Premises(premises.sim)
            other.lives = 100
            await (await other.start(disks)).end()
        before = [sorted(platter.disk().names()) for platter in disks]
        known = await premises.store.get(keys.bookie_cookie("b0"))
        for _ in range(2):
            life = await premises.start(disks)
            await asyncio.sleep(5.0)
            assert life.bookie.in_doubt and not life.bookie.writable and "ledgers name it" in life.bookie.limbo
            assert "heliograph bookies new-life b0" in life.bookie.limbo
            assert not await life.store(6)
            for ledger in (5, 77):
                code, *_ = await life.ask(Kind.READ, ledger, first=9, last=9)
                assert code == BookieCode.UNKNOWN
            assert (await life.ask(Kind.FENCE, 5))[0] == BookieCode.UNKNOWN
            await life.end()
            assert [sorted(platter.disk().names()) for platter in disks] == before, "nothing is written there"
            assert await premises.store.get(keys.bookie_cookie("b0")) == known
        if how != "never enrolled":  # the disk is mounted again
            life = await premises.start()
            assert not life.bookie.limbo
            assert (await life.ask(Kind.READ, 5, first=0, last=4))[0] == BookieCode.OK

    scenario(body)


@pytest.mark.parametrize("older", [(0, 1), (0,), (1,)], ids=["all", "the journal", "the ledgers"])
def test_a_copy_that_was_made_while_it_ran_is_an_older_one(older: tuple[int, ...]) -> None:
    """It knows of the last start, and not of what was acknowledged since the copy."""

    async def body(premises: Premises) -> None:
        life = await premises.start()
        collector = life.collector()
        await collector.look()
        await premises.store.next_ids(keys.LEDGER_IDS, at_least=6)
        await premises.name(5)
        copy = premises.copy()
        assert await life.store(5)
        for _ in range(2):
            await collector.look()
        await life.end()
        life = await premises.start([copy[at] if at in older else premises.disks[at] for at in range(2)])
        assert life.bookie.in_doubt and "a copy that was made while it ran" in life.bookie.limbo
        if 0 in older:
            assert (await life.ask(Kind.READ, 5, first=0, last=4))[0] == BookieCode.UNKNOWN
        await life.end()
        life = await premises.start()
        assert not life.bookie.limbo
        assert (await life.ask(Kind.READ, 5, first=0, last=4))[0] == BookieCode.OK

    scenario(body)


@pytest.mark.parametrize("away", [False, True], ids=["the metadata is there", "the metadata is away at first"])
def test_a_journal_from_before_a_start_is_an_older_one_however_soon_that_ended(away: bool) -> None:
    """The number of the start lies in the ledger directories alone."""

    async def body(premises: Premises) -> None:
        life = await premises.start()
        await premises.name(5)
        await life.collector().look()
        await life.end()
        copy = premises.copy()
        premises.store.away = away
        life = await premises.start()
        collector = GarbageCollector(
            life.bookie, premises.store, CollectorSettings(), rng=premises.sim.rng("one that looks each minute")
        )
        collector.start()
        await asyncio.sleep(2.0)
        premises.store.away = False
        await asyncio.sleep(12.0)
        assert await life.store(5)
        await collector.stop()
        await life.end()
        life = await premises.start([copy[0], premises.disks[1]])
        assert life.bookie.in_doubt and "older than what it last had" in life.bookie.limbo
        await life.end()
        assert not (await premises.start()).bookie.limbo

    scenario(body)


def test_a_mark_that_it_did_not_come_to_keep_is_no_older_copy() -> None:
    async def body(premises: Premises) -> None:
        life = await premises.start()
        await premises.name(5)
        await life.collector().look()
        for _ in range(3):
            known = life.bookie.known_metadata
            await put_mark(premises.store, keys.seen_by_bookie("b0"), known.seen)  # and it crashes
            await life.end()
            life = await premises.start()
            assert not life.bookie.limbo and life.bookie.known_metadata == known
        await life.collector().look()
        await premises.store.put(keys.INSTANCE, b"restored")
        await premises.store.put(keys.seen_by_bookie("b0"), b"999999")
        await life.end()
        assert not (await premises.start()).bookie.limbo, "another metadata's marks are not its own"

    scenario(body)


def test_directories_that_could_not_keep_a_mark_are_no_older_copies() -> None:
    async def body(premises: Premises) -> None:
        life = await premises.start()
        await premises.store.next_ids(keys.LEDGER_IDS, at_least=6)
        await premises.name(5)
        assert await life.store(5)
        journal = premises.disks[0]
        await life.collector().look()
        for _ in range(2):  # the journal's disk is full, over starts
            journal.capacity_bytes = journal.used_bytes()
            collector = life.collector()
            for _ in range(3):
                await collector.look()
            await life.end()
            life = await premises.start()
            assert not life.bookie.limbo
        await life.collector().look()
        await life.end()
        journal.capacity_bytes = 1 << 40
        life = await premises.start()
        assert not life.bookie.limbo
        collector = life.collector()
        await collector.look()
        journal.fail_syncs = True
        assert not await life.store(5)
        assert life.bookie.failure
        for _ in range(3):
            await collector.look()
        await life.end()
        journal.fail_syncs = False
        assert not (await premises.start()).bookie.limbo, "nothing was acknowledged since"

    scenario(body)


def test_a_new_life_on_an_older_copy_is_granted_once() -> None:
    async def body(premises: Premises) -> None:
        life = await premises.start()
        await premises.name(5)
        await life.collector().look()
        copy = premises.copy()
        for _ in range(3):
            await life.collector().look()
        await life.end()
        life = await premises.start(copy)
        assert life.bookie.limbo
        await life.end()
        await premises.grant(100)
        for _ in range(2):  # it is started again before it has looked
            life = await premises.start(copy)
            assert not life.bookie.limbo
            await life.end()

    scenario(body)


def test_one_that_no_ledger_names_comes_back_empty_as_it_likes() -> None:
    async def body(premises: Premises) -> None:
        await (await premises.start()).end()
        life = await premises.start(premises.empty())
        assert not life.bookie.limbo and await life.store(1)
        assert (await premises.known()).salt == life.bookie.identity.salt

    scenario(body)


def test_nothing_is_acknowledged_or_denied_before_the_metadata_was_asked() -> None:
    async def body(premises: Premises) -> None:
        life = await premises.start()
        await life.store(5)
        await premises.name(5)
        await life.end()
        premises.store.away = True
        life = await premises.start()
        await asyncio.sleep(10.0)
        assert life.bookie.limbo and not await life.store(6)
        assert (await life.ask(Kind.READ, 6, first=0, last=0))[0] == BookieCode.UNKNOWN
        assert (await life.ask(Kind.READ, 5, first=0, last=4))[0] == BookieCode.OK, "what it has, it serves"
        premises.store.away = False
        await asyncio.sleep(2.0)
        assert not life.bookie.limbo
        life.peer.refused.clear()
        assert await life.store(6)

    scenario(body)


@pytest.mark.parametrize("heard", [False, True])
def test_a_crash_between_disks_and_metadata_is_no_other_life(heard: bool) -> None:
    """heard: the metadata has taken the start, and the bookie did not learn it before it crashed, or asked again."""

    async def body(premises: Premises) -> None:
        await (await premises.start()).end()
        await premises.name(5)
        for _ in range(3):
            premises.store.deaf = True
            life = await premises.start()
            assert life.bookie.limbo
            if heard:
                premises.store.deaf = False
                await asyncio.sleep(2.0)
                assert not life.bookie.limbo
            await life.end()
        premises.store.deaf = False
        assert not (await premises.start()).bookie.limbo

    scenario(body)


@pytest.mark.parametrize("away", [False, True], ids=["at its start", "while it waits for the metadata"])
def test_one_whose_disk_is_full_is_admitted_once_there_is_room(away: bool) -> None:
    async def body(premises: Premises) -> None:
        await (await premises.start()).end()
        premises.store.away = away
        _, ledgers = premises.disks
        ledgers.capacity_bytes = 1
        life = await premises.start()
        premises.store.away = False
        await asyncio.sleep(5)
        assert "make room" in life.bookie.limbo and not await life.store(1)
        ledgers.capacity_bytes = UNLIMITED_BYTES
        await asyncio.sleep(2)
        assert not life.bookie.limbo and await life.store(2)
        assert (await premises.known()).start == 2, "no number is used up by a disk that was full"
        await life.end()
        assert not (await premises.start()).bookie.limbo

    scenario(body)


def test_of_two_processes_on_copies_of_the_same_disks_one_stays() -> None:
    async def body(premises: Premises) -> None:
        await (await premises.start()).end()
        await premises.name(5)
        copies = premises.copy()
        first = await premises.start()
        second = await premises.start(copies)
        assert not first.bookie.limbo and second.bookie.in_doubt

    scenario(body)


def test_who_is_overtaken_while_it_runs_takes_nothing_more() -> None:
    async def body(premises: Premises) -> None:
        first = await premises.start()
        assert await first.store(5)  # and no ledger names it: another process on empty directories is enrolled
        second = await premises.start(premises.empty())
        assert not second.bookie.limbo
        await asyncio.sleep(40.0)
        assert first.bookie.in_doubt or second.bookie.in_doubt
        assert not (first.bookie.in_doubt and second.bookie.in_doubt)

    scenario(body)


def test_metadata_that_goes_back_learns_the_start_again() -> None:
    async def body(premises: Premises) -> None:
        await (await premises.start()).end()
        old = await premises.store.get(keys.bookie_cookie("b0"))
        assert old is not None
        life = await premises.start()
        known = await premises.known()
        await premises.store.put(keys.bookie_cookie("b0"), old[0])
        await asyncio.sleep(40.0)
        assert not life.bookie.limbo and await premises.known() == known
        await premises.store.delete(keys.bookie_cookie("b0"))
        await asyncio.sleep(40.0)
        assert not life.bookie.limbo and await premises.known() == known

    scenario(body)


@pytest.mark.parametrize("disks", ["empty", "older"])
def test_a_new_life_denies_nothing_that_is_older_than_it(disks: str) -> None:
    async def body(premises: Premises) -> None:
        life = await premises.start()
        await life.store(5)
        await premises.name(5)
        given = premises.copy() if disks == "older" else premises.empty()
        await life.end()
        await (await premises.start()).end()
        life = await premises.start(given)
        await premises.grant(floor=20)
        await asyncio.sleep(2.0)
        for _ in range(2):
            assert not life.bookie.limbo and life.bookie.writable
            known = await premises.known()
            assert (known.salt, known.floor, known.granted) == (life.bookie.identity.salt, 20, False)
            assert known.start > 2
            has = disks == "older"
            expected = BookieCode.OK if has else BookieCode.EARLIER_LIFE
            assert (await life.ask(Kind.READ, 5, first=0, last=4))[0] == expected
            for kind, ledger in ((Kind.READ, 5), (Kind.READ, 19)):
                assert (await life.ask(kind, ledger, first=9, last=9))[0] == BookieCode.EARLIER_LIFE
            assert (await life.ask(Kind.READ_LAC, 19))[0] == BookieCode.EARLIER_LIFE
            assert (await life.ask(Kind.FENCE, 18))[0] == BookieCode.OK
            assert (await life.ask(Kind.READ, 18, first=0, last=0))[0] == BookieCode.EARLIER_LIFE
            assert (await life.ask(Kind.READ, 20, first=0, last=0))[0] == BookieCode.NO_SUCH_LEDGER
            assert not await life.store(19), "the writer of an older ledger goes elsewhere"
            assert await life.store(life.requests)
            await life.end()
            life = await premises.start(given)

    scenario(body)


def test_a_conflict_is_asked_about_again() -> None:
    async def body(premises: Premises) -> None:
        class Busy(Store):
            conflicts = 2

            async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
                if self.conflicts:
                    self.conflicts -= 1
                    raise VersionConflict(key, 0, 1)
                return await super().put(key, value, expected=expected, lease=lease)

        premises.store = Busy(KvMachine())
        life = await premises.start()
        assert life.bookie.limbo
        await asyncio.sleep(5.0)
        assert not life.bookie.limbo

    scenario(body)


def test_a_record_that_cannot_be_read_names_whoever_stands_in_it() -> None:
    """Of a later version, say: a bookie that stands in it and comes empty is not enrolled; any other one is."""

    async def body(premises: Premises) -> None:
        await premises.name(5)
        found = await premises.store.get(keys.ledger(5))
        assert found is not None
        await premises.store.put(keys.ledger(5), b"\xff" + found[0])
        life = await premises.start()
        assert life.bookie.in_doubt and "ledgers name it" in life.bookie.limbo
        await life.end()
        await premises.store.put(keys.ledger(5), b"\xff" + found[0].replace(b"\xa2b0", b"\xa2b9"))
        assert not (await premises.start()).bookie.limbo

    scenario(body)
