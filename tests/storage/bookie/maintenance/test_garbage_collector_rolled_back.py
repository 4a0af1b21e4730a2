"""Metadata that goes back in time: its volume, or its machine, is put back to a snapshot, and keeps its instance id.

Unlike a restore from a backup, nothing says so but what bookies have seen of it: nothing is deleted by it until an
operator has looked.
"""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.errors import NotAllowed
from heliograph.wire.bookie_frames import BookieCode, Kind, encode
from local_meta import keys
from local_meta.ledger_ids import passed_over
from storage.bookie.journal.checkpoint import KnownMetadata, load_known_metadata
from storage.bookie.journal.small_files import write_small
from storage.bookie.maintenance.garbage_collector import GarbageCollector
from tests.local_meta.passed_over_ids import pass_over
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import add, send
from tests.storage.bookie.maintenance.garbage import QUICK, Lying, put_back, scenario

SINCE = [31, 32, 33]


async def made(box: Box, meta: Lying, ledgers: list[int]) -> None:
    for ledger in ledgers:
        await meta.put(keys.ledger(ledger), b"metadata")
        send(box.bookie, box.peer, add(ledger, 0, 2))
    await asyncio.sleep(0.2)  # journalled


async def passes(collector: GarbageCollector, count: int = 3) -> None:
    for _ in range(count):
        await collector.once()


def kept(box: Box) -> bool:
    return set(SINCE) <= set(box.bookie.ledgers())


def test_ledgers_made_since_the_snapshot_stay_on_their_bookies() -> None:
    """A ledger goes from a bookie only where it was deleted, never because the metadata forgot it."""

    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()  # it knows the instance
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        await collector.once()  # it has seen them named
        meta.machine = put_back(snapshot)
        await passes(collector)
        assert kept(box) and "went back" in collector.rules.refusal and collector.went_back

    scenario(body)


@pytest.mark.parametrize("restarted", [False, True])
def test_however_far_the_metadata_has_come_since_and_over_restarts(
    restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        await collector.once()
        far = meta.machine.index + 1000
        meta.machine = put_back(snapshot)
        while meta.machine.index < far:
            await meta.put("/load/broker", b"")
        await meta.next_ids(keys.LEDGER_IDS, 100)
        if restarted:
            box.restart()
            collector = GarbageCollector(box.bookie, meta, QUICK, rng=box.rng)
        await passes(collector)
        assert kept(box) and "went back" in collector.rules.refusal
        assert [record.message for record in caplog.records].count("bookie.metadata_went_back") == 1, "said once"

    scenario(body)


def test_what_an_operator_confirms_goes_and_what_is_made_from_then_on_is_watched_again() -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        await collector.once()
        meta.machine = put_back(snapshot)
        await passes(collector)
        assert kept(box)
        await collector.confirm()
        await collector.once()
        assert kept(box), "two passes again"
        await collector.once()
        assert box.bookie.ledgers() == list(range(1, 31)) and not collector.rules.refusal and not collector.went_back
        snapshot = meta.machine.snapshot()
        await made(box, meta, [40, 41])
        await collector.once()
        meta.machine = put_back(snapshot)
        await passes(collector)
        assert {40, 41} <= set(box.bookie.ledgers()) and collector.went_back

    scenario(body)


def test_the_newer_disk_put_in_again_needs_no_operator() -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        await collector.once()
        newest, meta.machine = meta.machine, put_back(snapshot)
        await passes(collector)
        assert collector.went_back
        meta.machine = newest
        await meta.delete(keys.ledger(31))
        await passes(collector, 2)
        assert not collector.went_back and not collector.rules.refusal
        assert box.bookie.ledgers() == [*range(1, 31), 32, 33]

    scenario(body)


def test_an_id_that_is_still_to_be_given_out_is_proof_and_stays_so() -> None:
    """Put back to a moment behind the last look: the mark is as it was. No id comes again, and that the counter stands
    above it from then on takes nothing back.
    """

    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        meta.machine = put_back(snapshot)
        await passes(collector)
        assert kept(box) and "holds, or held, ledger 33" in collector.rules.refusal
        assert await meta.next_ids(keys.LEDGER_IDS, 0) > 33
        box.restart()
        again = GarbageCollector(box.bookie, meta, QUICK, rng=box.rng)
        await passes(again)
        assert kept(box) and again.went_back
        await again.confirm()
        await passes(again, 2)
        assert box.bookie.ledgers() == list(range(1, 31))

    scenario(body)


def test_a_deleted_ledger_is_proof_too() -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        await meta.delete(keys.ledger(33))
        await passes(collector, 2)
        assert 33 not in box.bookie.ledgers()
        collector = GarbageCollector(box.bookie, meta, QUICK, rng=box.rng)
        meta.machine = put_back(snapshot)
        await box.flushed()
        await passes(collector)
        assert {31, 32} <= set(box.bookie.ledgers()) and collector.went_back

    scenario(body)


def test_a_pass_in_whose_middle_the_metadata_goes_back_is_none() -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        await collector.once()
        answer, newest = meta.range, meta.machine

        async def put_back_before_it(start: str, end: str, *, limit: int = 10_000) -> list[tuple[str, bytes, int]]:
            meta.machine = put_back(snapshot)
            return await answer(start, end, limit=limit)

        meta.range = put_back_before_it  # type: ignore[method-assign]
        for _ in range(3):
            meta.machine = newest
            await collector.once()
            assert "went back" in collector.trouble and kept(box)

    scenario(body)


def test_a_put_that_the_bookie_did_not_hear_of_is_no_step_back() -> None:
    """Its process dies between the mark's put and the write to its own disk."""

    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        known = box.bookie.known_metadata
        await meta.put(keys.seen_by_bookie(box.bookie.bookie_id), b"")
        box.restart()
        assert box.bookie.known_metadata == known
        again = GarbageCollector(box.bookie, meta, QUICK, rng=box.rng)
        await meta.delete(keys.ledger(7))
        await passes(again, 2)
        assert 7 not in box.bookie.ledgers() and not again.went_back

    scenario(body)


def test_who_knows_the_instance_alone_is_given_a_mark() -> None:
    """A bookie of an earlier version has written down nothing else."""

    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        known = box.bookie.known_metadata
        write_small(box.ledgers.disk(), "metadata", [known.instance])
        assert load_known_metadata(box.ledgers.disk()) == KnownMetadata(known.instance)
        box.restart()
        again = GarbageCollector(box.bookie, meta, QUICK, rng=box.rng)
        await again.once()
        assert box.bookie.known_metadata.seen > known.seen and not again.rules.refusal

    scenario(body)


async def put_back_and_led(meta: Lying, snapshot: bytes) -> None:
    """As a metadata that is put back does: its ids go on above all that were given out by any state of it."""
    meta.machine = put_back(snapshot)
    upcoming = await meta.next_ids(keys.LEDGER_IDS, 0)
    await pass_over(meta, upcoming, 100)


def test_ids_that_were_passed_over_are_proof_until_an_operator_confirms() -> None:
    """Put back to a moment behind the last look: neither the mark nor the counter shows it."""

    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        await put_back_and_led(meta, snapshot)
        await passes(collector)
        await collector.look()
        assert kept(box) and "ledger 31, which this bookie holds, nor those of 2 more" in collector.rules.refusal
        assert collector.went_back and box.bookie.keeps
        box.restart()
        again = GarbageCollector(box.bookie, meta, QUICK, rng=box.rng)
        await passes(again)
        assert kept(box) and again.went_back
        await again.confirm()
        box.restart()
        again = GarbageCollector(box.bookie, meta, QUICK, rng=box.rng)
        await passes(again, 2)
        assert box.bookie.ledgers() == list(range(1, 31)) and not again.went_back and not box.bookie.keeps

    scenario(body)


def test_what_was_made_beside_the_newer_disk_stays_when_that_is_there_again() -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        await collector.once()
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        await collector.once()
        newest = meta.machine.snapshot()
        await put_back_and_led(meta, snapshot)
        await made(box, meta, [110, 111])
        await passes(collector)
        meta.machine = put_back(newest)
        await pass_over(meta, await meta.next_ids(keys.LEDGER_IDS, 0), 200)
        assert 110 in await passed_over(meta) and 33 not in await passed_over(meta)
        await meta.delete(keys.ledger(31))
        await passes(collector, 4)
        assert {31, *SINCE, 110, 111} <= set(box.bookie.ledgers()) and "ledger 110" in collector.rules.refusal

    scenario(body)


def test_a_broker_that_deletes_by_a_metadata_that_went_back_is_refused() -> None:
    """What it was told is gone may be there again with the newer disk. Its bookies find out by themselves."""

    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        async def delete(ledger: int) -> BookieCode:
            send(box.bookie, box.peer, encode(Kind.DELETE, ledger=ledger, request=ledger))
            await asyncio.sleep(0.2)
            return BookieCode(box.peer.answers[ledger][0])

        await collector.once()
        snapshot = meta.machine.snapshot()
        await made(box, meta, SINCE)
        await collector.once()
        newest, meta.machine = meta.machine, put_back(snapshot)
        await collector.glance()
        assert await delete(7) == BookieCode.UNKNOWN and 7 in box.bookie.ledgers()
        meta.machine = newest
        await collector.look()
        assert await delete(7) == BookieCode.OK and 7 not in box.bookie.ledgers()

    scenario(body)


def test_a_glance_that_is_refused_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(box: Box, meta: Lying, collector: GarbageCollector) -> None:
        async def refused(key: str) -> None:
            raise NotAllowed(f"a bookie may not read {key}")

        await collector.once()
        monkeypatch.setattr(meta, "get", refused)
        await collector.glance()
        assert not collector.went_back

    scenario(body)
