"""A topic is deleted at its source while half of a transaction lies in another region: it has no end any more, and
nobody waits for one.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from heliograph.model.coordinates import Origin
from heliograph.model.positions import Position
from heliograph.runtime.clock import Rng
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run, TxnId
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.topic_state import TopicState
from replicator.log.transaction_buffer import ABORT, COMMIT, TransactionBuffer, marker_run
from replicator.sending.link_sender import SenderSettings
from tests.replicator.audit.audit_world import Damaged
from tests.replicator.link_instance import Instance, TestRegion
from tests.replicator.link_transactions import append, publish, shown
from tests.replicator.log.deleted_topics import Metadata, made_again, play

PIECEMEAL = SenderSettings(window_bytes=1)


def opened(region: TestRegion) -> int:
    buffer = region.log.state.transactions
    return 0 if buffer is None else len(buffer.open)


async def half_of_one(instance: Instance) -> list[int]:
    """us publishes a transaction, and commits it; eu is cut off when it has some of it. What was published in it."""
    us, eu = instance.regions["us"], instance.regions["eu"]
    mine = publish(us, (0, 1), 3)
    publish(us, None, 3)
    mine += publish(us, (0, 1), 3)
    await asyncio.sleep(1)
    append(us, marker_run((0, 1), COMMIT, 2))
    for _ in range(1000):
        await asyncio.sleep(0.002)
        if opened(eu):
            break
    instance.sim.network.cut("us", "eu")
    await asyncio.sleep(12)  # it is noticed
    assert opened(eu) and not shown(eu)
    return mine


def test_half_of_a_transaction_whose_end_was_deleted_with_its_topic_is_aborted() -> None:
    """ap has all of it, and keeps it. eu shows nothing of it, and everything behind it; audits leave both as they
    are.
    """

    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        mine = await half_of_one(instance)
        behind = publish(eu, None, 2)
        await asyncio.sleep(5)
        dead, marker = us.log.origin, ap.log.state.transactions
        assert shown(eu) == [] and set(mine) < set(shown(ap)) and marker is not None and not marker.open
        await made_again(us, Metadata())
        instance.sim.network.heal("us", "eu")
        more = publish(us, None, 2)
        await asyncio.sleep(20)
        buffer = eu.log.state.transactions
        assert buffer is not None and not buffer.open and list(buffer.aborted) == [(dead, 0, 1)]
        assert shown(eu) == [*behind, *more] and set(mine) | set(behind) | set(more) < set(shown(ap))
        assert eu.link("us").backlog_entries == eu.link("ap").backlog_entries == 0, "its own links had waited, too"
        for region in (eu, ap):
            before = shown(region)
            report = await Damaged(instance).audit(region)
            assert not report.found and shown(region) == before, report.shown()
        for saved in (False, True):
            if saved:
                eu.ledger.save()  # nothing is replayed then
            await eu.move(1 - eu.owner)
            await asyncio.sleep(5)
            assert shown(eu) == [*behind, *more] and not opened(eu)
        end = ap.log.vector.prefix(dead)
        late = next(
            run
            for _, _, run in ap.store.runs()
            if run.transaction == (0, 1) and run.flags is not None and run.origin == dead
        )
        assert late.coordinate(0) == end
        eu.brokers[eu.owner].machine.run(
            eu.log.append_late, late, lambda _: None, lambda error: eu.faults.append(repr(error))
        )
        await asyncio.sleep(1)
        assert shown(eu) == [*behind, *more] and not opened(eu), "a late end changes nothing"

    play(scenario, ("us", "eu", "ap"), PIECEMEAL)


ORIGIN: Origin = (2, 1, 7)


def state_of(blob: bytes = b"") -> TopicState:
    rng: Rng = random.Random(1)
    state = TopicState(region=1, epoch=1, rng=rng, deduplication=False, settings=DedupSettings())
    state.restore(blob)
    return state


def part(first: int, txn: TxnId | None, origin: Origin = ORIGIN) -> Run:
    return Run([b"x"], [1], transaction=txn, origin=origin, spans=((3, first, 1),), checksums=(0,))


def deleted(
    after: Position, through: Position, reason: SkipReason = SkipReason.DELETED, origin: Origin = ORIGIN
) -> Run:
    return SkipRecord(origin, after, through, reason, "eu").as_run()


def ends_open(state: TopicState) -> set[tuple[Origin | None, int, int]]:
    assert state.transactions is not None
    return set(state.transactions.open)


def retained_from(state: TopicState, first: Position) -> None:
    state.positions.first = lambda: first


def test_only_what_has_no_end_any_more_is_aborted_wherever_the_log_is_replayed_from() -> None:
    other: Origin = (2, 1, 8)
    log = [
        part(0, (0, 1)),
        part(1, (0, 2)),
        part(0, (0, 1), other),
        deleted((3, 1), (3, 4), SkipReason.LOST),
        deleted((3, 4), (3, 9)),
        part(1, (0, 3), other),
    ]
    state = state_of()
    snapshots = [state.snapshot()]
    for at, run in enumerate(log):
        state.replay(5, at, run)
        snapshots.append(state.snapshot())
        if at == 3:
            assert ends_open(state) == {(ORIGIN, 0, 1), (ORIGIN, 0, 2), (other, 0, 1)}, (
                "its region may still say how it ended"
            )
    assert ends_open(state) == {(other, 0, 1), (other, 0, 3)} and state.transactions is not None
    assert set(state.transactions.aborted) == {(ORIGIN, 0, 1), (ORIGIN, 0, 2)} and state.transactions.aborts == 2
    for start, snapshot in enumerate(snapshots):
        again = state_of(snapshot)
        for at in range(max(0, start - 2), len(log)):  # some of it a second time
            again.replay(5, at, log[at])
        assert ends_open(again) == ends_open(state) and again.transactions is not None
        assert set(again.transactions.aborted) == set(state.transactions.aborted) and again.transactions.aborts == 2


def test_what_a_truncation_named_once_aborts_nothing_when_it_is_replayed_again() -> None:
    """It is stored before the topic's first transaction: the snapshot behind it has one open, of the same
    incarnation.
    """
    skip, first = deleted((3, -1), (3, 4)), part(5, (0, 1))
    state = state_of()
    for at, run in enumerate((skip, first)):
        state.replay(5, at, run)
    again = state_of(state.snapshot())
    again.replay(5, 0, skip)
    assert ends_open(again) == {(ORIGIN, 0, 1)}


def test_an_end_that_came_first_stays() -> None:
    state = state_of()
    state.replay(5, 0, part(0, (0, 1)))
    marker = marker_run((0, 1), COMMIT, 2)
    marker.origin, marker.spans, marker.checksums = ORIGIN, ((3, 1, 1),), (0,)
    state.replay(5, 1, marker)
    state.replay(5, 2, deleted((3, 1), (3, 9)))
    assert (
        state.transactions is not None
        and not state.transactions.aborted
        and not state.transactions.open
        and state.transactions.commits == 1
    )


def test_half_a_transaction_that_an_earlier_version_left_open_is_aborted_when_its_topic_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other: Origin = (2, 1, 8)
    with monkeypatch.context() as earlier:
        earlier.setattr(TransactionBuffer, "give_up", lambda *_: None)
        state = state_of()
        log = [
            part(0, (0, 1)),
            part(0, (0, 1), other),
            deleted((3, 0), (3, 9)),
            deleted((3, 0), (3, 9), SkipReason.LOST, other),
        ]
        for at, run in enumerate(log):
            state.replay(5, at, run)
        assert ends_open(state) == {(ORIGIN, 0, 1), (other, 0, 1)}
        stored = state.snapshot()
    assert ends_open(state_of(stored)) == {(other, 0, 1)}, "of what was lost its region may still say how it ended"


def test_what_is_remembered_of_a_deleted_incarnation_goes_with_its_entries() -> None:
    """The watermark that lets others go never comes. An entry that comes late all the same opens nothing."""
    other: Origin = (2, 1, 8)
    ended = marker_run((0, 1), ABORT, 0)
    ended.origin, ended.spans, ended.checksums = other, ((3, 1, 1),), (0,)
    state = state_of()
    log = [
        part(0, (0, 1)),
        part(0, (0, 1), other),
        ended,
        deleted((3, 0), (3, 9)),
        part(2, None, other),
        part(3, None, other),
    ]
    for at, run in enumerate(log):
        state.replay(5, at, run)
    both = {(ORIGIN, 0, 1), (other, 0, 1)}
    assert state.transactions is not None
    for first, left in (((5, 0), both), ((5, 2), {(other, 0, 1)})):
        retained_from(state, first)
        state.snapshot()
        assert set(state.transactions.aborted) == left, "an incarnation that lives may send more of it"
    again = state_of(state.snapshot())
    again.replay(5, 6, part(5, (0, 1)))
    again.replay(5, 7, part(6, (0, 2)))
    assert not ends_open(again) and again.transactions is not None
    assert set(again.transactions.aborted) == {(other, 0, 1), (ORIGIN, 0, 1), (ORIGIN, 0, 2)}, "readers do not see them"
    assert again.transactions.undecided_from() is None


@pytest.mark.parametrize("seed", range(8))
def test_wherever_a_topic_is_deleted_no_region_shows_a_part_or_waits_for_ever(seed: int) -> None:
    async def scenario(instance: Instance) -> None:
        rng = random.Random(seed)
        us, eu, ap = instance.regions.values()
        meta, parts, ended = Metadata(), dict[TxnId, list[int]](), dict[TxnId, int]()
        kept: set[int] = set()

        def check() -> None:
            for region in (us, eu, ap):
                seen = set(shown(region))
                for txn, bodies in parts.items():
                    visible = seen & set(bodies)
                    assert not visible or ended.get(txn) == COMMIT, f"{region.name} shows {txn}, which is not committed"

        for turn in range(60):
            alive = [txn for txn in parts if txn not in ended]
            match rng.randrange(9):
                case 0 | 1:
                    parts[0, turn + 1] = publish(us, (0, turn + 1), rng.randrange(1, 4))
                case 2 | 3 if alive:
                    txn = rng.choice(alive)
                    parts[txn] += publish(us, txn, rng.randrange(1, 4))
                case 4 | 5 if alive:
                    txn = rng.choice(alive)
                    ended[txn] = rng.choice((COMMIT, COMMIT, COMMIT, ABORT))
                    append(us, marker_run(txn, ended[txn], 0))
                case 6:
                    kept |= set(publish(rng.choice((eu, ap)), None, 1))
                case 7:
                    instance.sim.network.cut("us", rng.choice(("eu", "ap")))
                case _:
                    region = rng.choice((us, eu, ap))
                    if rng.random() < 0.5:
                        region.ledger.save()
                    await region.move(1 - region.owner)
            if turn in (30, 59):
                await made_again(us, meta)
                ended |= {txn: ABORT for txn in parts if txn not in ended}
                for name in ("eu", "ap"):
                    instance.sim.network.heal("us", name)
            await asyncio.sleep(0.1 * rng.random())
            check()
        await asyncio.sleep(40)
        kept |= set(publish(us, None, 2))
        await asyncio.sleep(10)
        check()
        for region in (eu, ap):
            seen = set(shown(region))
            assert not opened(region) and kept <= seen, f"{region.name} waits for what never comes"
            for txn, bodies in parts.items():
                assert seen & set(bodies) in (set(), set(bodies)), f"{region.name} shows a part of {txn}"

    play(scenario, ("us", "eu", "ap"), PIECEMEAL)
