"""Policies of topics hold for Kafka's clients too: rates in and out, sizes, quotas of the backlog; and what such a
client is told.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import pulsar
import pytest

from geo_tests.wan.kafka_support import DEADLINE_S, ask, ck, consumer, create, producer, rest, send, servers, take
from heliograph.wire.kafka.record_batches import build_batch
from tests.region_node.region_processes import Region

pytestmark = pytest.mark.wan


def policy(region: Region, topic: str, name: str, value: Any) -> None:
    rest(region, "POST", f"/admin/v2/persistent/public/default/{topic}/{name}", value)


def connect(region: Region, *topics: str) -> socket.socket:
    """A connection by hand; asking for the topics' leader made one."""
    host, port = servers(region).split(":")
    raw = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
    ask(raw, "metadata", 4, {"topics": [{"name": topic} for topic in topics], "allow_auto_topic_creation": False})
    return raw


def publish(raw: socket.socket, topic: str, count: int, size_bytes: int = 10) -> tuple[int, int, int]:
    """(error, base offset, throttle time in ms) of one batch."""
    batch = build_batch([(1, None, b"x" * size_bytes, ())] * count)
    parts = {"name": topic, "partition_data": [{"index": 0, "records": batch}]}
    answer = ask(raw, "produce", 7, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [parts]})
    row = answer["responses"][0]["partition_responses"][0]
    return row["error_code"], row["base_offset"], answer["throttle_time"]


def test_a_publish_rate_slows_producers_and_tells_them(kafka_region: Region) -> None:
    create(kafka_region, "slow")
    create(kafka_region, "free")
    with connect(kafka_region, "slow") as raw, connect(kafka_region, "free") as other:
        assert publish(raw, "slow", 1)[0] == 0
        policy(
            kafka_region, "slow", "publishRate", {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1}
        )
        deadline, offset = time.monotonic() + DEADLINE_S, 1
        while (found := publish(raw, "slow", 150))[2] == 0:  # until the policy is known
            assert found[:2] == (0, offset) and time.monotonic() < deadline
            offset += 150
        assert found[:2] == (0, offset), "what came is stored, and its producer is told to wait"
        assert publish(other, "free", 150)[:1] == (0,), "others are not held"
        assert publish(raw, "slow", 1)[:2] == (0, offset + 150), "what it sends meanwhile is read later"


def test_a_quota_of_a_client_slows_that_client_alone(kafka_region: Region) -> None:
    create(kafka_region, "by-quota")
    send(producer(kafka_region), "by-quota", [b"x"])
    who = [{"entity_type": "client-id", "entity_name": "eager"}]

    def alter(raw: socket.socket, remove: bool) -> None:
        ops = [{"key": "producer_byte_rate", "value": 0.0 if remove else 5000.0, "remove": remove}]
        answer = ask(raw, "alter_client_quotas", 1, {"entries": [{"entity": who, "ops": ops}], "validate_only": False})
        assert answer["entries"][0]["error_code"] == 0, answer

    with connect(kafka_region, "by-quota") as admin:
        alter(admin, remove=False)
        throttled: list[float] = []
        told = {"throttle_cb": lambda event: throttled.append(event.throttle_time)}
        eager = ck.Producer(
            {"bootstrap.servers": servers(kafka_region), "client.id": "eager", "acks": "all", "log_level": 0, **told}
        )
        found = []
        deadline = time.monotonic() + DEADLINE_S
        while not throttled:
            assert time.monotonic() < deadline
            found += send(eager, "by-quota", [b"e" * 9000])
            eager.poll(0.01)
        alter(admin, remove=True)
        found += send(eager, "by-quota", [b"e"] * 5)
        assert [offset for _, offset in found] == list(range(1, len(found) + 1)), "what came is stored, once"
        assert publish(admin, "by-quota", 1, size_bytes=20_000) == (0, len(found) + 1, 0), "other clients are free"


def test_the_rates_of_a_resource_group_hold_for_kafkas_clients(kafka_region: Region) -> None:
    rest(kafka_region, "PUT", "/admin/v2/namespaces/public/grouped")
    rest(kafka_region, "PUT", "/admin/v2/resourcegroups/few", {"publishRateInMsgs": 100, "publishRateInBytes": 1 << 30})
    rest(kafka_region, "POST", "/admin/v2/namespaces/public/grouped/resourcegroup/few")
    topics = ("public/grouped/one", "public/grouped/two")
    for topic in topics:
        create(kafka_region, topic)
    create(kafka_region, "in-no-group")
    with connect(kafka_region, *topics) as raw, connect(kafka_region, "in-no-group") as other:
        deadline, offsets = time.monotonic() + DEADLINE_S, dict.fromkeys(topics, 0)
        told = 0
        while not told:  # until the group is known
            for topic in topics:  # both have one rate
                found = publish(raw, topic, 75)
                assert found[:2] == (0, offsets[topic]) and time.monotonic() < deadline
                offsets[topic] += 75
                told = max(told, found[2])
        assert publish(other, "in-no-group", 500)[::2] == (0, 0), "others are not held"
        assert publish(raw, topics[0], 1)[:2] == (0, offsets[topics[0]]), "what it sends meanwhile is read later"


def test_a_dispatch_rate_slows_consumers_and_nothing_is_left_out(kafka_region: Region) -> None:
    create(kafka_region, "slowly")
    send(producer(kafka_region), "slowly", [b"%d" % i for i in range(100)])
    policy(
        kafka_region,
        "slowly",
        "dispatchRate",
        {"dispatchThrottlingRateInMsg": 50, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1},
    )
    wanted = {
        "partition": 0,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
    }
    fields = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
    }
    with connect(kafka_region, "slowly") as raw:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            answer = ask(
                raw,
                "fetch",
                11,
                {
                    **fields,
                    "topics": [{"topic": "slowly", "partitions": [wanted]}],
                    "forgotten_topics_data": [],
                    "rack_id": "",
                },
            )
            if answer["throttle_time"]:
                break
            assert time.monotonic() < deadline, "no fetch was told to wait"
        assert answer["responses"][0]["partitions"][0]["records"][1] == 0, "nothing is sent while its rate is used up"
    reader = consumer(kafka_region, "slow-readers")
    reader.subscribe(["slowly"])
    assert [m.offset() for m in take(reader, 100)] == list(range(100))
    reader.close()


def test_sizes_and_full_backlogs_have_kafkas_codes(kafka_region: Region) -> None:
    create(kafka_region, "sizes", **{"max.message.bytes": "4000"})
    create(kafka_region, "policy-sizes")
    policy(kafka_region, "policy-sizes", "maxMessageSize", 2000)
    with connect(kafka_region, "sizes", "policy-sizes") as raw:
        assert publish(raw, "sizes", 1, 5000)[0] == 10
        assert publish(raw, "sizes", 1, 3000)[0] == 0
        deadline = time.monotonic() + DEADLINE_S
        while (code := publish(raw, "policy-sizes", 1, 3000)[0]) != 10:
            assert code == 0 and time.monotonic() < deadline
        assert publish(raw, "policy-sizes", 1, 1000)[0] == 0
    with pytest.raises(ck.KafkaException) as caught:
        made = producer(kafka_region)
        made.produce("sizes", b"x" * 6000, on_delivery=lambda error, _: failed.append(error))
        failed: list[Any] = []
        made.flush(DEADLINE_S)
        raise ck.KafkaException(failed[0])
    assert caught.value.args[0].code() == ck.KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.parametrize(("policy_name", "code"), [("producer_exception", 44), ("producer_request_hold", 7)])
def test_a_full_backlog_stops_producers_until_somebody_reads(kafka_region: Region, policy_name: str, code: int) -> None:
    topic = f"full-{policy_name.rpartition('_')[2]}"
    create(kafka_region, topic)
    client = pulsar.Client(kafka_region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.subscribe(topic, "s")
        quota = {"limitSize": 100, "limit": 100, "policy": policy_name}
        rest(
            kafka_region,
            "POST",
            f"/admin/v2/persistent/public/default/{topic}/backlogQuota?backlogQuotaType=destination_storage",
            quota,
        )
        with connect(kafka_region, topic) as raw:
            deadline, stored = time.monotonic() + DEADLINE_S, 0
            while (found := publish(raw, topic, 1, 200)[0]) != code:
                assert found == 0 and time.monotonic() < deadline
                stored += 1
            for _ in range(stored):
                reader.acknowledge(reader.receive(int(DEADLINE_S * 1000)))
            while publish(raw, topic, 1, 1)[0] == code:
                assert time.monotonic() < deadline
    finally:
        client.close()
