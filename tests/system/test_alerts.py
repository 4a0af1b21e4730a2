"""Dashboards and alerts with a real Prometheus: rules by promtool, and a running instance that shards scrape and a
global server watches.

Every query of every dashboard is asked; the alert of a cut link fires, and clears when it is healed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import Instance, eventually
from geo_tests.wan.kafka_in_regions import consumer as kafka_consumer
from geo_tests.wan.kafka_in_regions import kafka_address, send
from geo_tests.wan.kafka_support import take
from tests.system import programs
from tests.system.prometheus import PATIENCE_S, RULES, Prometheus
from tools.dashboards import BOARDS, queries

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = ROOT / "docs" / "operating" / "alerts.md"
SHARDS = 2


def promtool(*words: str | Path) -> str:
    done = subprocess.run([str(programs.promtool()), *map(str, words)], capture_output=True, text=True, cwd=RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", (RULES / "alerts.yaml").read_text())


def test_rules_are_what_their_tests_say() -> None:
    promtool("check", "rules", "recording.yaml", "alerts.yaml")
    promtool("test", "rules", "alerts.test.yaml")


def test_every_alert_has_a_test_and_a_runbook() -> None:
    tested = set(re.findall(r"alertname: (\w+)\n        exp_alerts:\n", (RULES / "alerts.test.yaml").read_text()))
    assert tested == set(alerts())
    headings = re.findall(r"^## (Heliograph\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert headings == alerts(), "one entry an alert, in the same order"
    links = re.findall(r"runbook: (\S+)#(\w+)", (RULES / "alerts.yaml").read_text())
    assert links == [("docs/operating/alerts.md", name.lower()) for name in alerts()]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Instance, list[Prometheus], Prometheus]]:
    monkeypatch.setenv("HELIOGRAPH_BROKER__KAFKA__PORT", "0")
    monkeypatch.setenv("HELIOGRAPH_BROKER__KAFKA__NAMESPACE", "public/geo")
    monkeypatch.setenv("HELIOGRAPH_BROKER__KAFKA__REBALANCE_DELAY_MS", "0")
    (tmp_path / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 20}}))
    instance = Instance(tmp_path / "data", regions=("us", "eu"), wan=str(tmp_path / "wan.json"), bookies=3)
    servers: list[Prometheus] = []
    try:
        instance.namespace("public/geo", ["us", "eu"])
        targets = json.dumps(targets_of(instance))
        for shard in range(SHARDS):
            config = (
                (RULES / "shard.yaml")
                .read_text()
                .replace("modulus: 1", f"modulus: {SHARDS}")
                .replace('regex: "0"', f'regex: "{shard}"')
            )
            servers.append(
                Prometheus(
                    tmp_path / f"shard-{shard}",
                    config.replace('shard: "0"', f'shard: "{shard}"'),
                    {"targets.json": targets},
                )
            )
        shards = json.dumps([{"targets": [f"127.0.0.1:{server.port}"]} for server in servers])
        top = Prometheus(tmp_path / "global", (RULES / "global.yaml").read_text(), {"shards.json": shards})
        servers.append(top)
        yield instance, servers[:-1], top
    finally:
        for server in servers:
            server.stop()
        instance.down()
        shutil.rmtree(tmp_path / "data", ignore_errors=True)


def targets_of(instance: Instance) -> list[dict[str, Any]]:
    rows = [(region, row) for region, found in instance.status()["regions"].items() for row in found["processes"]]
    ports = {"broker": "admin", "bookie": "http"}
    return [
        {
            "targets": [f"127.0.0.1:{row['ports'][ports[row['role']]]}"],
            "labels": {"job": f"heliograph-{row['role']}", "cluster": region},
        }
        for region, row in rows
        if row["role"] in ports
    ]


def test_dashboards_and_alerts_of_a_running_instance(watched: tuple[Instance, list[Prometheus], Prometheus]) -> None:
    instance, shards, top = watched
    topic = "persistent://public/geo/watched"
    reader = instance.client("us").subscribe(topic, "reader", initial_position=pulsar.InitialPosition.Earliest)
    producer = instance.client("us").create_producer(topic)
    producer.send(b"x")
    reader.acknowledge(reader.receive(timeout_millis=60_000))
    address = kafka_address(instance, "us")
    send(address, "clicks", [b"1", b"2"])
    member = kafka_consumer(address, "watchers", "clicks")
    take(member, 2)
    member.commit(asynchronous=False)

    # Each process is scraped by one shard, and by no other.
    everything = {f"http://{target}/metrics" for row in targets_of(instance) for target in row["targets"]}

    def answering() -> list[str]:
        return sorted(url for shard in shards for url, health in shard.targets().items() if health == "up")

    eventually(lambda: answering() == sorted(everything), "all targets answer, each to one shard", PATIENCE_S)

    # Every query of every dashboard has an answer.
    asked = {query for board in BOARDS for query in queries(board)}
    left = {
        re.sub(r"\$(region|namespace|subscription)\b", ".*", query).replace("$__rate_interval", "20s")
        for query in asked
    }

    def unanswered() -> set[str]:
        producer.send(b"x")
        left.difference_update([query for query in left if any(shard.ask(query) for shard in shards)])
        return left

    eventually(lambda: not unanswered(), "an answer to every query", PATIENCE_S)

    # All is well; then a link is cut, both ways, and healed.
    eventually(
        lambda: [float(row["value"][1]) for row in top.ask("sum(region:bookies_writable:sum)")] == [6],
        "shards add up",
        PATIENCE_S,
    )
    eventually(lambda: not top.firing(), "nothing fires", PATIENCE_S)
    for proxy in (*instance.proxies("link", "us", "eu"), *instance.proxies("link", "eu", "us")):
        proxy.disable()
    down = {("HeliographLinkDown", "us", "eu"), ("HeliographLinkDown", "eu", "us")}
    eventually(lambda: down <= top.firing(), "the alerts of both links", PATIENCE_S)
    for proxy in (*instance.proxies("link", "us", "eu"), *instance.proxies("link", "eu", "us")):
        proxy.enable()
    eventually(lambda: not down & top.firing(), "the alerts clear", PATIENCE_S)
    member.close()
