"""Garbage collection of ledgers: what the metadata still knows stays, whatever a single pass says, and an operator is
asked where much would go.
"""

from __future__ import annotations

import pytest

from heliograph.wire.bookie_frames import BookieCode
from local_meta import keys
from storage.bookie.maintenance.garbage_collector import GarbageCollector, GarbageRules
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import add, send
from tests.storage.bookie.maintenance.garbage import QUICK, Lying, ledgers_come_and_go, scenario


def test_what_the_metadata_deleted_goes_in_the_second_pass_and_for_ever() -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        for ledger in (3, 4, 5):
            await meta.delete(keys.ledger(ledger))
        await collector.once()
        assert box.bookie.ledgers() == list(range(1, 31))
        await collector.once()
        left = [1, 2, *range(6, 31)]
        assert box.bookie.ledgers() == left and collector.deleted == 3
        box.restart()
        assert box.bookie.ledgers() == left
        send(box.bookie, box.peer, add(4, 2, 1))
        assert box.peer.losses == {4: BookieCode.NO_SUCH_LEDGER}

    scenario(body)


def test_one_wrong_answer_deletes_nothing() -> None:
    """A pass to which the metadata did not tell a ledger, before and behind passes that are right."""

    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        for wrong in (0, 1, 0, 1, 0):
            meta.hide = wrong
            await collector.once()
            assert box.bookie.ledgers() == list(range(1, 6))
        meta.away = True
        await collector.once()
        assert "away" in collector.trouble
        for wrong in (1, 0):  # two wrong ones around one that broke are not two in a row
            meta.away = False
            meta.hide = wrong
            await collector.once()
            meta.away = True
            await collector.once()
            meta.away, meta.hide = False, wrong
            await collector.once()
            assert box.bookie.ledgers() == list(range(1, 6))

    scenario(body, ledgers=5)


def test_a_pass_that_broke_does_not_count() -> None:
    rules = GarbageRules("one")
    assert rules.on_pass("one", 100, [5]) == []
    rules.on_broken_pass()
    assert rules.on_pass("one", 100, [5]) == []
    assert rules.on_pass("one", 100, [5, 6]) == [5]
    assert rules.on_pass("one", 99, [6]) == [6]


def test_two_passes_at_once_are_no_two_passes() -> None:
    rules = GarbageRules("one", apart_s=60)
    assert rules.on_pass("one", 100, [5], 1000) == []
    assert rules.on_pass("one", 100, [5, 6], 1059) == []
    assert rules.on_pass("one", 100, [5, 6], 1061) == [5]
    assert rules.on_pass("one", 100, [], 1100) == []
    assert rules.on_pass("one", 100, [6], 1200) == [], "it was there meanwhile"


def test_more_than_a_fifth_waits_for_an_operator() -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        for ledger in range(1, 8):
            await meta.delete(keys.ledger(ledger))
        for _ in range(3):
            await collector.once()
        assert len(box.bookie.ledgers()) == 30 and "7 of 30" in collector.rules.refusal
        await collector.confirm()
        await meta.delete(keys.ledger(30))  # this one was not confirmed
        for _ in range(3):
            await collector.once()
        assert len(box.bookie.ledgers()) == 30 and "8 of 30" in collector.rules.refusal
        await collector.confirm()
        for _ in range(2):
            await collector.once()
        assert box.bookie.ledgers() == list(range(8, 30)) and not collector.rules.refusal

    scenario(body)


def test_exactly_a_fifth_may_go() -> None:
    rules = GarbageRules("one")
    doomed = list(range(20))
    assert rules.on_pass("one", 100, doomed) == []
    assert rules.on_pass("one", 100, doomed) == doomed
    assert rules.on_pass("one", 100, [*doomed, 20]) == [] and rules.refusal


def test_restored_metadata_deletes_nothing_until_confirmed_also_after_a_restart() -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        known = box.bookie.known_metadata.instance
        assert known
        await meta.put(keys.INSTANCE, b"restored")
        await meta.delete(keys.ledger(9))
        for _ in range(3):
            await collector.once()
        assert 9 in box.bookie.ledgers() and "restored" in collector.rules.refusal
        box.restart()
        assert box.bookie.known_metadata.instance == known
        again = GarbageCollector(box.bookie, meta, QUICK, rng=box.rng)
        for _ in range(3):
            await again.once()
        assert 9 in box.bookie.ledgers() and "restored" in again.rules.refusal
        await again.confirm()
        await again.once()
        assert 9 in box.bookie.ledgers(), "two passes again"
        await again.once()
        assert 9 not in box.bookie.ledgers() and not again.rules.refusal
        box.restart()
        assert box.bookie.known_metadata.instance == "restored"

    scenario(body)


def test_a_restore_in_the_middle_of_a_pass_makes_it_none() -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        known = collector.rules.instance
        await meta.delete(keys.ledger(9))
        await collector.once()
        answer = meta.range

        async def restored_behind_it(start: str, end: str, *, limit: int = 10_000) -> list[tuple[str, bytes, int]]:
            found = await answer(start, end, limit=limit)
            await meta.put(keys.INSTANCE, b"restored")
            return found

        meta.range = restored_behind_it  # type: ignore[method-assign]
        await collector.once()
        meta.range = answer  # type: ignore[method-assign]
        assert 9 in box.bookie.ledgers() and "changed during a pass" in collector.trouble
        await meta.put(keys.INSTANCE, known.encode())
        await collector.once()
        assert 9 in box.bookie.ledgers(), "the passes begin anew"
        await collector.once()
        assert 9 not in box.bookie.ledgers()

    scenario(body)


def test_passes_of_two_instances_are_no_two_passes() -> None:
    rules = GarbageRules("one")
    assert rules.on_pass("one", 100, [5]) == []
    assert rules.on_pass("two", 100, [5]) == []
    assert rules.on_pass("one", 100, [5]) == []
    assert rules.on_pass("one", 100, [5]) == [5]


@pytest.mark.parametrize("seed", range(25))
def test_no_living_ledger_ever_goes(seed: int) -> None:
    """Ledgers come and go, the metadata answers wrongly now and then, the power is cut."""
    ledgers_come_and_go(seed)
