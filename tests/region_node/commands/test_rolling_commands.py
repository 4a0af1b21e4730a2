"""Rolling restarts: what keeps the next process from being stopped, and in which order they have their turns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError
from region_node.commands import instance_options, rolling_commands

BOOKIES = ("us-bookie-0", "us-bookie-1", "us-bookie-2")
NAMES = ("us-meta-0", *BOOKIES, "us-broker-0", "us-broker-1")


class Region:
    """What a supervisor and its brokers answer; a process is ready again once it was restarted."""

    def __init__(self) -> None:
        self.rows = [
            {"name": name, "role": name.split("-")[1], "ready": True, "pid": 100 + at, "ports": {"admin": 8080 + at}}
            for at, name in enumerate(NAMES)
        ]
        self.bookies: list[dict[str, Any]] = [
            {"id": name, "registered": True, "writable": True, "draining": False} for name in BOOKIES
        ]
        self.brokers = ["us-broker-0", "us-broker-1"]
        self.repairs = 0
        self.paused = False
        self.restarted: list[str] = []
        self.before: Callable[[str], None] = lambda name: None
        """Called when a process is to be restarted."""

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in (*self.rows, *self.bookies) if name in (row.get("name"), row.get("id")))

    def call(
        self, data: Path, verb: str, *, timeout_s: float = 0, process: str = "", python: str = ""
    ) -> dict[str, Any]:
        if verb == "restart":
            self.before(process)
            self.restarted.append(process)
            row = self.row(process)
            row["ready"], row["pid"] = True, row["pid"] + 100
            return {"ok": True, "pid": row["pid"]}
        return {"regions": {"us": {"processes": self.rows}}}

    def ask(self, url: str, token: str, method: str = "GET") -> Any:
        if not all(row["ready"] for row in self.rows if f":{row['ports']['admin']}/" in url):
            raise OSError(f"{url}: refused")
        match url.partition("/heliograph/v1/")[2].partition("?")[0]:
            case "bookies":
                return self.bookies
            case "status":
                return {"brokers": [{"id": name} for name in self.brokers], "repairs": self.repairs}
            case "balance/pause":
                self.paused = method == "POST"
        return "ok"

    def health(self) -> rolling_commands.Health:
        return rolling_commands.Health(
            Path(), "us", {"us-broker-0": "http://127.0.0.1:8084", "us-broker-1": "http://127.0.0.1:8085"}, ""
        )


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Region:
    made = Region()
    for module in (rolling_commands, instance_options):
        monkeypatch.setattr(module, "call", made.call)
    monkeypatch.setattr(rolling_commands, "_ask", made.ask)
    return made


def roll(folder: Path, *, wait_s: float = 0.0, dry_run: bool = False, python: str = "") -> None:
    rolling_commands._roll(folder, "us", python, wait_s, "", dry_run, Output(json=True))


def one_is_down(region: Region) -> None:
    region.row("us-bookie-1")["ready"] = False


def a_broker_is_not_registered(region: Region) -> None:
    region.brokers.remove("us-broker-1")


def a_bookie_runs_and_nobody_knows_of_it(region: Region) -> None:
    del region.bookies[1]


def two_disks_are_full(region: Region) -> None:
    region.bookies[1]["writable"] = region.bookies[2]["writable"] = False


def a_disk_is_full(region: Region) -> None:
    region.bookies[2]["writable"] = False


def copies_are_missing(region: Region) -> None:
    region.repairs = 3


@pytest.mark.parametrize(
    ("wrong", "stopped", "sentence"),
    [
        (one_is_down, "us-broker-0", "us-bookie-1 is not ready"),
        (a_broker_is_not_registered, "us-bookie-0", "1 of 2 brokers are registered"),
        (a_bookie_runs_and_nobody_knows_of_it, "us-broker-0", "bookie us-bookie-1 is away"),
        (two_disks_are_full, "us-bookie-0", "of the other bookies only none takes writes"),
        (a_disk_is_full, "us-bookie-0", "of the other bookies only us-bookie-1 takes writes"),
        (copies_are_missing, "us-bookie-0", "3 ledgers lack a copy, and are being repaired"),
    ],
)
def test_nothing_is_stopped_while(region: Region, wrong: Callable[[Region], None], stopped: str, sentence: str) -> None:
    region.health().wait(0.0, "before", stopped)
    assert region.paused, "and nothing is moved meanwhile"
    wrong(region)
    with pytest.raises(ConfigError, match=f"the region was not well within 0 s before: {sentence}.*it goes on here"):
        region.health().wait(0.0, "before", stopped)


@pytest.mark.parametrize("wrong", [two_disks_are_full, copies_are_missing])
def test_a_broker_may_be_stopped_while_bookies_are_at_work(region: Region, wrong: Callable[[Region], None]) -> None:
    wrong(region)
    region.health().wait(0.0, "before", "us-broker-0")


def test_of_two_bookies_one_may_be_stopped(region: Region) -> None:
    region.rows = [row for row in region.rows if row["name"] != "us-bookie-2"]
    del region.bookies[2]
    region.health().wait(0.0, "before", "us-bookie-0")


def test_the_order_is_metadata_bookies_brokers_and_what_is_down_comes_first(
    region: Region, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    region.row("us-bookie-1")["ready"] = region.row("us-broker-1")["ready"] = False
    roll(tmp_path, dry_run=True)
    order = ["us-bookie-1", "us-broker-1", "us-meta-0", "us-bookie-0", "us-bookie-2", "us-broker-0"]
    assert (
        json.loads(capsys.readouterr().out) == {"region": "us", "order": order, "done": []} and region.restarted == []
    )
    roll(tmp_path)
    assert region.restarted == order and not region.paused
    assert json.loads(capsys.readouterr().out)["restarted"] == order


def test_an_emptied_bookie_stays_down_and_one_that_is_being_emptied_has_its_turn(
    region: Region, tmp_path: Path
) -> None:
    region.bookies[0]["draining"] = region.bookies[1]["draining"] = True
    region.bookies[0]["registered"] = region.row("us-bookie-0")["ready"] = False
    roll(tmp_path)
    assert region.restarted == [name for name in NAMES if name != "us-bookie-0"]


def test_an_interrupted_run_goes_on_where_it_was_and_only_one_runs_at_a_time(region: Region, tmp_path: Path) -> None:
    def interrupted(name: str) -> None:
        if name == "us-bookie-1":
            with pytest.raises(ConfigError, match="another rolling restart or upgrade of us is under way"):
                roll(tmp_path)
            raise KeyboardInterrupt

    region.before = interrupted
    with pytest.raises(KeyboardInterrupt):
        roll(tmp_path)
    assert region.restarted == ["us-meta-0", "us-bookie-0"] and not region.paused
    region.before = lambda name: None
    roll(tmp_path)
    assert region.restarted == list(NAMES), "each once"
    roll(tmp_path)
    assert region.restarted == [*NAMES, *NAMES], "a new run begins anew"


def interrupted_at(region: Region, folder: Path, name: str, python: str = "") -> list[str]:
    """Returns what it had restarted by then."""

    def stop(at: str) -> None:
        if at == name:
            raise KeyboardInterrupt

    region.before = stop
    with pytest.raises(KeyboardInterrupt):
        roll(folder, python=python)
    region.before = lambda name: None
    done = list(region.restarted)
    region.restarted.clear()
    return done


def test_what_an_interrupted_run_has_done_counts_while_it_is_so_still(
    region: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_at(region, tmp_path, "us-broker-0")
    region.row("us-bookie-1")["pid"] = 7  # it was started otherwise meanwhile
    roll(tmp_path)
    assert region.restarted == ["us-bookie-1", "us-broker-0", "us-broker-1"]
    region.restarted.clear()
    interrupted_at(region, tmp_path, "us-broker-0")
    real = rolling_commands.time.time
    monkeypatch.setattr(rolling_commands.time, "time", lambda: real() + 2 * rolling_commands._NOTES_S)
    roll(tmp_path)
    assert region.restarted == list(NAMES), "days later it is another run"


def test_another_release_in_the_same_environment_is_another_upgrade(
    region: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = iter(["faulty", "mended", "mended"])
    monkeypatch.setattr(rolling_commands, "release_of", lambda python: next(releases))
    first = interrupted_at(region, tmp_path, "us-broker-0", "/new/python")
    assert interrupted_at(region, tmp_path, "us-broker-1", "/new/python") == [*first, "us-broker-0"], "it began anew"
    roll(tmp_path, python="/new/python")
    assert region.restarted == ["us-broker-1"], "and this one goes on"


def test_a_release_is_told_by_what_its_environment_has(tmp_path: Path) -> None:
    here, nobody = rolling_commands.release_of(sys.executable), rolling_commands.release_of(str(tmp_path / "absent"))
    assert here == rolling_commands.release_of(sys.executable) != "" and nobody == rolling_commands.release_of("") == ""
