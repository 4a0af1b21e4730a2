"""A bookie that comes back empty under its old id.

Its disks did not mount, were replaced, or lay on a volume that went with its machine. Had it only them to tell who it
is, it would say of everything that it had acknowledged that it never was.
"""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.checkers import Violation
from geo_tests.sim.ledgers import LedgerWorld
from geo_tests.sim.loop import collect
from geo_tests.sim.premises import Owner, Premises, on_premises, promised
from geo_tests.sim.simulation import Machine
from heliograph.model.errors import BookieUnavailable, HeliographError
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.ledger.recovery.ledger_recovery import recover_ledger
from storage.ledger.repair.autorecovery import AutoRecovery

ENTRIES = list("abcdef")


async def stored(premises: Premises) -> tuple[Owner, int, list[str]]:
    """An owner whose open ledger has six confirmed entries; that ledger, and the two bookies that hold it."""
    owner = await premises.owner("first")
    ledger = await owner.open()
    await owner.append(ledger, *ENTRIES)
    number = ledger.ledgers()[-1].ledger
    metadata = await owner.do(lambda: ledger_metadata(owner.context, number))
    return owner, number, list(metadata.fragments[-1][1])


async def lights_out(premises: Premises) -> tuple[Owner, int, str]:
    """The owner dies and both holders lose power; one is up again, empty, the other will be in three seconds.

    Returns who comes next, the ledger, and the bookie that has it.
    """
    first, number, (whole, emptied) = await stored(premises)
    first.machine.power_cut()
    premises.bookie(whole).power_cut()
    premises.empty(premises.bookie(emptied))
    premises.bookie(emptied).start()
    premises.sim.loop.call_later(3.0, premises.bookie(whole).revive, context=premises.sim.network.neutral)
    await asyncio.sleep(0.5)
    return await premises.owner("second"), number, whole


def test_a_bookie_that_lost_its_disks_denies_nothing_that_it_acknowledged() -> None:
    """A bookie says that something is absent only where that is true; who cannot know says "unknown".

    That this id has lived before is known outside of its disks, and until somebody begins a new life of it on purpose
    it answers as one in limbo.
    """

    async def work(premises: Premises) -> None:
        owner, number, (_, emptied) = await stored(premises)
        premises.empty(premises.bookie(emptied))
        premises.bookie(emptied).start()
        await asyncio.sleep(5.0)
        said = ""
        try:
            await owner.do(lambda: owner.context.pool.client(emptied).read(number, 0, 5, 1 << 20))
        except BookieUnavailable:
            pass  # it does not know
        except HeliographError as error:
            said = repr(error)
        promised(not said, f"it acknowledged six entries, and says {said}")

    on_premises(work)


def test_recovery_waits_for_the_bookie_that_has_the_entries() -> None:
    """An entry that the ack quorum holds survives the loss of all of its copies but one.

    With a write quorum of two a single explicit absence is enough for recovery, and the bookie that lost its disks is
    up a moment before the other. It says nothing, and the other one is waited for.
    """

    async def work(premises: Premises) -> None:
        second, number, whole = await lights_out(premises)
        closed = await second.do(lambda: recover_ledger(second.context, number))
        promised(
            closed.last_entry == len(ENTRIES) - 1, f"closed at {closed.last_entry}, and {whole} has all six entries"
        )

    on_premises(work)


def test_a_topic_survives_the_loss_of_one_bookies_disks() -> None:
    """What was acknowledged stays readable where one of two copies is left.

    The next owner takes the topic over while only the bookie without its disks is up. The topic is opened once the
    other one is back; were its last ledger taken for an empty one, it would be deleted on both.
    """

    async def work(premises: Premises) -> None:
        second, _, _ = await lights_out(premises)
        again = await second.open()
        await asyncio.sleep(5.0)
        found = await second.read(again)
        promised(found == ENTRIES, f"of six entries there are {found}")

    on_premises(work)


@pytest.mark.slow
def test_two_disks_replaced_two_minutes_apart_cost_nothing() -> None:
    """The copies of a bookie that lost its disks are made again, as soon as those of one that stays away.

    It comes back within a second, in limbo: after a minute it counts as lost, though it is there, and after two there
    are two copies of everything, wherever.
    """

    async def work(premises: Premises) -> None:
        owner, number, holders = await stored(premises)
        await owner.do(lambda: recover_ledger(owner.context, number))
        recovery = await owner.do(lambda: audited(owner))
        await asyncio.sleep(30.0)  # it checks one ledger at once
        for emptied in holders:
            premises.empty(premises.bookie(emptied))
            premises.bookie(emptied).start()
            await asyncio.sleep(115.0)
        await owner.do(recovery.stop)
        third = await premises.owner("third")
        lost = ""
        try:
            found = await third.read(await third.open())
        except HeliographError as error:
            found, lost = [], repr(error)
        promised(found == ENTRIES, f"of six entries there are {found}: {lost}")

    on_premises(work)


async def audited(owner: Owner) -> AutoRecovery:
    """Auto-recovery as it is set where nobody sets it."""
    recovery = AutoRecovery(owner.context, "auditor", Premises.settings.auto_recovery)
    await recovery.start()
    return recovery


class EmptyingWorld(LedgerWorld):
    """The world of storage with one more fault, once in a run: power goes everywhere, and one bookie, the first to be
    back, has empty disks.

    Its data is what may be lost at an ack quorum of two, so no other bookie goes for good in the end.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.emptied: Machine | None = None
        self.rng.sample = lambda population, k: []  # type: ignore[method-assign, assignment, misc]

    def _strike(self) -> None:
        if self.emptied is not None or not all(machine.running for machine in self.bookies):
            super()._strike()
            return
        self.emptied = self.rng.choice(self.bookies)
        for machine in self.bookies:
            machine.power_cut()
            late_s = 0.0 if machine is self.emptied else self.rng.uniform(0.5, 2.0)
            self.sim.loop.call_later(late_s, self._heal, machine)
        self.emptied.platters().clear()
        self.sim.loop.call_later(0.05, self._take_over)

    async def _bookie(self, machine: Machine) -> None:
        try:
            await super()._bookie(machine)
        except Violation as error:
            if machine is not self.emptied or "limbo" not in str(error):
                raise  # where it knows that it was emptied, it is as one that is away


@pytest.mark.slow
@pytest.mark.parametrize("seed", [14, 16])
def test_no_confirmed_entry_goes_with_the_disks_of_one_bookie(seed: int) -> None:
    """A confirmed entry survives the loss of as many bookies as the ack quorum less one, whatever else is struck.

    All of the world's rules hold with this fault as with the others.
    """
    try:
        EmptyingWorld(seed).run()
    finally:
        collect()
