"""What a bookie answers: fences, cuts, absence, full and failed disks, limbo, and directories that are not its own."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from geo_tests.sim.disk import Platter
from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import ConfigError, PeerError
from heliograph.runtime.clock import SystemClock
from heliograph.wire.bookie_frames import BookieCode, Kind, encode
from storage.bookie.entry_log import entry_log
from storage.bookie.serving.bookie import Bookie, BookieSettings, DirectoryPlace
from tests.storage.bookie.boxes import Box, scenario
from tests.storage.bookie.history import SMALL, NotingPeer, add, block, content, make_bookie, send


def test_an_ack_is_cumulative_and_comes_after_the_sync() -> None:
    async def body(box: Box) -> None:
        syncs = box.journal.syncs
        send(box.bookie, box.peer, add(1, 0, 3), add(2, 0, 1), add(1, 3, 2))
        assert box.peer.acks == {}
        await asyncio.sleep(0.1)
        assert box.peer.acks == {1: 4, 2: 0}
        assert box.journal.syncs == syncs + 1

    scenario(body)


@pytest.mark.parametrize("flush", [False, True])
def test_entries_are_found_under_any_cut(flush: bool) -> None:
    async def body(box: Box) -> None:
        send(
            box.bookie,
            box.peer,
            add(1, 0, 10),
            add(1, 5, 1),
            add(1, 10, 2),
            add(1, 2, 20),
            add(1, 5, 1),
            add(1, 4, 2),
            add(1, 2, 3),
            add(1, 0, 1),
        )
        if flush:
            await box.flushed()
            box.restart()
        for entry in range(22):
            assert (await box.entries(1, entry, entry))[entry] == content(1, entry)
        found = await box.entries(1, 0, 21)
        assert found == {entry: content(1, entry) for entry in range(22)}
        assert (await box.ask(Kind.READ, 1, first=22, last=30))[0] == BookieCode.NO_SUCH_ENTRY
        assert (await box.ask(Kind.READ, 7, first=0, last=30))[0] == BookieCode.NO_SUCH_LEDGER

    scenario(body)


def test_what_is_flushed_is_found_by_footers_alone_and_held_in_memory_no_more() -> None:
    async def body(box: Box) -> None:
        home = box.bookie.dirs[0]
        for ledger in (1, 2, 5):
            send(box.bookie, box.peer, add(ledger, 0, 8), add(ledger, 8, 8))
        held, begun = home.cached_bytes, home.active
        await box.flushed()
        assert held and not home.cached_bytes and home.generations() == [home.active] and begun is not home.active
        send(box.bookie, box.peer, add(2, 16, 4))  # the tail: in memory, and in the journal
        for restarted in (False, True):
            home = box.bookie.dirs[0]
            assert home.entries == 3 * 16 + 4
            indexes = [entry_log.load(box.ledgers.disk(), number)[1].all for number in home.logs.point.logs]
            runs = [
                (ledger, first, count)
                for index in indexes
                for ledger in index.ledgers
                for _, _, first, count in index.runs(index.group_of(ledger))
            ]
            assert runs == [(ledger, first, 8) for ledger in (1, 2, 5) for first in (0, 8)]  # nothing an entry, no tail
            assert all(not one.tails or list(one.tails) == [2] for one in home.generations())
            for ledger, last in ((1, 15), (2, 19), (5, 15)):
                assert await box.entries(ledger, 0, last) == {
                    entry: content(ledger, entry) for entry in range(last + 1)
                }
            if not restarted:
                while box.peer.acks.get(2) != 19:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                box.restart()

    scenario(body)


def test_an_answer_stops_at_a_hole_and_at_its_bound_but_never_before_the_first_block() -> None:
    async def body(box: Box) -> None:
        send(box.bookie, box.peer, add(1, 0, 2), add(1, 2, 2), add(1, 6, 2))
        assert sorted(await box.entries(1, 0, 100)) == [0, 1, 2, 3]
        _, _, _, one = await box.ask(Kind.READ, 1, first=0, last=100, max_bytes=1)
        assert one == block(1, 0, 2)

    scenario(body)


@pytest.mark.parametrize("flush", [False, True])
def test_a_fence_holds_for_writers_and_lets_recovery_pass(flush: bool) -> None:
    async def body(box: Box) -> None:
        send(box.bookie, box.peer, add(1, 0, 3, lac=-1), add(1, 3, 1, lac=2))
        assert (await box.ask(Kind.FENCE, 1))[:3] == (BookieCode.OK, 3, 2)
        assert (await box.ask(Kind.FENCE, 9))[:3] == (BookieCode.OK, -1, -1)
        if flush:
            await box.flushed()
        box.restart()
        send(box.bookie, box.peer, add(1, 4, 1), add(9, 0, 1), add(2, 0, 1))
        assert box.peer.losses == {1: BookieCode.FENCED, 9: BookieCode.FENCED}
        send(box.bookie, box.peer, add(1, 4, 1, recovery=500), add(9, 0, 1, recovery=501))
        await asyncio.sleep(0.1)
        assert box.peer.answers[500][0] == box.peer.answers[501][0] == BookieCode.OK
        assert box.peer.acks == {2: 0}
        assert (await box.ask(Kind.READ_LAC, 1))[:3] == (BookieCode.OK, 0, 2)

    scenario(body)


def test_a_fence_is_answered_only_once_it_is_durable() -> None:
    async def body(box: Box) -> None:
        send(box.bookie, box.peer, encode(Kind.FENCE, ledger=1, request=1))
        assert box.peer.answers == {}
        await asyncio.sleep(0.1)
        assert box.peer.answers[1][0] == BookieCode.OK
        box.restart()
        send(box.bookie, box.peer, add(1, 0, 1))
        assert box.peer.losses == {1: BookieCode.FENCED}

    scenario(body)


def test_adds_behind_a_refused_one_are_dropped_until_the_writer_is_opened_again() -> None:
    async def body(box: Box) -> None:
        box.bookie.dirs[0].full = "full"
        send(box.bookie, box.peer, add(1, 0, 1))
        box.bookie.dirs[0].full = ""
        send(box.bookie, box.peer, add(1, 1, 1))
        await asyncio.sleep(0.1)
        assert (box.peer.losses, box.peer.acks) == ({1: BookieCode.READ_ONLY}, {})
        send(box.bookie, box.peer, add(1, 0, 1, writer=2))
        await asyncio.sleep(0.1)
        assert box.peer.acks == {1: 0}

    scenario(body)


def test_a_bad_frame_ends_its_connection_and_not_what_came_before_it() -> None:
    async def body(box: Box) -> None:
        good, bad = add(1, 0, 2), bytearray(add(1, 2, 1))
        bad[-1] ^= 1
        with pytest.raises(PeerError):
            send(box.bookie, box.peer, good, bytes(bad))
        box.bookie.commit()
        await asyncio.sleep(0.1)
        assert box.peer.acks == {1: 1}
        box.restart()
        assert sorted(await box.entries(1, 0, 9)) == [0, 1]
        for frame in (
            encode(Kind.ACKS),
            encode(Kind.READ, ledger=1),
            encode(Kind.ADD, ledger=1, number=1),
            add(1, 3, 1)[:6] + b"\0\2" + add(1, 3, 1)[8:],
        ):
            with pytest.raises(PeerError):
                send(box.bookie, NotingPeer(), frame)

    scenario(body)


def test_more_than_a_record_in_one_read_is_acknowledged_with_its_own_record() -> None:
    async def body(box: Box) -> None:
        frames = [add(1, first, 40) for first in range(0, 400, 40)]
        assert sum(map(len, frames)) > 4 * SMALL.frame_bytes_max
        seen: list[int] = []
        box.peer.on_acked = lambda _ledger, _writer, through: seen.append(through)
        send(box.bookie, box.peer, *frames)
        await asyncio.sleep(0.2)
        assert seen == sorted(seen) and len(seen) > 2 and seen[-1] == 399

    scenario(body)


def test_deleted_is_gone_and_its_logs_go_too() -> None:
    async def body(box: Box) -> None:
        send(box.bookie, box.peer, add(1, 0, 5), add(2, 0, 5))
        await box.flushed()
        send(box.bookie, box.peer, add(2, 5, 5))
        await box.flushed()
        logs = [name for name in box.ledgers.names() if name.startswith("log-")]
        assert len(logs) == 2
        assert (await box.ask(Kind.DELETE, 2))[0] == BookieCode.OK
        assert (await box.ask(Kind.READ, 2, first=0, last=0))[0] == BookieCode.NO_SUCH_LEDGER
        box.bookie.tick()
        await asyncio.sleep(0.5)
        assert [name for name in box.ledgers.names() if name.startswith("log-")] == logs[:1]
        box.restart()
        assert (await box.ask(Kind.READ, 2, first=0, last=0))[0] == BookieCode.NO_SUCH_LEDGER
        assert sorted(await box.entries(1, 0, 9)) == [0, 1, 2, 3, 4]
        assert (await box.ask(Kind.LEDGERS, 0, entry=-1))[3] == (1).to_bytes(8, "big")
        assert (await box.ask(Kind.DELETE, 1))[0] == BookieCode.OK
        box.bookie.tick()
        await asyncio.sleep(0.5)
        assert not [name for name in box.ledgers.names() if name.startswith("log-")]

    scenario(body)


@pytest.mark.parametrize("held", [True, False])
def test_a_deleted_ledger_takes_no_adds_for_ever(held: bool) -> None:
    """A paused writer wakes up long after its ledger was recovered, closed, and deleted: nobody may take what it adds
    for a new ledger.
    """

    async def body(box: Box) -> None:
        if held:
            send(box.bookie, box.peer, add(7, 0, 3))
            await asyncio.sleep(0.1)
        assert (await box.ask(Kind.DELETE, 7))[0] == BookieCode.OK
        for ledger in (8, 9):  # logs that hold others come and go
            send(box.bookie, box.peer, add(ledger, 0, 3))
            await asyncio.sleep(0.1)
            await box.flushed()
        for _ in range(2):
            box.peer.losses.clear()
            send(box.bookie, box.peer, add(7, 3, 2))
            await asyncio.sleep(0.1)
            assert box.peer.losses == {7: BookieCode.NO_SUCH_LEDGER}
            box.restart()

    scenario(body)


def test_a_failed_sync_is_final() -> None:
    async def body(box: Box) -> None:
        send(box.bookie, box.peer, add(1, 0, 1))
        await asyncio.sleep(0.1)
        box.journal.fail_syncs = True
        send(box.bookie, box.peer, add(1, 1, 1), encode(Kind.FENCE, ledger=3, request=50))
        await asyncio.sleep(0.1)
        box.journal.fail_syncs = False
        assert (box.peer.acks, box.peer.losses) == ({1: 0}, {1: BookieCode.DISK_FAILED})
        assert box.peer.answers[50][0] == BookieCode.DISK_FAILED
        assert not box.bookie.writable and "sync failed" in box.bookie.failure
        send(box.bookie, box.peer, add(1, 1, 1, writer=2), add(2, 0, 1))
        await asyncio.sleep(0.1)
        assert box.peer.losses == {1: BookieCode.DISK_FAILED, 2: BookieCode.DISK_FAILED} and box.peer.acks == {1: 0}
        assert sorted(await box.entries(1, 0, 0)) == [0]
        assert (await box.ask(Kind.READ, 1, first=9, last=9))[0] == BookieCode.UNKNOWN

    scenario(body)


def test_what_an_earlier_life_left_behind_its_end_stays_void() -> None:
    """The journal of the first life: record 1, record 2 torn, record 3 whole in the next segment. The second life
    writes a record 2 of its own.
    """

    async def body(box: Box) -> None:
        box.start(replace(SMALL, write_cache_bytes=1 << 20))
        send(box.bookie, box.peer, add(1, 0, 1))
        await asyncio.sleep(0.1)
        box.bookie.tick()
        await asyncio.sleep(0.1)
        send(box.bookie, box.peer, add(2, 0, 60), add(2, 60, 35))
        send(box.bookie, box.peer, add(3, 0, 60), add(3, 60, 35))
        await asyncio.sleep(0.1)
        torn = next(name for name in box.journal.names() if content(2, 20) in box.journal.content(name))
        assert content(3, 0) not in box.journal.content(torn)
        box.journal.flip_bit(torn, box.journal.content(torn).index(content(2, 20)))
        box.restart()
        assert not box.bookie.limbo and (await box.ask(Kind.READ, 3, first=0, last=0))[0] == BookieCode.NO_SUCH_LEDGER
        for ledger in (5, 6):
            send(box.bookie, box.peer, add(ledger, 0, 1))
            await asyncio.sleep(0.1)
        assert box.peer.acks == {5: 0, 6: 0}
        for _ in range(2):
            box.restart()
            assert not box.bookie.limbo, box.bookie.limbo
            for ledger in (1, 5, 6):
                assert sorted(await box.entries(ledger, 0, 9)) == [0], "acknowledged"
            assert (await box.ask(Kind.READ, 3, first=0, last=0))[0] == BookieCode.NO_SUCH_LEDGER, (
                "the past does not return"
            )

    scenario(body)


@pytest.mark.parametrize("where", ["journal", "ledgers"])
def test_a_full_disk_refuses_and_recovers_without_loss(where: str) -> None:
    async def body(box: Box) -> None:
        platter = box.journal if where == "journal" else box.ledgers
        platter.capacity_bytes = platter.used_bytes() + (8 << 10)
        sent = 0
        while not box.bookie.read_only:
            send(box.bookie, box.peer, add(1, sent, 8))
            sent += 8
            await asyncio.sleep(0.02)
            assert sent < 5000
        assert not box.bookie.writable
        acked = box.peer.acks[1]
        send(box.bookie, box.peer, add(5, 0, 1, writer=2))
        assert box.peer.losses[5] == BookieCode.READ_ONLY
        platter.capacity_bytes = 1 << 40
        box.bookie.tick()
        await asyncio.sleep(0.3)
        assert box.bookie.writable
        send(box.bookie, box.peer, add(5, 0, 1, writer=3))
        await asyncio.sleep(0.1)
        assert box.peer.acks[5] == 0
        box.restart()
        for entry in range(acked + 1):
            assert entry in await box.entries(1, entry, entry)

    scenario(body)


def test_too_little_space_at_the_start_is_read_only() -> None:
    with Simulation(2) as sim:

        async def main() -> None:
            journal, ledgers = Platter(sim.loop, sim.rng("j")), Platter(sim.loop, sim.rng("l"))
            journal.capacity_bytes = 10_000
            bookie = make_bookie(journal.disk(), ledgers.disk(), sim.rng("b"))
            peer = NotingPeer()
            send(bookie, peer, add(1, 0, 1))
            await asyncio.sleep(0.1)
            assert peer.losses == {1: BookieCode.READ_ONLY}

        sim.run(main())


def test_back_pressure_comes_and_goes() -> None:
    async def body(box: Box) -> None:
        box.ledgers.sync_s = (0.5, 0.5)
        sent = 0
        while not box.bookie.full:
            send(box.bookie, box.peer, add(1, sent, 8))
            sent += 8
            assert box.bookie.cached_bytes < 4 * SMALL.write_cache_bytes
            await asyncio.sleep(0.002)
        box.bookie.wait_for_room(box.peer)
        assert box.peer.resumed == 0 and box.bookie.counts.throttled == 1
        await asyncio.sleep(20)
        assert box.peer.resumed == 1 and not box.bookie.full
        assert box.peer.acks == {1: sent - 1}

    scenario(body)


def test_a_log_whose_bytes_rot_says_unknown_not_absent() -> None:
    async def body(box: Box) -> None:
        send(box.bookie, box.peer, add(1, 0, 1), add(1, 1, 1))
        await box.flushed()
        log = next(name for name in box.ledgers.names() if name.startswith("log-"))
        box.ledgers.flip_bit(log, 16 + len(block(1, 0, 1)) + 60)
        assert sorted(await box.entries(1, 0, 1)) == [0]
        assert (await box.ask(Kind.READ, 1, first=1, last=1))[0] == BookieCode.UNKNOWN

    scenario(body)


@pytest.mark.parametrize("loss", ["log", "footer", "checkpoint"])
def test_a_loss_in_the_ledger_directory_is_limbo(loss: str) -> None:
    async def body(box: Box) -> None:
        send(box.bookie, box.peer, add(1, 0, 5))
        await box.flushed()
        disk = box.ledgers.disk()
        log = next(name for name in disk.names() if name.startswith("log-"))
        if loss == "log":
            disk.remove(log)
        elif loss == "footer":
            box.ledgers.flip_bit(log, len(box.ledgers.content(log)) - 60)
        else:
            disk.remove("checkpoint")
        disk.sync_directory()
        left = {name: box.ledgers.content(name) for name in box.ledgers.names()}
        for _ in range(2):
            box.restart()
            assert box.bookie.limbo and not box.bookie.writable
            box.bookie.tick()
            await asyncio.sleep(0.1)
        assert left == {name: box.ledgers.content(name) for name in box.ledgers.names()}, "what is left is left alone"
        assert (await box.ask(Kind.READ, 1, first=99, last=99))[0] == BookieCode.UNKNOWN
        assert (await box.ask(Kind.READ, 44, first=0, last=0))[0] == BookieCode.UNKNOWN
        assert (await box.ask(Kind.FENCE, 1))[0] == BookieCode.UNKNOWN
        send(box.bookie, box.peer, add(2, 0, 1))
        assert box.peer.losses == {2: BookieCode.UNKNOWN}

    scenario(body)


def test_directories_of_another_bookie_or_format_are_refused() -> None:
    async def body(box: Box) -> None:
        send(box.bookie, box.peer, add(1, 0, 1))
        await asyncio.sleep(0.1)
        places = [DirectoryPlace(box.journal.disk())], [DirectoryPlace(box.ledgers.disk())]
        other = Bookie(*places, SMALL, bookie_id="b1", instance="test", rng=random.Random(1), clock=SystemClock())
        with pytest.raises(ConfigError, match="belongs to bookie b0 of test"):
            other.start()
        swapped = Platter(box.journal.loop, random.Random(5))
        with pytest.raises(ConfigError, match="has no cookie"):
            make_bookie(swapped.disk(), box.ledgers.disk(), random.Random(1))
        with pytest.raises(ConfigError, match="has no cookie"):
            make_bookie(box.journal.disk(), swapped.disk(), random.Random(1))
        assert swapped.names() == []
        file = box.ledgers.disk().open("cookie")
        file.pwritev([b"\x09"], 4)
        with pytest.raises(ConfigError, match="of another format"):
            make_bookie(box.journal.disk(), box.ledgers.disk(), random.Random(1))

    scenario(body)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError):
        BookieSettings(segment_bytes=5000)
    with pytest.raises(ConfigError):
        BookieSettings(frame_bytes_max=64 << 20)
