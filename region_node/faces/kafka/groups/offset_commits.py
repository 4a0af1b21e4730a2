"""Commits: offsets of all groups of a broker on their way to the metadata, one write at a time.

Is: what waits, runs of it, and who hears of which run. Isn't: how offsets are stored (`committed_offsets`), or who may
commit them.
Invariants: one write is under way; what comes meanwhile goes together with the next, so that a commit waits for two
writes at most, and a thousand members that commit at once cost a few writes; a commit is answered once the run that
holds it is durable; of two commits of one partition the later one counts. Where another broker has written meanwhile,
or the metadata refuses what is too large, each group of that run is written by itself, chunk by chunk; what the other
one has committed later stays, and whoever waits for an older commit of that group tries again.
Bounds: GROUPS_A_RUN groups, OPS_A_RUN chunks of them, and about BYTES_A_RUN in one write; the rest waits for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

from heliograph.kv.metadata_store import MetadataStore, Put
from heliograph.model.errors import HeliographError, NotAllowed, VersionConflict
from region_node.faces.kafka.groups.committed_offsets import Committed, Key, Row

GROUPS_A_RUN = 256
OPS_A_RUN = 500
BYTES_A_RUN = 2 << 20


class _Waiting:
    """Collects one group's rows of all commits that came since the last run, and who waits for them. `rest`: of which
    these are the first rows; who waits hears once that is written too.
    """

    __slots__ = ("committed", "ended", "failed", "rest", "rows", "waiters")

    def __init__(self, committed: Committed, rows: dict[Key, Row], rest: _Waiting | None = None) -> None:
        self.committed, self.rows, self.rest = committed, rows, rest
        self.failed: HeliographError | None = None
        self.ended = False
        self.waiters: list[asyncio.Future[None]] = []

    def end(self, error: HeliographError | None = None) -> None:
        self.ended, error = True, self.failed or error
        if self.rest is not None:
            self.rest.failed = self.rest.failed or error
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
            waiting = self._waiting[committed] = _Waiting(committed, {})
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
                run, ops = self._next_run()
                try:
                    await self._write_run(run, ops)
                finally:  # a waiter whose commit was not written hears of it, whatever happened
                    for waiting in run:
                        if not waiting.ended:
                            waiting.end(HeliographError("offsets were not written"))
        finally:
            self._writing = False

    def _next_run(self) -> tuple[list[_Waiting], list[Put]]:
        """What goes with the next write, and its puts: one group at least, of a large one the first rows."""
        run: list[_Waiting] = []
        ops: list[Put] = []
        size = 0
        for committed, waiting in list(islice(self._waiting.items(), GROUPS_A_RUN)):
            rows = dict(islice(waiting.rows.items(), OPS_A_RUN))
            puts = committed.puts(rows)
            size += sum(len(put.key) + len(put.value) for put in puts)
            if run and (len(ops) + len(puts) > OPS_A_RUN or size > BYTES_A_RUN):
                break
            ops += puts
            del self._waiting[committed]
            if len(rows) < len(waiting.rows):  # others have their turn before the rest
                waiting.rows = {key: row for key, row in waiting.rows.items() if key not in rows}
                self._waiting[committed], waiting = waiting, _Waiting(committed, rows, waiting)
            run.append(waiting)
        return run, ops

    async def _write_run(self, run: list[_Waiting], ops: list[Put]) -> None:
        self.writes += 1
        try:
            version = await self._meta.txn(ops)
        except (VersionConflict, NotAllowed):
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
            await waiting.committed.put(waiting.rows, over_later=False)
        except VersionConflict as error:
            waiting.end(error)
            if (older := self._waiting.pop(waiting.committed, None)) is not None:  # they have waited as long
                older.end(error)
        except HeliographError as error:
            waiting.end(error)
        else:
            waiting.end()
