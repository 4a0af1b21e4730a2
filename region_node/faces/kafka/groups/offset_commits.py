"""Commits: offsets of all groups of a broker on their way to the metadata, one write at a time.

Is: what waits, runs of it, and who hears of which run. Isn't: how offsets are stored (`committed_offsets`), or who may
commit them.
Invariants: one write is under way; what comes meanwhile goes together with the next, so that a commit waits for two
writes at most, and a thousand members that commit at once cost a few writes; a commit is answered once the run that
holds it is durable; of two commits of one partition the later one counts. Where another broker has written meanwhile,
each group of that run is written by itself.
Bounds: GROUPS_A_RUN groups, and chunks of them, in one write; the rest waits for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.kv.metadata_store import MetadataStore, Op
from heliograph.model.errors import HeliographError, VersionConflict
from region_node.faces.kafka.groups.committed_offsets import Committed, Key, Row

GROUPS_A_RUN = 256


class _Waiting:
    """Collects one group's rows of all commits that came since the last run, and who waits for them."""

    __slots__ = ("committed", "rows", "waiters")

    def __init__(self, committed: Committed) -> None:
        self.committed = committed
        self.rows: dict[Key, Row] = {}
        self.waiters: list[asyncio.Future[None]] = []

    def end(self, error: HeliographError | None = None) -> None:
        for waiter in self.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)


class Commits:
    """Writes the committed offsets of one broker's groups. `writes`: how many writes it took, for `commits` commits."""

    def __init__(self, meta: MetadataStore, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._meta, self._spawn = meta, spawn
        self._waiting: dict[Committed, _Waiting] = {}
        self._writing = False
        self.commits = self.writes = 0

    async def put(self, committed: Committed, rows: dict[Key, Row]) -> None:
        """Returns once they are durable. Raises what the metadata raises."""
        waiting = self._waiting.get(committed)
        if waiting is None:
            waiting = self._waiting[committed] = _Waiting(committed)
        waiting.rows.update(rows)
        waiter = asyncio.get_running_loop().create_future()
        waiting.waiters.append(waiter)
        self.commits += 1
        if not self._writing:
            self._writing = True
            self._spawn(self._write())
        await waiter

    async def _write(self) -> None:
        try:
            while self._waiting:
                run = [self._waiting.pop(committed) for committed in list(self._waiting)[:GROUPS_A_RUN]]
                try:
                    await self._write_run(run)
                finally:  # a waiter whose commit was not written hears of it, whatever happened
                    for waiting in run:
                        waiting.end(HeliographError("offsets were not written"))
        finally:
            self._writing = False

    async def _write_run(self, run: list[_Waiting]) -> None:
        ops: list[Op] = []
        for waiting in run:
            ops += waiting.committed.puts(waiting.rows)
        self.writes += 1
        try:
            version = await self._meta.txn(ops)
        except VersionConflict:
            for waiting in run:
                await self._write_alone(waiting)
        except HeliographError as error:
            for waiting in run:
                waiting.end(error)
        else:
            for waiting in run:
                waiting.committed.written(waiting.rows, version)
                waiting.end()

    async def _write_alone(self, waiting: _Waiting) -> None:
        self.writes += 1
        try:
            await waiting.committed.put(waiting.rows)
        except HeliographError as error:
            waiting.end(error)
        else:
            waiting.end()
