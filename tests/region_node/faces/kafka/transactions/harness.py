"""A broker's Kafka face with the region's transaction coordinators beside it, over fake storage."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from region_node.faces.kafka.transactions.kafka_transactions import KafkaTransactions
from region_node.transactions.coordinators.named_transactions import NamedTransactions
from region_node.transactions.coordinators.settings import TransactionSettings
from region_node.transactions.coordinators.transaction_service import Transactions
from tests.region_node.faces.kafka.harness import Face, with_face


def anew(face: Face, service: Transactions, **more: float) -> KafkaTransactions:
    """What another life of the broker has: of records it knows what is stored."""
    service.named = NamedTransactions()
    return KafkaTransactions(face.broker, service, **more)


def with_transactions(
    test: Callable[[Face, Transactions, KafkaTransactions], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    async def run(face: Face) -> None:
        service = Transactions(
            meta=face.meta,
            topics=face.topics,
            ownership=face.owner,  # type: ignore[arg-type]
            clock=face.clock,
            rng=random.Random(1),
            settings=TransactionSettings(coordinators=2),
            named=NamedTransactions(),
        )
        try:
            await test(face, service, KafkaTransactions(face.broker, service))
        finally:
            await service.close()

    with_face(run, **settings)
