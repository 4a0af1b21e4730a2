"""Hive's metastore hears what the ETL landed: batch folders become partitions, and new columns columns.

Is: looked at by the driver, which has the session; the sink's commit has none. Isn't: the landing (`landing`), which leaves a note for each batch.
Invariants: a note goes when all of its tables are told, so a death in between tells them again, and each statement may be repeated. Files come first: the
metastore is behind them by a look of the driver, and never ahead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heliograph.spark.jobs.landing import STAGING
from heliograph.spark.queries import Queries
from heliograph.spark.stores.hive import HiveTables

_TABLES_A_LOOK = 20


class InMetastore:
    """Queries of the ETL, and the metastore behind them."""

    def __init__(self, queries: Queries, root: Path, hive: HiveTables) -> None:
        self._queries, self._notes, self._hive = queries, root / STAGING / "_landed", hive
        self._told: tuple[str, set[str]] = "", set()
        """A note, and its tables that know already. Another one may become the oldest meanwhile: queries of several groups leave notes."""

    @property
    def streams(self) -> Sequence[Any]:
        return self._queries.streams

    @property
    def busy(self) -> bool:
        return self._queries.busy or self._oldest() is not None

    def look(self) -> None:
        self._queries.look()
        note = self._oldest()
        if note is None:
            return
        given = json.loads(note.read_text())
        if self._told[0] != note.name:
            self._told = note.name, set()
        left = [table for table in sorted(given["tables"]) if table not in self._told[1]]
        for table in left[:_TABLES_A_LOOK]:
            self._hive.tell(table, given["tables"][table], [given["batch"]])
            self._told[1].add(table)
        if len(left) <= _TABLES_A_LOOK:
            for table in given["gone"]:
                self._hive.forget(table, given["batch"])
            note.unlink()

    def close(self) -> None:
        self._queries.close()

    def _oldest(self) -> Path | None:
        return min(self._notes.glob("*.json"), default=None) if self._notes.is_dir() else None
