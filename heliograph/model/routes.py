"""Which region delivers to which: the policy `replicationRoutes`, source -> targets. Without it every region delivers to every other one.

Is: the one question of both ends of a link. Isn't: passing on: what was published in a region is delivered by that region alone, so a region that
no route leads to from there does not get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Routes = Mapping[str, Sequence[str]]


def delivers(routes: Routes | None, source: str, target: str) -> bool:
    """Whether `source` sends to `target` what it published."""
    return source != target and (routes is None or target in routes.get(source, ()))


def targets(routes: Routes | None, source: str, regions: Iterable[str]) -> list[str]:
    """Of the regions of a topic, those that `source` sends to."""
    return [region for region in regions if delivers(routes, source, region)]
