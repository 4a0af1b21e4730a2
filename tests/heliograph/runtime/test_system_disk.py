"""SystemDisk: order, group commit, failures that stay, and gathered writes beyond IOV_MAX."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.runtime import system_disk
from heliograph.runtime.disk import Buffer
from heliograph.runtime.system_disk import SystemDisk, SystemFile


async def _settled(disk: SystemDisk) -> None:
    """Everything submitted so far has called back."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    disk.submit(lambda: None, lambda _result, _error: waiter.set_result(None))
    await waiter


def test_syncs_and_jobs_call_back_in_the_order_given(tmp_path: Path) -> None:
    async def run() -> None:
        disk = SystemDisk(tmp_path)
        files = [disk.open(name, create=True) for name in ("a", "b")]
        order: list[int] = []
        offsets = [0, 0]
        for number in range(300):
            if number % 7 == 0:
                disk.submit(lambda number=number: number, lambda result, _error: order.append(result))  # type: ignore[misc, arg-type]
                continue
            which = number % 2
            disk.submit_sync(
                files[which],
                offsets[which],
                [bytes([number % 256]) * 3],
                lambda error, number=number: order.append(number),
            )  # type: ignore[misc]
            offsets[which] += 3
        await _settled(disk)
        assert order == list(range(300))
        for which, file in enumerate(files):
            expected = b"".join(bytes([n % 256]) * 3 for n in range(300) if n % 7 and n % 2 == which)
            assert file.pread(10_000, 0) == expected
        disk.close()

    asyncio.run(run())


def test_what_waits_together_shares_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    real = os.fdatasync

    def counted(descriptor: int) -> None:
        syncs.append(descriptor)
        real(descriptor)

    async def run() -> None:
        disk = SystemDisk(tmp_path)
        file = disk.open("a", create=True)
        done: list[BaseException | None] = []
        given = threading.Event()
        disk.submit(given.wait, lambda _result, _error: None)
        for number in range(200):
            disk.submit_sync(file, number, [b"x"], done.append)
        given.set()
        await _settled(disk)
        assert done == [None] * 200
        assert file.size_bytes() == 200
        disk.close()

    monkeypatch.setattr(os, "fdatasync", counted)
    asyncio.run(run())
    assert len(syncs) == 1


def test_more_buffers_than_one_system_call_takes(tmp_path: Path) -> None:
    file = SystemDisk(tmp_path).open("a", create=True)
    parts = [index.to_bytes(4, "big") for index in range(5000)]
    assert file.pwritev(parts, 8) == 20_000
    assert file.pread(30_000, 8) == b"".join(parts)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_byte(descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        first = next(b for b in buffers if len(b))
        return os.pwrite(descriptor, memoryview(first)[:1], offset)

    file = SystemDisk(tmp_path).open("a", create=True)
    monkeypatch.setattr(os, "pwritev", one_byte)
    file.pwritev([b"abc", b"", memoryview(b"defgh")], 2)
    assert file.pread(10, 2) == b"abcdefgh"


def _fail(code: int) -> Callable[..., int]:
    """code: ENOMEM is raised as Python raises it where it gets none itself."""

    def failing(*_: object) -> int:
        raise MemoryError if code == errno.ENOMEM else OSError(code, os.strerror(code))

    return failing


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_failed_write_or_sync_is_final_for_that_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    async def run() -> None:
        disk = SystemDisk(tmp_path)
        bad, good = disk.open("bad", create=True), disk.open("good", create=True)
        outcomes: list[BaseException | None] = []
        with monkeypatch.context() as broken:
            broken.setattr(os, call, _fail(code))
            disk.submit_sync(bad, 0, [b"1"], outcomes.append)
            await _settled(disk)
        disk.submit_sync(bad, 1, [b"2"], outcomes.append)
        disk.submit_sync(good, 0, [b"3"], outcomes.append)
        await _settled(disk)
        assert [type(o) for o in outcomes] == [OSError, OSError, type(None)]
        assert isinstance(bad, SystemFile) and bad.failure is not None and bad.failure.errno == code
        disk.close()

    asyncio.run(run())


def test_a_job_that_raises_reports_it_and_the_next_one_runs(tmp_path: Path) -> None:
    async def run() -> None:
        disk = SystemDisk(tmp_path)
        outcomes: list[object] = []
        disk.submit(lambda: disk.open("absent"), lambda _result, error: outcomes.append(type(error)))
        disk.submit(lambda: 5, lambda result, _error: outcomes.append(result))
        await _settled(disk)
        assert outcomes == [FileNotFoundError, 5]
        disk.close()
        disk.close()

    asyncio.run(run())


def test_close_waits_for_what_was_submitted(tmp_path: Path) -> None:
    async def run() -> None:
        disk = SystemDisk(tmp_path)
        file = disk.open("a", create=True)
        for number in range(50):
            disk.submit_sync(file, number, [b"y"], lambda _error: None)
        disk.close()
        assert file.pread(100, 0) == b"y" * 50

    asyncio.run(run())


def test_directory_operations(tmp_path: Path) -> None:
    disk = SystemDisk(tmp_path / "new")
    disk.open("b", create=True).close()
    modes = [oct(path.stat().st_mode & 0o777) for path in (tmp_path / "new", tmp_path / "new" / "b")]
    assert modes == ["0o700", "0o600"], "nobody else reads what is kept, whatever the umask is"
    disk.open("a", create=True).close()
    assert disk.names() == ["a", "b"]
    disk.rename("a", "b")
    disk.sync_directory()
    assert disk.names() == ["b"]
    disk.remove("b")
    assert disk.names() == []
    assert disk.free_bytes() > 0


def _trusting(disk: SystemDisk, file: SystemFile, times: int) -> None:
    """As after so many fast syncs."""
    for _ in range(times):
        disk.note_sync(0.0001)
    assert file.failure is None


def test_a_lone_record_is_synced_at_once_only_by_a_disk_that_was_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(
        system_disk, "time", SimpleNamespace(perf_counter=lambda: 0.0)
    )  # how long this machine takes for a write says nothing

    async def run() -> None:
        disk = SystemDisk(tmp_path)
        file = disk.open("a", create=True)
        assert isinstance(file, SystemFile)
        assert not disk.sync_at_once(file, 0, [b"x"]) and file.size_bytes() == 0, "a disk that nobody knows"
        _trusting(disk, file, 63)
        assert not disk.sync_at_once(file, 0, [b"x"])
        _trusting(disk, file, 1)
        assert disk.sync_at_once(file, 0, [b"abc"]) and len(synced) == 1 and file.pread(9, 0) == b"abc"
        assert not disk.sync_at_once(file, 0, [bytes(20_000)]), "a large one"
        passed, asked = asyncio.get_running_loop().create_future(), threading.Event()
        disk.submit(asked.wait, lambda _result, _error: passed.set_result(None))
        assert not disk.sync_at_once(file, 3, [b"d"]), "never ahead of what was submitted before"
        asked.set()
        await passed
        assert disk.sync_at_once(file, 3, [b"d"])
        disk.note_sync(0.5)
        assert not disk.sync_at_once(file, 4, [b"e"]), "one stall, and the thread does it again"
        disk.close()

    asyncio.run(run())


@pytest.mark.parametrize(("slow_of_ten", "trusted"), [(0, True), (1, True), (3, False)])
def test_a_slow_sync_now_and_then_costs_a_disk_no_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_of_ten: int, trusted: bool
) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    monkeypatch.setattr(system_disk, "time", SimpleNamespace(perf_counter=lambda: 0.0))

    async def run() -> None:
        for end, why in (([0.01] * 40, "it has become slow, whatever it was before"), ([0.1], "a stall")):
            disk = SystemDisk(tmp_path)
            file = disk.open("a", create=True)
            for _ in range(50):
                for n in range(10):
                    disk.note_sync(0.01 if n < slow_of_ten else 0.0005)
            assert disk.sync_at_once(file, 0, [b"x"]) is trusted
            for took_s in end:
                disk.note_sync(took_s)
            assert not disk.sync_at_once(file, 1, [b"y"]), why
            file.close()
            disk.close()

    asyncio.run(run())


@pytest.mark.parametrize("took_ms", [4, 7, 12, 25, 49, 400])
def test_a_disk_that_turns_slow_holds_up_the_loop_for_little_altogether(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_ms: int
) -> None:
    now = 0.0

    def sync(_descriptor: int) -> None:
        nonlocal now
        now += took_ms / 1000

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(system_disk, "time", SimpleNamespace(perf_counter=lambda: now))

    async def run() -> int:
        disk = SystemDisk(tmp_path)
        file = disk.open("a", create=True)
        assert isinstance(file, SystemFile)
        _trusting(disk, file, 1000)
        synced = 0
        while disk.sync_at_once(file, 0, [b"x"]):
            synced += 1
        disk.close()
        return synced

    synced = asyncio.run(run())
    assert synced >= 1 and synced * took_ms <= max(180, took_ms)


def test_a_failure_at_once_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    async def run() -> None:
        disk = SystemDisk(tmp_path)
        file = disk.open("a", create=True)
        assert isinstance(file, SystemFile)
        _trusting(disk, file, 64)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(OSError, match="broken"):
                disk.sync_at_once(file, 0, [b"x"])
        with pytest.raises(OSError, match="failed before"):
            disk.sync_at_once(file, 0, [b"x"])
        disk.close()

    asyncio.run(run())


def test_a_directory_that_cannot_be_made_is_an_error_of_its_first_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in its place")
    disk = SystemDisk(tmp_path / "file")
    for use in (disk.names, disk.free_bytes, lambda: disk.open("a"), lambda: disk.open("a", create=True)):
        with pytest.raises(FileExistsError, match="file"):
            use()
    disk.close()


@pytest.mark.parametrize("without", ["", "open", "preadv"])
def test_a_read_around_the_cache_brings_what_any_read_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct reads here")
        return real(path, flags, *more)

    def fail(*_: Any) -> int:
        raise OSError(errno.EINVAL, "not at this place")

    if without:
        monkeypatch.setattr(os, without, refuse if without == "open" else fail)
    data = random.Random(3).randbytes(3_000_001)
    (tmp_path / "a").write_bytes(data)
    disk = SystemDisk(tmp_path)
    file = disk.open("a")
    for offset, size in (
        (0, 1 << 20),
        (16, 1_000_000),
        (4095, 4098),
        (2_999_000, 1001),
        (2_999_000, 5000),
        (4096, 1),
        (3_000_001, 10),
    ):
        assert bytes(file.pread_around(size, offset)) == data[offset : offset + size], (offset, size)
    file.close()
    disk.close()


def test_memory_of_a_read_around_the_cache_is_used_again_when_nobody_looks_at_it(tmp_path: Path) -> None:
    data = random.Random(4).randbytes(40 << 20)
    (tmp_path / "a").write_bytes(data)
    disk = SystemDisk(tmp_path)
    file = disk.open("a")
    seen = [memoryview(file.pread_around(1 << 20, at << 20))[5:900_000] for at in range(40)]  # more than is kept
    assert all(view == data[(at << 20) + 5 : (at << 20) + 900_000] for at, view in enumerate(seen))
    places = {id(view.obj) for view in seen}
    assert len(places) == 40
    last = {id(view.obj) for view in seen[-16:]}
    seen.clear()
    for at in range(10):
        view = memoryview(file.pread_around(1 << 20, at << 20))
        assert id(view.obj) in last and view == data[at << 20 : (at + 1) << 20]
        del view
    file.close()
    disk.close()
