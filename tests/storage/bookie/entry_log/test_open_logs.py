"""A bookie with more entry logs than it may have open files: all are read, and a lack of descriptors or memory is
weather.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import ConfigError
from heliograph.runtime.disk import is_transient, none_now
from heliograph.wire.bookie_frames import BookieCode, Kind
from storage.bookie.serving.bookie import Bookie
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import SMALL, add, content, send

FEW = replace(SMALL, open_logs_max=4)


async def filled(box: Box, logs: int) -> None:
    for turn in range(logs):
        send(box.bookie, box.peer, add(1, 10 * turn, 10))
        await box.flushed()
    assert len(box.bookie.dirs[0].table.logs) == logs


async def read_all(box: Box, logs: int) -> None:
    for turn in range(logs):
        found = await box.entries(1, 10 * turn, 10 * turn)
        assert found[10 * turn] == content(1, 10 * turn)


def whole(bookie: Bookie) -> bool:
    return not (bookie.dropped or bookie.failure or bookie.limbo)


def small(body: Callable[[Box], object]) -> None:
    with Simulation(3) as sim:

        async def main() -> None:
            await body(Box(sim, FEW))  # type: ignore[misc]

        sim.run(main())


def test_no_more_logs_are_open_than_the_setting_says() -> None:
    """And the ones that were read last stay open."""

    async def body(box: Box) -> None:
        await filled(box, 40)
        before = box.ledgers.open_files
        for _ in range(3):
            await read_all(box, 40)
        assert box.ledgers.open_files == before + 4
        files = box.bookie.dirs[0].logs.files
        assert [log.number for log in files._open] == sorted(box.bookie.dirs[0].table.logs)[-4:]
        await box.ask(Kind.DELETE, 1)
        await box.flushed()
        await asyncio.sleep(0.1)
        assert box.ledgers.open_files <= before and not len(files), "what was removed is not kept open"

    small(body)


REFUSALS = [
    (OSError(errno.EMFILE, ""), "open files"),
    (OSError(errno.ENOMEM, ""), "no memory"),
    (MemoryError(), "no memory"),
]


@pytest.mark.parametrize(("refusal", "says"), REFUSALS)
def test_a_lack_of_descriptors_or_memory_drops_no_directory_and_loses_nothing(refusal: Exception, says: str) -> None:
    """Reads say nothing, adds are refused, until there are some again."""

    async def body(box: Box) -> None:
        await filled(box, 12)
        await read_all(box, 12)
        box.ledgers.open_files_max, box.ledgers.refusal = 0, refusal
        send(box.bookie, box.peer, add(2, 0, 10))
        code, *_ = await box.ask(Kind.READ, 1, first=0, last=0)
        assert code == BookieCode.UNKNOWN
        box.bookie.flush()
        for _ in range(5):
            box.bookie.tick()
            await asyncio.sleep(0.05)
        assert whole(box.bookie) and says in box.bookie.read_only
        assert not box.bookie.dirs[0].scrubber.bad, "nothing is spoilt that could not be opened"
        box.ledgers.open_files_max = 1 << 30
        for _ in range(5):
            box.bookie.tick()
            await asyncio.sleep(0.05)
        assert box.bookie.writable and whole(box.bookie)
        await box.flushed()
        await read_all(box, 12)
        box.restart()
        assert sorted(await box.entries(2, 0, 9)) == list(range(10))
        await read_all(box, 12)

    small(body)


@pytest.mark.parametrize(("refusal", "says"), REFUSALS)
def test_a_lack_of_descriptors_or_memory_at_the_journal_drops_nothing(refusal: Exception, says: str) -> None:
    async def body(box: Box) -> None:
        box.journal.open_files_max, box.journal.refusal = 0, refusal
        sent = 0
        while 1 not in box.peer.losses:
            send(box.bookie, box.peer, add(1, sent, 10))
            sent += 10
            await asyncio.sleep(0.02)
            assert sent < 5000
        assert whole(box.bookie) and says in box.bookie.read_only
        box.journal.open_files_max = 1 << 30
        for _ in range(10):
            box.bookie.tick()
            await asyncio.sleep(0.05)
        assert box.bookie.writable
        acked = box.peer.acks[1]
        send(box.bookie, box.peer, add(1, acked + 1, 1, writer=2))
        await asyncio.sleep(0.1)
        assert box.peer.acks[1] == acked + 1

    small(body)


def test_what_is_open_is_given_back_before_a_read_fails() -> None:
    async def body(box: Box) -> None:
        await filled(box, 8)
        before = box.ledgers.open_files
        await read_all(box, 3)
        box.ledgers.open_files_max = box.ledgers.open_files
        assert len(box.bookie.dirs[0].logs.files) == 3, "fewer than the setting allows"
        await read_all(box, 8)
        assert box.ledgers.open_files <= before + 3

    small(body)


def test_a_log_that_a_checkpoint_may_name_is_not_written_again() -> None:
    """The checkpoint was renamed, and its directory's sync found no descriptor: it may be durable, with the log in it.
    The power goes in the middle of the next try.
    """
    for cut in range(1, 12):
        with Simulation(cut) as sim:

            async def main(sim: Simulation = sim, cut: int = cut) -> None:
                box = Box(sim, FEW)
                send(box.bookie, box.peer, add(1, 0, 10))
                await asyncio.sleep(0.1)
                disk, syncs = box.bookie.dirs[0].place.disk, 0
                sync = disk.sync_directory

                def failing() -> None:
                    nonlocal syncs
                    syncs += 1
                    if syncs == 2:  # of the log, then of the checkpoint
                        raise OSError(errno.EMFILE, "too many open files (simulated)")
                    sync()

                disk.sync_directory = failing  # type: ignore[method-assign]
                box.bookie.flush()
                await asyncio.sleep(0.1)
                assert syncs == 2 and box.bookie.flushing and whole(box.bookie)
                writes: list[str] = []

                def on_operation(kind: str, name: str) -> None:
                    writes.append(f"{kind} {name}")

                box.ledgers.on_operation = on_operation
                box.bookie.tick()
                await asyncio.sleep(0.2)
                assert not [one for one in writes if "log-" in one], "the log is whole"
                assert writes and not box.bookie.flushing
                box.restart()
                assert sorted(await box.entries(1, 0, 9)) == list(range(10))

            sim.run(main())


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EMFILE, ""), "LimitNOFILE"),
        (OSError(errno.ENFILE, ""), "LimitNOFILE"),
        (OSError(errno.ENOMEM, ""), "memory"),
        (MemoryError(), "memory"),
        (OSError(errno.ENOSPC, ""), "make room"),
        (OSError(errno.EIO, ""), ""),
    ],
)
def test_what_passes(error: Exception, says: str) -> None:
    assert is_transient(error) == bool(says)
    if says:
        assert says in none_now(error, "another entry log", "")


def test_the_setting_is_above_zero() -> None:
    with pytest.raises(ConfigError, match="positive"):
        replace(SMALL, open_logs_max=0)
