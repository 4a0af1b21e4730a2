"""A witness joins and leaves: in which order, also where a command was interrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.errors import NotAllowed
from region_node.instance.nodes.processes import Child
from region_node.instance.nodes.resize import Instance
from region_node.instance.nodes.witness import WitnessSteps
from region_node.instance.plan.layout import InstancePlan, NodePlan, make_plan


class Lent:
    """What the supervisor lends, and in which order it was used. refuses: what the configuration says of a change."""

    def __init__(self, data: Path) -> None:
        self.plan = make_plan(["us", "eu"], brokers={"us": 1, "eu": 1}, bookies=2, wan="none")
        self.done: list[str] = []
        self.refuses = ""
        self.children: dict[str, Child] = {}
        noted = self._noted
        processes: Any = SimpleNamespace(
            children=self.children,
            spawn=lambda child: noted(f"start {child.name}"),
            until_ready=lambda child: noted("ready"),
            retire=lambda child: noted(f"end {child.name}"),
        )
        provisioning: Any = SimpleNamespace(
            write=lambda: noted("vote"),
            dismiss=lambda name, others: noted(f"no vote of {name}"),
            check_dismissal=lambda name: noted("asked"),
        )
        wan: Any = SimpleNamespace()
        self.steps = WitnessSteps(
            Instance(data, lambda: self.plan, self._adopt, self._child, processes, wan, provisioning, wan)
        )

    async def _noted(self, what: str) -> None:
        if self.refuses and "vote" in what:
            raise NotAllowed(self.refuses)
        self.done.append(what)

    def _adopt(self, plan: InstancePlan) -> None:
        self.plan = plan
        self.done.append("plan with" if plan.witness else "plan without")

    def _child(self, node: NodePlan) -> Child:
        return Child(node.name, node.region, node.roles, [], node.ports)


def test_it_is_planned_before_it_starts_and_votes_last(tmp_path: Path) -> None:
    lent = Lent(tmp_path)
    assert asyncio.run(lent.steps.join("oslo", dry_run=True))["would_start"] == ["oslo-witness"] and not lent.done
    assert asyncio.run(lent.steps.join("oslo", dry_run=False))["process"] == "oslo-witness"
    assert lent.done == ["plan with", "start oslo-witness", "ready", "vote"]
    assert sorted(path.name for path in (tmp_path / "tls").glob("*.oslo.pem")) == ["config.oslo.pem"]
    assert asyncio.run(lent.steps.join("oslo", dry_run=True))["would_start"] == [], "what is missing would be done"


def test_it_ends_only_once_it_has_no_vote(tmp_path: Path) -> None:
    lent = Lent(tmp_path)
    asyncio.run(lent.steps.join("oslo", dry_run=False))
    lent.done.clear()
    assert asyncio.run(lent.steps.leave(dry_run=True))["would_stop"] == ["oslo-witness"]
    lent.refuses = "the quorum would be lost"
    with pytest.raises(NotAllowed):
        asyncio.run(lent.steps.leave(dry_run=False))
    assert lent.done == ["asked"] and lent.plan.witness and "oslo-witness" in lent.children
    lent.refuses = ""
    asyncio.run(lent.steps.leave(dry_run=False))
    assert lent.done[1:] == ["no vote of oslo", "plan without", "end oslo-witness"] and not lent.children
