"""What a bookie acknowledges after it has refused a ledger for want of space."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.disk import UNLIMITED_BYTES
from geo_tests.sim.simulation import Simulation
from tests.known_faults.storage_worlds import Broken, promised
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import add, send

FILLER, LEDGER = 1, 9


async def refused(box: Box) -> int:
    """Sends until the bookie says that the ledger is lost; the last entry waits for a record. Returns how many went."""
    box.journal.capacity_bytes = box.journal.used_bytes()  # no room for another segment
    sent = 0
    while LEDGER not in box.peer.losses:
        box.bookie.commit()
        send(box.bookie, box.peer, add(LEDGER, sent, 10))
        send(box.bookie, box.peer, add(LEDGER, sent + 10, 1), commit=False)
        sent += 11
        await asyncio.sleep(0.02)
        assert sent < 1000, "never refused: the case is none"
    return sent


@pytest.mark.xfail(
    strict=True,
    raises=Broken,
    reason="an acknowledgement of what came behind a refused entry covers that entry too, which is not stored",
)
def test_no_acknowledgement_covers_what_was_refused() -> None:
    """An acknowledgement through an entry says that the entry and all before it are durable.

    A record that found no room is refused, an entry of the same ledger that waits for the next record is stored once
    there is room, and its acknowledgement, being cumulative, speaks for the refused ones too. Right: behind a refusal
    nothing of the ledger is acknowledged any more on that connection, or only what lies before it.
    """
    with Simulation(2) as sim:

        async def main() -> None:
            box = Box(sim)
            for first in range(0, 20, 10):
                send(box.bookie, box.peer, add(FILLER, first, 10))
                await asyncio.sleep(0.02)
            sent = await refused(box)
            box.journal.capacity_bytes = UNLIMITED_BYTES
            for _ in range(20):
                box.bookie.tick()
                box.bookie.commit()
                await asyncio.sleep(0.05)
            through = box.peer.acks.get(LEDGER, -1)
            box.restart()  # the power goes
            there = await box.entries(LEDGER, 0, sent) if through >= 0 else {}
            missing = [entry for entry in range(through + 1) if entry not in there]
            promised(not missing, f"acknowledged through {through}, and of that {missing} are gone")

        sim.run(main(), limit_s=60)
