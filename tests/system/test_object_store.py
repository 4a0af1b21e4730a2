"""Tiered storage end to end: a real S3 server (versitygw), real standalones, the official client, and the program's own
commands.

Publish, roll over, offload by command; the bookies are rid of it; read from the beginning, restart, read again; a wrong
secret says so; and when the region is gone with all its data, another one has the topic back from the bucket alone.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import eventually
from tests.system.object_store import BATCH, BUCKET, S3, SECRET, TOPIC, Standalone, payload

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
COUNT = 6000
WANTED = [payload(i) for i in range(COUNT)]


def test_from_the_bucket_as_from_the_bookies_and_back_after_the_region_is_lost(s3: S3, tmp_path: Path) -> None:
    with Standalone(tmp_path / "first", s3.endpoint) as first:
        first.rest(
            "POST",
            "/admin/v2/namespaces/public/default/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        for part in range(3):
            first.publish(part * 2000, part * 2000 + 2000)
            first.roll_over()
        client = first.client()
        consumer = client.subscribe(TOPIC, "half", initial_position=pulsar.InitialPosition.Earliest)
        for _ in range(COUNT // 2):
            consumer.acknowledge(consumer.receive(60_000))
        stats = "/admin/v2/persistent/public/default/years-of-it/stats"
        eventually(
            lambda: first.rest("GET", stats)["subscriptions"]["half"]["msgBacklog"] == COUNT // 2 // BATCH,
            "the client has sent what it acknowledged",
        )
        client.close()
        first.rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)
        assert "only bookies have: " in first.command("topics", "offload-status", TOPIC)
        first.command("topics", "offload", TOPIC)
        eventually(lambda: "has every message" in first.command("tier", "status", TOPIC), "everything is offloaded")
        eventually(lambda: first.local_ledgers() == [], "the bookies are rid of it")
        assert len(first.ledgers()) == 3
        listed = first.rest("GET", "/admin/v2/namespaces/public/default/scanOffloadedLedgers")
        assert {row["ledger"] for row in listed["ledgers"]} == {row["ledgerId"] for row in first.ledgers()} and listed[
            "objects"
        ] == 3
        assert first.read_from_the_beginning(COUNT) == WANTED
        first.stop()
        first.start()
        assert first.read_from_the_beginning(COUNT) == WANTED
        eventually(lambda: "done" in first.command("tier", "status", TOPIC), "a manifest by the broker that came back")
        first.stop()

        first.env["AWS_SECRET_ACCESS_KEY"] = "another-secret"
        first.start()
        client = first.client()
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        with pytest.raises(pulsar.Timeout):
            reader.read_next(3000)
        client.close()
        said = eventually(
            lambda: (text := first.command("tier", "status", TOPIC, fails=None)).startswith("failed") and text,
            "the refusal is told",
        )
        assert "refuses" in said and SECRET not in said and "tiered.options" in said, said
        first.stop()
    shutil.rmtree(tmp_path / "first")

    with Standalone(tmp_path / "second", s3.endpoint) as second:
        options = ("--option", f"endpoint={s3.endpoint}", "--option", "region=us-east-1")
        shown = json.loads(second.plain("tier", "list", "--store", second.store, *options, "--json"))
        assert [(row["topic"], row["entries"] > 0, row["ledgers"]) for row in shown] == [(TOPIC, True, 3)]
        said = second.command("tier", "restore", "--topic", TOPIC)
        assert f"restored {TOPIC}" in said and "3 ledgers" in said and "1 subscriptions" in said, said
        second.rest(
            "POST",
            "/admin/v2/namespaces/public/default/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        assert second.read_from_the_beginning(COUNT) == WANTED
        client = second.client()
        consumer = client.subscribe(TOPIC, "half")
        assert consumer.receive(60_000).data() == WANTED[COUNT // 2]
        client.close()
        second.publish(COUNT, COUNT + 10)
        assert second.read_from_the_beginning(COUNT + 10) == [*WANTED, *(payload(i) for i in range(COUNT, COUNT + 10))]
        assert "delete it first" in second.command("tier", "restore", "--topic", TOPIC, fails=True)
        second.stop()
        second.start()
        assert second.read_from_the_beginning(COUNT + 10)[:COUNT] == WANTED


def test_a_store_that_dies_under_uploads_and_reads(s3: S3, tmp_path: Path) -> None:
    """Killed while an object is on its way, and again while everything lies there only: nothing is lost, and all goes
    on by itself.
    """
    with Standalone(tmp_path / "one", s3.endpoint) as one:
        one.rest(
            "POST",
            "/admin/v2/namespaces/public/default/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        one.publish(0, COUNT)
        one.roll_over()
        one.publish(COUNT, COUNT + 10)
        one.rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)
        s3.process.stop(kill=True)
        one.command("topics", "offload", TOPIC)
        said = eventually(
            lambda: (text := one.command("tier", "status", TOPIC, fails=None)).startswith("failed") and text,
            "the silence is told",
            120,
        )
        assert f"s3://{BUCKET}" in said and s3.objects() == []
        assert len(one.local_ledgers()) == 2 and one.read_from_the_beginning(COUNT + 10)[:COUNT] == WANTED
        s3.start()
        eventually(lambda: len(one.local_ledgers()) == 1, "it is tried again, and the local copy goes", 180)
        assert len(s3.objects()) == 1
        s3.process.stop(kill=True)
        one.stop()
        one.start()
        client = one.client()
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        with pytest.raises(pulsar.Timeout):
            reader.read_next(2000)
        s3.start()
        assert [reader.read_next(90_000).data() for _ in range(COUNT)] == WANTED, "the same reader goes on"
        client.close()


def test_a_compacted_topic_is_read_from_the_bucket(s3: S3, tmp_path: Path) -> None:
    """Its compacted ledger goes there too, comes back to readers, and is deleted there once another one has replaced
    it.
    """
    path = f"/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}"

    def compacted() -> dict[str, Any]:
        return dict(one.rest("GET", f"{path}/internalStats")["compactedLedger"])

    def compact(value: str) -> int:
        client = one.client()
        producer = client.create_producer(TOPIC)
        for i in range(200):
            producer.send_async(value.encode(), lambda *_: None, partition_key=f"k{i % 40}")
        producer.flush()
        client.close()
        before = compacted()["ledgerId"]
        one.rest("PUT", f"{path}/compaction")
        eventually(
            lambda: compacted()["ledgerId"] != before and one.rest("GET", f"{path}/compaction")["status"] == "SUCCESS",
            "it is compacted",
        )
        eventually(lambda: compacted()["offloaded"], "the bookies are rid of it")
        return int(compacted()["ledgerId"])

    def read(value: str) -> None:
        client = one.client()
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            message = reader.read_next(30_000)
            if message.partition_key():
                found.append((message.partition_key(), message.data()))
        assert sorted(found) == sorted((f"k{i}", value.encode()) for i in range(40))
        client.close()

    with Standalone(tmp_path / "one", s3.endpoint) as one:
        one.rest("PUT", "/admin/v2/namespaces/public/default/offloadThreshold", 0)
        one.rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)
        first = compact("first")
        assert any(str(first) in file.name for file in s3.objects())
        read("first")
        one.stop()
        one.start()
        read("first")
        second = compact("second")
        read("second")
        eventually(
            lambda: not any(f"{first:020d}-" in file.name for file in s3.objects()), "what was replaced is deleted"
        )
        assert any(f"{second:020d}-" in file.name for file in s3.objects())
