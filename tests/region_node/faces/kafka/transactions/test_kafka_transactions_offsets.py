"""Offsets that a transaction commits: within the bounds of other commits, and never what keeps it from its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from heliograph.kv.metadata_store import Put, pages_under
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.committed_offsets import Row
from region_node.faces.kafka.transactions.kafka_transactions import (
    COMMIT,
    EPOCH_MAX,
    IDS,
    TXN_OFFSETS,
    KafkaTransactions,
)
from region_node.faces.kafka.transactions.transaction_offsets import TransactionOffsets
from region_node.transactions.coordinators.transaction_service import Transactions
from tests.region_node.faces.kafka.harness import Client, Face
from tests.region_node.faces.kafka.topic_requests import create
from tests.region_node.faces.kafka.transactions.harness import anew, with_transactions
from tests.region_node.faces.pulsar.harness import settle

TIMEOUT_MS = 60_000


async def begun(transactions: KafkaTransactions) -> tuple[int, int]:
    producer = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
    await transactions.add_offsets("id", *producer)
    return producer


async def offset_of(face: Face, topic: str, partition: int) -> int:
    held = await face.broker.coordinator.held("g")
    await held.offsets.load()
    row = held.offsets.rows.get((topic, partition))
    return -1 if row is None else row.offset


@pytest.mark.parametrize(
    ("partition", "metadata", "code"),
    [
        (0, "m", Code.NONE),
        (0, "m" * 5_000, Code.OFFSET_METADATA_TOO_LARGE),
        (1, "m", Code.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, "m", Code.UNKNOWN_TOPIC_OR_PARTITION),
        (1 << 30, "m", Code.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_transactions_offsets_have_the_bounds_of_others(partition: int, metadata: str, code: Code) -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        face.broker.transactions = transactions
        client = Client(face.listener)
        await create(client, "orders")
        producer = await begun(transactions)
        part: dict[str, Any] = {"partition_index": partition, "committed_offset": 7, "committed_leader_epoch": -1}
        fields = {
            "transactional_id": "id",
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "group_id": "g",
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": "orders", "partitions": [{**part, "committed_metadata": metadata}]}],
        }
        answer = await client.ask("txn_offset_commit", 3, fields)
        assert answer["topics"][0]["partitions"][0]["error_code"] == code
        await transactions.end("id", *producer, commit=True)
        assert await offset_of(face, "orders", 0) == (-1 if code else 7)

    with_transactions(run)


def test_offsets_that_are_too_large_together_do_not_keep_a_transaction_from_its_end() -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        held = await face.broker.coordinator.held("g")
        wide = {("t", index): Row(2, -1, "m" * 4_096, 1) for index in range(256)}  # one value of the metadata
        await held.offsets.put(dict(list(wide.items())[:200]))
        producer = await begun(transactions)
        await transactions.hold_offsets("id", *producer, "g", dict(list(wide.items())[200:]))
        await transactions.hold_offsets("id", *producer, "g", {("u", 0): Row(3, -1, "", 1)})
        await transactions.end("id", *producer, commit=True)
        assert await transactions.unstable("g") == set()
        assert await offset_of(face, "u", 0) == 3 and await offset_of(face, "t", 255) == -1

    with_transactions(run)


def test_a_commit_that_was_decided_keeps_its_offsets_where_the_producers_epochs_are_used_up() -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        producer = await begun(transactions)
        record = await transactions._get("id")
        assert record is not None
        last = replace(record, epoch=EPOCH_MAX)
        await face.meta.txn([Put(IDS + "id", last.encode(), record.version)])
        await transactions.hold_offsets("id", producer[0], EPOCH_MAX, "g", {("t", 0): Row(7, -1, "", 1)})
        record = await transactions._get("id")
        assert record is not None
        decided = replace(record, intent=COMMIT)  # and the broker died
        await face.meta.txn([Put(IDS + "id", decided.encode(), record.version)])
        again = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        assert again[0] != producer[0] and again[1] == 0
        assert await offset_of(face, "t", 0) == 7
        assert not [rows async for rows in pages_under(face.meta, TXN_OFFSETS)]

    with_transactions(run)


def test_nothing_is_left_of_a_producer_whose_epochs_are_used_up() -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        producer, epoch = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        producer, epoch = await transactions.begin_producer("id", TIMEOUT_MS, producer, epoch)
        record = await transactions._get("id")
        assert record is not None and len(await stored_of(face, producer)) == 2
        await face.meta.txn([Put(IDS + "id", replace(record, epoch=EPOCH_MAX).encode(), record.version)])
        again = await transactions.begin_producer("id", TIMEOUT_MS, producer, EPOCH_MAX)
        assert again[0] != producer and again[1] == 0
        assert await stored_of(face, producer) == [] and len(await stored_of(face, again[0])) == 1

    async def stored_of(face: Face, producer: int) -> list[str]:
        return [
            key
            async for rows in pages_under(face.meta, "/kafka/")
            for key, _, _ in rows
            if key.endswith(f"{producer:020d}")
        ]

    with_transactions(run)


def test_a_commit_that_came_too_late_is_refused_again_where_its_answer_was_lost() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        producer = await begun(transactions)
        await transactions.hold_offsets("id", *producer, "g", {("t", 0): Row(7, -1, "", 1)})
        record = await transactions._get("id")
        assert record is not None and record.txn is not None
        await service.end(record.txn, commit=False)  # its time was over
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await transactions.end("id", *producer, commit=True)
            assert refused.value.code == Code.PRODUCER_FENCED
        assert await offset_of(face, "t", 0) == -1
        again = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        await transactions.add_offsets("id", *again)
        await transactions.end("id", *again, commit=True)

    with_transactions(run)


@pytest.mark.parametrize("looked_first", [False, True])
def test_a_transactions_offsets_count_however_late_the_next_broker_comes(looked_first: bool) -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        producer = await begun(transactions)
        await transactions.hold_offsets("id", *producer, "g", {("t", 0): Row(7, -1, "", 1)})
        record = await transactions._get("id")
        assert record is not None and record.txn is not None
        decided = replace(record, intent=COMMIT)
        await face.meta.txn([Put(IDS + "id", decided.encode(), record.version)])
        await service.end(record.txn, commit=True)  # and the broker died, before it moved the offsets
        face.clock.now += 3600.0
        number = record.txn[0]
        late = anew(face, service)
        if looked_first:
            await late.recover()
        await service.loaded[number].tick(service.named.asked_for)
        await late.recover()
        assert await offset_of(face, "t", 0) == 7
        await service.loaded[number].tick(service.named.asked_for)
        assert service.loaded[number].core.final == {} and not late._named.by_txn

    with_transactions(run)


def test_an_end_that_is_not_written_down_yet_is_looked_at_again() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        producer = await begun(transactions)
        await transactions.hold_offsets("id", *producer, "g", {("t", 0): Row(7, -1, "", 1)})
        record = await transactions._get("id")
        assert record is not None and record.txn is not None
        service.loaded[record.txn[0]].core.end(record.txn[1], commit=False)  # its time is over: the write is on its way
        await transactions.recover()
        assert transactions._named.by_txn and await transactions.unstable("g")
        await service.end(record.txn, commit=False)
        await transactions.recover()
        assert not transactions._named.by_txn and not await transactions.unstable("g")

    with_transactions(run)


def test_one_that_cannot_end_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(face: Face, service: Transactions, _: KafkaTransactions) -> None:
        transactions, ends = anew(face, service, ending_s=0.0), service.end
        records = []
        for name in ("id", "other"):
            producer = await transactions.begin_producer(name, TIMEOUT_MS, -1, -1)
            await transactions.add_offsets(name, *producer)
            record = await transactions._get(name)
            assert record is not None and record.txn is not None
            await ends(record.txn, commit=False)  # its time was over
            records.append(record)

        async def end(txn: Any, *, commit: bool) -> Any:
            if txn == records[0].txn:
                await asyncio.Event().wait()
            return await ends(txn, commit=commit)

        monkeypatch.setattr(service, "end", end)
        for _ in range(3):
            await transactions.recover()
            await settle(20)
        assert list(transactions._named.by_txn.values()) == list(transactions._ending) == ["id"]
        other = await transactions._get("other")
        assert other is not None and other.txn is None

    with_transactions(run)


def test_a_transaction_that_holds_too_much_is_refused_and_ends() -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        transactions._offsets = TransactionOffsets(face.meta, face.broker.tasks, held_bytes_max=500)
        producer = await begun(transactions)
        for offset in range(20):  # again and again the same partition
            await transactions.hold_offsets("id", *producer, "g", {("t", 0): Row(offset, -1, "", 1)})
        with pytest.raises(Refused) as refused:
            await transactions.hold_offsets("id", *producer, "g", {("u", 0): Row(1, -1, "m" * 500, 1)})
        assert refused.value.code == Code.POLICY_VIOLATION
        await transactions.end("id", *producer, commit=True)
        assert await offset_of(face, "t", 0) == 19 and await offset_of(face, "u", 0) == -1

    with_transactions(run)
