"""Clusters' peers, bookies' racks, what brokers have to spare, and a broker that is told to end, against two real
brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pulsar
import pytest

from tests.region_node.either import Either
from tests.region_node.live import NAMESPACE, provisioned, until
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.wan, pytest.mark.slow]

CLUSTERS, RACKS = "/admin/v2/clusters", "/admin/v2/bookies/racks-info"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory, pulsar_server: Either | None) -> Iterator[Any]:
    if pulsar_server is not None:
        yield pulsar_server
        return
    with provisioned(tmp_path_factory.mktemp("cluster-calls"), brokers=2, balance={"report_s": 1}) as region:
        yield region


def shows(broker: Rest, racks: dict[str, Any]) -> bool:
    return bool(broker("GET", RACKS)[1] == racks)


@pytest.mark.either
def test_peers_of_a_cluster_are_kept_with_it(rest: Rest, cluster: str) -> None:
    urls = {"serviceUrl": "http://127.0.0.1:8080", "brokerServiceUrl": "pulsar://127.0.0.1:6650"}
    assert rest("PUT", f"{CLUSTERS}/west", urls)[0] in (200, 204)
    until(lambda: rest("GET", f"{CLUSTERS}/west")[0] == 200, PATIENCE_S)
    assert rest("POST", f"{CLUSTERS}/{cluster}/peers", ["west"])[0] == 204
    until(lambda: rest("GET", f"{CLUSTERS}/{cluster}/peers") == (200, ["west"]), PATIENCE_S)
    assert rest("GET", f"{CLUSTERS}/{cluster}")[1]["peerClusterNames"] == ["west"]
    for refused in (["nowhere"], [cluster]):
        assert rest("POST", f"{CLUSTERS}/{cluster}/peers", refused)[0] == 412
    assert rest("POST", f"{CLUSTERS}/nowhere/peers", ["west"])[0] in (404, 412)
    assert rest("GET", f"{CLUSTERS}/{cluster}/peers") == (200, ["west"])
    assert rest("POST", f"{CLUSTERS}/{cluster}/peers", [])[0] == 204
    until(lambda: not rest("GET", f"{CLUSTERS}/{cluster}/peers")[1], PATIENCE_S)
    assert rest("DELETE", f"{CLUSTERS}/west")[0] == 204


def test_an_operators_rack_holds_at_every_broker_above_the_bookies_own(region: Any, rest: Rest) -> None:
    other, bookies = Rest(region.admin_url(1)), ["us-bookie-0", "us-bookie-1"]
    assert rest("GET", RACKS)[1] == {"default": {bookie: {"rack": "", "hostname": bookie} for bookie in bookies}}
    for bookie in bookies:
        assert rest("POST", f"{RACKS}/{bookie}?group=fast", {"rack": "/a", "hostname": "h"})[0] == 204
    for broker in (rest, other):
        until(
            partial(shows, broker, {"default": {}, "fast": {b: {"rack": "/a", "hostname": "h"} for b in bookies}}),
            PATIENCE_S,
        )
        rows = {row["id"]: (row["rack"], row["group"]) for row in broker("GET", "/heliograph/v1/bookies")[1]}
        assert rows == dict.fromkeys(bookies, ("/a", "fast"))
    assert rest("POST", f"{RACKS}/us-bookie-1", {"rack": "/b"})[0] == 204
    assert rest("GET", f"{RACKS}/us-bookie-1")[1] == {"rack": "/b", "hostname": "us-bookie-1"}
    assert rest("POST", f"{RACKS}/us-bookie-1", {})[0] == 412 and rest("POST", f"{RACKS}/us-bookie-1", [])[0] == 400
    assert rest("POST", f"{RACKS}/later", {"rack": "/c"})[0] == 204  # before the bookie comes
    assert rest("GET", f"{RACKS}/later")[1]["rack"] == "/c"
    for bookie in (*bookies, "later"):
        assert rest("DELETE", f"{RACKS}/{bookie}")[0] == 204
    assert rest("DELETE", f"{RACKS}/us-bookie-0")[0] == 404
    assert rest("GET", f"{RACKS}/us-bookie-0")[1]["rack"] == "" and rest("GET", f"{RACKS}/later")[0] == 404


def test_what_brokers_have_to_spare(region: Any, rest: Rest) -> None:
    path = "/admin/v2/broker-stats/broker-resource-availability"
    addresses = sorted(region.admin_url(broker).removeprefix("http://") for broker in range(2))
    spare = until(
        lambda: all(
            row["availableResource"]["resourceUsage"] for row in rest("GET", f"{path}/public/default")[1].values()
        ),
        PATIENCE_S,
    )
    found = rest("GET", f"{path}/public/default")[1]
    assert spare and sorted(found) == addresses
    for address in addresses:
        usage = found[address]["availableResource"]["resourceUsage"]
        assert (
            found[address]["resourceId"] == address and usage["cpu"]["limit"] == 100.0 and usage["memory"]["usage"] >= 0
        )
    policy = {
        "namespaces": ["public/default"],
        "primary": ["us-broker-0"],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
    }
    assert rest("POST", f"{CLUSTERS}/us/namespaceIsolationPolicies/one", policy)[0] == 204
    until(
        lambda: list(rest("GET", f"{path}/public/default")[1]) == [region.admin_url(0).removeprefix("http://")],
        PATIENCE_S,
    )
    assert rest("DELETE", f"{CLUSTERS}/us/namespaceIsolationPolicies/one")[0] == 204
    assert rest("GET", f"{path}/public/nowhere")[0] == 404


@pytest.mark.either
def test_there_are_no_arenas_in_statistics_of_unknown_allocators(rest: Rest) -> None:
    for name in ("default", "ml-cache"):
        found = rest("GET", f"/admin/v2/broker-stats/allocator-stats/{name}")[1]
        assert {
            "numDirectArenas",
            "numHeapArenas",
            "numThreadLocalCaches",
            "normalCacheSize",
            "smallCacheSize",
            "directArenas",
            "heapArenas",
        } <= set(found)
    assert rest("GET", "/admin/v2/broker-stats/allocator-stats/none")[0] >= 400


def test_a_broker_that_is_told_to_end_gives_its_topics_away_first(region: Any, client: pulsar.Client) -> None:
    """Its clients go on at the other one; nothing that was confirmed is lost, and nothing is refused."""
    rest, ending = Rest(region.admin_url(0)), Rest(region.admin_url(1))
    producers = [
        client.create_producer(f"moves-{n}", batching_enabled=False, send_timeout_millis=120_000) for n in range(4)
    ]
    consumers = [
        client.subscribe(f"moves-{n}", "s", initial_position=pulsar.InitialPosition.Earliest) for n in range(4)
    ]
    for producer in producers:
        producer.send(b"before")
    assert ending("POST", "/admin/v2/brokers/shutdown?maxConcurrentUnloadPerSec=-1")[0] == 412
    assert ending("POST", "/admin/v2/brokers/shutdown?maxConcurrentUnloadPerSec=many")[0] == 400
    assert ending("POST", "/admin/v2/brokers/shutdown")[0] == 204
    for producer in producers:
        producer.send(b"after")
    assert region.processes["us-broker-1"].popen.wait(PATIENCE_S) == 0
    until(lambda: rest("GET", "/admin/v2/brokers")[1] == [region.admin_url(0).removeprefix("http://")], PATIENCE_S)
    for consumer in consumers:
        got: list[bytes] = []
        while b"after" not in got:
            got.append(consumer.receive(timeout_millis=120_000).data())
        assert b"before" in got
    assert rest("GET", NAMESPACE)[0] == 200
