"""Hive's metastore hears what the ETL landed: batch folders become partitions, and new columns columns.

Is: looked at by the driver, which has the session; the sink's commit has none. Isn't: the landing (`landing`), which leaves a note for each batch.
How: all notes that are there are one round, table by table, whatever number of batches that is: so however slow the metastore is, it is behind by a round.
It is told in a thread: on a busy machine its first statement takes a minute, and the driver has other queries to look after.
Invariants: notes go when all of their tables are told, so a death in between tells them again, and each statement may be repeated. Files come first: the
metastore is behind them, and never ahead.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heliograph.spark.jobs.landing import STAGING
from heliograph.spark.queries import Queries
from heliograph.spark.stores.hive import HiveTables

_NOTES_A_ROUND = 500
_END_S = 10.0
"""How long an end waits for what is left to be told; notes stay."""


@dataclass(slots=True)
class _Change:
    """Of one table. batches: whether its folder is there; the newest note counts."""

    columns: dict[str, str] = field(default_factory=dict)
    batches: dict[str, bool] = field(default_factory=dict)


class InMetastore:
    """Queries of the ETL, and the metastore behind them."""

    def __init__(self, queries: Queries, root: Path, hive: HiveTables) -> None:
        self._queries, self._notes, self._hive = queries, root / STAGING / "_landed", hive
        self._thread = ThreadPoolExecutor(1)
        self._telling: Future[None] | None = None
        self._ended = False

    @property
    def streams(self) -> Sequence[Any]:
        return self._queries.streams

    @property
    def busy(self) -> bool:
        return self._queries.busy or self._telling is not None or bool(self._there())

    def look(self) -> None:
        """Raises what the metastore said to the round before."""
        self._queries.look()
        if self._telling is not None and self._telling.done():
            told, self._telling = self._telling, None
            told.result()
        if self._telling is None and self._there():
            self._telling = self._thread.submit(self._tell)

    def close(self) -> None:
        self._queries.close()
        last = self._thread.submit(self._tell)
        with contextlib.suppress(Exception):  # of a session that is gone, say, or it takes too long: the next start tells what is left
            last.result(_END_S)
        self._ended = True
        self._thread.shutdown(wait=False)

    def _tell(self) -> None:
        """One round. By the notes' time: of a batch that landed twice the last one is right."""
        notes = sorted(self._there(), key=lambda path: path.stem.rpartition(".")[2])[:_NOTES_A_ROUND]
        changes: dict[str, _Change] = {}
        for note in notes:
            given = json.loads(note.read_text())
            for table, columns in given["tables"].items():
                change = changes.setdefault(table, _Change())
                change.columns |= columns
                change.batches[given["batch"]] = True
            for table in given["gone"]:
                changes.setdefault(table, _Change()).batches[given["batch"]] = False
        for table, change in changes.items():
            if self._ended:  # another one may be telling by now
                return
            if there := [batch for batch, is_there in change.batches.items() if is_there]:
                self._hive.tell(table, change.columns, there)
            for batch in [batch for batch, is_there in change.batches.items() if not is_there]:
                self._hive.forget(table, batch)
        for note in notes:
            note.unlink(missing_ok=True)

    def _there(self) -> list[Path]:
        return list(self._notes.glob("*.json"))
