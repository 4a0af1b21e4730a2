"""A broker with transactions over storage in memory, and clients that speak raw frames to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.topics.serving.topic_service import TopicDuties
from region_node.transactions.coordinators.transaction_service import Transactions
from tests.region_node.faces.pulsar.codec import frame
from tests.region_node.faces.pulsar.harness import Broker, Client, K, messages


class TransactionalBroker(Broker):
    def __init__(self, **settings: Any) -> None:
        super().__init__(duties=TopicDuties(holds=True), **settings)
        record = SimpleNamespace(broker="here")

        async def owner(topic: str) -> Any:
            return record

        ownership = SimpleNamespace(
            owns=lambda topic: self.owned(topic),
            owner=owner,
            record=record,
            region="eu",
            present_owner=lambda namespace, bundle: record,
        )
        self.transactions = Transactions(
            meta=self.meta,
            topics=self.topics,
            ownership=ownership,  # type: ignore[arg-type]
            clock=self.clock,
            rng=random.Random(2),  # type: ignore[arg-type, return-value]
        )
        self.listener.broker.transactions = self.transactions

    async def close(self) -> None:
        await self.transactions.close()
        await super().close()


async def ask(client: Client, kind: int, **fields: Any) -> Any:
    """The answer to one request, waited for: (its part of the command)."""
    client.requests += 1
    wanted = client.requests
    got = await client.do(frame(kind, request_id=wanted, **fields))
    for _ in range(200):
        for command, _ in got:
            part = command.ListFields()[1][1]
            if getattr(part, "request_id", None) == wanted:
                return part
        got = await client.news()
    raise AssertionError(f"no answer to {pb.BaseCommand.Type.Name(kind)}")  # type: ignore[arg-type]


async def begin(client: Client, tc: int = 0, ttl_ms: int = 60_000) -> dict[str, int]:
    """A transaction's id, as fields of the other commands."""
    answer = await ask(client, K.NEW_TXN, tc_id=tc, txn_ttl_millis=ttl_ms)
    assert not answer.HasField("error"), answer
    return {"txnid_most_bits": answer.txnid_most_bits, "txnid_least_bits": answer.txnid_least_bits}


def with_transactions(test: Callable[[TransactionalBroker], Any]) -> None:
    async def run() -> None:
        broker = TransactionalBroker()
        try:
            await test(broker)
        finally:
            await broker.close()

    asyncio.run(run())


def payloads(came: Any) -> list[bytes]:
    return [payload[-2:] for _, payload in messages(came)]
