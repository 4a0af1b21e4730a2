"""A server for a test that a real Pulsar can pass too: Heliograph, or by `make oracle` (HELIOGRAPH_ORACLE=pulsar)
Apache Pulsar itself.

A module whose tests only use the official client and Pulsar's REST takes this server, and is marked `either`; so is a
single test of another module, whose `region` is this server too. Where Pulsar is wanted to differ, the test says so by
`ORACLE`, and docs/protocols/differences.md why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.servers import Pulsar
from tests.region_node.live import FOR_EVER, NAMESPACE, provisioned
from tests.region_node.rest_client import Rest

ORACLE = os.environ.get("HELIOGRAPH_ORACLE") == "pulsar"
AS_HERE = """
acknowledgmentAtBatchIndexLevelEnabled=true
allowAutoTopicCreation=true
brokerDeleteInactiveTopicsEnabled=true
brokerDeleteInactiveTopicsFrequencySeconds=1
brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=1000000
backlogQuotaCheckIntervalInSeconds=1
preciseTimeBasedBacklogQuotaCheck=true
messageExpiryCheckIntervalInMinutes=1
subscriptionExpirationTimeMinutes=0
delayedDeliveryTickTimeMillis=100
activeConsumerFailoverDelayTimeMillis=0
brokerServiceCompactionMonitorIntervalInSeconds=1
clusterMigrationCheckDurationSeconds=1
forceDeleteNamespaceAllowed=true
transactionCoordinatorEnabled=true
nettyMaxFrameSizeBytes=5253120
"""
WITHIN_S = 100.0 if ORACLE else 60.0
"""Of a policy that holds within a second here, on a machine that does other things too; Pulsar looks once a minute at
some of them.
"""


class Either:
    def __init__(self, service: str, *admins: str) -> None:
        """admins: of each broker."""
        self._service, self._admins = service, admins

    def service_url(self) -> str:
        return self._service

    def admin_url(self, broker: int = 0) -> str:
        """Of the broker, or of the only one."""
        return self._admins[broker % len(self._admins)]


@contextmanager
def oracle(folder: Path) -> Iterator[Either]:
    """A real Pulsar with namespace public/default, which keeps everything."""
    server = Pulsar(folder / "pulsar", settings=AS_HERE)
    try:
        service, web = next(iter(server.regions.values()))
        found = Either(f"pulsar://127.0.0.1:{service}", f"http://127.0.0.1:{web}")
        assert Rest(found.admin_url())("POST", f"{NAMESPACE}/retention", FOR_EVER)[0] == 204
        yield found
    finally:
        server.stop()


@contextmanager
def either(folder: Path, pulsar: Either | None, *, brokers: int = 1, **settings: Any) -> Iterator[Either]:
    """pulsar: it is taken where there is one, else Heliograph is started. settings: as of `provisioned`."""
    if pulsar is not None:
        yield pulsar
        return
    with provisioned(folder, brokers=brokers, **settings) as region:
        yield Either(region.service_url(), *(region.admin_url(broker) for broker in range(brokers)))
