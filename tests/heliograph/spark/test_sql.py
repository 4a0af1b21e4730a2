"""Pipelines as SQL text: cut into statements, our own statements read, everything else handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from heliograph.spark.lake.parquet_sink import Folders
from heliograph.spark.sql import Pipeline, options_of, statements


class Spark:
    """Notes what is asked of a session; every call but a few gives the object itself."""

    def __init__(self, streaming: bool = True) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.isStreaming = streaming

    def __getattr__(self, name: str) -> Any:
        if name in ("readStream", "read", "writeStream", "write"):
            self.calls.append((name,))
            return self

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, *args, *sorted(kwargs.items())))
            return self

        return call


PIPELINE = """
-- what is clicked; a semicolon here; is none
CREATE STREAM TABLE clicks (id bigint, more struct<a: string>) WITH (topic = 'persistent://public/default/clicks', 'token' = 'it''s');
CREATE TEMPORARY VIEW known AS SELECT * FROM clicks WHERE more.a <> ';' /* ; */ AND id > 3;
create sink out with (format = 'parquet', path = '/data', checkpoint = '/state', trigger = 'available now');
INSERT INTO out SELECT id FROM known
"""  # noqa: E501


def test_three_steps_are_a_pipeline() -> None:
    spark = Spark()
    made = Pipeline(spark, defaults={"admin_url": "http://x"})
    started = made.run(PIPELINE)
    assert spark.calls == [
        ("readStream",),
        ("format", "heliograph"),
        ("options", ("admin_url", "http://x"), ("token", "it's"), ("topic", "persistent://public/default/clicks")),
        ("schema", "id bigint, more struct<a: string>"),
        ("load",),
        ("createOrReplaceTempView", "clicks"),
        ("sql", "CREATE TEMPORARY VIEW known AS SELECT * FROM clicks WHERE more.a <> ';'   AND id > 3"),
        ("sql", "SELECT id FROM known"),
        ("writeStream",),
        ("format", "parquet"),
        ("options", ("path", "/data")),
        ("option", "checkpointLocation", "/state"),
        ("outputMode", "append"),
        ("trigger", ("availableNow", True)),
        ("start",),
    ]
    assert made.queries == [started]


def test_a_table_that_is_no_stream_is_read_and_written_at_once() -> None:
    spark = Spark(streaming=False)
    made = Pipeline(spark, defaults={"admin_url": "http://x"})
    made.run(
        "CREATE TABLE t WITH (topic='a'); CREATE SINK s WITH (format='heliograph', topic='b'); INSERT INTO s WITH x "
        "AS (SELECT 1) SELECT * FROM x"
    )
    assert ("read",) in spark.calls and ("schema",) not in {call[:1] for call in spark.calls}
    assert spark.calls[-5:] == [
        ("write",),
        ("format", "heliograph"),
        ("options", ("admin_url", "http://x"), ("topic", "b")),
        ("mode", "append"),
        ("save",),
    ]


def test_what_is_sparks_own_is_left_to_it() -> None:
    spark = Spark()
    for text in ("CREATE TABLE t (a int) USING parquet", "INSERT INTO hive SELECT 1", "SELECT 'a;b', \"c;d\", `e;f`"):
        Pipeline(spark).run(text + ";")
        assert spark.calls[-1] == ("sql", text)


def test_statements_are_cut_outside_of_quotes_and_comments() -> None:
    assert statements("a; -- b; c\n 'd;''e' ;; /* f; */ g - h / i") == ["a", "'d;''e'", "g - h / i"]
    assert statements(" ; ") == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("CREATE STREAM TABLE t (a int)", "expected CREATE STREAM TABLE"),
        ("CREATE SINK s", "or CREATE SINK"),
        ("CREATE SINK s WITH (path='x')", "wants a format"),
        ("CREATE TABLE t WITH (topic=a)", "expected key = 'value' at 'topic=a'"),
        ("CREATE TABLE t WITH (topic='a', admin_url='http://x', starting='soon')", "starting is 'soon'"),
        ("CREATE SINK s WITH (format='parquet'); INSERT INTO s SELECT 1", "checkpoint folder"),
    ],
)
def test_what_cannot_be_understood_is_said(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what.replace("(", r"\(")):
        Pipeline(Spark()).run(text)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("INSERT INTO TABLE out SELECT 1", "SELECT 1"),
        ("insert into `Out` FROM t SELECT a", "FROM t SELECT a"),
        ("INSERT INTO out (SELECT 1)", "(SELECT 1)"),
        ("INSERT INTO out(WITH x AS (SELECT 1) SELECT * FROM x)", "(WITH x AS (SELECT 1) SELECT * FROM x)"),
        ("INSERT INTO out TABLE t", "TABLE t"),
        ("INSERT INTO out VALUES (1)", "VALUES (1)"),
    ],
)
def test_an_insert_has_any_query_of_sparks(text: str, query: str) -> None:
    spark = Spark(streaming=False)
    Pipeline(spark).run(f"CREATE SINK out WITH (format='parquet', path='/x'); {text}")
    assert ("sql", query) in spark.calls and spark.calls[-1] == ("save",)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("INSERT INTO out (a, b) SELECT 1, 2", "without a list of columns"),
        ("INSERT INTO out BY NAME SELECT 1 AS a", "without a list of columns"),
        ("INSERT OVERWRITE out SELECT 1", "mode = 'overwrite'"),
        ("INSERT OVERWRITE TABLE out SELECT 1", "mode = 'overwrite'"),
    ],
)
def test_an_insert_that_a_sink_does_not_take_is_said(text: str, what: str) -> None:
    spark = Spark(streaming=False)
    with pytest.raises(ConfigError, match=what):
        Pipeline(spark).run(f"CREATE SINK out WITH (format='parquet', path='/x'); {text}")
    Pipeline(spark).run(text)
    assert spark.calls == [("sql", text)], "a table of Spark's is Spark's"


def test_options_may_be_quoted_names_and_values_with_quotes() -> None:
    assert options_of("a='1', 'b.c' = 'it''s, =',", "") == {"a": "1", "b.c": "it's, ="}


def test_a_stream_of_a_table_may_have_options_of_its_own() -> None:
    spark = Spark()
    made = Pipeline(spark, defaults={"admin_url": "http://x", "token": "a"})
    made.run(
        "CREATE TABLE t (a int) WITH (topic = 'p', starting = 'earliest'); SELECT 'STREAM t', u.a FROM STREAM t WITH "
        "(starting = 'latest', token = 'b') u"
    )
    given = {"admin_url": "http://x", "token": "b", "topic": "p", "starting": "latest"}
    assert ("options", *sorted(given.items())) in [(call[0], *sorted(call[1:])) for call in spark.calls]
    assert spark.calls[-1] == ("sql", "SELECT 'STREAM t', u.a FROM t_stream_1 u")
    made.run("SELECT * FROM STREAM other WITH (a = 'b')")
    assert spark.calls[-1] == ("sql", "SELECT * FROM STREAM other WITH (a = 'b')")


class Plan(str):
    """What a session says of a query's plan."""

    def queryExecution(self) -> Plan:
        return self

    analyzed = queryExecution

    def toString(self) -> str:
        return str(self)


def test_a_subscription_is_of_one_insert() -> None:
    spark = Spark()
    made = Pipeline(spark, defaults={"admin_url": "http://x"})
    made.run(
        "CREATE STREAM TABLE clicks (a int) WITH (topic = 'p', subscription = 's'); CREATE SINK out WITH (format = "
        "'parquet', checkpoint = '/c')"
    )
    spark._jdf = Plan(
        "Project [a#1]\n+- SubqueryAlias known\n   +- View (`known`, [a#1])\n      +- SubqueryAlias clicks\n         "
        "+- StreamingRelationV2"
    )
    made.run("INSERT INTO out SELECT a FROM known")
    with pytest.raises(ConfigError, match=r"two INSERTs read clicks .*STREAM clicks WITH \(subscription"):
        made.run("INSERT INTO out SELECT a + 1 FROM known")
    spark._jdf = Plan("Project [a#1]\n+- SubqueryAlias clicks_stream_1")
    made.run("INSERT INTO out SELECT a FROM STREAM clicks WITH (subscription = 's2')")
    assert len(made.queries) == 2


def test_values_may_hold_anything() -> None:
    spark = Spark()
    made = Pipeline(spark)
    made.run(
        "CREATE STREAM TABLE t (a decimal(3, 1)) WITH (service_url = 'pulsar://(x)', namespace = 'a/b', "
        "topics_pattern = '(x|it''s)-.*')"
    )
    made.run("SELECT a FROM STREAM t WITH (starting = 'latest') WHERE b = ')'")
    assert [dict(call[1:]) for call in spark.calls if call[0] == "options"] == [
        {"service_url": "pulsar://(x)", "namespace": "a/b", "topics_pattern": "(x|it's)-.*"},
        {"service_url": "pulsar://(x)", "namespace": "a/b", "topics_pattern": "(x|it's)-.*", "starting": "latest"},
    ]
    assert spark.calls[-1] == ("sql", "SELECT a FROM t_stream_1 WHERE b = ')'")
    assert statements("SELECT /*+ BROADCAST(t) */ 1 /* no; */") == ["SELECT /*+ BROADCAST(t) */ 1"]


@pytest.mark.parametrize(
    ("sink", "what"),
    [
        ("format='table', checkpoint='/c'", "wants path"),
        ("format='table', checkpoint='/c', path='/p', catalog='x'", "not catalog"),
        ("format='table', checkpoint='/c', path='/p', hive='a.b; drop'", "database.table"),
        ("format='table', checkpoint='/c', path='/p', mode='complete'", "mode 'append'"),
    ],
)
def test_a_table_of_files_says_what_it_wants(sink: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Pipeline(Spark()).run(f"CREATE SINK s WITH ({sink}); INSERT INTO s SELECT 1")
    with pytest.raises(ConfigError, match="rows of a stream"):
        Pipeline(Spark(streaming=False)).run("CREATE SINK s WITH (format='table', path='/p'); INSERT INTO s SELECT 1")


@pytest.mark.parametrize(
    ("sink", "name"),
    [
        ("format='parquet', path='/x', mode='overwrite'", None),
        ("format='delta', path='/x', mode='ignore'", None),
        ("format='parquet', path='/x', exactly_once='false'", None),
        ("format='heliograph', topic='b', name='of-31-january'", "of-31-january"),
        ("format='heliograph', topic='b', exactly_once='false'", None),
    ],
)
def test_a_text_that_may_run_again_writes_a_batch_where_that_makes_no_difference(sink: str, name: str | None) -> None:
    spark = Spark(streaming=False)
    Pipeline(spark, repeated=True).run(f"CREATE SINK s WITH ({sink}); INSERT INTO s SELECT 1")
    (options,) = [dict(call[1:]) for call in spark.calls if call[0] == "options"]
    assert spark.calls[-1] == ("save",) and options.get("name") == name
    assert "exactly_once" not in options or "heliograph" in sink, "it is no option of Spark's formats"


@pytest.mark.parametrize("sink", ["format='parquet', path='/x'", "format='heliograph', topic='b'"])
def test_a_text_that_may_run_again_does_not_append(sink: str) -> None:
    spark = Spark(streaming=False)
    with pytest.raises(ConfigError, match="would write its rows again"):
        Pipeline(spark, repeated=True).run(f"CREATE SINK s WITH ({sink}); INSERT INTO s SELECT 1")
    assert ("save",) not in spark.calls
    with pytest.raises(ConfigError, match="INSERT OVERWRITE"):
        Pipeline(spark, repeated=True).run("INSERT INTO hive SELECT 1")
    Pipeline(Spark(), repeated=True).run(
        "CREATE SINK s WITH (format='parquet', checkpoint='/c'); INSERT INTO s SELECT 1"
    )


class Table:
    """Rows of a micro-batch, their session, and Hadoop's file system over a folder; notes what is done."""

    def __init__(self, *columns: str) -> None:
        self.columns, self.steps = columns, list[str]()
        self.sparkSession = self.sparkContext = self._jvm = self._jsc = self.write = self
        self.org = self.apache = self.hadoop = self.fs = self

    def getLocalProperty(self, name: str) -> str:
        return "5f3a9c1e-query"

    def Path(self, text: str) -> Any:
        return FilePath(self, text)

    def hadoopConfiguration(self) -> None: ...

    def makeQualified(self, path: FilePath) -> FilePath:
        return FilePath(self, f"file:{path.text}")

    def exists(self, path: FilePath) -> bool:
        return Path(path.text).exists()

    def globStatus(self, path: FilePath) -> list[Any]:
        """As Hadoop's: sorted, with \\ before what is no pattern."""
        folder, _, pattern = path.text.rpartition("/")
        return [Found(each) for each in sorted(Path(folder.replace("\\", "")).glob(pattern))]

    def mode(self, mode: str) -> Table:
        return self

    def parquet(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        self.steps.append("write")

    def rename(self, source: FilePath, target: FilePath) -> bool:
        Path(source.text).rename(target.text)
        self.steps.append("rename")
        return True


class Found:
    def __init__(self, path: Path) -> None:
        self.path = path

    def getPath(self) -> Found:
        return self

    def getName(self) -> str:
        return self.path.name


class FilePath:
    def __init__(self, table: Table, text: str) -> None:
        self.table, self.text = table, text

    def getFileSystem(self, _: None) -> Table:
        return self.table

    def toString(self) -> str:
        return self.text


def test_a_folder_is_on_the_disk_before_it_has_its_name_and_again_before_spark_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    rows = Table("id")
    monkeypatch.setattr("heliograph.spark.lake.landing.sync", lambda folder: rows.steps.append(f"sync {folder}"))
    made = Folders(rows, {"path": str(tmp_path)}, "out")
    made.deliver(rows, 3)
    assert (
        rows.steps == ["write", f"sync {tmp_path}", "rename", f"sync {tmp_path}"]
        and (tmp_path / "batch=0000000003-5f3a9c1e").is_dir()
    )
    made.deliver(rows, 3)
    assert rows.steps[4:] == [f"sync {tmp_path}"], "who died behind the rename had not synced it"


def test_a_folder_comes_behind_no_later_one_of_its_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was restored from a backup counts on from an old number, and what has that number now is other
    rows.
    """
    pytest.importorskip("pyarrow")
    rows, place = Table("id"), tmp_path / "all {of} it"
    monkeypatch.setattr("heliograph.spark.lake.landing.sync", lambda folder: None)
    (place / "batch=0000000030-99999999").mkdir(parents=True)  # another query's
    made = Folders(rows, {"path": str(place)}, "out")
    for batch in (9, 10, 20, 20):
        made.deliver(rows, batch)
    for asked in (made, Folders(rows, {"path": str(place)}, "out")):
        with pytest.raises(ConfigError, match=r"the checkpoint is older than .*micro-batch 20 of the query, .* is 11"):
            asked.deliver(rows, 11)
        with pytest.raises(ConfigError, match=r"micro-batch 20 of the query, .* is 10"):
            asked.deliver(rows, 10)
    Folders(rows, {"path": str(place)}, "out").deliver(rows, 20)
    Folders(rows, {"path": str(place)}, "out").deliver(rows, 21)
    assert sorted(each.name[:16] for each in place.glob("batch=*-5f3a9c1e")) == [
        f"batch={batch:010d}" for batch in (9, 10, 20, 21)
    ]


def test_a_table_of_folders_has_no_column_of_their_name(tmp_path: Path) -> None:
    rows = Table("id", "Batch")
    with pytest.raises(ConfigError, match="no column 'batch'"):
        Folders(rows, {"path": str(tmp_path)}, "out").deliver(rows, 3)
