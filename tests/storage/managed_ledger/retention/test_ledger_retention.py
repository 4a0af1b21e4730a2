"""One trim, from the question to the deletion on bookies: stepped, over a store and bookies that answer at once."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.errors import MetadataUnavailable
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata, OffloadRecord, OffloadState
from heliograph.model.positions import Position
from heliograph.runtime.clock import CautiousClock
from local_meta import keys
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from storage.managed_ledger.retention.ledger_retention import LedgerRetention
from storage.managed_ledger.retention.trim_rule import Retention, trim_count
from tests.heliograph.runtime.wrong_clock import DAY_MS, Machine, ahead

LAST_KEPT_MS = 60_000
BOOKIES = ("b0", "b1")


class Topic:
    """The host, the metadata store, the bookies, and the clock of one topic's retention."""

    def __init__(self, infos: list[LedgerInfo], retention: Retention | None = Retention()) -> None:  # noqa: B008
        self.topic = "persistent://t/n/x"
        self.cursors: dict[str, Any] = {}
        self.retention = retention
        self.ended = False
        self.now_ms = 10**9
        self.ready = 0
        self.deleted: list[tuple[str, int]] = []
        self.unavailable = False
        self.on_get: Callable[[], object] = lambda: None
        self.catalog = Catalog(infos)
        self.stored = {i.ledger: LedgerMetadata(i.ledger, 2, 2, ((0, BOOKIES),)) for i in infos}
        self.tasks: list[Coroutine[Any, Any, None]] = []
        context: Any = SimpleNamespace(tasks=SimpleNamespace(spawn=self.tasks.append), meta=self, pool=self)
        clock: Any = SimpleNamespace(wall_ms=lambda: self.now_ms)
        self.made: Any = LedgerRetention(self, self.catalog, context, clock, LAST_KEPT_MS)  # type: ignore[arg-type]

    @property
    def last_confirmed(self) -> Position:
        return self.catalog.last

    async def read_front(self, count: int) -> None: ...

    def on_trim_ready(self) -> None:
        self.ready += 1

    async def get(self, key: str) -> tuple[bytes, int] | None:
        if self.unavailable:
            raise MetadataUnavailable("away")
        self.on_get()
        found = {keys.ledger(ledger): metadata for ledger, metadata in self.stored.items()}.get(key)
        return None if found is None else (found.encode(), 1)

    def client(self, bookie: str) -> Any:
        async def delete(ledger: int) -> None:
            self.deleted.append((bookie, ledger))

        return SimpleNamespace(delete=delete)

    def cursor(self, name: str, mark_delete: Position, durable: bool = True) -> None:
        self.cursors[name] = SimpleNamespace(mark_delete=mark_delete, durable=durable)

    def step(self) -> int:
        """Runs what was begun in the background. Returns how much that was."""
        begun, self.tasks[:] = list(self.tasks), []
        for task in begun:
            with pytest.raises(StopIteration):
                task.send(None)
        return len(begun)

    def trim(self) -> list[int]:
        """A whole trim, as the managed ledger makes it. Returns the ledgers that went."""
        self.made.trim_soon()
        self.step()
        prepared, ledgers = self.made.take([], ())
        assert prepared or not ledgers
        self.catalog.drop_first(len(ledgers))
        self.made.finished()
        self.made.delete(ledgers)
        self.step()
        return [metadata.ledger for metadata in ledgers]


def closed(*ledgers: int, entries: int = 10, size_bytes: int = 1 << 20) -> list[LedgerInfo]:
    return [LedgerInfo(ledger, entries, size_bytes, closed_ms=1000 * (ledger + 1)) for ledger in ledgers]


def test_nothing_is_deleted_on_bookies_before_it_is_told_that_the_metadata_is_durable() -> None:
    topic = Topic([*closed(0, 1, 2), LedgerInfo(3, 5, 100)])
    topic.made.trim_soon()
    assert topic.step() == 1 and topic.ready == 1 and not topic.deleted
    prepared, ledgers = topic.made.take([], ())
    assert prepared and [m.ledger for m in ledgers] == [0, 1, 2] and not topic.deleted
    topic.made.delete(ledgers)
    topic.step()
    assert topic.deleted == [(bookie, ledger) for ledger in (0, 1, 2) for bookie in BOOKIES]


def test_what_is_trimmed_is_decided_again_when_it_is_written() -> None:
    topic = Topic([*closed(0, 1, 2), LedgerInfo(3, 5, 100)])
    topic.made.trim_soon()
    topic.step()
    topic.cursor("came meanwhile", (0, 9))
    assert [m.ledger for m in topic.made.take([], ())[1]] == [0]
    topic.made.finished()
    topic.cursors.clear()
    topic.made.trim_soon()
    topic.step()
    topic.cursor("came meanwhile", (0, 3))
    assert topic.made.take([], ()) == (True, []), "it holds all of it: what was prepared is over"


class Stored:
    """A topic's cursors in memory, as they are stored, and which writes failed; a write takes `room` of them."""

    def __init__(self, topic: Topic, names: list[str], room: int) -> None:
        self.topic, self.room = topic, room
        self.dirty = dict.fromkeys(names)
        self.stored: dict[str, Position] = dict.fromkeys(names, (-1, -1))

    def move(self, name: str, to: Position) -> None:
        self.topic.cursor(name, to)
        self.topic.cursors[name].name = name
        self.dirty[name] = None

    def write(self, *, failed: bool = False) -> list[int]:
        """Returns the ledgers that go with it."""
        taken = list(self.dirty)[: self.room]
        for name in taken:
            del self.dirty[name]
        made = self.topic.made
        ended, ledgers = made.take([self.topic.cursors[name] for name in taken], self.dirty)
        if failed:
            self.dirty.update(dict.fromkeys(taken))
            made.put_off(ended)
            return []
        self.stored.update({name: self.topic.cursors[name].mark_delete for name in taken})
        if ended:
            self.topic.catalog.drop_first(len(ledgers))
            made.finished()
        return [metadata.ledger for metadata in ledgers]


def test_a_trim_goes_though_more_cursors_change_all_the_time_than_a_write_takes() -> None:
    topic = Topic([*closed(0, 1), LedgerInfo(2, 500, 100)])
    cursors = Stored(topic, [f"c{number}" for number in range(10)], room=3)
    for name in cursors.stored:
        cursors.move(name, (2, 0))
    topic.made.trim_soon()
    topic.step()
    for turn in range(1, 4):
        assert cursors.write() == [] and topic.ready == 1
        for name in cursors.stored:
            cursors.move(name, (2, turn))
    assert cursors.write() == [0, 1] and min(cursors.stored.values()) > (1, 9)
    assert len(cursors.dirty) == 7


@pytest.mark.parametrize("seed", range(40))
def test_no_cursor_is_stored_before_what_a_trim_leaves_and_each_trim_comes_to_its_end(seed: int) -> None:
    rng = random.Random(seed)
    topic = Topic([*closed(*range(8)), LedgerInfo(8, 100, 100)])
    cursors = Stored(topic, [f"c{number}" for number in range(5)], room=rng.randrange(1, 4))
    for name in cursors.stored:
        cursors.move(name, (-1, -1))
    gone = list[int]()
    for step in range(300):
        name = rng.choice(list(cursors.stored))
        first = topic.catalog.front(1)[0].ledger
        ledger = min(8, first + rng.randrange(3))
        if step > 200 or rng.random() < 0.4:
            cursors.move(name, max(topic.cursors[name].mark_delete, (min(8, step // 20), rng.randrange(10))))
        elif rng.random() < 0.2:
            cursors.move(name, (ledger, rng.randrange(-1, 10)))  # it is put back
        topic.made.trim_soon()
        topic.step()
        if rng.random() < 0.7:
            went = cursors.write(failed=rng.random() < 0.2)
            gone += went
            if went:
                assert min(cursors.stored.values()) >= (went[-1], 9), "a cursor is stored before what is gone"
    for name in cursors.stored:
        cursors.move(name, (8, 50))
    for step in range(20):
        gone += cursors.write()
        cursors.move(f"c{step % 5}", (8, 51 + step))
        topic.made.trim_soon()
        topic.step()
    assert gone == list(range(8)), "all that nobody needs is gone"


def test_one_trim_at_a_time_and_none_of_a_topic_that_has_ended_or_has_nothing_to_give() -> None:
    topic = Topic([*closed(0, 1), LedgerInfo(3, 5, 100)])
    topic.made.trim_soon()
    assert not topic.made.idle
    topic.made.trim_soon()
    assert topic.step() == 1
    topic.made.trim_soon()
    assert topic.step() == 0, "not before the write that takes it is through"
    topic.made.take([], ())
    topic.made.finished()
    assert topic.made.idle
    topic.ended = True
    topic.made.trim_soon()
    assert topic.step() == 0
    for topic in (Topic([]), Topic(closed(0), retention=None), Topic([LedgerInfo(0, 5, 100)])):
        assert topic.trim() == [] and not topic.ready and topic.made.idle


def test_only_durable_cursors_hold_ledgers_and_the_slowest_of_them_decides() -> None:
    topic = Topic([*closed(0, 1, 2, 3), LedgerInfo(4, 5, 100)])
    topic.cursor("fast", (3, 9))
    topic.cursor("slow", (1, 9))
    topic.cursor("reader", (-1, -1), durable=False)
    assert topic.trim() == [0, 1]
    topic.cursor("slow", (2, 8))
    assert topic.trim() == []
    topic.cursor("slow", (2, 9))
    assert topic.trim() == [2]


def test_up_to_where_it_is_truncated_whatever_retention_says_but_no_open_ledger() -> None:
    for retention in (None, Retention(-1, -1), Retention(60, 100)):
        topic = Topic([*closed(0, 1, 2), LedgerInfo(3, 5, 100)], retention)
        topic.now_ms = 5000
        assert topic.trim() == []
        topic.made.truncating = (1, 9)
        assert not topic.made.idle and topic.trim() == [0, 1]
        topic.made.truncating = (3, 4)
        assert topic.trim() == [2] and topic.catalog.ids == [3]


GONE = OffloadRecord("00" * 16, "us-1", OffloadState.LOCAL_GONE)


@pytest.mark.parametrize("metadata_left", [False, True])
def test_what_the_bookies_do_not_have_any_more_is_forgotten_and_not_deleted_there(metadata_left: bool) -> None:
    first, second = closed(0, 1)
    topic = Topic([LedgerInfo(0, 10, 100, first.closed_ms, offload=GONE), second, LedgerInfo(3, 5, 100)])
    if not metadata_left:
        del topic.stored[0]
    assert topic.trim() == [0, 1] and {ledger for _, ledger in topic.deleted} == {1}


def test_a_local_copy_that_goes_while_its_metadata_is_read_is_no_damage() -> None:
    topic = Topic([*closed(0, 1), LedgerInfo(3, 5, 100)])
    del topic.stored[0]
    topic.on_get = lambda: topic.catalog.set_offload(0, GONE)
    assert topic.trim() == [0, 1] and {ledger for _, ledger in topic.deleted} == {1}


def test_a_store_that_is_away_is_asked_again() -> None:
    topic = Topic([*closed(0, 1), LedgerInfo(3, 5, 100)])
    topic.unavailable = True
    topic.made.trim_soon()
    assert topic.step() == 1 and not topic.ready and topic.made.idle, "the next look tries again"
    topic.unavailable = False
    assert topic.trim() == [0, 1]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_ledger_whose_metadata_is_lost_is_told_once_and_trimmed_past_in_its_turn(
    lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody needs goes; nothing that has metadata is deleted earlier, and a cursor holds it as any other."""
    topic = Topic([*closed(0, 1, 2), LedgerInfo(3, 5, 100)])
    topic.cursor("s", (1, 4))
    del topic.stored[lost]
    assert topic.trim() == [0] and topic.catalog.ids == [1, 2, 3]
    topic.cursor("s", (3, 0))
    assert topic.trim() == [1, 2] and topic.catalog.ids == [3]
    assert {ledger for _, ledger in topic.deleted} == {0, 1, 2} - {lost}
    told = [record.__dict__["ledger"] for record in caplog.records if record.message == "retention.metadata_lost"]
    assert told == [lost]


def test_of_very_many_ledgers_some_go_at_a_time_as_if_all_were_looked_at() -> None:
    infos = [LedgerInfo(at, 1, 1 << 20, closed_ms=1 + at) for at in range(700)]
    for retention, left in ((Retention(0, 0), 0), (Retention(-1, 500), 500), (Retention(-1, 100), 100)):
        topic, trims = Topic([*infos, LedgerInfo(700, 1, 100)], retention), []
        while went := topic.trim():
            trims.append(len(went))
            assert went == list(range(went[0], went[0] + len(went)))
        assert topic.catalog.count == left + 1 and max(trims) == min(256, 700 - left)
        held = Topic([*infos, LedgerInfo(700, 1, 100)], retention)
        held.cursor("slow", (649, 0))
        while held.trim():
            pass
        assert held.catalog.ids[0] == max(0, 650 - left), "what is not acknowledged does not count as kept"


@pytest.mark.parametrize("seed", range(200))
def test_time_alone_lets_nothing_go_before_it_is_told_when(seed: int) -> None:
    """What `again_s` names is a moment at or before the first at which a ledger may go; where it names none, none may
    ever.
    """
    rng = random.Random(seed)
    infos, ms = list[LedgerInfo](), 1
    for ledger in range(rng.randrange(1, 5)):
        ms += rng.randrange(0, 90_000, 10_000)
        infos.append(LedgerInfo(ledger, 2, rng.randrange(2 << 20), ms))
    topic = Topic(infos, Retention(rng.choice((-1, 0, 1, 3)), rng.choice((-1, 0, 1, 2))))
    topic.now_ms = ms + rng.randrange(0, 200_000, 10_000)
    if rng.random() < 0.5:
        topic.cursor("c", (rng.randrange(len(infos)), rng.randrange(2)))
    topic.trim()

    def goes(at_ms: int) -> bool:
        retention, left = topic.retention, topic.catalog.recent()
        slowest = min((c.mark_delete for c in topic.cursors.values()), default=topic.last_confirmed)
        assert retention is not None
        return bool(left) and bool(
            trim_count(left, slowest, topic.last_confirmed, retention, at_ms, (-1, -1), LAST_KEPT_MS)
        )

    assert not goes(topic.now_ms)
    first = next((at for at in range(topic.now_ms, topic.now_ms + 600_000, 1000) if goes(at)), None)
    assert first is None or topic.now_ms + topic.made.again_s() * 1000 <= first
    for _ in range(10):
        if (wait_s := topic.made.again_s()) == math.inf:
            break
        topic.now_ms += int(wait_s * 1000)
        topic.trim()
    assert wait_s == math.inf and not goes(topic.now_ms + 10**9)


@pytest.mark.parametrize("hears", (True, False))
def test_a_wrong_wall_clock_ends_no_retention(hears: bool) -> None:
    topic, machine = Topic([*closed(0, 1), LedgerInfo(2, 5, 100)], Retention(minutes=60, mb=-1)), Machine()
    clock = CautiousClock(machine, lambda: [ahead()] if hears else [])
    topic.catalog = Catalog(
        [replace(info, closed_ms=machine.truth_ms) for info in closed(0, 1)] + [LedgerInfo(2, 5, 100)]
    )
    topic.made = LedgerRetention(topic, topic.catalog, topic.made._context, clock, LAST_KEPT_MS)
    machine.wrong_ms = DAY_MS
    assert topic.trim() == [] and topic.made.again_s() == 3600
    machine.passed_s = 3599
    assert topic.trim() == []
    machine.passed_s = 3600
    assert topic.trim() == [0, 1], "its time has passed, whatever the wall clock says"
