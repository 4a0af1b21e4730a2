"""Real disks that go wrong under real bookies: full, failing, or with a bookie that stands still. Nothing acknowledged
is lost, publishing goes on.

Wants root (a small tmpfs is mounted) and Debian's fiu-utils (a library that makes system calls fail), which it unpacks
into ~/.cache/heliograph.
"""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.region_node.one_topic import TOPIC, provision
from tests.region_node.region_processes import Process, Region
from tests.region_node.rest_client import Rest
from tests.system import programs
from tests.system.publishing import Load, check

pulsar = pytest.importorskip("pulsar")
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PATIENCE_S = 120.0
SMALL_MIB = 256


class Cluster:
    """A region of one broker and three bookies; `odd` has settings of its own. quorums: ensemble, write, ack."""

    def __init__(
        self,
        region: Region,
        quorums: tuple[int, int, int],
        odd: dict[str, Any],
        *,
        spawn: Callable[[dict[str, Any]], Process] | None = None,
    ) -> None:
        self.region = region
        settings = region.settings
        meta = region.spawn(
            settings("meta-0", ["meta", "config"], meta_node={"port": 0}, config_node={"port": 0, "raft_port": 0})
        ).wait_ready()
        region.addresses = {
            "meta": [f"127.0.0.1:{meta.ports['meta']}"],
            "config": [f"127.0.0.1:{meta.ports['config']}"],
        }
        plain = {"port": 0, "http_port": 0}
        self.odd = (spawn or region.spawn)(
            settings("bookie-odd", ["bookie"], **region.addresses, bookie={**plain, **odd})
        )
        others = [
            region.spawn(settings(f"bookie-{at}", ["bookie"], **region.addresses, bookie=plain)) for at in range(2)
        ]
        for process in (self.odd, *others, region.broker(0)):
            process.wait_ready()
        self.rest = provision(region)
        names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
        wanted = dict(zip(names, quorums, strict=True), managedLedgerMaxMarkDeleteRate=0.0)
        assert self.rest("POST", "/admin/v2/namespaces/public/default/persistence", wanted)[0] == 204

    @property
    def url(self) -> str:
        return self.region.service_url()

    def state(self) -> dict[str, Any]:
        """Of the odd bookie."""
        return dict(Rest(f"http://127.0.0.1:{self.odd.ports['http']}")("GET", "/state")[1])

    def ready(self) -> bool:
        return Rest(f"http://127.0.0.1:{self.odd.ports['http']}")("GET", "/ready")[0] == 200

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"never came: {what}; {self.state()} {(self.region.folder / 'us-broker-0.log').read_text()[-2000:]}"
                )
            time.sleep(0.05)

    def wait_beside(self, condition: Callable[[], object]) -> None:
        """While a bookie may be away."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (self.region.folder / "us-broker-0.log").read_text()[-2000:]
            time.sleep(0.05)

    def bookies_registered(self) -> int:
        return sum(bool(row["registered"]) for row in self.rest("GET", "/heliograph/v1/bookies")[1])

    def unload(self) -> None:
        assert self.rest("PUT", "/admin/v2/persistent/public/default/t/unload")[0] == 204

    def wait_for_a_ledger_there(self) -> None:
        """The odd bookie is in the ensemble of a new one: not always of the first, since brokers avoid for a while
        whoever has just failed.
        """
        held, next_try = self.state()["ledgers"], 0.0

        def holds_more() -> bool:
            nonlocal next_try
            if time.monotonic() >= next_try:
                self.unload()
                next_try = time.monotonic() + 5.0
            return bool(self.state()["ledgers"] > held)

        self.wait("a new ledger there", holds_more)


def leave_free(place: Path, mib: int) -> None:
    """Fills the file system up to so much, by a file beside the bookie's, which may be quicker meanwhile: then its last
    pieces are given back.
    """
    ballast = place / "ballast"
    held = ballast.stat().st_size if ballast.exists() else 0
    size = max(0, shutil.disk_usage(place).free + held - (mib << 20))
    with ballast.open("r+b" if held else "wb", buffering=0) as file:
        file.truncate(size)
        file.seek(held)
        chunk = bytes(1 << 20)
        try:
            while (left := size - file.tell()) > 0:
                file.write(chunk[:left])
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            file.truncate(max(0, file.tell() - (mib << 20)))


def on(place: Path, **fields: Any) -> dict[str, Any]:
    return {"journal_dirs": [str(place / "journal")], "ledger_dirs": [str(place / "ledgers")], **fields}


def test_a_disk_without_space_makes_its_bookie_read_only_until_there_is_some(tmp_path: Path, small: Path) -> None:
    """Writes fail with ENOSPC: the watermark is at 0."""
    with Region(tmp_path) as region:
        cluster = Cluster(region, (3, 3, 2), on(small, free_mb_min=0, free_mb_again=100))
        load = Load(cluster.url)
        try:
            cluster.wait("some messages", lambda: load.acked > 200)
            leave_free(small, 6)
            cluster.wait("a read-only bookie", lambda: "no space" in cluster.state()["readOnly"])
            before = load.acked
            cluster.wait("messages without it", lambda: load.acked > before + 300)
            assert not cluster.ready() and not cluster.state()["failure"] and cluster.state()["ledgers"]
            reader = load.client.create_reader(TOPIC, pulsar.MessageId.earliest)
            assert reader.read_next(60_000).data().startswith(b"0 ")
            leave_free(small, 120)
            cluster.wait("a writable bookie", cluster.ready)
            cluster.wait_for_a_ledger_there()
        finally:
            sent = load.stop()
        assert cluster.state()["failure"] == "" and cluster.odd.popen.poll() is None
        region.processes["us-bookie-0"].kill()  # what the others confirm by themselves is not the point
        check(cluster.url, sent)


def test_between_two_watermarks_a_bookie_stays_as_it_was(tmp_path: Path, small: Path) -> None:
    with Region(tmp_path) as region:
        cluster = Cluster(region, (3, 3, 2), on(small, free_mb_min=64, free_mb_again=96))
        load = Load(
            cluster.url, pause_s=0.01
        )  # so little that the disk is not full before the bookie's next look at it
        try:
            cluster.wait("some messages", lambda: load.acked > 50)
            leave_free(small, 40)
            cluster.wait("a read-only bookie", lambda: "less than 64 MiB free" in cluster.state()["readOnly"])
            before = load.acked
            cluster.wait("messages without it", lambda: load.acked > before + 100)
            leave_free(small, 80)
            time.sleep(2.5)  # more than two of its looks at the disk
            assert not cluster.ready()
            leave_free(small, 110)
            cluster.wait("a writable bookie", cluster.ready)
        finally:
            sent = load.stop()
        check(cluster.url, sent)


@pytest.mark.parametrize(("call", "where"), [("fdatasync", "journal"), ("fsync", "disk")])
def test_a_failed_sync_costs_one_directory_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, where: str
) -> None:
    """The journal syncs by fdatasync, all the time; fsync is of a directory, when an entry log, a checkpoint, or a
    journal's next segment was made.
    """

    def spawn(settings: dict[str, Any]) -> Process:
        with monkeypatch.context() as patch:
            for name, value in {**programs.fiu_preload(), "FIU_CTRL_FIFO": str(tmp_path / "fiu")}.items():
                patch.setenv(name, value)
            return region.spawn(settings)

    with Region(tmp_path) as region:
        disks = [str(tmp_path / f"disk{at}") for at in range(4)]
        odd = {"journal_dirs": disks[:2], "ledger_dirs": disks[2:]}
        cluster = Cluster(region, (3, 3, 2), odd, spawn=spawn)
        load = Load(cluster.url)
        try:
            cluster.wait("some messages", lambda: load.acked > 100)
            command = [
                str(programs.fiu()),
                "-f",
                str(tmp_path / "fiu"),
                "-c",
                f"enable name=posix/io/sync/{call},onetime",
                str(cluster.odd.popen.pid),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            assert not done.returncode, done.stderr
            dropped: list[dict[str, Any]] = []

            def found() -> bool:
                state = cluster.state()
                dropped[:] = [one for one in (*state["journals"], *state["ledgerDirectories"]) if one["failure"]]
                return bool(dropped)

            cluster.wait("a dropped directory", found)
            before = load.acked
            cluster.unload()
            cluster.wait("messages after it", lambda: load.acked > before + 200)
            assert len(dropped) == 1 and where in dropped[0]["failure"] and dropped[0]["directory"] in disks
            assert cluster.state()["writable"], "the others go on"
        finally:
            sent = load.stop()
        cluster.odd.kill()
        cluster.odd = region.spawn(
            region.settings("bookie-odd", ["bookie"], **region.addresses, bookie={"port": 0, "http_port": 0, **odd})
        ).wait_ready()
        found()
        assert len(dropped) == 1, "the disk works again, and is not asked"
        region.processes[
            "us-bookie-0"
        ].kill()  # what is read comes from the odd one, as far as it has it, and one other
        check(cluster.url, sent)


@pytest.fixture
def stalling(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 MiB of its own, that `fsfreeze` can stop."""
    image, place = tmp_path / "image", tmp_path / "stalling"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    for command in (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
        if shutil.which(command[0]) is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip(
                f"a file system that can be frozen needs root, {command[0]}, and loop devices, of which something is "
                "absent here"
            )
    try:
        yield place
    finally:
        subprocess.run(["fsfreeze", "-u", str(place)], capture_output=True)
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_stalls_holds_nobody_up_and_goes_on(tmp_path: Path, stalling: Path) -> None:
    with Region(tmp_path) as region:
        cluster = Cluster(region, (3, 3, 2), on(stalling, free_mb_min=0, free_mb_again=1))
        load = Load(cluster.url)
        try:
            for turn in range(2):
                cluster.wait("some messages", lambda: load.acked > 200)
                subprocess.run(["fsfreeze", "-f", str(stalling)], check=True)
                try:
                    before, began = load.acked, time.monotonic()
                    while load.acked <= before + 400:
                        assert time.monotonic() - began < PATIENCE_S, "publishing stands still"
                        time.sleep(0.05)
                    print(f"400 messages {time.monotonic() - began:.1f} s after the disk stood still")
                finally:
                    subprocess.run(["fsfreeze", "-u", str(stalling)], check=True)
                cluster.wait("the bookie", cluster.ready)
                if not turn:
                    cluster.wait_for_a_ledger_there()
            assert not cluster.state()["failure"] and not cluster.state()["limbo"]
        finally:
            sent = load.stop()
        check(cluster.url, sent)


def test_one_bookie_of_three_stands_still(tmp_path: Path) -> None:
    """E=3, Qw=2, Qa=2: ledgers go on without it, and with it again."""
    with Region(tmp_path) as region:
        cluster = Cluster(region, (3, 2, 2), {})
        load = Load(cluster.url)
        stopped = False
        try:
            cluster.wait("some messages", lambda: load.acked > 200)
            for _ in range(2):
                cluster.odd.popen.send_signal(signal.SIGSTOP)
                stopped = True
                before, began = load.acked, time.monotonic()
                deadline = began + PATIENCE_S
                while load.acked <= before + 300:
                    assert time.monotonic() < deadline, "publishing stands still"
                    time.sleep(0.05)
                print(f"300 messages {time.monotonic() - began:.1f} s after the stop")
                cluster.odd.popen.send_signal(signal.SIGCONT)
                stopped = False
                cluster.wait("the bookie", cluster.ready)
                cluster.unload()
        finally:
            if stopped:
                cluster.odd.popen.send_signal(signal.SIGCONT)
            sent = load.stop()
        check(cluster.url, sent)


def test_any_one_bookie_is_killed_again_and_again(tmp_path: Path) -> None:
    """E=3, Qw=2, Qa=2. The killed one comes back with its data before the next one goes."""
    with Region(tmp_path) as region:
        cluster = Cluster(region, (3, 2, 2), {})
        load = Load(cluster.url)
        try:
            cluster.wait("some messages", lambda: load.acked > 100)
            for turn in range(6):
                victim = region.processes[f"us-bookie-{('odd', 0, 1)[turn % 3]}"]
                victim.kill()
                before, began = load.acked, time.monotonic()
                cluster.wait_beside(lambda before=before: load.acked > before + 200)  # type: ignore[misc]
                print(f"200 messages {time.monotonic() - began:.1f} s after the kill")
                again = region.spawn(json.loads((tmp_path / f"{victim.name}.json").read_text())).wait_ready()
                if turn % 3 == 0:
                    cluster.odd = again
                cluster.wait_beside(lambda: cluster.bookies_registered() == 3)
        finally:
            sent = load.stop()
        check(cluster.url, sent)
