"""Transactions of Kafka's clients: seen whole or not at all, whoever dies meanwhile."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pulsar
import pytest

from geo_tests.wan.kafka_support import (
    DEADLINE_S,
    ask,
    ck,
    consumer,
    create,
    prepare,
    producer,
    send,
    servers,
    take,
    transactional,
)
from heliograph.wire.kafka.record_batches import HEADER_BYTES, TRANSACTIONAL, build_batch, sealed
from tests.region_node.region_processes import Region

pytestmark = pytest.mark.wan
LOG = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture(name="region")
def _region(kafka_region: Region) -> Region:
    return kafka_region


def test_a_transaction_is_seen_whole_or_not_at_all(region: Region) -> None:
    create(region, "txn-in", 1)
    create(region, "txn-out", 2)
    send(producer(region), "txn-in", [b"%d" % i for i in range(20)])
    made = transactional(region, "copier")
    source = consumer(region, "copiers", isolation_level="read_committed")
    source.subscribe(["txn-in"])
    for commit in (False, True):
        messages = take(source, 20)
        made.begin_transaction()
        for message in messages:
            made.produce("txn-out", b"aborted" if not commit else message.value(), partition=message.offset() % 2)
        made.send_offsets_to_transaction(
            [ck.TopicPartition("txn-in", 0, 20)], source.consumer_group_metadata(), DEADLINE_S
        )
        if commit:
            made.commit_transaction(DEADLINE_S)
        else:
            made.flush(DEADLINE_S)
            made.abort_transaction(DEADLINE_S)
            assert source.committed([ck.TopicPartition("txn-in", 0)], timeout=DEADLINE_S)[0].offset == ck.OFFSET_INVALID
            source.seek(ck.TopicPartition("txn-in", 0, 0))
    assert source.committed([ck.TopicPartition("txn-in", 0)], timeout=DEADLINE_S)[0].offset == 20
    source.close()
    reader = consumer(region, "txn-readers", isolation_level="read_committed", enable_partition_eof=False)
    reader.subscribe(["txn-out"])
    assert sorted(int(m.value()) for m in take(reader, 20)) == list(range(20))
    reader.close()
    everything = consumer(region, "txn-all", isolation_level="read_uncommitted")
    everything.subscribe(["txn-out"])
    assert sum(m.value() == b"aborted" for m in take(everything, 40)) == 20
    everything.close()
    client = pulsar.Client(region.service_url(), logger=LOG)
    try:
        theirs = client.subscribe("txn-out", "s", initial_position=pulsar.InitialPosition.Earliest)
        assert sorted(int(theirs.receive(int(DEADLINE_S * 1000)).data()) for _ in range(20)) == list(range(20))
    finally:
        client.close()


def test_what_is_open_is_not_read_and_an_older_producer_is_fenced(region: Region) -> None:
    create(region, "fenced")
    old = transactional(region, "one")
    old.begin_transaction()
    old.produce("fenced", b"never")
    assert old.flush(DEADLINE_S) == 0
    send(producer(region), "fenced", [b"behind it"])
    reader = consumer(region, "fenced", isolation_level="read_committed")
    assert reader.get_watermark_offsets(ck.TopicPartition("fenced", 0), timeout=DEADLINE_S)[1] == 0
    newer = transactional(region, "one")
    newer.begin_transaction()
    newer.produce("fenced", b"newer")
    newer.commit_transaction(DEADLINE_S)
    with pytest.raises(ck.KafkaException) as caught:
        old.commit_transaction(DEADLINE_S)
    assert caught.value.args[0].fatal() or caught.value.args[0].code() in (
        ck.KafkaError._FENCED,
        ck.KafkaError.PRODUCER_FENCED,
    )
    reader.subscribe(["fenced"])
    assert [m.value() for m in take(reader, 2)] == [b"behind it", b"newer"]
    reader.close()


def test_transactions_while_brokers_die(tmp_path: Path) -> None:
    """Each transaction writes to four partitions; whatever dies, readers of committed data see all of it or none."""
    with Region(tmp_path) as region:
        prepare(region)
        region.broker(1, kafka={"port": 0, "rebalance_delay_ms": 100}).wait_ready()
        create(region, "whole", 4)
        sure: set[int] = set()
        unsure: set[int] = set()
        made = transactional(region, "dying", 0, 1, transaction_timeout_ms=120_000)
        deadline = time.monotonic() + 3 * DEADLINE_S

        def write(number: int, commit: bool) -> None:
            nonlocal made
            while True:
                assert time.monotonic() < deadline, (number, sure, unsure)
                try:
                    made.begin_transaction()
                    for partition in range(4):
                        made.produce("whole", b"%d" % number, partition=partition)
                    if commit:
                        made.commit_transaction(DEADLINE_S)
                        sure.add(number)
                    else:
                        made.flush(DEADLINE_S)
                        made.abort_transaction(DEADLINE_S)
                    return
                except ck.KafkaException as error:
                    try:
                        if error.args[0].txn_requires_abort():
                            made.abort_transaction(DEADLINE_S)
                            continue
                    except ck.KafkaException:
                        pass
                    unsure.add(
                        number
                    )  # its outcome is not known: a new producer finishes it, whichever way was decided
                    made = transactional(region, "dying", 0, 1, transaction_timeout_ms=120_000)
                    return

        for number in range(30):
            if number == 10:
                region.processes["us-broker-0"].kill()
            write(number, commit=number % 5 != 4)
        assert len(sure) + len(unsure) >= 24
        end = 100
        while end not in sure:  # the last one, behind all others
            end += 1
            write(end, commit=True)
        reader = consumer(region, "whole-readers", 1, isolation_level="read_committed")
        reader.assign([ck.TopicPartition("whole", p, 0) for p in range(4)])
        found: dict[int, list[int]] = {}
        while len(found.get(end, [])) < 4:
            assert time.monotonic() < deadline
            for message in reader.consume(100, 0.5):
                if message.error() is None:
                    found.setdefault(int(message.value()), []).append(message.partition())
        reader.close()
        assert all(sorted(parts) == [0, 1, 2, 3] for parts in found.values()), found
        assert sure <= set(found) <= sure | unsure


WRITER = """
import sys, confluent_kafka as ck
made = ck.Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "dies", "transaction.timeout.ms": 120000, "log_level": 0})
made.init_transactions(120)
number = 0
while True:
    made.begin_transaction()
    for partition in range(4):
        made.produce("cut", b"%s-%d" % (sys.argv[2].encode(), number), partition=partition)
    made.flush(120)
    if number % 3 == 2:
        made.abort_transaction(120)
        print("aborted", number, flush=True)
    else:
        print("trying", number, flush=True)
        made.commit_transaction(120)
        print("committed", number, flush=True)
    number += 1
"""  # noqa: E501


def test_transactions_whose_producer_dies(region: Region) -> None:
    """A producer is killed in the middle, again and again: what it had committed is there, the rest is nowhere, and
    nothing is there in part.
    """
    create(region, "cut", 4)
    sure: set[bytes] = set()
    unsure: set[bytes] = set()
    for life in range(3):
        command = [sys.executable, "-c", WRITER, servers(region), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            trying = b""
            try:
                for line in writer.stdout:
                    word, number = line.split()
                    value = b"%d-%s" % (life, number.encode())
                    if word == "committed":
                        sure.add(value)
                    trying = value if word == "trying" else b""
                    if (word == "trying" and int(number) >= 5 + life) or int(number) > 20:
                        break
            finally:  # else the `with` waits for one that hangs
                writer.kill()
            unsure |= {trying} - {b""}
    made = transactional(region, "dies")
    made.begin_transaction()
    for partition in range(4):
        made.produce("cut", b"end", partition=partition)
    made.commit_transaction(DEADLINE_S)
    reader = consumer(region, "cut-readers", isolation_level="read_committed")
    reader.assign([ck.TopicPartition("cut", p, 0) for p in range(4)])
    found: dict[bytes, list[int]] = {}
    deadline = time.monotonic() + DEADLINE_S
    while len(found.get(b"end", [])) < 4:
        assert time.monotonic() < deadline
        for message in reader.consume(100, 0.2):
            if message.error() is None:
                found.setdefault(message.value(), []).append(message.partition())
    reader.close()
    assert all(sorted(parts) == [0, 1, 2, 3] for parts in found.values()), found
    assert len(sure) >= 9 and sure <= set(found) - {b"end"} <= sure | unsure


def test_a_reader_of_committed_data_comes_past_what_was_aborted(region: Region) -> None:
    """Also at the end of the log: else its lag would never be nothing."""
    create(region, "aborted-end")
    send(producer(region), "aborted-end", [b"first"])
    made = transactional(region, "aborter")
    made.begin_transaction()
    for _ in range(5):
        made.produce("aborted-end", b"never")
    assert made.flush(DEADLINE_S) == 0
    made.abort_transaction(DEADLINE_S)
    reader = consumer(region, "past-aborted", isolation_level="read_committed", enable_partition_eof=True)
    reader.assign([ck.TopicPartition("aborted-end", 0, 0)])
    deadline, seen, position = time.monotonic() + DEADLINE_S, [], 0
    while position < 6 and time.monotonic() < deadline:
        seen += [m.value() for m in reader.consume(10, 0.2) if m.error() is None]
        position = reader.position([ck.TopicPartition("aborted-end", 0)])[0].offset
        if position == 1:  # its position is that of records; that of its fetches shows at the next one
            send(producer(region), "aborted-end", [b"last"])
            position = 6
    seen += [m.value() for m in take(reader, 1)] if len(seen) < 2 else []
    assert seen == [b"first", b"last"]
    reader.close()


def test_a_batch_of_a_partition_that_was_not_added_is_refused(region: Region) -> None:
    """Nobody would tell that partition of the transaction's end, and readers would wait behind it for ever."""
    create(region, "half-added", 2)
    host, port = servers(region).split(":")
    plain = build_batch([(1, None, b"v", ())])
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
        ask(raw, "metadata", 4, {"topics": [{"name": "half-added"}], "allow_auto_topic_creation": False})
        fresh = {"transactional_id": "half", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        deadline = time.monotonic() + DEADLINE_S
        while True:  # who is asked where the coordinator is makes one
            ask(raw, "find_coordinator", 3, {"key": "half", "key_type": 1})
            given = ask(raw, "init_producer_id", 3, fresh)
            if given["error_code"] == 0:
                break
            assert time.monotonic() < deadline, given
        who = {
            "transactional_id": "half",
            "producer_id": given["producer_id"],
            "producer_epoch": given["producer_epoch"],
        }
        batch = sealed(
            plain[HEADER_BYTES:],
            TRANSACTIONAL,
            0,
            1,
            1,
            1,
            producer=given["producer_id"],
            epoch=given["producer_epoch"],
        )

        def publish(partition: int) -> int:
            rows = [{"name": "half-added", "partition_data": [{"index": partition, "records": batch}]}]
            answer = ask(
                raw, "produce", 7, {"transactional_id": "half", "acks": -1, "timeout": 1000, "topic_data": rows}
            )
            code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
            return code

        added = ask(raw, "add_partitions_to_txn", 2, {**who, "topics": [{"name": "half-added", "partitions": [0]}]})
        assert added["results"][0]["partitions"][0]["error_code"] == 0, added
        assert [publish(1), publish(0)] == [48, 0]
        assert ask(raw, "end_txn", 2, {**who, "committed": True})["error_code"] == 0
        assert publish(0) == 48, "what comes when it has ended is in no transaction"
    reader = consumer(region, "half-added", isolation_level="read_committed")
    assert [
        reader.get_watermark_offsets(ck.TopicPartition("half-added", p), timeout=DEADLINE_S)[1] for p in (0, 1)
    ] == [1, 0]
    reader.close()
