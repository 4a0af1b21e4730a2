"""Reads from disk take turns with the journal and with each other, slice by slice; what they read stays until they have
it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Buffer
from storage.bookie.entry_log.disk_reads import CatchUp
from storage.bookie.entry_log.open_logs import OpenLogs
from tests.storage.bookie.history import block


class Log:
    """A log of blocks; `bad`: offsets that cannot be read."""

    def __init__(self) -> None:
        self.data = b"".join(block(1, entry, 1) for entry in range(200))
        self.bad: set[int] = set()
        self.goes_on: list[bool] = []
        """Of each read, whether what lies behind it may be brought too."""

    def pieces(self, count: int) -> list[tuple[Any, int, int]]:
        pieces, at = [], 0
        for entry in range(count):
            size = len(block(1, entry, 1))
            pieces.append((self, at, size))
            at += size
        return pieces

    def read(self, _disk: Any, offset: int, size_bytes: int, goes_on: bool) -> bytes:
        self.goes_on.append(goes_on)
        if any(offset <= bad < offset + size_bytes for bad in self.bad):
            raise CorruptData("bad")
        return self.data[offset : offset + size_bytes]


class Thread:
    """Jobs that run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((job, done))

    def run(self) -> None:
        job, done = self.jobs.pop(0)
        try:
            result = job()
        except CorruptData as error:
            done(None, error)
        else:
            done(result, None)


class World:
    def __init__(self, slice_bytes: int = 600) -> None:
        self.thread, self.log, self.pending = Thread(), Log(), False
        self.catch_up = CatchUp(OpenLogs(self.thread, 9), lambda: self.pending, slice_bytes=slice_bytes)  # type: ignore[arg-type]
        self.told: list[tuple[str, int, bytes, bool]] = []

    def start(self, name: str, count: int, *, parts: bool = False) -> None:
        def done(read: int, blocks: list[Buffer], error: BaseException | None) -> None:
            self.told.append((name, read, b"".join(blocks), error is not None))

        def part(blocks: Sequence[Buffer]) -> None:
            self.told.append((f"part of {name}", len(blocks), b"".join(blocks), False))

        self.catch_up.start(self.log.pieces(count), done, part if parts else None)


def test_no_slice_is_begun_while_a_record_is_on_its_way_and_one_behind_each() -> None:
    world = World()
    world.pending = True
    world.start("a", 12)
    assert not world.thread.jobs and world.catch_up.yields == 1
    # the next record is on its way already: publishers wait for one slice, the reader for one record
    world.catch_up.on_durable()
    assert len(world.thread.jobs) == 1
    world.thread.run()
    assert not world.thread.jobs and not world.told
    world.pending = False
    world.catch_up.on_durable()
    while world.thread.jobs:
        assert len(world.thread.jobs) == 1
        world.thread.run()
    assert [(name, read, failed) for name, read, _, failed in world.told] == [("a", 12, False)]
    assert world.log.data.startswith(world.told[0][2])


def test_a_journal_that_stands_still_holds_no_reader_up() -> None:
    world = World()
    world.pending = True
    world.start("a", 12)
    world.catch_up.tick()
    assert not world.thread.jobs
    world.catch_up.tick()
    while world.thread.jobs:
        world.thread.run()
    assert [name for name, *_ in world.told] == ["a"]
    world.catch_up.on_durable()  # it goes on: so do the turns
    world.start("b", 1)
    assert not world.thread.jobs


def test_reads_take_turns_and_parts_are_told_while_the_next_is_read() -> None:
    world = World()
    world.catch_up.on_durable()  # somebody publishes: one slice at a time
    world.start("long", 30, parts=True)
    world.start("short", 1)
    world.thread.run()
    assert [name for name, *_ in world.told] == ["part of long"] and len(world.thread.jobs) == 1
    world.thread.run()
    assert [name for name, *_ in world.told] == ["part of long", "short"]
    while world.thread.jobs:
        world.thread.run()
    whole = b"".join(data for name, _, data, _ in world.told if name.endswith("long"))
    assert whole == b"".join(block(1, entry, 1) for entry in range(30))
    assert world.told[-1][:2] == ("long", 30)


def test_the_disk_brings_what_a_long_read_wants_next_while_nobody_publishes() -> None:
    world = World()
    world.start("one place", 1)
    world.thread.run()
    assert world.log.goes_on == [False]
    world.start("a", 12)
    while world.thread.jobs:
        world.thread.run()
    assert len(world.log.goes_on) > 2 and all(world.log.goes_on[1:]), (
        "also behind its last slice: the next read begins there"
    )
    world.log.goes_on = []
    world.catch_up.on_durable()
    world.start("b", 12)
    while world.thread.jobs:
        world.thread.run()
    assert len(world.log.goes_on) > 2 and not any(world.log.goes_on), (
        "somebody publishes: the next record must not wait for it"
    )


def test_a_second_slice_of_a_read_is_begun_only_where_no_other_read_waits() -> None:
    world = World()
    world.start("one", 1)
    world.start("long", 30, parts=True)
    world.start("short", 1)
    for _ in range(3):
        world.thread.run()
    assert [name for name, *_ in world.told] == ["one", "part of long", "short"]


@pytest.mark.parametrize("seed", range(40))
def test_the_thread_has_two_slices_while_nobody_publishes_and_one_behind_each_record(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    world = World()
    slices, most, begun = 8, 0, 0  # without a record
    submit = Thread.submit

    def counted(self: Thread, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        nonlocal slices, most
        assert len(self.jobs) < (2 if slices >= 8 else 1)
        slices += 1
        submit(self, job, done)
        most = max(most, len(self.jobs))

    monkeypatch.setattr(Thread, "submit", counted)
    for number in range(150):
        match rng.randrange(6):
            case 0:
                world.start(f"read {number}", rng.randrange(1, 60), parts=rng.random() < 0.5)
                begun += 1
            case 1 if rng.random() < 0.2:
                slices = 0
                world.catch_up.on_durable()
            case _ if world.thread.jobs:
                world.thread.run()
    while world.thread.jobs:
        world.thread.run()
    assert most == 2
    ended = [told for told in world.told if not told[0].startswith("part")]
    assert len(ended) == begun == len({name for name, *_ in ended})
    for name, count, _, failed in ended:
        whole = b"".join(data for told, _, data, _ in world.told if told in (name, f"part of {name}"))
        assert not failed and whole == b"".join(block(1, entry, 1) for entry in range(count))


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 7, 11])
def test_what_lies_before_the_first_bad_block_is_told(bad: int, parts: bool) -> None:
    world = World()
    world.log.bad = {world.log.pieces(12)[bad][1]}
    world.start("a", 12, parts=parts)
    while world.thread.jobs:
        world.thread.run()
    name, read, _, _ = world.told[-1]
    whole = b"".join(data for _, _, data, _ in world.told)
    assert name == "a" and read <= bad  # neighbours are read at once, so it may be fewer
    assert whole == b"".join(block(1, entry, 1) for entry in range(read))


@pytest.mark.parametrize("seed", range(50))
def test_a_log_goes_only_behind_the_reads_that_were_begun_before(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    begun = 0
    removed: list[int] = []
    wanted: dict[int, list[str]] = {}
    for number in range(60):
        match rng.randrange(5):
            case 0:
                world.start(f"read {begun}", rng.randrange(1, 30))
                begun += 1
            case 1:
                wanted[number] = [f"read {i}" for i in range(begun)]

                def remove(number: int = number) -> None:
                    assert set(wanted[number]) <= {name for name, *_ in world.told}
                    removed.append(number)

                world.catch_up.behind(remove)
            case 2:
                world.pending = not world.pending
                if not world.pending:
                    world.catch_up.on_durable()
            case _ if world.thread.jobs:
                world.thread.run()
    world.pending = False
    world.catch_up.on_durable()
    while world.thread.jobs:
        world.thread.run()
    assert removed == list(wanted) and len(world.told) == begun


def test_nothing_happens_after_the_end() -> None:
    world = World()
    world.start("a", 1)
    world.catch_up.behind(lambda: world.told.append(("removed", 0, b"", False)))
    world.catch_up.close()
    world.thread.run()
    assert not world.told and not world.thread.jobs


def test_what_is_behind_a_look_up_waits_for_the_read_that_it_leads_to() -> None:
    """A log may be removed between the two, and its file is needed still; one without a read lets go at once."""
    world, order = World(), list[str]()
    hold = world.catch_up.hold()
    world.catch_up.load(lambda: 5, lambda found, error: order.append(f"index {found}"))
    world.catch_up.behind(lambda: order.append("removed"))
    world.thread.run()
    assert order == ["index 5"] and not world.thread.jobs
    world.catch_up.release(hold, lambda: world.start("a", 60))
    while len(world.told) < 1:
        assert order == ["index 5"]
        world.thread.run()
    world.thread.run()
    assert order == ["index 5", "removed"] and world.told[0][1] == 60
    hold = world.catch_up.hold()
    world.catch_up.behind(lambda: order.append("removed too"))
    world.catch_up.release(hold, lambda: None)
    world.thread.run()
    assert order[-1] == "removed too"
