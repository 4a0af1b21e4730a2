"""SystemDisk: one directory of this machine, and the thread that writes and syncs in it.

Is: the production form of `heliograph.runtime.disk.Disk`. Isn't: retries, formats, caching.
Invariants: work runs in the order given; what waits together shares one write (where contiguous) and one sync a file;
callbacks of one batch reach the event loop in one wake-up, and the thread is at the next batch before they run; after a
failed write or sync a file refuses everything.
The thread starts with the first submitted work, so a directory that only serves start-up reads costs none.

A write whose offset and size are multiples of 4096 goes around the page cache (O_DIRECT) where the file system can:
journals and entry logs are written once and seldom read, and fresh pages of the cache cost several times the write
itself. Large pieces that are read once go the same way (`pread_around`), into memory that is used again. Everything
else is buffered.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from sys import getrefcount
from typing import Any

from heliograph.model.buffer_reuse import UNSHARED
from heliograph.runtime.disk import Buffer, Disk, File, T

FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""What a process keeps is for its own user alone."""
_IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
_BATCH_BYTES_MAX = 16 << 20
_PAGE = 4096
_STAGING_BYTES = 1 << 20
_PIECE_STEP, _PIECES_BYTES_MAX = 1 << 17, 16 << 20
_AT_ONCE_BYTES_MAX = 16 << 10
_FAST_SYNC_S, _STALL_S = 0.004, 0.05
_TRUSTED_SYNCS, _SLOW_COSTS, _SLOW_COSTS_A_S = 64, 4, 500
"""A disk is trusted to be fast after so many fast syncs. Each slow one takes away what that many have brought, or more
where it took longer, so one of which a fifth is a little slow stays trusted; a stall takes everything. So a disk that
turns slow holds up the event loop for 0.18 s altogether, or for one stall.
"""
_Done = Callable[[BaseException | None], None]
_Sync = tuple["SystemFile", int, Sequence[Buffer], _Done]
_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]
_Stop = tuple[()]
_Work = _Sync | _Job | _Stop


class _Staging:
    """Memory at a page boundary, as direct writes want it; taken with the first of them, shared by the files of one
    disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Returns the bytes written: all of `buffers`, or fewer where the system wrote fewer."""
        with self._lock:
            if self._memory is None:
                self._memory = mmap.mmap(-1, _STAGING_BYTES)
            whole = memoryview(self._memory)
            filled = total = 0
            for buffer in buffers:
                rest = memoryview(buffer)
                while rest:
                    part = rest[: _STAGING_BYTES - filled]
                    whole[filled : filled + len(part)] = part
                    filled += len(part)
                    rest = rest[len(part) :]
                    if filled == _STAGING_BYTES:
                        written = os.pwrite(descriptor, whole, offset + total)
                        total += written
                        if written < filled:
                            return total
                        filled = 0
            return total + os.pwrite(descriptor, whole[:filled], offset + total) if filled else total


class _Pages:
    """Memory at page boundaries for direct reads, shared by the files of one disk: a piece is free again when no view
    of it is left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[mmap.mmap] = []
        self._kept_bytes = 0

    def take(self, size_bytes: int) -> mmap.mmap:
        """At least so much, and at most a quarter more; what it holds is not cleared."""
        with self._lock:
            for piece in self._kept:
                if size_bytes <= len(piece) <= size_bytes + size_bytes // 4 and getrefcount(piece) == UNSHARED:
                    return piece
            made = mmap.mmap(-1, -(-size_bytes // _PIECE_STEP) * _PIECE_STEP)
            while self._kept and self._kept_bytes + len(made) > _PIECES_BYTES_MAX:
                self._kept_bytes -= len(self._kept.pop(0))  # whoever has views of it still keeps it alive
            self._kept.append(made)
            self._kept_bytes += len(made)
            return made


class SystemFile:
    """One open file. `failure`: the first error of a write or sync; final."""

    __slots__ = ("_around", "_direct", "_fd", "_pages", "_path", "_staging", "failure", "name")

    def __init__(self, path: Path, flags: int, staging: _Staging, pages: _Pages) -> None:
        self._fd = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        self._path, self._staging, self._pages = path, staging, pages
        self._direct: int | None = None
        self._around: int | None = None
        """Further descriptors, for direct writes and direct reads; -1 where the file system has none."""
        self.name = path.name
        self.failure: OSError | None = None

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes all; a short write (a signal, a full disk) is continued until it fails or is whole."""
        self._check()
        size = sum(map(len, buffers))
        try:
            written = self._write_direct(buffers, offset) if size and not (size | offset) % _PAGE else 0
            if written < size:
                self._write_buffered(_behind(buffers, written) if written else buffers, offset + written)
        except (OSError, MemoryError) as error:
            raise self._failed(error) from None
        return size

    def _write_direct(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Returns what it wrote; the rest is for the buffered way, which also tells what is wrong."""
        if self._direct is None:
            try:
                self._direct = os.open(self._path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                self._direct = -1
        if self._direct < 0:
            return 0
        try:
            return self._staging.write(self._direct, buffers, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            os.close(self._direct)
            self._direct = -1
            return 0

    def _write_buffered(self, buffers: Sequence[Buffer], offset: int) -> None:
        for start in range(0, len(buffers), _IOV_MAX):
            group = buffers[start : start + _IOV_MAX] if len(buffers) > _IOV_MAX else buffers
            size = sum(map(len, group))
            written = os.pwritev(self._fd, group, offset)
            while written < size:
                written += os.pwritev(self._fd, _behind(group, written), offset + written)
            offset += size

    def pread(self, size_bytes: int, offset: int) -> bytes:
        data = os.pread(self._fd, size_bytes, offset)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size_bytes and (data := os.pread(self._fd, size_bytes - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_around(self, size_bytes: int, offset: int) -> Buffer:
        if self._around is None:
            try:
                self._around = os.open(self._path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                self._around = -1
        if self._around < 0:
            return self.pread(size_bytes, offset)
        skipped = offset % _PAGE
        wanted = skipped + size_bytes
        whole = memoryview(self._pages.take(-(-wanted // _PAGE) * _PAGE))
        try:
            got = os.preadv(self._around, [whole[: -(-wanted // _PAGE) * _PAGE]], offset - skipped)
        except OSError as error:
            if error.errno == errno.EINVAL:
                os.close(self._around)
                self._around = -1
            got = 0
        if got < wanted:  # the end of the file, a signal, or an error that the buffered way tells too
            return self.pread(size_bytes, offset)
        return whole[skipped:wanted]

    def expect_scattered(self) -> None:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def expect_sequence(self) -> None:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_NORMAL)

    def datasync(self) -> None:
        self._check()
        try:
            os.fdatasync(self._fd)
        except (OSError, MemoryError) as error:
            raise self._failed(error) from None

    def truncate(self, size_bytes: int) -> None:
        self._check()
        os.ftruncate(self._fd, size_bytes)

    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for descriptor in (self._direct, self._around):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._direct = self._around = -1

    def _failed(self, error: OSError | MemoryError) -> OSError:
        """Keeps it. One of Python's own memory is as the system's ENOMEM: whoever waits for the disk hears of it."""
        self.failure = error if isinstance(error, OSError) else OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return self.failure

    def _check(self) -> None:
        if self.failure is not None:
            raise OSError(
                self.failure.errno, f"{self.name}: failed before and is not used again: {self.failure.strerror}"
            )


class SystemDisk(Disk):
    """One directory, made where it is missing. Several SystemDisks may share a directory: each has a thread of its own.

    Where it cannot be made (a dead disk, no rights) the first use says so: whoever has other directories goes on
    without it.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._missing: OSError | None = None
        try:
            self.directory.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            self._missing = error
        self._staging, self._pages = _Staging(), _Pages()
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._given = self._finished = 0
        """Work for the thread: the one is counted by the event loop, the other by the thread."""
        self._trust = 0
        """That it is fast: `_TRUSTED_SYNCS` are enough."""

    def open(self, name: str, *, create: bool = False) -> File:
        self._check()
        return SystemFile(self.directory / name, os.O_RDWR | (os.O_CREAT if create else 0), self._staging, self._pages)

    def names(self) -> list[str]:
        self._check()
        with os.scandir(self.directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())

    def rename(self, old: str, new: str) -> None:
        os.replace(self.directory / old, self.directory / new)

    def remove(self, name: str) -> None:
        os.unlink(self.directory / name)

    def sync_directory(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        self._check()
        state = os.statvfs(self.directory)
        return state.f_bavail * state.f_frsize

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._put((job, done))

    def sync_at_once(self, file: File, offset: int, buffers: Sequence[Buffer]) -> bool:
        """True only where the thread is idle, the record small, and the disk has answered fast often enough: two
        wake-ups less for it.
        """
        assert isinstance(file, SystemFile)
        if self._trust < _TRUSTED_SYNCS or self._given != self._finished or sum(map(len, buffers)) > _AT_ONCE_BYTES_MAX:
            return False
        begun = time.perf_counter()
        file.pwritev(buffers, offset)
        file.datasync()
        self.note_sync(time.perf_counter() - begun)
        return True

    def submit_sync(self, file: File, offset: int, buffers: Sequence[Buffer], done: _Done) -> None:
        assert isinstance(file, SystemFile)
        self._put((file, offset, buffers, done))

    def close(self) -> None:
        if self._thread is not None and not self._closed:
            self._queue.put(())
            self._thread.join()
        self._closed = True

    def _check(self) -> None:
        if self._missing is not None:
            raise OSError(self._missing.errno, self._missing.strerror, str(self.directory))

    def _put(self, work: _Work) -> None:
        assert not self._closed, "the disk is closed"
        self._given += 1
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name=f"disk {self.directory.name}", daemon=True)
            self._thread.start()
        self._queue.put(work)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        work: _Work | None = self._queue.get()
        while work:
            if len(work) == 2:
                self._run_job(work)
                work = None
            else:
                batch, work = self._gather(work)
                self._run_syncs(batch)
                del batch  # what it wrote is not to be held while waiting
            if work is None:
                work = self._queue.get()

    def _gather(self, first: _Sync) -> tuple[list[_Sync], _Work | None]:
        """The syncs that wait together, and the other work that was met behind them (None: nothing)."""
        batch = [first]
        size = sum(map(len, first[2]))
        while size < _BATCH_BYTES_MAX:
            try:
                work = self._queue.get_nowait()
            except Empty:
                break
            if len(work) != 4:
                return batch, work
            batch.append(work)
            size += sum(map(len, work[2]))
        return batch, None

    def _run_job(self, work: _Job) -> None:
        job, done = work
        result, failure = None, None
        try:
            result = job()
        except Exception as error:  # whoever waits for the job gets it
            failure = error
        self._finished += 1
        self._post([partial(done, result, failure)])

    def _run_syncs(self, batch: list[_Sync]) -> None:
        """Writes all, then syncs each file once."""
        index = 0
        files: list[SystemFile] = []
        while index < len(batch):
            file, offset, buffers, _ = batch[index]
            index += 1
            end = offset + sum(map(len, buffers))
            while index < len(batch) and batch[index][0] is file and batch[index][1] == end:
                more = batch[index][2]
                buffers = [*buffers, *more]
                end += sum(map(len, more))
                index += 1
            if file not in files:
                files.append(file)
            try:
                file.pwritev(buffers, offset)
            except OSError:
                pass  # the file keeps its failure
        errors: list[OSError | None] = []
        begun = time.perf_counter()
        for file in files:
            try:
                file.datasync()
            except OSError as error:
                errors.append(error)
            else:
                errors.append(None)
        self.note_sync(time.perf_counter() - begun)
        self._finished += len(batch)
        self._post([partial(done, errors[files.index(file)]) for file, _, _, done in batch])

    def note_sync(self, took_s: float) -> None:
        """What the trust in this disk rests on; called from either thread."""
        if took_s < _FAST_SYNC_S:
            self._trust = min(self._trust + 1, 2 * _TRUSTED_SYNCS)
        else:
            self._trust = (
                max(0, self._trust - max(_SLOW_COSTS, int(_SLOW_COSTS_A_S * took_s))) if took_s < _STALL_S else 0
            )

    def _post(self, callbacks: list[Callable[[], None]]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_call_all, callbacks)
        except RuntimeError:
            pass  # the loop was closed meanwhile: nobody waits any more


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for index, callback in enumerate(callbacks):
        try:
            callback()
        except BaseException:
            if index + 1 < len(callbacks):  # the others still get theirs, behind whoever handles this one
                asyncio.get_running_loop().call_soon(_call_all, callbacks[index + 1 :])
            raise


def _behind(buffers: Sequence[Buffer], skip: int) -> list[Buffer]:
    """What is left of `buffers` behind their first `skip` bytes."""
    left: list[Buffer] = []
    for buffer in buffers:
        if skip >= len(buffer):
            skip -= len(buffer)
        else:
            left.append(memoryview(buffer)[skip:] if skip else buffer)
            skip = 0
    return left
