"""LogStorage on simulated disks: what was reported durable is there after any power cut; damage to it is noticed; torn
tails are cut off; what is noted as committed was committed, whatever part of the log is left.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import crc32c
import pytest

from geo_tests.sim.disk import Platter
from geo_tests.sim.loop import ProcessDied
from heliograph.model.errors import CorruptData
from heliograph.raft.disk import other_voters
from heliograph.raft.disk.log_storage import Done, LogStorage, Recovered, segment_name
from heliograph.raft.disk.snapshot_file import load_snapshot, snapshot_name
from heliograph.raft.messages import COMMAND, Config, Entry, SnapshotMeta
from tests.broken_rules import BrokenRules, fitting
from tests.heliograph.raft.disk.opened_log import SEGMENT, opened, platter, run, write


def save_snapshot(
    storage: LogStorage, meta: SnapshotMeta, blob: bytes, done: Callable[[BaseException | None], None]
) -> None:
    """One of the own machine, in two pieces."""
    writer, half = storage.begin_snapshot(), len(blob) // 2
    writer.add(meta, blob[:half], lambda error: None)
    writer.add(meta, blob[half:], lambda error: None)
    writer.finish(meta, done)


def receive(storage: LogStorage, meta: SnapshotMeta, blob: bytes) -> list[BaseException | None]:
    """One from the leader; returns what became of its pieces."""
    half, done = len(blob) // 2, list[BaseException | None]()
    storage.receive(meta, 0, blob[:half], done.append)
    storage.receive(meta, half, blob[half:], done.append)
    return done


def blob_of(disk: Platter, meta: SnapshotMeta) -> bytes:
    return load_snapshot(disk.disk(), snapshot_name(meta.index))[1]


def entries(*data: bytes, term: int = 1) -> list[Entry]:
    return [(term, COMMAND, each) for each in data]


def test_an_empty_directory() -> None:
    disk = platter()
    _, state = opened(disk)
    assert state == Recovered()


def test_writes_come_back_and_the_last_word_counts() -> None:
    disk = platter()
    storage, _ = opened(disk)
    done = write(storage, 1, b"a", b"b", b"c", hard_state=(3, "n1"))
    done += write(storage, 2, b"B", term=4)
    done += write(storage, 3, hard_state=(5, ""))
    run(disk)
    assert done == [] or done == [None]
    disk.power_cut()
    _, state = opened(disk)
    assert (state.term, state.vote, state.entries) == (5, "", [(1, COMMAND, b"a"), (4, COMMAND, b"B")])


def test_writes_that_wait_together_share_one_sync() -> None:
    disk = platter()
    storage, _ = opened(disk)
    before = disk.syncs
    done: list[object] = []
    for index in range(1, 51):
        storage.write(None, None, index, entries(b"x"), index - 1, done.append)
    run(disk)
    assert done == [None] * 50 and disk.syncs == before + 1


@pytest.mark.parametrize("settings", [False, True])
@pytest.mark.parametrize("noted", [None, False, True])
def test_what_is_written_down_of_other_voters_counts_more_than_the_settings(noted: bool | None, settings: bool) -> None:
    disk = platter()
    storage, _ = opened(disk)
    if noted is not None:
        storage.note(lambda disk: other_voters.note(disk, not noted))
        storage.note(lambda disk: other_voters.note(disk, noted))
    run(disk)
    kept = SnapshotMeta(50, 7, Config(("a", "b", "c")), 4, 0)
    storage = LogStorage(disk.disk(), segment_bytes=SEGMENT)
    storage.recover(kept)
    write(storage, 51, b"x")
    run(disk)
    disk.power_cut()
    again = LogStorage(disk.disk(), segment_bytes=SEGMENT)
    if settings if noted is None else noted:
        assert again.recover(None, lost=True, others=settings).owed == (1, 51)
    else:
        with pytest.raises(CorruptData, match="neither a snapshot nor a table"):
            again.recover(None, lost=True, others=settings)
        assert LogStorage(disk.disk(), segment_bytes=SEGMENT).recover(kept).owed is None


def test_who_has_lost_the_table_owes_what_the_log_reached_and_no_later_term() -> None:
    disk = platter()
    storage, _ = opened(disk)
    write(storage, 1, b"a", b"b", hard_state=(2, ""))
    run(disk)
    kept = SnapshotMeta(50, 7, Config(("a", "b", "c")), 4, 0)
    storage = LogStorage(disk.disk(), segment_bytes=SEGMENT)
    assert storage.recover(kept).entries == []
    write(storage, 51, hard_state=(9, ""))  # a term without a leader
    run(disk)
    for _ in range(2):
        found = LogStorage(disk.disk(), segment_bytes=SEGMENT).recover(None, lost=True, others=True)
        assert (found.owed, found.term, found.base, found.entries) == ((7, 50), 9, None, [])
        disk.power_cut()


def test_the_log_goes_on_in_new_segments_and_snapshots_drop_old_ones() -> None:
    disk = platter()
    storage, _ = opened(disk)
    for index in range(1, 101):
        write(storage, index, bytes(1000), hard_state=(index, "v"))
        run(disk)
    assert storage.segment_count > 4
    meta = SnapshotMeta(90, 1, Config(("a",)), 4, crc32c.crc32c(b"blob"))
    done: list[object] = []
    save_snapshot(storage, meta, b"blob", done.append)
    run(disk)
    assert done == [None] and storage.segment_count < 4
    disk.power_cut()
    _, state = opened(disk)
    assert (state.snapshot, state.base, blob_of(disk, meta), len(state.entries), state.term) == (
        meta,
        meta,
        b"blob",
        10,
        100,
    )


def test_a_folder_that_cannot_be_listed_for_want_of_a_descriptor_is_looked_at_another_time() -> None:
    disk = platter()
    storage, _ = opened(disk)
    for index in range(1, 31):
        write(storage, index, bytes(1000))
        run(disk)
    meta = SnapshotMeta(20, 1, Config(("a",)), 4, crc32c.crc32c(b"blob"))
    save_snapshot(storage, meta, b"blob", lambda _: None)
    run(disk)
    names = storage._disk.names

    def none_left() -> list[str]:
        raise OSError(errno.EMFILE, "too many open files (simulated)")

    storage._disk.names = none_left  # type: ignore[method-assign]
    storage.covered(25)
    storage.drop_snapshots(10)
    run(disk)
    assert storage.failed is None
    storage._disk.names = names  # type: ignore[method-assign]
    write(storage, 31, b"goes on")
    run(disk)
    disk.power_cut()
    _, state = opened(disk)
    assert state.entries[-1][2] == b"goes on"


def test_a_snapshot_from_the_leader_empties_the_log_behind_it() -> None:
    disk = platter()
    storage, _ = opened(disk)
    write(storage, 1, b"a", b"b")
    meta = SnapshotMeta(50, 7, Config(("a", "b")), 4, crc32c.crc32c(b"blob"))
    done: list[object] = []
    receive(storage, meta, b"blob")
    storage.write((7, ""), meta, 51, entries(b"next", term=7), 50, done.append)
    more = write(storage, 52, b"more", term=7)
    run(disk)
    assert done == [None] and more == [None]
    disk.power_cut()
    storage, state = opened(disk)
    assert (state.snapshot, blob_of(disk, meta), state.entries, state.term) == (
        meta,
        b"blob",
        entries(b"next", b"more", term=7),
        7,
    )
    write(storage, 53, b"third", term=7)
    run(disk)
    disk.power_cut()
    _, state = opened(disk)
    assert len(state.entries) == 3 and state.commit == 50


def test_pieces_that_find_the_disk_full_are_refused_and_leave_the_log_as_it_is() -> None:
    disk = platter()
    storage, _ = opened(disk)
    write(storage, 1, b"a", b"b")
    run(disk)
    meta = SnapshotMeta(50, 7, Config(("a",)), 5000, crc32c.crc32c(bytes(5000)))
    disk.capacity_bytes = disk.used_bytes() + 3000
    ends = receive(storage, meta, bytes(5000))
    run(disk)
    assert (
        ends[0] is None
        and isinstance(ends[1], OSError)
        and storage.failed is None
        and "snapshot.tmp" not in disk.names()
    )
    disk.capacity_bytes *= 10
    ends, done = receive(storage, meta, bytes(5000)), list[object]()
    storage.write((7, ""), meta, 51, entries(b"next", term=7), 51, done.append)
    run(disk)
    assert ends == [None, None] and done == [None]
    disk.power_cut()
    _, state = opened(disk)
    assert (state.entries, state.term, state.commit, blob_of(disk, meta)) == (
        entries(b"next", term=7),
        7,
        51,
        bytes(5000),
    )


def test_a_table_of_its_own_stands_for_the_log_before_it() -> None:
    disk, config = platter(), Config(("a",))
    storage, _ = opened(disk)
    for index in range(1, 101):
        write(storage, index, bytes(4000), commit=index)
        run(disk)
    assert storage.segment_count > 4
    storage.covered(90)
    run(disk)
    assert storage.segment_count < 4
    disk.power_cut()
    with pytest.raises(CorruptData, match="neither a snapshot nor a table"):
        opened(disk)
    for kept, left in ((SnapshotMeta(90, 1, config), 10), (SnapshotMeta(100, 1, config), 0)):
        state = LogStorage(disk.disk(), segment_bytes=SEGMENT).recover(kept)
        assert (state.base, state.snapshot, len(state.entries), state.commit) == (kept, None, left, 100)
    with pytest.raises(CorruptData, match="table ends at 3"):
        LogStorage(disk.disk(), segment_bytes=SEGMENT).recover(SnapshotMeta(3, 1, config))


def test_the_newer_one_of_table_and_snapshot_counts() -> None:
    disk, config = platter(), Config(("a",))
    storage, _ = opened(disk)
    write(storage, 1, *[b"%d" % index for index in range(1, 11)], commit=10)
    meta = SnapshotMeta(5, 1, config, 4, crc32c.crc32c(b"blob"))
    save_snapshot(storage, meta, b"blob", lambda error: None)
    run(disk)
    older, newer = SnapshotMeta(3, 1, config), SnapshotMeta(8, 1, config)
    for kept, base, left in ((None, meta, 5), (older, meta, 5), (newer, newer, 2)):
        state = LogStorage(disk.disk(), segment_bytes=SEGMENT).recover(kept)
        assert (state.base, state.snapshot, len(state.entries)) == (base, meta, left)
    storage, _ = opened(disk)
    storage.drop_snapshots(5)
    run(disk)
    assert snapshot_name(5) not in disk.names()


@pytest.mark.parametrize("at", range(0, 4000, 37))
def test_damage_below_what_was_durable_is_noticed(at: int) -> None:
    disk = platter()
    storage, _ = opened(disk)
    for index in range(1, 21):
        write(storage, index, bytes([index]) * 200)
        run(disk)
    name = segment_name(1)
    end = len(disk.content(name).rstrip(b"\0"))
    disk.flip_bit(name, at % (end - 300), bit=at % 8)
    with pytest.raises(CorruptData):
        opened(disk)


def test_damage_of_the_last_record_is_noticed_after_a_clean_close() -> None:
    disk = platter()
    storage, _ = opened(disk)
    write(storage, 1, b"a" * 100)
    run(disk)
    storage.close(1, lambda error: None)
    run(disk)
    disk.flip_bit(segment_name(1), 150)
    with pytest.raises(CorruptData, match="durable"):
        opened(disk)


def test_a_damaged_snapshot_and_a_newer_version_are_refused() -> None:
    disk = platter()
    storage, _ = opened(disk)
    write(storage, 1, b"a")
    meta = SnapshotMeta(1, 1, Config(("a",)), 4, crc32c.crc32c(b"blob"))
    save_snapshot(storage, meta, b"blob", lambda error: None)
    run(disk)
    disk.flip_bit(segment_name(1), 4, bit=1)
    with pytest.raises(CorruptData, match="version 3"):
        opened(disk)
    disk.flip_bit(segment_name(1), 4, bit=1)
    opened(disk)
    size = len(disk.content(snapshot_name(1)))
    for at in range(size):
        if at in (5, 6, 7):
            continue
        disk.flip_bit(snapshot_name(1), at)
        with pytest.raises(CorruptData):
            opened(disk)
            blob_of(disk, meta)
        disk.flip_bit(snapshot_name(1), at)


def test_a_missing_segment_is_noticed() -> None:
    disk = platter()
    storage, _ = opened(disk)
    for index in range(1, 60):
        write(storage, index, bytes(1000))
        run(disk)
    disk.disk().remove(segment_name(2))
    with pytest.raises(CorruptData):
        opened(disk)


def test_the_commit_index_comes_back_as_of_the_last_record() -> None:
    disk = platter()
    storage, _ = opened(disk)
    write(storage, 1, b"a", b"b", b"c", commit=2)
    run(disk)
    assert disk_says(disk) == 2
    write(storage, 4, b"d")
    run(disk)
    assert disk_says(disk) == 2, "it never falls"
    assert write(storage, 0, commit=3) == []
    run(disk)
    assert disk_says(disk) == 3, "nothing but the commit index"
    storage.close(4, lambda error: None)
    run(disk)
    assert disk_says(disk) == 4
    disk.power_cut()
    storage, state = opened(disk)
    assert state.commit == 4 and state.entries == entries(b"a", b"b", b"c", b"d")
    disk.power_cut()
    assert opened(disk)[1].commit == 4, "a new segment takes it over"


def test_a_snapshot_says_at_least_that_it_is_committed() -> None:
    disk = platter()
    storage, _ = opened(disk)
    write(storage, 1, b"a", b"b", b"c", commit=1)
    save_snapshot(storage, SnapshotMeta(2, 1, Config(("a",)), 4, crc32c.crc32c(b"blob")), b"blob", lambda error: None)
    run(disk)
    disk.power_cut()
    _, state = opened(disk)
    assert (state.commit, state.entries) == (2, entries(b"c"))


@pytest.mark.parametrize("kept", range(0, 1700, 13))
def test_a_torn_tail_behind_the_commit_index(kept: int) -> None:
    """Followers replace what was never committed; of the batch that does so, and says that its entries are committed,
    any prefix may be left.
    """
    disk = platter()
    storage, _ = opened(disk)
    old = [b"%d" % i * 100 for i in range(1, 7)]
    write(storage, 1, *old, commit=2)
    run(disk)
    before = len(disk.content(segment_name(1)).rstrip(b"\0"))
    new = [b"new %d" % i * 100 for i in range(4, 7)]
    write(storage, 4, *new, term=2, hard_state=(2, "n1"), commit=5)
    run(disk)
    content = disk.content(segment_name(1))
    whole = len(content.rstrip(b"\0"))
    disk.disk().open(segment_name(1)).pwritev([bytes(max(whole - before - kept, 0))], min(before + kept, whole))
    _, state = opened(disk)
    if kept >= whole - before:
        assert (state.commit, state.entries) == (5, entries(*old[:3]) + entries(*new, term=2))
    else:
        assert (state.commit, state.entries) == (2, entries(*old)) and state.term in (0, 2)


def test_committed_entries_that_are_gone_are_noticed() -> None:
    disk = platter()
    storage, _ = opened(disk)
    write(storage, 1, b"a", commit=2)
    run(disk)
    with pytest.raises(CorruptData, match="through index 2 are committed, and the log ends at 1"):
        opened(disk)


class NotesTooEarly(LogStorage):
    """Lets the first record of a batch speak of entries that come with a later one."""

    def write(
        self,
        hard_state: tuple[int, str] | None,
        snapshot: tuple[SnapshotMeta, bytes] | None,
        first_index: int,
        entries: Sequence[Entry],
        commit: int,
        done: Done,
    ) -> None:
        self._commit = max(self._commit, commit)
        super().write(hard_state, snapshot, first_index, entries, commit, done)


def disk_says(disk: Platter) -> int:
    """The commit index that a process would find if this one were killed now."""
    copy = platter()
    for name in disk.names():
        file = copy.disk().open(name, create=True)
        file.pwritev([disk.content(name)], 0)
    return opened(copy)[1].commit


@pytest.mark.parametrize("seed", range(100))
def test_after_power_cuts_what_was_reported_durable_is_there(seed: int) -> None:
    """Random writes, replacements, snapshots, and cuts at any operation, also during recovery; a model says what must
    and what may be there.
    """
    live_through_power_cuts(seed, LogStorage)


def test_a_commit_index_before_its_entries_is_found(broken: BrokenRules) -> None:
    fitting(NotesTooEarly)
    broken.look(lambda seed: live_through_power_cuts(seed, NotesTooEarly), range(100), AssertionError, CorruptData)


def live_through_power_cuts(seed: int, storage_class: type[LogStorage]) -> None:
    rng = random.Random(f"storage {seed}")
    disk = platter(f"disk {seed}")
    sure: tuple[tuple[int, str], int, list[Entry]] = (
        (0, ""),
        0,
        [],
    )  # hard state, snapshot index, entries behind it: reported durable
    possible = [sure]
    truth: dict[int, Entry] = {}  # what the group has committed
    known = [0]  # the commit index that was given with each write of this life, as `history`
    noted = 0  # reported durable
    for _ in range(8):
        if rng.random() < 0.3:
            disk.cut_after(rng.randrange(1, 20))
        try:
            storage = storage_class(disk.disk(), segment_bytes=SEGMENT)
            state = storage.recover()
        except ProcessDied:
            continue
        base = state.snapshot.index if state.snapshot is not None else 0
        hard, found = (state.term, state.vote), state.entries
        assert any(_explains(each, hard, base, found) for each in possible), (
            hard,
            base,
            len(found),
            [(h, b, len(e)) for h, b, e in possible],
        )
        assert max(noted, base) <= state.commit <= max(known[-1], base), (noted, state.commit, known, base)
        assert all(truth.get(index) == found[index - base - 1] for index in range(base + 1, state.commit + 1)), (
            "not committed, or another entry"
        )
        model = (hard, base, list(found))
        possible, reported = [model], [0]
        history, floor = [model], state.commit  # what is committed is never replaced
        known = [state.commit]
        if rng.random() < 0.8:
            disk.cut_after(rng.randrange(1, 60))
        try:
            for _ in range(rng.randrange(1, 30)):
                hard, base, log = history[-1]
                log = list(log)
                snapshot = None
                kind = rng.randrange(8)
                if kind == 0:
                    hard = (hard[0] + 1, rng.choice(("", "n1")))
                if kind == 1 and rng.random() < 0.5:
                    base, log = base + len(log) + 10, []
                    snapshot = SnapshotMeta(base, 9, Config(("a",)), 100, crc32c.crc32c(bytes(100)))
                    receive(storage, snapshot, bytes(100))
                    floor = base
                first = base + 1 + len(log)
                if kind == 2 and first > max(floor, base):
                    first = rng.randrange(max(floor, base) + 1, first + 1)
                new = [
                    (rng.randrange(9), COMMAND, rng.randbytes(rng.choice((10, 700, 5000))))
                    for _ in range(rng.randrange(3) if kind < 2 else 1)
                ]
                log[first - base - 1 :] = new if new else log[first - base - 1 :]
                if rng.random() < 0.4:
                    floor = rng.randrange(floor, base + len(log) + 1)
                    truth |= {index: log[index - base - 1] for index in range(base + 1, floor + 1)}
                history.append((hard, base, log))
                known.append(floor)
                reached = len(history) - 1
                storage.write(
                    hard if kind == 0 else None, snapshot, first, new, floor, partial(_report, reported, reached)
                )
                if rng.random() < 0.3:
                    run(disk)
                    assert known[reported[-1]] <= disk_says(disk) <= floor
                if kind == 3 and disk._disks and len(log) > 4 and reported[-1] == reached:
                    floor = max(floor, base + 2)
                    meta = SnapshotMeta(base + 2, log[1][0], Config(("a",)), 3, crc32c.crc32c(b"own"))
                    save_snapshot(storage, meta, b"own", lambda error: None)
            run(disk)
        except ProcessDied:
            pass
        if rng.random() < 0.7 or not disk._disks:
            disk.power_cut()
        else:
            disk.unplug()
        disk._cut_at = 0
        possible, noted = _between(history[reported[-1] :]), known[reported[-1]]


def _report(reported: list[int], reached: int, error: BaseException | None) -> None:
    if error is None:
        reported.append(reached)


def _explains(
    model: tuple[tuple[int, str], int, list[Entry]], hard: tuple[int, str], base: int, found: list[Entry]
) -> bool:
    """The same state, where a snapshot of its own may have replaced the beginning of the log."""
    shift = base - model[1]
    return hard == model[0] and 0 <= shift <= len(model[2]) and model[2][shift:] == found


def _between(
    history: list[tuple[tuple[int, str], int, list[Entry]]],
) -> list[tuple[tuple[int, str], int, list[Entry]]]:
    """Every state between the writes: parts of a write may be there, in its order."""
    states = [history[0]]
    for (_, base, log), after in pairwise(history):
        states += [
            (after[0], base, log),
            (after[0], after[1], []),
            (after[0], after[1], after[2]),
            (after[0], base, log[: len(after[2])]),
        ]
        same = 0
        while same < min(len(log), len(after[2])) and log[same] == after[2][same]:
            same += 1
        states += [(after[0], after[1], after[2][:count]) for count in range(same, len(after[2]) + 1)]
    return states
