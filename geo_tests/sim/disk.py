"""SimDisk: the port `heliograph.runtime.disk.Disk` on virtual time, with power cuts, torn and reordered writes, slow
and failing syncs, full disks.

Is: a `Platter` (what one directory holds, across crashes) and `SimDisk` (the platter as one life of a process sees it).
Isn't: a file system with folders, or memory mapping.

    platter = Platter(loop, random.Random(7))  # or machine.platter("journal") of geo_tests.sim.simulation
    disk = platter.disk()  # give this to the code under test
    platter.cut_after(12)  # the 12th mutating operation from now on is the last: the machine loses power in it
    platter.on_power_cut = machine.power_cut  # what that means for the process; without it only ProcessDied is raised
    platter.power_cut()  # now: unsynced writes are lost, torn, or kept, as the seed says
    disk = platter.disk()  # the next life; the old object is dead: every call raises ProcessDied
    platter.sync_s = (0.2, 2.0)  # a slow disk: seconds a sync, low and high
    platter.fail_syncs = True  # EIO from now on; what was unsynced never gets durable, as on Linux
    platter.capacity_bytes = 10_000  # ENOSPC
    platter.flip_bit("journal-1", offset=100, bit=3)
    platter.unreadable["log-1"] = range(512, 1024)  # EIO for whoever reads one of these bytes

Rules: the port's own. In detail: unsynced writes are cut at sectors of 512 bytes of the file; after a power cut each
sector holds either what was synced or, per write, what was written, and by the seed all, none, a prefix, or any subset
of them is there. A file's size is what the surviving sectors need; holes are zeros. Creating, renaming, and removing
survive as a prefix of their order. A process that is merely killed loses nothing: the kernel holds the rest.
"""

from __future__ import annotations

import contextvars
import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from geo_tests.sim.loop import ProcessDied, SimLoop

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

SECTOR_BYTES = 512
UNLIMITED_BYTES = 1 << 40


class _Inode:
    """One file's bytes: `now` as readers see them, `durable` as of the last sync, and the writes between."""

    __slots__ = ("durable", "now", "number", "unsynced")

    def __init__(self, number: int) -> None:
        self.number = number
        self.now, self.durable = bytearray(), bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []  # (offset, data), or (size, None) for a truncation

    def write(self, data: bytes, offset: int) -> None:
        _put(self.now, data, offset)
        self.unsynced.append((offset, data))

    def truncate(self, size: int) -> None:
        _resize(self.now, size)
        self.unsynced.append((size, None))

    def sync(self) -> None:
        for offset, data in self.unsynced:
            if data is None:
                _resize(self.durable, offset)
            else:
                _put(self.durable, data, offset)
        self.unsynced.clear()


class Platter:
    """What one directory holds, through all lives of the process that uses it."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.sync_s = (0.0003, 0.0015)
        self.job_s = (0.00005, 0.0003)
        self.capacity_bytes = UNLIMITED_BYTES
        self.fail_syncs = False
        self.unreadable: dict[str, range] = {}
        """File -> bytes of which none can be read."""
        self.open_files = 0
        self.open_files_max = 1 << 30
        """With so many a further one is refused."""
        self.refusal: Exception = OSError(errno.EMFILE, "too many open files (simulated)")
        self.fast = False
        """Whether lone records are synced from within the call."""
        self.on_power_cut: Callable[[], None] | None = None
        self.on_operation: Callable[[str, str], None] | None = None  # (operation, file name), before each mutating one
        self.operations = 0
        self.syncs = 0
        self._cut_at = 0
        self._inodes = 0
        self._now: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._unsynced: list[tuple[str, str, _Inode]] = []  # create/remove/rename: (name gone, name there, inode)
        self._disks: list[SimDisk] = []

    # -- for tests ------------------------------------------------------------------------------------------------

    def disk(self) -> SimDisk:
        """The platter for one life of a process."""
        disk = SimDisk(self)
        self._disks.append(disk)
        return disk

    def unplug(self) -> None:
        """The process is gone (killed or stopped hard): its disk objects are dead; the kernel keeps what was
        written.
        """
        for disk in self._disks:
            disk.dead = True
        self._disks.clear()
        self.open_files = 0

    def power_cut(self) -> None:
        """The process is gone, and what was not synced is lost in whole, in part, or not at all."""
        self.unplug()
        self._cut_at = 0
        mode = self.rng.randrange(4)  # 0: nothing unsynced survives, 1: all, 2: prefixes, 3: any sectors
        names = dict(self._durable)
        survived = {0: 0, 1: len(self._unsynced)}.get(mode, self.rng.randrange(len(self._unsynced) + 1))
        for gone, there, inode in self._unsynced[:survived]:
            _move(names, gone, there, inode)
        for inode in {i.number: i for i in [*names.values(), *self._now.values()]}.values():
            self._tear(inode, mode)
        self._now, self._durable = names, dict(names)
        self._unsynced.clear()

    def cut_after(self, operations: int) -> None:
        """The machine loses power in the n-th mutating operation from now on (1 = the next one): it may or may not have
        been done.
        """
        self._cut_at = self.operations + operations

    def cancel_cut(self) -> None:
        """Takes `cut_after` back."""
        self._cut_at = 0

    def flip_bit(self, name: str, offset: int, bit: int = 0) -> None:
        """Silent corruption, on the platter and in the cache."""
        for content in (self._now[name].now, self._now[name].durable):
            if offset < len(content):
                content[offset] ^= 1 << bit

    def image(self) -> dict[str, bytes]:
        """What a snapshot of the volume has: what is synced."""
        return {name: bytes(inode.durable) for name, inode in self._durable.items()}

    def put_back(self, image: dict[str, bytes]) -> None:
        """This, and nothing else, is there from now on; {}: an empty disk. Nobody may use the platter meanwhile."""
        self.unplug()
        self.unreadable.clear()
        self._unsynced.clear()
        self._now = {name: self.new_inode() for name in image}
        for name, inode in self._now.items():
            inode.now, inode.durable = bytearray(image[name]), bytearray(image[name])
        self._durable = dict(self._now)

    def content(self, name: str) -> bytes:
        return bytes(self._now[name].now)

    def names(self) -> list[str]:
        return sorted(self._now)

    def used_bytes(self) -> int:
        return sum(len(inode.now) for inode in self._now.values())

    def _tear(self, inode: _Inode, mode: int) -> None:
        rng = self.rng
        content = bytearray(inode.durable)
        kept = {0: 0, 1: len(inode.unsynced), 2: rng.randrange(len(inode.unsynced) + 1)}.get(mode, len(inode.unsynced))
        chance = 1.0 if mode != 3 else rng.choice((0.1, 0.5, 0.9))
        for position, (offset, data) in enumerate(inode.unsynced[:kept]):
            if data is None:
                if rng.random() < chance:
                    _resize(content, offset)
                continue
            last = mode == 2 and position == kept - 1  # the write during which power went may be torn
            at = 0
            while at < len(data):
                size = min(SECTOR_BYTES - (offset + at) % SECTOR_BYTES, len(data) - at)
                if (rng.random() < 0.5) if last else (chance == 1.0 or rng.random() < chance):
                    _put(content, data[at : at + size], offset + at)
                at += size
        inode.now, inode.durable, inode.unsynced = content, bytearray(content), []

    # -- for SimDisk and its files --------------------------------------------------------------------------------

    def operation(self, kind: str, name: str) -> bool:
        """Counts a mutating operation. Returns True where power goes in this one: the caller does it first if `rng`
        says so, then calls `die`.
        """
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation(kind, name)
        return self.operations == self._cut_at

    def die(self) -> None:
        if self.on_power_cut is not None:
            self.on_power_cut()
        if self._cut_at:
            self.power_cut()
        raise ProcessDied("the power went")

    def change(self, kind: str, name: str, action: Callable[[], T]) -> T:
        """Does one mutating operation, or dies in it."""
        if self.operation(kind, name):
            if self.rng.random() < 0.5:
                action()
            self.die()
        return action()

    def move(self, gone: str, there: str, inode: _Inode) -> None:
        _move(self._now, gone, there, inode)
        self._unsynced.append((gone, there, inode))

    def find(self, name: str) -> _Inode | None:
        return self._now.get(name)

    def new_inode(self) -> _Inode:
        self._inodes += 1
        return _Inode(self._inodes)

    def sync_names(self) -> None:
        self._check_sync()
        self._durable = dict(self._now)
        self._unsynced.clear()

    def sync(self, inode: _Inode) -> None:
        self.syncs += 1
        try:
            self._check_sync()
        except OSError:
            inode.unsynced.clear()  # the kernel marks the pages clean: a later sync succeeds without them
            raise
        inode.sync()

    def _check_sync(self) -> None:
        if self.fail_syncs:
            raise OSError(errno.EIO, "sync failed (simulated)")


class SimFile:
    """One open file. `failure`: the first error of a write or sync; final for this object."""

    def __init__(self, disk: SimDisk, name: str, inode: _Inode) -> None:
        self.disk, self.name, self.inode = disk, name, inode
        self.failure: OSError | None = None
        self._closed = False
        disk.platter.open_files += 1

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._check(writing=True)
        platter, data = self.disk.platter, b"".join(buffers)
        grown = offset + len(data) - len(self.inode.now)
        if (
            grown > 0
            and platter.capacity_bytes < UNLIMITED_BYTES
            and platter.used_bytes() + grown > platter.capacity_bytes
        ):
            self.failure = OSError(errno.ENOSPC, "no space left on device (simulated)")
            raise self.failure
        if data:
            platter.change("write", self.name, lambda: self.inode.write(data, offset))
        return len(data)

    def pread(self, size_bytes: int, offset: int) -> bytes:
        self._check()
        bad = self.disk.platter.unreadable.get(self.name, range(0))
        if bad.start < offset + size_bytes and offset < bad.stop:
            raise OSError(errno.EIO, "a sector cannot be read (simulated)", self.name)
        return bytes(self.inode.now[offset : offset + size_bytes])

    def pread_around(self, size_bytes: int, offset: int) -> bytes:
        return self.pread(size_bytes, offset)

    def expect_scattered(self) -> None:
        self._check()

    def expect_sequence(self) -> None:
        self._check()

    def datasync(self) -> None:
        self._check(writing=True)
        self.disk.syncs_in_job += 1
        try:
            self.disk.platter.change("sync", self.name, lambda: self.disk.platter.sync(self.inode))
        except OSError as error:
            self.failure = error
            raise

    def truncate(self, size_bytes: int) -> None:
        self._check(writing=True)
        self.disk.platter.change("truncate", self.name, lambda: self.inode.truncate(size_bytes))

    def size_bytes(self) -> int:
        self._check()
        return len(self.inode.now)

    def close(self) -> None:
        if not (self._closed or self.disk.dead):
            self.disk.platter.open_files -= 1
        self._closed = True

    def _check(self, *, writing: bool = False) -> None:
        if self.disk.dead:
            raise ProcessDied("this process is dead")
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed")
        if writing and self.failure is not None:
            raise OSError(
                self.failure.errno, f"{self.name}: failed before and is not used again: {self.failure.strerror}"
            )


_Request = tuple[SimFile, int, Sequence[Buffer], Callable[[BaseException | None], None], contextvars.Context]
_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None], contextvars.Context]


class SimDisk:
    """Implements `heliograph.runtime.disk.Disk`."""

    def __init__(self, platter: Platter) -> None:
        self.platter = platter
        self.dead = False
        self.syncs_in_job = 0
        self._queue: deque[_Request | _Job] = deque()
        self._busy = False
        self._context = contextvars.copy_context()
        self._closed = False
        self._at_once = False

    # -- files ----------------------------------------------------------------------------------------------------

    def open(self, name: str, *, create: bool = False) -> SimFile:
        self._check()
        if self.platter.open_files >= self.platter.open_files_max:
            raise type(self.platter.refusal)(*self.platter.refusal.args)
        inode = self.platter.find(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", name)
            inode = self.platter.new_inode()
            made = inode
            self.platter.change("create", name, lambda: self.platter.move("", name, made))
        return SimFile(self, name, inode)

    def names(self) -> list[str]:
        self._check()
        return self.platter.names()

    def rename(self, old: str, new: str) -> None:
        self._check()
        inode = self.platter.find(old)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self.platter.change("rename", new, lambda: self.platter.move(old, new, inode))

    def remove(self, name: str) -> None:
        self._check()
        inode = self.platter.find(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        self.platter.change("remove", name, lambda: self.platter.move(name, "", inode))

    def sync_directory(self) -> None:
        self._check()
        self.syncs_in_job += 1
        self.platter.change("sync directory", "", self.platter.sync_names)

    def free_bytes(self) -> int:
        self._check()
        return max(0, self.platter.capacity_bytes - self.platter.used_bytes())

    # -- work -----------------------------------------------------------------------------------------------------

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._submit((job, done, contextvars.copy_context()))

    def submit_sync(
        self, file: Any, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        self._submit((file, offset, buffers, done, contextvars.copy_context()))

    def sync_at_once(self, file: Any, offset: int, buffers: Sequence[Buffer]) -> bool:
        """Every other time that nothing waits, where the platter is a fast one."""
        self._check()
        self._at_once = self.platter.fast and not self._at_once and not self._busy and not self._queue
        if self._at_once:
            file.pwritev(buffers, offset)
            file.datasync()
        return self._at_once

    def close(self) -> None:
        """Runs what waits, at once, as the real one blocks until it is done."""
        if self.dead or self._closed:
            return
        while self._queue:
            requests, job = self._take()
            if job is not None:
                self._finish_job(job, *self._run_job(job))
            else:
                self._write(requests)
                self._sync(requests)
        self._closed = True

    def _check(self) -> None:
        if self.dead:
            raise ProcessDied("this process is dead")

    def _submit(self, work: _Request | _Job) -> None:
        self._check()
        assert not self._closed, "the disk is closed"
        self._queue.append(work)
        self._work()

    def _work(self) -> None:
        if not self._busy and self._queue and not self.dead:
            self._busy = True
            self.platter.loop.call_later(self._sample(self.platter.job_s), self._step, context=self._context)

    def _sample(self, bounds: tuple[float, float]) -> float:
        return self.platter.rng.uniform(*bounds)

    def _take(self) -> tuple[list[_Request], _Job | None]:
        """The next job, or the sync requests that wait together."""
        first = self._queue.popleft()
        if len(first) == 3:
            return [], first
        requests = [first]
        while self._queue:
            following = self._queue[0]
            if len(following) == 3:
                break
            requests.append(following)
            self._queue.popleft()
        return requests, None

    def _step(self) -> None:
        if self.dead or not self._queue:
            self._busy = False
            return
        requests, job = self._take()
        loop = self.platter.loop
        if job is not None:
            self.syncs_in_job = 0
            result = self._run_job(job)
            delay = sum(self._sample(self.platter.sync_s) for _ in range(self.syncs_in_job))
            loop.call_later(delay, self._finish_job, job, *result, context=self._context)
        else:
            self._write(requests)
            delay = sum(self._sample(self.platter.sync_s) for _ in _files(requests))
            loop.call_later(delay, self._sync, requests, context=self._context)

    def _run_job(self, job: _Job) -> tuple[Any, BaseException | None]:
        try:
            return job[0](), None
        except Exception as error:
            return None, error

    def _finish_job(self, job: _Job, result: Any, error: BaseException | None) -> None:
        self.platter.loop.call_soon(job[1], result, error, context=job[2])
        self._next()

    def _write(self, requests: list[_Request]) -> None:
        """Contiguous requests share one write. A failed file keeps its failure."""
        at = 0
        while at < len(requests):
            file, offset, buffers = requests[at][:3]
            at += 1
            joined = list(buffers)
            end = offset + sum(map(len, buffers))
            while at < len(requests) and requests[at][0] is file and requests[at][1] == end:
                joined += requests[at][2]
                end += sum(map(len, requests[at][2]))
                at += 1
            try:
                file.pwritev(joined, offset)
            except OSError:
                pass

    def _sync(self, requests: list[_Request]) -> None:
        errors: dict[int, OSError | None] = {}
        for file in _files(requests):
            try:
                file.datasync()
            except OSError as error:
                errors[id(file)] = error
        for request in requests:
            self.platter.loop.call_soon(request[3], errors.get(id(request[0])), context=request[4])
        self._next()

    def _next(self) -> None:
        self._busy = False
        self._work()


def _files(requests: list[_Request]) -> list[SimFile]:
    files: list[SimFile] = []
    for request in requests:
        if request[0] not in files:
            files.append(request[0])
    return files


def _put(content: bytearray, data: bytes, offset: int) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size <= len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _move(names: dict[str, _Inode], gone: str, there: str, inode: _Inode) -> None:
    if gone:
        names.pop(gone, None)
    if there:
        names[there] = inode
