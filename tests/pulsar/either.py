"""A server for a test that a real Pulsar can pass too: Heliograph, or by `make oracle` (HELIOGRAPH_ORACLE=pulsar) Apache Pulsar itself.

A module whose tests only use the official client and Pulsar's REST takes this server, and is marked `either`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.servers import Pulsar
from tests.broker.processes import Region
from tests.broker.test_admin import Rest

ORACLE = os.environ.get("HELIOGRAPH_ORACLE") == "pulsar"
AS_HERE = """
acknowledgmentAtBatchIndexLevelEnabled=true
allowAutoTopicCreation=true
brokerDeleteInactiveTopicsEnabled=false
delayedDeliveryTickTimeMillis=100
activeConsumerFailoverDelayTimeMillis=0
"""
RETENTION = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


class Either:
    def __init__(self, service: str, admin: str) -> None:
        self._service, self._admin = service, admin

    def service_url(self) -> str:
        return self._service

    def admin_url(self) -> str:
        return self._admin


@contextmanager
def either(folder: Path) -> Iterator[Either]:
    """With namespace public/default, which keeps everything."""
    if ORACLE:
        server = Pulsar(folder / "pulsar", settings=AS_HERE)
        try:
            service, web = next(iter(server.regions.values()))
            found = Either(f"pulsar://127.0.0.1:{service}", f"http://127.0.0.1:{web}")
            assert Rest(found.admin_url())("POST", "/admin/v2/namespaces/public/default/retention", RETENTION)[0] == 204
            yield found
        finally:
            server.stop()
        return
    with Region(folder) as region:
        region.start(bookies=2, brokers=1)
        rest = Rest(region.admin_url())
        assert rest("PUT", "/admin/v2/clusters/us", {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()})[0] == 204
        assert rest("PUT", "/admin/v2/tenants/public", {"adminRoles": [], "allowedClusters": ["us"]})[0] == 204
        assert rest("PUT", "/admin/v2/namespaces/public/default", {"retention_policies": RETENTION})[0] == 204
        yield Either(region.service_url(), region.admin_url())
