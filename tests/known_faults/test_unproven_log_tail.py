"""The log of a Raft member whose disk failed a sync, and whose process was started again while the machine went on."""

from __future__ import annotations

import pytest

from heliograph.model.errors import CorruptData
from heliograph.raft.disk.recovery import Recovered
from tests.heliograph.raft.disk.opened_log import opened, platter, run, write
from tests.known_faults.storage_worlds import Broken, promised


def data(state: Recovered) -> list[bytes]:
    return [entry for _, _, entry in state.entries]


@pytest.mark.xfail(
    strict=True,
    raises=Broken,
    reason="a member that was started again after a failed sync takes what the kernel holds for durable",
)
def test_what_a_member_built_upon_after_a_failed_sync_survives_the_power_cut() -> None:
    """What was reported durable is there after any power cut, and so is everything that it stands upon.

    After a failed sync the kernel calls the pages clean: the next start reads the entry, its own sync succeeds without
    writing it, and what is appended behind it is reported durable. The power cut takes the entry, and the log has a
    hole. Right: at the start a tail that no later record proves is written again before it is synced, or is not taken
    over.
    """
    disk = platter()
    storage, _ = opened(disk)
    assert write(storage, 1, b"a", b"b", b"c") == []
    run(disk)
    disk.fail_syncs = True
    failed = write(storage, 4, b"d")
    run(disk)
    assert len(failed) == 1 and failed[0] is not None, "the sync did not fail: the case is none"
    disk.fail_syncs = False
    disk.unplug()  # the process ends; the machine goes on
    again, state = opened(disk)
    kept = data(state)
    done = write(again, len(kept) + 1, b"e")
    run(disk)
    assert done == [None], "never durable: the case is none"
    disk.power_cut()
    found: object
    try:
        found = data(opened(disk)[1])
    except CorruptData as error:
        found = repr(error)
    promised(found == [*kept, b"e"], f"of {[*kept, b'e']} there is {found}")
