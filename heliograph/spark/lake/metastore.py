"""Hive's metastore hears what the ETL landed: batch folders become partitions, and new columns columns.

Is: looked at by the driver, which has the session; the sink's commit has none. Isn't: the landing (`landing`), which
leaves a note for each batch.
How: all notes that are there are one round, table by table, whatever number of batches that is: so however slow the
metastore is, it is behind by a round. It is told in a thread: on a busy machine its first statement takes a minute, and
the driver has other queries to look after.
What it refuses of one table holds up that one alone: its part of each note waits in `_landed/_held/TABLE`, and is told
with all that came since after a while.
Invariants: notes go when all of their tables are told or held, so a death in between tells them again, and each
statement may be repeated. Files come first: the metastore is behind them, and never ahead.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heliograph.spark.job_files.running_queries import Queries, say, short
from heliograph.spark.lake.landing import STAGING
from heliograph.spark.stores.hive import HiveTables

_HELD = "_held"
_NOTES_A_ROUND = 500
_AGAIN_S = 60.0
"""After which a table that was refused, or a metastore that was away, is tried again."""
_END_S = 10.0
"""How long an end waits for what is left to be told; notes stay."""


@dataclass(slots=True)
class _Change:
    """Gathers what one table's notes say. batches: whether its folder is there; the newest note counts."""

    columns: dict[str, str] = field(default_factory=dict)
    batches: dict[str, bool] = field(default_factory=dict)


class InMetastore:
    """Queries of the ETL, and the metastore behind them."""

    def __init__(
        self,
        queries: Queries,
        root: Path,
        hive: HiveTables,
        *,
        say: Callable[..., None] = say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queries, self._notes, self._hive, self._say, self._clock = (
            queries,
            root / STAGING / "_landed",
            hive,
            say,
            clock,
        )
        self._due: dict[str, float] = {}
        """By table that was refused, when it is tried again; what an earlier driver held is tried at once."""
        self._away_until = -_AGAIN_S
        self._thread = ThreadPoolExecutor(1)
        self._telling: Future[None] | None = None
        self._ended = False

    @property
    def streams(self) -> Sequence[Any]:
        return self._queries.streams

    @property
    def busy(self) -> bool:
        return self._queries.busy or self._telling is not None or bool(self._there() or self._held())

    def look(self) -> None:
        """What the metastore refuses, or that it is away, is said, and tried again: rows go on into their tables'
        folders meanwhile.
        """
        self._queries.look()
        if self._telling is not None and self._telling.done():
            told, self._telling = self._telling, None
            try:
                told.result()
            except Exception as error:  # Spark's, of whatever its client says
                self._away_until = self._clock() + _AGAIN_S
                self._say("hive.away", error=short(error), again_in_s=_AGAIN_S)
        if (
            self._telling is None
            and self._clock() >= self._away_until
            and (self._there() or any(self._is_due(table) for table in self._held()))
        ):
            self._telling = self._thread.submit(self._tell)

    def close(self) -> None:
        self._queries.close()
        last = self._thread.submit(self._tell)
        with contextlib.suppress(
            Exception
        ):  # of a session that is gone, say, or it takes too long: the next start tells what is left
            last.result(_END_S)
        self._ended = True
        self._thread.shutdown(wait=False)

    def _tell(self) -> None:
        """One round. Raises what the metastore does when it is away."""
        notes = sorted(self._there(), key=_time_of)[:_NOTES_A_ROUND]
        parts: dict[str, dict[str, Any]] = {table: {} for table in self._held() if self._is_due(table)}
        """By table, what each note says of it."""
        for note in notes:
            given = json.loads(note.read_text())
            for table in (*given["tables"], *given["gone"]):
                columns = {name: kinds for name, kinds in given["tables"].items() if name == table}
                parts.setdefault(table, {})[note.name] = {
                    "batch": given["batch"],
                    "tables": columns,
                    "gone": [] if columns else [table],
                }
        for table, new in parts.items():
            if self._ended:  # another one may be telling by now
                return
            if not self._is_due(table):
                self._hold(table, new)
                continue
            held = {path.name: json.loads(path.read_text()) for path in (self._notes / _HELD / table).glob("*.json")}
            both = held | new
            try:
                self._tell_of(
                    table, _change(both[name] for name in sorted(both, key=lambda name: _time_of(Path(name))))
                )
            except Exception as error:  # Spark's, of whatever the metastore says
                if not self._hive.answers():
                    raise
                self._hold(table, new)
                self._due[table] = self._clock() + _AGAIN_S
                self._say("hive.refused", table=table, notes=len(both), error=short(error), again_in_s=_AGAIN_S)
                continue
            self._due.pop(table, None)
            if held:
                shutil.rmtree(self._notes / _HELD / table)
                self._say("hive.told", table=table, notes=len(both))
        for note in notes:
            note.unlink(missing_ok=True)

    def _tell_of(self, table: str, change: _Change) -> None:
        if there := [batch for batch, is_there in change.batches.items() if is_there]:
            self._hive.tell(table, change.columns, there)
        for batch in [batch for batch, is_there in change.batches.items() if not is_there]:
            self._hive.forget(table, batch)

    def _hold(self, table: str, parts: Mapping[str, Any]) -> None:
        folder = self._notes / _HELD / table
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            new = (folder / name).with_suffix(".new")
            new.write_text(json.dumps(part))
            new.replace(folder / name)

    def _is_due(self, table: str) -> bool:
        return self._clock() >= self._due.get(table, -_AGAIN_S)

    def _held(self) -> list[str]:
        return [path.name for path in (self._notes / _HELD).glob("*")]

    def _there(self) -> list[Path]:
        return list(self._notes.glob("*.json"))


def _time_of(note: Path) -> str:
    """Orders notes by their time, as for a batch that landed twice the last one is right."""
    return note.stem.rpartition(".")[2]


def _change(notes: Iterable[Mapping[str, Any]]) -> _Change:
    """Gathers notes about one table, in their order."""
    found = _Change()
    for note in notes:
        for columns in note["tables"].values():
            found.columns |= columns
        found.batches[note["batch"]] = bool(note["tables"])
    return found
