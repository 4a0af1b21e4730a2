"""A topic that goes to an object store, is read from there, and comes back from there alone into an empty region: the
same with every store's server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar

from tests.region_node.live import until
from tests.region_node.region_processes import Region
from tests.region_node.tiering.tiered_region import TOPIC, provisioned, read_all


def folder(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


def offloaded_and_restored(tiered: dict[str, Any], tmp_path: Path) -> None:
    """tiered: the setting of that name, with a store whose bucket is empty."""
    path = "/admin/v2/persistent/public/default/old"
    with Region(folder(tmp_path, "a")) as region:
        region.start(tiered=tiered)
        rest = provisioned(region, namespace=True)
        client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(TOPIC)
        for i in range(100):
            producer.send(str(i).encode())
        client.close()
        assert rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)[0] == 204
        assert rest("PUT", f"{path}/offload?rollOver=true")[0] in (200, 204)
        found: dict[str, Any] = {}
        until(lambda: found.update(rest("GET", f"{path}/offload")[1]) or found["status"] in ("SUCCESS", "ERROR"))
        assert found["status"] == "SUCCESS", found
        until(
            lambda: (
                (rows := rest("GET", f"{path}/internalStats")[1]["ledgers"])
                and not any(row["onBookies"] for row in rows if row["entries"])
            )
        )
        assert read_all(region.service_url(), 100) == list(range(100))
    with Region(folder(tmp_path, "b"), "eu") as region:
        region.start(tiered=tiered)
        rest = provisioned(region, namespace=False)
        status, answer = rest("POST", "/heliograph/v1/tier/restore", {"topic": TOPIC})
        assert status == 200 and answer[0]["entries"] == 100, json.dumps(answer)
        assert read_all(region.service_url(), 100) == list(range(100))
