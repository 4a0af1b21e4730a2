"""Rot and sectors that cannot be read, anywhere in a bookie's directories, at rest and while it runs: an entry is
answered as it was sent, or not at all, and never said to be absent.

The newest records of a journal are left out: one that is bad there cannot be told from one that was never finished.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from geo_tests.sim.disk import SECTOR_BYTES, Platter
from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import HeliographError
from heliograph.wire.bookie_frames import BookieCode, Kind
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import add, content, entries_of, send

ENTRIES = {1: 60, 2: 40, 3: 25}
NEWEST = 9
WELL, UNKNOWN = "well", "unknown"


async def filled(box: Box) -> None:
    """Three ledgers: of each some in two entry logs, some in the journal alone; behind them, of another one, records
    that say that these were synced.
    """
    sent = dict.fromkeys(ENTRIES, 0)
    for share in (3, 2, 1):
        for ledger, count in ENTRIES.items():
            stop = count - (count * (share - 1)) // 3
            while sent[ledger] < stop:
                some = min(7, stop - sent[ledger])
                send(box.bookie, box.peer, add(ledger, sent[ledger], some))
                sent[ledger] += some
            await asyncio.sleep(0.05)
        if share > 1:
            await box.flushed()
    for entry in range(4):
        send(box.bookie, box.peer, add(NEWEST, entry, 1))
        await asyncio.sleep(0.05)
    assert box.peer.acks == {**{ledger: count - 1 for ledger, count in ENTRIES.items()}, NEWEST: 3}


async def looked_at(box: Box) -> Counter[str]:
    """Every entry of the three, alone and then in one read; fails where one is wrong, or said to be absent."""
    found: Counter[str] = Counter()
    for ledger, count in ENTRIES.items():
        for first, last in [*((entry, entry) for entry in range(count)), (0, count - 1)]:
            code, _, _, body = await box.ask(Kind.READ, ledger, first=first, last=last)
            if code != BookieCode.OK:
                assert code == BookieCode.UNKNOWN, f"{ledger}:{first} was acknowledged, and the answer is {code.name}"
                found[UNKNOWN] += 1
                continue
            entries = entries_of(body, ledger)
            assert first in entries
            for entry, data in entries.items():
                assert data == content(ledger, entry), f"{ledger}:{entry} is not what was sent"
            found[WELL] += 1
    return found


def somewhere(box: Box, rng: random.Random) -> tuple[Platter, str, int]:
    """A byte of what is stored: any file alike, but for what a journal has not written yet, and its newest records."""
    while True:
        platter = rng.choice((box.journal, box.ledgers))
        name = rng.choice(platter.names())
        data = platter.content(name)
        end = len(data)
        if platter is box.journal and (newest := data.find(content(NEWEST, 0))) >= 0:
            end = newest - SECTOR_BYTES
        if (
            name.startswith("segment")
            and content(NEWEST, 0) not in data
            and not any(
                content(ledger, 0) in data or content(ledger, count - 1) in data for ledger, count in ENTRIES.items()
            )
        ):
            continue
        if end > 0:
            return platter, name, rng.randrange(end)


def run(seed: int, *, unreadable: bool, at_rest: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    with Simulation(seed) as sim:

        async def main() -> None:
            box, rng = Box(sim), sim.rng("rot")
            await filled(box)
            assert set(await looked_at(box)) == {WELL}
            platter, name, at = somewhere(box, rng)
            if unreadable:
                start = at - at % SECTOR_BYTES
                platter.unreadable[name] = range(start, start + SECTOR_BYTES)
            else:
                platter.flip_bit(name, at, rng.randrange(8))
            found[name.split("-")[0]] += 1
            try:
                if at_rest:
                    box.restart()
            except (HeliographError, OSError):
                found["refused"] += 1
                return
            found.update(await looked_at(box))

        sim.run(main(), limit_s=600)
    return found


@pytest.mark.parametrize("at_rest", [False, True])
@pytest.mark.parametrize("unreadable", [False, True])
def test_no_entry_is_wrong_or_said_to_be_absent(unreadable: bool, at_rest: bool) -> None:
    found: Counter[str] = Counter()
    for seed in range(40):
        found += run(seed, unreadable=unreadable, at_rest=at_rest)
    assert found[WELL] and found[UNKNOWN], found
    assert found["refused"] <= found["cookie"], "whatever else is bad, what is left is served"
    assert {"log", "segment", "checkpoint", "cookie"} <= set(found), found
