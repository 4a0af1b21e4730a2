"""Whole instances with an active-passive namespace, moved and failed over under load and faults: seeds that hold, and a
rule that is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from geo_tests.sim.passive_world import run_passive
from geo_tests.sim.world import WorldSettings
from region_node.dr.leadership.write_gates import Gate
from tests.broken_rules import BrokenRules
from tests.geo_tests.sim.passive_settings import SETTINGS, SMALL
from tests.seeds import PASSIVE_WORLDS, SMALL_PASSIVE_WORLDS

BLOCK = 28


def runs(seeds: range, settings: WorldSettings) -> Counter[str]:
    """What happened in them, all together."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        verdict, counts = run_passive(seed, settings)
        assert verdict.messages == settings.messages * len(settings.regions)
        seen += counts
        seen["audits"] += verdict.audited == len(settings.regions) * settings.topics
        seen["repaired"] += sum("repaired" in kind for kind in verdict.kinds)
        seen["reconfigured"] += sum(kind in ("unload", "change topology", "leave") for kind in verdict.kinds)
        seen["stopped"] += sum(kind.startswith("stop ") for kind in verdict.kinds)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", (30596,))
def test_an_entry_too_many_is_found_where_what_lay_before_it_was_trimmed(seed: int) -> None:
    assert "extra, found and repaired" in run_passive(seed)[0].kinds


@pytest.mark.slow
def test_no_message_is_lost_or_doubled_and_one_region_confirms() -> None:
    seen = runs(range(PASSIVE_WORLDS), SETTINGS)
    assert seen["confirmed"] > 40 and seen["failed over"] > 2, seen


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SMALL_PASSIVE_WORLDS, BLOCK))
def test_so_it_is_with_regions_of_one_broker_each(first: int) -> None:
    seen = runs(range(first, first + BLOCK), SMALL)
    assert seen["audits"] == BLOCK and seen["repaired"] > BLOCK // 16 and seen["reconfigured"] > 5, seen
    assert (
        seen["confirmed"] > 100
        and seen["failed over"] > 5
        and seen["switched over"] > 1
        and seen["failed back"] > 5
        and seen["stopped"] > 5
    ), seen


WILD = replace(SETTINGS, faults=10, kinds=("cut_region_off", "cut_broker_from_bookie", "slow_disk", "kill_two_bookies"))


STOPPED = replace(
    SMALL, regions=("us", "eu"), faults=8, kinds=("stop_broker", "stop_bookie", "slow_disk", "cut_region_off")
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "seeds"), [(WILD, (67, 124, 144, 159)), (STOPPED, range(8, 40))], ids=("cut-off", "stopped")
)
def test_a_confirmation_that_is_checked_only_when_the_message_is_taken_is_found(
    settings: WorldSettings, seeds: Sequence[int], broken: BrokenRules
) -> None:
    """The other rules of leases have their mutants in tests/region_node/dr/leadership/test_leadership_simulation.py,
    those of aliases in tests/replicator/dedup/test_aliases.py.
    """
    broken.setattr(Gate, "_may_confirm", lambda self, epoch, life: True)
    broken.look(lambda seed: run_passive(seed, settings), seeds, match="is the active region")
