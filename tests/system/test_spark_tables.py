"""Table stores on the real engines: Redis and ClickHouse servers of Debian's packages, the engine of chdb, Hive's
metastore in Spark's own Derby.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from benchmarks.servers import free_port
from heliograph.model.errors import ConfigError, MetadataUnavailable
from heliograph.spark.sql import Pipeline
from heliograph.spark.stores.choice import store_of
from heliograph.spark.stores.clickhouse import ClickHouseStore, Engine, HttpEngine
from heliograph.spark.stores.embedded import ChdbEngine
from heliograph.spark.stores.hive import HiveTables
from heliograph.spark.stores.rows import Upsert
from tests.heliograph.spark.running import NAMESPACE, forget, publish, run
from tests.heliograph.spark.stores.support import NOON, ONE, dying, given
from tests.region_node.live import provisioned
from tests.region_node.region_processes import Region
from tests.system.programs import python_packages
from tests.system.stores import clickhouse_running, redis_running

pytestmark = pytest.mark.system
ALONE = "HELIOGRAPH_TEST_ALONE"
alone = pytest.mark.skipif(ALONE not in os.environ, reason="run by test_in_a_process_of_its_own")
"""For a driver whose process has held no other session of Spark before: what Hive's metastore is, a process decides
once.
"""
redis = pytest.importorskip("redis")
CHDB = ("chdb==4.4.0", "chdb-core==26.9.0")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_running(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="module")
def clickhouse_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with clickhouse_running(tmp_path_factory.mktemp("clickhouse")) as url:
        yield url


@pytest.fixture(params=["server", "chdb"])
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, str], Callable[[], Engine]]:
    """(the target's options, a reader's own way in)."""
    if request.param == "server":
        url = str(request.getfixturevalue("clickhouse_url"))
        for table in ("t", "t_rows", "t_batches"):
            HttpEngine(url).run(f"DROP TABLE IF EXISTS {table}")
        return {"store": "clickhouse", "url": url}, lambda: HttpEngine(url)
    monkeypatch.setattr(
        sys, "path", [*sys.path, str(python_packages(*CHDB))]
    )  # behind ours: it must not bring another pyarrow
    return {"store": "clickhouse", "path": str(tmp_path / "engine")}, lambda: ChdbEngine(str(tmp_path / "engine"))


def test_redis_has_each_writers_columns_once(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    client.flushall()
    options = {"store": "redis", "url": redis_url, "prefix": "ab:"}
    rows = [(NOON, "ann:1", 1, 2), (ONE, "bob", 3, None)]

    def hashes() -> dict[str, Any]:
        return {key: client.hgetall(key) for key in client.keys("ab:t:2026*")}

    store = store_of(options, "here", None)
    store.upsert(given(None, [(NOON, "ann:1", 50)], "price", "offline", "q2"))
    store.upsert(given(0, [(NOON, "ann:1", 7, 8), (ONE, "bob", 3, 4)], "clicks views"))
    expected = {
        "ab:t:2026-01-31T12%3A00%3A00+00%3A00:ann%3A1": {"clicks": "1", "views": "2", "price": "50"},
        "ab:t:2026-01-31T13%3A00%3A00+00%3A00:bob": {"clicks": "3"},
    }
    commands = [0]
    for after in (False, True):
        for step in range(1, 5):  # fields of the rows, their transaction, the mark, and one that is not there
            for name, method in (("execute", redis.client.Pipeline), ("hset", redis.Redis)):
                client.hset("ab:t:_batches", "q1", 0)
                with dying(method, name, step, after=after) as calls:
                    store.upsert(given(1, rows, "clicks views"))
                commands[0] += calls[0]
                store_of(options, "here", None).upsert(given(1, rows, "clicks views"))
                assert hashes() == expected
    assert commands[0] >= 16
    store.upsert(given(1, [(NOON, "ann:1", 666, 666)], "clicks views"))
    with pytest.raises(ConfigError, match="the checkpoint is older than"):
        store.upsert(given(0, [(NOON, "ann:1", 777, 777)], "clicks views"))
    assert hashes() == expected, "a batch that came again, and one that is older than the table"
    store_of({**options, "expire_s": 100}, "here", None).upsert(given(2, [(ONE, "bob", 9, 9)], "clicks views"))
    assert 0 < client.ttl("ab:t:2026-01-31T13%3A00%3A00+00%3A00:bob") <= 100
    store.close()
    dead = store_of({**options, "url": f"redis://127.0.0.1:{free_port()}"}, "here", None)
    with pytest.raises(MetadataUnavailable, match="delivered again"):
        dead.upsert(given(0, rows, "clicks views"))


def test_clickhouse_has_each_writers_columns_once(engine: tuple[dict[str, str], Callable[[], Engine]]) -> None:
    options, reader = engine
    columns = "period, user, clicks, views, price"

    def read() -> list[list[str]]:
        made = reader()
        found = made.run(f"SELECT {columns} FROM t ORDER BY period, user FORMAT TabSeparated").decode()
        made.close()
        return [line.split("\t") for line in found.splitlines()]

    store = store_of(options, "here", None)
    store.upsert(given(0, [(NOON, "ann", 1, 7), (NOON, "bob'\\", 2, None)], "clicks views"))
    store.upsert(given(None, [(NOON, "ann", 50), (ONE, "eve", 60)], "price", "offline", "q2"))
    store.upsert(given(1, [(NOON, "ann", None, 8), (ONE, "ann", 4, 9)], "clicks views"))
    store.upsert(given(None, [(NOON, "ann", 51)], "price", "offline", "q2"))
    store.upsert(given(1, [(NOON, "ann", 666, 666)], "clicks views"))
    with pytest.raises(ConfigError, match="the checkpoint is older than"):
        store.upsert(given(0, [(ONE, "ann", 777, 777)], "clicks views"))
    noon, one, null = "2026-01-31 12:00:00", "2026-01-31 13:00:00", "\\N"
    expected = [
        [noon, "ann", null, "8", "51"],
        [noon, "bob\\'\\\\", "2", null, null],
        [one, "ann", "4", "9", null],
        [one, "eve", null, null, "60"],
    ]
    assert read() == expected
    store.upsert(given(0, [(ONE, "eve", 5, 6)], "clicks views", query="q3"))  # a new checkpoint counts from 0 again
    expected[3][2:4] = ["5", "6"]
    assert read() == expected
    wrong = given(2, [(NOON, "ann", 1)], "clicks")
    at = wrong.rows.schema.get_field_index("clicks")
    with pytest.raises(ConfigError, match=r"columns are added, not changed"):
        store.upsert(
            type(wrong)("t", wrong.keys, wrong.rows.set_column(at, "clicks", wrong.rows["user"]), "online", "q1", 2)
        )
    assert read() == expected
    with pytest.raises(ConfigError, match="ClickHouse refuses"):
        reader().run("SELECT FROM")


def test_clickhouse_takes_many_months_decimals_and_columns_and_leaves_what_is_not_ours(
    engine: tuple[dict[str, str], Callable[[], Engine]],
) -> None:
    options, reader = engine

    def asked(*statements: str) -> bytes:
        made = reader()
        found = [made.run(statement) for statement in statements][-1]
        made.close()
        return found

    asked(*(f"DROP TABLE IF EXISTS {table}{end}" for table in ("mine", "ours") for end in ("", "_rows", "_batches")))
    store = store_of(options, "here", None)
    months = [(datetime(2005 + n // 12, n % 12 + 1, 1, tzinfo=UTC), "ann", n) for n in range(150)]
    store.upsert(given(0, months))
    assert asked("SELECT count(), sum(clicks) FROM t FORMAT TabSeparated") == b"150\t%d\n" % sum(range(150))
    rows, many = given(0, [(NOON, "ann")], "").rows, [f"a_column_with_a_name_of_some_length_{n}" for n in range(400)]
    rows = rows.append_column("paid", pa.array([Decimal("12345678901234567.89")], pa.decimal128(38, 2)))
    for name in many:
        rows = rows.append_column(name, pa.array([7]))
    store.upsert(Upsert("ours", ("period", "user"), rows, "online", "q1", 0))
    assert asked(f"SELECT paid, {many[-1]} FROM ours FORMAT TabSeparated") == b"12345678901234567.89\t7\n"
    with pytest.raises(ConfigError, match="row for each period, user, and now it would be each period"):
        store.upsert(
            Upsert("t", ("period",), given(1, [(NOON, "ann", 1)]).rows.drop_columns(["user"]), "offline", "q2", None)
        )
    store.close()
    asked("CREATE TABLE mine (id Int64) ENGINE = MergeTree ORDER BY id", "INSERT INTO mine SELECT 7")
    for kind in ("MergeTree", "View"):
        with pytest.raises(ConfigError, match=f"has a {kind} named mine that this job did not make"):
            store.upsert(Upsert("mine", ("period", "user"), given(0, [(NOON, "ann", 1)]).rows, "online", "q1", 0))
        store.close()
        assert asked("SELECT id FROM mine FORMAT TabSeparated") == b"7\n"
        asked("DROP TABLE mine", "CREATE VIEW mine AS SELECT 7 AS id")


def test_clickhouse_is_made_whole_after_a_death_between_any_two_statements(
    engine: tuple[dict[str, str], Callable[[], Engine]],
) -> None:
    options, reader = engine
    rows, kind = [(NOON, "ann", 1), (ONE, "bob", 2)], HttpEngine if "url" in options else ChdbEngine
    deaths = 0
    for call in range(1, 40):
        store = store_of(options, "here", None)
        made = reader()
        for table in ("t", "t_rows", "t_batches"):
            made.run(f"DROP TABLE IF EXISTS {table}")
        made.close()
        store.upsert(given(0, [(NOON, "ann", 9)], "price", "offline", "q2"))
        with dying(kind, "run", call, after=call % 2 == 0) as calls:
            store.upsert(given(1, rows))
        store.close()
        again = store_of(options, "here", None)
        again.upsert(given(1, rows))
        again.upsert(given(1, [(NOON, "ann", 666)]))
        made = reader()
        found = made.run("SELECT user, clicks, price FROM t ORDER BY user FORMAT TabSeparated").split()
        made.close()
        assert found == [b"ann", b"1", b"9", b"bob", b"2", b"\\N"], f"died at statement {call}"
        if calls[0] < call:
            break
        deaths += 1
    assert deaths >= 8


class Disturbed(HttpEngine):
    """Before its statement number `call` another writer does all of its own, with a column that is new."""

    def __init__(self, url: str, call: int) -> None:
        super().__init__(url)
        self.url, self.call, self.calls = url, call, 0

    def run(self, sql: str, data: bytes = b"") -> bytes:
        self.calls += 1
        if self.calls == self.call:
            ClickHouseStore(HttpEngine(self.url)).upsert(given(0, [(NOON, "ann", 9)], "price", "offline", "q2"))
        return super().run(sql, data)


def test_two_writers_add_their_columns_at_any_moment_of_each_other(clickhouse_url: str) -> None:
    plain = HttpEngine(clickhouse_url)
    for call in range(1, 40):
        for table in ("t", "t_rows", "t_batches"):
            plain.run(f"DROP TABLE IF EXISTS {table}")
        disturbed = Disturbed(clickhouse_url, call)
        ClickHouseStore(disturbed).upsert(given(0, [(NOON, "ann", 1)]))
        if disturbed.calls < call:
            break
        assert plain.run("SELECT user, clicks, price FROM t FORMAT TabSeparated").split() == [b"ann", b"1", b"9"], (
            f"at statement {call}"
        )
    assert 8 < call < 39, "before each of its statements"


def test_engines_of_several_folders_are_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(python_packages(*CHDB))])
    engines = [ChdbEngine(str(tmp_path / name)) for name in ("one", "two")]
    for number, engine in enumerate(engines):
        engine.run("CREATE TABLE n (n Int64) ENGINE = MergeTree ORDER BY n")
        engine.run("INSERT INTO n FORMAT JSONEachRow", b'{"n": %d}' % number)
    assert [engine.run("SELECT n FROM n FORMAT TabSeparated") for engine in engines] == [b"0\n", b"1\n"], (
        "both folders are open"
    )
    engines[0].release()
    again = ChdbEngine(str(tmp_path / "one"))
    assert again.run("SELECT n FROM n FORMAT TabSeparated") == b"0\n"
    for engine in (*engines, again):
        engine.close()


HIVE = """
import sys
from pathlib import Path
from heliograph.spark import session
from heliograph.spark.stores.choice import store_of
from heliograph.spark.stores.parquet import ParquetStore
from tests.heliograph.spark.stores.support import NOON, ONE, given
folder = Path(sys.argv[1])
hive = {"spark.sql.catalogImplementation": "hive", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
hive["spark.hadoop.javax.jdo.option.ConnectionURL"] = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
spark = session("hive", settings=hive)
store = store_of({"store": "hive", "path": f"{folder}/files", "database": "ab"}, "here", spark)
store.upsert(given(0, [(NOON, "ann", 1)]))
ParquetStore(folder / "files").upsert(given(1, [(NOON, "ann", 2), (ONE, "bob", 3)]))  # and died before it told the metastore
store.upsert(given(1, [(NOON, "ann", 2), (ONE, "bob", 3)]))
store.upsert(given(1, [(NOON, "ann", 666)]))
store.upsert(given(None, [(ONE, "bob", 50)], "price", "offline", "q2"))
spark.sql("SELECT bucket, user, clicks, price FROM ab.t ORDER BY period, user").show(truncate=False)
print("rows", [tuple(row) for row in spark.sql("SELECT bucket, user, clicks, price, unix_seconds(period) FROM ab.t ORDER BY period, user").collect()])
print("parts", [row[0] for row in spark.sql("SHOW PARTITIONS ab.t").collect()])
spark.stop()
"""  # noqa: E501


def test_hive_sees_what_the_files_hold(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", HIVE, str(tmp_path)], capture_output=True, text=True, timeout=900, cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [
        ("2026-01-31-12", "ann", 2, None, int(NOON.timestamp())),
        ("2026-01-31-13", "bob", 3, 50, int(ONE.timestamp())),
    ]
    assert f"rows {rows}" in done.stdout
    assert f"parts {json.dumps(['bucket=2026-01-31-12', 'bucket=2026-01-31-13'])}".replace('"', "'") in done.stdout


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with provisioned(tmp_path_factory.mktemp("region")) as made:
        yield made


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from heliograph.spark import session

    folder = tmp_path_factory.mktemp("hive")
    hive = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.shuffle.partitions": "2",
    }
    hive["spark.hadoop.javax.jdo.option.ConnectionURL"] = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
    made = session("tables", settings=hive)
    yield made
    made.stop()


@pytest.fixture
def client(region: Region) -> Iterator[pulsar.Client]:
    made = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


@alone
def test_topics_become_a_wide_table_in_each_server(
    region: Region,
    client: pulsar.Client,
    spark: Any,
    redis_url: str,
    clickhouse_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(python_packages(*CHDB))])

    def body(n: int, hour: int, **more: Any) -> str:
        return json.dumps({"user": f"u{n % 3}", "at": f"2026-01-31T{hour:02d}:{n % 60:02d}:00Z", **more})

    publish(client, "wide-clicks", [body(n, 10 + n // 45) for n in range(90)])
    publish(client, "wide-orders", [body(n, 10, amount=n) for n in range(30)])
    options: dict[str, Any] = {
        "namespace": "public/default",
        "topics_pattern": "wide-.*",
        "checkpoint": str(tmp_path / "state"),
        "trigger": "available now",
        "schema": "user string, amount double, at timestamp",
        "time": "at",
        "keys": ["user"],
        "state_tasks": 2,
        "columns": {
            "clicks": {"topics": "wide-clicks", "value": "count(*)"},
            "paid": {"topics": "wide-orders", "value": "sum(amount)"},
        },
        "table": [{"name": "hourly", "period": "1 hour"}, {"name": "daily", "period": "1 day"}],
        "target": [
            {"store": "clickhouse", "url": clickhouse_url},
            {"store": "clickhouse", "path": str(tmp_path / "engine")},
            {"store": "clickhouse", "path": str(tmp_path / "another")},
            {"store": "redis", "url": redis_url, "prefix": "wide:"},
            {"store": "hive", "path": str(tmp_path / "hive"), "database": "ab"},
        ],
    }
    paid = [float(sum(range(n, 30, 3))) for n in range(3)]
    hours = [[(10, f"u{n}", 15, paid[n]) for n in range(3)] + [(11, f"u{n}", 15, None) for n in range(3)]]

    def check(clicks: int) -> None:
        """clicks: of u0, in the second hour."""
        hourly = [*hours[0][:3], (11, "u0", clicks, None), *hours[0][4:]]
        daily = [(0, f"u{n}", clicks + 15 if n == 0 else 30, paid[n]) for n in range(3)]
        for table, expected in (("hourly", hourly), ("daily", daily)):
            of_hive = spark.sql(f"SELECT hour(period), user, clicks, paid FROM ab.{table} ORDER BY 1, 2").collect()
            assert [tuple(row) for row in of_hive] == expected
            for engine in (
                HttpEngine(clickhouse_url),
                ChdbEngine(str(tmp_path / "engine")),
                ChdbEngine(str(tmp_path / "another")),
            ):
                text = engine.run(
                    f"SELECT toHour(period), user, clicks, paid FROM {table} FORMAT TabSeparated"
                ).decode()
                engine.close()
                lines = sorted(
                    (line.split("\t") for line in text.splitlines()), key=lambda line: (int(line[0]), line[1])
                )
                assert [
                    (int(h), user, int(n), None if amount == "\\N" else float(amount)) for h, user, n, amount in lines
                ] == expected, table
            hashes = redis.Redis.from_url(redis_url, decode_responses=True)
            found = {key: hashes.hgetall(key) for key in hashes.keys(f"wide:{table}:2026*")}
            assert found == {
                f"wide:{table}:2026-01-31T{hour:02d}%3A00%3A00+00%3A00:{user}": {"clicks": str(n)}
                | ({} if amount is None else {"paid": str(amount)})
                for hour, user, n, amount in expected
            }

    run(spark, "wide", region.admin_url(), options)
    check(15)
    forget(tmp_path / "state")
    run(spark, "wide", region.admin_url(), options)
    check(15)  # a second delivery
    publish(client, "wide-clicks", [body(0, 11), body(0, 11)])
    run(spark, "wide", region.admin_url(), options)
    check(17)


@alone
def test_topics_become_tables_of_hive(region: Region, client: pulsar.Client, spark: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "namespace": "public/default",
        "topics_pattern": "hive-.*",
        "path": str(tmp_path / "lake"),
        "trigger": "available now",
    }
    options |= {
        "checkpoint": str(tmp_path / "state"),
        "format": "hive",
        "database": "lake",
        "table": [{"schema": "id bigint", "name": "{topic}"}],
    }

    def rows(table: str, columns: str = "id") -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(f"SELECT {columns} FROM lake.`{table}` ORDER BY id").collect()]

    publish(client, "hive-a", [json.dumps({"id": n}) for n in range(20)] + ["{broken"])
    publish(client, "hive-b", [json.dumps({"id": 7})])
    run(spark, "etl", region.admin_url(), options)
    assert rows("hive_a") == [(n,) for n in range(20)] and rows("hive_b") == [(7,)]
    assert spark.sql("SELECT value FROM lake.`_quarantine`").collect()[0].value == b"{broken"
    options["table"][0]["schema"] = "id bigint, country string"
    publish(client, "hive-a", [json.dumps({"id": 20, "country": "NO"})])
    publish(client, "hive-A", [json.dumps({"id": 20, "country": "SE"})])
    run(spark, "etl", region.admin_url(), options)
    forget(tmp_path / "state")
    run(spark, "etl", region.admin_url(), options)  # a second delivery of the last micro-batch
    assert rows("hive_a", "id, country") == [*((n, None) for n in range(20)), (20, "NO")]
    assert len(spark.sql("SHOW PARTITIONS lake.hive_a").collect()) == 2
    (reason,) = spark.sql("SELECT reason FROM lake.`_quarantine` WHERE topic LIKE '%hive-A'").collect()
    assert "is that of 'hive-a'" in reason.reason
    assert not list((tmp_path / "lake" / "_staging" / "_landed").rglob("*.json")), "all was told"
    spark.sql("CREATE VIEW lake.hive_refused AS SELECT 1 AS id")
    tables = HiveTables(spark, tmp_path / "lake", "lake", "batch")
    with pytest.raises(Exception, match="hive_refused"):
        tables.tell("hive_refused", {"other": "bigint"}, [])
    assert tables.answers(), "it refuses one table, and is there for others"


@alone
def test_sql_text_inserts_a_stream_into_a_table_of_hive(spark: Any, tmp_path: Path) -> None:
    """Of any stream; a micro-batch that comes again adds nothing, and a new column is one."""
    given = tmp_path / "in"
    given.mkdir()

    def insert(number: int, columns: str) -> None:
        (given / f"{number}.json").write_text(
            "".join(json.dumps({"id": 10 * number + n, "country": f"c{number}"}) + "\n" for n in range(3))
        )
        spark.readStream.schema("id bigint, country string").json(str(given)).createOrReplaceTempView("given")
        sink = (
            f"format = 'table', path = '{tmp_path}/it''s here', hive = 'sql.given', checkpoint = '{tmp_path}/state', "
            "trigger = 'available now'"
        )
        pipeline = Pipeline(spark)
        pipeline.run(f"CREATE SINK out WITH ({sink}); INSERT INTO out SELECT {columns} FROM given")
        assert pipeline.queries[0].awaitTermination(400)

    insert(1, "id")
    assert [row.id for row in spark.sql("SELECT id FROM sql.given ORDER BY id").collect()] == [10, 11, 12]
    forget(tmp_path / "state")
    insert(2, "id")
    insert(3, "id, country")
    found = [(row.id, row.country) for row in spark.sql("SELECT id, country FROM sql.given ORDER BY id").collect()]
    assert found == [(n, None) for n in (10, 11, 12, 20, 21, 22)] + [(n, "c3") for n in (30, 31, 32)]
    assert len(spark.sql("SHOW PARTITIONS sql.given").collect()) == 3
    assert len(list((tmp_path / "it's here").glob("batch=*/*.parquet"))) >= 3
    with pytest.raises(Exception, match="column id of type bigint"):
        insert(4, "cast(id as string) as id")
    assert len(list((tmp_path / "it's here").glob("batch=*"))) == 3, "it is seen before a file comes"


@alone
def test_rows_of_topics_are_hashes_in_redis(
    region: Region, client: pulsar.Client, spark: Any, redis_url: str, tmp_path: Path
) -> None:
    hashes = redis.Redis.from_url(redis_url, decode_responses=True)
    options: dict[str, Any] = {
        "topics": [f"{NAMESPACE}/profiles"],
        "checkpoint": str(tmp_path / "state"),
        "trigger": "available now",
        "url": redis_url,
    }
    options |= {
        "prefix": "row:",
        "table": "users",
        "schema": "user string, city string, tags array<string>, gone boolean",
        "delete": "gone",
    }
    options |= {"keys": ["lower(user) as user"], "columns": ["city", "tags"]}

    def found() -> dict[str, Any]:
        return {key: hashes.hgetall(key) for key in hashes.keys("row:users:*") if not key.endswith("_batches")}

    publish(
        client,
        "profiles",
        [json.dumps({"user": f"U{n % 3}", "city": f"c{n}", "tags": ["a", str(n)]}) for n in range(30)]
        + ['{"city": "nobody"}', "{"],
    )
    run(spark, "redis", region.admin_url(), options)
    expected = {f"row:users:u{n % 3}": {"city": f"c{n}", "tags": f'["a", "{n}"]'} for n in (27, 28, 29)}
    assert found() == expected
    publish(client, "profiles", [json.dumps({"user": "u0", "city": "new"}), json.dumps({"user": "U1", "gone": True})])
    run(spark, "redis", region.admin_url(), options)
    expected |= {"row:users:u0": {"city": "new"}}
    del expected["row:users:u1"]
    assert found() == expected
    hashes.hset("row:users:u0", "city", "written by somebody since")
    forget(tmp_path / "state")
    run(spark, "redis", region.admin_url(), options)
    assert found()["row:users:u0"] == {"city": "written by somebody since"}, "a second delivery changes nothing"


OF_ITS_OWN = (
    test_topics_become_a_wide_table_in_each_server,
    test_topics_become_tables_of_hive,
    test_sql_text_inserts_a_stream_into_a_table_of_hive,
    test_rows_of_topics_are_hashes_in_redis,
)


@pytest.mark.parametrize("name", [each.__name__ for each in OF_ITS_OWN])
def test_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "system",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(tmp_path / "alone"),
        f"{__file__}::{name}",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {ALONE: "1"}
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0 and done.stdout.startswith("."), done.stdout[-4000:] + done.stderr[-2000:]
