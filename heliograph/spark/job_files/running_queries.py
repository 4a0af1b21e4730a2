"""Queries that run: what a driver looks at, and what it says of them, a line of JSON each.

Is: the shape of what a job's `start` returns, and streams that stay as they were started. Isn't: when to start what
again (`driver`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

INITIAL_S = 30.0
"""How long a stream that is initializing holds up others: one that hangs does not."""


class Queries(Protocol):
    """What belongs together: it starts and ends streams itself, when it is looked at, and what it raises is its
    failure.
    """

    @property
    def streams(self) -> Sequence[Any]:
        """Spark's, also of what has ended."""

    @property
    def busy(self) -> bool:
        """Whether there is more to do, though no stream runs at this moment."""

    def look(self) -> None:
        """To be called every second or so."""

    def close(self) -> None:
        """When all streams are stopped."""


class Fixed:
    """Streams that were started, and stay; none of a batch, which is done."""

    def __init__(self, streams: Sequence[Any]) -> None:
        self.streams = list(streams)
        self.busy = False

    def look(self) -> None:
        """Does nothing, as Spark alone runs these streams."""

    def close(self) -> None:
        """Does nothing: this holds nothing beside the streams."""


def initializing(streams: Sequence[Any]) -> bool:
    """Whether a stream's Python process is on its way. Spark gives that 10 s, and on a busy machine many at once would
    all be late, again and again.
    """
    return any(stream.isActive and str(stream.status["message"]).startswith("Initializing") for stream in streams)


def state_of(progress: Mapping[str, Any]) -> dict[str, int]:
    """Says of a query that aggregates how much it keeps, and how many rows came too late for that; {} for any other."""
    kept: list[Mapping[str, Any]] = progress.get("stateOperators") or []
    names = {"state_rows": "numRowsTotal", "state_bytes": "memoryUsedBytes", "late_rows": "numRowsDroppedByWatermark"}
    return {name: sum(int(each[field]) for each in kept) for name, field in names.items()} if kept else {}


def lag_of(progress: Mapping[str, Any]) -> dict[str, int]:
    """Says of a query over topics about how much its newest micro-batch leaves to the next ones. Other sources' offsets
    have shapes of their own.
    """
    found = []
    for source in progress.get("sources") or []:
        try:
            told = json.loads(source["latestOffset"])
        except (KeyError, TypeError, ValueError):
            continue
        if isinstance(told, dict) and told.keys() == {"bytes", "messages", "topics"}:
            found.append(told)
    return {f"behind_{name}": sum(each[name] for each in found) for name in ("bytes", "messages")} if found else {}


def short(error: Exception) -> str:
    """The line that a person can use: the cause stands last in a Python worker's traceback; what Spark itself says,
    before how its threads stood.
    """
    said, _, _ = str(error).partition("=== Streaming Query ===")  # a plan follows
    lines = [
        line.strip()
        for line in said.splitlines()
        if line.strip() and not line.lstrip().startswith(("at ", "File ", "^", "JVM"))
    ]
    ours = [line for line in lines if "heliograph.model.errors." in line]
    named = [line for line in lines if "errors." in line or "Error:" in line or "Exception:" in line]
    told = [line for line in lines if "terminated with exception: " in line]
    return (ours or named or told or lines or [type(error).__name__])[-1][:500]


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **fields}), flush=True)
