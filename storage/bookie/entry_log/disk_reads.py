"""CatchUp: the reads from disk of one ledger directory, a slice at a time, behind what its journal is about to make
durable.

Is: the order in which slices of reads go to the thread that reads, and when one has to wait. Isn't: which blocks answer
a read (`block_reads`), or a thread.
Invariants: while records come one slice is under way at most, so a sync that comes now waits for no more than that;
none is begun while a record is on its way to the journal, except one behind each record that became durable: publishers
wait for a slice at most, and readers for a record. A journal that stands still holds no reader up for longer than two
ticks. Reads take turns, slice by slice. `behind` runs what must not pass a read that was begun before. While nobody
publishes slices are longer, the thread has the next one before it is done with one, and the disk brings what a long
read wants next
meanwhile: a record that comes then waits for that too, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from heliograph.runtime.disk import Buffer
from storage.bookie.entry_log.block_reads import Piece, fetch
from storage.bookie.entry_log.open_logs import OpenLogs

SLICE_BYTES = (256 << 10) - 64
"""Unless a single block is larger. About as much as a disk of today reads in the time that it takes to sync."""

_QUIET_UNDER_WAY = _QUIET_TIMES = 2
"""Then so many slices are under way, each at most so many times as large: what is done once a slice is half as often in
the way. Two of them, with the heads of their frames, fill one slab of whoever reads (`heliograph.wire.bookie_frames`):
one that was larger would be moved to memory of its own each second time.
"""
_QUIET_SLICES = 8
"""After so many slices without a record nobody publishes."""

T = TypeVar("T")
Done = Callable[[int, list[Buffer], BaseException | None], None]
Part = Callable[[list[Buffer]], None]


class _Read:
    __slots__ = ("asked", "at", "blocks", "done", "ended", "number", "part", "pieces")

    def __init__(self, number: int, pieces: Sequence[Piece], done: Done, part: Part | None) -> None:
        self.number, self.pieces, self.done, self.part = number, pieces, done, part
        self.asked = self.at = 0
        """How many pieces the thread was told to read, and how many it has read."""
        self.ended = False
        self.blocks: list[Buffer] = []


class _Load:
    """Something small that is read by a job of its own."""

    __slots__ = ("job", "loaded", "number")

    def __init__(self, number: int, job: Callable[[], T], loaded: Callable[[T | None, BaseException | None], None]):
        self.number = number
        self.job: Callable[[], object] = job
        self.loaded: Callable[[Any, BaseException | None], None] = loaded


class CatchUp:
    """pending: whether a record is on its way to the journal. Only the event loop calls this."""

    def __init__(self, files: OpenLogs, pending: Callable[[], bool], *, slice_bytes: int = SLICE_BYTES) -> None:
        self._files, self._disk, self._pending, self._slice_bytes = files, files.disk, pending, slice_bytes
        self._waiting: deque[_Read | _Load] = deque()  # with nothing under way
        self._begun: deque[_Read] = deque()  # with a slice under way, and more to read
        self._open: dict[int, None] = {}  # numbers of reads that are not answered, ascending
        self._behind: deque[tuple[int, Callable[[], None]]] = deque()
        self._last = self._handed = 0
        self._under_way = 0
        self._held = self._may = self._stuck = self._closed = False
        self._since_record = _QUIET_SLICES
        self.yields = 0
        """Slices that waited for a record."""

    def start(self, pieces: Sequence[Piece], done: Done, part: Part | None = None) -> None:
        """done(pieces that were read, blocks, error): all, in order, or those before the first that could not be read.

        part: takes the blocks of each slice but the last while the next one is read; `done` gets what is left then.
        """
        number, self._handed = self._handed or self.hold(), 0
        self._waiting.append(_Read(number, pieces, done, part))
        self._next()

    def load(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Reads something small by `job`, in its turn."""
        self._waiting.append(_Load(self.hold(), job, done))
        self._next()

    def hold(self) -> int:
        """Until this is given to `release`, what is `behind` waits."""
        self._last += 1
        self._open[self._last] = None
        return self._last

    def release(self, hold: int, last: Callable[[], None]) -> None:
        """Calls `last`; where that starts a read, what is behind waits for this one, too."""
        self._handed = hold
        last()
        if self._handed == hold and not self._closed:
            del self._open[hold]
            self._release()
        self._handed = 0

    def behind(self, job: Callable[[], None]) -> None:
        """Runs `job` on the thread that reads, once no read is left that was begun before; never after `close`."""
        self._behind.append((self._last, job))
        self._release()

    def on_durable(self) -> None:
        """A record of the journal is, or it failed."""
        self._stuck = False
        self._since_record = 0
        if self._held:
            self._held, self._may = False, True
            self._next()

    def tick(self) -> None:
        """About once a second. A record that has been on its way since the last call stands still: reads wait for it no
        more.
        """
        if self._held and self._stuck:
            self._held = False
            self._next()
        elif self._held:
            self._stuck = True

    def close(self) -> None:
        """What is under way ends without an answer."""
        self._closed = True
        self._waiting.clear()
        self._begun.clear()
        self._behind.clear()

    def _next(self) -> None:
        """Gives the thread what it may have now."""
        while (self._waiting or self._begun) and not self._held and not self._closed:
            if self._under_way >= (_QUIET_UNDER_WAY if self._since_record >= _QUIET_SLICES else 1):
                return
            if self._pending() and not self._may and not self._stuck:
                self._held = True
                self.yields += 1
                return
            self._may = False
            self._begin((self._waiting or self._begun).popleft())

    def _begin(self, read: _Read | _Load) -> None:
        """The next slice of that one."""
        if isinstance(read, _Load):
            self._since_record += 1
            self._under_way += 1
            self._disk.submit(read.job, partial(self._loaded, read))
            return
        at = end = read.asked
        size = 0
        quiet = self._since_record >= _QUIET_SLICES
        while end < len(read.pieces):
            piece = read.pieces[end]
            more = piece[2] if isinstance(piece, tuple) else 0
            if end > at and (size + more > _QUIET_TIMES * self._slice_bytes if quiet else size >= self._slice_bytes):
                break
            size += more
            end += 1
        read.asked = end
        if end < len(read.pieces):
            self._begun.append(read)
        self._since_record += 1
        # what lies behind is wanted next, also behind the end of a long read; who looks at one place goes elsewhere
        goes_on = self._since_record > _QUIET_SLICES and (at > 0 or end < len(read.pieces))
        self._under_way += 1
        self._disk.submit(
            partial(fetch, self._files, read.pieces[at:end], goes_on), partial(self._fetched, read, end - at)
        )

    def _fetched(self, read: _Read, wanted: int, blocks: list[Buffer] | None, error: BaseException | None) -> None:
        self._under_way -= 1
        if self._closed:
            return
        if read.ended:  # a slice before this one was bad
            self._next()
            return
        if read in self._begun:
            self._begun.remove(read)
            self._waiting.append(read)
        blocks = blocks or []
        read.blocks += blocks
        read.at += len(blocks)
        if read.at < len(read.pieces) and len(blocks) == wanted:
            self._next()
            if read.part is not None:
                ready, read.blocks = read.blocks, []
                read.part(ready)
        else:
            read.ended = True
            if read.asked < len(read.pieces):
                self._waiting.remove(read)
            del self._open[read.number]
            self._release()
            self._next()
            read.done(read.at, read.blocks, error)

    def _loaded(self, read: _Load, result: object, error: BaseException | None) -> None:
        self._under_way -= 1
        if self._closed:
            return
        del self._open[read.number]
        self._release()
        self._next()
        read.loaded(result, error)

    def _release(self) -> None:
        oldest = next(iter(self._open), self._last + 1)
        while self._behind and self._behind[0][0] < oldest and not self._closed:
            self._disk.submit(self._behind.popleft()[1], _ignore)


def _ignore(_result: None, _error: BaseException | None) -> None:
    """Whoever asked does not wait for it."""
