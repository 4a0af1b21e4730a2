"""By which code a client of each age hears that its producer was fenced, or its transaction takes no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heliograph.model.errors import MetadataUnavailable
from heliograph.wire.kafka.message_codec import Request, decode_request
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.transactions.kafka_transactions import KafkaTransactions
from region_node.faces.kafka.transactions.transaction_requests import code_for
from region_node.transactions.coordinators.transaction_service import Transactions
from tests.region_node.faces.kafka.harness import Face, request
from tests.region_node.faces.kafka.transactions.harness import with_transactions


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
