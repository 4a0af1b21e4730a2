"""Tiered storage as a broker has it: policies as values, a restored topic's origins, and the whole way once through
real processes and a folder.
"""

from __future__ import annotations

import json
import random
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pulsar
import pytest

from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.wire.run import Run
from region_node.tiering.broker_tier import RestoredTopic, policy_of
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.topic_state import TopicState
from storage.tiered.offload.offload_plan import OffloadPolicy
from tests.region_node.live import until
from tests.region_node.region_processes import Region
from tests.region_node.tiering.tiered_region import HELIOGRAPH, TOPIC, provisioned, read_all

AVRO: dict[str, Any] = {
    "type": "AVRO",
    "schema": '{"type": "record", "name": "R", "fields": [{"name": "x", "type": ["string", "null"]}]}',
    "properties": {},
}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, OffloadPolicy()),
        (
            {"managedLedgerOffloadThresholdInBytes": 5, "managedLedgerOffloadDeletionLagInMillis": 0},
            OffloadPolicy(threshold_bytes=5, deletion_lag_ms=0),
        ),
        (
            {"managedLedgerOffloadThresholdInSeconds": 60, "managedLedgerOffloadDriver": "aws-s3"},
            OffloadPolicy(threshold_s=60),
        ),
        ({"managedLedgerOffloadThresholdInBytes": -7}, OffloadPolicy()),
        (
            {"managedLedgerOffloadThresholdInBytes": True, "managedLedgerOffloadThresholdInSeconds": "x"},
            OffloadPolicy(),
        ),
    ],
)
def test_pulsars_offload_policies_as_ours(values: dict[str, Any], wanted: OffloadPolicy) -> None:
    assert policy_of(values) == wanted


def run_of(count: int, index: int, producer: str = "p") -> Run:
    return Run([b"x"] * count, [1] * count, first_index=index, producers=((producer, count, index, None),))


def state_of(region: int) -> TopicState:
    return TopicState(region=region, epoch=1, rng=random.Random(region), deduplication=True, settings=DedupSettings())


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("number", [1, 2])
def test_a_restored_topic_goes_on_under_an_origin_of_its_own(whole: bool, number: int) -> None:
    """In a region of the lost one's number, or of another."""
    lost = state_of(1)
    lost.restore(b"")
    for ledger in (3, 5):
        lost.confirm_local(ledger, 0, run_of(10, 10 * ledger))
    replicated = Run([b"y"], [1], origin=(7, 1, 99), spans=((40, 2, 1),), checksums=[1])
    lost.replay(5, 10, replicated)
    covered = lost.snapshot()
    lost.confirm_local(8, 0, run_of(10, 80))  # in the open ledger: lost with the region
    beyond = lost.snapshot()

    restored = RestoredTopic(RegionInfo(name="eu", number=number, epoch=4), random.Random(9))
    restored.begin(covered if whole else beyond, whole=whole)
    if not whole:
        for ledger in (3, 5):
            restored.replay(ledger, 0, run_of(10, 10 * ledger))
        restored.replay(5, 10, replicated)
    state = state_of(number)
    state.restore(restored.end((5, 10)))
    assert state.vector.prefix(lost.origin) == (5, 9), "it holds what was stored, and claims no more"
    assert state.vector.prefix((7, 1, 99)) == (40, 2)
    assert state.origin[:2] == (number, 4) and state.origin_at((9, 0)) == state.origin
    if number == 1:
        assert state.origin_at((5, 3)) == lost.origin and state.vector.prefix(state.origin) < (0, 0)
    else:  # nothing may leave this region under another one's number
        assert (
            not state.is_own(lost.origin)
            and state.origin_at((5, 3)) == state.origin
            and state.vector.prefix(state.origin) == (5, 10)
        )
    assert state.producers.last_sequence("p", 0) == 59


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELIOGRAPH), "tier", *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_offloaded_by_policy_and_restored_where_nothing_is_known_of_it(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/objects"
    tiered = {"store": store, "tick_s": 0.2, "manifest_s": 0}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Region(tmp_path / "a") as region:
        region.start(tiered=tiered)
        rest = provisioned(region, namespace=True)
        assert rest("POST", "/admin/v2/namespaces/public/default/deduplication", True)[0] == 204
        client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for part in range(2):
            producer = client.create_producer(TOPIC, producer_name="p", initial_sequence_id=100 * part)
            for i in range(100):
                producer.send(str(100 * part + i).encode())
            last_sequence = producer.last_sequence_id()
            producer.close()
            assert rest("PUT", "/admin/v2/persistent/public/default/old/unload")[0] == 204
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        for _ in range(30):
            consumer.acknowledge(consumer.receive(60_000))
        client.close()
        second = AVRO["schema"].replace(
            '"null"]}', '"null"]}, {"name": "more", "type": ["null", "int"], "default": null}'
        )
        for definition in (AVRO, {**AVRO, "schema": second}):
            assert rest("POST", "/admin/v2/schemas/public/default/old/schema", definition)[0] == 200
        schemas = rest("GET", "/admin/v2/schemas/public/default/old/schemas")[1]
        path = "/admin/v2/persistent/public/default/old"
        assert rest("GET", f"{path}/offload")[1]["status"] == "NOT_RUN"
        assert rest("PUT", f"{path}/offload", {"ledgerId": "x"})[0] == 400
        assert rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)[0] == 204
        assert rest("PUT", "/admin/v2/namespaces/public/default/offloadThreshold", 0)[0] == 204
        gone = until(
            lambda: (
                (rows := rest("GET", f"{path}/internalStats")[1]["ledgers"])
                and not any(row["onBookies"] for row in rows)
                and rows
            )
        )
        assert all(row["offloaded"] for row in gone)
        assert read_all(region.service_url(), 200) == list(range(200))
        metrics = urllib.request.urlopen(f"{region.admin_url()}/metrics", timeout=60).read().decode()
        assert (
            'heliograph_tier_offloaded_ledgers_total{cluster="us"} 2' in metrics
            and "pulsar_storage_offloaded_size" in metrics
            and 'heliograph_tier_metadata_went_back{cluster="us"} 0' in metrics
        )
        assert rest("POST", "/heliograph/v1/tier/confirm")[0] == 412
        seen = Path(store.removeprefix("file://")) / rest("GET", "/heliograph/v1/tier")[1]["holder"] / "seen"
        seen.mkdir(exist_ok=True)
        (seen / "doubt").write_text("as a sweep leaves it that finds the metadata gone back")
        admin = ("--admin", region.admin_url())
        refused = command("collect", "--yes", *admin)
        assert refused.returncode == 0 and "went back" in refused.stdout and "confirmed" in refused.stdout, refused
        assert "nothing to confirm" in command("collect", *admin).stdout

    listed = json.loads(command("list", "--store", store, "--json").stdout)
    assert [(row["topic"], row["ledgers"], row["trouble"]) for row in listed] == [(TOPIC, 2, "")]

    with Region(tmp_path / "b", "eu") as region:
        region.start(tiered={"tick_s": 0.2})  # set to no store: the restore names one, and the records do
        rest = provisioned(region, namespace=False)
        assert rest("POST", "/heliograph/v1/tier/restore", {"topic": TOPIC})[0] == 412
        assert rest("POST", "/heliograph/v1/tier/restore", {"topic": TOPIC, "colour": "red"})[0] == 400
        done = command("restore", "--topic", TOPIC, "--store", store, "--admin", region.admin_url())
        assert done.returncode == 0 and "2 ledgers" in done.stdout and "1 subscriptions" in done.stdout, (
            done.stdout + done.stderr
        )
        assert (
            rest("GET", "/admin/v2/schemas/public/default/old/schemas")[1] == schemas
            and len(schemas["getSchemaResponses"]) == 2
        )
        assert rest("GET", "/admin/v2/namespaces/public/default")[1]["deduplicationEnabled"] is True
        assert read_all(region.service_url(), 200) == list(range(200))
        client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumer = client.subscribe(TOPIC, "s")
        assert int(consumer.receive(60_000).data()) == 30
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.last_sequence_id() == last_sequence, "what was published before is known"
        client.close()
        again = command("restore", "--topic", TOPIC, "--store", store, "--admin", region.admin_url())
        assert again.returncode == 2 and "delete it first" in again.stderr
