"""The driver of a job file: starts its queries, starts anew what fails, says how far each is. `python -m heliograph.spark.driver job.toml`.

Is: one Spark session. Isn't: what outlives a JVM or a process: `supervisor` starts this one again.
A query that fails starts again from its checkpoint, after a pause that doubles; the others go on. SIGTERM stops all of them: a micro-batch that was under
way runs again at the next start. Exit: 0 all done or stopped, 2 the file is wrong, 75 the JVM is gone or all else: start me again.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError, HeliographError
from heliograph.spark.environment import session
from heliograph.spark.job import Job, Query, read_job
from heliograph.spark.portable import portable, tasks_of
from heliograph.spark.sql import Pipeline

AGAIN = 75
WRONG = 2
_LOOK_S = 0.5
_HEALTHY_S = 300.0
_INITIAL_S = 30.0


def start_query(spark: Any, defaults: Mapping[str, str], query: Query) -> list[Any]:
    """The streams that it started; empty where it was a batch, and is done. Raises ConfigError, and whatever Spark does."""
    if query.kind == "sql":
        pipeline = Pipeline(spark, defaults=defaults)
        try:
            pipeline.run(query.sql)
        except BaseException:
            _stop(pipeline.queries)
            raise
        return pipeline.queries
    if query.kind == "start":
        module, _, function = query.start.partition(":")
        try:
            start: Callable[..., list[Any]] = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"[[query]] {query.name}: {query.start} is not there: {error}") from error
        return list(start(spark, dict(defaults), query.name, dict(query.options)))
    reader = spark.readStream.format(query.source.get("format", "heliograph"))
    options = {key: value for key, value in query.source.items() if key not in ("format", "portable_tasks")}
    reader = reader.options(**({**defaults, **options} if "format" not in query.source else options))
    rows = (reader.schema(query.schema) if query.schema else reader).load()
    rows = portable(rows, tasks_of(query.source["portable_tasks"])) if "portable_tasks" in query.source else rows
    rows = rows.where(query.where) if query.where else rows
    rows = rows.selectExpr(*query.select) if query.select else rows
    sink = {key: value for key, value in query.sink.items() if key not in ("format", "mode")}
    writer = rows.writeStream.format(query.sink["format"]).queryName(query.name).outputMode(query.sink.get("mode", "append"))
    writer = writer.options(**({**defaults, **sink} if query.sink["format"] == "heliograph" else sink)).option("checkpointLocation", query.checkpoint)
    return [(writer.trigger(availableNow=True) if query.trigger == "available now" else writer.trigger(processingTime=query.trigger)).start()]


def _stop(queries: list[Any]) -> None:
    for query in queries:
        query.stop()


class _Unit:
    """One [[query]] while the driver runs."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.streams: list[Any] = []
        self.done = False
        self.failures = 0
        self.due = self.since = 0.0
        self.told: dict[str, int] = {}

    def failed(self) -> Exception | None:
        return next((error for stream in self.streams if not stream.isActive and (error := stream.exception()) is not None), None)


class Driver:
    """`say`: an event's name and its fields."""

    def __init__(self, job: Job, spark: Any, say: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._spark, self._say, self._clock = job, spark, say, clock
        self._units = [_Unit(query) for query in job.queries]
        self._told_at = clock()

    def look(self) -> bool:
        """One look at everything. False: all of it is done. Raises ConfigError where a query is not as it should be from the start."""
        now = self._clock()
        for unit in self._units:
            if not unit.done and not unit.streams and now >= unit.due and not self._initializing(now):
                self._start(unit, now)
            elif unit.streams and (error := unit.failed()) is not None:
                self._fail(unit, error, now)
            elif unit.streams and not any(stream.isActive for stream in unit.streams):
                unit.done = True
                self._progress(unit)
                self._say("query.done", query=unit.query.name)
        if now - self._told_at >= self._job.progress_s:
            self._told_at = now
            for unit in self._units:
                self._progress(unit)
        return not all(unit.done for unit in self._units)

    def stop(self) -> None:
        for unit in self._units:
            _stop(unit.streams)
            self._progress(unit)

    def _initializing(self, now: float) -> bool:
        """Whether a query's Python process is on its way. Spark gives that 10 s, and on a busy machine many at once would all be late, again and again."""
        young = [stream for unit in self._units if now - unit.since < _INITIAL_S for stream in unit.streams]
        return any(stream.isActive and stream.status["message"] == "Initializing sources" for stream in young)

    def _start(self, unit: _Unit, now: float) -> None:
        try:
            unit.streams = start_query(self._spark, self._job.defaults, unit.query)
        except ConfigError:
            raise
        except Exception as error:
            self._fail(unit, error, now)
            return
        unit.since, unit.done = now, not unit.streams
        self._say("query.done" if unit.done else "query.started", query=unit.query.name, failures=unit.failures)

    def _fail(self, unit: _Unit, error: Exception, now: float) -> None:
        _stop(unit.streams)  # of several that belong together, all
        unit.failures = 1 if unit.streams and now - unit.since > _HEALTHY_S else unit.failures + 1
        pause = min(self._job.pause_max_s, 2.0 ** min(unit.failures - 1, 16))
        unit.streams, unit.due = [], now + pause
        self._say("query.failed", query=unit.query.name, again_in_s=pause, error=_short(error))

    def _progress(self, unit: _Unit) -> None:
        for stream in unit.streams:
            progress = stream.lastProgress
            if progress is None or unit.told.get(stream.runId) == progress["batchId"]:
                continue
            unit.told[stream.runId] = progress["batchId"]
            rate, took = round(progress.get("processedRowsPerSecond") or 0), progress["durationMs"].get("triggerExecution", 0)
            batch, rows = progress["batchId"], progress["numInputRows"]
            self._say("query.progress", query=unit.query.name, batch=batch, rows=rows, rows_s=rate, took_ms=took, **_state(progress))


def _state(progress: Mapping[str, Any]) -> dict[str, int]:
    """Of a query that aggregates: how much it keeps, and how many rows came too late for that."""
    kept: list[Mapping[str, Any]] = progress.get("stateOperators") or []
    names = {"state_rows": "numRowsTotal", "state_bytes": "memoryUsedBytes", "late_rows": "numRowsDroppedByWatermark"}
    return {name: sum(int(each[field]) for each in kept) for name, field in names.items()} if kept else {}


def _short(error: Exception) -> str:
    """The line that a person can use: the cause stands last in a Python worker's traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith(("at ", "File ", "^", "JVM"))]
    named = [line for line in lines if "errors." in line or "Error:" in line or "Exception:" in line]
    return (named or lines or [type(error).__name__])[-1][:500]


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **fields}), flush=True)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m heliograph.spark.driver job.toml", file=sys.stderr)
        return WRONG
    stopping, parent = threading.Event(), os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        job = read_job(Path(sys.argv[1]))
        driver = Driver(job, session(job.name, master=job.master, settings=dict(job.conf)), say)
        while not stopping.is_set() and os.getppid() == parent and driver.look():
            stopping.wait(_LOOK_S)
        driver.stop()
        say("job.stopped" if stopping.is_set() else "job.done")
        return 0
    except ConfigError as error:
        print(f"heliograph: {error}", file=sys.stderr, flush=True)
        return WRONG
    except (HeliographError, OSError) as error:
        say("driver.failed", error=_short(error))
        return AGAIN
    except Exception as error:  # py4j's errors of a JVM that is gone
        say("driver.failed", error=_short(error))
        return AGAIN


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # py4j's threads wait for a JVM that may be gone
