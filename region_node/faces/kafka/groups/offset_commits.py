"""Commits: offsets of all groups of a broker on their way to the metadata, one write at a time.

Is: what waits, runs of it, and who hears of which run. Isn't: how offsets are stored (`committed_offsets`), or who may
commit them.
Invariants: one write is under way; what comes meanwhile goes together with the next, so that a commit waits for two
writes at most, and a thousand members that commit at once cost a few writes; a commit is answered once the run that
holds it is durable; of two commits of one partition the later one counts. Where another broker has written meanwhile,
that run is halved until the group is alone, which is written chunk by chunk; what the other one has committed later
stays, and whoever waits for an older commit of that group tries again. A chunk that is too large is refused, and goes
with no write. Roles take turns: whose groups have least in a run is next.
Bounds: GROUPS_A_RUN groups, OPS_A_RUN chunks of them, and about BYTES_A_RUN in one write; the rest waits for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from heliograph.kv.metadata_store import MetadataStore, Put, check_ops
from heliograph.model.errors import HeliographError, NotAllowed, VersionConflict
from region_node.faces.kafka.groups.committed_offsets import Committed, Key, Row

GROUPS_A_RUN = 256
OPS_A_RUN = 500
BYTES_A_RUN = 2 << 20


class _Waiting:
    """Collects one group's rows of all commits that came since the last run, and who waits for them. `rest`: of which
    these are the first rows; who waits hears once that is written too.
    """

    __slots__ = ("committed", "ended", "failed", "rest", "rows", "waiters", "who")

    def __init__(self, committed: Committed, rows: dict[Key, Row], who: str, rest: _Waiting | None = None) -> None:
        self.committed, self.rows, self.who, self.rest = committed, rows, who, rest
        self.failed: HeliographError | None = None
        self.ended = False
        self.waiters: list[asyncio.Future[None]] = []

    def part(self, taken: _Taken) -> _Waiting:
        """What of it goes with a write: itself, where nothing is left behind that."""
        self.failed = self.failed or taken.refused
        left = {key: row for key, row in self.rows.items() if key not in taken.rows}
        if not left:
            self.rows = taken.written
            return self
        self.rows = left
        return _Waiting(self.committed, taken.written, self.who, self)

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


class _Taken:
    """Rows of one group that go with a write, their puts, and rows that no write can have: those of `rows` that are not
    among `written`.
    """

    __slots__ = ("puts", "refused", "rows", "written")

    def __init__(self) -> None:
        self.rows, self.written = dict[Key, Row](), dict[Key, Row]()
        self.puts: list[Put] = []
        self.refused: NotAllowed | None = None


class _Run:
    """Puts of some groups, which go with one write."""

    __slots__ = ("parts", "puts", "size_bytes")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.puts = self.size_bytes = 0

    def take(self, waiting: _Waiting) -> _Taken:
        """Takes the first of its rows that fit, those of one chunk at least where nothing is in it."""
        taken = _Taken()
        for put, rows in waiting.committed.puts(dict(islice(waiting.rows.items(), OPS_A_RUN))):
            size = len(put.key) + len(put.value)
            if self.size_bytes and (self.puts >= OPS_A_RUN or self.size_bytes + size > BYTES_A_RUN):
                break
            self.size_bytes += size
            taken.rows |= rows
            try:
                check_ops([put])
            except NotAllowed as error:
                taken.refused = error
            else:
                taken.written |= rows
                taken.puts.append(put)
                self.puts += 1
        return taken


Part = tuple[_Waiting, list[Put]]


class Commits:
    """Writes the committed offsets of one broker's groups. `writes`: how many writes it took, for `commits` commits."""

    def __init__(self, meta: MetadataStore, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._meta, self._spawn = meta, spawn
        self._waiting: dict[Committed, _Waiting] = {}
        self._order: dict[str, dict[Committed, None]] = {}
        """Whose groups wait, in the order in which they go on."""
        self._writing = False
        self.commits = self.writes = 0

    async def put(self, committed: Committed, rows: dict[Key, Row], who: str = "") -> None:
        """Returns once they are durable. who: whose group it is. Raises what the metadata raises."""
        waiting = self._waiting.get(committed)
        if waiting is None:
            waiting = _Waiting(committed, {}, who)
            self._add(waiting)
        waiting.rows.update(rows)
        waiter = asyncio.get_running_loop().create_future()
        waiting.waiters.append(waiter)
        self.commits += 1
        if not self._writing:
            self._writing = True
            self._spawn(self._write())
        await waiter

    def _add(self, waiting: _Waiting) -> None:
        self._waiting[waiting.committed] = waiting
        self._order.setdefault(waiting.who, {})[waiting.committed] = None

    def _remove(self, committed: Committed) -> _Waiting | None:
        waiting = self._waiting.pop(committed, None)
        if waiting is not None:
            groups = self._order.pop(waiting.who)  # behind all others
            del groups[committed]
            if groups:
                self._order[waiting.who] = groups
        return waiting

    async def _write(self) -> None:
        try:
            while self._waiting:
                run = self._next_run()
                try:
                    await self._write_run(run)
                finally:  # a waiter whose commit was not written hears of it, whatever happened
                    for waiting, _ in run:
                        if not waiting.ended:
                            waiting.end(HeliographError("offsets were not written"))
        finally:
            self._writing = False

    def _next_run(self) -> list[Part]:
        """What goes with the next write, and its puts: of a large group the first rows. Whoever has least in it is
        next.
        """
        run, rests = _Run(), list[_Waiting]()
        order = [(0, number, who) for number, who in enumerate(islice(self._order, GROUPS_A_RUN))]
        for _ in range(GROUPS_A_RUN):
            if not order:
                break
            spent, number, who = heappop(order)
            waiting, before = self._waiting[next(iter(self._order[who]))], run.size_bytes
            taken = run.take(waiting)
            if not taken.rows:
                break
            self._remove(waiting.committed)
            part = waiting.part(taken)
            if part is not waiting:
                rests.append(waiting)
            if taken.puts:
                run.parts.append((part, taken.puts))
            else:
                part.end()
            if who in self._order:
                heappush(order, (spent + run.size_bytes - before, number, who))
        for waiting in rests:  # others have their turn before
            self._add(waiting)
        return run.parts

    async def _write_run(self, run: list[Part]) -> None:
        """Where something of it is refused, half of it goes alone, and the other half, and so on."""
        if not run:
            return
        self.writes += 1
        try:
            version = await self._meta.txn([put for _, puts in run for put in puts])
        except (VersionConflict, NotAllowed):
            if len(run) == 1:
                await self._write_alone(run[0][0])
            else:
                await self._write_run(run[: len(run) // 2])
                await self._write_run(run[len(run) // 2 :])
        except HeliographError as error:
            for waiting, _ in run:
                waiting.end(error)
        else:
            for waiting, _ in run:
                waiting.committed.written(waiting.rows, version)
                waiting.end()

    async def _write_alone(self, waiting: _Waiting) -> None:
        self.writes += 1
        try:
            await waiting.committed.put(waiting.rows, over_later=False)
        except VersionConflict as error:
            waiting.end(error)
            if (older := self._remove(waiting.committed)) is not None:  # they have waited as long
                older.end(error)
        except HeliographError as error:
            waiting.end(error)
        else:
            waiting.end()
