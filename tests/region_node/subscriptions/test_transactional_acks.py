"""What a subscription keeps of its transactions when its topic is loaded again."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.errors import NotAllowed
from heliograph.model.positions import Position
from heliograph.wire.run import TxnId
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.subscriptions.consumer import SubscriptionType
from region_node.subscriptions.subscription import Subscription
from region_node.transactions.participants.transaction_errors import TransactionConflict
from storage.managed_ledger.cursors.cursor import GIVEN_BYTES_MAX
from tests.region_node.subscriptions.dispatch_world import World, run


@pytest.mark.parametrize("commit", [True, False])
def test_an_acknowledgement_that_comes_after_its_transaction_ended_is_refused_after_a_reload_too(commit: bool) -> None:
    """All transactions have ended: nothing is held, and only the low watermark says that they did."""

    async def scenario(world: World) -> None:
        world.append(3)
        await world.settle()
        ledger = world.ledger.last_confirmed[0]
        parts = world.subscription.transactions
        parts.ack((4, 1), [(ledger, 0)], [])
        parts.end((4, 1), commit=commit, low=2)
        await parts.stored()
        with pytest.raises(TransactionConflict, match="has ended"):
            parts.ack((4, 1), [(ledger, 1)], [])
        again = Subscription(
            "s",
            world.ledger,
            world.cursor,
            ReadyQueue(lambda *_: None),
            BoundedReads(world.tasks, 2),
            durable=True,
            partition=-1,
            on_end=lambda: False,
            properties=world.cursor.properties,
        )
        with pytest.raises(TransactionConflict, match="has ended"):
            again.transactions.ack((4, 1), [(ledger, 1)], [])
        again.transactions.ack((4, 2), [(ledger, 1)], [])

    run(scenario)


@pytest.mark.parametrize("entry", [1 << 63, (1 << 64) - 1])
def test_an_entry_that_cannot_be_there_is_refused_and_the_others_are_stored(entry: int) -> None:
    async def scenario(world: World) -> None:
        world.append(3)
        await world.settle()
        ledger = world.ledger.last_confirmed[0]
        parts = world.subscription.transactions
        for whole, partly in (([(ledger - 1, entry)], []), ([], [((ledger - 1, entry), 1, 2)])):
            with pytest.raises(NotAllowed, match="is not there"):
                parts.ack((4, 1), whole, partly)
        parts.ack((4, 1), [(ledger, 0)], [])
        await parts.stored()
        parts.end((4, 1), commit=True, low=2)

    run(scenario)


LARGE = 64 * 4096


def test_an_end_that_cannot_be_stored_takes_nothing_and_may_be_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        world.append(4)
        await world.settle()
        ledger, cursor, parts = world.ledger.last_confirmed[0], world.cursor, world.subscription.transactions
        parts.ack((0, 1), [], [((ledger, 0), 1, 8)])
        parts.ack((0, 2), [(ledger, 1)], [((ledger, 2), 1, 8), ((ledger, 0), 2, 8)])
        parts.ack_cumulative((0, 2), (ledger, 0))
        stored = cursor.set_properties

        def refused(properties: dict[str, str]) -> None:
            raise NotAllowed("too many bytes")

        monkeypatch.setattr(cursor, "set_properties", refused)
        for _ in range(2):
            with pytest.raises(NotAllowed):
                parts.end((0, 2), commit=True, low=0)
            with pytest.raises(NotAllowed):
                await parts.stored()
            assert sorted(parts.pending.held) == [(0, 1), (0, 2)] and not cursor.is_acked((ledger, 1))
            held = parts.pending.held[0, 2]
            assert (list(held.whole), held.cumulative) == ([(ledger, 1)], (ledger, 0)) and parts.commits == 0
            assert held.partly == {(ledger, 2): (1, 8), (ledger, 0): (2, 8)}
            assert parts.pending.partly[ledger, 0] == {(0, 1): 1, (0, 2): 2}
        parts.ack((0, 2), [(ledger, 3)], [])  # it has not ended
        monkeypatch.setattr(cursor, "set_properties", stored)
        parts.end((0, 1), commit=False, low=0)
        parts.end((0, 2), commit=True, low=0)
        assert cursor.mark_delete == (ledger, 1) and cursor.is_acked((ledger, 3)) and not parts.pending
        assert cursor.partly_acked[ledger, 2] == 0b11111110
        await parts.stored()

    run(scenario)


def test_what_transactions_hold_can_always_be_stored() -> None:
    async def scenario(world: World) -> None:
        count = 30
        world.append(count)
        await world.settle()
        ledger, parts = world.ledger.last_confirmed[0], world.subscription.transactions
        world.cursor.set_properties({"given": "x" * (GIVEN_BYTES_MAX - 100)})
        with pytest.raises(NotAllowed, match="commit"):
            for entry in range(count):
                parts.ack((0, 1 + entry % 2), [], [((ledger, entry), (1 << LARGE) - 1, LARGE)])
        await parts.stored()
        held = len(parts.pending.partly)
        assert 4 <= held < count
        parts.ack((0, 1), [(ledger, entry) for entry in range(0, held, 2)], [])  # whole ones take their place
        parts.ack((0, 2), [], [((ledger, held), (1 << LARGE) - 1, LARGE)])
        parts.end((0, 2), commit=True, low=0)
        await parts.stored()
        assert sum(world.cursor.is_acked((ledger, entry)) for entry in range(count)) == held // 2 + 1

    run(scenario)


class CountedBatches(dict[Position, dict[TxnId, int]]):
    """Counts how often one of its batches was looked at."""

    looks = 0

    def __getitem__(self, position: Position) -> dict[TxnId, int]:
        CountedBatches.looks += 1
        return super().__getitem__(position)

    def get(self, position: Position, other: Any = None) -> Any:
        CountedBatches.looks += 1
        return super().get(position, other)

    def __contains__(self, position: object) -> bool:
        CountedBatches.looks += 1
        return super().__contains__(position)

    def items(self) -> Any:
        CountedBatches.looks += len(self)
        return super().items()

    def __iter__(self) -> Any:
        CountedBatches.looks += len(self)
        return super().__iter__()


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED, SubscriptionType.EXCLUSIVE])
def test_what_goes_out_costs_no_more_where_transactions_hold_parts_of_many_batches(kind: SubscriptionType) -> None:
    async def scenario(world: World) -> None:
        batches, entries = 2_000, 500
        world.append(batches, counts=[8] * batches)
        await world.settle()
        ledger, parts = world.ledger.last_confirmed[0], world.subscription.transactions
        parts.ack((0, 1), [], [((ledger, entry), 0b110, 8) for entry in range(batches)])
        parts.ack((0, 2), [], [((ledger, 7), 0b1, 8)])
        world.subscription.ack_batch(world.join(kind), (ledger, 7), 0b01111111)
        world.subscription.ack_batch(next(iter(world.sinks)), (ledger, 8), 0b01111111)
        parts.pending._partly = CountedBatches(parts.pending.partly)
        world.append(entries)
        await world.settle()
        CountedBatches.looks = 0
        if kind is not SubscriptionType.EXCLUSIVE:
            world.join(kind)
        for consumer in world.sinks:
            world.subscription.flow(consumer, 100_000)
        for _ in range(40):
            await world.settle()
        sent = sum(len(sink.got) for sink in world.sinks.values())
        assert sent == batches + entries
        assert CountedBatches.looks <= 4 * sent
        sets = {position: bits for sink in world.sinks.values() for position, bits in sink.ack_sets.items()}
        assert len(sets) == batches and sets[ledger, 0] == 0b11111001
        assert (sets[ledger, 7], sets[ledger, 8]) == (0b01111000, 0b01111001)

    run(scenario)
