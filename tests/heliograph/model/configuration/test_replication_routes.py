"""Topologies: one tree an origin that reaches everybody once, whatever is asked for; and sentences for what is
wrong.
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

import pytest

from heliograph.model.configuration.replication_routes import check_members, checked_topology, relays, tree
from heliograph.model.errors import NotAllowed

REGIONS = ("a", "b", "c", "d", "e")


def depth(parents: dict[str, str], region: str, origin: str) -> int:
    steps = 0
    while region != origin:
        region, steps = parents[region], steps + 1
        assert steps <= len(parents), "a loop"
    return steps


@pytest.mark.parametrize(
    ("topology", "deepest"),
    [
        (None, 1),
        ({"kind": "mesh"}, 1),
        ({"kind": "star", "center": "c"}, 2),
        ({"kind": "chain", "regions": list(REGIONS)}, 4),
        ({"kind": "ring", "regions": list(REGIONS)}, 2),
        ({"kind": "trees", "trees": {"a": {"b": "a", "c": "b", "d": "b", "e": "d"}}}, 3),
    ],
)
def test_every_origin_reaches_everybody_once(topology: Any, deepest: int) -> None:
    checked = None if topology is None else checked_topology("replicationTopology", topology)
    if checked is not None:
        check_members(checked, REGIONS)
    depths = []
    for origin in REGIONS:
        parents = tree(checked, origin, REGIONS)
        assert sorted(parents) == sorted(set(REGIONS) - {origin})
        depths += [depth(parents, region, origin) for region in parents]
    assert max(depths) == deepest


def test_who_has_left_is_passed_over_and_who_is_not_named_gets_it_directly() -> None:
    chain = checked_topology("x", {"kind": "chain", "regions": ["a", "b", "c", "d"]})
    assert tree(chain, "a", ("a", "c", "d", "new")) == {"c": "a", "d": "c", "new": "a"}
    assert tree(chain, "new", ("a", "b", "new")) == {"a": "new", "b": "new"}
    assert tree(checked_topology("x", {"kind": "star", "center": "b"}), "a", ("a", "c", "d")) == {"c": "a", "d": "a"}


@pytest.mark.parametrize(
    "topology",
    [
        None,
        {"kind": "mesh"},
        {"kind": "star", "center": "c"},
        {"kind": "chain", "regions": list(REGIONS)},
        {"kind": "ring", "regions": list(REGIONS)},
        {"kind": "trees", "trees": {"a": {"b": "a", "c": "b", "d": "b", "e": "d"}}},
    ],
)
def test_whoever_delivers_is_on_the_way_whoever_has_left(topology: Any) -> None:
    checked = None if topology is None else checked_topology("replicationTopology", topology)
    for origin, target in permutations(REGIONS, 2):
        way = relays(checked, origin, target)
        assert origin not in way and target not in way and len(set(way)) == len(way)
        others = sorted(set(REGIONS) - {origin, target})
        for left in (gone for count in range(len(REGIONS)) for gone in combinations(others, count)):
            parent = tree(checked, origin, [region for region in REGIONS if region not in left])[target]
            assert parent in (origin, *way)
    assert relays(checked, "new", "a") == (["c"] if topology is not None and topology["kind"] == "star" else [])


@pytest.mark.parametrize(
    ("topology", "sentence"),
    [
        ({"kind": "tree"}, "one of mesh, star"),
        ("chain", "one of mesh, star"),
        ({"kind": "star"}, "names the region in its middle"),
        ({"kind": "chain", "regions": ["a"]}, "at least 2"),
        ({"kind": "ring", "regions": ["a", "b"]}, "at least 3"),
        ({"kind": "chain", "regions": ["a", "b", "a"]}, "once, not twice"),
        ({"kind": "trees", "trees": {}}, "trees name"),
        ({"kind": "trees", "trees": {"a": {"b": "c", "c": "b"}}}, "is a loop"),
        ({"kind": "trees", "trees": {"a": {"b": "x"}}}, "has no parent"),
        ({"kind": "trees", "trees": {"a": {"a": "b", "b": "a"}}}, "the origin has no parent"),
        ({"kind": "trees", "trees": {"a": ["b"]}}, "expected an object"),
    ],
)
def test_what_is_wrong_is_said(topology: Any, sentence: str) -> None:
    with pytest.raises(NotAllowed, match=sentence):
        checked_topology("replicationTopology", topology)


@pytest.mark.parametrize(
    ("topology", "sentence"),
    [
        ({"kind": "chain", "regions": ["a", "b", "c"]}, "leaves out d, e"),
        ({"kind": "star", "center": "x"}, "x is not among"),
        ({"kind": "trees", "trees": {"a": {"b": "a", "c": "b", "d": "b"}}}, "does not reach e"),
        ({"kind": "chain", "regions": [*REGIONS, "x"]}, "x is not among"),
    ],
)
def test_it_fits_the_regions_of_the_namespace(topology: Any, sentence: str) -> None:
    with pytest.raises(NotAllowed, match=sentence):
        check_members(checked_topology("replicationTopology", topology), REGIONS)
