"""LogStorage on a simulated disk, and one entry after another in it."""

from __future__ import annotations

import asyncio
import random

from geo_tests.sim.disk import Platter
from geo_tests.sim.loop import SimLoop
from heliograph.raft.disk.log_storage import LogStorage, Recovered
from heliograph.raft.messages import COMMAND

SEGMENT = 4096 + (16 << 10)


def platter(seed: int | str = 0) -> Platter:
    return Platter(SimLoop(), random.Random(seed))


def opened(on: Platter) -> tuple[LogStorage, Recovered]:
    storage = LogStorage(on.disk(), segment_bytes=SEGMENT)
    return storage, storage.recover()


def run(on: Platter) -> None:
    """Lets the disk do everything that waits."""

    async def nothing() -> None:
        await asyncio.sleep(60)

    on.loop.run(nothing(), limit_s=120)


def write(
    storage: LogStorage,
    first: int,
    *data: bytes,
    term: int = 1,
    hard_state: tuple[int, str] | None = None,
    commit: int = 0,
) -> list[object]:
    done: list[object] = []
    storage.write(hard_state, None, first, [(term, COMMAND, each) for each in data], commit, done.append)
    return done
