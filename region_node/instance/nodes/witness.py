"""A witness joins a running instance, or leaves it: its process, and its vote in the global configuration.

Is: the order of the steps; each may be repeated, so that a command that was interrupted is given again. Isn't: the
plan, or the calls to the configuration (`region_node.instance.plan.region_growth`).
Invariants: the plan is durable before the process is started, and loses it only after its vote is gone; the witness
goes only while the regions that are left have a majority.
Source: docs/operating/witness.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from region_node.instance.nodes.resize import Instance
from region_node.instance.plan.layout import NodePlan
from region_node.instance.plan.region_growth import with_witness, without_witness
from region_node.security.certificate_authority import ensure_certificates


class WitnessSteps:
    """One at a time: they are called under the supervisor's lock of changes."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    async def join(self, name: str, *, dry_run: bool) -> dict[str, Any]:
        """Returns once it votes. Given again for one whose joining was interrupted, it goes on. Raises ConfigError,
        HeliographError, OSError.
        """
        it = self._instance
        witness = it.plan().witness
        present = witness is not None and witness.region == name
        plan = it.plan() if present else with_witness(it.plan(), name)
        assert plan.witness is not None
        node = plan.witness
        if dry_run:
            return {"ok": True, "would_start": [] if present else [node.name]}
        ensure_certificates(it.data / "tls", [], witnesses=[name])
        it.adopt(plan)
        children = it.processes.children
        if node.name not in children:
            children[node.name] = replace(it.child(node), vital=False)
        self._tell_others()
        if links := [link for link in plan.links if name in (link.source, link.target)]:
            await it.wan.open(links)
        await it.processes.spawn(children[node.name])
        await it.processes.until_ready(children[node.name])
        await it.provisioning.write()
        return {"ok": True, "process": node.name, "pid": children[node.name].pid}

    async def leave(self, *, dry_run: bool) -> dict[str, Any]:
        """Returns once its process has ended; its data stays. Raises ConfigError, NotAllowed (the quorum would be
        lost), HeliographError, OSError.
        """
        it = self._instance
        plan = without_witness(it.plan())
        node = it.plan().witness
        assert node is not None
        if dry_run:
            await it.provisioning.check_dismissal(node.region)
            return {"ok": True, "would_stop": [node.name]}
        await it.provisioning.dismiss(node.region, [region.name for region in plan.regions])
        links = [link for link in it.plan().links if node.region in (link.source, link.target)]
        it.adopt(plan)
        await self._end(node)
        self._tell_others()
        if links:
            await it.wan.close(links)
        return {"ok": True, "process": node.name, "data": str(it.data / node.region)}

    async def _end(self, node: NodePlan) -> None:
        children = self._instance.processes.children
        if node.name in children:
            await self._instance.processes.retire(children[node.name])
            del children[node.name]
        (self._instance.data / "settings" / f"{node.name}.json").unlink(missing_ok=True)

    def _tell_others(self) -> None:
        """Writes the settings of all: they know it when they start again."""
        for node in self._instance.plan().nodes():
            self._instance.child(node)
