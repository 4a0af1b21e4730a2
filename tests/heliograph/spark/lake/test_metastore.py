"""Which notes of the ETL the metastore hears of, in what order they may come, and how often it is asked."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from heliograph.spark.job_files.running_queries import Fixed
from heliograph.spark.lake.landing import STAGING
from heliograph.spark.lake.metastore import InMetastore
from tests.region_node.live import until


class Hive:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.calls: list[tuple[str, list[str], int]] = []
        self.forgotten: list[tuple[str, str]] = []
        self.refused = {"none"}
        self.away = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def tell(self, table: str, columns: dict[str, str], values: list[str]) -> None:
        self.goes_on.wait(60)
        if self.away or table in self.refused:
            raise ConnectionError("not this one")
        self.told += [(table, value) for value in values]
        self.calls.append((table, sorted(columns), len(values)))

    def answers(self) -> bool:
        return not self.away

    def forget(self, table: str, value: str) -> None:
        self.forgotten.append((table, value))


def write(path: Path, note: dict[str, Any]) -> None:
    """As a whole: another thread reads."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(note))
    new.replace(path)


def settle(metastore: InMetastore) -> None:
    def settled() -> bool:
        metastore.look()
        return not metastore.busy

    until(settled)


def test_a_note_that_becomes_the_oldest_is_told_whole(tmp_path: Path) -> None:
    """Two groups of the ETL: the number of a micro-batch is its query's own."""
    notes, hive = tmp_path / STAGING / "_landed", Hive()
    notes.mkdir(parents=True)

    def note(batch: str, tables: list[str]) -> None:
        write(
            notes / f"{batch}.1.json",
            {"batch": batch, "tables": {table: {"n": "bigint"} for table in tables}, "gone": []},
        )

    metastore = InMetastore(Fixed([]), tmp_path, cast(Any, hive))
    many = [f"t{n:02d}" for n in range(24)]
    note("batch=0000000100-light", ["_quarantine", *many])
    hive.goes_on.clear()
    metastore.look()
    note("batch=0000000007-heavy", ["_quarantine", "t00"])
    metastore.look()  # holds nobody up
    assert metastore.busy and not hive.told
    hive.goes_on.set()
    settle(metastore)
    assert set(hive.told) == {
        *(("_quarantine", f"batch={batch}") for batch in ("0000000100-light", "0000000007-heavy")),
        *((table, "batch=0000000100-light") for table in many),
        ("t00", "batch=0000000007-heavy"),
    }


def test_micro_batches_that_wait_are_told_at_once_and_the_newest_note_counts(tmp_path: Path) -> None:
    """A metastore that is slower than micro-batches never falls behind for long; a stop leaves nothing that a look
    would have told.
    """
    notes, hive = tmp_path / STAGING / "_landed", Hive()
    notes.mkdir(parents=True)

    def note(number: int, at: int, tables: dict[str, list[str]], gone: list[str]) -> None:
        kinds = {table: dict.fromkeys(columns, "bigint") for table, columns in tables.items()}
        write(notes / f"{number:010d}-a.{at:020d}.json", {"batch": f"{number}", "tables": kinds, "gone": gone})

    for number in range(40):
        note(number, 10 * number, {"all": ["n"]}, [])
    note(7, 405, {"all": ["n", "more"], "other": ["n"]}, [])
    note(39, 410, {"other": ["n"]}, ["all"])
    note(40, 9, {"all": ["n"]}, ["other"])  # by a clock that went back: no other note is of that batch
    metastore = InMetastore(Fixed([]), tmp_path, cast(Any, hive))
    settle(metastore)
    assert sorted(hive.calls) == [("all", ["more", "n"], 40), ("other", ["n"], 2)], (
        "a statement a table, whatever number of batches"
    )
    assert set(hive.told) == {("all", f"{number}") for number in (*range(39), 40)} | {("other", "7"), ("other", "39")}
    assert set(hive.forgotten) == {("all", "39"), ("other", "40")} and not metastore.busy
    note(41, 500, {"all": ["n"]}, [])
    metastore.close()
    assert ("all", "41") in hive.told and not metastore.busy


def test_a_table_that_is_refused_holds_up_itself_alone_and_is_told_whole_in_the_end(tmp_path: Path) -> None:
    notes, hive, now = tmp_path / STAGING / "_landed", Hive(), [0.0]
    notes.mkdir(parents=True)
    said: list[tuple[str, str]] = []

    def note(number: int, at: int, tables: dict[str, list[str]], gone: list[str]) -> None:
        kinds = {table: dict.fromkeys(columns, "bigint") for table, columns in tables.items()}
        write(notes / f"{number:010d}-a.{at:020d}.json", {"batch": f"{number}", "tables": kinds, "gone": gone})

    def made() -> InMetastore:
        hear = lambda event, **fields: said.append((event, fields.get("table", "")))  # noqa: E731
        return InMetastore(Fixed([]), tmp_path, cast(Any, hive), say=hear, clock=lambda: now[0])

    def looked(metastore: InMetastore, until_told: set[tuple[str, str]]) -> None:
        def told() -> bool:
            metastore.look()
            return set(hive.told) == until_told and not list(notes.glob("*.json"))

        until(told)

    metastore = made()
    hive.refused = {"bad"}
    note(1, 10, {"bad": ["n"], "fine": ["n"]}, [])
    note(2, 20, {"bad": ["n", "more"], "fine": ["n"]}, [])
    looked(metastore, {("fine", "1"), ("fine", "2")})
    note(3, 30, {"bad": ["n"], "fine": ["n"]}, [])
    note(2, 40, {"fine": ["n"]}, ["bad"])  # the second one landed once more, without rows for it
    looked(metastore, {("fine", "1"), ("fine", "2"), ("fine", "3")})
    assert said == [("hive.refused", "bad")] and metastore.busy, "it is asked once, and not given up"
    assert sorted(path.name for path in notes.glob("_held/*")) == ["bad"]
    now[0] += 100
    until(lambda: bool(metastore.look() or len(said) == 2))
    hive.refused = set()
    metastore.close()
    metastore = made()  # the next driver asks at once
    settle(metastore)
    assert hive.calls[-1] == ("bad", ["more", "n"], 2) and hive.forgotten == [("bad", "2")], (
        "all that waited, and the newest note counts"
    )
    assert said == [("hive.refused", "bad")] * 2 + [("hive.told", "bad")] and not metastore.busy


def test_a_metastore_that_is_away_is_asked_again_and_nothing_is_lost(tmp_path: Path) -> None:
    notes, hive, now = tmp_path / STAGING / "_landed", Hive(), [0.0]
    notes.mkdir(parents=True)
    said: list[str] = []
    for number in range(30):
        write(
            notes / f"{number}.{number}.json",
            {"batch": str(number), "tables": {f"t{number}": {"n": "bigint"}}, "gone": []},
        )
    hive.away = True
    metastore = InMetastore(
        Fixed([]), tmp_path, cast(Any, hive), say=lambda event, **fields: said.append(event), clock=lambda: now[0]
    )
    until(lambda: bool(metastore.look() or said))
    for _ in range(3):
        metastore.look()
    assert said == ["hive.away"] and metastore.busy and not list(notes.glob("_held/*")), "no table is to blame"
    metastore.close()
    assert metastore.busy, "what could not be told is there for the next start"
    hive.away = False
    metastore = InMetastore(Fixed([]), tmp_path, cast(Any, hive))
    settle(metastore)
    assert len(set(hive.told)) == 30
