"""One topic of a real region for tests: it is made over the admin interface, and read from its beginning by the
official client.
"""

from __future__ import annotations

import pytest

from tests.region_node.live import known_to_all
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pulsar = pytest.importorskip("pulsar")
TOPIC = "persistent://public/default/t"
LOOKUP = "/lookup/v2/topic/persistent/public/default/t"


def provision(region: Region) -> Rest:
    rest = Rest(region.admin_url())
    assert (
        rest(
            "PUT", "/admin/v2/clusters/us", {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()}
        )[0]
        == 204
    )
    assert rest("PUT", "/admin/v2/tenants/public", {"allowedClusters": ["us"]})[0] == 204
    keep = {
        "retentionTimeInMinutes": -1,
        "retentionSizeInMB": -1,
    }  # else what nobody subscribed to goes with its ledger
    assert rest("PUT", "/admin/v2/namespaces/public/default", {"retention_policies": keep})[0] == 204
    known_to_all(region)
    return rest


def read_all(url: str, topic: str = TOPIC) -> list[bytes]:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data())
        return found
    finally:
        client.close()
