"""What a subscription keeps of its transactions when its topic is loaded again."""

from __future__ import annotations

import pytest

from heliograph.model.errors import NotAllowed
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.subscriptions.subscription import Subscription
from region_node.transactions.participants.transaction_errors import TransactionConflict
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
