"""What a Raft member takes over at its start: of its log only what lies on the disk, whatever the kernel says."""

from __future__ import annotations

import pytest

from geo_tests.sim.disk import Platter
from geo_tests.sim.loop import ProcessDied
from heliograph.raft.disk.recovery import Recovered
from tests.heliograph.raft.disk.opened_log import SEGMENT, opened, platter, run, write


def data(state: Recovered) -> list[bytes]:
    return [entry for _, _, entry in state.entries]


def failed_sync(disk: Platter, count: int = 1, size_bytes: int = 1) -> None:
    """Three entries that are durable, and others whose sync fails; then the process ends, and the machine goes on."""
    storage, _ = opened(disk)
    assert write(storage, 1, b"a", b"b", b"c") == []
    run(disk)
    disk.fail_syncs = True
    failed = [
        answer
        for index in range(4, 4 + count)
        for answer in [write(storage, index, index.to_bytes(2, "big") * size_bytes)]
    ]
    run(disk)
    assert all(len(each) == 1 and each[0] is not None for each in failed), "the sync did not fail: the case is none"
    disk.fail_syncs = False
    disk.unplug()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("starts", [1, 2, 3])
@pytest.mark.parametrize(("count", "size_bytes"), [(1, 1), (40, 100), (12, 700)])
def test_what_a_member_built_upon_after_a_failed_sync_survives_the_power_cut(
    count: int, size_bytes: int, starts: int, seed: int
) -> None:
    """After a failed sync the kernel calls the pages clean: another sync of them succeeds and writes nothing."""
    disk = platter(seed)
    failed_sync(disk, count, size_bytes)
    for _ in range(starts - 1):  # nothing is written but what a start writes
        opened(disk)
        disk.unplug()
    again, state = opened(disk)
    kept = data(state)
    done = write(again, len(kept) + 1, b"e")
    run(disk)
    assert kept[:3] == [b"a", b"b", b"c"] and done == [None]
    disk.power_cut()
    assert data(opened(disk)[1]) == [*kept, b"e"]


def test_a_start_that_cannot_write_the_tail_again_fails_and_the_next_one_goes_on() -> None:
    disk = platter()
    failed_sync(disk)
    disk.fail_syncs = True
    for _ in range(2):
        with pytest.raises(OSError, match="sync failed"):
            opened(disk)
        disk.unplug()
    disk.fail_syncs = False
    again, state = opened(disk)
    kept = data(state)
    assert write(again, len(kept) + 1, b"e") == []
    run(disk)
    disk.power_cut()
    assert data(opened(disk)[1]) == [*kept, b"e"]


def test_power_may_go_at_every_step_of_a_start_behind_a_failed_sync() -> None:
    for seed in range(4):
        for step in range(1, 30):
            disk = platter(seed)
            failed_sync(disk, 3, 300)
            disk.cut_after(step)
            try:
                opened(disk)
            except ProcessDied:
                pass
            else:
                break
            kept = data(opened(disk)[1])
            assert kept[:3] == [b"a", b"b", b"c"], (seed, step)
            disk.power_cut()
            assert data(opened(disk)[1]) == kept, (seed, step)
        else:
            raise AssertionError("a start has more steps than were tried")
        assert step > 3


def test_a_start_writes_again_only_what_no_record_proves() -> None:
    """A log of many segments is read at each start, and not written."""
    disk = platter()
    storage, _ = opened(disk)
    for index in range(1, 101):
        write(storage, index, bytes(1000))
        run(disk)
    assert storage.segment_count > 4
    disk.unplug()
    written: list[tuple[str, str]] = []
    disk.on_operation = lambda operation, name: written.append((operation, name))
    _, state = opened(disk)
    assert len(state.entries) == 100
    last = f"log-{storage.segment_count:010d}"
    assert [name for operation, name in written if operation == "write" and name <= last] == [last]
    assert SEGMENT < 100 * 1000
