"""A micro-batch's files come into their tables once, whatever failed before."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from heliograph.client.block_reader import BlockReader
from heliograph.model.errors import ConfigError, MetadataUnavailable
from heliograph.spark.lake import landing as landing_module
from heliograph.spark.lake.landing import FORMATS, Landing, Staged
from heliograph.spark.lake.tables_sink import RAW as TABLE_COLUMNS
from heliograph.spark.lake.tables_sink import Files, TableRule

QUERY = "0123456789ab"


def stage(landing: Landing, batch: int, table: str, name: str, *, named: str = "", **columns: list[object]) -> Staged:
    made, name = pa.table(columns), f"{name}.parquet"
    pq.write_table(made, landing.staging(QUERY, batch, table) / name)
    return Staged(table, name, made.num_rows, made.schema, named)


def rows(root: Path, table: str, column: str, kind: str) -> list[object]:
    if kind == "delta":
        deltalake = pytest.importorskip("deltalake")
        found = (
            deltalake.QueryBuilder()
            .register("t", deltalake.DeltaTable(str(root / table)))
            .execute(f"select {column} from t")
        )
        return sorted(pa.table(found)[column].to_pylist(), key=str)
    if kind == "iceberg":
        catalog = pytest.importorskip("pyiceberg.catalog").load_catalog(
            "heliograph", type="sql", uri=f"sqlite:///{root / 'catalog.db'}"
        )
        return sorted(catalog.load_table(f"default.{table}").scan().to_arrow()[column].to_pylist(), key=str)
    files = sorted(str(path) for path in (root / table).rglob("*.parquet"))
    return sorted(ds.dataset(files).to_table(columns=[column])[column].to_pylist()) if files else []


@pytest.mark.parametrize("kind", FORMATS)
def test_a_batch_that_runs_again_is_there_once(tmp_path: Path, kind: str) -> None:
    landing = Landing(tmp_path, kind)
    landing.land(
        QUERY,
        0,
        [
            stage(landing, 0, "a", "one", n=[1, 2]),
            stage(landing, 0, "a", "two", n=[3]),
            stage(landing, 0, "b", "one", n=[9]),
        ],
    )
    stage(landing, 1, "a", "failed", n=[666])  # an attempt that died before it was done
    landing.land(QUERY, 1, [stage(landing, 1, "a", "again", n=[4]), stage(landing, 1, "a", "more", n=[5])])
    landing.land(
        QUERY, 1, [stage(landing, 1, "a", "third", n=[4, 5])]
    )  # the driver died before Spark knew that it was done
    landing.land("another-query", 1, [])
    assert rows(tmp_path, "a", "n", kind) == [1, 2, 3, 4, 5]
    assert rows(tmp_path, "b", "n", kind) == [9]
    assert not (tmp_path / "_staging" / QUERY).exists(), "nothing is left behind"


@pytest.mark.parametrize("label", ["", "light.1"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_batch_below_the_last_one_lands_in_no_table(tmp_path: Path, kind: str, label: str) -> None:
    """Also not in one that got nothing since: the newer checkpoint is put back, and brings the rows again."""
    landing = Landing(tmp_path, kind, label=label)
    for batch, table in ((0, "a"), (1, "b"), (10, "b"), (20, "b")):
        landing.land(QUERY, batch, [stage(landing, batch, table, "one", n=[batch])])
    for batch in (10, 11):
        with pytest.raises(ConfigError, match=rf"has micro-batch 20 of the query, and this is {batch}"):
            landing.land(QUERY, batch, [stage(landing, batch, table, "two", n=[batch, 12]) for table in "ab"])
    landing.land(QUERY, 20, [stage(landing, 20, "b", "again", n=[20])])
    landing.land(QUERY, 21, [stage(landing, 21, "a", "one", n=[21])])
    assert rows(tmp_path, "a", "n", kind) == [0, 21] and rows(tmp_path, "b", "n", kind) == [1, 10, 20]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_below_one_that_is_there_is_refused(tmp_path: Path, kind: str) -> None:
    """Which a checkpoint that was restored from a backup brings, with other rows than were in the one before."""
    landing = Landing(tmp_path, kind)
    for batch in (0, 20):
        landing.land(QUERY, batch, [stage(landing, batch, "a", "one", n=[batch])])
    shutil.rmtree(tmp_path / "_staging")  # as an earlier version left it
    with pytest.raises(ConfigError, match=r"older than table a: that has micro-batch 20 of the query, and this is 11"):
        landing.land(QUERY, 11, [stage(landing, 11, "a", "one", n=[11, 12])])
    landing.land(QUERY, 21, [stage(landing, 21, "b", "one", n=[21])])
    landing.land(QUERY, 22, [stage(landing, 22, "a", "one", n=[22])])
    assert rows(tmp_path, "a", "n", kind) == [0, 20, 22]


def test_a_batch_that_died_between_two_tables_is_whole_when_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing, rename = Landing(tmp_path), Path.rename

    def dies(path: Path, target: Path) -> Path:
        if path.name == "b":
            raise KeyboardInterrupt
        return rename(path, target)

    staged = [stage(landing, 5, "a", "x", n=[1]), stage(landing, 5, "b", "x", n=[2])]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", dies)
        landing.land(QUERY, 5, staged)
    assert rows(tmp_path, "a", "n", "parquet") == [1] and rows(tmp_path, "b", "n", "parquet") == []
    # the columns were mended before it runs again: what went to `a` goes to `b` now
    landing.land(QUERY, 5, [stage(landing, 5, "b", "y", n=[1]), stage(landing, 5, "b", "z", n=[2])])
    assert rows(tmp_path, "a", "n", "parquet") == [] and rows(tmp_path, "b", "n", "parquet") == [1, 2]


def test_a_batch_may_die_at_its_second_rename_as_often_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing, rename = Landing(tmp_path), Path.rename

    def dies(path: Path, target: Path) -> Path:
        if path.name == "a":
            raise KeyboardInterrupt
        return rename(path, target)

    landing.land(QUERY, 5, [stage(landing, 5, "a", "x", n=[1])])
    for _ in range(2):
        staged = [stage(landing, 5, "a", "again", n=[1])]
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Path, "rename", dies)
            landing.land(QUERY, 5, staged)
        (tmp_path / "a" / "batch=0000000005-01234567").mkdir(
            parents=True
        )  # as if the rename had come, and Spark had not heard
        (tmp_path / "a" / "batch=0000000005-01234567" / "x.parquet").write_bytes(b"")
    landing.land(QUERY, 5, [stage(landing, 5, "a", "last", n=[1])])
    assert rows(tmp_path, "a", "n", "parquet") == [1]


@pytest.mark.parametrize("kind", ["parquet", "hive"])
def test_a_driver_that_stood_still_takes_nothing_of_what_its_successor_landed(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a file system without locks: it goes on between the tables, of which the other one has landed all."""
    landing, rename = Landing(tmp_path, kind), Path.rename
    monkeypatch.setattr(landing_module, "locked", lambda *folder: contextlib.nullcontext())
    staged = [stage(landing, 5, "a", "x", n=[1]), stage(landing, 5, "b", "x", n=[2])]

    def stands_still(path: Path, target: Path) -> Path:
        made = rename(path, target)
        monkeypatch.setattr(Path, "rename", rename)
        again = [stage(landing, 5, "a", "y", n=[1]), stage(landing, 5, "b", "y", n=[2])]
        Landing(tmp_path, kind).land(QUERY, 5, again)
        return made

    monkeypatch.setattr(Path, "rename", stands_still)
    with pytest.raises(MetadataUnavailable, match="does no other driver run this job"):
        landing.land(QUERY, 5, staged)
    assert rows(tmp_path, "a", "n", "parquet") == [1] and rows(tmp_path, "b", "n", "parquet") == [2]


@pytest.mark.parametrize("kind", FORMATS)
def test_one_driver_at_a_time_lands_what_a_query_has(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing, rename, seen = Landing(tmp_path, kind), Path.rename, []

    def held(*given: Any, **more: Any) -> None:
        (path,) = tmp_path.glob("_staging/_intended/*.lock")
        with path.open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(given[0])

    def renamed(path: Path, target: Path) -> Path:
        held(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(landing_module, "sync", held)
    monkeypatch.setattr(landing_module.shutil, "rmtree", held)
    landing.land(QUERY, 5, [stage(landing, 5, "a", "x", n=[1])])
    staged = tmp_path / "_staging" / QUERY / "5" / "a"
    assert {staged, staged / "x.parquet"} & {*seen} and seen[-1] == tmp_path / "_staging" / QUERY


def test_a_batch_that_comes_behind_a_later_one_lands_nothing(tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    for batch in (5, 6):
        landing.land(QUERY, batch, [stage(landing, batch, "a", "x", n=[batch])])
    for staged in ([stage(landing, 5, "a", "y", n=[7])], []):
        with pytest.raises(ConfigError, match=r"the checkpoint is older than the tables.* no other driver runs"):
            landing.land(QUERY, 5, staged)
    assert rows(tmp_path, "a", "n", "parquet") == [5, 6]


def test_what_was_there_stays_where_what_replaces_it_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing, rename = Landing(tmp_path), Path.rename
    landing.land(QUERY, 5, [stage(landing, 5, "a", "x", n=[1])])

    def fails(path: Path, target: Path) -> Path:
        if path == tmp_path / "_staging" / QUERY / "5" / "a":
            raise FileNotFoundError(path)
        return rename(path, target)

    staged = [stage(landing, 5, "a", "again", n=[1])]
    with monkeypatch.context() as patched, pytest.raises(FileNotFoundError):
        patched.setattr(Path, "rename", fails)
        landing.land(QUERY, 5, staged)
    assert rows(tmp_path, "a", "n", "parquet") == [1]
    landing.land(QUERY, 5, staged)
    assert rows(tmp_path, "a", "n", "parquet") == [1] and not list(tmp_path.glob("_staging/_replaced/*"))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_batch_is_synced_once_it_is_in_its_tables_and_before_it_is_done(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[object]] = []
    landing = Landing(tmp_path, kind)
    staged = [stage(landing, 0, "a", "one", n=[1]), stage(landing, 0, "b", "one", n=[2])]

    def synced(folder: Path) -> None:
        assert folder == tmp_path
        seen.append([*rows(tmp_path, "a", "n", kind), *rows(tmp_path, "b", "n", kind)])

    monkeypatch.setattr(landing_module, "sync", synced)
    landing.land(QUERY, 0, staged)
    assert seen == [[1, 2]]


def test_what_a_task_staged_is_synced_when_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        landing_module,
        "sync",
        lambda folder: seen.append(sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))),
    )
    files = Files(
        Landing(tmp_path), [TableRule(".*", "raw", "all")], "_quarantine", BlockReader("http://none"), QUERY, 0, 0
    )
    kinds = {
        "topic": pa.string(),
        "key": pa.string(),
        "value": pa.binary(),
        "publish_time": pa.timestamp("us", "UTC"),
        "origin_region": pa.string(),
    }
    columns = {
        name: pa.array(["persistent://a/b/t"] * 5 if name == "topic" else [None] * 5, kinds.get(name, pa.string()))
        for name in TABLE_COLUMNS
    }
    files.add(pa.record_batch(columns))
    assert seen == [] and len(files.close()) == 1
    assert seen == [5]


def test_a_folder_is_synced_or_that_is_said(tmp_path: Path) -> None:
    landing_module.sync(tmp_path)
    with pytest.raises(OSError, match="none"):
        landing_module.sync(tmp_path / "none")


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_are_added_and_not_changed(tmp_path: Path, kind: str) -> None:
    landing = Landing(tmp_path, kind)
    landing.land(QUERY, 0, [stage(landing, 0, "a", "x", n=[1])])
    landing.land(QUERY, 1, [stage(landing, 1, "a", "x", n=[2], more=["m"])])
    landing.land(QUERY, 2, [stage(landing, 2, "a", "x", more=["k"])])
    with pytest.raises(ConfigError, match="columns are added, not changed"):
        landing.land(QUERY, 3, [stage(landing, 3, "a", "x", n=["text"]), stage(landing, 3, "b", "x", n=[1])])
    lake = kind in ("delta", "iceberg")
    assert lake or not (tmp_path / "b").exists(), "nothing lands of a batch that cannot"
    if lake:
        assert rows(tmp_path, "a", "more", kind) == [None, "k", "m"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_job_that_begins_with_a_new_checkpoint_adds_to_what_the_earlier_one_landed(tmp_path: Path, kind: str) -> None:
    """The groups of a tiered job are called the same in each of its checkpoints, and their batches count from 0 in
    each.
    """
    landing = Landing(tmp_path, kind, label="light.1")
    landing.land(QUERY, 0, [stage(landing, 0, "a", "one", n=[1, 2])])
    other = "f" + QUERY
    made = pa.table({"n": [3]})
    pq.write_table(made, landing.staging(other, 0, "a") / "one.parquet")
    landing.land(other, 0, [Staged("a", "one.parquet", 1, made.schema)])
    landing.retire()
    assert rows(tmp_path, "a", "n", kind) == [1, 2, 3]
    assert not list(tmp_path.glob("_staging/_intended/light.1*"))


def test_files_that_the_driver_does_not_see_land_nothing(tmp_path: Path) -> None:
    """A worker whose folder is another one, or another driver that has landed the batch."""
    landing = Landing(tmp_path)
    landing.land(QUERY, 5, [stage(landing, 5, "a", "one", n=[1])])
    staged = [stage(landing, 5, "a", "two", n=[1]), stage(landing, 5, "b", "one", n=[2])]
    (landing.staging(QUERY, 5, "b") / "one.parquet").unlink()
    with pytest.raises(MetadataUnavailable, match="1 files that tasks wrote for the table b are not in"):
        landing.land(QUERY, 5, staged)
    assert rows(tmp_path, "a", "n", "parquet") == [1] and rows(tmp_path, "b", "n", "parquet") == []


KINDS = {
    "topic": pa.string(),
    "value": pa.binary(),
    "publish_time": pa.timestamp("us", "UTC"),
    "coordinate": pa.struct([("ledger", pa.int64())]),
}


def columns(schema: str) -> str:
    """Of a rule: a Spark schema."""
    names = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in json.loads(schema).items()
    ]
    return json.dumps({"type": "struct", "fields": names})


def written(landing: Landing, batch: int, rules: list[TableRule], payloads: dict[str, str]) -> dict[str, str]:
    """By topic that was parked, why. payloads: by topic."""
    files = Files(landing, rules, "_quarantine", BlockReader("http://none"), QUERY, batch, 0)
    for topic, payload in payloads.items():
        given = {"topic": topic, "value": payload.encode()}
        files.add(pa.record_batch({name: pa.array([given.get(name)], kind) for name, kind in KINDS.items()}))
    staged = files.close()
    landing.land(QUERY, batch, staged)
    if "_quarantine" not in {each.table for each in staged}:
        return {}
    found = pq.read_table(
        next((landing._root / "_quarantine").glob(f"batch={batch:010d}-*")), partitioning=None
    ).to_pylist()
    return {row["topic"].removeprefix("persistent://a/b/"): row["reason"] for row in found}


def test_a_topic_whose_name_is_no_folder_stops_no_other_one(tmp_path: Path) -> None:
    names = ("out/..x", "a/b", ".hidden", "_staging", "_quarantine", "x" * 300, "é" * 101)
    topics = [f"persistent://a/b/{name}" for name in (*names, "fine")]
    parked = written(
        Landing(tmp_path / "lake"),
        0,
        [TableRule(".*", columns('{"n": "long"}'), "{topic}")],
        dict.fromkeys(topics, '{"n": 1}'),
    )
    assert parked.keys() == {*names} and all("`name` in the rule" in reason for reason in parked.values())
    assert rows(tmp_path / "lake", "fine", "n", "parquet") == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake"], "nothing is written elsewhere"


@pytest.mark.parametrize("kind", FORMATS)
def test_two_topics_that_come_to_a_new_table_at_once_and_differ_cost_one_attempt(tmp_path: Path, kind: str) -> None:
    landing = Landing(tmp_path, kind)
    with pytest.raises(ConfigError, match="column n"):
        landing.land(QUERY, 0, [stage(landing, 0, "a", "first", n=[1]), stage(landing, 0, "a", "second", n=["x"])])
    assert landing.refused("a", pa.schema([("n", pa.int64())])) == ""
    assert "column n" in landing.refused("a", pa.schema([("n", pa.string())])), "a task parks it from now on"
    landing.land(QUERY, 0, [stage(landing, 0, "a", "first", n=[1])])
    assert rows(tmp_path, "a", "n", kind) == [1]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_topic_whose_columns_do_not_fit_its_table_stops_no_other_one(tmp_path: Path, kind: str) -> None:
    if kind in ("delta", "iceberg"):
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    landing, first, second = Landing(tmp_path, kind), "persistent://a/b/one", "persistent://a/b/two"
    landing.land(QUERY, 0, [stage(landing, 0, "one", "x", n=[1]), stage(landing, 0, "two", "x", n=[1])])
    widened = [TableRule("one", columns('{"n": "string"}'), "one"), TableRule("two", columns('{"n": "long"}'), "two")]
    files = Files(landing, widened, "_quarantine", BlockReader("http://none"), QUERY, 1, 0)
    for topic in (first, second):
        given = {"topic": topic, "value": b'{"n": 2}'}
        files.add(pa.record_batch({name: pa.array([given.get(name)], each) for name, each in KINDS.items()}))
    landing.land(QUERY, 1, files.close())
    assert rows(tmp_path, "one", "n", kind) == [1] and rows(tmp_path, "two", "n", kind) == [1, 2]
    (reason,) = rows(tmp_path, "_quarantine", "reason", kind)
    assert "columns are added, not changed" in str(reason)


def test_a_topic_does_not_come_into_another_rules_table_by_its_name(tmp_path: Path) -> None:
    rules = [TableRule("orders-.*", columns('{"n": "long"}'), "orders"), TableRule(".*", "raw", "{topic}")]
    topics = {f"persistent://a/b/{name}": '{"n": 1}' for name in ("orders-eu", "orders", "other")}
    parked = written(Landing(tmp_path), 0, rules, topics)
    assert parked.keys() == {"orders"} and "the rule for 'orders-.*'" in parked["orders"]
    assert rows(tmp_path, "orders", "n", "parquet") == [1] and rows(tmp_path, "other", "value", "parquet") == [
        b'{"n": 1}'
    ]


def test_topics_whose_names_are_one_to_hive_do_not_share_a_table(tmp_path: Path) -> None:
    """The first one that comes has it, also when both come at once, and when only the other one comes later."""
    landing, rules = (
        Landing(tmp_path, "hive"),
        [TableRule("many-.*", columns('{"n": "long"}'), "many"), TableRule(".*", columns('{"n": "long"}'), "{topic}")],
    )

    def at(*names: str) -> dict[str, str]:
        return {f"persistent://a/b/{name}": '{"n": 1}' for name in names}

    with pytest.raises(ConfigError, match=r"is that of 'a-b', which Hive cannot tell from 'A\.b'"):
        landing.land(
            QUERY,
            0,
            [stage(landing, 0, "a_b", "1", named="a-b", n=[1]), stage(landing, 0, "a_b", "2", named="A.b", n=[1])],
        )
    assert not list(tmp_path.glob("*/batch=*"))
    assert written(landing, 0, rules, at("a-b", "a-b-partition-1", "other", "many-1", "many-2")) == {}
    parked = written(landing, 1, rules, at("a-b", "A.b", "Many", "many-3"))
    assert parked.keys() == {"A.b", "Many"} and all("say another `name`" in reason for reason in parked.values())
    assert written(Landing(tmp_path, "hive"), 2, rules, at("A.b")).keys() == {"A.b"}, "it is remembered"
    assert [rows(tmp_path, table, "n", "parquet") for table in ("a_b", "many")] == [[1] * 3, [1] * 3]
    assert written(Landing(tmp_path / "files"), 0, rules, at("a-b", "A.b", "Many")) == {}, (
        "to parquet's folders they are three"
    )


@pytest.mark.parametrize("kind", ["delta", "hive"])
def test_columns_that_differ_in_capital_letters_alone_stop_no_other_topic(tmp_path: Path, kind: str) -> None:
    if kind == "delta":
        pytest.importorskip("deltalake")
    landing, plain = Landing(tmp_path, kind), TableRule("fine", columns('{"n": "long"}'), "fine")
    inside = json.dumps(
        {"l": {"type": "array", "elementType": json.loads(columns('{"x": "long", "X": "long"}')), "containsNull": True}}
    )
    for batch, schema in enumerate(('{"n": "long", "N": "long"}', inside, '{"n": "long"}', '{"N": "long"}')):
        files = Files(
            landing,
            [plain, TableRule("odd", columns(schema), "odd")],
            "_quarantine",
            BlockReader("http://none"),
            QUERY,
            batch,
            0,
        )
        for topic in ("persistent://a/b/odd", "persistent://a/b/fine"):
            given = {"topic": topic, "value": b'{"n": 2}'}
            files.add(pa.record_batch({name: pa.array([given.get(name)], each) for name, each in KINDS.items()}))
        landing.land(QUERY, batch, files.close())
    assert rows(tmp_path, "fine", "n", kind) == [2] * 4 and rows(tmp_path, "odd", "n", kind) == [2]
    reasons = rows(tmp_path, "_quarantine", "reason", kind)
    assert len(reasons) == 3 and all("capital letters" in str(reason) for reason in reasons)


@pytest.mark.parametrize(
    ("schema", "why"),
    [('{"batch": "long"}', "has a column batch"), ('{"n": {"type": "struct", "fields": []}}', "cannot be written")],
)
def test_columns_that_no_file_can_hold_stop_no_other_topic(tmp_path: Path, schema: str, why: str) -> None:
    rules = [TableRule("bad", columns(schema), "bad"), TableRule(".*", columns('{"n": "long"}'), "{topic}")]
    parked = written(
        Landing(tmp_path),
        0,
        rules,
        {"persistent://a/b/bad": '{"n": {}, "batch": 3}', "persistent://a/b/fine": '{"n": 1}'},
    )
    assert parked.keys() == {"bad"} and why in parked["bad"]
    assert rows(tmp_path, "fine", "n", "parquet") == [1]


def test_what_is_no_payload_is_no_record_whatever_its_bytes_mean(tmp_path: Path) -> None:
    """An encrypted message, a piece of a chunked one, an entry that cannot be taken apart: a decoder of Avro takes
    nearly any bytes for a record.
    """

    class Registry:
        def schemas(self, topic: str) -> list[dict[str, Any]]:
            data = {"type": "record", "name": "One", "fields": [{"name": "id", "type": "int"}]}
            return [{"version": 0, "type": "AVRO", "data": json.dumps(data), "properties": {}}]

    kinds = KINDS | {"schema_version": pa.int64(), "sealed": pa.string()}
    given: dict[str, list[object]] = {
        "topic": ["persistent://a/b/t"] * 5,
        "value": [b"\x02", b"\x04", b"\x06", b"\x08", b"\x0a"],
        "publish_time": [1, 2, 3, None, 5],
        "schema_version": [0, 0, 0, None, None],
        "sealed": [None, "piece", "encrypted", None, None],
        "coordinate": [None] * 5,
    }
    landing = Landing(tmp_path)
    files = Files(
        landing, [TableRule(".*", "registered", "{topic}")], "_quarantine", cast(BlockReader, Registry()), QUERY, 0, 0
    )
    files.add(pa.record_batch({name: pa.array(given[name], kind) for name, kind in kinds.items()}))
    landing.land(QUERY, 0, files.close())
    assert rows(tmp_path, "t", "id", "parquet") == [1, 5], "a message that names no version is read by the newest"
    assert rows(tmp_path, "_quarantine", "value", "parquet") == [b"\x04", b"\x06", b"\x08"]


def test_a_task_of_nothing_but_poison_does_not_hold_all_of_it(tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    files = Files(landing, [], "_quarantine", BlockReader("http://none"), QUERY, 0, 0, topic_bytes=2000)
    for number in range(20):
        given = {"topic": [f"persistent://a/b/{number}"] * 10, "value": [b"x" * 100] * 10}
        files.add(pa.record_batch({name: pa.array(given.get(name, [None] * 10), kind) for name, kind in KINDS.items()}))
    held = files._poison_bytes
    landing.land(QUERY, 0, staged := files.close())
    assert held < 2000 and len(staged) > 5 and len(rows(tmp_path, "_quarantine", "topic", "parquet")) == 200
