"""Which region delivers to which: the policies `replicationRoutes` (who gets what was published where) and
`replicationTopology` (by which way).

Is: both as values: routes (source -> targets; without them everyone to everyone), and of a topology the tree of each
origin: target -> parent, the region that delivers to it. Isn't: when a tree takes effect
(`replicator.log.routing_trees`).
Invariants: the tree of an origin leads to every member, each by one way: nothing loops, nothing comes twice. A region
that a topology does not name, or whose parent is no member any more, gets what it would have got by the nearest region
before that is one; in the end the origin delivers itself.
Source: docs/protocols/links.md, "Topologies".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heliograph.model.configuration.policy_values import described
from heliograph.model.errors import NotAllowed

Routes = Mapping[str, Sequence[str]]
Topology = Mapping[str, Any]
"""As `checked_topology` returns it: {"kind": "mesh" | "star" | "chain" | "ring" | "trees", "center" | "regions" |
"trees": ...}.
"""
Parents = dict[str, str]
"""Target -> the region that delivers to it what the origin published."""

KINDS = ("mesh", "star", "chain", "ring", "trees")


def delivers(routes: Routes | None, source: str, target: str) -> bool:
    """Whether `target` gets what `source` published."""
    return source != target and (routes is None or target in routes.get(source, ()))


def targets(routes: Routes | None, source: str, regions: Iterable[str]) -> list[str]:
    """Returns those of the topic's regions that get what `source` published."""
    return [region for region in regions if delivers(routes, source, region)]


def tree(topology: Topology | None, origin: str, members: Iterable[str]) -> Parents:
    """By which way `members` (without the origin) get what was published in `origin`."""
    wanted = [region for region in members if region != origin]
    named = _named(topology, origin)
    known = {origin, *wanted}
    found: Parents = {}
    for region in wanted:
        parent = named.get(region, origin)
        while parent not in known:  # it has left: the nearest before it
            parent = named.get(parent, origin)
        found[region] = parent
    return found


def relays(topology: Topology | None, origin: str, target: str) -> list[str]:
    """Those by way of which `target` gets what was published in `origin`, the nearest first; each of them may be its
    parent where those before it have left.
    """
    named, found = _named(topology, origin), list[str]()
    parent = named.get(target, origin)
    while parent not in (origin, target, *found):
        found.append(parent)
        parent = named.get(parent, origin)
    return found


def _named(topology: Topology | None, origin: str) -> Mapping[str, str]:
    if topology is None or topology["kind"] == "mesh":
        return {}
    if topology["kind"] == "star":
        center = topology["center"]
        return {} if center == origin else _Everyone(center, {center: origin})
    if topology["kind"] == "trees":
        chosen: Mapping[str, str] = topology["trees"].get(origin, {})
        return chosen
    regions = topology["regions"]
    if origin not in regions:
        return {}
    count, at = len(regions), regions.index(origin)
    if topology["kind"] == "chain":
        up = {regions[i]: regions[i - 1] for i in range(at + 1, count)}
        return up | {regions[i]: regions[i + 1] for i in range(at)}
    forth = count // 2  # a ring: the shorter way round
    found = {regions[(at + step) % count]: regions[(at + step - 1) % count] for step in range(1, forth + 1)}
    return found | {regions[(at - step) % count]: regions[(at - step + 1) % count] for step in range(1, count - forth)}


class _Everyone(dict[str, str]):
    """One parent for every region but those named."""

    def __init__(self, parent: str, others: Mapping[str, str]) -> None:
        super().__init__(others)
        self._parent = parent

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, self._parent)


@described(type="object", properties={"kind": {"type": "string", "enum": list(KINDS)}}, required=["kind"])
def checked_topology(name: str, value: Any) -> dict[str, Any]:
    """The value of the policy as it is stored. Raises NotAllowed with a sentence."""
    if not isinstance(value, dict) or value.get("kind") not in KINDS:
        raise NotAllowed(f'{name}: expected {{"kind": one of {", ".join(KINDS)}, ...}}, not {value!r:.200}')
    kind = value["kind"]
    if kind == "mesh":
        return {"kind": kind}
    if kind == "star":
        center = value.get("center")
        if not isinstance(center, str) or not center:
            raise NotAllowed(f'{name}: a star names the region in its middle: {{"kind": "star", "center": "eu"}}')
        return {"kind": kind, "center": center}
    if kind == "trees":
        return {"kind": kind, "trees": _checked_trees(name, value.get("trees"))}
    regions = value.get("regions")
    least = 2 if kind == "chain" else 3
    if (
        not isinstance(regions, list)
        or not all(isinstance(region, str) and region for region in regions)
        or len(regions) < least
    ):
        raise NotAllowed(f"{name}: a {kind} lists its regions in their order, at least {least} of them")
    if len(set(regions)) < len(regions):
        raise NotAllowed(f"{name}: a region stands in a {kind} once, not twice: {', '.join(regions)}")
    return {"kind": kind, "regions": list(regions)}


def _checked_trees(name: str, trees: Any) -> dict[str, Parents]:
    if not isinstance(trees, dict) or not trees:
        raise NotAllowed(
            f'{name}: trees name, for an origin, the parent of each region: {{"us": {{"eu": "us", "ap": "eu"}}}}'
        )
    for origin, parents in trees.items():
        if not isinstance(parents, dict) or not all(
            isinstance(region, str) for pair in parents.items() for region in pair
        ):
            raise NotAllowed(f"{name}.{origin}: expected an object of region -> parent")
        if origin in parents:
            raise NotAllowed(f"{name}.{origin}: the origin has no parent")
        for region in parents:
            way = [region]
            while (parent := parents.get(way[-1])) is not None and parent not in way:
                way.append(parent)
            if parent is not None:
                raise NotAllowed(
                    f"{name}.{origin}: {' <- '.join([*way, parent])} is a loop: nothing from {origin} reaches it"
                )
            if way[-1] != origin:
                raise NotAllowed(
                    f"{name}.{origin}: {way[-1]} is the parent of {way[-2]}, and has no parent: nothing from {origin} "
                    "reaches it"
                )
    return {origin: dict(parents) for origin, parents in trees.items()}


def check_members(topology: Topology, regions: Sequence[str]) -> None:
    """Whether the topology fits the regions of a namespace or topic. Raises NotAllowed where it names another one, or
    leaves one out.
    """
    kind = topology["kind"]
    if kind == "mesh":
        return
    if kind == "trees":
        named = {region for origin, parents in topology["trees"].items() for region in (origin, *parents)}
        for origin, parents in topology["trees"].items():
            if left := [region for region in regions if region != origin and region not in parents]:
                raise NotAllowed(
                    f"the tree of {origin} does not reach {', '.join(left)}: give "
                    f"{'it' if len(left) == 1 else 'each'} a parent"
                )
    else:
        named = {topology["center"]} if kind == "star" else set(topology["regions"])
        if kind != "star" and (left := [region for region in regions if region not in named]):
            raise NotAllowed(f"the {kind} leaves out {', '.join(left)}: list every region of the namespace")
    if strange := sorted(named - set(regions)):
        raise NotAllowed(f"{', '.join(strange)} is not among the regions of the namespace: {', '.join(regions)}")
