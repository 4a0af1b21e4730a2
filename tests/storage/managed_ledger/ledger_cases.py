"""What a managed ledger and its cursors do, whoever makes them: one conformance suite over the real one and its fakes.

Is: the cases, by what a fake is for. Isn't: a way to make a ledger: that is a bench's, beside each of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import pytest

from heliograph.model.errors import AlreadyExists, HeliographError, LedgerFenced, NotAllowed, NotFound, TopicClosed
from heliograph.model.ledger_metadata import ANYWHERE, Affinity
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.wire.run import Run
from storage.managed_ledger.retention.trim_rule import Retention
from tests.storage.managed_ledger.world import Names, names_of, run_of

LOTS = 1 << 20


class Bench(Protocol):
    """Makes the ledger of one topic.

    state: what the ledger of the present owner restores and replays; None: that ledger has no such thing.
    """

    state: Names | None

    async def open(self) -> Any:
        """The ledger of the topic's next owner."""
        ...

    async def settled(self, ledger: Any) -> None:
        """What was appended is confirmed, or has failed."""
        ...

    async def roll(self, ledger: Any) -> None:
        """What is appended from now on lies in another ledger; everything before is confirmed."""
        ...

    async def trim(self, ledger: Any, upto: Position) -> None:
        """Frees what lies at or below `upto`, which is the last entry of a ledger."""
        ...


Case = Callable[[Bench], Awaitable[None]]


class Appends:
    """What was said of what was appended to a ledger."""

    def __init__(self, bench: Bench, ledger: Any) -> None:
        self.bench, self.ledger = bench, ledger
        self.state = bench.state
        self.done: list[tuple[int, int, str]] = []
        self.failed: list[tuple[str, HeliographError]] = []

    def add(self, *names: str, time_ms: int = 0, counts: Sequence[int] | None = None) -> Run:
        run = run_of(*names)
        run.time_ms, run.counts = time_ms, counts

        def done(ledger: int, first: int, run: Run) -> None:
            if self.state is not None:
                self.state.confirm(run)
            self.done += [(ledger, first + i, name) for i, name in enumerate(names_of(run))]

        self.ledger.append_run(run, done, lambda error: self.failed.extend((name, error) for name in names))
        return run

    async def settled(self) -> None:
        await self.bench.settled(self.ledger)

    @property
    def positions(self) -> list[Position]:
        return [(ledger, entry) for ledger, entry, _ in self.done]


async def filled(bench: Bench, ledgers: int = 3, runs: int = 4) -> tuple[Any, Appends]:
    """A ledger with so many ledgers of so many runs of 1, 2, ... entries of ten bytes."""
    ledger = await bench.open()
    appends = Appends(bench, ledger)
    for number in range(ledgers):
        if number:
            await bench.roll(ledger)
        for run in range(runs):
            appends.add(*(f"{number}-{run}-{i}".ljust(10, "_") for i in range(run + 1)), time_ms=1000 * (number + 1))
        await appends.settled()
    return ledger, appends


# -- appending ---------------------------------------------------------------------------------------------------------


async def runs_are_confirmed_in_the_order_of_the_calls(bench: Bench) -> None:
    ledger = await bench.open()
    appends = Appends(bench, ledger)
    for i in range(20):
        appends.add(f"a{i}", *([f"b{i}"] if i % 2 else []))
    assert appends.done == [], "nothing is confirmed before the call returns"
    await appends.settled()
    wanted = [name for i in range(20) for name in (f"a{i}", *([f"b{i}"] if i % 2 else []))]
    assert [name for *_, name in appends.done] == wanted and not appends.failed
    first = appends.done[0][0]
    assert appends.positions == [(first, entry) for entry in range(30)]
    assert ledger.last_confirmed == (first, 29) and ledger.first_position() == (first, 0)


async def indexes_and_times_are_set_by_the_append(bench: Bench) -> None:
    ledger = await bench.open()
    appends = Appends(bench, ledger)
    assert ledger.next_index == ledger.confirmed_index == 0
    runs = [appends.add("a", "b", counts=[3, 1]), appends.add("c", time_ms=77), appends.add("d")]
    assert [run.first_index for run in runs] == [0, 4, 5]
    assert runs[1].time_ms == 77 and runs[0].time_ms > 0 and runs[2].time_ms > 0
    assert (ledger.next_index, ledger.confirmed_index) == (6, 0)
    await appends.settled()
    assert (ledger.next_index, ledger.confirmed_index) == (6, 6)
    found = await ledger.read(ledger.first_position(), 99, LOTS)
    assert [run.first_index for *_, run in found] == [0, 4, 5]
    await bench.roll(ledger)
    assert appends.add("e").first_index == 6
    await appends.settled()


async def whoever_asked_is_woken_by_what_is_confirmed(bench: Bench) -> None:
    ledger = await bench.open()
    appends, woken = Appends(bench, ledger), [0, 0]

    def first() -> None:
        woken[0] += 1
        assert ledger.last_confirmed == appends.positions[-1]

    def second() -> None:
        woken[1] += 1

    stop = ledger.wake_on_append(first)
    ledger.wake_on_append(second)
    appends.add("a")
    await appends.settled()
    assert min(woken) >= 1
    stop()
    stop()
    before = list(woken)
    appends.add("b")
    await appends.settled()
    assert woken[0] == before[0] and woken[1] > before[1]


async def a_closed_one_takes_nothing(bench: Bench) -> None:
    ledger = await bench.open()
    appends = Appends(bench, ledger)
    cursor = await ledger.open_cursor("c", BEFORE_ALL)
    appends.add("on its way")
    await ledger.close()
    assert [name for *_, name in appends.done] == ["on its way"], "what was on its way is waited for"
    cursor.ack(appends.positions)
    appends.add("late")
    assert [(name, type(error)) for name, error in appends.failed] == [("late", TopicClosed)]
    with pytest.raises(TopicClosed):
        await ledger.open_cursor("d", BEFORE_ALL)
    await ledger.close()
    again = await bench.open()
    assert again.last_confirmed == appends.positions[-1] and "d" not in again.cursors
    appends = Appends(bench, again)
    appends.add("later")
    await appends.settled()
    assert len(appends.done) == 1


# -- positions and reading ---------------------------------------------------------------------------------------------


async def an_empty_one(bench: Bench) -> None:
    ledger = await bench.open()
    assert ledger.last_confirmed == BEFORE_ALL and ledger.first_index is None
    assert ledger.first_position() == ledger.next_position(BEFORE_ALL) == (-1, 0)
    assert await ledger.read((0, 0), 9, LOTS) == ledger.cached((0, 0), 9, LOTS) == []
    assert await ledger.first_from((0, 0)) is None
    cursor = await ledger.open_cursor("c", AFTER_ALL)
    assert cursor.mark_delete == BEFORE_ALL and cursor.backlog_entries == cursor.backlog_bytes == 0
    appends = Appends(bench, ledger)
    appends.add("a")
    await appends.settled()
    assert cursor.backlog_entries == 1 and cursor.read_position == appends.positions[0]


async def positions_follow_one_another_over_ledgers(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    positions = appends.positions
    assert positions == sorted(positions) and len({number for number, _ in positions}) == 3
    assert (ledger.first_position(), ledger.last_confirmed) == (positions[0], positions[-1])
    assert ledger.first_index == 0
    for at, position in enumerate(positions):
        following = positions[at + 1] if at + 1 < len(positions) else (position[0], position[1] + 1)
        assert ledger.next_position(position) == following
        assert await ledger.first_from(position) == position
        assert ledger.entries_between(BEFORE_ALL, position) == at + 1
        assert ledger.entries_between(position, ledger.last_confirmed) == len(positions) - at - 1
        assert ledger.entries_between(ledger.last_confirmed, position) == 0
        assert ledger.bytes_between(position, ledger.last_confirmed) == 10 * (len(positions) - at - 1)
        assert ledger.position_after(position, 2) == positions[min(at + 2, len(positions) - 1)]
        assert ledger.position_before(position) == (positions[at - 1] if at else BEFORE_ALL)
    last_of_first = max(position for position in positions if position[0] == positions[0][0])
    beyond = (last_of_first[0], last_of_first[1] + 5)
    assert await ledger.first_from(beyond) == ledger.next_position(last_of_first)
    assert ledger.position_before(beyond) == last_of_first
    assert await ledger.first_from((positions[-1][0], positions[-1][1] + 1)) is None
    assert ledger.position_before(AFTER_ALL) == positions[-1]


async def reads_begin_where_they_should_and_keep_to_their_bounds(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    rng, positions = random.Random(3), appends.positions
    names = {(at, entry): name for at, entry, name in appends.done}
    for step in range(200):
        near = rng.choice(positions)
        position = rng.choice((near, (near[0], near[1] + rng.randrange(12)), (near[0], -1), BEFORE_ALL, (near[0], 0)))
        most, size = rng.choice((1, 2, 3, 7, 99)), rng.choice((1, 10, 25, 60, LOTS))
        found = ledger.cached(position, most, size) if step % 2 else await ledger.read(position, most, size)
        came = [(at, first + i) for at, first, run in found for i in range(run.count)]
        wanted = [there for there in positions if there >= position]
        assert came == wanted[: len(came)], "nothing is left out"
        if not wanted:
            assert not came
        elif not step % 2:
            assert came
        assert len(came) <= most and (len(came) <= 1 or 10 * len(came) <= size)
        assert [name for *_, run in found for name in names_of(run)] == [names[there] for there in came]
    walked: list[Position] = []
    at = ledger.first_position()
    while found := await ledger.read(at, 3, LOTS):
        walked += [(number, first + i) for number, first, run in found for i in range(run.count)]
        at = (walked[-1][0], walked[-1][1] + 1)
    assert walked == positions
    assert await ledger.read(AFTER_ALL, 9, LOTS) == ledger.cached(AFTER_ALL, 9, LOTS) == []


# -- cursors -----------------------------------------------------------------------------------------------------------


async def a_cursor_begins_where_it_is_told(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    positions = appends.positions
    earliest = await ledger.open_cursor("earliest", BEFORE_ALL)
    assert (earliest.mark_delete, earliest.backlog_entries) == (BEFORE_ALL, len(positions))
    assert earliest.read_position == positions[0] and earliest.backlog_bytes == 10 * len(positions)
    latest = await ledger.open_cursor("latest", AFTER_ALL)
    assert (latest.mark_delete, latest.backlog_entries, latest.backlog_bytes) == (positions[-1], 0, 0)
    inside = await ledger.open_cursor("inside", positions[4], properties={"a": "1"})
    assert (inside.mark_delete, inside.backlog_entries) == (positions[4], len(positions) - 5)
    assert inside.read_position == positions[5] and inside.properties == {"a": "1"} and inside.durable
    assert await ledger.open_cursor("inside", positions[9], properties={"a": "2"}) is inside
    assert (inside.mark_delete, inside.properties) == (positions[4], {"a": "1"}), "one that is there stays as it is"
    passing = await ledger.open_cursor("passing", positions[2], durable=False)
    assert not passing.durable
    with pytest.raises(AlreadyExists):
        await ledger.open_cursor("passing", BEFORE_ALL)
    with pytest.raises(AlreadyExists):
        await ledger.open_cursor("inside", BEFORE_ALL, durable=False)
    assert set(ledger.cursors) == {"earliest", "latest", "inside", "passing"}
    with pytest.raises(NotAllowed):
        await ledger.open_cursor("large", BEFORE_ALL, properties={"a": "x" * (100 << 10)})
    assert "large" not in ledger.cursors
    appends.add("later")
    await appends.settled()
    assert latest.backlog_entries == 1 and latest.read_position == appends.positions[-1]


async def acknowledgements_move_what_is_marked_deleted(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    positions, moved = appends.positions, list[Position]()
    count, last = len(positions), positions[-1]
    cursor = await ledger.open_cursor("c", BEFORE_ALL)
    cursor.on_moved = lambda: moved.append(cursor.mark_delete)
    cursor.ack([positions[1], positions[2]])
    assert (cursor.mark_delete, cursor.backlog_entries, moved) == (BEFORE_ALL, count - 2, [])
    assert cursor.is_acked(positions[1]) and not cursor.is_acked(positions[0])
    cursor.ack([positions[1]])
    assert cursor.backlog_entries == count - 2, "twice counts once"
    cursor.ack([positions[0]])
    assert (cursor.mark_delete, cursor.backlog_entries, moved) == (positions[2], count - 3, [positions[2]])
    cursor.ack([(last[0], last[1] + 1), (last[0] + 50, 0)])
    appends.add("later")
    await appends.settled()
    last = appends.positions[-1]
    assert not cursor.is_acked(last) and cursor.backlog_entries == count - 2, "what is to come isn't acknowledged"
    ledger_of = positions[6][0]
    cursor.ack_ranges([(ledger_of, positions[6][1], positions[6][1] + 1), (ledger_of, positions[9][1], 1 << 40)])
    ends = max(position for position in positions if position[0] == ledger_of)
    assert cursor.acked_ranges == [
        (ledger_of, positions[6][1], positions[7][1]),
        (ledger_of, positions[9][1], ends[1]),
    ]
    cursor.ack_cumulative(positions[8])
    assert cursor.mark_delete == ends and cursor.holes == 0, "it goes on over what is acknowledged behind"
    cursor.ack_cumulative(positions[3])
    assert cursor.mark_delete == ends, "it never goes back"
    cursor.ack_cumulative((ends[0], ends[1] + 7))
    assert cursor.mark_delete == ends
    cursor.ack_cumulative(AFTER_ALL)
    assert (cursor.mark_delete, cursor.backlog_entries, cursor.backlog_bytes) == (last, 0, 0)
    assert moved[-1] == last and moved == sorted(set(moved))


async def what_is_unacknowledged_is_cut_out_of_runs(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    positions = appends.positions
    cursor = await ledger.open_cursor("c", positions[3])
    found = await ledger.read(positions[0], 99, LOTS)
    assert _covered(cursor.unacked_runs(found)) == [p for p in _covered(found) if p > positions[3]]
    cursor.ack([positions[5], positions[8], positions[11]])
    wanted = [p for p in _covered(found) if not cursor.is_acked(p)]
    assert _covered(cursor.unacked_runs(found)) == wanted
    assert [cursor.is_acked(p) for p in positions[:7]] == [True, True, True, True, False, True, False]
    assert cursor.unacked_runs([]) == []


def _covered(runs: Sequence[tuple[int, int, Run]]) -> list[Position]:
    return [(ledger, first + i) for ledger, first, run in runs for i in range(run.count)]


async def messages_of_a_batch_are_acknowledged_one_by_one(bench: Bench) -> None:
    ledger, appends = await filled(bench, 1)
    positions = appends.positions
    cursor = await ledger.open_cursor("c", BEFORE_ALL)
    assert cursor.ack_batch(positions[1], 0b1011) == 0b1011
    assert cursor.ack_batch(positions[1], 0b0111) == 0b0011
    assert cursor.partly_acked == {positions[1]: 0b0011} and not cursor.is_acked(positions[1])
    assert cursor.ack_batch(positions[1], 0b1100) == 0
    assert cursor.is_acked(positions[1]) and cursor.backlog_entries == len(positions) - 1
    assert cursor.ack_batch(positions[1], 0b1111) == 0, "it stays acknowledged"
    assert cursor.ack_batch((positions[-1][0], positions[-1][1] + 1), 0b1) == 0 and not cursor.partly_acked
    cursor.ack_batch(positions[0], 0b1)
    cursor.ack_batch(positions[0], 0b0)
    assert cursor.mark_delete == positions[1]


async def a_cursor_is_set_back_and_on(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    positions = appends.positions
    cursor = await ledger.open_cursor("c", BEFORE_ALL)
    cursor.ack([*positions[:4], positions[6]])
    cursor.ack_batch(positions[8], 0b1)
    cursor.reset(positions[1])
    assert (cursor.mark_delete, cursor.backlog_entries) == (positions[1], len(positions) - 2)
    assert not cursor.is_acked(positions[6]) and not cursor.partly_acked
    cursor.reset(AFTER_ALL)
    assert (cursor.mark_delete, cursor.backlog_entries) == (positions[-1], 0)
    cursor.reset(BEFORE_ALL)
    assert cursor.backlog_entries == len(positions)
    cursor.ack([*positions[:10], positions[12]])
    cursor.begin_earlier(positions[2], positions[5], [(*positions[7], positions[7][1])])
    acked = [p for p in positions if cursor.is_acked(p)]
    assert acked == [*positions[:3], positions[6], positions[8], positions[9], positions[12]]
    assert cursor.mark_delete == positions[2] and cursor.backlog_entries == len(positions) - len(acked)


async def cursors_come_back_as_they_were(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    positions = appends.positions
    one = await ledger.open_cursor("one", positions[0], properties={"a": "1"})
    await ledger.open_cursor("two", AFTER_ALL)
    one.ack([positions[1], positions[4], positions[5], positions[-1]])
    one.ack_batch(positions[7], 0b101)
    one.set_properties({"b": "2"})
    await one.flushed()
    again = await bench.open()
    assert set(again.cursors) == {"one", "two"}
    assert await again.open_cursor("one", BEFORE_ALL) is again.cursors["one"]
    found = again.cursors["one"]
    assert (found.mark_delete, found.properties) == (positions[1], {"b": "2"})
    assert found.acked_ranges == one.acked_ranges and found.partly_acked == {positions[7]: 0b101}
    assert found.backlog_entries == len(positions) - 5
    assert again.cursors["two"].mark_delete == positions[-1]


async def a_deleted_cursor_is_gone(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    await ledger.open_cursor("a", BEFORE_ALL)
    await ledger.open_cursor("b", BEFORE_ALL, durable=False)
    await ledger.delete_cursor("a")
    await ledger.delete_cursor("b")
    assert not ledger.cursors
    for name in ("a", "b", "c"):
        with pytest.raises(NotFound):
            await ledger.delete_cursor(name)
    assert (await ledger.open_cursor("a", appends.positions[1])).mark_delete == appends.positions[1], "made anew"
    again = await bench.open()
    assert set(again.cursors) == {"a"}


async def any_acknowledgements_agree_with_a_set_of_positions(bench: Bench) -> None:
    ledger, appends = await filled(bench, ledgers=4, runs=5)
    positions, rng = appends.positions, random.Random(5)
    cursor = await ledger.open_cursor("c", BEFORE_ALL)
    acked = set[Position]()
    for _ in range(120):
        act, at = rng.randrange(12), rng.randrange(len(positions))
        if act < 6:
            chosen = rng.sample(positions, rng.randrange(1, 4))
            cursor.ack(chosen)
            acked |= set(chosen)
        elif act < 9:
            chosen = [p for p in positions[at : at + 5] if p[0] == positions[at][0]]
            cursor.ack_ranges([(chosen[0][0], chosen[0][1], chosen[-1][1])])
            acked |= set(chosen)
        elif act == 9:
            at //= 4
            cursor.ack_cumulative(positions[at])
            acked |= set(positions[: at + 1])
        elif act == 10:
            await cursor.flushed()
            ledger = await bench.open()
            cursor = ledger.cursors["c"]
        elif rng.random() < 0.3:
            cursor.reset(positions[at])
            acked = set(positions[: at + 1])
        whole = next((i for i, p in enumerate(positions) if p not in acked), len(positions))
        assert cursor.mark_delete == (positions[whole - 1] if whole else BEFORE_ALL)
        assert cursor.backlog_entries == len(positions) - len(acked)
        assert [p for p in positions if cursor.is_acked(p)] == sorted(acked)


# -- what a served topic asks ------------------------------------------------------------------------------------------


async def ledgers_are_told_of(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    await ledger.whole()
    infos = ledger.ledgers()
    assert [info.entries for info in infos] == [10, 10, 10] and ledger.entries == 30
    assert [info.size_bytes for info in infos] == [100, 100, 100] and ledger.size_bytes == 300
    assert [info.first_index for info in infos] == [0, 10, 20]
    assert [info.ledger for info in infos] == sorted({number for number, _ in appends.positions})
    assert [bool(info.closed_ms) for info in infos] == [True, True, False]
    assert ledger.ledgers_from(infos[1].ledger)[-2:] == infos[1:]
    assert ledger.open_bytes == 100


async def cursors_are_moved_over_what_is_old(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    positions = appends.positions
    await ledger.open_cursor("slow", BEFORE_ALL)
    fast = await ledger.open_cursor("fast", positions[4])
    await ledger.open_cursor("other", BEFORE_ALL)
    fast.ack([positions[6]])
    assert await ledger.oldest_unacked_ms("slow") == 1000
    with pytest.raises(NotFound):
        await ledger.oldest_unacked_ms("nobody")
    assert await ledger.expire_before(1000, ["slow", "fast"]) == {}, "not older than itself"
    assert await ledger.expire_before(1001, ["slow", "fast"]) == {"slow": 10, "fast": 4}
    assert ledger.cursors["slow"].mark_delete == fast.mark_delete == positions[9]
    assert ledger.cursors["other"].mark_delete == BEFORE_ALL
    assert await ledger.oldest_unacked_ms("slow") == 2000
    assert await ledger.drop_to(150, ["slow"]) == {"slow": 5}
    assert ledger.cursors["slow"].mark_delete == positions[14]
    assert await ledger.drop_to(150, ["slow"]) == {}
    assert await ledger.truncate() == {"slow": 15, "fast": 20, "other": 30}
    assert {cursor.mark_delete for cursor in ledger.cursors.values()} == {positions[-1]}
    assert await ledger.oldest_unacked_ms("slow") == 0


async def a_terminated_one_takes_no_runs(bench: Bench) -> None:
    ledger, appends = await filled(bench, 1)
    assert ledger.terminated_at is None
    assert await ledger.terminate() == ledger.terminated_at == appends.positions[-1]
    appends.add("late")
    assert [(name, type(error)) for name, error in appends.failed] == [("late", NotAllowed)]
    assert await ledger.terminate() == appends.positions[-1]
    cursor = await ledger.open_cursor("c", BEFORE_ALL)
    cursor.ack_cumulative(AFTER_ALL)
    await cursor.flushed()
    again = await bench.open()
    assert again.terminated_at == appends.positions[-1]
    assert again.cursors["c"].mark_delete == appends.positions[-1]
    late = Appends(bench, again)
    late.add("later")
    assert [type(error) for _, error in late.failed] == [NotAllowed]


async def settings_are_taken(bench: Bench) -> None:
    ledger = await bench.open()
    ledger.set_quorums(3, 2, 1)
    assert ledger.quorums == (3, 2, 1)
    with pytest.raises(NotAllowed):
        ledger.set_quorums(1, 2, 2)
    ledger.set_retention(5, 7)
    assert ledger.retention == Retention(5, 7)
    ledger.set_affinity(["a"], ["b"])
    assert ledger.affinity == Affinity(("a",), ("b",))
    ledger.set_affinity([], ["b"])
    assert ledger.affinity == ANYWHERE
    ledger.set_mark_delete_rate(3.0)
    ledger.checkpoint()
    ledger.follow_sealing()


# -- what one owner after another asks ---------------------------------------------------------------------------------


async def the_next_owner_restores_and_replays(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    wanted = [name for *_, name in appends.done]
    appends.add("tail")
    await appends.settled()
    assert appends.state is not None and appends.state.seen == [*wanted, "tail"]
    await ledger.store_state()
    again = await bench.open()
    assert bench.state is not None and bench.state.seen == [*wanted, "tail"] and bench.state.replayed == 0
    more = Appends(bench, again)
    assert again.next_index == again.confirmed_index == 31
    more.add("more", "yet")
    await more.settled()
    assert more.positions[0] > appends.positions[-1]
    third = await bench.open()
    assert bench.state.seen == [*wanted, "tail", "more", "yet"]
    assert third.next_index == 33 and third.last_confirmed == more.positions[-1]


async def the_owner_before_appends_nothing_more(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    end = ledger.last_confirmed
    cursor = await ledger.open_cursor("c", BEFORE_ALL)
    again = await bench.open()
    more = Appends(bench, again)
    more.add("new")
    await more.settled()
    appends.add("old")
    await appends.settled()
    assert [(name, type(error)) for name, error in appends.failed] == [("old", LedgerFenced)]
    assert ledger.last_confirmed == end and again.last_confirmed == more.positions[-1]
    assert await ledger.read((end[0], end[1] + 1), 9, LOTS) == []
    assert isinstance(ledger.failed, LedgerFenced)
    with pytest.raises(LedgerFenced):
        await ledger.open_cursor("d", BEFORE_ALL)
    with pytest.raises(LedgerFenced):
        await ledger.store_state()
    cursor.ack_cumulative(end)
    with pytest.raises(LedgerFenced):
        await cursor.flushed()
    found = await again.read(again.first_position(), 99, LOTS)
    assert "old" not in [name for *_, run in found for name in names_of(run)]
    assert again.cursors["c"].mark_delete == BEFORE_ALL


async def what_is_trimmed_is_passed_over(bench: Bench) -> None:
    ledger, appends = await filled(bench)
    positions = appends.positions
    cursor = await ledger.open_cursor("c", BEFORE_ALL)
    cursor.ack([*positions[:10], positions[12]])
    await cursor.flushed()
    await ledger.store_state()
    await bench.trim(ledger, positions[9])
    assert ledger.first_position() == positions[10] == await ledger.first_from((0, 0))
    assert ledger.first_index != 0
    assert ledger.entries_between(BEFORE_ALL, ledger.last_confirmed) == 20
    assert _covered(await ledger.read(positions[0], 1, LOTS)) == [positions[10]]
    assert cursor.backlog_entries == 19 and cursor.read_position == positions[10]
    cursor.reset(BEFORE_ALL)
    assert cursor.backlog_entries == 20 and cursor.read_position == positions[10]
    cursor.ack([positions[3]])
    assert cursor.backlog_entries == 20, "what is trimmed is passed over"
    again = await bench.open()
    assert again.first_position() == positions[10] and again.last_confirmed == positions[-1]
    assert again.first_index != 0


EVERY: tuple[Case, ...] = (
    runs_are_confirmed_in_the_order_of_the_calls,
    indexes_and_times_are_set_by_the_append,
    whoever_asked_is_woken_by_what_is_confirmed,
    a_closed_one_takes_nothing,
    an_empty_one,
    positions_follow_one_another_over_ledgers,
    reads_begin_where_they_should_and_keep_to_their_bounds,
    a_cursor_begins_where_it_is_told,
    acknowledgements_move_what_is_marked_deleted,
    what_is_unacknowledged_is_cut_out_of_runs,
    messages_of_a_batch_are_acknowledged_one_by_one,
    a_cursor_is_set_back_and_on,
    cursors_come_back_as_they_were,
    a_deleted_cursor_is_gone,
    any_acknowledgements_agree_with_a_set_of_positions,
)
"""Of every ledger."""
SERVED: tuple[Case, ...] = (
    ledgers_are_told_of,
    cursors_are_moved_over_what_is_old,
    a_terminated_one_takes_no_runs,
    settings_are_taken,
)
"""Of a ledger that a topic is served from."""
OWNED: tuple[Case, ...] = (
    the_next_owner_restores_and_replays,
    the_owner_before_appends_nothing_more,
    what_is_trimmed_is_passed_over,
)
"""Of a ledger that goes from owner to owner."""


def conforms(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Runs a test with each case."""
    return pytest.mark.parametrize("case", cases, ids=[case.__name__ for case in cases])  # type: ignore[attr-defined]


async def turns(count: int = 5) -> None:
    """Lets what is due happen."""
    for _ in range(count):
        await asyncio.sleep(0)
