"""A real region with a folder as its object store, and one topic in it that is read from its beginning."""

from __future__ import annotations

import sys
from pathlib import Path

import pulsar

from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

TOPIC = "persistent://public/default/old"
HELIOGRAPH = Path(sys.executable).with_name("heliograph")


def provisioned(region: Region, *, namespace: bool) -> Rest:
    rest = Rest(region.admin_url())
    assert rest("PUT", f"/admin/v2/clusters/{region.name}", {"serviceUrl": region.admin_url()})[0] == 204
    if namespace:
        assert rest("PUT", "/admin/v2/tenants/public", {"allowedClusters": [region.name]})[0] == 204
        assert rest("PUT", "/admin/v2/namespaces/public/default", {"replication_clusters": [region.name]})[0] == 204
        retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        assert rest("POST", "/admin/v2/namespaces/public/default/retention", retention)[0] == 204
    return rest


def read_all(service_url: str, count: int) -> list[int]:
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = [int(reader.read_next(60_000).data()) for _ in range(count)]
    client.close()
    return found
