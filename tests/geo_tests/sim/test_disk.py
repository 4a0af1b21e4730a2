"""One conformance suite over the real disk and the simulated one; then what only a simulated disk can do: lose power,
tear, fill up, fail.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from geo_tests.sim.disk import SECTOR_BYTES, Platter, SimDisk
from geo_tests.sim.loop import ProcessDied
from geo_tests.sim.simulation import Machine, Simulation
from heliograph.runtime.disk import Disk
from heliograph.runtime.system_disk import SystemDisk

Suite = Callable[[Callable[[Disk], Awaitable[None]]], None]


@pytest.fixture(params=["real", "simulated"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Suite:
    """Runs a coroutine function with an empty disk."""

    def real(body: Callable[[Disk], Awaitable[None]]) -> None:
        async def main() -> None:
            disk = SystemDisk(tmp_path)
            await body(disk)
            disk.close()

        asyncio.run(main())

    def simulated(body: Callable[[Disk], Awaitable[None]]) -> None:
        with Simulation(1) as sim:

            async def main() -> None:
                disk: Disk = Platter(sim.loop, sim.rng("disk")).disk()
                await body(disk)
                disk.close()

            sim.run(main())

    return real if request.param == "real" else simulated


async def submitted(disk: Disk, job: Callable[[], Any]) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    disk.submit(job, lambda result, error: future.set_exception(error) if error else future.set_result(result))
    return await future


def test_files(on_disk: Suite) -> None:
    async def body(disk: Disk) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open("a")
        with pytest.raises(FileNotFoundError):
            disk.remove("a")
        with pytest.raises(FileNotFoundError):
            disk.rename("a", "b")
        assert disk.names() == []
        file = disk.open("a", create=True)
        assert file.pwritev([b"0123", memoryview(b"456"), bytearray(b"789")], 2) == 10
        assert (
            file.size_bytes() == 12
            and file.pread(100, 0) == b"\0\x000123456789"
            and file.pread(3, 4) == b"234"
            and file.pread(3, 12) == b""
        )
        file.truncate(4)
        assert file.pread(100, 0) == b"\0\x0001"
        file.truncate(6)
        assert file.pread(100, 0) == b"\0\x0001\0\0"
        file.datasync()
        again = disk.open("a", create=True)
        assert again.size_bytes() == 6
        disk.open("c", create=True).close()
        disk.rename("a", "b")
        disk.rename("b", "c")
        disk.sync_directory()
        assert disk.names() == ["c"] and disk.open("c").size_bytes() == 6
        disk.remove("c")
        assert disk.names() == [] and file.size_bytes() == 6
        assert disk.free_bytes() > 0
        file.close()

    on_disk(body)


def test_jobs_in_order_and_off_the_loop(on_disk: Suite) -> None:
    async def body(disk: Disk) -> None:
        order: list[object] = []
        file = disk.open("a", create=True)
        disk.submit(lambda: order.append("job 1"), lambda *_: order.append("done 1"))
        disk.submit_sync(file, 0, [b"x"], lambda error: order.append(error))
        disk.submit(lambda: order.append("job 2"), lambda *_: order.append("done 2"))
        order.append("submitted")
        with pytest.raises(ZeroDivisionError):
            await submitted(disk, lambda: 1 / 0)
        assert [o for o in order if o in ("job 1", "job 2")] == ["job 1", "job 2"]
        assert [o for o in order if o in ("done 1", None, "done 2")] == ["done 1", None, "done 2"]
        assert await submitted(disk, lambda: file.pread(9, 0)) == b"x"

    on_disk(body)


def test_group_commit(on_disk: Suite) -> None:
    async def body(disk: Disk) -> None:
        done: list[int] = []
        files = [disk.open("a", create=True), disk.open("b", create=True)]
        for i in range(100):
            disk.submit_sync(
                files[i // 3 % 2], i * 10, [b"%09d" % i, b"\n"], lambda error, i=i: done.append(-1 if error else i)
            )  # type: ignore[misc]
        await submitted(disk, lambda: None)
        assert done == list(range(100))
        for i in range(100):
            assert files[i // 3 % 2].pread(10, i * 10) == b"%09d\n" % i

    on_disk(body)


def test_close_waits_for_what_was_submitted(on_disk: Suite) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a", create=True)
        for i in range(10):
            disk.submit_sync(file, i, [b"x"], lambda error: None)
        disk.close()
        assert file.pread(100, 0) == b"x" * 10

    on_disk(body)


# -- only the simulated one --------------------------------------------------------------------------------------------


def simulated(seed: int, body: Callable[[Simulation, Platter], Awaitable[None]]) -> None:
    with Simulation(seed) as sim:

        async def main() -> None:
            await body(sim, Platter(sim.loop, sim.rng("disk")))

        sim.run(main())


def test_a_power_cut_keeps_what_was_synced_and_tears_the_rest() -> None:
    outcomes = set()

    async def body(sim: Simulation, platter: Platter) -> None:
        disk = platter.disk()
        file = disk.open("a", create=True)
        file.pwritev([b"s" * 1000], 0)
        file.datasync()
        disk.sync_directory()
        file.pwritev([b"1" * 2000], 500)
        file.pwritev([b"2" * 2000], 2500)
        platter.power_cut()
        with pytest.raises(ProcessDied):
            file.pread(1, 0)
        with pytest.raises(ProcessDied):
            disk.names()
        content = platter.content("a")
        assert content[:500] == b"s" * 500
        shape = ""
        for start in range(0, len(content), SECTOR_BYTES):
            sector = content[start : start + SECTOR_BYTES]
            for wanted, at in ((b"1", 500), (b"2", 2500)):  # within a sector, each write is there whole or not at all
                low, high = max(start, at), min(start + len(sector), at + 2000)
                if low < high:
                    part = content[low:high]
                    assert part in (wanted * len(part), b"\0" * len(part)) or start < 1000
            shape += "".join(sorted({chr(c) for c in sector}))
        outcomes.add((len(content), shape))

    for seed in range(60):
        simulated(seed, body)
    assert len(outcomes) > 20
    assert any(size == 1000 for size, _ in outcomes) and any(size == 4500 for size, _ in outcomes)


def test_names_survive_only_a_directory_sync() -> None:
    outcomes = set()

    async def body(sim: Simulation, platter: Platter) -> None:
        disk = platter.disk()
        old = disk.open("old", create=True)
        old.pwritev([b"x"], 0)
        old.datasync()
        disk.sync_directory()
        disk.open("new", create=True).datasync()
        disk.rename("old", "newer")
        disk.remove("new")
        platter.power_cut()
        assert all(platter.content(name) == b"x" for name in platter.names() if name != "new")
        outcomes.add(tuple(platter.names()))

    for seed in range(40):
        simulated(seed, body)
    assert outcomes == {("old",), ("new", "old"), ("new", "newer"), ("newer",)}


def test_a_killed_process_loses_nothing() -> None:
    async def body(sim: Simulation, platter: Platter) -> None:
        disk = platter.disk()
        disk.open("a", create=True).pwritev([b"x" * 5000], 0)
        platter.unplug()
        assert platter.disk().open("a").pread(9999, 0) == b"x" * 5000

    simulated(1, body)


def test_a_sync_that_fails_loses_what_was_unsynced() -> None:
    async def body(sim: Simulation, platter: Platter) -> None:
        disk = platter.disk()
        file, other = disk.open("a", create=True), disk.open("b", create=True)
        disk.sync_directory()
        platter.fail_syncs = True
        errors: list[BaseException | None] = []
        disk.submit_sync(file, 0, [b"x" * 600], errors.append)
        await asyncio.sleep(1)
        platter.fail_syncs = False
        disk.submit_sync(file, 600, [b"y" * 600], errors.append)
        disk.submit_sync(other, 0, [b"z"], errors.append)
        await asyncio.sleep(1)
        assert isinstance(errors[0], OSError) and isinstance(errors[1], OSError) and errors[2] is None
        disk.open("a").datasync()
        platter.power_cut()
        assert b"x" not in platter.content("a") and platter.content("b") == b"z"

    simulated(1, body)


def test_a_full_disk() -> None:
    async def body(sim: Simulation, platter: Platter) -> None:
        platter.capacity_bytes = 1000
        disk = platter.disk()
        file = disk.open("a", create=True)
        file.pwritev([b"x" * 900], 0)
        file.pwritev([b"y" * 900], 0)
        assert disk.free_bytes() == 100
        with pytest.raises(OSError, match="space") as failure:
            file.pwritev([b"x" * 200], 850)
        assert failure.value.errno == errno.ENOSPC

    simulated(1, body)


def test_flipped_bits() -> None:
    async def body(sim: Simulation, platter: Platter) -> None:
        file = platter.disk().open("a", create=True)
        file.pwritev([b"\0\0"], 0)
        file.datasync()
        platter.flip_bit("a", 1, 3)
        assert file.pread(2, 0) == b"\0\x08"

    simulated(1, body)


def test_syncs_take_virtual_time() -> None:
    async def body(sim: Simulation, platter: Platter) -> None:
        platter.sync_s = (0.5, 0.5)
        disk = platter.disk()
        file = disk.open("a", create=True)
        start = sim.now()
        await submitted(disk, file.datasync)
        assert 0.5 <= sim.now() - start < 0.51

    simulated(1, body)


@pytest.mark.parametrize("operation", range(1, 9))
def test_power_goes_in_the_nth_operation(operation: int) -> None:
    """The process dies there with all its callbacks, and what its log had acknowledged is on the platter."""
    acknowledged: list[int] = []

    async def process(machine: Machine) -> None:
        disk: SimDisk = machine.disk("log")
        file = disk.open("log", create=True)
        disk.sync_directory()
        for i in range(3):
            synced = asyncio.Event()
            disk.submit_sync(file, i * 512, [bytes([i + 1]) * 512], lambda error, synced=synced: synced.set())  # type: ignore[misc]
            await synced.wait()
            acknowledged.append(i)

    for seed in range(10):
        acknowledged.clear()
        with Simulation(seed) as sim:
            machine = sim.machine("a")

            async def main(machine: Machine = machine) -> None:
                machine.platter("log").cut_after(operation)
                machine.start(process)
                await asyncio.sleep(1)

            sim.run(main())
            assert not machine.running and len(acknowledged) == max(0, (operation - 3) // 2)
            platter = machine.platter("log")
            content = platter.content("log") if platter.names() else b""
            for i in acknowledged:
                assert content[i * 512 : (i + 1) * 512] == bytes([i + 1]) * 512


def test_a_copy_that_is_put_back_has_what_was_synced_and_nothing_since() -> None:
    with Simulation(1) as sim:
        platter = Platter(sim.loop, sim.rng("disk"))
        disk = platter.disk()
        file = disk.open("a", create=True)
        file.pwritev([b"synced"], 0)
        file.datasync()
        disk.sync_directory()
        file.pwritev([b"not yet"], 6)
        copy = platter.image()
        assert copy == {"a": b"synced"}
        disk.open("b", create=True)
        platter.put_back(copy)
        with pytest.raises(ProcessDied):
            disk.names()
        assert platter.names() == ["a"] and platter.content("a") == b"synced"
        platter.power_cut()
        assert platter.content("a") == b"synced", "it lies there durably"
        platter.put_back({})
        platter.power_cut()
        assert platter.names() == [] and copy == {"a": b"synced"}
