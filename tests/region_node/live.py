"""What tests against a real region share: one that has what most of them want, and waiting for something to come true.

Is: for tests with real processes on loopback. Isn't: the processes (`tests.region_node.region_processes`), or fixtures
(`tests/conftest.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

NAMESPACE, TOPICS = "/admin/v2/namespaces/public/default", "/admin/v2/persistent/public/default"
FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
PATIENCE_S = 60.0


@contextmanager
def provisioned(
    folder: Path, *, brokers: int = 1, namespace: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Region]:
    """Two bookies, and namespace public/default, which keeps everything. namespace: its policies, in place of that;
    settings: of all brokers.
    """
    with Region(folder) as region:
        region.start(bookies=2, brokers=brokers, **settings)
        rest = Rest(region.admin_url())
        assert (
            rest(
                "PUT",
                "/admin/v2/clusters/us",
                {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()},
            )[0]
            == 204
        )
        assert rest("PUT", "/admin/v2/tenants/public", {"adminRoles": [], "allowedClusters": ["us"]})[0] == 204
        assert rest("PUT", NAMESPACE, {"retention_policies": FOR_EVER} if namespace is None else namespace)[0] == 204
        known_to_all(region)
        yield region


def known_to_all(region: Region) -> None:
    """Waits until every broker has heard of namespace public/default: it was made by way of one of them."""
    brokers = [
        Rest(f"http://127.0.0.1:{process.ports['admin']}")
        for name, process in region.processes.items()
        if "-broker-" in name
    ]
    until(lambda: all(rest("GET", NAMESPACE)[0] == 200 for rest in brokers))


def until(what: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Asks until the answer is true, and returns it. timeout_s: more than PATIENCE_S; less is taken for that."""
    deadline = time.monotonic() + max(timeout_s, PATIENCE_S)
    while not (found := what()):
        assert time.monotonic() < deadline, f"not in {max(timeout_s, PATIENCE_S):g} s"
        time.sleep(0.02)
    return found
