"""Where Prometheus finds the metrics of an instance on several hosts.

Is: an inventory in, `file_sd_configs` out, one group a process, with its region and role. Isn't: scraping
(deploy/prometheus).
"""

from __future__ import annotations

from typing import Any

from region_node.hosts.inventory import Inventory, nodes


def targets_of(inventory: Inventory) -> list[dict[str, Any]]:
    """Metadata nodes, and a witness, are not among them: brokers tell of those. Bookies answer by TLS."""
    found = []
    for region, host in [each for each in inventory.hosts() if each[0] in inventory.regions]:
        address = inventory.regions[region].hosts[host].address
        for node in nodes(inventory, region, host):
            labels = {"cluster": region, "node": node.name, "host": host}
            if "broker" in node.roles and (port := node.settings["broker"]["admin_port"]) > 0:
                found.append({"targets": [f"{address}:{port}"], "labels": {"job": "heliograph-broker", **labels}})
            if "bookie" in node.roles and (port := node.settings["bookie"]["http_port"]) > 0:
                found.append(
                    {
                        "targets": [f"{address}:{port}"],
                        "labels": {"job": "heliograph-bookie", "__scheme__": "https", **labels},
                    }
                )
    return found
