"""Kafka's own clients against the real processes of a region: what they write and read, both protocols on one topic,
groups, topics.
"""

from __future__ import annotations

import asyncio
import itertools
import time

import pulsar
import pytest

from geo_tests.wan.instance import eventually
from geo_tests.wan.kafka_support import (
    DEADLINE_S,
    admin_module,
    ck,
    consumer,
    create,
    producer,
    rest,
    send,
    servers,
    take,
)
from tests.region_node.region_processes import Region

pytestmark = pytest.mark.wan
LOG = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture(name="region")
def _region(kafka_region: Region) -> Region:
    return kafka_region


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_was_written_is_read(region: Region, compression: str) -> None:
    topic = f"matrix-{compression}"
    create(region, topic)
    values: list[bytes | None] = [None if i % 11 == 0 else b"v" * (i * 7 % 2000) for i in range(300)]
    for acks, settings in (
        (1, {"max_in_flight_requests_per_connection": 1}),
        (-1, {"enable_idempotence": True}),
    ):  # in order, whatever is sent again
        made = producer(region, compression_type=compression, acks=acks, linger_ms=20, **settings)
        found = send(
            made,
            topic,
            values,
            key=b"\xff\x00key",
            headers=[("a", b"1"), ("a", b"\xfe"), ("n", None)],
            timestamp=1_700_000_000_123,
        )
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
            theirs.send_async(
                b"pulsar-%d" % index,
                lambda *_: None,
                partition_key="p",
                properties={"from": "pulsar"},
                event_timestamp=5000 + index,
            )
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
    expected = [(b"kafka-%d" % i, "k", {"from": "kafka"}) for i in range(100)] + [
        (b"pulsar-%d" % i, "p", {"from": "pulsar"}) for i in range(100)
    ]
    assert seen == [*expected, (b"alone", "", {"from": "pulsar"})]
    kafka = consumer(region, "both")
    kafka.subscribe(["both"])
    messages = take(kafka, 201)
    kafka.close()
    assert [m.value() for m in messages] == [data for data, _, _ in seen]
    assert [m.offset() for m in messages] == list(range(201))
    assert (
        messages[150].key() == b"p"
        and messages[150].headers() == [("from", b"pulsar")]
        and messages[150].timestamp()[1] == 5050
    )


def test_offsets_by_time_and_a_log_that_begins_later(region: Region) -> None:
    create(region, "times")
    made = producer(region)
    for index in range(50):
        send(made, "times", [b"x"], timestamp=1_000_000 + index * 1000)
    reader = consumer(region, "times")
    part = ck.TopicPartition("times", 0, 1_000_000 + 20_500)
    assert reader.offsets_for_times([part], timeout=DEADLINE_S)[0].offset == 21
    assert reader.get_watermark_offsets(ck.TopicPartition("times", 0), timeout=DEADLINE_S) == (0, 50)
    client = admin_module.AdminClient({"bootstrap.servers": servers(region), "log_level": 0})
    for future in client.delete_records([ck.TopicPartition("times", 0, 30)]).values():
        assert future.result(DEADLINE_S).low_watermark == 30
    assert reader.get_watermark_offsets(ck.TopicPartition("times", 0), timeout=DEADLINE_S) == (30, 50)
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
        while time.monotonic() < deadline and not (
            len(found) == 200 and all(len(m.assignment()) == 2 for m in members)
        ):
            for member in members:
                for message in member.consume(100, 0.1):
                    if message.error() is None:
                        found[message.partition(), message.offset()] = message.value()
        assert len(found) == 200 and all(len(m.assignment()) == 2 for m in members)
        for member in members:
            member.commit(
                offsets=[ck.TopicPartition("shared", p.partition, 50) for p in member.assignment()], asynchronous=False
            )
        for member in members:  # the first to leave begins a rebalance
            member.close()
        after = consumer(region, f"shared-{strategy}")
        committed = after.committed([ck.TopicPartition("shared", p) for p in range(4)], timeout=DEADLINE_S)
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
        reader = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest"
        )
        await reader.start()
        try:
            messages = [await asyncio.wait_for(reader.getone(), DEADLINE_S) for _ in expected]
        finally:
            await reader.stop()
        assert all(message.key == b"k" and list(message.headers) == [("h", b"\xff")] for message in messages)
        return [message.value for message in messages]

    assert asyncio.run(by_aiokafka()) == expected
    if by_kafka_python:
        reader = kafka.KafkaConsumer(
            topic, bootstrap_servers=address, group_id=None, auto_offset_reset="earliest", consumer_timeout_ms=120_000
        )
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
        reader = aiokafka.AIOKafkaConsumer(
            "others", bootstrap_servers=address, group_id="aio", auto_offset_reset="earliest"
        )
        await reader.start()
        try:
            return [(await asyncio.wait_for(reader.getone(), DEADLINE_S)).value for _ in range(50)]
        finally:
            await reader.stop()

    assert asyncio.run(by_aiokafka()) == [b"a%d" % i for i in range(50)]
    for version in (None, (0, 9), (0, 10, 1)):
        fields = {"api_version": version} if version else {}
        made = kafka.KafkaProducer(
            bootstrap_servers=address,
            compression_type="gzip",
            **({"enable_idempotence": False, **fields} if version else {}),
        )
        made.send("others", b"python").get(DEADLINE_S)
        made.close()
        reader = kafka.KafkaConsumer(
            "others",
            bootstrap_servers=address,
            group_id=f"python-{version}",
            auto_offset_reset="earliest",
            consumer_timeout_ms=120_000,
            **fields,
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
    assert client.describe_configs([resource])[resource].result(DEADLINE_S)["retention.ms"].value == "3600000"
    for future in client.create_partitions([admin_module.NewPartitions("managed", 5)]).values():
        future.result(DEADLINE_S)
    assert len(client.list_topics("managed", timeout=DEADLINE_S).topics["managed"].partitions) == 5
    reader = consumer(region, "managed-group")
    reader.commit(offsets=[ck.TopicPartition("managed", 1, 0)], asynchronous=False)
    for future in client.delete_topics(["managed"]).values():
        future.result(DEADLINE_S)
    assert reader.committed([ck.TopicPartition("managed", 1)], timeout=DEADLINE_S)[0].offset == ck.OFFSET_INVALID
    reader.close()
    assert "managed" not in client.list_topics(timeout=DEADLINE_S).topics
    create(region, "managed", 1)
    assert send(producer(region), "managed", [b"new"]) == [(0, 0)]


def test_what_groups_left_of_a_topic_goes_with_it_by_either_protocol(region: Region) -> None:
    create(region, "leaving", 2, **{"retention.ms": "7200000"})
    send(producer(region), "leaving", [b"x"], partition=1)
    reader = consumer(region, "leavers")
    reader.commit(offsets=[ck.TopicPartition("leaving", 1, 1)], asynchronous=False)
    rest(region, "DELETE", "/admin/v2/persistent/public/default/leaving/partitions?force=true")
    client = admin_module.AdminClient({"bootstrap.servers": servers(region), "log_level": 0})
    resource = admin_module.ConfigResource(admin_module.ConfigResource.Type.TOPIC, "leaving")
    part = ck.TopicPartition("leaving", 1)
    eventually(lambda: reader.committed([part], timeout=DEADLINE_S)[0].offset == ck.OFFSET_INVALID, "no offset is left")
    reader.close()
    create(region, "leaving", 2)
    eventually(
        lambda: client.describe_configs([resource])[resource].result(DEADLINE_S)["retention.ms"].value == "604800000",
        "settings are the default",
    )
