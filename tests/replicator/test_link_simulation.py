"""The link's rules, simulated: they hold for many seeds, and each rule, broken, is found.

A mutant is a subclass with one rule taken out; the test demands that the world finds it, so that the simulation cannot
go blind unseen.
"""

from __future__ import annotations

import pytest

from heliograph.model.coordinates import Origin
from heliograph.model.positions import Position
from replicator.dedup.version_vector import Intake, RunVerdict
from replicator.receiving.receiver_stream import ReceiverStream
from replicator.sending.link_sender import LinkSender
from tests.broken_rules import BrokenRules, fitting
from tests.replicator.link_world import World
from tests.seeds import LINKS

BLOCK = 20


@pytest.mark.parametrize("block", range(LINKS // BLOCK))
def test_the_rules_hold(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            World(seed).run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


class NoPreviousCheck(Intake):
    """Accepts whatever is above the prefix."""

    __slots__ = ()

    def judge(self, origin: Origin, previous: Position, last: Position) -> RunVerdict:
        verdict = super().judge(origin, previous, last)
        return RunVerdict.ACCEPT if verdict is RunVerdict.GAP else verdict


class NoRollback(Intake):
    """Keeps *submitted* where it was after a failed append."""

    __slots__ = ()

    def rollback(self) -> None:
        pass


class EarlyReceipt(ReceiverStream):
    """Acknowledges what is submitted, not what is durable."""

    def _durable(self, origin: Origin) -> Position:
        return self.log.state.intake.submitted(origin)


class CursorOutOfOrder(LinkSender):
    """Any receipt moves the cursor to the end of what was sent."""

    def receipt(self, origin: Origin, through: Position) -> None:
        super().receipt(origin, through)
        if len(self._steps):
            self.mark, self.done = self._steps.last.end, self._steps.last.totals
            self._clear()


class NoPrevious(World):
    intake_class = NoPreviousCheck


class Unrolled(World):
    intake_class = NoRollback


class Early(World):
    stream_class = EarlyReceipt


class OutOfOrder(World):
    sender_class = CursorOutOfOrder


class ZombieSkip(World):
    """A SKIP goes out before it is stored: a former owner may issue one."""

    skip_waits = False


@pytest.mark.parametrize("mutant", [NoPrevious, Unrolled, Early, OutOfOrder, ZombieSkip])
def test_a_broken_rule_is_found(mutant: type[World], broken: BrokenRules) -> None:
    fitting(mutant)
    broken.look(lambda seed: mutant(seed).run(heal_steps=4000), range(120))
