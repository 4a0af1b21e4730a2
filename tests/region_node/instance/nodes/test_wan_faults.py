"""Which proxies a way has, and which toxics a fault is, on each side of each of them."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from region_node.instance.nodes.toxiproxy_api import LINGER, Proxy, Toxic
from region_node.instance.nodes.wan_faults import NetworkFault, opened, row, sides, toxics, usual, way
from region_node.instance.plan.layout import InstancePlan, WanLink, make_plan


def plan(**options: Any) -> InstancePlan:
    """Regions us and eu, two brokers in us, 80 ms (± 4 ms) apart."""
    like = {"brokers": {"us": 2, "eu": 1}, "bookies": 2, "wan": "default", **options}
    return make_plan(["us", "eu"], **like)


def between(source: str, target: str, **options: Any) -> list[str]:
    return [link.name for link in way(plan(**options), source, target)]


def test_a_way_is_what_either_end_opens_to_the_other() -> None:
    there = ["link.us-eu.eu-broker-0", "config.us-eu.eu-meta-0"]
    back = ["link.eu-us.us-broker-0", "link.eu-us.us-broker-1", "config.eu-us.us-meta-0"]
    assert between("us", "eu") == between("eu", "us") == [*there, *back]
    assert between("us", "oslo", witness="oslo") == ["config.us-oslo.oslo-witness", "config.oslo-us.us-meta-0"]


def test_inside_a_region_a_way_is_to_all_its_processes_or_to_one() -> None:
    doors = [
        "client.us",
        "client.us-broker-0",
        "client.us-broker-1",
        "bookie-http.us-bookie-0",
        "bookie-http.us-bookie-1",
    ]
    assert between("clients", "us", proxied=True) == between("us", "clients", proxied=True) == doors
    assert between("clients", "us-broker-1", proxied=True) == ["client.us-broker-1"]
    assert between("brokers", "us", proxied=True) == ["bookie.us-bookie-0", "bookie.us-bookie-1"]
    assert between("brokers", "eu-bookie-1", proxied=True) == ["bookie.eu-bookie-1"]
    tls = between("clients", "us-broker-1", proxied=True, tls=True)
    assert tls == ["client.us-broker-1", "client-tls.us-broker-1"]


@pytest.mark.parametrize(
    ("source", "target", "options", "said"),
    [
        ("us", "mars", {}, "no region 'mars' here: a way is between two of us, eu, "),
        ("", "", {}, "no region '' here"),
        ("us", "us", {}, "us was given twice"),
        ("us", "eu", {"wan": "none"}, "begun with --wan none"),
        ("clients", "us", {}, "clients open to brokers goes through no proxy here.*up --proxied"),
        ("brokers", "us", {}, "brokers open to bookies goes through no proxy here.*up --proxied"),
        ("us", "eu-broker-0", {}, "eu-broker-0 is a broker: the way to it is `clients eu-broker-0`"),
        ("eu-bookie-0", "us", {}, "eu-bookie-0 is a bookie: the way to it is `brokers eu-bookie-0`"),
        ("clients", "brokers", {"proxied": True}, "nobody opens a connection"),
    ],
)
def test_what_is_no_way_says_what_there_is(source: str, target: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        between(source, target, **options)


def arranged(
    fault: NetworkFault, source: str = "us", *, one_way: bool = False
) -> dict[str, list[tuple[str, dict[str, int]]]]:
    """`proxy stream` -> its toxics, of one link each way."""
    links = [link for link in way(plan(), "us", "eu") if link.node in ("us-broker-0", "eu-broker-0")]
    by_name = {link.name: link for link in links}
    return {
        f"{name} {stream}": [(t.type, t.attributes) for t in toxics(by_name[name], stream, fault, one_way=one_way)]
        for name, stream in sides(links, source, one_way=one_way)
    }


def test_a_round_trip_is_halved_and_what_is_not_given_is_as_it_was_begun() -> None:
    up, down = ("latency", {"latency": 61, "jitter": 10}), ("latency", {"latency": 60, "jitter": 10})
    both = ("link.us-eu.eu-broker-0", "link.eu-us.us-broker-0")
    found = arranged(NetworkFault(latency_ms=121, jitter_ms=20))
    assert found == {
        f"{name} {stream}": [toxic] for name in both for stream, toxic in (("upstream", up), ("downstream", down))
    }
    begun = ("latency", {"latency": 40, "jitter": 2})
    slow = arranged(NetworkFault(bandwidth_kb_s=6250))
    assert set(slow) == set(found) and all(x == [begun, ("bandwidth", {"rate": 6250})] for x in slow.values())
    still = arranged(NetworkFault(latency_ms=0))
    assert all(x == [("latency", {"latency": 0, "jitter": 0})] for x in still.values())
    assert all(x == [("latency", {"latency": 40, "jitter": 5})] for x in arranged(NetworkFault(jitter_ms=10)).values())


def test_one_way_is_the_direction_of_the_bytes_whoever_opened_the_connection() -> None:
    whole = [("latency", {"latency": 120, "jitter": 20})]
    fault = NetworkFault(latency_ms=120, jitter_ms=20)
    there = {"link.us-eu.eu-broker-0 upstream": whole, "link.eu-us.us-broker-0 downstream": whole}
    back = {"link.us-eu.eu-broker-0 downstream": whole, "link.eu-us.us-broker-0 upstream": whole}
    assert arranged(fault, "us", one_way=True) == there
    assert arranged(fault, "eu", one_way=True) == back
    links = way(plan(), "us", "eu")
    assert opened(links, "us", one_way=True) == ["link.us-eu.eu-broker-0", "config.us-eu.eu-meta-0"]
    assert len(opened(links, "us", one_way=False)) == 5


def test_a_delay_cannot_vary_by_more_than_itself() -> None:
    for fault in (NetworkFault(latency_ms=20, jitter_ms=22), NetworkFault(jitter_ms=90)):
        with pytest.raises(ConfigError, match=r"--jitter: a delay of \d+ ms in one direction cannot vary by"):
            arranged(fault)


def test_what_is_told_of_a_side_is_what_toxiproxy_has() -> None:
    link: WanLink = way(plan(), "us", "eu")[0]
    begun = tuple(usual(link, "upstream") + usual(link, "downstream"))
    still = row(link, "downstream", Proxy(link.name, "", "", True, begun), None, None)
    assert (still["from"], still["to"], still["one_way_ms"], still["usual"]) == ("eu", "us", 40, True)
    slow = Toxic("bandwidth_upstream", "bandwidth", "upstream", {"rate": 10})
    armed = Toxic(LINGER, "reset_peer", "upstream", {"timeout": 0})
    found = row(link, "upstream", Proxy(link.name, "", "", False, (*begun, slow, armed)), 500, 2.5)
    told = {"bandwidth_kbit": 80, "reset_after_ms": 500, "cut": True, "usual": False, "ends_in_s": 2.5, "other": []}
    assert told.items() <= found.items()
    hole = Toxic("hole", "timeout", "upstream", {"timeout": 0})
    foreign = row(link, "upstream", Proxy(link.name, "", "", True, (*begun, hole)), None, None)
    assert (foreign["usual"], foreign["other"]) == (False, ["hole"])
