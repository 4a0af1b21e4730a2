"""The plan of an instance: ports, links, settings; what is kept, and what is refused."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from region_node.instance.plan.layout import (
    check_ports,
    cpus_of,
    link_urls,
    load_plan,
    make_plan,
    node_settings,
    round_trips,
    save_plan,
)


def test_ports_are_given_once_and_the_plan_is_kept(tmp_path: Path) -> None:
    plan = make_plan(["us", "eu", "ap"], brokers={"us": 2, "eu": 1, "ap": 1}, bookies=3, wan="default")
    given = Counter(port for node in plan.nodes() for port in node.ports.values() if port)
    given.update(link.port for link in plan.links)
    given.update([plan.toxiproxy_port, plan.regions[0].service_port, plan.regions[0].admin_port])
    assert max(given.values()) == 1
    data = tmp_path / "data"
    data.mkdir(0o755)
    save_plan(data, plan)
    assert load_plan(data) == plan
    assert data.stat().st_mode & 0o077 == 0, "what the instance keeps is for its own user alone"


def test_each_direction_has_its_own_proxy_for_links_and_for_the_configuration() -> None:
    plan = make_plan(["us", "eu", "ap"], brokers={"us": 2, "eu": 1, "ap": 1}, bookies=2, wan="default")
    kinds = Counter((x.kind, x.source, x.target) for x in plan.links)
    assert kinds[("link", "eu", "us")] == 2 and kinds[("link", "us", "eu")] == 1
    assert all(kinds[("config", a, b)] == 1 for a in ("us", "eu", "ap") for b in ("us", "eu", "ap") if a != b)
    assert {x.round_trip_ms for x in plan.links if {x.source, x.target} == {"us", "eu"}} == {80}
    broker = plan.region("us").brokers[1]
    canary = node_settings(Path("/d"), plan, broker)["broker"]["canary"]
    assert canary == {"port": plan.region("us").health_port} and canary["port"], "as an earlier broker reads it"
    listeners = node_settings(Path("/d"), plan, broker)["broker"]["listeners"]
    urls = link_urls(plan, plan.region("us"))
    assert listeners["link-eu"] == urls["eu"][1] and listeners["link-ap"] == urls["ap"][1]
    peers = node_settings(Path("/d"), plan, plan.region("us").metadata)["config_node"]["peers"]
    assert peers["us"].endswith(str(plan.region("us").metadata.ports["raft"]))
    assert peers["eu"].endswith(
        str(next(x.port for x in plan.links if (x.kind, x.source, x.target) == ("config", "us", "eu")))
    )


def test_without_wan_links_go_straight() -> None:
    plan = make_plan(["a", "b"], brokers={"a": 1, "b": 1}, bookies=2, wan="none")
    assert not plan.links and link_urls(plan, plan.region("a"))["b"] == [
        f"pulsar+ssl://127.0.0.1:{plan.region('a').brokers[0].ports['link']}"
    ]


@pytest.mark.parametrize(
    ("regions", "options", "words"),
    [
        ([], {}, "--regions"),
        (["a", "a"], {}, "each once"),
        (["a b"], {}, "--regions"),
        (["a"], {"bookies": 1}, "--bookies"),
        (["a"], {"brokers": {"a": 0}}, "--brokers"),
    ],
)
def test_wrong_options_are_one_sentence(regions: list[str], options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_plan(regions, **{"brokers": dict.fromkeys(regions, 1), "bookies": 2, "wan": "none", **options})  # type: ignore[arg-type]


def test_a_taken_port_is_said_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"taken.*--service-port"):
            make_plan(["a"], brokers={"a": 1}, bookies=2, wan="none", service_port=taken.getsockname()[1])
    plan = make_plan(["a"], brokers={"a": 1}, bookies=2, wan="none")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", plan.regions[0].admin_port))
        taken.listen()
        with pytest.raises(ConfigError, match="taken"):
            check_ports(plan)


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    save_plan(tmp_path, make_plan(["a"], brokers={"a": 1}, bookies=2, wan="none"))
    path = tmp_path / "instance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(ConfigError, match=r"format 99.*another folder"):
        load_plan(tmp_path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="not readable"):
        load_plan(tmp_path)


def test_round_trips_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "wan.json"
    path.write_text('{"a-b": {"rtt_ms": 30, "jitter_ms": 2}}')
    assert round_trips(str(path), ["b", "a", "c"])[("b", "a")] == (30, 2)
    with pytest.raises(ConfigError, match="--wan"):
        round_trips(str(tmp_path / "absent"), ["a"])
    path.write_text('{"a-b": 3}')
    with pytest.raises(ConfigError, match="rtt_ms"):
        round_trips(str(path), ["a", "b"])


def test_a_pinned_instance_gives_each_broker_a_core_and_the_rest_to_the_others() -> None:
    plan = make_plan(["us"], brokers={"us": 2}, bookies=2, wan="none")
    region = plan.regions[0]

    def cores(machine: list[int]) -> list[list[int]]:
        return [cpus_of(plan, node, machine) for node in (*region.brokers, *region.bookies, region.metadata)]

    assert cores([0, 1, 2, 3]) == [[0], [1], [2, 3], [2, 3], [2, 3]]
    assert cores([4, 5]) == [[4], [5], [4, 5], [4, 5], [4, 5]], "where no core is left they share all"
    assert cores([0]) == [[0]] * 5


def test_a_witness_is_a_voter_and_nothing_else(tmp_path: Path) -> None:
    plan = make_plan(["us", "eu"], brokers={"us": 1, "eu": 1}, bookies=2, wan="default", tls=True, witness="oslo")
    assert plan.witness is not None and [region.name for region in plan.regions] == ["us", "eu"]
    told = node_settings(tmp_path, plan, plan.witness)
    assert (told["region"], told["node_id"], told["roles"], told["meta"]) == ("oslo", "oslo-witness", ["config"], [])
    assert told["config_node"]["witness"] and not told["config_node"]["joining"]
    files = {name for name in told["tls"] if name.endswith(("_cert", "_key"))}
    assert files == {"config_cert", "config_key"}, "no certificate with which it could be a link, or a broker"
    for region in plan.regions:
        of_region = node_settings(tmp_path, plan, region.metadata)["config_node"]
        assert sorted(of_region["peers"]) == ["eu", "oslo", "us"] and "witness" not in of_region
        listeners = node_settings(tmp_path, plan, region.brokers[0])["broker"]["listeners"]
        assert "link-oslo" not in listeners and "oslo" not in link_urls(plan, region)
    assert {x.kind for x in plan.links if "oslo" in (x.source, x.target)} == {"config"}
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan
    save_plan(tmp_path, make_plan(["a"], brokers={"a": 1}, bookies=2, wan="none"))
    kept = (tmp_path / "instance.json").read_text()
    assert "witness" not in kept and "proxied" not in kept, "as earlier versions read it"


@pytest.mark.parametrize(
    ("regions", "witness", "words"),
    [
        (["a"], "oslo", "1 region that"),
        (["a", "b", "c"], "oslo", "of no use to 3 regions"),
        (["a", "b"], "a", "'a' is"),
    ],
)
def test_a_witness_of_no_use_is_refused(regions: list[str], witness: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_plan(regions, brokers=dict.fromkeys(regions, 1), bookies=2, wan="none", witness=witness)


def test_a_proxied_instance_tells_clients_and_brokers_its_proxies(tmp_path: Path) -> None:
    like = {"brokers": {"us": 1, "eu": 2}, "bookies": 2, "wan": "none", "proxied": True}
    plan = make_plan(["us", "eu"], tls=True, **like)  # type: ignore[arg-type]
    doors = {link.name: link for link in plan.links}
    us, eu = plan.regions
    assert plan.toxiproxy_port and doors["client.us"].upstream == us.service_port
    told = node_settings(tmp_path, plan, eu.brokers[1])["broker"]["listeners"]
    plain, secured = doors["client.eu-broker-1"], doors["client-tls.eu-broker-1"]
    assert told[""] == f"pulsar://{plain.listen}" and plain.upstream == eu.brokers[1].ports["service"]
    assert told["tls"] == f"pulsar+ssl://{secured.listen}" and secured.upstream == eu.brokers[1].ports["service_tls"]
    assert told["link-us"].endswith(f":{eu.brokers[1].ports['link']}"), "links go straight: --wan none"
    bookie = node_settings(tmp_path, plan, us.bookies[0])["bookie"]
    assert doors["bookie.us-bookie-0"].listen == f"{bookie['advertised_host']}:{bookie['port']}"
    assert doors["bookie-http.us-bookie-0"].listen == f"{bookie['advertised_host']}:{bookie['http_port']}"
    assert bookie["advertised_host"] != node_settings(tmp_path, plan, us.bookies[0])["bind"]
    ports = [link.port for link in plan.links if not link.kind.startswith("bookie")]
    assert len({*ports, *us.bookies[0].ports.values(), us.service_port}) == len(ports) + 3, "none twice"
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan
    with pytest.raises(ConfigError, match="region 'clients' cannot be told"):
        make_plan(["us", "clients"], brokers={"us": 1, "clients": 1}, bookies=2, wan="none", proxied=True)
