"""What every table store promises: own columns, batches that come twice, and a death between any two steps."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from heliograph.model.errors import ConfigError
from heliograph.spark.stores.choice import store_of
from heliograph.spark.stores.clickhouse import ClickHouseStore
from heliograph.spark.stores.redis import RedisStore
from heliograph.spark.stores.rows import RowStore, Upsert, merged
from tests.heliograph.spark.stores.support import NOON, ONE, Died, dying, given

FILES = ("parquet", "delta", "iceberg")


def read(kind: str, root: Path) -> list[dict[str, Any]]:
    """As another reader sees it, in the keys' order."""
    if kind == "parquet":
        files = sorted(str(path) for path in (root / "t").glob("bucket=*/*.parquet"))
        found = ds.dataset(files, schema=pa.unify_schemas([ds.dataset(path).schema for path in files])).to_table()
    elif kind == "delta":
        deltalake = pytest.importorskip("deltalake")
        found = pa.table(
            deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(root / "t"))).execute("select * from t")
        )
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(
            "heliograph", type="sql", uri=f"sqlite:///{root / 'catalog.db'}", warehouse=f"file://{root}"
        )
        found = catalog.load_table("default.t").scan().to_arrow()
    return sorted(found.to_pylist(), key=lambda row: (row["period"], row["user"]))


def opened(kind: str, root: Path) -> RowStore:
    if kind != "parquet":
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    return store_of({"store": kind, "path": str(root)}, "here", None)


@pytest.fixture(params=FILES)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    yield str(request.param)


def test_each_writer_has_its_own_columns_of_a_key(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    store.upsert(given(0, [(NOON, "ann", 1, 7), (NOON, "bob", 2, None)], "clicks views"))
    store.upsert(given(None, [(NOON, "bob", 50), (ONE, "eve", 60)], "price", "offline", "q2"))
    store.upsert(given(1, [(NOON, "bob", 3, None), (NOON, "ann", None, 8), (ONE, "ann", 4, 9)], "clicks views"))
    store.upsert(given(None, [(NOON, "bob", 51)], "price", "offline", "q2"))
    store.close()
    assert [
        (row["period"], row["user"], row["clicks"], row["views"], row["price"]) for row in read(kind, tmp_path)
    ] == [
        (NOON, "ann", None, 8, None),
        (NOON, "bob", 3, None, 51),
        (ONE, "ann", 4, 9, None),
        (ONE, "eve", None, None, 60),
    ]


def test_a_batch_that_comes_again_changes_nothing(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    for batch, clicks in ((0, 1), (1, 2), (1, 666)):  # other values, so that an application shows
        store.upsert(given(batch, [(NOON, "ann", clicks)]))
    store.upsert(given(0, [(NOON, "bob", 5)], query="another"))  # of a new checkpoint, which counts from 0 again
    assert [(row["user"], row["clicks"]) for row in read(kind, tmp_path)] == [("ann", 2), ("bob", 5)]


def test_a_batch_below_one_that_is_there_is_refused(kind: str, tmp_path: Path) -> None:
    """As a checkpoint that was restored from a backup brings it: it has other rows than the batch that had the number
    before, and whoever passed it over would lose them.
    """
    store = opened(kind, tmp_path)
    for batch in (0, 20):
        store.upsert(given(batch, [(NOON, "ann", batch)]))
    with pytest.raises(ConfigError, match=r"older than table t: that has micro-batch 20 of the query, and this is 11"):
        store.upsert(given(11, [(NOON, "ann", 11), (NOON, "bob", 11)]))
    store.upsert(given(21, [(NOON, "eve", 21)]))
    assert [(row["user"], row["clicks"]) for row in read(kind, tmp_path)] == [("ann", 20), ("eve", 21)]


def test_redis_and_clickhouse_refuse_a_batch_below_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of those whose tables lie with a server, up to what they have heard from it."""

    class Client:
        def hget(self, name: str, query: str) -> str:
            assert (name, query) == ("p:t:_batches", "q1")
            return "20"

    class Engine:
        def run(self, sql: str, data: bytes = b"") -> bytes:
            return b"20\n"

        def release(self) -> None: ...

        def close(self) -> None: ...

    redis = object.__new__(RedisStore)
    redis._client, redis._errors, redis._prefix, redis._expire_s = Client(), (), "p:", 0
    clickhouse = ClickHouseStore(Engine())
    monkeypatch.setattr(clickhouse, "_prepared", lambda given: None)
    stores: list[RowStore] = [redis, clickhouse]
    for store in stores:
        store.upsert(given(20, [(NOON, "ann", 1)]))  # it has come again
        with pytest.raises(ConfigError, match=r"micro-batch 20 of the query, and this is 11"):
            store.upsert(given(11, [(NOON, "ann", 1)]))


def test_a_column_keeps_its_type(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    store.upsert(given(0, [(NOON, "ann", 1)]))
    wrong = given(1, [(NOON, "ann", 1)])
    at = wrong.rows.schema.get_field_index("clicks")
    text = Upsert("t", wrong.keys, wrong.rows.set_column(at, "clicks", pa.array(["many"])), "online", "q1", 1)
    with pytest.raises(ConfigError, match=r"columns are added, not changed"):
        store.upsert(text)
    assert [row["clicks"] for row in read(kind, tmp_path)] == [1]


def test_lists_maps_and_small_numbers_come_again(kind: str, tmp_path: Path) -> None:
    """As Spark hands them over, in a second micro-batch beside what the table has given back."""
    store = opened(kind, tmp_path)
    texts = pa.list_(pa.field("element", pa.string()))
    columns = {
        "all": pa.array([["b", "a"]], texts),
        "small": pa.array([7], pa.int16()),
        "by": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "of": pa.array([{"n": 1, "names": ["x"]}], pa.struct([("n", pa.int8()), ("names", texts)])),
    }
    for batch, user in enumerate(("ann", "bob")):
        rows = given(batch, [(NOON, user)], "").rows
        store.upsert(
            Upsert(
                "t",
                ("period", "user"),
                pa.table({**dict(zip(rows.column_names, rows.columns, strict=True)), **columns}),
                "online",
                "q1",
                batch,
            )
        )
    store.close()
    found = [(row["user"], row["all"], row["small"], dict(row["by"]), row["of"]) for row in read(kind, tmp_path)]
    assert found == [(user, ["b", "a"], 7, {"k": 1}, {"n": 1, "names": ["x"]}) for user in ("ann", "bob")]


@pytest.mark.parametrize("marked", [True, False])
def test_a_table_keeps_its_keys(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: bool) -> None:
    """Else a key that comes in later puts other rows beside the old ones, and one that goes gives all rows of a period
    one row's values.
    """
    import importlib

    if not marked:  # as earlier versions wrote it
        name, other = ("_KEYS", b"other") if kind == "parquet" else ("KEYS", "other")
        monkeypatch.setattr(importlib.import_module(f"heliograph.spark.stores.{kind}"), name, other)
    store, rows = opened(kind, tmp_path), given(0, [(NOON, "ann", 1), (NOON, "bob", 2)])
    store.upsert(rows)
    monkeypatch.undo()
    before = read(kind, tmp_path)
    more = Upsert(
        "t",
        ("period", "user", "country"),
        rows.rows.append_column("country", pa.array(["no", "no"])),
        "online",
        "q2",
        0,
    )
    with pytest.raises(ConfigError, match="row for each period, user, and now it would be each period, user, country"):
        store.upsert(more)
    if marked:
        with pytest.raises(ConfigError, match="stand side by side"):
            store.upsert(Upsert("t", ("period",), rows.rows.slice(0, 1).drop_columns(["user"]), "offline", "q3", None))
    assert read(kind, tmp_path) == before
    store.upsert(given(1, [(NOON, "ann", 3)]))
    assert [row["clicks"] for row in read(kind, tmp_path)] == [3, 2]
    store.close()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["pq.write_table", "Path.replace"])
def test_parquet_files_survive_a_death_between_two_periods(tmp_path: Path, step: str, after: bool) -> None:
    import heliograph.spark.stores.parquet as module

    store = opened("parquet", tmp_path)
    store.upsert(given(None, [(NOON, "ann", 10), (ONE, "ann", 20)], "price", "offline", "q2"))
    rows = [(NOON, "ann", 1), (ONE, "ann", 2)]
    owner, name = (module.pq, "write_table") if step == "pq.write_table" else (Path, "replace")
    with dying(owner, name, 2, after=after) as calls:
        store.upsert(given(0, rows))
    assert calls == [2]
    assert [row["price"] for row in read("parquet", tmp_path)] == [10, 20], (
        "readers see whole files, the dead one's or the ones before"
    )
    opened("parquet", tmp_path).upsert(given(0, rows))
    assert [(row["clicks"], row["price"]) for row in read("parquet", tmp_path)] == [(1, 10), (2, 20)]


@pytest.mark.parametrize("after", [False, True])
def test_a_delta_commit_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    deltalake = pytest.importorskip("deltalake")
    store = opened("delta", tmp_path)
    store.upsert(given(0, [(NOON, "ann", 1)]))
    merger = deltalake.table.TableMerger
    genuine = merger.execute

    def dies(self: Any) -> None:
        if after:
            genuine(self)
        raise Died

    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(merger, "execute", dies)
        store.upsert(given(1, [(NOON, "ann", 2)]))
    versions = []
    for _ in range(2):
        opened("delta", tmp_path).upsert(given(1, [(NOON, "ann", 2)]))
        versions.append(deltalake.DeltaTable(str(tmp_path / "t")).version())
    assert versions[0] == versions[1] and [row["clicks"] for row in read("delta", tmp_path)] == [2]


@pytest.mark.parametrize("after", [False, True])
def test_an_iceberg_snapshot_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    store = opened("iceberg", tmp_path)
    store.upsert(given(0, [(NOON, "ann", 1)]))
    genuine = SqlCatalog.commit_table

    def dies(self: Any, *args: Any) -> Any:
        if after:
            genuine(self, *args)
        raise Died

    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(SqlCatalog, "commit_table", dies)
        store.upsert(given(1, [(NOON, "ann", 2)]))
    seen = []
    for _ in range(2):
        made = opened("iceberg", tmp_path)
        made.upsert(given(1, [(NOON, "ann", 2)]))
        seen.append(len(made._catalog.load_table("default.t").history()))  # type: ignore[attr-defined]
    assert seen[0] == seen[1] and [row["clicks"] for row in read("iceberg", tmp_path)] == [2]


def test_two_writers_of_one_delta_table_both_come_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another commit between reading the table and writing ours."""
    deltalake = pytest.importorskip("deltalake")
    store = opened("delta", tmp_path)
    store.upsert(given(0, [(NOON, "ann", 1)]))
    merger = deltalake.table.TableMerger
    genuine, calls = merger.execute, [0]

    def late(self: Any) -> None:
        calls[0] += 1
        if calls[0] == 1:
            opened("delta", tmp_path).upsert(given(0, [(NOON, "ann", 9)], "clicks", "offline", "q2"))
        genuine(self)

    with monkeypatch.context() as patched:
        patched.setattr(merger, "execute", late)
        store.upsert(given(1, [(NOON, "ann", 2), (ONE, "ann", 3)]))
    assert calls[0] >= 2 and sorted(row["clicks"] for row in read("delta", tmp_path)) == [2, 3]


def test_rows_put_together_keep_the_order_of_keys() -> None:
    first = merged(None, given(0, [(ONE, "ann", 1), (NOON, "bob", 2)]))
    both = merged(first, given(1, [(NOON, "ann", 3)], "views"))
    assert [tuple(row.values()) for row in both.to_pylist()] == [
        (NOON, "ann", None, 3),
        (NOON, "bob", 2, None),
        (ONE, "ann", 1, None),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"store": "hbase"}, "it may be clickhouse, delta, hive, iceberg, parquet, redis"),
        ({"store": "delta"}, "wants path"),
        ({"store": "delta", "path": "/x", "url": "y"}, "no option 'url'"),
        ({"store": "clickhouse"}, "either url"),
        ({"store": "clickhouse", "url": "tcp://x"}, "or https"),
        ({"store": "clickhouse", "url": "tcp://u:secret@x"}, "url begins 'tcp'; it is"),
        ({"store": "iceberg"}, "or catalog"),
        ({"store": "redis", "expire_s": -1}, "0 is never"),
        ({"store": "redis", "url": "file:///x"}, "url is none that"),
    ],
)
def test_a_wrong_target_is_refused_in_a_sentence(options: dict[str, Any], says: str) -> None:
    if options["store"] == "redis":
        pytest.importorskip("redis")
    with pytest.raises(ConfigError, match=says):
        store_of(options, "here", None)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("born", date(1955, 5, 5), "begin 1970"),
        ("born", date(2150, 1, 1), "begin 1970"),
        ("period", datetime(2026, 1, 1, 0, 0, 0, 5, UTC), "fractions of seconds"),
        ("period", datetime(2107, 1, 1, tzinfo=UTC), "begin 1970"),
    ],
)
def test_what_clickhouse_would_store_as_another_time_is_refused(column: str, value: Any, says: str) -> None:
    asked: list[str] = []

    class Engine:
        def run(self, sql: str, data: bytes = b"") -> bytes:
            asked.append(sql)
            return b""

        def release(self) -> None: ...

        def close(self) -> None: ...

    rows = given(0, [(NOON, "ann")], "").rows.append_column("born", pa.array([date(1999, 1, 1)]))
    at = rows.schema.get_field_index(column)
    rows = rows.set_column(at, column, pa.array([value], rows.schema.field(at).type))
    with pytest.raises(ConfigError, match=says):
        ClickHouseStore(Engine()).upsert(Upsert("t", ("period", "user"), rows, "online", "q1", 0))
    assert asked == []


def test_an_insert_of_clickhouse_has_at_most_a_hundred_months() -> None:
    from heliograph.spark.stores.clickhouse import _blocks

    starts = [datetime(2005 + n // 12, n % 12 + 1, 1 + n % 5, tzinfo=UTC) for n in range(250)]
    rows = [(start, f"u{user}", n) for user in range(60) for n, start in enumerate(starts)]
    blocks = [block.to_pylist() for block in _blocks(given(0, rows))]
    assert sorted((row["period"], row["user"], row["clicks"]) for block in blocks for row in block) == sorted(rows)
    months = [len({(row["period"].year, row["period"].month) for row in block}) for block in blocks]
    assert max(months) == 100 and len(blocks) == 3, "few months each, and few inserts"
    assert not list(_blocks(given(0, [])))


def test_keys_of_bytes_that_are_no_text_stay_apart_in_redis() -> None:
    from heliograph.spark.stores.redis import key

    assert [key("p:", "t", [part]) for part in (b"\xff", b"\xfe", "é", "é".encode(), 7)] == [
        "p:t:%FF",
        "p:t:%FE",
        "p:t:%C3%A9",
        "p:t:%C3%A9",
        "p:t:7",
    ]
    oslo = NOON.astimezone(timezone(timedelta(hours=1)))
    assert key("p:", "t", [oslo]) == key("p:", "t", [NOON]) == "p:t:2026-01-31T12%3A00%3A00+00%3A00", (
        "of a session in another time zone, too"
    )
