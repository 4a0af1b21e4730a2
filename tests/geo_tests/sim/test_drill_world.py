"""Drills in whole instances, under load and faults: they leave the namespace alone, go on whoever dies, and tell the
truth once everything is well.
"""

from __future__ import annotations

from collections import Counter

import pytest

from geo_tests.sim.drill_world import DrillWorld
from geo_tests.sim.loop import collect
from region_node.dr.operations.drill import Drill
from region_node.dr.operations.operation import Operation
from tests.broken_rules import BrokenRules
from tests.geo_tests.sim.passive_settings import SMALL

SEEDS = 2


def run(seed: int) -> Counter[str]:
    try:
        world = DrillWorld(seed, SMALL)
        verdict = world.run()
        assert verdict.messages == SMALL.messages * len(SMALL.regions)
        return world.counts
    finally:
        collect()


@pytest.mark.slow
def test_drills_leave_the_namespace_alone_and_their_reports_say_what_is() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += run(seed)
    assert seen["drilled"] >= SEEDS and seen["failed over"] + seen["switched over"] > 0 and seen["confirmed"] > 0, seen


@pytest.mark.slow
def test_a_drill_that_touches_the_namespace_itself_is_found(broken: BrokenRules) -> None:
    async def ends_both(drill: Drill, op: Operation) -> Operation:
        await drill._conductor.switching.end(op.namespace)
        return op

    broken.setattr(Drill, "clean", ends_both)
    with broken.found(match="changes sim/ns itself"):
        run(0)
