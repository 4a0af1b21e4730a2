"""InstanceStatus: what `heliograph status --json` prints: processes, links as the brokers see them, the configuration's
members, the wide-area links.

Is: asking all brokers at once, and putting it together. Isn't: a decision by it. A broker that does not answer is shown
by its process alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from region_node.instance.nodes.broker_credentials import SupervisorTokens
from region_node.instance.nodes.processes import Child, Processes
from region_node.instance.plan.layout import HOST, InstancePlan, NodePlan, RegionPlan, door

_ASK_S = 5.0
_PATHS = ("/heliograph/v1/status", "/heliograph/v1/config/members?here=true")


class InstanceStatus:
    """Answers the verb `status`. plan: returns the present one; joining and leaving change it."""

    def __init__(
        self, data: Path, plan: Callable[[], InstancePlan], processes: Processes, tokens: SupervisorTokens
    ) -> None:
        self._data, self._plan, self._processes, self._tokens = data, plan, processes, tokens

    async def show(self) -> dict[str, Any]:
        children = self._processes.children
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S)) as http:
            asked = [
                (r.name, n.ports["admin"])
                for r in self._plan().regions
                for n in r.brokers
                if n.name in children and children[n.name].pid
            ]
            found = await asyncio.gather(
                *(self._get(http, region, f"http://{HOST}:{port}{path}") for path in _PATHS for region, port in asked)
            )
        answers, configs = found[: len(asked)], [config for config in found[len(asked) :] if config is not None]
        plan = self._plan()  # a region, or a process, may have left while the brokers were asked
        regions = {
            region.name: {
                "service_url": f"pulsar://{HOST}:{door(plan, region.name, region.service_port)}",
                "health_url": f"pulsar://{HOST}:{region.health_port}" if region.health_port else "",
                "admin_url": f"http://{HOST}:{region.admin_port}",
                **_by_tls(plan, region),
                "processes": [self._row(n) for n in (region.metadata, *region.bookies, *region.brokers)],
            }
            for region in plan.regions
        }
        return {
            "regions": regions,
            **({"witness": self._row(plan.witness)} if plan.witness is not None else {}),
            "links": [link for answer in answers for link in (answer or {}).get("links", [])],
            "config": next(
                (c for c in configs if c["node"] == c["leader"]),
                next((c for c in configs if c["leader"] is not None), None),
            ),
            "wan": self._wan(plan),
            "supervisor": {"pid": os.getpid(), "data": str(self._data)},
        }

    def _wan(self, plan: InstancePlan) -> dict[str, Any] | None:
        toxiproxy = self._processes.children.get("toxiproxy")
        if toxiproxy is None:
            return None
        proxies = {f"{x.source}-{x.target}": f"{HOST}:{x.port}" for x in plan.links if x.kind == "link"}
        return {"toxiproxy": f"{HOST}:{plan.toxiproxy_port}", "pid": toxiproxy.pid, "links": proxies}

    def _row(self, node: NodePlan) -> dict[str, Any]:
        child = self._processes.children.get(node.name) or Child(
            node.name, node.region, node.roles, [], node.ports
        )  # it is being added, or could not be
        return {
            "role": "+".join(node.roles),
            "name": node.name,
            "pid": child.pid,
            "port": next(iter(child.ports.values())),
            "ports": child.ports,
            "ready": child.ready.is_set() and child.pid is not None,
            "restarts": child.restarts,
        }

    async def ask(self, region: str, path: str) -> dict[str, Any] | None:
        """What the first broker of a region that answers says; None where none does."""
        children = self._processes.children
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S)) as http:
            for node in self._plan().region(region).brokers:
                if node.name in children and children[node.name].pid:
                    found = await self._get(http, region, f"http://{HOST}:{node.ports['admin']}{path}")
                    if found is not None:
                        return found
        return None

    async def _get(self, http: aiohttp.ClientSession, region: str, url: str) -> dict[str, Any] | None:
        """A broker's answer; with credentials where it wants some, and once with newer ones where it refuses them."""
        headers: dict[str, str] = {}
        try:
            for attempt in range(3):
                async with http.get(url, headers=headers) as answer:
                    if answer.status == 200:
                        body: dict[str, Any] = await answer.json()
                        return body
                if answer.status != 401 or attempt == 2:
                    break
                if not (headers := await self._tokens.header(region, anew=attempt == 1)):
                    break
        except (aiohttp.ClientError, TimeoutError, ValueError):
            pass
        return None


def _by_tls(plan: InstancePlan, region: RegionPlan) -> dict[str, str]:
    if not plan.tls:
        return {}
    return {"service_tls_url": f"pulsar+ssl://{HOST}:{door(plan, region.name, region.service_tls_port, 'client-tls')}"}
