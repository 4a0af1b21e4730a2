"""Pipelines as SQL text: cut into statements, our own statements read, everything else handed on."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.errors import ConfigError
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
"""


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
    made.run("CREATE TABLE t WITH (topic='a'); CREATE SINK s WITH (format='heliograph', topic='b'); INSERT INTO s WITH x AS (SELECT 1) SELECT * FROM x")
    assert ("read",) in spark.calls and ("schema",) not in {call[:1] for call in spark.calls}
    assert spark.calls[-5:] == [("write",), ("format", "heliograph"), ("options", ("admin_url", "http://x"), ("topic", "b")), ("mode", "append"), ("save",)]


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


def test_options_may_be_quoted_names_and_values_with_quotes() -> None:
    assert options_of("a='1', 'b.c' = 'it''s, =',", "") == {"a": "1", "b.c": "it's, ="}


def test_a_stream_of_a_table_may_have_options_of_its_own() -> None:
    spark = Spark()
    made = Pipeline(spark, defaults={"admin_url": "http://x", "token": "a"})
    made.run("CREATE TABLE t (a int) WITH (topic = 'p', starting = 'earliest'); SELECT 'STREAM t', u.a FROM STREAM t WITH (starting = 'latest', token = 'b') u")
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
    made.run("CREATE STREAM TABLE clicks (a int) WITH (topic = 'p', subscription = 's'); CREATE SINK out WITH (format = 'parquet', checkpoint = '/c')")
    spark._jdf = Plan("Project [a#1]\n+- SubqueryAlias known\n   +- View (`known`, [a#1])\n      +- SubqueryAlias clicks\n         +- StreamingRelationV2")
    made.run("INSERT INTO out SELECT a FROM known")
    with pytest.raises(ConfigError, match=r"two INSERTs read clicks .*STREAM clicks WITH \(subscription"):
        made.run("INSERT INTO out SELECT a + 1 FROM known")
    spark._jdf = Plan("Project [a#1]\n+- SubqueryAlias clicks_stream_1")
    made.run("INSERT INTO out SELECT a FROM STREAM clicks WITH (subscription = 's2')")
    assert len(made.queries) == 2


def test_values_may_hold_anything() -> None:
    spark = Spark()
    made = Pipeline(spark)
    made.run("CREATE STREAM TABLE t (a decimal(3, 1)) WITH (service_url = 'pulsar://(x)', namespace = 'a/b', topics_pattern = '(x|it''s)-.*')")
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
    Pipeline(Spark(), repeated=True).run("CREATE SINK s WITH (format='parquet', checkpoint='/c'); INSERT INTO s SELECT 1")
