"""Chains, stars, rings, and meshes that change under load, simulated: nothing is lost, doubled, or out of order; and
each rule, broken, is found.
"""

from __future__ import annotations

import pytest

from heliograph.model.coordinates import Origin
from heliograph.model.errors import HeliographError
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from replicator.log.routing_trees import Tree
from replicator.sending.link_sender import LinkSender
from tests.broken_rules import BrokenRules, fitting
from tests.replicator.tree_world import TreeWorld
from tests.seeds import TREES

BLOCK = 23


@pytest.mark.parametrize("block", range(TREES // BLOCK))
def test_the_rules_hold(block: int) -> None:
    changes = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            world = TreeWorld(seed)
            world.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        changes += world.changes
    assert changes > BLOCK, "trees change, or nothing is shown"


class SwitchedAtOnce(LinkSender):
    """The new parent sends before the target has what comes by the tree before."""

    def ready(self, origin: Origin) -> bool:
        return True


class NotForOthers(LinkSender):
    """A region gets only what is meant for itself: what is meant for those behind it does not reach it."""

    def _addressed(self, origin: Origin, run: Run, reach: frozenset[str], now: float, aborted: bool) -> Run | None:
        return super()._addressed(origin, run, self._only, now, aborted)


class FiltersTold(LinkSender):
    """What was not meant for a region and those behind it is not passed on as such."""

    def _filter(self, origin: Origin, through: Position, now: float) -> None:
        pass


class MarkJumps(LinkSender):
    """The cursor passes what another region delivers."""

    def _advance(self) -> None:
        super()._advance()
        if len(self._steps) and self._steps.last.held:
            self.mark = max(self.mark, self._steps.last.end)


class OldParentGoesOn(LinkSender):
    """A parent goes on behind the record that gives the target another one."""

    def _is_parent(self, origin: Origin, tree: Tree | None, at: Position) -> bool:
        book = self.state.trees
        return super()._is_parent(origin, tree, at) or (
            origin in book and book.uses(origin, self.region, self.target, (-1, -1))
        )


def world_of(broken: type) -> type[TreeWorld]:
    return type(broken.__name__, (TreeWorld,), {"sender_class": broken})


@pytest.mark.parametrize("mutant", [SwitchedAtOnce, NotForOthers, FiltersTold, MarkJumps, OldParentGoesOn])
def test_a_broken_rule_is_found(mutant: type[LinkSender], broken: BrokenRules) -> None:
    """By an invariant, or by what the target says to nonsense."""
    world = world_of(fitting(mutant))
    broken.look(lambda seed: world(seed).run(heal_steps=4000), range(60), AssertionError, HeliographError)
