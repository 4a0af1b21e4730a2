"""The journal: laps of a recycled segment, ends of earlier lives, and what tells a torn end from a loss."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from geo_tests.sim.disk import Platter
from geo_tests.sim.simulation import Simulation
from heliograph.runtime.system_disk import SystemDisk
from storage.bookie.journal.journal import Fork, Journal, JournalReplay, replay

SEGMENT = 64 << 10
SALT = 77


def scenario(body: Callable[[Platter], Awaitable[None]]) -> None:
    with Simulation(3) as sim:

        async def main() -> None:
            await body(Platter(sim.loop, sim.rng("journal")))

        sim.run(main())


def read_back(platter: Platter, through: int = 0, forks: tuple[Fork, ...] = ()) -> JournalReplay:
    return replay(platter.disk(), salt=SALT, flushed_through=through, forks=forks)


def begin(platter: Platter, start: int, found: JournalReplay, segment_bytes: int = SEGMENT) -> Journal:
    disk = platter.disk()
    return Journal(disk, disk, segment_bytes=segment_bytes, spare=2, start=start, salt=SALT, replay=found)


def write(journal: Journal, *records: bytes) -> list[BaseException | None]:
    done: list[BaseException | None] = []
    for record in records:
        journal.append([record[:5], memoryview(record)[5:]], len(record), done.append)
    return done


def frames(found: JournalReplay) -> list[bytes]:
    return [bytes(record.frames) for record in found.records]


def test_records_come_back_in_order_over_segments() -> None:
    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        records = [b"%d " % index + b"x" * (index * 97 % 9000) for index in range(60)]
        done = write(journal, *records)
        await asyncio.sleep(1)
        assert done == [None] * 60 and journal.pending_bytes == 0
        platter.power_cut()
        found = read_back(platter)
        assert frames(found) == records and not found.corrupt and found.next_sequence == 61
        assert len(found.used) > 3
        assert frames(read_back(platter, through=40)) == records[40:]

    scenario(body)


def test_a_segment_that_was_made_and_is_gone_is_a_loss() -> None:
    """Also the newest one, of which no later record says that it was synced."""

    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        done = write(journal, *[b"%d " % index + b"x" * 8000 for index in range(20)])
        await asyncio.sleep(1)
        assert done == [None] * 20
        platter.power_cut()
        whole = read_back(platter)
        assert not whole.corrupt and len(whole.used) > 2
        platter.disk().remove(max(whole.used, key=whole.used.__getitem__))
        assert "has lost segment-" in read_back(platter).corrupt

    scenario(body)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_segment_that_the_list_may_name_stays_where_the_list_was_not_synced(failing: int) -> None:
    """The directory's sync, of the segment or of the list behind its rename, finds no descriptor, once."""

    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        disk, syncs = journal._zeroing, 0
        sync = disk.sync_directory

        def sync_directory() -> None:
            nonlocal syncs
            syncs += 1
            if syncs == failing:
                raise OSError(errno.EMFILE, "too many open files (simulated)")
            sync()

        disk.sync_directory = sync_directory  # type: ignore[method-assign]
        refused = write(journal, *[b"%d " % index + b"x" * 8000 for index in range(20)])
        await asyncio.sleep(1)
        assert syncs >= failing and any(refused) and journal.failure is None
        assert not read_back(platter).corrupt
        done = write(journal, *[b"%d " % index + b"x" * 8000 for index in range(20)])
        await asyncio.sleep(1)
        assert done == [None] * 20
        found = read_back(platter)
        assert not found.corrupt and len(found.records) == refused.count(None) + 20
        assert found.made == {name for name in disk.names() if name.startswith("segment-")}, "none is left over"

    scenario(body)


def test_a_segment_that_was_removed_is_not_missed() -> None:
    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        write(journal, *[b"%d " % index + b"x" * 8000 for index in range(60)])
        await asyncio.sleep(1)
        many = journal.segments
        journal.recycle(journal.next_sequence - 1)
        await asyncio.sleep(1)
        assert journal.segments < many
        platter.power_cut()
        found = read_back(platter, journal.next_sequence - 1)
        assert not found.corrupt and found.made <= {*found.used, *found.free}
        again = begin(platter, 2, found)
        write(again, b"on")
        await asyncio.sleep(1)
        platter.power_cut()
        assert not read_back(platter, journal.next_sequence - 1).corrupt

    scenario(body)


def test_segments_of_another_size_are_not_written_again() -> None:
    """On a full disk a record beyond the zeroed end of one would be a failed write, which is final."""

    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        write(journal, *[b"%d " % index + b"x" * 8000 for index in range(20)])
        await asyncio.sleep(1)
        platter.unplug()
        larger = begin(platter, 2, read_back(platter, 10), 2 * SEGMENT)
        assert larger.used_segments == 2 and larger.segments == 3
        platter.capacity_bytes = platter.used_bytes() + 4096
        larger.recycle(20)
        done = write(larger, *[b"%d " % index + b"x" * 8000 for index in range(40)])
        await asyncio.sleep(1)
        assert larger.failure is None and done[:30] == [None] * 30 and any(done), "no space for a third one"
        disk = platter.disk()
        sizes = {disk.open(name).size_bytes() for name in disk.names() if name.startswith("segment-")}
        assert sizes == {2 * SEGMENT} and not read_back(platter, 20).corrupt

    scenario(body)


def test_an_earlier_lap_of_a_segment_is_never_replayed() -> None:
    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        for lap in range(20):
            write(
                journal, *[b"lap %d record %d" % (lap, index) for index in range(15)]
            )  # 15 of the 16 pages of a segment
            await asyncio.sleep(0.5)
            journal.recycle(journal.next_sequence - 1)
        assert journal.segments <= 4
        through = journal.next_sequence - 1
        done = write(journal, b"the last")
        await asyncio.sleep(0.5)
        assert done == [None]
        platter.power_cut()
        assert frames(read_back(platter, through)) == [b"the last"]
        # Even a replay that knows no checkpoint takes each segment's own lap only: sequences in a row, never two laps.
        everything = [record.sequence for record in read_back(platter).records]
        assert everything == sorted(set(everything))

    scenario(body)


def test_segments_are_written_before_their_first_use_and_not_by_the_thread_that_syncs(tmp_path: Path) -> None:
    """So that a sync writes no metadata, and waits for no 32 MiB."""

    async def main() -> None:
        disk, zeroing = SystemDisk(tmp_path), SystemDisk(tmp_path)
        journal = Journal(
            disk,
            zeroing,
            segment_bytes=SEGMENT,
            spare=2,
            start=1,
            salt=SALT,
            replay=JournalReplay([], 1, "", {}, [], -1, set()),
        )
        disk.submit = None  # type: ignore[method-assign, assignment]
        done = write(journal, *[b"x" * 30_000] * 7)
        while len(done) < 7:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        disk.close()
        zeroing.close()
        assert done == [None] * 7 and journal.segments >= 4
        journal.close()

    asyncio.run(main())
    for path in tmp_path.glob("segment-*"):
        assert path.stat().st_blocks * 512 >= SEGMENT, f"{path.name} has holes"


def test_a_record_in_another_place_is_none() -> None:
    """A misdirected write, or an entry whose bytes are those of a record: it neither ends a gap nor claims that
    something was lost.
    """

    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        for record in (b"one", b"two", b"three"):
            write(journal, record)
            await asyncio.sleep(0.1)
        name = next(name for name in platter.names() if name.startswith("segment-"))
        content = platter.content(name)
        for place in (1, 3, 5):  # in pages; its own is 2
            file = platter.disk().open(name)
            file.pwritev([bytes(SEGMENT - 4096)], 4096)
            file.pwritev([content[2 * 4096 : 3 * 4096]], place * 4096)
            file.datasync()
            found = read_back(platter)
            assert frames(found) == [b"one"] and not found.corrupt and found.stray_through < 0, place
        file.pwritev([content[2 * 4096 : 3 * 4096]], 2 * 4096)
        assert read_back(platter).corrupt, "in its own place it says that record 2 was synced"

    scenario(body)


def test_the_lost_end_of_an_earlier_life_never_returns() -> None:
    """Record 2 of a life is torn, 3 and 4 survive in the next segment. Later lives write their own 2 and 3, the latter
    over that segment.
    """

    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        write(journal, b"one")
        await asyncio.sleep(0.5)
        journal.prepare()
        await asyncio.sleep(0.5)
        write(journal, b"two" * 20_000, b"three", b"four")
        await asyncio.sleep(0.5)
        segment = next(name for name in platter.names() if b"twotwo" in platter.content(name))
        other = next(name for name in platter.names() if b"four" in platter.content(name))
        assert segment != other
        platter.flip_bit(segment, platter.content(segment).index(b"two"))
        platter.unplug()
        found = read_back(platter)
        assert frames(found) == [b"one"] and not found.corrupt and found.next_sequence == 2 and found.stray_through == 4
        fork = (2, 2, 4)
        second = begin(platter, 2, found)
        write(second, b"two again")
        await asyncio.sleep(0.5)
        platter.power_cut()
        again = read_back(platter, forks=(fork,))
        assert frames(again) == [b"one", b"two again"] and not again.corrupt and again.next_sequence == 3
        assert other in again.free
        again.free = [other]
        third = begin(platter, 3, again)
        write(third, b"three again")
        await asyncio.sleep(0.5)
        platter.power_cut()
        assert b"three again" in platter.content(other) and b"four" in platter.content(other)
        for forks in ((fork,), ()):  # the number of the segment alone tells the laps apart
            last = read_back(platter, forks=forks)
            assert frames(last) == [b"one", b"two again", b"three again"] and not last.corrupt

    scenario(body)


def test_a_flush_that_is_faster_than_the_journal_takes_no_segment_from_under_it() -> None:
    async def body(platter: Platter) -> None:
        first = begin(platter, 1, read_back(platter))
        write(first, *[b"x" * 20_000] * 10)
        await asyncio.sleep(1)
        found = read_back(platter, through=10)
        assert len(found.free) == 4
        journal = Journal(
            platter.disk(), platter.disk(), segment_bytes=SEGMENT, spare=1, start=2, salt=SALT, replay=found
        )
        platter.sync_s = (2.0, 2.0)
        done = write(journal, *[b"y" * 20_000] * 10)
        assert journal.used_segments == 3
        await asyncio.sleep(0.0001)
        journal.recycle(journal.next_sequence - 1)  # the write cache is in an entry log already
        assert done == []
        await asyncio.sleep(20)
        assert done == [None] * 10 and journal.failure is None
        assert journal.used_segments == 0, "they go once they are synced"

    scenario(body)


def test_records_of_another_directory_are_none() -> None:
    async def body(platter: Platter) -> None:
        write(begin(platter, 1, read_back(platter)), b"one")
        await asyncio.sleep(0.5)
        assert replay(platter.disk(), salt=SALT + 1, flushed_through=0, forks=()).records == []

    scenario(body)


async def three_records(platter: Platter) -> None:
    """Written one after another; then the power goes."""
    journal = begin(platter, 1, read_back(platter))
    for record in (b"first", b"second", b"third"):
        write(journal, record)
        await asyncio.sleep(0.5)
    platter.power_cut()


def test_a_torn_end_is_an_end_and_a_torn_middle_is_a_loss() -> None:
    async def body(platter: Platter) -> None:
        await three_records(platter)
        segment = next(name for name in platter.names() if b"second" in platter.content(name))
        at = platter.content(segment).index(b"third")
        platter.flip_bit(segment, at)
        torn = read_back(platter)
        assert frames(torn) == [b"first", b"second"] and not torn.corrupt
        platter.flip_bit(segment, at)
        platter.flip_bit(segment, platter.content(segment).index(b"second"))
        lost = read_back(platter)
        assert "lost record 2" in lost.corrupt
        assert frames(lost) == [b"first", b"third"], "what is still there is served"

    scenario(body)


def test_a_first_record_that_rots_is_a_loss_too() -> None:
    async def body(platter: Platter) -> None:
        await three_records(platter)
        segment = next(name for name in platter.names() if b"first" in platter.content(name))
        platter.flip_bit(segment, platter.content(segment).index(b"first"))
        assert "lost record 1" in read_back(platter).corrupt

    scenario(body)


def test_after_a_failure_nothing_is_done() -> None:
    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        platter.fail_syncs = True
        failed = write(journal, b"one", b"two")
        await asyncio.sleep(0.5)
        platter.fail_syncs = False
        later = write(journal, b"three")
        await asyncio.sleep(0.5)
        assert all(isinstance(error, OSError) for error in failed + later)
        assert journal.synced_through == 0

    scenario(body)


def test_what_a_failed_sync_left_in_memory_is_written_before_later_records_count_on_it() -> None:
    """The kernel calls pages clean that it could not write: another sync of them succeeds, and writes nothing."""

    async def body(platter: Platter) -> None:
        journal = begin(platter, 1, read_back(platter))
        assert await synced(journal, b"zero")
        platter.fail_syncs = True
        assert not await synced(journal, b"one", b"two")
        platter.fail_syncs = False
        platter.unplug()
        found = read_back(platter)
        assert frames(found) == [b"zero", b"one", b"two"], "as far as anybody can tell they are there"
        assert await synced(begin(platter, 2, found), b"three")
        platter.power_cut()
        again = read_back(platter)
        assert not again.corrupt and frames(again) == [b"zero", b"one", b"two", b"three"]

    scenario(body)


async def synced(journal: Journal, *records: bytes) -> bool:
    done = write(journal, *records)
    await asyncio.sleep(0.5)
    return done == [None] * len(records)
