"""cleanup.policy=compact by Kafka's own clients: offsets stay, keys keep their last value, readers come past what is
gone; settings as policies.
"""

from __future__ import annotations

import time
from typing import Any

import pulsar
import pytest

from geo_tests.wan.kafka_support import (
    DEADLINE_S,
    admin_module,
    ck,
    consumer,
    create,
    get,
    producer,
    rest,
    send,
    servers,
    take,
)
from tests.region_node.region_processes import Region

pytestmark = pytest.mark.wan
PATH = "/admin/v2/persistent/public/default"


def compacted(region: Region, topic: str, partition: int = 0) -> None:
    """Returns once all that the partition has now is compacted."""
    path = f"{PATH}/{topic}-partition-{partition}/compaction"
    rest(region, "PUT", path)
    deadline = time.monotonic() + DEADLINE_S
    while (found := get(region, path))["status"] == "RUNNING":
        assert time.monotonic() < deadline
    assert found["status"] == "SUCCESS", found


def read_all(region: Region, topic: str, **settings: Any) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) from the first offset until the reader stands at the end."""
    reader = consumer(region, f"all-{topic}", **{"enable_partition_eof": True, **settings})
    reader.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
    out: list[tuple[int, bytes | None, bytes | None]] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for message in reader.consume(500, 0.1):
            if message.error() is None:
                out.append((message.offset(), message.key(), message.value()))
            elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                end = reader.get_watermark_offsets(ck.TopicPartition(topic, 0), timeout=DEADLINE_S)[1]
                assert message.offset() == end, "a reader comes to the end of the log"
                reader.close()
                return out
    raise AssertionError(f"no end after {len(out)} messages")


def test_the_last_value_of_each_key_stays_at_its_offset(kafka_region: Region) -> None:
    topic = "compacted"
    create(kafka_region, topic, **{"cleanup.policy": "compact", "delete.retention.ms": "0"})
    made = producer(kafka_region, linger_ms=20, compression_type="zstd")
    expected: dict[bytes, tuple[int, bytes, bytes | None]] = {}
    for turn in range(3):
        for index in range(40):
            key, value = b"\xffk%d" % (index % 10), b"" if index == 37 else b"%d-%d" % (turn, index)
            expected[key] = (send(made, topic, [value], key=key)[0][1], key, value)
    gone = [b"\xffk3", b"\xffk9"]
    for key in gone:
        send(made, topic, [None], key=key)
    assert read_all(kafka_region, topic)[-1][2] is None, "what takes a key away is read until it is compacted"
    compacted(kafka_region, topic)
    left = sorted(row for key, row in expected.items() if key not in gone)
    assert read_all(kafka_region, topic) == left
    assert any(value == b"" for _, _, value in left), "an empty value is a value"
    send(made, topic, [b"later"], key=b"\xffk0")
    assert read_all(kafka_region, topic) == [*left, (122, b"\xffk0", b"later")]
    reader = consumer(kafka_region, f"middle-{topic}")
    reader.assign([ck.TopicPartition(topic, 0, left[3][0])])
    assert take(reader, 1)[0].offset() == left[3][0], "an offset holds what it held"
    reader.close()
    compacted(kafka_region, topic)
    assert read_all(kafka_region, topic) == [row for row in left if row[1] != b"\xffk0"] + [(122, b"\xffk0", b"later")]
    client = pulsar.Client(kafka_region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        theirs = client.create_reader(f"{topic}-partition-0", pulsar.MessageId.earliest, is_read_compacted=True)
        values = [theirs.read_next(int(DEADLINE_S * 1000)).data() for _ in range(8)]
    finally:
        client.close()
    assert values == [value for _, _, value in read_all(kafka_region, topic)], "the same by the other protocol"


def test_deletions_are_read_for_as_long_as_the_topic_says(kafka_region: Region) -> None:
    create(kafka_region, "tombs", **{"cleanup.policy": "compact"})
    made = producer(kafka_region)
    send(made, "tombs", [b"1", b"2", None], key=b"k")
    compacted(kafka_region, "tombs")
    assert read_all(kafka_region, "tombs") == [(0, b"k", b"1"), (1, b"k", b"2"), (2, b"k", None)], (
        "a day, unless told otherwise"
    )


def test_a_topic_of_which_nothing_is_left_is_empty_and_goes_on(kafka_region: Region) -> None:
    create(kafka_region, "nothing", **{"cleanup.policy": "compact", "delete.retention.ms": "0"})
    made = producer(kafka_region)
    send(made, "nothing", [b"1", None], key=b"k")
    compacted(kafka_region, "nothing")
    assert read_all(kafka_region, "nothing") == []
    send(made, "nothing", [b"2"], key=b"k")
    assert read_all(kafka_region, "nothing") == [(2, b"k", b"2")]


def test_records_without_a_key_and_deletion_by_offset_are_refused(kafka_region: Region) -> None:
    create(kafka_region, "keyed", **{"cleanup.policy": "compact"})
    failed: list[Any] = []
    made = producer(kafka_region)
    made.produce("keyed", b"no key", on_delivery=lambda error, _: failed.append(error))
    made.flush(DEADLINE_S)
    assert failed[0].code() == ck.KafkaError.INVALID_RECORD
    client = admin_module.AdminClient({"bootstrap.servers": servers(kafka_region), "log_level": 0})
    with pytest.raises(ck.KafkaException) as caught:
        client.delete_records([ck.TopicPartition("keyed", 0, 0)])[ck.TopicPartition("keyed", 0, 0)].result(DEADLINE_S)
    assert caught.value.args[0].code() == ck.KafkaError.POLICY_VIOLATION


def test_a_large_topic_is_compacted_by_itself_and_its_log_is_let_go(kafka_region: Region) -> None:
    create(
        kafka_region, "itself", **{"cleanup.policy": "compact", "delete.retention.ms": "0", "segment.bytes": "20000"}
    )
    made = producer(kafka_region, linger_ms=5)
    for turn in range(5):
        send(made, "itself", [b"%d" % turn + b"x" * 5000], key=b"a")
        send(made, "itself", [b"%d" % turn + b"x" * 5000], key=b"b")
    deadline = time.monotonic() + DEADLINE_S
    while len(read_all(kafka_region, "itself")) > 4:
        assert time.monotonic() < deadline


def test_settings_are_policies_and_policies_are_settings(kafka_region: Region) -> None:
    create(kafka_region, "mapped", **{"retention.ms": "90000", "retention.bytes": str(10 << 20)})
    client = admin_module.AdminClient({"bootstrap.servers": servers(kafka_region), "log_level": 0})
    resource = admin_module.ConfigResource(admin_module.ConfigResource.Type.TOPIC, "mapped")

    def described() -> dict[str, str]:
        return {
            name: entry.value
            for name, entry in client.describe_configs([resource])[resource].result(DEADLINE_S).items()
        }

    assert get(kafka_region, f"{PATH}/mapped/retention?isGlobal=true") == {
        "retentionTimeInMinutes": 2,
        "retentionSizeInMB": 10,
    }
    assert described()["retention.ms"] == "90000" and described()["retention.bytes"] == str(10 << 20)
    rest(kafka_region, "POST", f"{PATH}/mapped/retention", {"retentionTimeInMinutes": 30, "retentionSizeInMB": -1})
    deadline = time.monotonic() + DEADLINE_S
    while described()["retention.ms"] != "1800000":
        assert time.monotonic() < deadline
    assert described()["retention.bytes"] == "-1"
    entry, kind = admin_module.ConfigEntry, admin_module.AlterConfigOpType
    wanted = [
        entry("cleanup.policy", "compact", incremental_operation=kind.APPEND),
        entry("segment.bytes", "5000", incremental_operation=kind.SET),
    ]
    changed = admin_module.ConfigResource(admin_module.ConfigResource.Type.TOPIC, "mapped", incremental_configs=wanted)
    client.incremental_alter_configs([changed])[changed].result(DEADLINE_S)
    assert described()["cleanup.policy"] == "delete,compact"
    assert get(kafka_region, f"{PATH}/mapped/compactionThreshold?isGlobal=true") == 5000
    changed = admin_module.ConfigResource(
        admin_module.ConfigResource.Type.TOPIC,
        "mapped",
        incremental_configs=[entry("cleanup.policy", "compact", incremental_operation=kind.SUBTRACT)],
    )
    client.incremental_alter_configs([changed])[changed].result(DEADLINE_S)
    assert (
        described()["cleanup.policy"] == "delete"
        and get(kafka_region, f"{PATH}/mapped/compactionThreshold?isGlobal=true") is None
    )
    assert described()["retention.ms"] == "1800000", "what others have set stays"
