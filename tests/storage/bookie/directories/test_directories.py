"""A bookie of several directories: each ledger in its own for ever, each failure kept to where it happened, nothing
started on half of them.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from geo_tests.sim.disk import Platter
from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import ConfigError
from heliograph.model.ledger_homes import home_of
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from heliograph.wire.bookie_frames import BookieCode, Kind
from storage.bookie.serving.bookie import Bookie, DirectoryPlace
from tests.storage.bookie.boxes import Wide
from tests.storage.bookie.history import SMALL, add, content, entries_of, send

LEDGERS = range(1, 41)


class Rack(Wide):
    """One bookie with the same ledgers in each test."""

    async def holds(self, ledger: int, last: int) -> bool:
        code, _, _, body = await self.ask(Kind.READ, ledger, first=0, last=last)
        return code == BookieCode.OK and entries_of(body, ledger) == {
            entry: content(ledger, entry) for entry in range(last + 1)
        }

    async def fill(self, first: int = 0, count: int = 3) -> None:
        """The same entries for each ledger, in one read of the socket."""
        send(self.bookie, self.peer, *[add(ledger, first, count) for ledger in LEDGERS])
        await asyncio.sleep(0.2)

    def homes(self, directory: int) -> list[int]:
        return [ledger for ledger in LEDGERS if home_of(ledger, len(self.ledgers)) == directory]


def scenario(body: Callable[[Rack], Awaitable[None]], journals: int, ledgers: int) -> None:
    with Simulation("rack") as sim:

        async def main() -> None:
            await body(Rack(sim, journals, ledgers))

        sim.run(main())


def test_every_ledger_has_one_directory_and_they_share_evenly() -> None:
    for directories in (2, 3, 7):
        for step in (1, 2, 3, 64):  # ids may follow a pattern
            counts = [0] * directories
            for ledger in range(0, 4000 * step, step):
                counts[home_of(ledger, directories)] += 1
            assert min(counts) > 0.85 * 4000 / directories, (directories, step, counts)
    assert [home_of(ledger, 4) for ledger in (0, 1, 2, 3, 1 << 62)] == [0, 2, 0, 3, 1], "on disks for ever"


@pytest.mark.parametrize(("journals", "ledgers"), [(1, 3), (2, 2), (2, 5)])
def test_a_read_of_the_socket_goes_to_all_its_directories_and_each_ledger_stays_in_its_own(
    journals: int, ledgers: int
) -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        assert rack.peer.acks == dict.fromkeys(LEDGERS, 2)
        rack.restart()
        await rack.flushed()
        await rack.fill(3, 2)
        for turn in range(2):
            for at, one in enumerate(rack.bookie.dirs):
                assert sorted(one.table.last) == rack.homes(at)
                assert {ledger for number in one.table.logs for ledger in one.table.ledgers_in(number)} == set(
                    rack.homes(at)
                ), "in its logs too"
            for ledger in LEDGERS:
                assert await rack.holds(ledger, 4)
            assert rack.bookie.ledgers() == list(LEDGERS)
            if not turn:
                await rack.flushed()
                rack.restart()

    scenario(body, journals, ledgers)


def test_a_directory_whose_flush_was_ahead_of_the_journal_takes_what_comes_after() -> None:
    """Its checkpoint names records that the journal lost with the power: new ones get the same numbers, and must be
    replayed.
    """

    async def body(rack: Rack) -> None:
        ahead, late = rack.homes(0), rack.homes(1)
        send(rack.bookie, rack.peer, add(late[0], 0, 1))
        await asyncio.sleep(0.2)
        rack.journals[0].sync_s = (100.0, 100.0)
        for turn in range(3):
            send(rack.bookie, rack.peer, add(ahead[0], turn, 1))
        rack.bookie.dirs[0].flush()
        while rack.bookie.dirs[0].flushing is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert rack.bookie.dirs[0].logs.point.flushed_through > 1
        rack.journals[0].sync_s = (0.0, 0.0)
        for platter in rack.ledgers:
            platter.power_cut()
        rack.journals[0].power_cut()
        disk = rack.journals[0].disk()
        for name in disk.names():
            if name.startswith("segment-"):  # what was not synced is lost, whole
                file = disk.open(name)
                file.pwritev([bytes(SMALL.segment_bytes - 4096)], 4096)
                file.datasync()
        rack.start()
        for platter in rack.ledgers:
            platter.capacity_bytes = platter.used_bytes()  # no flush before the next cut
        send(rack.bookie, rack.peer, add(ahead[1], 0, 1))
        await asyncio.sleep(0.2)
        assert rack.peer.acks == {ahead[1]: 0}
        for platter in rack.ledgers:
            platter.capacity_bytes = 1 << 40
        rack.restart()
        assert await rack.holds(ahead[1], 0), "acknowledged"
        assert await rack.holds(late[0], 0)

    scenario(body, 1, 2)


def test_a_quiet_directory_does_not_hold_the_journal() -> None:
    async def body(rack: Rack) -> None:
        busy = rack.homes(0)[0]
        for turn in range(400):
            send(rack.bookie, rack.peer, add(busy, turn * 8, 8))
            await asyncio.sleep(0.01)
        assert sum(name.startswith("segment-") for name in rack.journals[0].names()) < 12

    scenario(body, 1, 3)


@pytest.mark.parametrize("journals", [1, 2])
def test_a_failed_ledger_directory_is_dropped_for_good_and_the_others_go_on(journals: int) -> None:
    async def body(rack: Rack) -> None:
        states: list[bool] = []
        rack.bookie.on_state = lambda: states.append(rack.bookie.writable)
        await rack.fill()
        await rack.flushed()
        rack.ledgers[1].fail_syncs = True
        await rack.fill(3, 1)
        rack.bookie.flush()
        await asyncio.sleep(0.5)
        rack.ledgers[1].fail_syncs = False
        assert "the ledger directory failed" in rack.bookie.dropped[0] and len(rack.bookie.dropped) == 1
        assert rack.bookie.writable and states, "new ledgers may still come"
        lost, kept = rack.homes(1), rack.homes(0) + rack.homes(2)
        send(rack.bookie, rack.peer, *[add(ledger, 4, 1) for ledger in LEDGERS])
        await asyncio.sleep(0.2)
        assert rack.peer.losses == dict.fromkeys(lost, BookieCode.DISK_FAILED)
        assert [ledger for ledger in LEDGERS if rack.peer.acks[ledger] == 4] == sorted(kept)
        assert await rack.holds(lost[0], 3), "what is in memory, or can be read, is"
        for turn in range(3):
            fresh = next(ledger for ledger in range(1000, 2000) if home_of(ledger, 3) == 1)
            assert (await rack.ask(Kind.READ, lost[0], first=9, last=9))[0] == BookieCode.UNKNOWN
            assert (await rack.ask(Kind.READ, fresh, first=0, last=0))[0] == BookieCode.UNKNOWN, (
                "it may have been there"
            )
            assert (await rack.ask(Kind.READ_LAC, fresh))[0] == BookieCode.UNKNOWN
            assert (await rack.ask(Kind.FENCE, lost[0]))[0] == BookieCode.DISK_FAILED
            assert (await rack.ask(Kind.READ, kept[0], first=9, last=9))[0] == BookieCode.NO_SUCH_ENTRY
            assert (await rack.ask(Kind.FENCE, kept[turn]))[0] == BookieCode.OK
            assert rack.bookie.ledgers() == sorted(kept), "only these can be collected"
            for ledger in kept:
                assert await rack.holds(ledger, 4)
            if turn == 1:
                await rack.flushed()
            rack.restart()  # the disk would work again, and is not asked
            assert len(rack.bookie.dropped) == 1 and rack.bookie.writable
            assert (await rack.ask(Kind.READ, lost[0], first=0, last=0))[0] == BookieCode.UNKNOWN
        segments = [sum(name.startswith("segment-") for name in platter.names()) for platter in rack.journals]
        assert max(segments) < 12, "a dropped directory does not hold the journal"

    scenario(body, journals, 3)


def test_a_dropped_directory_does_not_hold_the_journal() -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        rack.ledgers[1].fail_syncs = True
        rack.bookie.flush()
        await asyncio.sleep(0.5)
        busy = rack.homes(0)[0]
        for turn in range(400):
            send(rack.bookie, rack.peer, add(busy, 3 + turn * 8, 8))
            await asyncio.sleep(0.01)
        assert rack.peer.acks[busy] == 3 + 400 * 8 - 1
        assert sum(name.startswith("segment-") for name in rack.journals[0].names()) < 12

    scenario(body, 1, 2)


def test_a_failed_journal_takes_only_its_ledgers_away_and_what_was_in_memory_is_written_out() -> None:
    async def body(rack: Rack) -> None:
        rack.settings = replace(SMALL, write_cache_bytes=1 << 20)
        rack.start()
        await rack.fill()
        assert not any(one.table.logs for one in rack.bookie.dirs)
        rack.journals[1].fail_syncs = True
        send(rack.bookie, rack.peer, *[add(ledger, 3, 1) for ledger in LEDGERS])
        await asyncio.sleep(0.5)
        rack.journals[1].fail_syncs = False
        lost, kept = rack.homes(1) + rack.homes(3), rack.homes(0) + rack.homes(2)
        assert rack.peer.losses == dict.fromkeys(lost, BookieCode.DISK_FAILED)
        assert [ledger for ledger in LEDGERS if rack.peer.acks[ledger] == 3] == sorted(kept)
        assert rack.bookie.writable and len(rack.bookie.dropped) == 1
        rack.journals[1] = Platter(rack.journals[1].loop, random.Random(1))  # nothing of it is left
        for _ in range(2):
            rack.restart()
            for ledger in LEDGERS:
                assert await rack.holds(ledger, 2), "acknowledged"
            assert (await rack.ask(Kind.READ, lost[0], first=9, last=9))[0] == BookieCode.UNKNOWN
            send(rack.bookie, rack.peer, add(lost[0], 9, 1), add(kept[0], 4, 1))
            await asyncio.sleep(0.2)
            assert rack.peer.losses == {lost[0]: BookieCode.DISK_FAILED} and rack.peer.acks == {kept[0]: 4}

    scenario(body, 2, 4)


def test_without_a_journal_a_bookie_is_read_only_and_without_a_ledger_directory_it_is_nothing() -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        rack.journals[0].fail_syncs = True
        send(rack.bookie, rack.peer, add(1, 3, 1))
        await asyncio.sleep(0.5)
        assert rack.bookie.failure and not rack.bookie.writable and not rack.bookie.lost
        for ledger in LEDGERS:
            assert await rack.holds(ledger, 2)
        assert (await rack.ask(Kind.READ, 1, first=9, last=9))[0] == BookieCode.UNKNOWN
        for one in rack.bookie.dirs:
            one.fail(OSError("gone"))
        assert rack.bookie.lost

    scenario(body, 1, 2)


def test_every_directory_dropped_is_no_start() -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        for at in (0, 1):
            rack.ledgers[at].fail_syncs = True
            rack.bookie.flush()
            await asyncio.sleep(0.3)
            rack.ledgers[at].fail_syncs = False
        rack.restart()  # the last one of its kind is not written down: there is nothing to protect from it
        assert len(rack.bookie.dropped) == 1

    scenario(body, 1, 2)


@pytest.mark.parametrize("where", ["journal", "ledgers"])
def test_a_full_directory_refuses_its_ledgers_only_and_says_so_for_new_ones(where: str) -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        platter = (rack.journals if where == "journal" else rack.ledgers)[0]
        platter.capacity_bytes = platter.used_bytes() + 100
        for turn in range(60):
            send(
                rack.bookie,
                rack.peer,
                *[add(ledger, 3 + turn * 8, 8) for ledger in (rack.homes(0)[0], rack.homes(1)[0])],
            )
            await asyncio.sleep(0.05)
        full, fine = rack.homes(0)[0], rack.homes(1)[0]
        assert rack.peer.losses == {full: BookieCode.READ_ONLY} and rack.peer.acks[fine] == 3 + 60 * 8 - 1
        assert not rack.bookie.writable and rack.bookie.read_only and not rack.bookie.dropped
        acked = rack.peer.acks[full]
        platter.capacity_bytes = 1 << 40
        rack.bookie.tick()
        await asyncio.sleep(0.5)
        assert rack.bookie.writable
        send(rack.bookie, rack.peer, add(full, acked + 1, 1, writer=2))
        await asyncio.sleep(0.2)
        assert rack.peer.acks[full] == acked + 1
        rack.restart()
        for entry in range(acked + 2):
            assert (await rack.ask(Kind.READ, full, first=entry, last=entry))[0] == BookieCode.OK

    scenario(body, 2, 2)


def test_between_the_watermarks_a_directory_stays_as_it_was() -> None:
    async def body(rack: Rack) -> None:
        rack.settings = replace(SMALL, free_bytes_min=50 << 10, free_bytes_again=100 << 10)
        rack.start()
        disk = rack.ledgers[0]
        seen = []
        for free in (60, 40, 60, 90, 110, 60, 49):
            disk.capacity_bytes = disk.used_bytes() + (free << 10)
            rack.bookie.tick()
            seen.append(rack.bookie.writable)
        assert seen == [True, False, False, False, True, True, False]

    scenario(body, 1, 1)


def test_a_full_directory_gives_back_what_is_not_wanted_any_more() -> None:
    """Deletions make room although nothing can be written but a checkpoint."""

    async def body(rack: Rack) -> None:
        for turn in range(6):
            await rack.fill(turn * 3)
            await rack.flushed()
        rack.settings = replace(SMALL, free_bytes_min=20 << 10, free_bytes_again=40 << 10)
        rack.restart()
        disk = rack.ledgers[0]
        disk.capacity_bytes = disk.used_bytes() + (4 << 10)
        rack.bookie.tick()
        assert not rack.bookie.writable
        for ledger in LEDGERS[:-1]:
            await rack.ask(Kind.DELETE, ledger)
        rack.bookie.tick()
        await asyncio.sleep(0.5)
        assert not rack.bookie.writable, "the last ledger is in every log"
        await rack.ask(Kind.DELETE, LEDGERS[-1])
        for _ in range(3):
            rack.bookie.tick()
            await asyncio.sleep(0.5)
        assert rack.bookie.writable and not [name for name in disk.names() if name.startswith("log-")]

    scenario(body, 1, 1)


def test_a_slow_directory_holds_up_and_a_full_one_does_not() -> None:
    async def body(rack: Rack) -> None:
        rack.ledgers[0].sync_s = (5.0, 5.0)
        slow = rack.homes(0)[0]
        sent = 0
        while not rack.bookie.full:
            send(rack.bookie, rack.peer, add(slow, sent, 8))
            sent += 8
            assert rack.bookie.cached_bytes < 4 * SMALL.write_cache_bytes
            await asyncio.sleep(0.002)
        rack.bookie.dirs[0].full = "full"
        assert not rack.bookie.full

    scenario(body, 1, 2)


@pytest.mark.parametrize("at", [0, 1])
def test_damage_in_one_directory_is_limbo_of_the_bookie(at: int) -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        await rack.flushed()
        await rack.flushed()
        disk = rack.ledgers[at].disk()
        disk.remove("checkpoint")
        disk.sync_directory()
        rack.restart()
        assert rack.bookie.limbo
        for ledger in rack.homes(1 - at):
            assert await rack.holds(ledger, 2), "what is there is read"
        assert (await rack.ask(Kind.READ, rack.homes(1 - at)[0], first=9, last=9))[0] == BookieCode.UNKNOWN

    scenario(body, 1, 2)


TURNS = 12


async def only_in_logs(rack: Rack) -> None:
    """So many entries, flushed in so many logs, that the journal's segments of the first ones hold others by now."""
    for turn in range(TURNS):
        await rack.fill(turn * 3)
        await rack.flushed()
    assert all(len(one.table.logs) >= TURNS for one in rack.bookie.dirs)


@pytest.mark.parametrize("at", [0, 1])
def test_in_limbo_the_other_directories_are_loaded_from_their_logs(at: int) -> None:
    """Also one behind the damaged one: what only its logs hold is read."""

    async def body(rack: Rack) -> None:
        await only_in_logs(rack)
        disk = rack.ledgers[at].disk()
        disk.remove("checkpoint")
        disk.sync_directory()
        rack.restart()
        assert rack.bookie.limbo
        for ledger in rack.homes(1 - at):
            assert await rack.holds(ledger, TURNS * 3 - 1)

    scenario(body, 1, 2)


def test_in_limbo_the_logs_behind_a_lost_one_are_loaded() -> None:
    async def body(rack: Rack) -> None:
        await only_in_logs(rack)
        disk = rack.ledgers[0].disk()
        disk.remove(min(name for name in disk.names() if name.startswith("log-")))
        disk.sync_directory()
        rack.restart()
        assert rack.bookie.limbo
        for ledger in rack.homes(0):
            assert (await rack.ask(Kind.READ, ledger, first=0, last=0))[0] == BookieCode.UNKNOWN
            code, _, _, body = await rack.ask(Kind.READ, ledger, first=6, last=8)
            assert code == BookieCode.OK and entries_of(body, ledger) == {
                entry: content(ledger, entry) for entry in (6, 7, 8)
            }

    scenario(body, 1, 2)


def test_deleted_ids_are_known_in_every_directory_and_stay_few_ranges() -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        for ledger in LEDGERS:
            assert (await rack.ask(Kind.DELETE, ledger))[0] == BookieCode.OK
        await rack.flushed()
        assert [one.logs.point.dead for one in rack.bookie.dirs] == [((1, 40),)] * 3
        for _ in range(2):
            rack.restart()
            rack.peer.losses.clear()
            await rack.fill(3, 1)
            assert rack.peer.losses == dict.fromkeys(LEDGERS, BookieCode.NO_SUCH_LEDGER)

    scenario(body, 1, 3)


def wide(journals: list[Platter], ledgers: list[Platter], bookie_id: str = "b0") -> Bookie:
    places = [
        [DirectoryPlace(platter.disk(), name=f"/disk{at}") for at, platter in enumerate(platters)]
        for platters in (journals, ledgers)
    ]
    bookie = Bookie(*places, SMALL, bookie_id=bookie_id, instance="test", rng=random.Random(1), clock=SystemClock())
    bookie.start()
    return bookie


def test_no_bookie_starts_on_the_wrong_or_half_of_its_directories() -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        await rack.flushed()
        journals, ledgers, loop = rack.journals, rack.ledgers, rack.journals[0].loop
        empty = Platter(loop, random.Random(5))
        before = [platter.names() for platter in (*journals, *ledgers)]
        cases: list[tuple[str, Callable[[], object]]] = [
            ("ledger directory 2 of 2, /disk1, has no cookie", lambda: wide(journals, [ledgers[0], empty])),
            ("journal directory 1 of 2, /disk0, has no cookie", lambda: wide([empty, journals[1]], ledgers)),
            ("in the place of ledger directory 2", lambda: wide(journals, ledgers[::-1])),
            ("in the place of journal directory 2", lambda: wide(journals[::-1], ledgers)),
            ("in the place of journal directory 1", lambda: wide(journals, [journals[0], ledgers[1]])),
            (
                "made with 2 journal and 2 ledger directories, and is given 2 and 3",
                lambda: wide(journals, [*ledgers, empty]),
            ),
            (
                "made with 2 journal and 2 ledger directories, and is given 1 and 1",
                lambda: wide(journals[:1], ledgers[:1]),
            ),
            ("belongs to bookie b0 of test", lambda: wide(journals, ledgers, "b1")),
            ("at least one of each", lambda: wide(journals, ledgers[:1])),
            ("at least one of each", lambda: wide([], ledgers)),
        ]
        for text, start in cases:
            with pytest.raises(ConfigError, match=text):
                start()
        assert empty.names() == [] and before == [platter.names() for platter in (*journals, *ledgers)]
        rack.restart()
        for ledger in LEDGERS:
            assert await rack.holds(ledger, 2)

    scenario(body, 2, 2)


def test_a_bookie_of_one_directory_each_keeps_its_format_and_grows_no_others() -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        assert rack.ledgers[0].content("cookie")[4] == 1, "as versions before this one wrote it"
        fresh = Platter(rack.journals[0].loop, random.Random(5))
        with pytest.raises(ConfigError, match="made with 1 journal and 1 ledger directories"):
            wide(rack.journals, [rack.ledgers[0], fresh])
        rack.restart()
        assert await rack.holds(1, 2)

    scenario(body, 1, 1)


def test_a_crash_while_the_first_cookies_are_written_is_gone_over_again() -> None:
    async def body(rack: Rack) -> None:
        platters = [Platter(rack.journals[0].loop, random.Random(at)) for at in range(4)]
        wide(platters[:2], platters[2:])
        for cookie in range(4):
            again = [Platter(rack.journals[0].loop, random.Random(at)) for at in range(4)]
            for platter, old in list(zip(again, platters, strict=True))[: cookie + 1]:
                file = platter.disk().open("cookie", create=True)
                file.pwritev([old.content("cookie")], 0)
            assert wide(again[:2], again[2:]).writable

    scenario(body, 1, 1)


def test_a_directory_that_cannot_be_read_at_the_start_is_dropped() -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        await rack.flushed()

        class Dead(Platter):
            def find(self, name: str) -> None:
                raise OSError(5, "Input/output error")

        dead = Dead(rack.journals[0].loop, random.Random(5))
        bookie = wide(rack.journals, [rack.ledgers[0], dead, rack.ledgers[2]])
        assert "cannot be read" in bookie.dropped[0] and bookie.writable
        rack.start()  # it reads well again
        assert len(rack.bookie.dropped) == 1
        assert (await rack.ask(Kind.READ, rack.homes(1)[0], first=0, last=0))[0] == BookieCode.UNKNOWN
        with pytest.raises(OSError, match="Input/output"):
            wide([Dead(dead.loop, random.Random(1))], rack.ledgers)

    scenario(body, 1, 3)


def test_a_drop_that_finds_no_space_to_be_written_down_is_written_down_later() -> None:
    async def body(rack: Rack) -> None:
        await rack.fill()
        await rack.flushed()
        rest = (rack.journals[0], rack.ledgers[0])
        for platter in rest:
            platter.capacity_bytes = platter.used_bytes()
        rack.bookie.dirs[1].fail(OSError(5, "Input/output error"))
        await asyncio.sleep(0.2)
        assert not any("dropped" in platter.names() for platter in rest)
        for platter in rest:
            platter.capacity_bytes = 1 << 40
        rack.bookie.tick()
        await asyncio.sleep(0.2)
        rack.restart()
        assert len(rack.bookie.dropped) == 1

    scenario(body, 1, 2)


def test_a_real_directory_that_is_none_any_more_is_dropped(tmp_path: Path) -> None:
    def made() -> Bookie:
        places = [
            [DirectoryPlace(SystemDisk(tmp_path / f"{kind}{at}"), name=f"{kind}{at}") for at in range(2)]
            for kind in ("journal", "ledgers")
        ]
        return Bookie(*places, SMALL, bookie_id="b0", instance="test", rng=random.Random(1), clock=SystemClock())

    async def main() -> None:
        for turn in range(3):
            bookie = made()
            bookie.start()
            assert len(bookie.dropped) == min(turn, 1) and bookie.writable
            bookie.close()
            if not turn:
                shutil.rmtree(tmp_path / "ledgers1")
                (tmp_path / "ledgers1").write_text("a dead mount")

    asyncio.run(main())


def test_the_journal_keeps_what_a_failed_directory_lacks_until_the_next_start_knows_of_the_failure() -> None:
    async def body(rack: Rack) -> None:
        rack.settings = replace(SMALL, write_cache_bytes=1 << 20, used_segments_max=100, spare_segments=20)
        rack.start()
        sick, well = rack.homes(1)[0], rack.homes(0)[0]
        for turn in range(40):
            send(rack.bookie, rack.peer, add(sick, turn, 1), add(well, turn, 1))
            await asyncio.sleep(0.02)
        assert rack.peer.acks == {sick: 39, well: 39}
        rack.bookie.dirs[0].flush()
        await asyncio.sleep(0.5)
        rest = (rack.journals[0], rack.ledgers[0])
        for platter in rest:
            platter.capacity_bytes = platter.used_bytes()
        rack.bookie.dirs[1].fail(OSError(5, "Input/output error"))
        await asyncio.sleep(0.2)
        for turn in range(40, 80):
            send(rack.bookie, rack.peer, add(well, turn, 1))
            await asyncio.sleep(0.02)
        for platter in rest:
            platter.capacity_bytes = 1 << 40
        acked = rack.peer.acks[well]
        rack.restart()
        assert not rack.bookie.limbo and not rack.bookie.dropped
        for ledger, last in ((sick, 39), (well, acked)):
            for entry in range(last + 1):
                assert (await rack.ask(Kind.READ, ledger, first=entry, last=entry))[0] == BookieCode.OK, "acknowledged"

    scenario(body, 1, 2)
