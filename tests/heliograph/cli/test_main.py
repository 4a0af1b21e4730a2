"""`heliograph` commands against a real broker: what a person types, what comes back, and what an error says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.cli.main import app
from heliograph.model.errors import ConfigError
from tests.region_node.live import until
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.wan, pytest.mark.slow]

Command = Callable[..., str]


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with Region(tmp_path_factory.mktemp("cli")) as region:
        region.start(bookies=2, brokers=1)
        yield region


@pytest.fixture(scope="module")
def run(region: Region) -> Command:
    """Runs one command and returns what it printed. Raises what it was refused with."""
    environment = {"HELIOGRAPH_ADMIN": region.admin_url(), "HELIOGRAPH_SERVICE": region.service_url(), "COLUMNS": "200"}

    def command(*words: str, code: int = 0, stdin: str | None = None) -> str:
        result = CliRunner(env=environment).invoke(app, list(words), input=stdin)
        if isinstance(result.exception, ConfigError):
            raise result.exception
        assert result.exit_code == code, (words, result.output, result.exception)
        return result.stdout

    command("clusters", "create", "us", "--url", region.admin_url(), "--broker-url", region.service_url())
    command("tenants", "create", "public")
    command("namespaces", "create", "public/default")
    return command


def of(text: str) -> Any:
    return json.loads(text)


def test_provisioning(run: Command) -> None:
    assert "us" in run("clusters", "list") and of(run("clusters", "get", "us", "--json"))["number"] == 1
    run("tenants", "create", "acme", "--admin-roles", "ops,dev")
    assert of(run("tenants", "get", "acme", "--json")) == {"adminRoles": ["ops", "dev"], "allowedClusters": ["us"]}
    run("namespaces", "create", "acme/orders", "--bundles", "8")
    assert run("namespaces", "list", "acme").split() == ["acme/orders"]
    assert of(run("namespaces", "get", "acme/orders", "--json"))["bundles"]["numBundles"] == 8
    with pytest.raises(ConfigError, match="already"):
        run("namespaces", "create", "acme/orders")
    with pytest.raises(ConfigError, match="expected tenant/namespace"):
        run("namespaces", "create", "orders")
    with pytest.raises(ConfigError, match="active namespaces"):
        run("tenants", "delete", "acme")
    run("namespaces", "split-bundle", "acme/orders", "--bundle", "0x00000000_0x20000000")
    by_hash = ("--split-algorithm-name", "specified_positions_divide", "--split-boundaries", "0xe8000000,0xf0000000")
    run("namespaces", "split-bundle", "acme/orders", "-b", "0xe0000000_0xffffffff", *by_hash)
    assert of(run("namespaces", "bundles", "acme/orders", "--json"))["numBundles"] == 11
    assert "0x10000000_0x20000000" in run("namespaces", "bundles", "acme/orders")
    run("tenants", "delete", "acme", "--force")
    assert "acme" not in run("tenants", "list")


def test_policies_are_set_by_their_names(run: Command) -> None:
    run("topics", "create", "policed")
    run("namespaces", "set", "public/default", "retention", "retentionTimeInMinutes=-1,retentionSizeInMB=-1")
    run("namespaces", "set", "public/default", "maxProducers", "9")
    run("topics", "set", "policed", "maxProducers", "2")
    run("topics", "set", "policed", "backlogQuota", "type=message_age,limitTime=60,policy=producer_exception")
    mine, held = (
        of(run("topics", "policies", "policed", "--json")),
        of(run("topics", "policies", "policed", "--applied", "--json")),
    )
    assert mine["maxProducers"] == 2 and "retention" not in mine and held["retention"]["retentionSizeInMB"] == -1
    assert mine["backlogQuota"]["message_age"]["limitTime"] == 60
    run("topics", "unset", "policed", "backlogQuota", "--type", "message_age")
    run("topics", "unset", "policed", "maxProducers")
    held = of(run("topics", "policies", "policed", "--applied", "--json"))
    assert held["maxProducers"] == 9 and held["backlogQuota"] == {}
    with pytest.raises(ConfigError, match="there is no policy 'maxTopics' here"):
        run("topics", "set", "policed", "maxTopics", "2")
    with pytest.raises(ConfigError, match="expected a whole number"):
        run("topics", "set", "policed", "maxProducers", "many")
    run("namespaces", "unset", "public/default", "maxProducers")
    run("topics", "delete", "policed")


def test_messages_topics_and_subscriptions(run: Command, region: Region) -> None:
    run("topics", "create", "talk", "--partitions", "2")
    run("subscriptions", "create", "talk", "s", "--position", "earliest")
    assert len(of(run("produce", "talk", "-m", "one", "-m", "two", "--property", "a=b", "--json"))) == 2
    assert len(run("produce", "talk", stdin="three\nfour\n").split("\n")) == 3
    assert (
        "talk" in run("topics", "list") and of(run("topics", "list", "--json"))["persistent://public/default/talk"] == 2
    )
    until(lambda: of(run("topics", "stats", "talk", "--json"))["subscriptions"]["s"]["msgBacklog"] == 4)
    assert "Shared" not in run("topics", "stats", "talk")
    consumed = run("consume", "talk", "-s", "s", "-n", "4", "--timeout", "60", "--json").splitlines()
    assert {line["data"] for line in map(json.loads, consumed)} == {"one", "two", "three", "four"}
    run("consume", "talk", "-s", "s", "-n", "1", "--timeout", "0.3", code=1)
    run("subscriptions", "reset", "talk", "s", "--ago", "3600")
    assert of(run("subscriptions", "peek", "talk-partition-0", "s", "--json"))[0]["data"]
    run("subscriptions", "skip", "talk", "s")
    run("consume", "talk", "-s", "s", "-n", "1", "--timeout", "0.3", code=1)
    run("topics", "partitions", "talk", "4")
    assert run("subscriptions", "list", "talk").split() == ["s"] and region.service_url() in run(
        "topics", "lookup", "talk-partition-0"
    )
    with pytest.raises(ConfigError, match="does not exist"):
        run("subscriptions", "skip", "talk", "none")
    assert "mark-delete" in run("topics", "internal-stats", "talk-partition-0")
    run("topics", "delete", "talk", "--force")
    assert "talk" not in run("topics", "list")


def test_servers_settings_and_the_audit_log(run: Command, region: Region) -> None:
    assert run("brokers", "health").strip() == "ok" and "us-broker-0" in run("brokers", "list")
    run("brokers", "set", "maxConsumersPerTopic", "12")
    assert of(run("brokers", "settings", "--json"))["maxConsumersPerTopic"] == "12"
    run("brokers", "unset", "maxConsumersPerTopic")
    assert of(run("brokers", "settings", "--json"))["maxConsumersPerTopic"] == "0"
    assert [b["id"] for b in of(run("bookies", "list", "--json"))] == ["us-bookie-0", "us-bookie-1"]
    assert of(run("bookies", "new-life", "us-bookie-0", "--json"))["state"] == "whole", "it lost nothing"
    assert (
        "maxConsumersPerTopic" in run("brokers", "audit")
        and of(run("brokers", "audit", "-n", "1", "--json"))[0]["method"] == "DELETE"
    )
    assert Rest(region.admin_url())("GET", "/admin/v2/brokers/configuration/values") == (200, {})
    with pytest.raises(ConfigError, match="no broker answers at"):
        run("brokers", "list", "--admin", "http://127.0.0.1:1")


def test_transactions_of_other_regions(run: Command) -> None:
    run("topics", "create", "public/default/whole")
    assert of(run("transactions", "foreign", "--namespace", "public/default", "--json")) == []
    for wrong, said in (
        (("--namespace", "public/default"), "no transaction of region eu is open there"),
        (("--topic", "public/default/whole", "--transaction", "7"), "expected COORDINATOR:NUMBER"),
        ((), "either --topic or --namespace"),
    ):
        with pytest.raises(ConfigError, match=said):
            run("transactions", "settle", "--from", "eu", "--abort", *wrong)


def test_perf_counts_every_message(run: Command) -> None:
    found = of(run("perf", "latency", "perf-l", "--rate", "200", "--seconds", "1", "--burst", "5", "--json"))
    assert (
        found["failed"] == found["missing"] == 0
        and 250 <= found["receipt_ms"]["count"] == found["consumer_ms"]["count"] <= 300
    )
    assert 0 < found["receipt_ms"]["p50"] <= found["receipt_ms"]["p99"] <= found["receipt_ms"]["max"]
    assert of(run("perf", "produce", "perf-t", "-n", "2000", "--size", "100", "--json"))["messages"] == 2000
    assert of(run("perf", "consume", "perf-t", "-n", "2000", "--json"))["messages"] == 2000
    assert "to consumer" in run("perf", "latency", "perf-l", "--rate", "50", "--seconds", "0.3")
