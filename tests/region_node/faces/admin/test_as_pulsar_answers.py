"""Tenants, namespaces, topics, subscriptions, and messages over HTTP, here and with a real Pulsar: statuses, field
names, and what is true afterwards.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pulsar
import pytest

from tests.region_node.either import ORACLE, WITHIN_S
from tests.region_node.live import TOPICS, until
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.either, pytest.mark.wan, pytest.mark.slow]

ADMIN = "/admin/v2"
EARLIEST, SHARED = pulsar.InitialPosition.Earliest, pulsar.ConsumerType.Shared


def test_a_tenant_s_life(cluster: str, rest: Rest) -> None:
    tenant = f"{ADMIN}/tenants/acme"
    assert rest("GET", tenant)[0] == 404
    assert rest("PUT", tenant, {"adminRoles": ["ops"], "allowedClusters": [cluster]})[0] == 204
    assert rest("PUT", tenant, {"adminRoles": [], "allowedClusters": [cluster]})[0] == 409
    assert rest("PUT", f"{ADMIN}/tenants/acme2", {"adminRoles": [], "allowedClusters": ["nowhere"]})[0] == 412
    found = rest("GET", tenant)[1]
    assert sorted(found["adminRoles"]) == ["ops"] and found["allowedClusters"] == [cluster]
    assert rest("POST", tenant, {"adminRoles": ["ops", "dev"], "allowedClusters": [cluster]})[0] == 204
    assert sorted(rest("GET", tenant)[1]["adminRoles"]) == ["dev", "ops"]
    assert "acme" in rest("GET", f"{ADMIN}/tenants")[1]
    assert rest("PUT", f"{ADMIN}/namespaces/acme/one", {})[0] == 204
    assert rest("DELETE", tenant)[0] == 409, "it has a namespace"
    assert rest("DELETE", f"{ADMIN}/namespaces/acme/one")[0] == 204
    until(lambda: rest("DELETE", tenant)[0] in (204, 404), WITHIN_S)
    assert rest("GET", tenant)[0] == 404


def test_a_namespace_s_life(cluster: str, rest: Rest) -> None:
    namespace = f"{ADMIN}/namespaces/public/made"
    assert rest("GET", namespace)[0] == 404
    assert rest("PUT", namespace, {"bundles": {"numBundles": 4}})[0] == 204
    assert rest("PUT", namespace, {})[0] == 409
    assert rest("PUT", f"{ADMIN}/namespaces/nobody/made", {})[0] == 404
    bundles = rest("GET", f"{namespace}/bundles")[1]
    assert bundles["numBundles"] == 4 and bundles["boundaries"] == [
        "0x00000000",
        "0x40000000",
        "0x80000000",
        "0xc0000000",
        "0xffffffff",
    ]
    assert "public/made" in rest("GET", f"{ADMIN}/namespaces/public")[1]
    assert rest("GET", f"{namespace}/replication") == (200, [cluster])
    policies = rest("GET", namespace)[1]
    assert (
        policies["replication_clusters"] == [cluster]
        and policies["bundles"]["numBundles"] == 4
        and policies["deleted"] is False
    )
    assert rest("GET", f"{namespace}/messageTTL")[1] in (None, "", 0)
    assert rest("POST", f"{namespace}/messageTTL", 60)[0] == 204
    assert rest("POST", f"{namespace}/messageTTL", -1)[0] == 412
    until(lambda: rest("GET", f"{namespace}/messageTTL")[1] == 60, WITHIN_S)
    assert rest("PUT", f"{namespace}/properties", {"owner": "me", "cost": "7"})[0] == 204
    until(lambda: rest("GET", f"{namespace}/properties")[1] == {"owner": "me", "cost": "7"}, WITHIN_S)
    assert rest("GET", f"{namespace}/property/owner")[0] == 200
    assert rest("PUT", f"{ADMIN}/persistent/public/made/t")[0] == 204
    assert rest("DELETE", namespace)[0] == 409, "it has a topic"
    assert rest("DELETE", f"{ADMIN}/persistent/public/made/t")[0] == 204
    gone = (
        f"{namespace}?force=true" if ORACLE else namespace
    )  # Pulsar makes topics of its own in it, which are in the way for a while
    until(lambda: rest("DELETE", gone)[0] in (204, 404), WITHIN_S)
    assert rest("GET", namespace)[0] == 404


def test_a_topic_s_life(client: pulsar.Client, rest: Rest) -> None:
    assert rest("PUT", f"{TOPICS}/life")[0] == 204
    assert rest("PUT", f"{TOPICS}/life")[0] == 409
    assert "persistent://public/default/life" in rest("GET", TOPICS)[1]
    producer = client.create_producer("life", batching_enabled=False)
    sent = [producer.send(b"%d" % n, partition_key=f"k{n}", properties={"n": str(n)}) for n in range(10)]
    assert rest("DELETE", f"{TOPICS}/life")[0] == 412, "a producer is connected"
    stats = rest("GET", f"{TOPICS}/life/stats")[1]
    assert (stats["msgInCounter"], len(stats["publishers"]), stats["subscriptions"]) == (10, 1, {}) and stats[
        "bytesInCounter"
    ] > 0
    assert stats["publishers"][0]["producerName"] == producer.producer_name()
    internal = rest("GET", f"{TOPICS}/life/internalStats")[1]
    assert (internal["entriesAddedCounter"], internal["numberOfEntries"], internal["state"]) == (10, 10, "LedgerOpened")
    last = rest("GET", f"{TOPICS}/life/lastMessageId")[1]
    assert (last["ledgerId"], last["entryId"], last["partitionIndex"]) == (
        sent[-1].ledger_id(),
        sent[-1].entry_id(),
        -1,
    )
    ended = rest("POST", f"{TOPICS}/life/terminate")[1]
    assert (ended["ledgerId"], ended["entryId"]) == (last["ledgerId"], last["entryId"])
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("life")
    with contextlib.suppress(pulsar.AlreadyClosed):  # it may have heard by itself that the topic has ended
        producer.close()
    assert rest("DELETE", f"{TOPICS}/life")[0] == 204
    assert rest("DELETE", f"{TOPICS}/life")[0] == 404 and rest("GET", f"{TOPICS}/life/stats")[0] == 404


def test_partitions(client: pulsar.Client, rest: Rest) -> None:
    assert rest("PUT", f"{TOPICS}/parted/partitions", 3)[0] == 204
    assert rest("PUT", f"{TOPICS}/parted/partitions", 3)[0] == 409
    assert rest("PUT", f"{TOPICS}/parted2/partitions", 0)[0] == 406
    assert rest("GET", f"{TOPICS}/parted/partitions")[1]["partitions"] == 3
    assert "persistent://public/default/parted" in rest("GET", f"{TOPICS}/partitioned")[1]
    assert rest("POST", f"{TOPICS}/parted/partitions", 5)[0] == 204
    until(lambda: rest("GET", f"{TOPICS}/parted/partitions")[1]["partitions"] == 5, WITHIN_S)
    assert rest("POST", f"{TOPICS}/parted/partitions", 2)[0] in (406, 409, 412, 422), "it never shrinks"
    stats = rest("GET", f"{TOPICS}/parted/partitioned-stats")[1]
    made_ms = stats["topicCreationTimeStamp"]
    assert made_ms > 0 and stats["lastPublishTimestamp"] == 0, "nobody has used it yet"
    client.create_producer("parted").close()  # partitions that nobody has used have no statistics here
    stats = rest("GET", f"{TOPICS}/parted/partitioned-stats?perPartition=true")[1]
    assert stats["topicCreationTimeStamp"] <= made_ms
    assert stats["metadata"]["partitions"] == 5 and len(stats["partitions"]) == 5
    assert rest("DELETE", f"{TOPICS}/parted/partitions")[0] == 204
    assert rest("GET", f"{TOPICS}/parted/partitions")[0] in (200, 404)
    assert not any("/parted" in name for name in rest("GET", TOPICS)[1])


def backlog(rest: Rest, topic: str, name: str = "s") -> int:
    return int(rest("GET", f"{TOPICS}/{topic}/stats")[1]["subscriptions"][name]["msgBacklog"])


def test_a_subscription_s_life(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("subs", batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n)
    of = f"{TOPICS}/subs/subscription/s"
    assert rest("PUT", of, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})[0] == 204
    assert rest("PUT", of, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})[0] == 409
    assert rest("GET", f"{TOPICS}/subs/subscriptions")[1] == ["s"] and backlog(rest, "subs") == 10
    assert rest("POST", f"{of}/skip/3")[0] == 204
    until(lambda: backlog(rest, "subs") == 7, WITHIN_S)
    consumer = client.subscribe("subs", "s", SHARED)
    assert consumer.receive(60_000).data() == b"3"
    assert rest("DELETE", of)[0] == 412, "a consumer is connected"
    consumer.close()
    assert rest("POST", f"{of}/skip_all")[0] == 204
    until(lambda: backlog(rest, "subs") == 0, WITHIN_S)
    assert rest("POST", f"{of}/resetcursor/0")[0] == 204
    until(lambda: backlog(rest, "subs") == 10, WITHIN_S)
    assert rest("PUT", f"{of}/properties", {"a": "b"})[0] == 204
    assert rest("GET", f"{of}/properties") == (200, {"a": "b"})
    assert rest("POST", f"{TOPICS}/subs/subscription/nobody/skip_all")[0] == 404
    assert rest("DELETE", of)[0] == 204 and rest("GET", f"{TOPICS}/subs/subscriptions")[1] == []
    assert rest("DELETE", of)[0] == 404
    producer.close()


def test_messages_are_looked_at_over_http(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("peek", batching_enabled=False)
    ids = [producer.send(b"%d" % n, partition_key=f"k{n}", properties={"n": str(n)}) for n in range(3)]
    client.subscribe("peek", "s", initial_position=EARLIEST).close()
    at = ids[1]
    assert rest("GET", f"{TOPICS}/peek/ledger/{at.ledger_id()}/entry/{at.entry_id()}")[0] == 200
    assert rest("GET", f"{TOPICS}/peek/ledger/{at.ledger_id() + 1000}/entry/0")[0] in (404, 500)
    assert rest("GET", f"{TOPICS}/peek/subscription/s/position/1")[0] == 200
    assert rest("GET", f"{TOPICS}/peek/subscription/nobody/position/1")[0] == 200, (
        "of everything, where nobody has acknowledged"
    )
    assert rest("GET", f"{TOPICS}/peek/examinemessage?initialPosition=earliest&messagePosition=1")[0] == 200
    producer.close()
    for name in ("LZ4", "ZLib", "ZSTD", "SNAPPY"):
        producer = client.create_producer(
            "peek", batching_enabled=False, compression_type=getattr(pulsar.CompressionType, name)
        )
        at = producer.send(name.encode() * 50)
        assert rest("GET", f"{TOPICS}/peek/ledger/{at.ledger_id()}/entry/{at.entry_id()}") == (200, name * 50), (
            "uncompressed"
        )
        producer.close()


def test_what_is_malformed_or_not_there_says_so(rest: Rest) -> None:
    wanted: list[tuple[str, str, Any, set[int]]] = [
        ("GET", f"{ADMIN}/namespaces/public/absent/retention", None, {404}),
        ("GET", f"{ADMIN}/persistent/public/absent", None, {404}),
        ("PUT", f"{ADMIN}/persistent/public/absent/t", None, {404}),
        ("GET", f"{TOPICS}/absent/stats", None, {404}),
        ("GET", f"{TOPICS}/absent/internalStats", None, {404}),
        ("DELETE", f"{TOPICS}/absent/subscription/s", None, {404}),
        ("POST", f"{TOPICS}/absent/terminate", None, {404}),
        ("PUT", f"{ADMIN}/tenants/bad name!", {"adminRoles": [], "allowedClusters": []}, {400, 412}),
        ("GET", f"{ADMIN}/resourcegroups/absent", None, {404}),
        ("GET", f"{ADMIN}/no-such-thing", None, {404}),
    ]
    for method, path, body, statuses in wanted:
        found = rest(method, path.replace(" ", "%20"), body)
        assert found[0] in statuses, (method, path, found)


def test_resource_groups_and_brokers(cluster: str, rest: Rest) -> None:
    group = f"{ADMIN}/resourcegroups/some"
    assert rest("PUT", group, {"publishRateInMsgs": 100, "dispatchRateInMsgs": 200})[0] in (200, 204)
    until(lambda: rest("GET", group)[0] == 200, WITHIN_S)
    assert rest("GET", group)[1]["publishRateInMsgs"] == 100 and "some" in rest("GET", f"{ADMIN}/resourcegroups")[1]
    assert rest("DELETE", group)[0] in (200, 204)
    until(lambda: rest("GET", group)[0] == 404, WITHIN_S)
    brokers = rest("GET", f"{ADMIN}/brokers/{cluster}")[1]
    assert len(brokers) == 1 and ":" in brokers[0]
    assert rest("GET", f"{ADMIN}/brokers/health")[0] == 200
    assert rest("GET", f"{ADMIN}/brokers/ready")[0] == 200
    assert rest("GET", f"{ADMIN}/brokers/leaderBroker")[1]["serviceUrl"].startswith("http")
    assert rest("GET", f"{ADMIN}/clusters/{cluster}")[0] == 200 and rest("GET", f"{ADMIN}/clusters/absent")[0] == 404
