"""Stories of disks that are lost or doubtful, one for each row of the table in docs/operating/disks.md.

Is: the table's rows, and for each a story that makes its state on a running instance, sees what the row says is seen,
and gives the row's own commands at their time; or the test that walks the row. Isn't: a test (test_lost_disks.py,
tests/guide/test_disks_table.py). Wants no root.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pulsar

from geo_tests.wan.instance import PATIENCE_S, Instance, eventually, rest
from geo_tests.wan.lost_disks import LostDisks
from region_node.chaos.streams import NumberedStream
from tests.guide.page import DOCS
from tests.region_node.region_processes import Process

PAGE = DOCS / "operating" / "disks.md"
NAMESPACE = "public/disks"
TOPIC = f"persistent://{NAMESPACE}/t"
BOOKIE, VOTER = "us-bookie-1", "us-meta-1"
_SPAN = re.compile(r"`([^`]+)`")
_ALERT = re.compile(r"\bHeliograph[A-Z]\w+")
_COMMANDS = ("heliograph ", "mv ", "rm ")


@dataclass
class Row:
    """One of the table. seen: what it quotes of what is seen; commands: those it gives, in order."""

    what: str
    state: str
    seen: list[str]
    alerts: list[str]
    commands: list[str]
    done: int = 0

    @property
    def name(self) -> str:
        return f"{self.what}: {self.state}"


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| what |"):
            what, state, see, do, _ = (cell.strip() for cell in line.strip("|").split(" | "))
            commands = [span for span in _SPAN.findall(do) if span.startswith(_COMMANDS)]
            found.append(Row(what, state, _SPAN.findall(see), _ALERT.findall(see), commands))
    return found


@dataclass
class World:
    """A running instance of three regions; the metadata of us has three voters."""

    folder: Path
    instance: Instance
    disks: LostDisks
    streams: list[NumberedStream] = field(default_factory=list)

    def of(self, name: str) -> Path:
        """The folder of a process."""
        return self.instance.data / name.partition("-")[0] / name.partition("-")[2]

    def log(self, name: str) -> str:
        here = self.instance.data / "logs" / f"{name}.log"
        return (here if here.exists() else self.instance.data / f"{name}.log").read_text()

    def shell(self, command: str) -> str:
        """What it prints; it may fail."""
        region = "eu" if "eu" in command else "us"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "HELIOGRAPH_ADMIN": self.instance.admin(region)}
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=300
        )
        return done.stdout + done.stderr

    def see(self, row: Row, *texts: Callable[[], str]) -> None:
        """Waits until all that the row quotes is seen; a command among it is given, and read."""

        def seen() -> bool:
            given = [self.shell(span) for span in row.seen if span.startswith(_COMMANDS)]
            text = "\n".join([*given, *(text() for text in texts)])
            return all(
                re.search(".*".join(map(re.escape, span.split("…"))), text)
                for span in row.seen
                if not span.startswith(_COMMANDS)
            )

        eventually(seen, f"{row.name}: {row.seen}", PATIENCE_S)

    def do(self, row: Row, count: int = 1) -> str:
        """Gives the row's next commands."""
        said = ""
        for command in row.commands[row.done : row.done + count]:
            said += self.shell(command)
        row.done += count
        return said

    def down(self, name: str) -> None:
        self.shell(f"heliograph process kill {name}")
        eventually(
            lambda: (
                not next(
                    one["pid"]
                    for one in self.instance.status()["regions"][name.partition("-")[0]]["processes"]
                    if one["name"] == name
                )
            ),
            f"{name} is down",
        )

    def start(self, name: str) -> str:
        return self.shell(f"timeout 30 heliograph process start {name}")

    def state(self) -> str:
        return str(rest("GET", f"{self.instance.admin('us')}/heliograph/v1/bookies/{BOOKIE}"))

    def well(self, name: str = BOOKIE) -> None:
        """The bookie is itself, with all its copies."""
        path = f"{self.instance.admin('us')}/heliograph/v1/bookies/{name}"
        eventually(lambda: not rest("GET", path)["limbo"] and rest("GET", path)["writable"], f"{name} takes entries")
        eventually(lambda: rest("GET", f"{path}/new-life")["state"] == "whole", f"{name} is whole")

    def publish(self, count: int = 20) -> None:
        for stream in self.streams:
            stream.publish(count)
            stream.finish()

    # -- voters --------------------------------------------------------------------------------------------------------

    def voter_down(self, region: str = "us") -> Path:
        """Returns its folder."""
        settings, process = self.disks.voters[VOTER]
        process.kill()
        return Path(str(settings["data_dir"]))

    def voter_up(self, *, fails: bool = False) -> None:
        settings, _ = self.disks.voters[VOTER]
        process = Process(self.instance.data, settings)
        self.disks.voters[VOTER] = settings, process
        if fails:
            assert process.popen.wait(60) == 2
        else:
            process.wait_ready()

    def voter_counts(self) -> None:
        self.disks.lead("us", VOTER)


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def damaged(folder: Path) -> None:
    """Its Raft log cannot be read: of a version that nobody knows."""
    log = next(folder.glob("log-*"))
    log.write_bytes(log.read_bytes()[:4] + bytes([77]) + log.read_bytes()[5:])


# -- bookies -----------------------------------------------------------------------------------------------------------


def one_directory(world: World, row: Row) -> None:
    world.down(BOOKIE)
    journal, away = world.of(BOOKIE) / "journal", world.folder / "journal"
    journal.rename(away)
    said = world.start(BOOKIE)
    world.see(row, lambda: said)
    world.down(BOOKIE)
    shutil.rmtree(journal, ignore_errors=True)
    away.rename(journal)
    world.do(row)
    world.well()


def unmounted(world: World, row: Row) -> None:
    world.down(BOOKIE)
    disk = world.of(BOOKIE).rename(world.folder / "disk")
    world.start(BOOKIE)
    world.see(row, world.state)
    world.do(row)
    shutil.rmtree(world.of(BOOKIE))
    disk.rename(world.of(BOOKIE))
    world.do(row)
    world.well()


def wiped(world: World, row: Row) -> None:
    world.down(BOOKIE)
    emptied(world.of(BOOKIE))
    world.start(BOOKIE)
    world.disks.limbo(BOOKIE)
    world.do(row)
    world.well()


def wiped_beside_another(world: World, row: Row) -> None:
    """Two of three at once: between them they have everything that lies on no third."""
    both = (BOOKIE, "us-bookie-0")
    kept = [world.folder / f"{name}.kept" for name in both]
    for name, away in zip(both, kept, strict=True):
        world.down(name)
        world.of(name).rename(away)
        world.start(name)
    for name in both:  # before the other one's is known, it counts as one that has its copies
        world.disks.limbo(name)
    world.see(row, lambda: world.shell(f"heliograph bookies new-life {BOOKIE} --yes"))
    for name, away in zip(both, kept, strict=True):
        world.down(name)
        shutil.rmtree(world.of(name))
        away.rename(world.of(name))
        world.start(name)
        world.well(name)


def older_copy(world: World, row: Row) -> None:
    world.down(BOOKIE)
    copy, newer = world.folder / "copy", world.folder / "newer"
    shutil.copytree(world.of(BOOKIE), copy)
    world.start(BOOKIE)
    world.well()
    world.publish()
    world.down(BOOKIE)
    world.of(BOOKIE).rename(newer)
    copy.rename(world.of(BOOKIE))
    world.start(BOOKIE)
    world.see(row, world.state)
    world.do(row)
    shutil.rmtree(world.of(BOOKIE))
    newer.rename(world.of(BOOKIE))
    world.do(row)
    world.well()


def anothers(world: World, row: Row) -> None:
    world.down(BOOKIE)
    mine = world.of(BOOKIE).rename(world.folder / "mine")
    shutil.copytree(world.of("us-bookie-0"), world.of(BOOKIE))
    said = world.start(BOOKIE)
    world.see(row, lambda: said)
    world.down(BOOKIE)
    shutil.rmtree(world.of(BOOKIE))
    mine.rename(world.of(BOOKIE))
    world.do(row)
    world.well()


def unreadable(world: World, row: Row) -> None:
    world.down(BOOKIE)
    log = next((world.of(BOOKIE) / "ledgers").glob("log-*"))
    log.unlink()
    world.start(BOOKIE)
    world.disks.limbo(BOOKIE)
    assert log.name in world.state()
    world.do(row, 3)
    world.disks.limbo(BOOKIE)
    world.do(row)
    world.well()


# -- voters ------------------------------------------------------------------------------------------------------------


def voter_wiped(world: World, row: Row) -> None:
    emptied(world.voter_down())
    world.see(row)
    world.voter_up()
    world.voter_counts()


def voter_older(world: World, row: Row) -> None:
    folder, copy = world.voter_down(), world.folder / "voter"
    shutil.copytree(folder, copy)
    world.voter_up()
    world.voter_counts()
    world.voter_down()
    shutil.rmtree(folder)
    copy.rename(folder)
    emptied(folder)
    world.voter_up()
    world.voter_counts()


def voter_of_another(world: World, row: Row) -> None:
    folder = world.voter_down()
    mine = folder.rename(world.folder / "voter")
    shutil.copytree(world.of("us-meta-2"), folder)
    world.voter_up(fails=True)
    world.see(row, lambda: world.log(VOTER))
    shutil.rmtree(folder)
    mine.rename(folder)
    world.voter_up()
    world.voter_counts()


def voter_unreadable(world: World, row: Row) -> None:
    folder = world.voter_down()
    damaged(folder / "meta")
    world.voter_up(fails=True)
    world.see(row, lambda: world.log(VOTER))
    folder.rename(world.folder / "voter.kept")
    world.voter_up()
    world.voter_counts()


def metadata_lost(world: World, row: Row) -> None:
    """Links make a replicated topic again as soon as they are back, so one is looked at that nobody replicates."""
    eu, alone = world.instance.admin("eu"), "persistent/public/alone/t"
    rest("PUT", f"{eu}/admin/v2/namespaces/public/alone", {"replication_clusters": ["eu"]})
    eventually(lambda: "public/alone" in rest("GET", f"{eu}/admin/v2/namespaces/public"), "the namespace is known")
    rest("PUT", f"{eu}/admin/v2/{alone}")
    world.shell("heliograph backup --region eu --unsealed --out eu.backup")
    world.down("eu-meta-0")
    emptied(world.of("eu-meta-0") / "meta")
    world.start("eu-meta-0")
    stats = "heliograph topics stats persistent://{} --admin " + eu
    world.see(row, lambda: world.shell(stats.format(alone.removeprefix("persistent/"))))
    world.do(row, 6)
    topic = TOPIC.removeprefix("persistent://")
    eventually(lambda: "replicated to" in world.shell(stats.format(topic)), "the topic is there again")
    assert "confirmed" in world.do(row)


def metadata_older(world: World, row: Row) -> None:
    mine, copy, newer = world.of("eu-meta-0") / "meta", world.folder / "eu.copy", world.folder / "eu.newer"
    world.down("eu-meta-0")
    shutil.copytree(mine, copy)
    world.start("eu-meta-0")
    bookie = world.instance.state["regions"]["eu"]  # its bookies look each two seconds
    assert bookie
    world.publish()
    puts = f"{world.instance.admin('eu')}/heliograph/v1/bookies/eu-bookie-0"
    passes = rest("GET", puts)["state"]["garbageCollection"]["passes"]
    eventually(lambda: rest("GET", puts)["state"]["garbageCollection"]["passes"] > passes + 1, "bookies have looked")
    world.down("eu-meta-0")
    mine.rename(newer)
    copy.rename(mine)
    world.start("eu-meta-0")
    world.see(row, lambda: "".join(world.log(f"eu-bookie-{number}") for number in range(3)))
    world.do(row)
    shutil.rmtree(mine)
    newer.rename(mine)
    world.do(row)
    eventually(lambda: not rest("GET", puts)["state"]["garbageCollection"]["refusal"], "bookies go on")


def config_wiped(world: World, row: Row) -> None:
    world.down("eu-meta-0")
    emptied(world.of("eu-meta-0") / "config")
    world.see(row)
    world.do(row)
    world.disks.lead("us", "eu", "--config")


def config_unreadable(world: World, row: Row) -> None:
    world.down("eu-meta-0")
    folder = world.of("eu-meta-0") / "config"
    damaged(folder)
    said = world.start("eu-meta-0")
    assert "is damaged" in said
    world.down("eu-meta-0")
    emptied(folder)
    world.start("eu-meta-0")
    world.disks.lead("us", "eu", "--config")


# -- what is left ------------------------------------------------------------------------------------------------------


def broker(world: World, row: Row) -> None:
    world.down("us-broker-0")
    world.do(row, 2)


def bucket_away(world: World, row: Row) -> None:
    bucket, away = world.folder / "bucket", world.folder / "bucket.away"
    bucket.rename(away)
    bucket.write_text("no folder")
    world.shell(f"heliograph topics offload {TOPIC} --now")
    world.see(row, lambda: world.log("us-broker-0"))
    assert "failed" in world.do(row)
    bucket.unlink()
    away.rename(bucket)
    eventually(lambda: "failed" not in world.shell(f"heliograph tier status {TOPIC}"), "it is tried again")


def objects_lost(world: World, row: Row) -> None:
    """Of a topic whose ledgers are in the bucket alone."""
    admin, topic = f"{world.instance.admin('us')}/admin/v2", f"persistent://{NAMESPACE}/tiered"
    rest("PUT", f"{admin}/namespaces/{NAMESPACE}/offloadDeletionLagMs", 0)
    producer = world.instance.client("us").create_producer(topic)
    producer.send(b"there")
    world.shell(f"heliograph topics offload {topic} --now")
    path = f"{admin}/persistent/{NAMESPACE}/tiered"
    eventually(lambda: not rest("GET", f"{path}/internalStats")["ledgers"][0]["onBookies"], "it is in the bucket alone")
    bucket, away = world.folder / "bucket", world.folder / "bucket.away"
    rest("PUT", f"{path}/unload")
    bucket.rename(away)
    bucket.mkdir()
    reader = world.instance.client("us").create_reader(topic, pulsar.MessageId.earliest)
    metrics = f"{world.instance.admin('us')}/metrics"
    world.see(row, lambda: world.log("us-broker-0"), lambda: world.shell(f"curl -s {metrics}"))
    shutil.rmtree(bucket)  # what was written there meanwhile is lost with it
    away.rename(bucket)
    assert reader.read_next(timeout_millis=int(PATIENCE_S * 1000)).data() == b"there"


EMPTIED = "lost, emptied, or not mounted"
STORIES: dict[tuple[str, str], Callable[[World, Row], None] | str] = {
    ("one of a bookie's directories", EMPTIED): one_directory,
    ("one of a bookie's directories", "a read, a write, or a sync fails"): "tests/system/test_disks.py::"
    "test_a_failed_sync_costs_one_directory_and_nothing_else",
    ("bookie", "not mounted"): unmounted,
    ("bookie", "lost, emptied"): wiped,
    ("bookie", "lost, emptied, while another one's copies are not made again yet"): wiped_beside_another,
    ("bookie", "an older copy"): older_copy,
    ("bookie", "another one's disk"): anothers,
    ("bookie", "a file is unreadable, or an entry log or a journal segment gone"): unreadable,
    ("bookie", "full"): "tests/system/test_disks.py::test_between_two_watermarks_a_bookie_stays_as_it_was",
    ("one of three metadata voters", EMPTIED): voter_wiped,
    ("one of three metadata voters", "an older copy"): voter_older,
    ("one of three metadata voters", "another one's disk"): voter_of_another,
    ("one of three metadata voters", "unreadable"): voter_unreadable,
    ("metadata voter, also the only one", "full"): "tests/system/test_metadata_disk.py::"
    "test_a_full_metadata_disk_refuses_writes_reads_on_and_recovers",
    ("the only metadata voter, or a majority", "lost, emptied, or unreadable"): metadata_lost,
    ("the only metadata voter", "an older copy"): metadata_older,
    ("a region's configuration voter", EMPTIED): config_wiped,
    ("a region's configuration voter", "an older copy, or unreadable"): config_unreadable,
    (
        "configuration voters of a majority of the regions",
        "lost, emptied, or unreadable",
    ): "tests/system/test_guide.py::test_an_instance_on_one_machine",
    (
        "configuration voters of a majority of the regions",
        "older copies, put back together",
    ): "tests/region_node/dr/leadership/test_configuration_age.py::"
    "test_what_went_back_asks_once_and_is_answered_under_an_epoch_of_its_own",
    ("a broker's folder", "anything"): broker,
    ("the bucket of tiered storage", "not to be reached, unreadable, or full"): bucket_away,
    ("the bucket of tiered storage", "objects lost"): objects_lost,
}
