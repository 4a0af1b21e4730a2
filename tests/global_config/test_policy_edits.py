"""Conflicts of edits: what the region wanted can be taken however deep in a policy it lies."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from global_config.policy_edits import Conflict, merged, taken


def conflict_of(path: list[str], before: list[Any], mine: list[Any], theirs: list[Any]) -> Conflict:
    return Conflict(
        region="us",
        id=1,
        key="/namespaces/t/n",
        path=tuple(path),
        before=tuple(before),
        mine=tuple(mine),
        theirs=tuple(theirs),
    )


@pytest.mark.parametrize("depth", (1, 2, 3, 4))
@pytest.mark.parametrize(("mine", "wanted"), (([2], {"limit": 2, "other": 9}), ([], {"other": 9})))
def test_what_the_region_wanted_is_taken_at_any_depth(depth: int, mine: list[int], wanted: dict[str, int]) -> None:
    def at(inner: dict[str, int]) -> dict[str, Any]:
        value: dict[str, Any] = inner
        for level in range(depth - 1, 0, -1):
            value = {f"level{level}": value, f"beside{level}": True}
        return value

    name = "level1" if depth > 1 else "limit"
    old, own = at({"limit": 1, "other": 9}), at({**({"limit": mine[0]} if mine else {}), "other": 9})
    there = at({"limit": 3, "other": 9})
    changes: tuple[list[Any], ...] = ([[name], [old[name]], [own[name]] if name in own else []],)
    fields, conflicts = merged(there, changes)
    assert fields == there and [row[0][-1] for row in conflicts] == ["limit"] and len(conflicts[0][0]) == depth
    untouched = deepcopy(fields)
    assert taken(fields, conflict_of(*conflicts[0])) == at(wanted)
    assert fields == untouched, "what the view has is not changed in place"


def test_a_map_that_is_not_there_any_more_is_made() -> None:
    conflict = conflict_of(["backlogQuota", "destination_storage", "limitSize"], [1], [2], [3])
    wanted = {"backlogQuota": {"destination_storage": {"limitSize": 2}}}
    found: tuple[dict[str, Any], ...] = ({}, {"backlogQuota": {}}, {"backlogQuota": {"destination_storage": 7}})
    for fields in found:
        assert taken(fields, conflict) == wanted
