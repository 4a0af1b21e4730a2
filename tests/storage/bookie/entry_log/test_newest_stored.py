"""What was stored last of an entry is what is read: from memory, from logs, after compaction of any of them, and after
a restart.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.bookie_frames import BookieCode, Kind, encode, split_blocks
from heliograph.wire.run import Run
from storage.bookie.entry_log.block_cutting import Covered
from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import SMALL, add, send

EAGER = replace(SMALL, compaction_bytes_per_s=64 << 10, major_live_max=1.0)
LEDGER = 7


def put(box: Box, first: int, count: int, version: int, *, recovery: bool = True) -> None:
    parts = [f"{first + i} version {version}".encode().ljust(20 + (first + i) % 90, b".") for i in range(count)]
    body = b"".join(encode_block(Run(parts, [len(part) for part in parts], time_ms=5), LEDGER, first))
    box.requests += 1
    kind = Kind.ADD_RECOVERY if recovery else Kind.ADD
    send(
        box.bookie,
        box.peer,
        encode(kind, body_bytes=len(body), number=count, ledger=LEDGER, entry=first, value=-1, request=box.requests)
        + body,
    )


async def versions(box: Box, first: int, last: int) -> dict[int, int]:
    """As a reader takes answers: the first block that holds an entry counts, and what is missing is asked for again."""
    found: dict[int, int] = {}
    at = first
    while at <= last:
        code, _, _, body = await box.ask(Kind.READ, LEDGER, first=at, last=last)
        if code in (BookieCode.NO_SUCH_ENTRY, BookieCode.NO_SUCH_LEDGER):
            at += 1
            continue
        assert code == BookieCode.OK
        for block in split_blocks(memoryview(body)):
            _, start, run = decode_block(block)
            assert start <= at < start + run.count
            for index in range(at - start, run.count):
                entry, _, version = bytes(run.parts[index]).rstrip(b".").split()
                assert int(entry) == start + index
                found[start + index] = int(version)
            at = start + run.count
    return {entry: version for entry, version in found.items() if entry <= last}


async def compacted(box: Box, number: int) -> None:
    box.bookie.dirs[0].compactor.rewrite(number)
    for _ in range(20):
        box.bookie.tick()
        await asyncio.sleep(0.02)
    assert number not in box.bookie.dirs[0].table.logs


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("flush", [False, True])
def test_an_entry_that_was_put_right_stays_right(flush: bool, compact: bool) -> None:
    with Simulation(seed=2) as sim:

        async def main() -> None:
            box = Box(sim)
            box.start(EAGER)
            put(box, 0, 20, 1, recovery=False)
            await asyncio.sleep(0.05)
            if flush:
                await box.flushed()
            put(box, 12, 1, 2)
            await asyncio.sleep(0.05)
            right = {entry: 2 if entry == 12 else 1 for entry in range(20)}
            assert await versions(box, 0, 19) == right, "a reader that comes along sees it"
            await box.flushed()
            if compact:
                await compacted(
                    box, min(box.bookie.dirs[0].table.logs)
                )  # the log with the wrong one is written anew: it is younger by its number
            assert await versions(box, 0, 19) == right
            box.restart()
            assert await versions(box, 0, 19) == right
            assert await versions(box, 12, 12) == {12: 2}

        sim.run(main(), limit_s=60)


@pytest.mark.parametrize("seed", range(25))
def test_any_history_shows_what_was_stored_last(seed: int) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            rng, box = sim.rng("history"), Box(sim)
            box.start(EAGER)
            model: dict[int, int] = {}
            for version in range(1, 60):
                send(box.bookie, box.peer, add(100 + version, 0, 1))
                match rng.randrange(9):
                    case 0:
                        await box.flushed()
                    case 1:
                        box.bookie.flush()  # goes on beside what follows
                    case 2 if numbers := list(box.bookie.dirs[0].table.logs):
                        box.bookie.dirs[0].compactor.rewrite(rng.choice(numbers))
                    case 3:
                        await asyncio.sleep(0.1)  # what was added is durable
                        box.journal.power_cut()
                        box.ledgers.power_cut()
                        box.start(EAGER)
                    case 4:
                        for dead in range(100, 100 + version):
                            if box.bookie.dirs[0].table.last.get(dead) is not None:
                                await box.ask(Kind.DELETE, dead)
                        box.bookie.dirs[0].compactor.run(
                            major=True
                        )  # several logs, each with something dead, become one
                    case _:
                        first, count = rng.randrange(60), rng.choice((1, 1, 2, 5, 20))
                        put(box, first, count, version)
                        model |= dict.fromkeys(range(first, first + count), version)
                if rng.random() < 0.5:
                    box.bookie.tick()
                    await asyncio.sleep(rng.choice((0.0, 0.01, 0.05)))
                if rng.random() < 0.3:
                    low = rng.randrange(60)
                    assert await versions(box, low, low + 20) == {
                        e: v for e, v in model.items() if low <= e <= low + 20
                    }
            assert await versions(box, 0, 100) == model

        sim.run(main(), limit_s=120)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_covered_is_a_set(seed: int) -> None:
    rng, covered, model = random.Random(seed), Covered(), set[int]()
    for _ in range(60):
        first, count = rng.randrange(100), rng.randrange(1, 20)
        wanted = set(range(first, first + count))
        left = covered.take(first, count)
        assert {e for low, high in left for e in range(low, high)} == wanted - model
        assert sum(high - low for low, high in left) == len(wanted - model)
        model |= wanted
