"""The coordinators of a broker as time goes by, also where its clock is set anew."""

from __future__ import annotations

from region_node.transactions.coordinators.coordinator import TransactionStatus
from tests.region_node.transactions.broker import TransactionalBroker, begin, with_transactions


def test_a_wall_clock_that_jumps_ahead_ends_no_transaction() -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        txn = await begin(client, ttl_ms=60_000)
        (coordinator,) = broker.transactions.loaded.values()
        open_one = coordinator.core.find(txn["txnid_least_bits"])
        broker.clock.ahead_ms = 86_400_000
        await broker.transactions._look_after_one(coordinator.number)
        assert open_one.status is TransactionStatus.OPEN
        broker.clock.now += 61
        await broker.transactions._look_after_one(coordinator.number)
        assert open_one.timed_out

    with_transactions(test)
