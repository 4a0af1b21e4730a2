"""The admin interface of a real region with two brokers: what it answers, with which codes, from either broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import ANY

import pytest

from heliograph.client.block_reader import BlockReader
from heliograph.model.topic_names import bundle_range
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.wan, pytest.mark.slow]

NAMESPACE = "persistent/public/default"


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with Region(tmp_path_factory.mktemp("region")) as region:
        region.start(bookies=2, brokers=2)
        rest = Rest(region.admin_url())
        data = {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()}
        assert rest("PUT", "/admin/v2/clusters/us", data) == (204, None)
        assert rest("PUT", "/admin/v2/tenants/public", {"adminRoles": [], "allowedClusters": ["us"]}) == (204, None)
        assert rest("PUT", "/admin/v2/namespaces/public/default") == (204, None)
        _until(lambda: Rest(region.admin_url(1))("GET", "/admin/v2/namespaces/public/default")[0] == 200)
        yield region


def _until(what: Callable[[], Any]) -> None:
    from tests.region_node.live import until  # which has its `Rest` from here

    until(what)


@pytest.fixture
def rest(region: Region) -> Rest:
    return Rest(region.admin_url())


@pytest.fixture
def other(region: Region) -> Rest:
    return Rest(region.admin_url(1))


def test_clusters_and_tenants(rest: Rest) -> None:
    assert rest("GET", "/admin/v2/clusters") == (200, ["us"])
    assert rest("GET", "/admin/v2/clusters/us")[1]["number"] == 1
    assert rest("GET", "/admin/v2/clusters/ap")[0] == 404
    assert rest("PUT", "/admin/v2/clusters/us", {})[0] == 409
    assert rest("PUT", "/admin/v2/tenants/public", {"allowedClusters": ["us"]})[0] == 409
    assert rest("PUT", "/admin/v2/tenants/x", {"allowedClusters": ["mars"]})[0] == 412
    assert rest("PUT", "/admin/v2/tenants/b%20d", {"allowedClusters": ["us"]})[0] == 412
    assert rest("PUT", "/admin/v2/tenants/t1", {"allowedClusters": ["us"]})[0] == 204
    assert rest("GET", "/admin/v2/tenants") == (200, ["public", "t1"])
    assert rest("POST", "/admin/v2/tenants/t1", {"adminRoles": ["ops"], "allowedClusters": ["us"]})[0] == 204
    assert rest("GET", "/admin/v2/tenants/t1") == (200, {"adminRoles": ["ops"], "allowedClusters": ["us"]})
    assert rest("DELETE", "/admin/v2/tenants/public")[0] == 409
    assert rest("DELETE", "/admin/v2/tenants/t1")[0] == 204
    assert rest("GET", "/admin/v2/tenants/t1")[0] == 404


def test_namespaces_and_their_policies(rest: Rest) -> None:
    one = "/admin/v2/namespaces/public/policies"
    assert rest("PUT", one, {"bundles": {"numBundles": 2}, "replication_clusters": ["us"]})[0] == 204
    assert rest("PUT", one)[0] == 409
    assert rest("PUT", "/admin/v2/namespaces/nobody/x")[0] == 404
    assert one.partition("namespaces/")[2] in rest("GET", "/admin/v2/namespaces/public")[1]
    assert rest("GET", f"{one}/bundles") == (
        200,
        {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2},
    )
    assert rest("POST", f"{one}/deduplication", True) == (204, None)
    assert rest("GET", f"{one}/deduplication") == (200, True)
    assert rest("POST", f"{one}/deduplication", "yes")[0] == 400
    assert rest("POST", f"{one}/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})[0] == 204
    assert rest("GET", f"{one}/retention") == (200, {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    assert (
        rest(
            "POST",
            f"{one}/persistence",
            {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2},
        )[0]
        == 400
    )
    assert rest("POST", f"{one}/messageTTL", 30)[0] == 204
    assert rest("POST", f"{one}/replication", ["us"])[0] == 204
    assert rest("POST", f"{one}/replication", ["mars"])[0] == 403
    assert rest("GET", f"{one}/replication") == (200, ["us"])
    policies = rest("GET", one)[1]
    assert policies["deduplicationEnabled"] is True and policies["message_ttl_in_seconds"] == 30
    assert rest("DELETE", one)[0] == 204
    assert rest("GET", one)[0] == 404


def test_topics_are_created_listed_and_deleted_through_any_broker(rest: Rest, other: Rest) -> None:
    for index in range(6):
        caller = (rest, other)[index % 2]
        assert caller("PUT", f"/admin/v2/{NAMESPACE}/plain-{index}") == (204, None)
    assert rest("PUT", f"/admin/v2/{NAMESPACE}/plain-0")[0] == 409
    listed = other("GET", f"/admin/v2/{NAMESPACE}")[1]
    assert [name for name in listed if "/plain-" in name] == [
        f"persistent://public/default/plain-{index}" for index in range(6)
    ]
    for index in range(6):
        caller = (other, rest)[index % 2]
        status, stats = caller("GET", f"/admin/v2/{NAMESPACE}/plain-{index}/stats")
        assert status == 200 and stats["publishers"] == [] and stats["subscriptions"] == {}
        assert caller("GET", f"/admin/v2/{NAMESPACE}/plain-{index}/internalStats")[0] == 200
        assert caller("PUT", f"/admin/v2/{NAMESPACE}/plain-{index}/unload") == (204, None)
        assert caller("DELETE", f"/admin/v2/{NAMESPACE}/plain-{index}") == (204, None)
        assert caller("GET", f"/admin/v2/{NAMESPACE}/plain-{index}/stats")[0] == 404
    assert rest("GET", f"/admin/v2/{NAMESPACE}/never/stats")[0] == 404
    assert rest("GET", "/admin/v2/persistent/public/none/x/stats")[0] == 404
    assert rest("GET", "/admin/v2/nothing/here") == (404, {"reason": "Not Found"})
    assert rest("POST", "/admin/v2/clusters") == (405, {"reason": "Method Not Allowed"})
    assert rest("PUT", f"/admin/v2/non-{NAMESPACE}/x")[0] == 204
    assert (
        rest("GET", f"/admin/v2/non-{NAMESPACE}")
        == other("GET", f"/admin/v2/non-{NAMESPACE}")
        == (200, ["non-persistent://public/default/x"])
    )
    assert rest("GET", f"/admin/v2/non-{NAMESPACE}/x/internalStats")[0] == 412


def test_partitioned_topics(rest: Rest, other: Rest) -> None:
    one = f"/admin/v2/{NAMESPACE}/parts"
    assert rest("PUT", f"{one}/partitions", 0)[0] == 406
    assert rest("PUT", f"{one}/partitions", 3)[0] == 204
    assert rest("PUT", f"{one}/partitions", 3)[0] == 409
    assert rest("GET", f"{one}/partitions") == (200, {"partitions": 3, "deleted": False})
    assert rest("POST", f"{one}/partitions", 2)[0] == 422
    assert rest("POST", f"{one}/partitions", 4)[0] == 204
    _until(lambda: other("GET", f"{one}/partitions")[1]["partitions"] == 4)
    assert rest("GET", f"/admin/v2/{NAMESPACE}/partitioned") == (200, ["persistent://public/default/parts"])
    for index in range(4):
        assert rest("PUT", f"{one}-partition-{index}/subscription/s")[0] == 204
    for caller in (rest, other):
        stats = caller("GET", f"{one}/partitioned-stats")[1]
        assert (
            stats["metadata"] == {"partitions": 4} and len(stats["partitions"]) == 4 and "s" in stats["subscriptions"]
        )
    assert rest("DELETE", f"{one}/partitions?force=true")[0] == 204
    assert rest("GET", f"{one}/partitions")[0] == 404
    assert rest("GET", f"{one}/partitions?checkAllowAutoCreation=true") == (200, {"partitions": 0, "deleted": False})
    assert [name for name in rest("GET", f"/admin/v2/{NAMESPACE}")[1] if "parts" in name] == []


def test_lookup_names_one_owner_and_its_bundle(region: Region, rest: Rest, other: Rest) -> None:
    services = {region.service_url(0), region.service_url(1)}
    for index in range(8):
        path = f"/lookup/v2/topic/{NAMESPACE}/look-{index}"
        first, second = rest("GET", path)[1], other("GET", path)[1]
        assert first["brokerUrl"] == second["brokerUrl"] and first["brokerUrl"] in services
        assert first["httpUrl"] in (region.admin_url(0), region.admin_url(1)) and "brokerUrlTls" in first
        assert rest("GET", f"{path}/bundle")[1] in [bundle_range(i, 4) for i in range(4)]
    status, refusal = rest("GET", f"/lookup/v2/topic/{NAMESPACE}/look-0?listenerName=test")
    assert status == 503 and refusal == {"reason": "the broker do not have test listener"}


def test_bundles_move_when_they_are_unloaded(rest: Rest, other: Rest) -> None:
    path = f"/lookup/v2/topic/{NAMESPACE}/moving"
    before = rest("GET", path)[1]["brokerUrl"]
    bundle = rest("GET", f"{path}/bundle")[1]
    assert rest("PUT", f"/admin/v2/namespaces/public/default/{bundle}/unload") == (204, None)
    after = other("GET", path)[1]["brokerUrl"]
    assert after != before and rest("GET", path)[1]["brokerUrl"] == after
    assert rest("PUT", "/admin/v2/namespaces/public/default/0x1_0x2/unload")[0] == 412
    assert other("PUT", "/admin/v2/namespaces/public/default/unload") == (204, None)


def test_brokers_health_and_metrics(region: Region, rest: Rest) -> None:
    assert sorted(rest("GET", "/admin/v2/brokers")[1]) == sorted(
        region.admin_url(i).removeprefix("http://") for i in range(2)
    )
    assert rest("GET", "/admin/v2/brokers/us")[0] == 200 and rest("GET", "/admin/v2/brokers/mars")[0] == 404
    assert rest("GET", "/admin/v2/brokers/health") == (200, "ok")
    assert rest("GET", "/status.html") == (200, "ok") and rest("HEAD", "/status.html") == (200, None)
    active = "/heliograph/v1/health/active"
    assert rest("GET", active) == rest("GET", f"{active}?namespace=public/default") == (200, {"serviceUrl": ANY})
    assert [rest("HEAD", f"{active}?namespace={name}")[0] for name in ("public/default", "public/none")] == [200, 503]
    assert rest("GET", "/admin/v2/brokers/leaderBroker")[1]["serviceUrl"].startswith("http://")
    assert "pulsar_broker_topics_count" in rest("GET", "/metrics")[1]
    bookie = region.processes["us-bookie-0"].ports["http"]
    assert "bookie_SERVER_STATUS 1" in Rest(f"http://127.0.0.1:{bookie}")("GET", "/metrics")[1]
    assert Rest(f"http://127.0.0.1:{bookie}")("GET", "/other")[0] == 404
    status = rest("GET", "/heliograph/v1/status")[1]
    assert status["region"] == "us" and len(status["brokers"]) == 2 and status["links"] == []
    config = rest("GET", "/heliograph/v1/config/status")[1]
    assert config["leader"] == "us" and config["stale_s"] == 0


def test_subscriptions_and_the_local_copy(region: Region, rest: Rest, other: Rest) -> None:
    pulsar = pytest.importorskip("pulsar")
    topic, one = "persistent://public/default/data", f"/admin/v2/{NAMESPACE}/data"
    client = pulsar.Client(region.service_url(1), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(topic)
        assert other("PUT", f"{one}/subscription/early", {"ledgerId": -1, "entryId": -1})[0] == 204
        assert rest("PUT", f"{one}/subscription/early", {})[0] == 409
        sent = [producer.send(b"%d" % index) for index in range(50)]
        producer.close()
        assert rest("PUT", f"{one}/subscription/late")[0] == 204
        assert other("GET", f"{one}/subscriptions") == (200, ["early", "late"])

        def backlog(name: str) -> int:
            return int(rest("GET", f"{one}/stats")[1]["subscriptions"][name]["msgBacklog"])

        assert (backlog("early"), backlog("late")) == (50, 0)
        last = sent[-1]
        assert rest("GET", f"{one}/lastMessageId")[1] == {
            "ledgerId": last.ledger_id(),
            "entryId": last.entry_id(),
            "partitionIndex": -1,
        }
        position = {"ledgerId": sent[40].ledger_id(), "entryId": sent[40].entry_id()}
        assert rest("POST", f"{one}/subscription/early/resetcursor", position)[0] == 204
        assert backlog("early") == 10
        assert rest("POST", f"{one}/subscription/late/resetcursor/0")[0] == 204
        assert backlog("late") == 50
        assert rest("POST", f"{one}/subscription/late/expireMessages/3600")[0] == 204
        assert backlog("late") == 50
        assert other("POST", f"{one}/subscription/late/skip_all")[0] == 204
        assert backlog("late") == 0
        assert rest("POST", f"{one}/subscription/none/skip_all")[0] == 404
        assert rest("DELETE", f"{one}/subscription/late")[0] == 204
        reader = BlockReader(region.admin_url(0))
        snapshot = reader.snapshot(topic)
        assert sum(entries for _, entries, _ in snapshot.ledgers) == 50 and snapshot.regions == {1: "us"}
        first, upto = (sent[10].ledger_id(), sent[10].entry_id()), (sent[29].ledger_id(), sent[29].entry_id())
        pieces = list(reader.runs([(snapshot.topic, first[0], first[1], upto[1])]))
        assert sum(run.count for *_, run in pieces) == 20 and pieces[0][:3] == (0, *first) and first[0] == upto[0]
        assert rest("GET", "/heliograph/v1/topics/public/default/data/vector")[1]["vector"][0]["prefix"] == list(
            snapshot.last
        )
        assert reader.vector(topic, (snapshot.last[0], 1)) == {snapshot.own: (snapshot.last[0], 1)}
        assert snapshot.past == () and not snapshot.trimmed
        terminated = rest("POST", f"{one}/terminate")[1]
        assert (terminated["ledgerId"], terminated["entryId"]) == snapshot.last
    finally:
        client.close()
    assert rest("DELETE", f"{one}?force=true")[0] == 204
