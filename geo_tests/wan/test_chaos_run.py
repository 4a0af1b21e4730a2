"""`heliograph chaos run` against two real regions: what holds is kept, and what is broken on purpose is reported."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.instance import PATIENCE_S, PROGRAM, Instance, heliograph
from geo_tests.wan.kafka_in_regions import kafka_address


def chaos(pair: Instance, folder: Path, load: str, *steps: str, admin: str = "") -> tuple[int, dict[str, Any], str]:
    """Exit code, the report, and its page. admin: URLs; else the instance's folder is named."""
    scenario = folder / "scenario.toml"
    text = "".join(f"[[step]]\n{step}\n" for step in steps)
    scenario.write_text(f'name = "a test"\npatience_s = 120\n[load]\nrate_per_s = 40\n{load}\n{text}')
    where = ("--admin", admin) if admin else ("--data", str(pair.data))
    done = heliograph(
        *("chaos", "run", *where, "--scenario", str(scenario), "--report", str(folder / "report")), check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads((folder / "report.json").read_text()), (folder / "report.html").read_text()


def paths(pair: Instance) -> dict[str, Any]:
    """What each proxy does."""
    return {
        name: (proxy.enabled, {toxic: found.attributes for toxic, found in proxy.toxics().items()})
        for name, proxy in pair.server.proxies().items()
    }


def test_an_instance_keeps_its_promises_through_every_fault_of_a_scenario(pair: Instance, tmp_path: Path) -> None:
    before = paths(pair)
    code, found, page = chaos(
        pair,
        tmp_path,
        'topic = "persistent://public/judged/numbers"\nkeys = 8\nconsumers = 2',
        'fault = "cut"\nbetween = ["us", "eu"]\nfor_s = 4',
        'fault = "black-hole"\naround = "us"\nfor_s = 9',
        'fault = "latency"\nlatency_ms = 100\nfor_s = 2',
        'fault = "kill"\nrole = "broker"\nregion = "us"\nfor_s = 3',
        'fault = "stop"\nrole = "bookie"\nfor_s = 3',
        'fault = "unload"\nfor_s = 1',
    )
    assert (code, found["kept"], found["broken"]) == (0, True, []), found["broken"]
    assert found["compared"]["at risk"] > 0 and found["compared"]["silence"] > 0 and len(found["faults"]) == 6
    sent = sum(row["sent"] for row in found["published"].values())
    assert sent > 0 and all(row["messages"] == sent for row in found["read"].values())
    assert all(row["acknowledged"] == row["sent"] for row in found["published"].values())
    assert "Every promise was kept." in page and page.count("<svg") == 6
    assert paths(pair) == before, "each is as it was"
    assert all(row["ready"] for region in pair.status()["regions"].values() for row in region["processes"])


def test_a_run_that_is_ended_ends_its_fault(pair: Instance, tmp_path: Path) -> None:
    before, scenario = paths(pair), tmp_path / "scenario.toml"
    load = '[load]\ntopic = "persistent://public/ended/numbers"\n'
    scenario.write_text(load + '[[step]]\nfault = "cut"\nbetween = ["us", "eu"]\nfor_s = 600\n')
    command = [PROGRAM, "chaos", "run", "--data", str(pair.data), "--scenario", str(scenario)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None and "holds for 600 s" in running.stderr.readline()
        assert paths(pair) != before
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130 and paths(pair) == before


def test_what_was_at_risk_at_a_failover_was_reported_and_nothing_of_it_is_lost(trio: Instance, tmp_path: Path) -> None:
    code, found, _ = chaos(
        trio,
        tmp_path,
        'topic = "persistent://public/led/numbers"\nactive = "us"',
        'fault = "failover"\nto = "eu"\nfor_s = 4',
        'fault = "cut"\nbetween = ["eu", "ap"]\nfor_s = 3',
    )
    assert (code, found["broken"]) == (0, []), found["broken"]
    assert found["compared"]["at risk at a failover"] == 2 and found["compared"]["at risk"] > 0


@pytest.fixture(scope="module")
def kafka_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """us and eu, near each other; their brokers speak Kafka's protocol."""
    folder = tmp_path_factory.mktemp("chaos-by-kafka")
    (folder / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 2}}))
    fields = {"HELIOGRAPH_BROKER__KAFKA__PORT": "0", "HELIOGRAPH_BROKER__KAFKA__REBALANCE_DELAY_MS": "0"}
    made = Instance(folder / "data", regions=("us", "eu"), wan=str(folder / "wan.json"), environment=fields)
    try:
        yield made
    finally:
        made.down()


def test_kafkas_client_is_served_through_faults_as_well(kafka_pair: Instance, tmp_path: Path) -> None:
    addresses = "".join(f'{region} = "{kafka_address(kafka_pair, region)}"\n' for region in ("us", "eu"))
    code, found, _ = chaos(
        kafka_pair,
        tmp_path,
        f'client = "kafka"\nkeys = 4\n[load.kafka]\n{addresses}',
        'fault = "cut"\nfor_s = 3',
        'fault = "stop"\nrole = "bookie"\nfor_s = 2',
        'fault = "unload"\nregion = "us"\nfor_s = 1',
    )
    assert (code, found["broken"]) == (0, []), found["broken"]
    sent = sum(row["acknowledged"] for row in found["published"].values())
    assert sent > 0 and all(row["messages"] == sent for row in found["read"].values())


def test_a_producer_that_repeats_without_deduplication_is_reported(pair: Instance, tmp_path: Path) -> None:
    load = 'topic = "persistent://public/careless/numbers"\ndeduplication = %s\nrepeat_every = 10'
    step, admin = 'fault = "unload"\nfor_s = 1', f"{pair.admin('us')},{pair.admin('eu')}"
    code, found, page = chaos(pair, tmp_path, load % "false", step, admin=admin)
    assert (code, found["kept"]) == (1, False) and {row["promise"] for row in found["broken"]} == {"once"}
    assert {row["where"].rpartition(" ")[2] for row in found["broken"]} == {"us", "eu"} and "stored twice" in page
    code, found, _ = chaos(pair, tmp_path, load % "true", step, admin=admin)
    assert (code, found["broken"]) == (0, []), "the same producer, with deduplication"


def test_acknowledged_messages_that_somebody_deletes_are_reported(pair: Instance, tmp_path: Path) -> None:
    command = f"{PROGRAM} topics truncate $HELIOGRAPH_CHAOS_TOPIC --admin {pair.admin('us')}"
    code, found, _ = chaos(
        pair,
        tmp_path,
        'topic = "persistent://public/emptied/numbers"',
        f'fault = "command"\nrun = "{command}"\nfor_s = 1',
    )
    assert code == 1 and {(row["promise"], row["where"]) for row in found["broken"]} == {("kept", "the copy in us")}
