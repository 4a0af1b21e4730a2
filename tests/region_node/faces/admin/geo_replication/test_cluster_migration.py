"""Blue-green migration over REST and frames: a namespace's clients are sent on to another cluster; the same script runs
against a real Pulsar.
"""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.wire.pulsar import pulsar_pb2 as pb
from tests.region_node.either import ORACLE
from tests.region_node.live import until
from tests.region_node.rest_client import Rest
from tests.region_node.transactions.frame_client import SHARED, K, Refused, WireClient

pytestmark = [pytest.mark.wan, pytest.mark.slow, pytest.mark.either]

SPACE = "/admin/v2/namespaces/public/blue"
TOPIC = "persistent://public/blue/t"
JAVA = "Pulsar-Java-v4.0.0"
"""Of those that bear TOPIC_MIGRATED."""
PRODUCER, CONSUMER = pb.CommandTopicMigrated.Producer, pb.CommandTopicMigrated.Consumer
GREEN = {
    "serviceUrl": "http://127.0.0.1:1",
    "brokerServiceUrl": "pulsar://127.0.0.1:2",
    "brokerServiceUrlTls": "pulsar+ssl://127.0.0.1:3",
}


def where(kind: int, resource: int) -> tuple[int, int, str, str]:
    return kind, resource, GREEN["brokerServiceUrl"], GREEN["brokerServiceUrlTls"]


def stored(rest: Rest, cluster: str) -> Any:
    found = rest("GET", f"/admin/v2/clusters/{cluster}/migrate")[1]
    found["migratedClusterUrl"].pop("empty", None)
    return found


def test_a_namespaces_clients_go_on_as_their_backlogs_allow(region: Any, rest: Rest, cluster: str) -> None:
    assert rest("GET", f"/admin/v2/clusters/{cluster}/migrate")[0] == 404
    assert rest("PUT", SPACE, {"replication_clusters": [cluster]})[0] == 204
    assert rest("POST", f"/admin/v2/clusters/{cluster}/migrate?migrated=false", GREEN)[0] == 200
    until(lambda: stored(rest, cluster) == {"migrated": False, "migratedClusterUrl": GREEN})
    with WireClient(region.service_url(), JAVA) as client:
        producer = client.producer(TOPIC)
        behind = client.subscribe(TOPIC, "behind", SHARED)
        client.publish(producer, b"first")
        done = client.subscribe(TOPIC, "done", SHARED)
        (message,) = client.receive(done, 1)
        client.acknowledge(done, message[0])
        assert rest("POST", f"{SPACE}/migration", True)[0] == 204
        until(lambda: rest("GET", SPACE)[1]["migrated"])
        if ORACLE:  # which closes the producer without a word
            assert client.moves(1) == [where(CONSUMER, done)]
        else:
            assert sorted(client.moves(2)) == [where(PRODUCER, producer), where(CONSUMER, done)]

    with WireClient(region.service_url(), JAVA) as client:
        for number, topic in ((70, TOPIC), (80, "persistent://public/blue/absent")):
            client.look_up(topic)
            client.begin_asking(K.PRODUCER, topic=topic, producer_id=number)
            client.begin_asking(
                K.SUBSCRIBE,
                topic=topic,
                consumer_id=number,
                subscription="new",
                subType=SHARED,
                initialPosition=pb.CommandSubscribe.Latest,
            )
            assert sorted(client.moves(2)) == [where(PRODUCER, number), where(CONSUMER, number)]
            client.sent_on.clear()
        behind = client.subscribe(TOPIC, "behind", SHARED)
        (message,) = client.receive(behind, 1)
        client.acknowledge(behind, message[0])
        assert client.moves(1) == [where(CONSUMER, behind)]

    assert rest("POST", f"{SPACE}/migration", False)[0] == 204
    until(lambda: not rest("GET", SPACE)[1]["migrated"])
    with WireClient(region.service_url(), JAVA) as client:
        if ORACLE:  # its topic was terminated for it
            with pytest.raises(Refused):
                client.producer(TOPIC)
        else:
            client.publish(client.producer(TOPIC), b"second")


def test_addresses_are_addresses(rest: Rest, cluster: str) -> None:
    path = f"/admin/v2/clusters/{cluster}/migrate"
    before = rest("GET", path)[1]
    if not ORACLE:  # it stores them
        for wrong in ({"brokerServiceUrl": "http://127.0.0.1:1"}, {"brokerServiceUrlTls": "pulsar://127.0.0.1:1"}, {}):
            assert rest("POST", f"{path}?migrated=true", wrong)[0] == 412
        assert rest("POST", "/admin/v2/clusters/nowhere/migrate?migrated=true", GREEN)[0] == 404
        assert rest("POST", "/admin/v2/namespaces/public/nowhere/migration", True)[0] == 404
    assert rest("POST", "/admin/v2/namespaces/public/default/migration", "text")[0] == 400
    assert rest("GET", path)[1] == before
