"""The members of the configuration as a broker shows them: who is a witness, and the numbers of one that leads."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.errors import MetadataUnavailable
from region_node.faces.admin.brokers import metadata_members


def report(node: str, leader: str, behind: int | None) -> dict[str, Any]:
    silent_s = None if behind is None else 0.0
    rows = [{"member": name, "role": "voter", "behind": behind, "silent_s": silent_s} for name in ("eu", "oslo", "us")]
    return {
        "node": node,
        "leader": leader,
        "members": rows,
        "writes": {"count": 0, "p50_ms": None, "p99_ms": None},
    }


def admin_of(leader: str, *, answers: bool = True) -> Any:
    """A broker in us: what its region's own node knows, and what the leader says, where it answers."""

    async def group(verb: str = "show", member: str = "", address: str = "") -> tuple[dict[str, Any], bool]:
        if verb == "here":
            return report("us", leader, None), False
        if not answers:
            raise MetadataUnavailable("nobody leads")
        return report(leader, leader, 7), False

    regions = {name: SimpleNamespace(name=name) for name in ("eu", "us")}
    view = SimpleNamespace(region=regions.get, regions=lambda: list(regions.values()))
    return SimpleNamespace(region="us", members={"config": group}, view=view)


def told_of(admin: Any, ending: str) -> dict[str, float]:
    found = asyncio.run(metadata_members.samples(admin))
    return {labels["member"]: value for name, _, labels, value in found if name.endswith(ending)}


@pytest.mark.parametrize(
    ("leader", "answers", "told"),
    [("oslo", True, {"eu": 7, "oslo": 7, "us": 7}), ("oslo", False, {}), ("eu", True, {})],
)
def test_a_witness_that_leads_is_asked_for_its_numbers(leader: str, answers: bool, told: dict[str, int]) -> None:
    """A region that leads tells them itself, by its own brokers."""
    assert told_of(admin_of(leader, answers=answers), "_lag_entries") == told
    silent = told_of(admin_of(leader, answers=answers), "_silent_seconds")
    assert silent == dict.fromkeys(told, 0.0), "and for how long it has not heard each"


@pytest.mark.parametrize("here", [False, True])
def test_a_voter_that_is_no_region_is_said_to_be_a_witness(here: bool) -> None:
    request: Any = SimpleNamespace(match_info={"group": "config"})
    shown = asyncio.run(metadata_members.show(admin_of("eu"), request, here=here))
    assert {row["member"]: row["witness"] for row in shown["members"]} == {"eu": False, "oslo": True, "us": False}
