"""Compaction as the official client and the admin interface see it, against a real region."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from heliograph.cli.main import app
from tests.region_node.either import ORACLE, Either
from tests.region_node.live import TOPICS, until
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.either, pytest.mark.wan, pytest.mark.slow]

EARLIEST = pulsar.InitialPosition.Earliest


def emptied(*keys: str) -> list[tuple[str, bytes]]:
    """What is left of keys that this client took away by an empty message: Pulsar does not know such a message for a
    tombstone.
    """
    return [(key, b"") for key in keys] if ORACLE else []


def compact(rest: Rest, topic: str) -> None:
    assert rest("PUT", f"{TOPICS}/{topic}/compaction")[0] == 204

    def done() -> bool:
        status = rest("GET", f"{TOPICS}/{topic}/compaction")[1]
        assert status["status"] != "ERROR", status
        return bool(status["status"] == "SUCCESS")

    until(done)


def read_all(
    client: pulsar.Client, topic: str, start: Any = pulsar.MessageId.earliest, *, compacted: bool = True
) -> list[tuple[str, bytes]]:
    """(key, value) of all that a reader finds, until the broker says there is no more. This client shows what was
    compacted out of a batch as messages of nothing, also with Pulsar's own brokers.
    """
    reader = client.create_reader(topic, start, is_read_compacted=compacted)
    out = []
    while reader.has_message_available():
        message = reader.read_next(60_000)
        if message.partition_key() or message.data():
            out.append((message.partition_key(), message.data()))
    reader.close()
    return out


def test_single_messages_tombstones_and_what_has_no_key(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("plain")
    for value in range(5):
        for key in "abc":
            producer.send(f"{key}{value}".encode(), partition_key=key)
    producer.send(b"no key")
    producer.send(b"", partition_key="b")
    assert rest("GET", f"{TOPICS}/plain/compaction") == (200, {"status": "NOT_RUN", "lastError": ""})
    assert len(read_all(client, "plain")) == 17  # not compacted: everything
    compact(rest, "plain")
    assert read_all(client, "plain") == [("a", b"a4"), ("c", b"c4"), *emptied("b")]
    assert len(read_all(client, "plain", compacted=False)) == 17
    assert read_all(client, "plain", pulsar.MessageId.latest) == []
    producer.send(b"a5", partition_key="a")
    assert read_all(client, "plain") == [
        ("a", b"a4"),
        ("c", b"c4"),
        *emptied("b"),
        ("a", b"a5"),
    ]  # the log goes on behind the compacted part
    compact(rest, "plain")
    assert read_all(client, "plain") == [("c", b"c4"), *emptied("b"), ("a", b"a5")]
    stats = rest("GET", f"{TOPICS}/plain/stats")[1]
    assert stats["compaction"]["lastCompactionRemovedEventCount"] == 1
    internal = rest("GET", f"{TOPICS}/plain/internalStats")[1]
    assert internal["compactedLedger"]["entries"] == 2 + len(emptied("b"))
    assert "__compaction" in internal["cursors"]
    assert ("__compaction" in rest("GET", f"{TOPICS}/plain/subscriptions")[1]) is ORACLE
    producer.send(b"", partition_key="a")
    producer.send(b"", partition_key="c")
    compact(rest, "plain")
    assert read_all(client, "plain") == emptied("b", "a", "c")


@pytest.mark.parametrize(
    "kind",
    [
        pulsar.CompressionType.NONE,
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
    ids=lambda kind: str(kind).rpartition(".")[2],
)
def test_batches_of_every_compression(client: pulsar.Client, rest: Rest, kind: Any) -> None:
    if ORACLE and kind in (pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD):
        pytest.skip("Pulsar 4.0.7 fails to compact such batches: IndexOutOfBoundsException")
    topic = f"batches-{kind}".replace(".", "-")
    producer = client.create_producer(
        topic,
        compression_type=kind,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=10_000,
    )
    for value in range(30):  # three batches of ten
        producer.send_async(f"value {value} {'x' * 100}".encode(), None, partition_key=f"k{value % 12}")
    producer.flush()
    producer.send_async(b"", None, partition_key="k3")
    producer.flush()
    compact(rest, topic)
    found = read_all(client, topic)
    latest = {f"k{value % 12}": f"value {value} {'x' * 100}".encode() for value in range(30)}
    del latest["k3"]
    assert dict(found) == latest
    assert len(found) == 11
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, is_read_compacted=True)
    left = 11
    while left:
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        left -= bool(message.partition_key())
    # of the four batches two are gone as a whole; the others are acknowledged
    until(lambda: rest("GET", f"{TOPICS}/{topic}/stats")[1]["subscriptions"]["s"]["msgBacklog"] == 2)
    consumer.close()


def test_an_idle_topic_reads_the_same_after_it_moved(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("moved")
    for value in range(40):
        producer.send(str(value).encode(), partition_key=str(value % 7))
    compact(rest, "moved")
    want = read_all(client, "moved")
    assert sorted(int(value) for _, value in want) == list(range(33, 40))
    assert rest("PUT", f"{TOPICS}/moved/unload")[0] == 204
    assert read_all(client, "moved") == want
    assert rest("GET", f"{TOPICS}/moved/compaction")[1]["status"] == ("NOT_RUN" if ORACLE else "SUCCESS")


def test_consumers_go_on_where_they_were(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("positions")
    ids = [producer.send(str(value).encode(), partition_key=str(value % 3)) for value in range(9)]
    compact(rest, "positions")
    consumer = client.subscribe("positions", "s", initial_position=EARLIEST, is_read_compacted=True)
    assert [consumer.receive(60_000).data() for _ in range(3)] == [b"6", b"7", b"8"]
    consumer.seek(ids[6])
    assert consumer.receive(60_000).data() == b"7"  # behind the message that was named, as this client has it
    consumer.seek(pulsar.MessageId.earliest)
    message = consumer.receive(60_000)
    assert message.data() == b"6"
    assert (message.message_id().ledger_id(), message.message_id().entry_id()) == (
        ids[6].ledger_id(),
        ids[6].entry_id(),
    )
    consumer.acknowledge_cumulative(message)
    consumer.close()
    consumer = client.subscribe("positions", "s", is_read_compacted=True)
    assert [consumer.receive(60_000).data() for _ in range(2)] == [b"7", b"8"]
    consumer.close()


def test_a_threshold_starts_it(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("threshold")
    for value in range(20):
        producer.send(b"x" * 1000 + str(value).encode(), partition_key=str(value % 2))
    assert rest("POST", f"{TOPICS}/threshold/compactionThreshold", 5000)[0] == 204
    until(lambda: rest("GET", f"{TOPICS}/threshold/compaction")[1]["status"] == "SUCCESS")
    assert len(read_all(client, "threshold")) == 2


def test_what_was_compacted_is_kept_when_the_log_goes(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("trimmed")
    for value in range(20):
        producer.send(str(value).encode(), partition_key=str(value % 4))
    compact(rest, "trimmed")
    assert rest("POST", f"{TOPICS}/trimmed/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})[0] == 204
    assert rest("PUT", f"{TOPICS}/trimmed/unload")[0] == 204  # its ledger is closed
    producer.send(b"20", partition_key="0")

    def gone() -> bool:
        rest("POST", f"{TOPICS}/trimmed/trim")
        return bool(rest("GET", f"{TOPICS}/trimmed/internalStats")[1]["numberOfEntries"] == 1)

    until(gone)
    assert [value for _, value in read_all(client, "trimmed")] == [b"16", b"17", b"18", b"19", b"20"]
    consumer = client.subscribe("trimmed", "s", initial_position=EARLIEST, is_read_compacted=True)
    sent = [consumer.receive(60_000) for _ in range(5)]
    for back_to, wanted in ((sent[2].publish_timestamp(), None), (1, b"16")):  # further back than the log goes
        consumer.seek(back_to)
        message = consumer.receive(60_000)
        first = next(m.data() for m in sent if m.publish_timestamp() >= back_to)
        assert message.data() == (b"16" if ORACLE else wanted or first)
    consumer.close()
    compact(rest, "trimmed")
    assert [value for _, value in read_all(client, "trimmed")] == [b"17", b"18", b"19", b"20"]


def test_a_partitioned_topic_and_a_deleted_one(client: pulsar.Client, rest: Rest) -> None:
    assert rest("PUT", f"{TOPICS}/parts/partitions", 2)[0] == 204
    producer = client.create_producer("parts")
    for value in range(20):
        producer.send(str(value).encode(), partition_key=str(value % 4))
    for part in ("parts-partition-0", "parts-partition-1") if ORACLE else ("parts",):
        compact(rest, part)
    found = [row for index in range(2) for row in read_all(client, f"parts-partition-{index}")]
    assert sorted(int(value) for _, value in found) == [16, 17, 18, 19]
    producer.close()
    ledger = rest("GET", f"{TOPICS}/plain/internalStats")[1]["compactedLedger"]["ledgerId"]
    assert rest("DELETE", f"{TOPICS}/plain?force=true")[0] == 204
    assert ledger == -1 or ledger > 0
    assert rest("PUT", "/admin/v2/non-persistent/public/default/n/compaction")[0] in (404, 412)


def test_the_command_line(client: pulsar.Client, region: Either, rest: Rest) -> None:
    producer = client.create_producer("by-hand")
    for value in range(10):
        producer.send(str(value).encode(), partition_key="one")

    def topics(*arguments: str) -> str:
        answer = CliRunner().invoke(app, ["topics", "compact", "by-hand", *arguments, "--admin", region.admin_url()])
        assert answer.exit_code == 0, answer.output
        return " ".join(answer.output.split())

    assert "compaction NOT_RUN" in topics("--status")
    topics()
    until(lambda: "compaction SUCCESS" in topics("--status"))
    assert read_all(client, "by-hand") == [("one", b"9")]
    if ORACLE:  # its metrics are elsewhere, and come once a minute
        return
    metrics = rest("GET", "/metrics")[1]
    wanted = 'pulsar_compaction_compacted_entries_count{cluster="us",namespace="public/default",topic="persistent://public/default/by-hand"} 1'  # noqa: E501
    assert wanted in str(metrics)
