"""Brokers that die under Kafka's clients: another one takes over, nothing is lost or doubled, and nobody waits for the
dead one.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import pytest

from geo_tests.wan.instance import eventually
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
    send,
    servers,
)
from heliograph.wire.kafka.record_batches import build_batch
from tests.region_node.region_processes import Region

pytestmark = [pytest.mark.wan, pytest.mark.long]


def test_a_broker_dies_under_producers_and_a_group(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        prepare(region)
        region.broker(1, kafka={"port": 0, "rebalance_delay_ms": 100}).wait_ready()
        create(region, "moving", 8)
        made = producer(region, 0, 1, enable_idempotence=True, linger_ms=5, message_timeout_ms=300_000)
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
        assert seen == {
            where: value for value, where in sent.items()
        }  # each message once, where its producer was told, nothing lost
        for partition in range(8):
            offsets = sorted(offset for p, offset in seen if p == partition)
            assert offsets == list(range(250))


def test_a_batch_that_comes_again_is_stored_once_also_by_another_broker(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        prepare(region)
        create(region, "once")

        def publish(raw: socket.socket, sequence: int) -> tuple[int, int]:
            batch = bytearray(build_batch([(1, None, b"%d" % (sequence + i), ()) for i in range(3)]))
            struct.pack_into(">qhi", batch, 43, number, 0, sequence)
            struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
            parts = {"name": "once", "partition_data": [{"index": 0, "records": bytes(batch)}]}
            answer = ask(
                raw, "produce", 7, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [parts]}
            )
            row = answer["responses"][0]["partition_responses"][0]
            return row["error_code"], row["base_offset"]

        def connect(broker: int) -> socket.socket:
            return socket.create_connection(
                ("127.0.0.1", region.processes[f"us-broker-{broker}"].ports["kafka"]), timeout=DEADLINE_S
            )

        with connect(0) as raw:
            number = ask(raw, "init_producer_id", 1, {"transactional_id": None, "transaction_timeout": 1000})[
                "producer_id"
            ]
            ask(
                raw, "metadata", 4, {"topics": [{"name": "once"}], "allow_auto_topic_creation": False}
            )  # makes an owner
            assert [publish(raw, 0), publish(raw, 3), publish(raw, 3)] == [(0, 0), (0, 3), (0, 3)]
            assert publish(raw, 9)[0] == 45
        region.processes["us-broker-0"].kill()
        region.broker(1, kafka={"port": 0}).wait_ready()
        with connect(1) as raw:
            deadline = time.monotonic() + DEADLINE_S
            while (found := publish(raw, 3))[0]:  # until it has taken the partition over
                assert time.monotonic() < deadline, found
                ask(raw, "metadata", 4, {"topics": [{"name": "once"}], "allow_auto_topic_creation": False})
            assert found == (0, 3), "the same batch, the same place"
            assert publish(raw, 9)[0] == 45 and publish(raw, 6) == (0, 6)


def test_a_group_rebalances_while_its_brokers_are_killed(tmp_path: Path) -> None:
    """Members come and go while brokers die: every record is read, partitions are shared out anew, and committed
    offsets never move back.
    """
    with Region(tmp_path) as region:
        prepare(region)
        region.broker(1, kafka={"port": 0, "rebalance_delay_ms": 100}).wait_ready()
        create(region, "shares", 6)
        made = producer(region, 0, 1, enable_idempotence=True, message_timeout_ms=300_000)

        def member(*brokers: int) -> GroupMember:
            return GroupMember(
                consumer(
                    region,
                    "sharers",
                    *brokers,
                    session_timeout_ms=10_000,
                    partition_assignment_strategy="cooperative-sticky",
                ),
                "shares",
            )

        members, left = [member(0, 1), member(0, 1)], list[GroupMember]()
        sent: dict[tuple[int, int], bytes] = {}

        def seen() -> dict[tuple[int, int], bytes]:
            return {at: value for each in members + left for at, value in list(each.seen.items())}

        def write(count: int) -> None:
            values: list[bytes | None] = [b"%d" % (len(sent) + i) for i in range(count)]
            for partition in range(6):
                sent.update(
                    dict(
                        zip(send(made, "shares", values, partition=partition), [v or b"" for v in values], strict=True)
                    )
                )

        deadline = time.monotonic() + 3 * DEADLINE_S

        def wait(there: Callable[[], bool], what: str) -> None:
            while not there():
                assert time.monotonic() < deadline, (
                    f"{what}: {len(seen())} of {len(sent)} read, {[each.partitions() for each in members]}"
                )
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
                wait(lambda: all(each.brokers == 2 for each in members), "its members do not know of the new broker")
                wait(
                    lambda: len(made.list_topics(timeout=DEADLINE_S).brokers) == 2,
                    "its producer does not know of the new broker",
                )
            if step == 3:
                region.processes["us-broker-1"].kill()
            wait(lambda: len(seen()) >= len(sent), f"step {step}")
            assert seen() == sent
            wait(shared, f"partitions are not shared out at step {step}")
        for each in members:
            each.leave()
        after = consumer(region, "sharers", 2)
        now = {
            part.partition: part.offset
            for part in after.committed([ck.TopicPartition("shares", p) for p in range(6)], timeout=DEADLINE_S)
        }
        after.close()
        committed = [(partition, offset) for each in members + left for partition, offset in each.committed.items()]
        assert len(committed) > 6 and all(now[partition] >= offset for partition, offset in committed), (now, committed)


def test_all_live_brokers_are_listed_and_nothing_waits_for_a_dead_one(tmp_path: Path) -> None:
    """One that leads nothing is there from the start; one that is killed is gone; a group whose topic was deleted is
    described at once.
    """
    with Region(tmp_path) as region:
        prepare(region)
        create(region, "alone")
        send(producer(region), "alone", [b"x"])
        region.broker(1, kafka={"port": 0}).wait_ready()
        client = admin_module.AdminClient({"bootstrap.servers": servers(region, 0, 1), "log_level": 0})

        def listed() -> set[int]:
            """Empty where the client asked a dead one, of whose end it had not heard: its question stays there until
            its time is over.
            """
            try:
                return {broker.port for broker in client.list_topics(timeout=5).brokers.values()}
            except ck.KafkaException as error:
                if error.args[0].code() != ck.KafkaError._TIMED_OUT:
                    raise
                return set()

        ports = [region.processes[f"us-broker-{number}"].ports["kafka"] for number in range(2)]
        eventually(lambda: listed() == set(ports), "both are listed")
        reader = consumer(region, "orphans", 0, 1)
        reader.commit(offsets=[ck.TopicPartition("alone", 0, 1)], asynchronous=False)
        reader.close()
        for future in client.delete_topics(["alone"]).values():
            future.result(DEADLINE_S)
        described = client.describe_consumer_groups(["orphans"])["orphans"].result(DEADLINE_S)
        assert not described.members
        offsets = client.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions("orphans")])["orphans"].result(
            DEADLINE_S
        )
        assert not offsets.topic_partitions, "what a deleted topic leaves is nothing"
        region.processes["us-broker-0"].kill()
        eventually(lambda: listed() == {ports[1]}, "the dead one is not listed")
        create_at = admin_module.AdminClient({"bootstrap.servers": servers(region, 1), "log_level": 0})
        for future in create_at.create_topics([admin_module.NewTopic("after", 2, 1)]).values():
            future.result(DEADLINE_S)
        assert send(producer(region, 1), "after", [b"y"], partition=1) == [(1, 0)]
