"""Job files: what is read, and one sentence for each thing that is wrong; a driver that starts again what fails, on a
clock of the test's.
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from heliograph.model.errors import ConfigError
from heliograph.spark import driver as driver_module
from heliograph.spark import jobs
from heliograph.spark.commands import JOBS, check_query
from heliograph.spark.driver import Driver, start_query
from heliograph.spark.job_files.job_file import EXAMPLE, Job, job_of, read_job
from heliograph.spark.job_files.running_queries import Fixed, short
from heliograph.spark.supervisor import pauses
from tests.region_node import live

LAKE = "topics = ['t'], path = '/p', checkpoint = '/c', table = [{ schema = 'a int' }]"
GOOD = "[[query]]\nname = 'a'\nsql = 'SELECT 1'\n"
COPY = "[[query]]\nname = 'c'\ncheckpoint = '/c'\nsource = {topic = 't'}\nsink = {format = 'parquet'}\n"


def parsed(text: str) -> Job:
    return job_of(tomllib.loads(text), Path("/jobs"))


def test_the_example_is_a_job() -> None:
    made = parsed(EXAMPLE)
    assert [(q.name, q.kind) for q in made.queries] == [("lake", "start"), ("french", "sql")]
    assert (made.master, made.conf["spark.sql.shuffle.partitions"], made.defaults["admin_url"]) == (
        "local[2,4]",
        "4",
        "http://127.0.0.1:8080",
    )
    for query in made.queries:
        check_query(query, made.defaults)
    plain = "\n".join(line.removeprefix("# ") for line in EXAMPLE[EXAMPLE.index("# [[query]]") :].splitlines())
    (copy,) = parsed(plain).queries
    check_query(copy, made.defaults)
    assert copy.select == ("topic", "cast(value as string) as body") and copy.sink["format"] == "table"


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("job = 'elt'", "no job 'elt'; there are audit, etl"),
        ("source = {topik = 'x'}\nsink = {format = 'noop'}\ncheckpoint = '/c'", "either topic"),
        (
            "source = {topic = 'x', starting = 'soon'}\nsink = {format = 'noop'}\ncheckpoint = '/c'",
            "starting is 'soon'",
        ),
        ("sql = \"CREATE STREAM TABLE t (a int) WITH (topic = 'x', columns = 'tables')\"", "columns is 'tables'"),
        ("sql = 'CREATE SINK s WITH (path = 5)'", "expected key"),
        (
            f"job = 'etl'\noptions = {{ {LAKE}, topic_pattern = '.*' }}",
            r"\[query.options\] has no option 'topic_pattern'; there are .*topics_pattern",
        ),
        (f"job = 'etl'\noptions = {{ {LAKE}, source = {{ start = 'latest' }} }}", "no option 'start'"),
        (f"job = 'etl'\noptions = {{ {LAKE}, trigger = '10 parsecs' }}", "trigger is '10 parsecs'"),
        (f"job = 'etl'\noptions = {{ {LAKE}, tiers = {{ rebalance = 5 }} }}", "tiers has no option 'rebalance'"),
        (f"job = 'etl'\noptions = {{ {LAKE}, format = 'orc' }}", "format is 'orc'"),
        ("job = 'etl'\noptions = { topics = ['t'], path = '/p', table = [{ schema = 'raw' }] }", "wants checkpoint"),
        (
            "job = 'etl'\noptions = { topics = ['t'], path = '/p', checkpoint = '/c', table = [{ scheme = 'raw' }] }",
            "table 1 has no option 'scheme'",
        ),
        ("job = 'wide'\noptions = { topics = ['t'], latness = '1 hour' }", "no option 'latness'"),
        ("job = 'redis'\noptions = { topics = ['t'], trigger = 'soon' }", "trigger is 'soon'"),
        ("job = 'replay'\noptions = { topics = ['t'], source = { columns = 'tables' } }", "columns is 'tables'"),
        ("job = 'audit'\noptions = { topics = ['t'], region = {} }", "no option 'region'"),
    ],
)
def test_a_check_says_what_is_wrong_before_anything_runs(query: str, what: str) -> None:
    made = parsed(f"heliograph.admin_url = 'http://x'\n[[query]]\nname = 'a'\n{query}\n")
    with pytest.raises(ConfigError, match=what):
        check_query(made.queries[0], made.defaults)


def test_the_jobs_that_a_check_knows_are_those_that_ship() -> None:
    folder = Path(jobs.__file__).parent
    assert list(JOBS) == sorted(path.stem for path in folder.glob("*.py") if "\ndef start(" in path.read_text())


def test_numbers_and_switches_may_be_written_as_such_and_jobs_have_modules(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("SELECT 2")
    (tmp_path / "job.toml").write_text(
        "heliograph = {admin_url = 'x', task_bytes = 5, fail_on_data_loss = false}\n[[query]]\nname = 'a'\nsql_file = "
        "'q.sql'\n"
        "[[query]]\nname = 'b'\njob = 'etl'\noptions = {tiers = [1, 2]}\n"
    )
    made = read_job(tmp_path / "job.toml")
    assert made.defaults == {"admin_url": "x", "task_bytes": "5", "fail_on_data_loss": "false"}
    assert (
        made.queries[0].sql == "SELECT 2"
        and made.queries[1].start == "heliograph.spark.jobs.etl:start"
        and made.queries[1].options == {"tiers": [1, 2]}
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", r"no \[\[query\]\]"),
        ("[[query]]\nname = 'a'", "nothing to do"),
        (GOOD + "job = 'etl'", "sql and job"),
        ("[[query]]\nsql = 'x'", "has no name"),
        (GOOD + GOOD, "two queries are named 'a'"),
        (COPY + COPY.replace("'c'", "'d'"), "checkpoint /c"),
        (
            "".join(f"[[query]]\nname = '{name}'\njob = 'etl'\noptions = {{checkpoint = '/c'}}\n" for name in "ab"),
            "two queries have the checkpoint /c",
        ),
        (COPY + "trigger = '1 parsec'", "trigger is '1 parsec'; it is an interval"),
        (COPY.replace("checkpoint = '/c'\n", ""), "wants a checkpoint folder"),
        (COPY.replace("format = 'parquet'", "path = 'x'"), "wants a format"),
        (COPY + "select = 'x'", "select is a list"),
        (COPY + "selct = 'x'", "has no 'selct'"),
        (GOOD + "trigger = '1 s'", "has no 'trigger'"),
        ("[[query]]\nname = 'a'\nstart = 'x'", "module:function"),
        ("[supervise]\nstop_s = 0\n" + GOOD, "number of seconds"),
        ("[spark]\nmater = 'x'\n" + GOOD, "has no 'mater'"),
        ("heliograph = {a = [1]}\n" + GOOD, "true or false"),
        ("[[query]]\nname = 'a'\nsql_file = 'none.sql'", "cannot be read"),
    ],
)
def test_what_is_wrong_is_said(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parsed(text)


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_job(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_text("[")
    with pytest.raises(ConfigError, match="no TOML"):
        read_job(tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back. "
            "SQLSTATE: XXKST\n"
            "=== Streaming Query ===\nCurrent State: INITIALIZING\nThread State: RUNNABLE",
            "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back. "
            "SQLSTATE: XXKST",
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\nTraceback (most recent call "
            "last):\n  File 'x', line 1\n"
            "heliograph.model.errors.NotFound: a/b is not there\n\tat org.apache.spark.X\nThread State: RUNNABLE",
            "heliograph.model.errors.NotFound: a/b is not there",
        ),
        (
            "terminated with exception: Error\nheliograph.model.errors.NotFound: a/b is not there\nDuring handling of "
            "the above exception, another occurred:\n"
            "UnboundLocalError: cannot access local variable 'reader'",
            "heliograph.model.errors.NotFound: a/b is not there",
        ),
        (
            "Broken pipe\n=== Streaming Query ===\nCurrent State: ACTIVE\nLogical Plan:\nWrite\n+- "
            "~StreamingDataSourceV2ScanRelation[a#0] tiny\n",
            "Broken pipe",
        ),
        ("", "RuntimeError"),
    ],
)
def test_a_failure_is_told_by_its_cause(text: str, line: str) -> None:
    assert short(RuntimeError(text)) == line


def test_a_wrong_option_of_a_source_is_said_before_spark_hears_of_it() -> None:
    """It is wrong at the next start, too: the job ends with 2."""
    given = (
        "heliograph.admin_url = 'http://x'\n[[query]]\nname = 'a'\nsource = {topic = 'x', topik = 'y'}\nsink = "
        "{format = 'noop'}\ncheckpoint = '/c'\n"
    )
    job = parsed(given)
    with pytest.raises(ConfigError, match="no option 'topik'"):
        start_query(MagicMock(), job.defaults, job.queries[0])


class Stream:
    """A streaming query, as far as the driver looks at one."""

    def __init__(self) -> None:
        self.isActive, self.error, self.runId, self.name, self.stopped = True, None, "r", "one", False
        self.lastProgress: dict[str, Any] | None = None
        self.status = {"message": "Waiting for data to arrive"}

    def exception(self) -> Exception | None:
        return self.error

    def fail(self, text: str) -> None:
        self.isActive, self.error = False, RuntimeError(text)

    def stop(self) -> None:
        self.isActive, self.stopped = False, True


def test_a_query_that_fails_starts_again_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, Stream]] = []
    said: list[tuple[str, dict[str, Any]]] = []
    refuse: list[Exception] = []
    together: list[Stream] = []
    now = [0.0]

    def start(spark: Any, defaults: Any, query: Any) -> Fixed:
        if refuse:
            raise refuse.pop()
        started.append((query.name, Stream()))
        together.append(Stream())
        return Fixed([started[-1][1], together[-1]])

    monkeypatch.setattr(driver_module, "start_query", start)
    made = Driver(parsed(GOOD + COPY), None, lambda event, **fields: said.append((event, fields)), clock=lambda: now[0])
    assert made.look() and [name for name, _ in started] == ["a", "c"]
    started[0][1].fail("traceback\nheliograph.model.errors.Trimmed: gone")
    made.look()
    assert said[-1] == (
        "query.failed",
        {"query": "a", "again_in_s": 1.0, "error": "heliograph.model.errors.Trimmed: gone"},
    )
    assert [stream.stopped for stream in together] == [True, False], "what belongs to it stops with it"
    made.look()
    assert len(started) == 2, "not before its pause is over"
    now[0], refuse[:] = 1.0, [RuntimeError("no region")]
    made.look()
    assert said[-1][1]["again_in_s"] == 2.0 and len(started) == 2
    now[0] = 3.0
    made.look()
    assert [name for name, _ in started] == ["a", "c", "a"] and started[1][1].isActive
    kept = [
        {"numRowsTotal": 5 + n, "memoryUsedBytes": 70 + 10 * n, "numRowsDroppedByWatermark": 1 - n} for n in range(2)
    ]
    started[2][1].lastProgress = {
        "batchId": 4,
        "numInputRows": 7,
        "processedRowsPerSecond": 3.4,
        "durationMs": {"triggerExecution": 12},
    }
    told = [
        '{"bytes": 70, "messages": 7, "topics": {}}',
        '{"bytes": 5, "messages": 1, "topics": {}}',
        '{"bytes": 9}',
        "5",
        "no offset",
        None,
    ]
    started[1][1].lastProgress = {
        **started[2][1].lastProgress,
        "stateOperators": kept,
        "sources": [{"latestOffset": each} for each in told],
    }
    now[0] = 20.0
    made.look()
    progress = {"stream": "one", "batch": 4, "rows": 7, "rows_s": 3, "took_ms": 12}
    assert said[-2] == ("query.progress", {"query": "a", **progress})
    lag, state = {"behind_bytes": 75, "behind_messages": 8}, {"state_rows": 11, "state_bytes": 150, "late_rows": 1}
    assert said[-1] == ("query.progress", {"query": "c", **progress, **lag, **state})
    now[0] = 500.0
    started[2][1].fail("again")
    made.look()
    assert said[-1][1]["again_in_s"] == 1.0, "after a long good time, from the beginning"
    now[0] = 501.0
    made.look()
    for stream in [*together, *(stream for _, stream in started)]:
        stream.isActive = False
    assert not made.look(), "all done"
    refuse[:] = [ConfigError("wrong from the start")]
    with pytest.raises(ConfigError):
        Driver(parsed(GOOD), None, lambda *_, **__: None, clock=lambda: 0.0).look()


def test_without_spark_the_driver_ends_whatever_a_query_was_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would start a query again and again that no JVM can run, and nobody would start the driver anew."""
    refuse: list[Exception] = []
    now, lives = [0.0], [True]

    class Moving(Fixed):
        """Between two streams."""

        def look(self) -> None:
            self.busy = True
            if refuse:
                raise refuse.pop()

    def start(spark: Any, defaults: Any, query: Any) -> Fixed:
        if refuse:
            raise refuse.pop()
        made = Moving([])
        made.busy = True
        return made

    def look() -> bool:
        refuse[:], now[0] = [ConnectionRefusedError("no answer")], now[0] + 100.0
        return made.look()

    monkeypatch.setattr(driver_module, "start_query", start)
    made = Driver(parsed(GOOD), None, lambda *_, **__: None, clock=lambda: now[0], lives=lambda: lives[0])
    assert made.look()
    lives[0] = False
    with pytest.raises(ConnectionRefusedError):
        look()
    lives[0] = True
    assert look() and not refuse, "a region that does not answer is that query's failure"
    lives[0] = False
    with pytest.raises(ConnectionRefusedError):
        look()


def test_a_stream_that_fails_while_it_is_looked_after_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telling a metastore takes seconds, in which anything may happen."""
    started: list[Stream] = []
    now, fails = [0.0], [False]

    class Slow(Fixed):
        def look(self) -> None:
            if fails[0]:
                started[-1].fail("its Python process was killed")

    def start(spark: Any, defaults: Any, query: Any) -> Fixed:
        started.append(Stream())
        return Slow([started[-1]])

    monkeypatch.setattr(driver_module, "start_query", start)
    said: list[str] = []
    made = Driver(parsed(GOOD), None, lambda event, **_: said.append(event), clock=lambda: now[0])
    assert made.look()
    fails[0] = True
    assert made.look() and said == ["query.started", "query.failed"]
    fails[0], now[0] = False, 10.0
    assert made.look() and len(started) == 2 and said[-1] == "query.started"


def test_queries_start_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark gives each one's Python process 10 s, and several at once may all be late."""
    started: list[Stream] = []
    now = [0.0]

    def start(spark: Any, defaults: Any, query: Any) -> Fixed:
        started.append(Stream())
        started[-1].status = {"message": "Initializing sources"}
        return Fixed([started[-1]])

    monkeypatch.setattr(driver_module, "start_query", start)
    made = Driver(parsed(GOOD + COPY), None, lambda *_, **__: None, clock=lambda: now[0])
    for _ in range(3):
        assert made.look() and len(started) == 1
    started[0].status["message"] = "Waiting for data to arrive"
    assert made.look() and len(started) == 2
    started[0].fail("its process was late")
    made.look()
    now[0] = 10.0
    assert made.look() and len(started) == 2, "the second one is still on its way"
    now[0] = 40.0
    assert made.look() and len(started) == 3, "one that hangs does not hold up the others"


def test_streams_that_end_with_their_jvm_are_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is told to stop ends them without an error."""
    stream, there = Stream(), [True]
    monkeypatch.setattr(driver_module, "start_query", lambda *_: Fixed([stream]))
    made = Driver(parsed(GOOD), None, lambda *_, **__: None, lives=lambda: there[0])
    assert made.look()
    stream.isActive, there[0] = False, False
    with pytest.raises(RuntimeError, match="was stopped"):
        made.look()
    there[0] = True
    assert not made.look()


def test_a_batch_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done when its start returns; meanwhile the others are started, and started again."""
    going, failing = threading.Event(), threading.Event()
    started: list[tuple[str, Stream]] = []
    said: list[tuple[str, dict[str, Any]]] = []
    now = [0.0]

    def start(spark: Any, defaults: Any, query: Any) -> Fixed:
        if query.name == "a":
            going.wait()
            if failing.is_set():
                raise RuntimeError("the disk is full")
            return Fixed([])
        started.append((query.name, Stream()))
        return Fixed([started[-1][1]])

    class Streams:
        """Of a text that had started one before its batch."""

        active = (Stream(),)

    class Session:
        streams = Streams()

    monkeypatch.setattr(driver_module, "start_query", start)
    job = parsed(GOOD + COPY)
    made = Driver(job, Session, lambda event, **fields: said.append((event, fields)), clock=lambda: now[0], start_s=0.0)

    def until(what: Callable[[], bool]) -> None:
        live.until(lambda: (made.look(), what())[1])

    until(lambda: len(started) == 1)
    started[0][1].fail("Error: no region")
    until(lambda: said[-1][0] == "query.failed")
    now[0] = 20.0
    until(lambda: len(started) == 2)
    assert ("query.running", {"query": "a", "seconds": 20}) in said and "query.done" not in dict(said)
    made.stop()
    assert Session.streams.active[0].stopped, "also what is told of only when the batch is done"
    failing.set()
    going.set()
    until(lambda: said[-1] == ("query.failed", {"query": "a", "again_in_s": 1.0, "error": "the disk is full"}))
    failing.clear()
    now[0] = 30.0
    until(lambda: ("query.done", {"query": "a", "failures": 1}) in said)


def test_pauses_double_up_to_a_most() -> None:
    assert [pauses(60, n) for n in (1, 2, 3, 6, 7, 1000)] == [1, 2, 4, 32, 60, 60]
