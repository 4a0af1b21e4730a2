"""By which code a client of each age hears that its producer was fenced, or its transaction takes no more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.errors import MetadataUnavailable
from heliograph.wire.kafka.message_codec import Request, decode_request
from heliograph.wire.kafka.record_batches import build_batch
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.requests.transaction_requests import code_for
from region_node.faces.kafka.transactions.kafka_transactions import KafkaTransactions
from region_node.transactions.coordinators.transaction_service import Transactions
from tests.region_node.faces.kafka.cluster.leaderships import Leaderships
from tests.region_node.faces.kafka.harness import Client, Face, request
from tests.region_node.faces.kafka.topic_requests import create
from tests.region_node.faces.kafka.transactions.harness import anew, with_transactions
from tests.region_node.faces.pulsar.harness import settle


def asked(version: int) -> Request:
    found = decode_request(
        request("end_txn", 1, {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "committed": True})[4:]
    )
    return replace(found, version=version)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, Code.INVALID_PRODUCER_EPOCH),
        (1, Code.INVALID_PRODUCER_EPOCH),
        (2, Code.PRODUCER_FENCED),
        (3, Code.PRODUCER_FENCED),
    ],
)
def test_clients_before_version_two_know_no_fenced_producer(version: int, code: Code) -> None:
    assert code_for(Refused(Code.PRODUCER_FENCED), asked(version)) == code
    assert code_for(Refused(Code.INVALID_TXN_STATE), asked(version)) == Code.INVALID_TXN_STATE
    assert code_for(MetadataUnavailable("no leader"), asked(version)) == Code.COORDINATOR_NOT_AVAILABLE


def test_a_transaction_that_can_take_no_more_is_to_be_aborted_and_not_asked_again() -> None:
    async def run(_: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        producer = await transactions.begin_producer("id", 60_000, -1, -1)
        long = [f"persistent://public/default/{number}{'x' * 4_000}" for number in range(300)]
        with pytest.raises(Refused) as caught:
            await transactions.add_partitions("id", *producer, long)
        assert code_for(caught.value, asked(3)) == Code.POLICY_VIOLATION
        await transactions.add_partitions("id", *producer, long[:1])
        await transactions.end("id", *producer, commit=False)

    with_transactions(run)


LONG = "i" * 1025
OF_LONG = {"transactional_id": LONG, "producer_id": 1, "producer_epoch": 0}


@pytest.mark.parametrize(
    ("name", "version", "fields"),
    [
        ("init_producer_id", 1, {"transactional_id": LONG, "transaction_timeout": 10_000}),
        ("init_producer_id", 1, {"transactional_id": "", "transaction_timeout": 10_000}),
        ("init_producer_id", 1, {"transactional_id": "é" * 513, "transaction_timeout": 10_000}),
        ("add_offsets_to_txn", 1, {**OF_LONG, "group_id": "g"}),
        ("end_txn", 1, {**OF_LONG, "committed": True}),
    ],
)
def test_an_id_that_is_too_long_is_refused_before_anything_is_done_with_it(
    name: str, version: int, fields: dict[str, Any]
) -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        face.broker.transactions = transactions
        client = Client(face.listener)
        assert (await client.ask(name, version, fields))["error_code"] == Code.INVALID_REQUEST

    with_transactions(run)


def test_offsets_and_batches_of_an_id_that_is_too_long_are_refused() -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        face.broker.transactions = transactions
        client = Client(face.listener)
        await create(client, "t")
        part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
        held = {**OF_LONG, "group_id": "g", "topics": [{"name": "t", "partitions": [part]}]}
        answer = await client.ask("txn_offset_commit", 1, held)
        assert answer["topics"][0]["partitions"][0]["error_code"] == Code.INVALID_REQUEST
        added = {**OF_LONG, "topics": [{"name": "t", "partitions": [0]}]}
        answer = await client.ask("add_partitions_to_txn", 1, added)
        assert answer["results"][0]["partitions"][0]["error_code"] == Code.INVALID_REQUEST
        batch = {"index": 0, "records": build_batch([(1, None, b"text", ())])}
        sent = {"transactional_id": LONG, "acks": -1, "topic_data": [{"name": "t", "partition_data": [batch]}]}
        answer = await client.ask("produce", 7, sent)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == Code.INVALID_REQUEST

    with_transactions(run)


def test_no_lock_of_an_id_is_kept_that_nobody_holds() -> None:
    async def run(_: Face, __: Transactions, transactions: KafkaTransactions) -> None:
        for number in range(20):
            with pytest.raises(Refused):
                await transactions.add_offsets(f"id{number}", 1, 0)
        assert not transactions._locks
        async with transactions._lock("id"):
            waits = asyncio.ensure_future(transactions.begin_producer("id", 60_000, -1, -1))
            await settle()
            assert transactions._lock("id").locked() and not waits.done()
        assert (await waits)[1] == 0 and not transactions._locks

    with_transactions(run)


def test_a_producer_that_did_not_hear_of_its_new_epoch_gets_it_again_and_a_zombie_does_not() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        async def begun(producer: int = -1, epoch: int = -1) -> tuple[int, int]:
            return await transactions.begin_producer("id", 60_000, producer, epoch)

        producer, first = await begun()
        await transactions.add_offsets("id", producer, first)
        second = await begun(producer, first)
        transactions = anew(face, service)  # its broker dies before the answer is heard
        assert await begun(producer, first) == await begun(producer, first) == second == (producer, first + 1)
        await transactions.add_offsets("id", *second)
        with pytest.raises(Refused):  # its first request, which was held up somewhere
            await begun(producer, first)
        await transactions.end("id", *second, commit=True)
        await transactions.add_offsets("id", *second)
        third = await begun(*second)
        assert third == (producer, first + 2)
        for epoch in (first, first - 1, first + 5):
            with pytest.raises(Refused) as refused:
                await begun(producer, epoch)
            assert refused.value.code == Code.PRODUCER_FENCED
        with pytest.raises(Refused):
            await begun(producer + 1, second[1])
        newer = await begun()  # another instance of the application
        with pytest.raises(Refused):
            await begun(*third)
        assert await begun(*newer) == (producer, newer[1] + 1)

    with_transactions(run)


def test_where_another_region_leads_a_transaction_is_ended_and_none_is_begun() -> None:
    heard = Leaderships()

    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        face.broker.transactions = transactions
        client = Client(face.listener)
        await create(client, "orders")
        number, epoch = await transactions.begin_producer("id", 60_000, -1, -1)
        of = {"transactional_id": "id", "producer_id": number, "producer_epoch": epoch}
        parts = {**of, "topics": [{"name": "orders", "partitions": [0]}]}

        async def added() -> int:
            answer = await client.ask("add_partitions_to_txn", 3, parts)
            return int(answer["results"][0]["partitions"][0]["error_code"])

        assert await added() == 0
        heard.say("eu", 1)
        assert await added() == Code.NOT_COORDINATOR
        begin = {"transactional_id": "id", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        assert (await client.ask("init_producer_id", 4, begin))["error_code"] == Code.NOT_COORDINATOR
        offsets = {**of, "group_id": "g"}
        assert (await client.ask("add_offsets_to_txn", 3, offsets))["error_code"] == Code.NOT_COORDINATOR
        assert (await client.ask("end_txn", 3, {**of, "committed": True}))["error_code"] == 0

    with_transactions(run, leading=heard)


def test_a_batch_of_another_regions_transaction_is_to_be_aborted_and_fences_nobody() -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        await create(Client(face.listener), "orders")
        log = await face.broker.log("orders", 0)
        for number, code in ((2 << 44 | 7, Code.INVALID_TXN_STATE), (1 << 44 | 7, Code.INVALID_PRODUCER_EPOCH)):
            with pytest.raises(Refused) as refused:
                await transactions.txn_of(log, number, 0)
            assert refused.value.code == code

    with_transactions(run)
