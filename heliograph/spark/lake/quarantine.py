"""What the ETL put into its quarantine, as lines of the job: a job that parks all of its rows would look as well as any
other.

Is: looked at by the driver. Isn't: the landing, which leaves a note for each micro-batch that parked something.
A note that comes again, of a micro-batch that ran again, may be said again.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from heliograph.spark.job_files.running_queries import Queries, say
from heliograph.spark.lake.landing import STAGING

_EVERY_S = 10.0
_MOST = 3


class QuarantinedQueries:
    """Queries of the ETL, and what they parked. name: of the job's query."""

    def __init__(
        self,
        queries: Queries,
        root: Path,
        name: str,
        *,
        say: Callable[..., None] = say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queries, self._notes, self._name, self._say, self._clock = (
            queries,
            root / STAGING / "_parked",
            name,
            say,
            clock,
        )
        self._said_at = -_EVERY_S

    @property
    def streams(self) -> Sequence[Any]:
        return self._queries.streams

    @property
    def busy(self) -> bool:
        return self._queries.busy

    def look(self) -> None:
        self._queries.look()
        if self._clock() - self._said_at >= _EVERY_S:
            self._tell()

    def close(self) -> None:
        self._queries.close()
        self._tell()

    def _tell(self) -> None:
        """All notes that are there as one line: how many rows, of how many topics, and of which most."""
        found: Counter[tuple[str, str]] = Counter()
        for note in self._notes.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):  # another driver of the same folder may have said it
                found.update({(topic, reason): rows for topic, reason, rows in json.loads(note.read_text())})
                note.unlink()
        if found:
            self._said_at = self._clock()
            most = [
                {"topic": topic, "rows": rows, "reason": reason[:200]}
                for (topic, reason), rows in found.most_common(_MOST)
            ]
            self._say(
                "etl.quarantined",
                query=self._name,
                rows=found.total(),
                topics=len({topic for topic, _ in found}),
                most=most,
            )
