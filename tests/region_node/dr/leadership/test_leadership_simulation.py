"""Two regions never confirm under overlapping leases, whatever is cut, stopped, late, or started twice; and each rule
that says so is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from geo_tests.sim.leadership import Confirmed, LeadershipWorld
from heliograph.model.configuration.leadership import Writer
from region_node.dr.leadership import leadership_changes, write_leases
from region_node.dr.leadership.write_gates import Gate, Writing
from region_node.dr.leadership.write_leases import WriteLeases
from tests.broken_rules import BrokenRules


def test_only_the_active_region_confirms() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        world = LeadershipWorld(seed)
        world.run()
        seen += world.counts
    assert seen["confirmed"] > 500 and seen["flips"] > 50 and seen["failed"] > 50 and seen["refused"] > 500, seen
    assert seen["confirmed before it was made"] > 500 and seen["confirmed unaware"] > 50, seen


def _mutants() -> Mapping[str, Callable[[BrokenRules], None]]:
    def counted_from_the_answer(patch: BrokenRules) -> None:
        patch.setattr(
            Writing, "on_renewed", lambda self, sent_at, _=0.0: setattr(self, "until", self.now() + self._usable_s)
        )

    def no_margin_for_drift(patch: BrokenRules) -> None:
        def born(
            self: Writing,
            region: str,
            *,
            ttl_s: float,
            drift: float,
            now: Any,
            wall: Any = None,
            url_of: Any = lambda _: "",
        ) -> None:
            original(self, region, ttl_s=ttl_s, drift=-0.2, now=now, wall=lambda: 0.0, url_of=url_of)

        original = Writing.__init__
        patch.setattr(Writing, "__init__", born)

    def checked_only_when_taken(patch: BrokenRules) -> None:
        patch.setattr(Gate, "_may_confirm", lambda self, epoch, life: True)

    def nobody_is_waited_for(patch: BrokenRules) -> None:
        patch.setattr(leadership_changes, "waits_for", lambda namespace, version, found: [])

    def a_drain_is_obeyed_at_once(patch: BrokenRules) -> None:
        patch.setattr(Gate, "obeyed", property(lambda self: self.version))

    def an_earlier_life_is_forgotten(patch: BrokenRules) -> None:
        patch.setattr(
            write_leases,
            "writer",
            lambda region, broker, lease: f"/writers/{region}/{broker}.0",
        )

    def nothing_is_read_after_registering(patch: BrokenRules) -> None:
        async def register(self: WriteLeases, told: Writer) -> None:
            key = f"/writers/{self._region}/{self._broker}.{self._lease}"
            since = await self._store.put(key, told.encode(), lease=self._lease)
            self.core.on_registered(since, [gate.namespace for gate in self.core.gates()])

        patch.setattr(WriteLeases, "_register", register)

    def nobody_has_to_have_heard(patch: BrokenRules) -> None:
        patch.setattr(leadership_changes, "unheard", lambda name, record, version, found: {})

    def a_region_is_its_brokers_that_have_a_lease(patch: BrokenRules) -> None:
        patch.setattr(WriteLeases, "_now", lambda self: self.core.obeyed(()))

    return {name: mutant for name, mutant in locals().items() if callable(mutant)}


@pytest.mark.parametrize("mutant", sorted(_mutants()))
def test_each_rule_is_needed(mutant: str, broken: BrokenRules) -> None:
    _mutants()[mutant](broken)
    broken.look(
        lambda seed: LeadershipWorld(seed).run(), (59, 29, *range(80)), Confirmed
    )  # a drift that is too large is rare
