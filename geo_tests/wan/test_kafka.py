"""Kafka's own clients against the real processes of a region: what they write and read, both protocols on one topic, brokers that die."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import pulsar
import pytest

from geo_tests.wan.kafka_support import (
    DEADLINE_S,
    GroupMember,
    admin_module,
    ask,
    ck,
    consumer,
    create,
    prepare,
    producer,
    rest,
    send,
    servers,
    take,
    transactional,
)
from heliograph.wire.kafka_codec import BY_NAME, decode_fields, encode_fields
from heliograph.wire.kafka_records import HEADER_BYTES, TRANSACTIONAL, build_batch, sealed
from tests.broker.processes import Region
from tests.wire.test_kafka_codec import made

pytestmark = pytest.mark.wan
LOG = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture(name="region")
def _region(kafka_region: Region) -> Region:
    return kafka_region


# -- one broker ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_was_written_is_read(region: Region, compression: str) -> None:
    topic = f"matrix-{compression}"
    create(region, topic)
    values: list[bytes | None] = [None if i % 11 == 0 else b"v" * (i * 7 % 2000) for i in range(300)]
    for acks, idempotent in ((1, False), (-1, True)):
        made = producer(region, compression_type=compression, acks=acks, enable_idempotence=idempotent, linger_ms=20)
        found = send(made, topic, values, key=b"\xff\x00key", headers=[("a", b"1"), ("a", b"\xfe"), ("n", None)], timestamp=1_700_000_000_123)
        assert [offset for _, offset in found] == list(range(found[0][1], found[0][1] + 300))
    reader = consumer(region, topic)
    reader.subscribe([topic])
    messages = take(reader, 600)
    assert [m.offset() for m in messages] == list(range(600))
    assert [m.value() for m in messages] == values + values
    assert all(m.key() == b"\xff\x00key" and m.timestamp() == (1, 1_700_000_000_123) for m in messages)
    assert messages[0].headers() == [("a", b"1"), ("a", b"\xfe"), ("n", None)]
    reader.close()


def test_both_protocols_on_one_topic(region: Region) -> None:
    create(region, "both")
    ours = producer(region, linger_ms=20, compression_type="lz4")
    send(ours, "both", [b"kafka-%d" % i for i in range(100)], key=b"k", headers={"from": b"kafka"})
    client = pulsar.Client(region.service_url(), logger=LOG)
    try:
        theirs = client.create_producer("both", batching_enabled=True, compression_type=pulsar.CompressionType.ZSTD)
        for index in range(100):
            theirs.send_async(b"pulsar-%d" % index, lambda *_: None, partition_key="p", properties={"from": "pulsar"}, event_timestamp=5000 + index)
        theirs.flush()
        theirs.send(b"alone", properties={"from": "pulsar"})
        reader = client.subscribe("both", "s", initial_position=pulsar.InitialPosition.Earliest)
        seen = []
        for _ in range(201):
            message = reader.receive(int(DEADLINE_S * 1000))
            seen.append((message.data(), message.partition_key(), message.properties()))
            reader.acknowledge(message)
    finally:
        client.close()
    expected = [(b"kafka-%d" % i, "k", {"from": "kafka"}) for i in range(100)] + [(b"pulsar-%d" % i, "p", {"from": "pulsar"}) for i in range(100)]
    assert seen == [*expected, (b"alone", "", {"from": "pulsar"})]
    kafka = consumer(region, "both")
    kafka.subscribe(["both"])
    messages = take(kafka, 201)
    kafka.close()
    assert [m.value() for m in messages] == [data for data, _, _ in seen]
    assert [m.offset() for m in messages] == list(range(201))
    assert messages[150].key() == b"p" and messages[150].headers() == [("from", b"pulsar")] and messages[150].timestamp()[1] == 5050


def test_offsets_by_time_and_a_log_that_begins_later(region: Region) -> None:
    create(region, "times")
    made = producer(region)
    for index in range(50):
        send(made, "times", [b"x"], timestamp=1_000_000 + index * 1000)
    reader = consumer(region, "times")
    part = ck.TopicPartition("times", 0, 1_000_000 + 20_500)
    assert reader.offsets_for_times([part], timeout=30)[0].offset == 21
    assert reader.get_watermark_offsets(ck.TopicPartition("times", 0), timeout=30) == (0, 50)
    client = admin_module.AdminClient({"bootstrap.servers": servers(region), "log_level": 0})
    for future in client.delete_records([ck.TopicPartition("times", 0, 30)]).values():
        assert future.result(30).low_watermark == 30
    assert reader.get_watermark_offsets(ck.TopicPartition("times", 0), timeout=30) == (30, 50)
    reader.assign([ck.TopicPartition("times", 0, ck.OFFSET_BEGINNING)])
    assert [m.offset() for m in take(reader, 20)] == list(range(30, 50))
    reader.close()


def test_members_of_a_group_share_partitions_and_offsets_stay(region: Region) -> None:
    create(region, "shared", 4)
    made = producer(region)
    for partition in range(4):
        send(made, "shared", [b"%d-%d" % (partition, i) for i in range(50)], partition=partition)
    for strategy in ("range", "cooperative-sticky"):
        members = [consumer(region, f"shared-{strategy}", partition_assignment_strategy=strategy) for _ in range(2)]
        found: dict[tuple[int, int], bytes] = {}
        for member in members:
            member.subscribe(["shared"])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and not (len(found) == 200 and all(len(m.assignment()) == 2 for m in members)):
            for member in members:
                for message in member.consume(100, 0.1):
                    if message.error() is None:
                        found[message.partition(), message.offset()] = message.value()
        assert len(found) == 200 and all(len(m.assignment()) == 2 for m in members)
        for member in members:
            member.commit(offsets=[ck.TopicPartition("shared", p.partition, 50) for p in member.assignment()], asynchronous=False)
            member.close()
        after = consumer(region, f"shared-{strategy}")
        committed = after.committed([ck.TopicPartition("shared", p) for p in range(4)], timeout=30)
        assert [part.offset for part in committed] == [50] * 4
        after.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_of_other_clients(region: Region, compression: str) -> None:
    """What either Python client has written, both read; each with all that its environment can compress by."""
    aiokafka, kafka = pytest.importorskip("aiokafka"), pytest.importorskip("kafka")
    codecs, address, topic = pytest.importorskip("kafka.codec"), servers(region), f"others-{compression}"
    kind = None if compression == "none" else compression
    by_kafka_python = kind is None or getattr(codecs, f"has_{compression}")()
    values = [b"%d" % i * (i % 50) for i in range(100)]
    expected = values * (1 + by_kafka_python)

    async def by_aiokafka() -> list[bytes]:
        made = aiokafka.AIOKafkaProducer(bootstrap_servers=address, compression_type=kind, linger_ms=20)
        await made.start()
        for future in [await made.send(topic, value, key=b"k", headers=[("h", b"\xff")]) for value in values]:
            await future
        await made.stop()
        if by_kafka_python:
            other = kafka.KafkaProducer(bootstrap_servers=address, compression_type=kind, linger_ms=20)
            for sent in [other.send(topic, value, key=b"k", headers=[("h", b"\xff")]) for value in values]:
                sent.get(DEADLINE_S)
            other.close()
        reader = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest")
        await reader.start()
        try:
            messages = [await asyncio.wait_for(reader.getone(), DEADLINE_S) for _ in expected]
        finally:
            await reader.stop()
        assert all(message.key == b"k" and list(message.headers) == [("h", b"\xff")] for message in messages)
        return [message.value for message in messages]

    assert asyncio.run(by_aiokafka()) == expected
    if by_kafka_python:
        reader = kafka.KafkaConsumer(topic, bootstrap_servers=address, group_id=None, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
        assert [message.value for message in itertools.islice(reader, len(expected))] == expected
        reader.close()


def test_other_clients(region: Region) -> None:
    aiokafka, kafka = pytest.importorskip("aiokafka"), pytest.importorskip("kafka")
    address = servers(region)

    async def by_aiokafka() -> list[bytes]:
        made = aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, compression_type="gzip")
        await made.start()
        for future in [await made.send("others", b"a%d" % i) for i in range(50)]:
            await future
        await made.stop()
        reader = aiokafka.AIOKafkaConsumer("others", bootstrap_servers=address, group_id="aio", auto_offset_reset="earliest")
        await reader.start()
        try:
            return [(await asyncio.wait_for(reader.getone(), DEADLINE_S)).value for _ in range(50)]
        finally:
            await reader.stop()

    assert asyncio.run(by_aiokafka()) == [b"a%d" % i for i in range(50)]
    for version in (None, (0, 9), (0, 10, 1)):
        fields = {"api_version": version} if version else {}
        made = kafka.KafkaProducer(bootstrap_servers=address, compression_type="gzip", **({"enable_idempotence": False, **fields} if version else {}))
        made.send("others", b"python").get(DEADLINE_S)
        made.close()
        reader = kafka.KafkaConsumer(
            "others", bootstrap_servers=address, group_id=f"python-{version}", auto_offset_reset="earliest", consumer_timeout_ms=60_000, **fields
        )
        values = [message.value for message in itertools.islice(reader, 51)]
        reader.close()
        assert values[:50] == [b"a%d" % i for i in range(50)] and values[50] == b"python"


def test_topics_are_managed(region: Region) -> None:
    client = admin_module.AdminClient({"bootstrap.servers": servers(region), "log_level": 0})
    create(region, "managed", 2, **{"retention.ms": "3600000"})
    with pytest.raises(ck.KafkaException) as caught:
        create(region, "managed")
    assert caught.value.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(ck.KafkaException) as caught:
        create(region, "wrong", **{"no.such": "1"})
    assert caught.value.args[0].code() == ck.KafkaError.INVALID_CONFIG
    resource = admin_module.ConfigResource(admin_module.ConfigResource.Type.TOPIC, "managed")
    assert client.describe_configs([resource])[resource].result(30)["retention.ms"].value == "3600000"
    for future in client.create_partitions([admin_module.NewPartitions("managed", 5)]).values():
        future.result(30)
    assert len(client.list_topics("managed", timeout=30).topics["managed"].partitions) == 5
    reader = consumer(region, "managed-group")
    reader.commit(offsets=[ck.TopicPartition("managed", 1, 0)], asynchronous=False)
    for future in client.delete_topics(["managed"]).values():
        future.result(30)
    assert reader.committed([ck.TopicPartition("managed", 1)], timeout=30)[0].offset == ck.OFFSET_INVALID
    reader.close()
    assert "managed" not in client.list_topics(timeout=30).topics
    create(region, "managed", 1)
    assert send(producer(region), "managed", [b"new"]) == [(0, 0)]


def test_bad_input_closes_that_connection_only(region: Region) -> None:
    create(region, "fuzzed")
    good = producer(region)
    rng = random.Random(7)
    host, port = servers(region).split(":")
    heads = [struct.pack(">hhih", rng.choice([0, 1, 3, 11, 14, 18, 22]), rng.randrange(13), 1, 4) + b"fuzz" for _ in range(120)]
    frames = [head + rng.randbytes(rng.randrange(80)) for head in heads]
    frames += [rng.randbytes(rng.randrange(1, 60)) for _ in range(60)]
    for frame in frames:
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            raw.sendall(len(frame).to_bytes(4, "big") + frame)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        raw.sendall(b"\x7f\xff\xff\xff")
        assert raw.recv(10) == b""
    assert send(good, "fuzzed", [b"still there"])[0] == (0, 0)
    log = region.processes["us-broker-0"].log_path.read_text()
    assert "Traceback" not in log, log[-3000:]


# -- brokers that die ------------------------------------------------------------------------------------------------------------


def test_a_broker_dies_under_producers_and_a_group(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        prepare(region)
        region.broker(1, kafka={"port": 0, "rebalance_delay_ms": 100}).wait_ready()
        create(region, "moving", 8)
        made = producer(region, 0, 1, enable_idempotence=True, linger_ms=5, message_timeout_ms=120_000)
        reader = consumer(region, "movers", 0, 1, session_timeout_ms=10_000)
        reader.subscribe(["moving"])
        sent: dict[bytes, tuple[int, int]] = {}
        failed: list[Any] = []
        seen: dict[tuple[int, int], bytes] = {}

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)
            else:
                sent[message.value()] = (message.partition(), message.offset())

        def go_on(first: int, count: int) -> None:
            for index in range(first, first + count):
                made.produce("moving", b"%d" % index, partition=index % 8, on_delivery=delivered)
                made.poll(0)
                if index % 50 == 0:
                    collect(0.05)

        def collect(wait_s: float) -> None:
            for message in reader.consume(500, wait_s):
                if message.error() is None:
                    seen[message.partition(), message.offset()] = message.value()

        go_on(0, 1000)
        assert made.flush(DEADLINE_S) == 0
        region.processes["us-broker-0"].kill()
        go_on(1000, 1000)
        assert made.flush(DEADLINE_S) == 0
        deadline = time.monotonic() + DEADLINE_S
        while len(seen) < 2000 and time.monotonic() < deadline:
            collect(0.5)
        reader.close()
        assert not failed
        assert len(sent) == 2000
        assert seen == {where: value for value, where in sent.items()}  # each message once, where its producer was told, nothing lost
        for partition in range(8):
            offsets = sorted(offset for p, offset in seen if p == partition)
            assert offsets == list(range(250))


# -- transactions ----------------------------------------------------------------------------------------------------------------


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
        made.send_offsets_to_transaction([ck.TopicPartition("txn-in", 0, 20)], source.consumer_group_metadata(), DEADLINE_S)
        if commit:
            made.commit_transaction(DEADLINE_S)
        else:
            made.flush(DEADLINE_S)
            made.abort_transaction(DEADLINE_S)
            assert source.committed([ck.TopicPartition("txn-in", 0)], timeout=30)[0].offset == ck.OFFSET_INVALID
            source.seek(ck.TopicPartition("txn-in", 0, 0))
    assert source.committed([ck.TopicPartition("txn-in", 0)], timeout=30)[0].offset == 20
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
    assert reader.get_watermark_offsets(ck.TopicPartition("fenced", 0), timeout=30)[1] == 0
    newer = transactional(region, "one")
    newer.begin_transaction()
    newer.produce("fenced", b"newer")
    newer.commit_transaction(DEADLINE_S)
    with pytest.raises(ck.KafkaException) as caught:
        old.commit_transaction(DEADLINE_S)
    assert caught.value.args[0].fatal() or caught.value.args[0].code() in (ck.KafkaError._FENCED, ck.KafkaError.PRODUCER_FENCED)
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
        made = transactional(region, "dying", 0, 1, transaction_timeout_ms=20_000)
        deadline = time.monotonic() + 2 * DEADLINE_S
        for number in range(30):
            if number == 10:
                region.processes["us-broker-0"].kill()
            while time.monotonic() < deadline:
                try:
                    made.begin_transaction()
                    for partition in range(4):
                        made.produce("whole", b"%d" % number, partition=partition)
                    if number % 5 == 4:
                        made.flush(DEADLINE_S)
                        made.abort_transaction(DEADLINE_S)
                    else:
                        made.commit_transaction(DEADLINE_S)
                        sure.add(number)
                    break
                except ck.KafkaException as error:
                    if error.args[0].txn_requires_abort():
                        made.abort_transaction(DEADLINE_S)
                        continue
                    unsure.add(number)  # its outcome is not known: a new producer finishes it, whichever way was decided
                    made = transactional(region, "dying", 0, 1, transaction_timeout_ms=20_000)
                    break
        assert len(sure) + len(unsure) >= 24 and len(sure) > 15
        made.begin_transaction()
        for partition in range(4):
            made.produce("whole", b"999", partition=partition)
        made.commit_transaction(DEADLINE_S)
        reader = consumer(region, "whole-readers", 1, isolation_level="read_committed")
        reader.assign([ck.TopicPartition("whole", p, 0) for p in range(4)])
        found: dict[int, list[int]] = {}
        while len(found.get(999, [])) < 4:
            assert time.monotonic() < deadline + DEADLINE_S
            for message in reader.consume(100, 0.5):
                found.setdefault(int(message.value()), []).append(message.partition())
        reader.close()
        assert all(sorted(parts) == [0, 1, 2, 3] for parts in found.values()), found
        assert sure <= set(found) - {999} <= sure | unsure


def test_a_batch_that_comes_again_is_stored_once_also_by_another_broker(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        prepare(region)
        create(region, "once")

        def publish(raw: socket.socket, sequence: int) -> tuple[int, int]:
            batch = bytearray(build_batch([(1, None, b"%d" % (sequence + i), ()) for i in range(3)]))
            struct.pack_into(">qhi", batch, 43, number, 0, sequence)
            struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
            parts = {"name": "once", "partition_data": [{"index": 0, "records": bytes(batch)}]}
            answer = ask(raw, "produce", 7, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [parts]})
            row = answer["responses"][0]["partition_responses"][0]
            return row["error_code"], row["base_offset"]

        def connect(broker: int) -> socket.socket:
            return socket.create_connection(("127.0.0.1", region.processes[f"us-broker-{broker}"].ports["kafka"]), timeout=DEADLINE_S)

        with connect(0) as raw:
            number = ask(raw, "init_producer_id", 1, {"transactional_id": None, "transaction_timeout": 1000})["producer_id"]
            ask(raw, "metadata", 4, {"topics": [{"name": "once"}], "allow_auto_topic_creation": False})  # makes an owner
            assert [publish(raw, 0), publish(raw, 3), publish(raw, 3)] == [(0, 0), (0, 3), (0, 3)]
            assert publish(raw, 9)[0] == 45
        region.processes["us-broker-0"].kill()
        region.broker(1, kafka={"port": 0}).wait_ready()
        with connect(1) as raw:
            deadline = time.monotonic() + DEADLINE_S
            while (found := publish(raw, 3))[0] in (3, 6) and time.monotonic() < deadline:
                ask(raw, "metadata", 4, {"topics": [{"name": "once"}], "allow_auto_topic_creation": False})
            assert found == (0, 3), "the same batch, the same place"
            assert publish(raw, 9)[0] == 45 and publish(raw, 6) == (0, 6)


def test_any_request_is_answered_or_ends_its_connection(region: Region) -> None:
    """Requests of every kind and version, well-formed and senseless: an answer that can be read, or the end of that connection, and never a fault of ours."""
    create(region, "x", 2)
    host, port = servers(region).split(":")
    rng = random.Random(11)
    names = sorted(BY_NAME)

    def sensible(fields: Any) -> Any:
        """So that something is reached: a topic and partitions that are there, no long waits."""
        if isinstance(fields, dict):
            for key in fields:
                if key in ("max_wait", "timeout", "session_timeout", "rebalance_timeout"):
                    fields[key] = rng.choice([0, 100, 6000]) if key == "session_timeout" else rng.choice([0, 50])
                elif key in ("topic", "name", "group_id") and isinstance(fields[key], str) and rng.random() < 0.7:
                    fields[key] = "x"
                elif key in ("partition", "index", "partition_index", "partitions", "partition_indexes") and rng.random() < 0.8:
                    fields[key] = rng.choice([0, 1]) if not isinstance(fields[key], list) or any(isinstance(p, dict) for p in fields[key]) else [0]
                    if key in ("partitions", "partition_indexes") and not isinstance(fields[key], list):
                        fields[key] = []
                else:
                    sensible(fields[key])
        elif isinstance(fields, list):
            for each in fields:
                sensible(each)
        return fields

    answered = 0
    for round_number in range(450):
        api = BY_NAME[names[round_number % len(names)]]
        version = rng.randint(api.lowest, api.highest)
        fields = made(rng, api.request, version, api.is_flexible(version))
        if rng.random() < 0.6:
            fields = sensible(fields)
        try:
            body = encode_fields(api.name, version, fields, answer=False)
        except (TypeError, AttributeError):
            continue  # made senseless beyond what the protocol can say
        head = struct.pack(">hhih", api.key, version, round_number, 1) + b"f" + (b"\0" if api.is_flexible(version) else b"")
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
            raw.sendall((len(head) + len(body)).to_bytes(4, "big") + head + body)
            if api.name in ("join_group", "sync_group") or (api.name == "produce" and fields["acks"] == 0):
                continue  # may wait for others, or for nothing
            data = b""
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                more = raw.recv(65536)
                if not more:
                    break
                data += more
        if data:
            assert int.from_bytes(data[4:8], "big") == round_number
            decode_fields(api.name, version, data[9 if api.is_flexible(version) and api.name != "api_versions" else 8 :], answer=True)
            answered += 1
    log = region.processes["us-broker-0"].log_path.read_text()
    assert "Traceback" not in log, log[-4000:]
    assert answered > 300
    assert send(producer(region), "after-fuzz", [b"still there"]) == [(0, 0)]


def test_what_groups_left_of_a_topic_goes_with_it_by_either_protocol(region: Region) -> None:
    create(region, "leaving", 2, **{"retention.ms": "7200000"})
    send(producer(region), "leaving", [b"x"], partition=1)
    reader = consumer(region, "leavers")
    reader.commit(offsets=[ck.TopicPartition("leaving", 1, 1)], asynchronous=False)
    rest(region, "DELETE", "/admin/v2/persistent/public/default/leaving/partitions?force=true")
    client = admin_module.AdminClient({"bootstrap.servers": servers(region), "log_level": 0})
    resource = admin_module.ConfigResource(admin_module.ConfigResource.Type.TOPIC, "leaving")
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and reader.committed([ck.TopicPartition("leaving", 1)], timeout=30)[0].offset != ck.OFFSET_INVALID:
        pass
    assert reader.committed([ck.TopicPartition("leaving", 1)], timeout=30)[0].offset == ck.OFFSET_INVALID
    reader.close()
    create(region, "leaving", 2)
    while time.monotonic() < deadline and client.describe_configs([resource])[resource].result(30)["retention.ms"].value == "7200000":
        pass
    assert client.describe_configs([resource])[resource].result(30)["retention.ms"].value == "604800000"


def test_frames_in_any_pieces(region: Region) -> None:
    """A request that comes byte by byte, several at once, and one that is much larger than what is set aside for it."""
    create(region, "pieces")
    host, port = servers(region).split(":")
    api = BY_NAME["metadata"]
    body = struct.pack(">hhih", api.key, 4, 5, -1) + encode_fields("metadata", 4, {"topics": [{"name": "pieces"}]}, answer=False)
    frame = len(body).to_bytes(4, "big") + body

    def answer(raw: socket.socket) -> bytes:
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            more = raw.recv(4 + int.from_bytes(data[:4], "big") - len(data) if len(data) >= 4 else 4 - len(data))
            assert more, "closed"
            data += more
        return data

    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw, socket.create_connection((host, int(port)), timeout=DEADLINE_S) as other:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(frame)):
            raw.sendall(frame[index : index + 1])
            if index % 7 == 0:
                other.sendall(frame)  # between two pieces of the one, all of another
                assert answer(other)[4:8] == b"\0\0\0\5"
        assert answer(raw)[4:8] == b"\0\0\0\5"
        raw.sendall(frame * 5 + frame[:9])
        assert [answer(raw)[4:8] for _ in range(5)] == [b"\0\0\0\5"] * 5
        raw.sendall(frame[9:])
        assert answer(raw)[4:8] == b"\0\0\0\5"
        parts = {"name": "pieces", "partition_data": [{"index": 0, "records": bytes(9 << 20)}]}
        found = ask(raw, "produce", 7, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [parts]})
        assert found["responses"][0]["partition_responses"][0]["error_code"] == 10
        raw.sendall(frame)
        assert answer(raw)[4:8] == b"\0\0\0\5"


WRITER = """
import sys, confluent_kafka as ck
made = ck.Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "dies", "transaction.timeout.ms": 10000, "log_level": 0})
made.init_transactions(60)
number = 0
while True:
    made.begin_transaction()
    for partition in range(4):
        made.produce("cut", b"%s-%d" % (sys.argv[2].encode(), number), partition=partition)
    made.flush(60)
    if number % 3 == 2:
        made.abort_transaction(60)
        print("aborted", number, flush=True)
    else:
        print("trying", number, flush=True)
        made.commit_transaction(60)
        print("committed", number, flush=True)
    number += 1
"""


def test_transactions_whose_producer_dies(region: Region) -> None:
    """A producer is killed in the middle, again and again: what it had committed is there, the rest is nowhere, and nothing is there in part."""
    create(region, "cut", 4)
    sure: set[bytes] = set()
    unsure: set[bytes] = set()
    for life in range(3):
        command = [sys.executable, "-c", WRITER, servers(region), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            trying = b""
            for line in writer.stdout:
                word, number = line.split()
                value = b"%d-%s" % (life, number.encode())
                if word == "committed":
                    sure.add(value)
                trying = value if word == "trying" else b""
                if (word == "trying" and int(number) >= 5 + life) or int(number) > 20:
                    writer.kill()
                    break
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
            found.setdefault(message.value(), []).append(message.partition())
    reader.close()
    assert all(sorted(parts) == [0, 1, 2, 3] for parts in found.values()), found
    assert len(sure) >= 9 and sure <= set(found) - {b"end"} <= sure | unsure


def test_a_group_rebalances_while_its_brokers_are_killed(tmp_path: Path) -> None:
    """Members come and go while brokers die: every record is read, partitions are shared out anew, and committed offsets never move back."""
    with Region(tmp_path) as region:
        prepare(region)
        region.broker(1, kafka={"port": 0, "rebalance_delay_ms": 100}).wait_ready()
        create(region, "shares", 6)
        made = producer(region, 0, 1, enable_idempotence=True, message_timeout_ms=120_000)

        def member(*brokers: int) -> GroupMember:
            return GroupMember(consumer(region, "sharers", *brokers, session_timeout_ms=10_000, partition_assignment_strategy="cooperative-sticky"), "shares")

        members, left = [member(0, 1), member(0, 1)], list[GroupMember]()
        sent: dict[tuple[int, int], bytes] = {}

        def seen() -> dict[tuple[int, int], bytes]:
            return {at: value for each in members + left for at, value in list(each.seen.items())}

        def write(count: int) -> None:
            values: list[bytes | None] = [b"%d" % (len(sent) + i) for i in range(count)]
            for partition in range(6):
                sent.update(dict(zip(send(made, "shares", values, partition=partition), [v or b"" for v in values], strict=True)))

        deadline = time.monotonic() + 2 * DEADLINE_S

        def wait(there: Callable[[], bool], what: str) -> None:
            while not there():
                assert time.monotonic() < deadline, f"{what}: {len(seen())} of {len(sent)} read, {[each.partitions() for each in members]}"
                time.sleep(0.05)

        def shared() -> bool:
            parts = [each.partitions() for each in members]
            return all(parts) and sorted(itertools.chain(*parts)) == list(range(6))

        for step in range(4):
            write(30)
            if step == 1:
                region.processes["us-broker-0"].kill()
                members.append(member(1))
            if step == 2:
                region.broker(2, kafka={"port": 0, "rebalance_delay_ms": 100}).wait_ready()
                left.append(members.pop(0))
                left[-1].leave()
                for each in members:  # who knows of dead brokers alone finds no other
                    each.count_brokers = True
                wait(lambda: len(made.list_topics(timeout=30).brokers) == 2 and all(each.brokers == 2 for each in members), "the new broker is not listed")
            if step == 3:
                region.processes["us-broker-1"].kill()
            wait(lambda: len(seen()) >= len(sent), f"step {step}")
            assert seen() == sent
            wait(shared, f"partitions are not shared out at step {step}")
        for each in members:
            each.leave()
        after = consumer(region, "sharers", 2)
        now = {part.partition: part.offset for part in after.committed([ck.TopicPartition("shares", p) for p in range(6)], timeout=30)}
        after.close()
        committed = [(partition, offset) for each in members + left for partition, offset in each.committed.items()]
        assert len(committed) > 6 and all(now[partition] >= offset for partition, offset in committed), (now, committed)


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
        who = {"transactional_id": "half", "producer_id": given["producer_id"], "producer_epoch": given["producer_epoch"]}
        batch = sealed(plain[HEADER_BYTES:], TRANSACTIONAL, 0, 1, 1, 1, producer=given["producer_id"], epoch=given["producer_epoch"])

        def publish(partition: int) -> int:
            rows = [{"name": "half-added", "partition_data": [{"index": partition, "records": batch}]}]
            answer = ask(raw, "produce", 7, {"transactional_id": "half", "acks": -1, "timeout": 1000, "topic_data": rows})
            code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
            return code

        ask(raw, "add_partitions_to_txn", 2, {**who, "topics": [{"name": "half-added", "partitions": [0]}]})
        assert [publish(1), publish(0)] == [48, 0]
        assert ask(raw, "end_txn", 2, {**who, "committed": True})["error_code"] == 0
        assert publish(0) == 48, "what comes when it has ended is in no transaction"
    reader = consumer(region, "half-added", isolation_level="read_committed")
    assert [reader.get_watermark_offsets(ck.TopicPartition("half-added", p), timeout=30)[1] for p in (0, 1)] == [1, 0]
    reader.close()


def test_all_live_brokers_are_listed_and_nothing_waits_for_a_dead_one(tmp_path: Path) -> None:
    """One that leads nothing is there from the start; one that is killed is gone; a group whose topic was deleted is described at once."""
    with Region(tmp_path) as region:
        prepare(region)
        create(region, "alone")
        send(producer(region), "alone", [b"x"])
        region.broker(1, kafka={"port": 0}).wait_ready()
        client = admin_module.AdminClient({"bootstrap.servers": servers(region, 0, 1), "log_level": 0})

        def listed() -> set[int]:
            return {broker.port for broker in client.list_topics(timeout=30).brokers.values()}

        ports = [region.processes[f"us-broker-{number}"].ports["kafka"] for number in range(2)]
        deadline = time.monotonic() + DEADLINE_S
        while listed() != set(ports):
            assert time.monotonic() < deadline
        reader = consumer(region, "orphans", 0, 1)
        reader.commit(offsets=[ck.TopicPartition("alone", 0, 1)], asynchronous=False)
        reader.close()
        for future in client.delete_topics(["alone"]).values():
            future.result(30)
        described = client.describe_consumer_groups(["orphans"])["orphans"].result(DEADLINE_S)
        assert not described.members
        offsets = client.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions("orphans")])["orphans"].result(DEADLINE_S)
        assert not offsets.topic_partitions, "what a deleted topic leaves is nothing"
        region.processes["us-broker-0"].kill()
        while listed() != {ports[1]}:
            assert time.monotonic() < deadline
        create_at = admin_module.AdminClient({"bootstrap.servers": servers(region, 1), "log_level": 0})
        for future in create_at.create_topics([admin_module.NewTopic("after", 2, 1)]).values():
            future.result(30)
        assert send(producer(region, 1), "after", [b"y"], partition=1) == [(1, 0)]
