"""Transactions by frames, here and with a real Pulsar: what is answered, what consumers see of open, committed, and
aborted ones, and what survives a move.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from heliograph.wire.pulsar import pulsar_pb2 as pb
from tests.region_node.either import ORACLE
from tests.region_node.live import TOPICS, until
from tests.region_node.rest_client import Rest
from tests.region_node.transactions.frame_client import ABORT, COMMIT, SHARED, Refused, Txn, WireClient, part_of_batch

pytestmark = [pytest.mark.either, pytest.mark.wan, pytest.mark.slow]

V3 = "/admin/v3/transactions"
HERE = "persistent://public/default/"
OVER = {pb.InvalidTxnStatus, pb.TransactionNotFound}
"""What Pulsar says of a transaction that has ended depends on whether it has forgotten it by then."""


@pytest.fixture
def wire(region: Any) -> Iterator[WireClient]:
    with WireClient(region.service_url()) as made:
        made.connect()
        yield made


def refused(call: Any, *arguments: Any, **named: Any) -> int:
    with pytest.raises(Refused) as raised:
        call(*arguments, **named)
    return raised.value.code


def test_what_is_committed_comes_in_its_place_in_every_topic(wire: WireClient, client: pulsar.Client) -> None:
    one, other = HERE + "txn-commit-1", HERE + "txn-commit-2"
    producers = wire.producer(one), wire.producer(other)
    consumers = wire.subscribe(one), wire.subscribe(other)
    seen_by_official = client.subscribe(one, "official", initial_position=pulsar.InitialPosition.Earliest)
    before = wire.publish(producers[0], b"before")
    assert wire.payloads(consumers[0], 1) == [b"before"]
    txn = wire.begin(topics=(one, other))
    wire.publish(producers[0], b"t0", txn)
    wire.publish(producers[0], b"between")
    wire.publish(producers[0], b"t1", txn)
    wire.publish(producers[1], b"u0", txn)
    assert wire.last(consumers[0]) == before, "readers stop before the first message of an open transaction"
    assert wire.nothing(consumers[0]) and wire.nothing(consumers[1])
    wire.end(txn, COMMIT)
    assert wire.payloads(consumers[0], 3) == [b"t0", b"between", b"t1"] and wire.payloads(consumers[1], 1) == [b"u0"]
    assert [seen_by_official.receive(timeout_millis=60_000).data() for _ in range(4)] == [
        b"before",
        b"t0",
        b"between",
        b"t1",
    ]


def test_what_is_aborted_never_comes(wire: WireClient, client: pulsar.Client) -> None:
    topic = HERE + "txn-abort"
    producer, consumer = wire.producer(topic), wire.subscribe(topic)
    gone, kept = wire.begin(topics=(topic,)), wire.begin(topics=(topic,))
    wire.publish(producer, b"gone", gone)
    wire.publish(producer, b"kept", kept)
    wire.publish(producer, b"plain")
    wire.end(gone, ABORT)
    assert wire.nothing(consumer), "the other transaction is still open"
    wire.end(kept, COMMIT)
    assert wire.payloads(consumer, 2) == [b"kept", b"plain"]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(timeout_millis=60_000).data() for _ in range(2)] == [b"kept", b"plain"]
    assert not reader.has_message_available()


def test_what_is_acknowledged_in_a_transaction_is_held_until_its_end(wire: WireClient) -> None:
    topic = HERE + "txn-ack"
    producer, consumer = wire.producer(topic), wire.subscribe(topic, kind=SHARED)
    for n in range(4):
        wire.publish(producer, b"%d" % n)
    ids = {payload: found for found, payload in wire.receive(consumer, 4)}
    txn, other = (wire.begin(subscriptions=((topic, "s"),)) for _ in range(2))
    wire.acknowledge(consumer, ids[b"0"], ids[b"1"], txn=txn)
    assert refused(wire.acknowledge, consumer, ids[b"0"], txn=other) == pb.TransactionConflict
    wire.end(txn, ABORT)
    again = {payload: found for found, payload in wire.receive(consumer, 2)}
    assert sorted(again) == [b"0", b"1"], "an abort gives back"
    wire.acknowledge(consumer, again[b"0"], ids[b"3"], txn=other)
    wire.end(other, COMMIT)
    late = wire.begin(subscriptions=((topic, "s"),))
    assert refused(wire.acknowledge, consumer, ids[b"0"], txn=late) == pb.TransactionConflict, (
        "it is acknowledged already"
    )
    wire.close_consumer(consumer)
    assert sorted(wire.payloads(wire.subscribe(topic, kind=SHARED), 2)) == [b"1", b"2"]


def test_messages_of_a_batch_are_acknowledged_in_transactions(wire: WireClient) -> None:
    topic = HERE + "txn-batch"
    producer, consumer = wire.producer(topic), wire.subscribe(topic, kind=SHARED)
    wire.publish(producer, b"a batch of three..", batch=3)
    wire.publish(producer, b"behind")
    (batch, _), _ = wire.receive(consumer, 2)
    one, other = (wire.begin(subscriptions=((topic, "s"),)) for _ in range(2))
    wire.acknowledge(consumer, part_of_batch(batch, 0b110, 3), txn=one)
    assert refused(wire.acknowledge, consumer, part_of_batch(batch, 0b110, 3), txn=other) == pb.TransactionConflict
    wire.acknowledge(consumer, part_of_batch(batch, 0b101, 3), txn=other)
    wire.end(one, COMMIT)
    wire.end(other, ABORT)
    wire.close_consumer(consumer)
    consumer = wire.subscribe(topic, kind=SHARED)
    while len(wire.came[consumer]) < 2:
        wire.last(consumer)
    left = {message.message_id.entryId - batch.entryId: list(message.ack_set) for message, _ in wire.came[consumer]}
    assert left == {0: [0b110], 1: []}, "the first message is acknowledged, the second given back"


def test_a_cumulative_acknowledgement_in_a_transaction(wire: WireClient) -> None:
    topic = HERE + "txn-cumulative"
    producer, consumer = wire.producer(topic), wire.subscribe(topic)
    for n in range(4):
        wire.publish(producer, b"%d" % n)
    came = wire.receive(consumer, 4)
    txn, other = (wire.begin(subscriptions=((topic, "s"),)) for _ in range(2))
    wire.acknowledge(consumer, came[1][0], txn=txn, cumulative=True)
    assert refused(wire.acknowledge, consumer, came[2][0], txn=other, cumulative=True) == pb.TransactionConflict
    wire.end(txn, COMMIT)
    wire.close_consumer(consumer)
    consumer = wire.subscribe(topic)
    came = wire.receive(consumer, 2)
    assert [payload for _, payload in came] == [b"2", b"3"]
    wire.acknowledge(consumer, came[1][0], txn=other, cumulative=True)
    wire.end(other, ABORT)
    wire.close_consumer(consumer)
    assert wire.payloads(wire.subscribe(topic), 2) == [b"2", b"3"]


def test_what_is_over_its_time_is_aborted(wire: WireClient) -> None:
    topic = HERE + "txn-late"
    producer, consumer = wire.producer(topic), wire.subscribe(topic)
    for ttl_ms in (
        500,
        5_000,
        60_000,
    ):  # a machine may be so busy that it is over before the message is there: again, with a longer one
        try:
            txn = wire.begin(topics=(topic,), ttl_ms=ttl_ms)
            wire.publish(producer, b"late", txn)
            break
        except Refused as error:
            assert error.code in OVER
    wire.publish(producer, b"plain")
    assert wire.payloads(consumer, 1) == [b"plain"]
    assert refused(wire.end, txn, COMMIT) in OVER


def test_a_topic_moves_while_a_transaction_is_open(wire: WireClient, rest: Rest, region: Any) -> None:
    topic = HERE + "txn-moves"
    producer, consumer = wire.producer(topic), wire.subscribe(topic, kind=SHARED)
    wire.publish(producer, b"first"), wire.publish(producer, b"second")
    first = {payload: found for found, payload in wire.receive(consumer, 2)}[b"first"]
    committed = wire.begin(topics=(topic,), subscriptions=((topic, "s"),))
    aborted = wire.begin(topics=(topic,))
    (
        wire.publish(producer, b"t0", committed),
        wire.publish(producer, b"never", aborted),
        wire.publish(producer, b"plain"),
    )
    wire.acknowledge(consumer, first, txn=committed)
    assert rest("PUT", f"{TOPICS}/txn-moves/unload")[0] == 204
    with WireClient(region.service_url()) as again:
        again.connect()
        again.publish(again.producer(topic), b"t1", committed)
        consumer = again.subscribe(topic, kind=SHARED)
        assert again.payloads(consumer, 1) == [b"second"], (
            "what a transaction holds comes to nobody, nor does what is behind its start"
        )
        again.end(aborted, ABORT)
        again.end(committed, COMMIT)
        assert again.payloads(consumer, 3) == [b"t0", b"plain", b"t1"]
        again.close_consumer(consumer)
        assert sorted(again.payloads(again.subscribe(topic, kind=SHARED), 4)) == [b"plain", b"second", b"t0", b"t1"]


def test_refusals(wire: WireClient) -> None:
    topic = HERE + "txn-refused"
    wire.producer(topic)
    nobody: Txn = {"txnid_most_bits": 0, "txnid_least_bits": 1 << 40}
    assert refused(wire.begin, coordinator=99) == pb.TransactionCoordinatorNotFound
    assert refused(wire.end, nobody, COMMIT) == pb.TransactionNotFound
    assert (
        refused(wire.ask, pb.BaseCommand.ADD_PARTITION_TO_TXN, partitions=[topic], **nobody) == pb.TransactionNotFound
    )
    txn = wire.begin(topics=(topic,))
    wire.end(txn, ABORT)
    assert refused(wire.end, txn, COMMIT) in OVER
    assert refused(wire.ask, pb.BaseCommand.ADD_PARTITION_TO_TXN, partitions=[topic], **txn) in OVER
    if not ORACLE:
        wire.end(txn, ABORT)  # the first answer may have been lost


def test_what_an_operator_sees_and_aborts(wire: WireClient, rest: Rest) -> None:
    topic = HERE + "txn-seen"
    producer, consumer = wire.producer(topic), wire.subscribe(topic)
    txn = wire.begin(topics=(topic,), subscriptions=((topic, "s"),), ttl_ms=600_000)
    most, least = txn["txnid_most_bits"], txn["txnid_least_bits"]
    ledger, first = wire.publish(producer, b"held", txn)
    wire.publish(producer, b"behind")
    told = rest("GET", f"{V3}/transactionMetadata/{most}/{least}")[1]
    assert {"txnId": f"({most},{least})", "status": "OPEN", "timeoutAt": 600_000}.items() <= told.items() and told[
        "openTimestamp"
    ] > 0
    assert list(told["producedPartitions"].values()) == [{"startPosition": f"{ledger}:{first}", "aborted": False}]
    assert [list(found) for found in told["ackedPartitions"].values()] == [["s"]]
    slow = rest("GET", f"{V3}/slowTransactions/1?coordinatorId=0")[1]
    assert slow[f"({most},{least})"]["status"] == "OPEN"
    stats = rest("GET", f"{V3}/coordinatorStats?coordinatorId=0")[1]
    assert {
        "state",
        "leastSigBits",
        "lowWaterMark",
        "ongoingTxnSize",
        "recoverStartTime",
        "recoverEndTime",
    } <= stats.keys()
    assert stats["state"] == "Ready" and stats["ongoingTxnSize"] >= 1
    buffer = rest("GET", f"{V3}/transactionBufferStats/public/default/txn-seen")[1]
    assert buffer["state"] == "Ready" and buffer["ongoingTxnSize"] == 1
    assert rest("GET", f"{V3}/transactionInBufferStats/public/default/txn-seen/{most}/{least}")[1] == {
        "startPosition": f"{ledger}:{first}",
        "aborted": False,
    }
    assert rest("POST", f"{V3}/abortTransaction/{most}/{least}")[0] in (200, 204)
    assert wire.payloads(consumer, 1) == [b"behind"]
    until(lambda: rest("GET", f"{V3}/transactionInBufferStats/public/default/txn-seen/{most}/{least}")[1]["aborted"])
    assert f"({most},{least})" not in rest("GET", f"{V3}/slowTransactions/1?coordinatorId=0")[1]
