"""Bundles of one region move between its brokers, and all its processes are restarted one by one; clients with work in
hand see no error.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import PROGRAM, Instance, eventually, heliograph, owners, rest
from geo_tests.wan.kafka_support import ck, take
from heliograph.model.topic_names import bundle_of, bundle_range

pytestmark = pytest.mark.long

BUNDLES = 8
TOPICS = [f"persistent://public/busy/t{index}" for index in range(24)]
FAST = (
    '{"report_s": 1, "cycle_s": 1, "shedding": {"threshold": 0.01, "floor": 0.01, "gain": 0.001, "least": 0.0005, '
    '"patience_s": 0, "cool_down_s": 5'
)
FAST += ', "moves_per_minute": 60}'
SPLITTING = '"split": {"load": 0.02, "reports": 2, "rest_s": 3, "bundles_max": 16}'


@pytest.fixture
def region(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """One region with three brokers that look at their load each second, and call a hundredth of a core a load.
    Parameter: settings of splitting.
    """
    monkeypatch.setenv(
        "HELIOGRAPH_BROKER__BALANCE", FAST + f", {getattr(request, 'param', SPLITTING.replace('0.02', '10'))}" + "}"
    )
    monkeypatch.setenv(
        "HELIOGRAPH_BROKER__OWNERSHIP", '{"lease_ttl_ms": 60000}'
    )  # a machine busy with other tests is no dead broker
    monkeypatch.setenv("HELIOGRAPH_BROKER__KAFKA", '{"port": 0}')
    wan = tmp_path / "wan.json"
    wan.write_text('{"links": []}')
    instance = Instance(tmp_path / "data", regions=("us",), wan=str(wan), brokers="3", bookies=3)
    rest("PUT", f"{instance.admin('us')}/admin/v2/namespaces/public/busy", {"bundles": {"numBundles": BUNDLES}})
    rest(
        "POST",
        f"{instance.admin('us')}/admin/v2/namespaces/public/busy/retention",
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    )
    try:
        eventually(
            lambda: "public/busy" in rest("GET", f"{instance.admin('us')}/admin/v2/namespaces/public"),
            "the namespace is known",
        )
        yield instance
    finally:
        instance.down()


class Load:
    """Producers on all topics; every receipt and every error is counted."""

    def __init__(self, client: Any, topics: list[str] = TOPICS) -> None:
        self.receipts = self.sent = self.rounds = 0
        self.errors: list[Any] = []
        self._stop = threading.Event()
        self._producers = [
            client.create_producer(topic, block_if_queue_full=True, send_timeout_millis=180_000) for topic in topics
        ]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while not self._stop.is_set():
            for producer in self._producers:
                producer.send_async(b"%0100d" % self.rounds, self._answered)
                self.sent += 1
            self.rounds += 1
            pause.wait(0.01)

    def _answered(self, result: Any, message_id: Any) -> None:
        if result == pulsar.Result.Ok:
            self.receipts += 1
        else:
            self.errors.append(result)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        for producer in self._producers:
            producer.flush()
        eventually(lambda: self.receipts + len(self.errors) == self.sent, "an answer to everything that was sent")


class KafkaLoad(threading.Thread):
    """A Kafka producer of one topic, and every message in order in the end, each once."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(daemon=True)
        self._instance, self._topic = instance, "rolling"
        self._producer = ck.Producer(
            {
                "bootstrap.servers": self._servers(),
                "enable.idempotence": True,
                "message.timeout.ms": 240_000,
                "log_level": 0,
            }
        )
        self._stop_asked = threading.Event()
        self.sent, self.stored, self.errors = 0, 0, list[Any]()
        self.start()

    def _servers(self) -> str:
        """Ports are others after a restart here: who knows one broker hears of the rest."""
        brokers = rest("GET", f"{self._instance.admin('us')}/heliograph/v1/status")["brokers"]
        return ",".join(broker["listeners"]["kafka"].rpartition("/")[2].rpartition("@")[2] for broker in brokers)

    def run(self) -> None:
        while not self._stop_asked.wait(0.02):
            self._producer.produce(self._topic, b"%d" % self.sent, on_delivery=self._answered)
            self.sent += 1
            self._producer.poll(0)

    def _answered(self, error: Any, message: Any) -> None:
        if error is None:
            self.stored += 1
        else:
            self.errors.append(error)

    def finish(self) -> None:
        self._stop_asked.set()
        self.join()
        assert self._producer.flush(240) == 0 and (self.errors, self.stored) == ([], self.sent)
        reader = ck.Consumer(
            {"bootstrap.servers": self._servers(), "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        )
        reader.subscribe([self._topic])
        assert [int(message.value()) for message in take(reader, self.sent)] == list(range(self.sent))
        reader.close()


def test_bundles_move_by_command_and_by_load_and_no_client_sees_an_error(region: Instance) -> None:
    admin, client = region.admin("us"), region.client("us")
    rest("POST", f"{admin}/heliograph/v1/balance/pause?seconds=3600")
    load = Load(client)
    names = {bundle_range(bundle_of(topic, BUNDLES), BUNDLES) for topic in TOPICS}
    eventually(lambda: names <= set(owners(region)), "each bundle with a topic has an owner")
    first = rest("GET", f"{admin}/heliograph/v1/status")["brokers"][0]["id"]
    for name in sorted(names):
        heliograph("namespaces", "unload", "public/busy", "--bundle", name, "--to", first, "--admin", admin)
    eventually(
        lambda: {owner for bundle, owner in owners(region).items() if bundle in names} == {first},
        "one broker has them all",
    )

    shown = rest("GET", f"{admin}/heliograph/v1/balance")
    assert shown["paused_s"] > 0 and shown["leader"] in {broker["broker"] for broker in shown["brokers"]}
    rest("DELETE", f"{admin}/heliograph/v1/balance/pause")
    eventually(
        lambda: len({owner for bundle, owner in owners(region).items() if bundle in names}) == 3,
        "all brokers share the load",
        180,
    )
    load.finish()
    nothing_is_lost(region, load)


@pytest.mark.parametrize("region", [SPLITTING], indirect=True)
def test_one_busy_bundle_is_split_by_itself_until_all_brokers_share_it(region: Instance) -> None:
    namespace, admin = "public/one", region.admin("us")
    rest("PUT", f"{admin}/admin/v2/namespaces/{namespace}", {"bundles": {"numBundles": 1}})
    rest(
        "POST",
        f"{admin}/admin/v2/namespaces/{namespace}/retention",
        {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    )
    eventually(lambda: namespace in rest("GET", f"{admin}/admin/v2/namespaces/public"), "the namespace is known")
    topics = [f"persistent://{namespace}/t{index}" for index in range(24)]
    load = Load(region.client("us"), topics)
    eventually(
        lambda: len(set(owners(region, namespace).values())) == 3, "three brokers serve what was one bundle", 240
    )
    load.finish()
    assert len(owners(region, namespace)) >= 3
    nothing_is_lost(region, load, topics)


def nothing_is_lost(instance: Instance, load: Load, topics: list[str] = TOPICS) -> None:
    assert load.errors == [] and load.receipts == load.sent
    for topic in topics[:6]:
        assert list(dict.fromkeys(map(int, instance.read_all("us", topic)))) == list(range(load.rounds)), (
            "all of it, in order; what was sent again may be twice"
        )


def test_a_region_is_restarted_process_by_process_under_load(region: Instance) -> None:
    broken = region.data / "python-broken"
    broken.write_text("#!/bin/sh\necho 'heliograph: a library is missing' >&2\nexit 2\n")
    broken.chmod(0o755)
    load, kafka = Load(region.client("us")), KafkaLoad(region)
    refused = heliograph("rolling", "upgrade", "--data", str(region.data), "--python", str(broken), check=False)
    assert (
        refused.returncode == 2
        and "us-meta-0 does not start with" in refused.stderr
        and "a library is missing" in refused.stderr
    )
    before = {row["name"]: row["pid"] for row in region.status()["regions"]["us"]["processes"]}
    assert all(before.values()), "all of it runs as before"
    first = subprocess.Popen(
        [PROGRAM, "rolling", "restart", "--data", str(region.data)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert first.stderr is not None
    eventually(lambda: "us-bookie-1" in first.stderr.readline(), "the second bookie has its turn", 240)  # type: ignore[union-attr]
    first.send_signal(signal.SIGINT)
    first.stderr.read()
    assert first.wait() != 0
    done = list(json.loads((region.data / "rolling-us.json").read_text())["done"])
    assert done[:2] == ["us-meta-0", "us-bookie-0"]

    answer = json.loads(heliograph("rolling", "restart", "--data", str(region.data), "--json", timeout_s=400).stdout)
    assert [*done, *answer["restarted"]] == list(before), "it goes on where it was"
    after = {row["name"]: row["pid"] for row in region.status()["regions"]["us"]["processes"]}
    assert all(after[name] and after[name] != before[name] for name in before)
    assert rest("GET", f"{region.admin('us')}/heliograph/v1/balance")["paused_s"] == 0
    kafka.finish()
    load.finish()
    nothing_is_lost(region, load)
