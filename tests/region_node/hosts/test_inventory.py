"""The description of an instance on several hosts: what is refused, in a sentence, and which processes it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from region_node.hosts.inventory import admin_url, link_urls, nodes, parse, service_url
from region_node.hosts.prometheus_targets import targets_of

Change = Callable[[dict[str, Any]], Any]


def eu(given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = given["regions"]["eu"]["hosts"]
    return found


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d["regions"].clear(), "has no region"),
        (lambda d: d.update(format=2), "is of format 2; this version reads format 1"),
        (lambda d: d.update(service="upstart"), "must be systemd or plain"),
        (lambda d: d.update(prefix="/opt"), "prefix must be an absolute path of two names at least"),
        (lambda d: d.update(data="var/lib"), "data must be an absolute path of two names at least"),
        (lambda d: d.update(name="a b"), "may hold only letters"),
        (lambda d: d["regions"]["us"].update(number=1), "number '1' is in the description twice"),
        (lambda d: d["regions"]["us"].update(number=256), "must be 1 to 255, not 256"),
        (lambda d: eu(d)["eu-b"].update(address="127.0.1.1"), "address '127.0.1.1' is in the description twice"),
        (lambda d: eu(d)["eu-b"].update(roles=["proxy"]), "'proxy' is none of meta"),
        (lambda d: eu(d)["eu-b"].update(roles=[]), "has no role"),
        (lambda d: eu(d)["eu-b"].update(roles=["config"]), "wants one host with the role config, not 2"),
        (lambda d: eu(d)["eu-b"].update(generation=0), "generation must be at least 1"),
        (lambda d: eu(d)["eu-b"].update(bookies=17), "must be 1 to 16, not 17"),
        (lambda d: eu(d)["eu-b"].update(zones="b"), "there is no setting 'zones'"),
        (lambda d: eu(d)["eu-a"].update(joins=True), "none was there when the region began"),
        (lambda d: d["regions"]["us"]["hosts"]["us-a"].update(bookies=1), "has 1 bookies and wants at least 2"),
        (
            lambda d: d.update(settings={"broker": {"cache_gb": 1}}),
            "eu-a-broker-0: broker: there is no setting 'cache_gb'",
        ),
        (
            lambda d: eu(d)["eu-b"].update(address="10.1.0.12"),
            "eu-b-broker-0: its address is 10.1.0.12, and whoever reaches the broker there may do everything",
        ),
        (
            lambda d: (
                eu(d)["eu-b"].update(address="10.1.0.12"),
                d.update(settings={"security": {"allow_insecure": 1}}),
            ),
            "security.allow_insecure: expected true or false, not 1",
        ),
        (
            lambda d: d.update(settings={"bookie": {"free_mb_min": -1}}),
            "eu-a-bookie-0: bookie.free_mb_min must be 0 or more",
        ),
    ],
)
def test_what_is_wrong_is_said(described: dict[str, Any], change: Change, sentence: str) -> None:
    change(described)
    with pytest.raises(ConfigError) as refused:
        parse(described)
    assert sentence in str(refused.value)


def test_processes_of_a_host_in_the_order_of_their_start(described: dict[str, Any]) -> None:
    found = nodes(parse(described), "us", "us-a")
    assert [node.name for node in found] == ["us-a-meta", "us-a-bookie-0", "us-a-bookie-1", "us-a-broker-0"]
    assert [node.roles for node in found] == [("meta", "config"), ("bookie",), ("bookie",), ("broker",)]
    assert [node.settings["bookie"]["port"] for node in found[1:3]] == [3181, 3182]


def test_ports_of_one_host_differ(described: dict[str, Any]) -> None:
    eu(described)["eu-b"] |= {"brokers": 3, "bookies": 3}
    used: list[int] = []
    for node in nodes(parse(described), "eu", "eu-b"):
        section = node.settings.get("bookie") or node.settings["broker"]
        used += [
            port
            for name, port in section.items()
            if name.endswith("port") and not name.startswith("shared") and port > 0
        ]
    assert len(set(used)) == len(used) == 3 * 2 + 3 * 6


def test_a_host_with_empty_disks_is_another_bookie_and_another_voter(described: dict[str, Any]) -> None:
    eu(described)["eu-b"]["roles"] = ["meta", "bookie", "broker"]
    eu(described)["eu-c"]["roles"] = ["meta", "bookie"]
    before = {node.name: node.settings for node in nodes(parse(described), "eu", "eu-c")}
    eu(described)["eu-c"]["generation"] = 2
    after = {node.name: node.settings for node in nodes(parse(described), "eu", "eu-c")}
    assert list(before) == ["eu-c-meta", "eu-c-bookie-0"] and list(after) == ["eu-c-g2-meta", "eu-c-g2-bookie-0"]
    assert not before["eu-c-meta"]["meta_node"]["joining"] and after["eu-c-g2-meta"]["meta_node"]["joining"]
    assert set(after["eu-c-g2-meta"]["meta_node"]["peers"]) == {"eu-a-meta", "eu-b-meta", "eu-c-meta"}, (
        "the founders keep their names"
    )
    assert after["eu-c-g2-meta"]["meta_node"]["peers"]["eu-c-meta"].endswith(":9"), (
        "and the lost one leads nowhere, not to its successor"
    )


def test_settings_are_merged_for_those_whom_they_concern(described: dict[str, Any]) -> None:
    described["settings"] = {
        "broker": {"cache_mb": 7, "canary": {"interval_s": 5.0}},
        "security": {"authentication": ["token"]},
    }
    described["regions"]["us"]["settings"] = {"broker": {"cache_mb": 9}, "tls": {"client_ca": "{etc}/clients.pem"}}
    inventory = parse(described)
    (broker,) = (node.settings for node in nodes(inventory, "us", "us-a") if "broker" in node.roles)
    assert broker["broker"]["cache_mb"] == 9 and broker["broker"]["canary"] == {
        "port": 6652,
        "by_itself": True,
        "interval_s": 5.0,
    }
    assert broker["tls"]["client_ca"] == "/opt/heliograph/etc/clients.pem" and broker["tls"]["internal"]
    (bookie,) = (node.settings for node in nodes(inventory, "eu", "eu-c") if "bookie" in node.roles)
    assert "broker" not in bookie and bookie["security"] == {"authentication": ["token"]}


@pytest.mark.parametrize(
    "security",
    [
        {"allow_insecure": True},
        {
            "authentication": ["token"],
            "authorization": True,
            "super_users": ["root"],
            "tokens": [{"algorithms": ["ES256"], "public_key_file": "{etc}/issuer.pub"}],
        },
    ],
)
def test_a_host_beyond_this_machine_says_who_is_asked(described: dict[str, Any], security: dict[str, Any]) -> None:
    """The key's file is on the host only."""
    eu(described)["eu-b"]["address"] = "10.1.0.12"
    described["settings"] = {"security": security}
    parse(described)


@pytest.mark.parametrize(
    "ports, port",
    [
        ({}, 6652),
        ({"health": 7000}, 7000),
        ({"health": 0}, 0),
        ({"broker": -1}, 0),
        ({"broker": -1, "health": 7000}, 7000),
    ],
)
def test_the_canary_tries_on_every_host_and_opens_no_port_where_nothing_is_to_be_open_without_tls(
    described: dict[str, Any], ports: dict[str, int], port: int
) -> None:
    described["ports"] = {**described.get("ports", {}), **ports}
    (broker,) = (node.settings for node in nodes(parse(described), "us", "us-a") if "broker" in node.roles)
    assert broker["broker"]["canary"] == {"port": port, "by_itself": True}


def test_addresses_for_others(described: dict[str, Any]) -> None:
    eu(described)["eu-a"] |= {"client_address": "a.example", "link_address": "10.9.0.1"}
    inventory = parse(described)
    assert service_url(inventory, "eu") == "pulsar://a.example:6650,127.0.1.2:6650"
    assert admin_url(inventory, "eu") == "http://a.example:8080"
    assert link_urls(inventory, "eu") == {"us": ["pulsar+ssl://10.9.0.1:6660", "pulsar+ssl://127.0.1.2:6660"]}
    (broker,) = (node.settings for node in nodes(inventory, "eu", "eu-a") if "broker" in node.roles)
    assert broker["broker"]["listeners"] == {"link-us": "pulsar+ssl://10.9.0.1:6660"}
    assert (broker["broker"]["advertised_host"], broker["broker"]["inside_host"]) == ("a.example", "127.0.1.1")


@pytest.mark.parametrize(
    "change, url",
    [
        ({}, "https://127.0.1.1:8443"),
        ({"ports": {"admin_tls": 9443}}, "https://127.0.1.1:9443"),
        ({"ports": {"admin_tls": -1}}, "http://127.0.1.1:8080"),
    ],
)
def test_where_callers_have_tokens_a_region_is_told_by_https(
    described: dict[str, Any], change: dict[str, Any], url: str
) -> None:
    described |= {"settings": {"security": {"authentication": ["token"]}}, **change}
    assert admin_url(parse(described), "eu") == url


def test_of_several_brokers_on_a_host_the_first_is_told(described: dict[str, Any]) -> None:
    eu(described)["eu-a"] |= {"brokers": 2}
    described["regions"]["eu"]["settings"] = {"security": {"authentication": ["token"]}}
    assert admin_url(parse(described), "eu") == "https://127.0.1.1:8500"
    assert admin_url(parse(described), "us").startswith("http://")


def test_prometheus_finds_every_broker_and_bookie(described: dict[str, Any]) -> None:
    found = targets_of(parse(described))
    rows = [(row["labels"]["job"], row["labels"]["node"], row["targets"][0]) for row in found]
    assert ("heliograph-broker", "us-a-broker-0", "127.0.1.9:8080") in rows
    assert ("heliograph-bookie", "us-a-bookie-1", "127.0.1.9:8201") in rows
    assert len(rows) == 3 + 3 + 2


# -- a witness --------------------------------------------------------------------------------------------------------

OSLO = {"name": "oslo", "address": "127.0.1.7", "link_address": "oslo.example"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d["witness"].update(name="eu"), "has the name of a region"),
        (lambda d: d["witness"].update(name="us-a"), "host 'us-a' is in the description twice"),
        (lambda d: d["witness"].update(address="127.0.1.9"), "address '127.0.1.9' is in the description twice"),
        (lambda d: d["witness"].update(name="os lo"), "may hold only letters"),
        (lambda d: d["regions"].pop("us"), "of no use to 1 regions"),
        (lambda d: d["regions"].pop("us") and d["regions"]["eu"].update(joins=True), "of no use to 1 regions"),
        (lambda d: d["witness"].update(roles=["config"]), "there is no setting 'roles'"),
    ],
)
def test_what_is_wrong_with_a_witness_is_said(described: dict[str, Any], change: Change, sentence: str) -> None:
    described["witness"] = dict(OSLO)
    change(described)
    with pytest.raises(ConfigError) as refused:
        parse(described)
    assert sentence in str(refused.value)


def test_a_witness_votes_and_is_in_no_region(described: dict[str, Any]) -> None:
    described |= {"witness": OSLO, "settings": {"broker": {"cache_mb": 7}, "log": {"format": "json"}}}
    inventory = parse(described)
    (node,) = nodes(inventory, "oslo", "oslo")
    assert (node.name, node.roles) == ("oslo-witness", ("config",)) and inventory.region_of("oslo") == "oslo"
    told = node.settings
    assert told["config_node"] == {
        "node_id": "oslo",
        "port": 7002,
        "raft_port": 7003,
        "peers": {"eu": "127.0.1.1:7003", "us": "127.0.1.9:7003", "oslo": "127.0.1.7:7003"},
        "joining": False,
        "witness": True,
    }
    assert "meta" not in told and "broker" not in told and told["log"] == {"format": "json"}
    assert sorted(told["tls"]) == ["ca", "config_cert", "config_key", "internal"]
    (first, *_) = nodes(inventory, "eu", "eu-a")
    assert first.settings["config_node"]["peers"]["oslo"] == "oslo.example:7003"
    assert "oslo" not in link_urls(inventory, "eu") and "oslo" not in str(targets_of(inventory))
    before = {node.name: node.settings for node in nodes(inventory, "us", "us-a")}
    described["witness"] = OSLO | {"joins": True}
    joining = parse(described)
    assert nodes(joining, "oslo", "oslo")[0].settings["config_node"]["joining"]
    after = {node.name: node.settings for node in nodes(joining, "us", "us-a")}
    del described["witness"]
    assert after == {node.name: node.settings for node in nodes(parse(described), "us", "us-a")} != before, (
        "one that joins changes nobody's settings"
    )


def test_a_first_voter_that_was_alone_is_told_of_those_that_join(described: dict[str, Any]) -> None:
    """So that it founds nothing anew from an empty folder; who was never alone is told nothing."""
    eu(described)["eu-b"]["roles"] = ["meta", "bookie", "broker"]
    eu(described)["eu-b"]["joins"] = True
    described["regions"]["us"]["joins"] = True
    for host in ("eu-c",):
        if host in eu(described):
            eu(described)[host]["roles"] = ["bookie", "broker"]
    told = {node.name: node.settings for node in nodes(parse(described), "eu", "eu-a")}["eu-a-meta"]
    assert told["config_node"]["later"] == {"us": "127.0.1.9:7003"} and sorted(told["config_node"]["peers"]) == ["eu"]
    assert told["meta_node"]["later"] == {"eu-b-meta": "127.0.1.2:7001"}
    eu(described)["eu-b"]["generation"] = 2
    again = {node.name: node.settings for node in nodes(parse(described), "eu", "eu-a")}["eu-a-meta"]
    assert again["meta_node"]["later"] == {"eu-b-g2-meta": "127.0.1.2:7001"}, "it answers under that name"
    joined = {node.name: node.settings for node in nodes(parse(described), "us", "us-a")}["us-a-meta"]
    assert "later" not in joined["config_node"] and joined["config_node"]["joining"]
    described["regions"]["us"]["joins"] = False
    told = {node.name: node.settings for node in nodes(parse(described), "eu", "eu-a")}["eu-a-meta"]
    assert "later" not in told["config_node"]
