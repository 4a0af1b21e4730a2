"""The driver of a job file: starts its queries, starts anew what fails, says how far each is. `python -m
heliograph.spark.driver job.toml`.

Is: one Spark session. Isn't: what outlives a JVM or a process: `supervisor` starts this one again.
A query that fails starts again from its checkpoint, after a pause that doubles; the others go on, also beside a batch,
which runs in a thread. SIGTERM stops all of them: a micro-batch that was under way runs again at the next start. Exit:
0 all done or stopped, 2 the file is wrong, 75 the JVM is gone or all else: start me again.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError, HeliographError
from heliograph.spark.environment import session
from heliograph.spark.job_files.job_file import Job, Query, read_job
from heliograph.spark.job_files.running_queries import (
    INITIAL_S,
    Fixed,
    Queries,
    initializing,
    lag_of,
    say,
    short,
    state_of,
)
from heliograph.spark.lake.parquet_sink import into
from heliograph.spark.portable import portable, tasks_of
from heliograph.spark.scan.source_options import Options
from heliograph.spark.sql import Pipeline

AGAIN = 75
WRONG = 2
_LOOK_S = 0.5
_HEALTHY_S = 300.0
_PR_SET_PDEATHSIG = 1
_START_S = 10.0


def start_query(spark: Any, defaults: Mapping[str, str], query: Query) -> Queries:
    """What it started; no streams where it was a batch, and is done. Raises ConfigError, and whatever Spark does."""
    if query.kind == "sql":
        pipeline = Pipeline(spark, defaults=defaults, repeated=True)
        try:
            pipeline.run(query.sql)
        except BaseException:
            _stop(pipeline.queries)
            raise
        return Fixed(pipeline.queries)
    if query.kind == "start":
        module, _, function = query.start.partition(":")
        try:
            start: Callable[..., list[Any] | Queries] = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"[[query]] {query.name}: {query.start} is not there: {error}") from error
        made = start(spark, dict(defaults), query.name, dict(query.options))
        return Fixed(made) if isinstance(made, list) else made
    reader = spark.readStream.format(query.source.get("format", "heliograph"))
    options = {key: value for key, value in query.source.items() if key not in ("format", "portable_tasks")}
    if query.source.get("format", "heliograph") == "heliograph":
        options = {**defaults, **options}
        Options(options)  # what is wrong with them is said here, and not by a Python process of Spark's
    reader = reader.options(**options)
    rows = (reader.schema(query.schema) if query.schema else reader).load()
    rows = portable(rows, tasks_of(query.source["portable_tasks"])) if "portable_tasks" in query.source else rows
    rows = rows.where(query.where) if query.where else rows
    rows = rows.selectExpr(*query.select) if query.select else rows
    sink = {key: value for key, value in query.sink.items() if key not in ("format", "mode")}
    if query.sink["format"] == "heliograph":
        sink = {**defaults, **sink}
    mode = query.sink.get("mode", "append")
    writer = into(rows, query.sink["format"], sink, mode, query.name).queryName(query.name).outputMode(mode)
    writer = writer.option("checkpointLocation", query.checkpoint)
    return Fixed(
        [
            (
                writer.trigger(availableNow=True)
                if query.trigger == "available now"
                else writer.trigger(processingTime=query.trigger)
            ).start()
        ]
    )


def _stop(queries: Sequence[Any]) -> None:
    for query in queries:
        query.stop()


class _Start:
    """A query's start in a thread of its own: of a batch, it is all of it."""

    def __init__(self, act: Callable[[], Queries]) -> None:
        self._act = act
        self._made: Queries | None = None
        self._error: Exception = RuntimeError("its start ended without a word")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._made = self._act()
        except Exception as error:  # who asks how it ended is told
            self._error = error

    def ended(self, wait_s: float) -> bool:
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def result(self) -> Queries:
        """Raises what the start did."""
        if self._made is None:
            raise self._error
        return self._made


class _Unit:
    """One [[query]] while the driver runs."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.start: _Start | None = None
        self.queries: Queries | None = None
        self.done = False
        self.failures = 0
        self.due = self.since = 0.0
        self.told: dict[str, int] = {}

    @property
    def streams(self) -> Sequence[Any]:
        return () if self.queries is None else self.queries.streams

    def failed(self) -> Exception | None:
        return next(
            (error for stream in self.streams if not stream.isActive and (error := stream.exception()) is not None),
            None,
        )

    def stop(self) -> None:
        _stop(self.streams)
        if self.queries is not None:
            self.queries.close()


class Driver:
    """`say`: an event's name and its fields."""

    def __init__(
        self,
        job: Job,
        spark: Any,
        say: Callable[..., None],
        *,
        clock: Callable[[], float] = time.monotonic,
        lives: Callable[[], bool] = lambda: True,
        start_s: float = _START_S,
    ) -> None:
        """lives: whether Spark is there at all: without it no query can be started again, and what one failed with is
        the driver's end. start_s: how long a start is waited for: what takes longer is a batch, and goes on while the
        others are looked at.
        """
        self._start_s = start_s
        self._job, self._spark, self._say, self._clock, self._lives = job, spark, say, clock, lives
        self._units = [_Unit(query) for query in job.queries]
        self._told_at = clock()

    def look(self) -> bool:
        """One look at everything. False: all of it is done. Raises ConfigError where a query is not as it should be
        from the start, anything without Spark.
        """
        now = self._clock()
        for unit in self._units:
            if unit.start is not None:
                self._started(unit, unit.start, now, 0.0)
            elif not unit.done and unit.queries is None and now >= unit.due and not self._initializing(now):
                self._start(unit, now)
            elif unit.queries is not None and (error := unit.failed()) is not None:
                self._fail(unit, error, now)
            elif unit.queries is not None and not unit.done:
                self._tend(unit, unit.queries, now)
        if now - self._told_at >= self._job.progress_s:
            self._told_at = now
            for unit in self._units:
                self._progress(unit)
        return not all(unit.done for unit in self._units)

    def stop(self) -> None:
        """What a batch was at ends with the process, and runs again at the next start."""
        if any(unit.start is not None for unit in self._units):
            _stop(self._spark.streams.active)  # of a text whose batch is under way, nobody has told which these are
        for unit in self._units:
            unit.stop()
            self._progress(unit)

    def _tend(self, unit: _Unit, queries: Queries, now: float) -> None:
        try:
            queries.look()
        except ConfigError:
            raise
        except Exception as error:  # of one unit: the others go on
            self._fail(unit, error, now)
            return
        if not queries.busy and not any(stream.isActive for stream in queries.streams):
            if (failed := unit.failed()) is not None:  # since it was asked before: a look may take seconds
                self._fail(unit, failed, now)
                return
            if not self._lives():  # a JVM that is told to stop ends its streams without an error
                raise RuntimeError("Spark was stopped while queries ran")
            unit.done = True
            self._progress(unit)
            queries.close()
            self._say("query.done", query=unit.query.name)

    def _initializing(self, now: float) -> bool:
        """Whether a query's Python process is on its way. Spark gives that 10 s, and on a busy machine many at once
        would all be late, again and again.
        """
        return initializing([stream for unit in self._units if now - unit.since < INITIAL_S for stream in unit.streams])

    def _start(self, unit: _Unit, now: float) -> None:
        def act() -> Queries:
            activate(self._spark)
            return start_query(self._spark, self._job.defaults, unit.query)

        unit.since, unit.start = now, _Start(act)
        self._started(unit, unit.start, now, self._start_s)

    def _started(self, unit: _Unit, start: _Start, now: float, wait_s: float) -> None:
        if not start.ended(wait_s):
            return
        unit.start = None
        try:
            unit.queries = start.result()
        except ConfigError:
            raise
        except Exception as error:
            self._fail(unit, error, now)
            return
        unit.since, unit.done = now, not unit.streams and not unit.queries.busy
        self._say("query.done" if unit.done else "query.started", query=unit.query.name, failures=unit.failures)

    def _fail(self, unit: _Unit, error: Exception, now: float) -> None:
        if not self._lives():
            raise error
        unit.stop()  # of several that belong together, all
        unit.failures = 1 if unit.queries is not None and now - unit.since > _HEALTHY_S else unit.failures + 1
        pause = min(self._job.pause_max_s, 2.0 ** min(unit.failures - 1, 16))
        unit.queries, unit.due = None, now + pause
        self._say("query.failed", query=unit.query.name, again_in_s=pause, error=short(error))

    def _progress(self, unit: _Unit) -> None:
        if unit.start is not None:
            self._say("query.running", query=unit.query.name, seconds=round(self._clock() - unit.since))
        streams = unit.streams
        for stream in streams:
            progress = stream.lastProgress
            if progress is None or unit.told.get(stream.runId) == progress["batchId"]:
                continue
            unit.told[stream.runId] = progress["batchId"]
            which = {"query": unit.query.name} | ({"stream": stream.name} if len(streams) > 1 else {})
            rate, took = (
                round(progress.get("processedRowsPerSecond") or 0),
                progress["durationMs"].get("triggerExecution", 0),
            )
            batch, rows = progress["batchId"], progress["numInputRows"]
            self._say(
                "query.progress",
                **which,
                batch=batch,
                rows=rows,
                rows_s=rate,
                took_ms=took,
                **lag_of(progress),
                **state_of(progress),
            )
        known = {stream.runId for stream in streams}
        unit.told = {run: batch for run, batch in unit.told.items() if run in known}


def activate(spark: Any) -> None:
    """Spark looks formats that were registered up in the session of the thread, and a new thread has none."""
    own = getattr(spark, "_jsparkSession", None)
    if own is not None:
        type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession(own)


def answers(spark: Any) -> bool:
    """Whether the session's JVM is there, and has not stopped."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j's, or a socket's
        return False


def _die_with(parent: int) -> None:
    """Where the system can: a supervisor that is killed takes a driver with it that is still waiting for its JVM."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(AGAIN)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m heliograph.spark.driver job.toml", file=sys.stderr)
        return WRONG
    stopping, parent = threading.Event(), os.getppid()
    _die_with(parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        job = read_job(Path(sys.argv[1]))
        spark = session(job.name, master=job.master, settings=dict(job.conf))
        driver = Driver(job, spark, say, lives=lambda: answers(spark))
        while not stopping.is_set() and os.getppid() == parent and driver.look():
            stopping.wait(_LOOK_S)
        driver.stop()
        say("job.stopped" if stopping.is_set() else "job.done")
        return 0
    except ConfigError as error:
        print(f"heliograph: {error}", file=sys.stderr, flush=True)
        return WRONG
    except (HeliographError, OSError) as error:
        say("driver.failed", error=short(error))
        return AGAIN
    except Exception as error:  # py4j's errors of a JVM that is gone
        say("driver.failed", error=short(error))
        return AGAIN


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # py4j's threads wait for a JVM that may be gone
