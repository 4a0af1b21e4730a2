"""Refill: brings a block that a disk has spoilt from another copy.

Is: the shell that takes what the scrub and readers found bad, reads the entries from the other bookies, and stores them
here again. Isn't: the finding (`storage.bookie.entry_log.scrub`), or the copy of what a lost bookie held
(`storage.ledger.repair.ledger_repair`).
Invariants: nothing is taken for good before it is durable here; the spoilt block stays in its log until then, and goes
when that log is written anew; what no other copy has stays named as bad. An entry has the same content wherever it is,
so a block of an open ledger may be refilled as well.
Source: docs/protocols/storage.md, "Scrub".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from heliograph.model.errors import DiskFailed, HeliographError
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.disk import Buffer
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from heliograph.runtime.throttle import Throttle
from heliograph.wire.block import encode_block
from heliograph.wire.bookie_frames import BookieCode, Kind, encode
from local_meta import keys
from storage.bookie.directories.ledger_dir import LedgerDir
from storage.bookie.entry_log.scrub import Spot
from storage.bookie.serving.bookie import Bookie
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import read_entries
from storage.ledger.repair.ledger_repair import READ_BYTES

_AGAIN_S = 60.0
"""Before what could not be brought is tried again."""
_BYTES_PER_S = 8 << 20


class Refill:
    """One bookie's. context: made when the first block is missing, as most bookies never need it."""

    def __init__(self, bookie: Bookie, context: Callable[[], Awaitable[LedgerContext]]) -> None:
        self._bookie, self._make = bookie, context
        self._context: LedgerContext | None = None
        self._throttle = Throttle(_BYTES_PER_S)
        self.refilled_blocks = self.refilled_bytes = 0
        self.trouble = ""
        """Why the last block that was tried could not be brought; "" where it was."""
        self._wake = asyncio.Event()
        self._tasks = TaskSet("the refill of bad blocks has ended")
        for one in bookie.dirs:
            one.scrubber.on_bad = self._wake.set

    def start(self) -> None:
        self._tasks.spawn(every(self._pause_s, self.once, wake=self._wake))

    async def stop(self) -> None:
        await self._tasks.close()

    def _pause_s(self) -> float | None:
        return _AGAIN_S if any(one.scrubber.bad for one in self._bookie.dirs) else None

    async def once(self) -> None:
        """Tries to bring every block that is known to be bad."""
        for one in self._bookie.dirs:
            for place in sorted(one.scrubber.bad):
                if one.gone or place not in one.scrubber.bad:
                    continue
                try:
                    await self._bring(one, place)
                    self.trouble = ""
                except HeliographError as error:
                    self.trouble = f"entry {place[1]}:{place[2]}: {error}"

    async def _bring(self, one: LedgerDir, place: Spot) -> None:
        number, ledger, first = place
        if ledger < 0:  # the index of a log: what is not in memory of it is made again of its blocks
            one.compactor.rewrite(number)
            return
        count = await _count_at(one, place)
        if not count:
            return
        if self._context is None:
            self._context = await self._make()
        stored = await self._context.meta.get(keys.ledger(ledger))
        if stored is None:
            return  # garbage collection takes it
        metadata = LedgerMetadata.decode(stored[0])
        at, size = first, 0
        while at < first + count:
            if self._bookie.bookie_id not in metadata.write_set(at):
                return  # surplus
            runs = await read_entries(self._context, metadata, at, first + count - 1, READ_BYTES)
            for start, run in runs:
                await self._throttle.take(run.size_bytes)
                await self._store(ledger, start, run.count, b"".join(encode_block(run, ledger, start)))
                at, size = start + run.count, size + run.size_bytes
        self.refilled_blocks += 1
        self.refilled_bytes += size
        one.refilled(place)

    async def _store(self, ledger: int, first: int, count: int, block: bytes) -> None:
        """Durable when it returns. Raises DiskFailed."""
        peer = _Store()
        frame = (
            encode(Kind.ADD_RECOVERY, body_bytes=len(block), number=count, ledger=ledger, entry=first, value=-1) + block
        )
        self._bookie.on_frames(memoryview(frame), [len(frame)], peer)
        self._bookie.commit()
        await peer.finished


class _Store:
    """A `Peer` that waits for its one answer."""

    def __init__(self) -> None:
        self.refused: dict[int, int] = {}
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def acked(self, ledger: int, writer: int, through: int) -> None: ...

    def flush(self) -> None: ...

    def lost(self, ledger: int, writer: int, code: BookieCode, text: str) -> None: ...

    def answer(self, request: int, code: BookieCode, entry: int, value: int, body: Sequence[Buffer]) -> None:
        if self.finished.done():
            return
        if code == BookieCode.OK:
            self.finished.set_result(None)
        else:
            self.finished.set_exception(DiskFailed(b"".join(body).decode(errors="replace")))

    def resume(self) -> None: ...


async def _count_at(one: LedgerDir, place: Spot) -> int:
    """0 also where nobody can tell now: it is tried again."""
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(count: int | None, _error: BaseException | None) -> None:
        if not told.done():
            told.set_result(count or 0)

    one.count_at(place, done)
    return await told
