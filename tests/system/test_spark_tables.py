"""Table stores on the real engines: Redis and ClickHouse servers of Debian's packages, chdb's engine in this process, Hive's metastore in Spark's own Derby."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError, MetadataUnavailable
from heliograph.spark.stores.choice import store_of
from heliograph.spark.stores.clickhouse import ChdbEngine, Engine, HttpEngine
from tests.spark.stores.support import NOON, ONE, dying, given
from tests.system.programs import clickhouse_server, libraries, python_packages, redis_server
from tests.system.test_object_store import Started, free_port, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
redis = pytest.importorskip("redis")
CHDB = ("chdb==4.4.0", "chdb-core==26.9.0")
CLICKHOUSE = """<?xml version="1.0"?>
<yandex>
  <logger><level>warning</level><console>1</console></logger>
  <listen_host>127.0.0.1</listen_host> <http_port>{http}</http_port> <tcp_port>{tcp}</tcp_port> <interserver_http_port>{other}</interserver_http_port>
  <path>{folder}/data/</path> <tmp_path>{folder}/tmp/</tmp_path> <user_files_path>{folder}/files/</user_files_path>
  <users_config>{folder}/users.xml</users_config> <default_profile>default</default_profile> <default_database>default</default_database>
  <mark_cache_size>67108864</mark_cache_size> <timezone>UTC</timezone>
</yandex>
"""
USERS = """<?xml version="1.0"?>
<yandex>
  <profiles><default/></profiles> <quotas><default/></quotas>
  <users><writer><password>se:cret</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></writer></users>
</yandex>
"""


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port, program = tmp_path_factory.mktemp("redis"), free_port(), redis_server()
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes", "--daemonize", "no"]
    process = Started(command, {**os.environ, "LD_LIBRARY_PATH": libraries(program)}, folder / "log")
    try:
        client = redis.Redis(port=port)

        def answers() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        until(answers, f"Redis answers; see {folder / 'log'}")
        client.close()
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.stop()


@pytest.fixture(scope="module")
def clickhouse_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port, program = tmp_path_factory.mktemp("clickhouse"), free_port(), clickhouse_server()
    (folder / "config.xml").write_text(CLICKHOUSE.format(http=port, tcp=free_port(), other=free_port(), folder=folder))
    (folder / "users.xml").write_text(USERS)
    env = {**os.environ, "LD_LIBRARY_PATH": libraries(program)}
    process = Started([str(program), "--config-file", str(folder / "config.xml")], env, folder / "log")

    def answers() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    try:
        until(answers, f"ClickHouse answers; see {folder / 'log'}")
        yield f"http://writer:se%3Acret@127.0.0.1:{port}/?database=default"
    finally:
        process.stop()


@pytest.fixture(params=["server", "chdb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], Callable[[], Engine]]:
    """(the target's options, a reader's own way in)."""
    if request.param == "server":
        url = str(request.getfixturevalue("clickhouse_url"))
        for table in ("t", "t_rows", "t_batches"):
            HttpEngine(url).run(f"DROP TABLE IF EXISTS {table}")
        return {"store": "clickhouse", "url": url}, lambda: HttpEngine(url)
    monkeypatch.setattr(sys, "path", [*sys.path, str(python_packages(*CHDB))])  # behind ours: it must not bring another pyarrow
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
    store.upsert(given(0, [(NOON, "ann:1", 777, 777)], "clicks views"))
    assert hashes() == expected, "a batch that came again"
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
        store.upsert(type(wrong)("t", wrong.keys, wrong.rows.set_column(at, "clicks", wrong.rows["user"]), "online", "q1", 2))
    assert read() == expected
    with pytest.raises(ConfigError, match="ClickHouse refuses"):
        reader().run("SELECT FROM")


def test_clickhouse_is_made_whole_after_a_death_between_any_two_statements(engine: tuple[dict[str, str], Callable[[], Engine]]) -> None:
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


HIVE = """
import sys
from pathlib import Path
from heliograph.spark import session
from heliograph.spark.stores.choice import store_of
from heliograph.spark.stores.parquet import ParquetStore
from tests.spark.stores.support import NOON, ONE, given
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
"""


def test_hive_sees_what_the_files_hold(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}
    done = subprocess.run([sys.executable, "-c", HIVE, str(tmp_path)], capture_output=True, text=True, timeout=250, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [("2026-01-31-12", "ann", 2, None, int(NOON.timestamp())), ("2026-01-31-13", "bob", 3, 50, int(ONE.timestamp()))]
    assert f"rows {rows}" in done.stdout
    assert f"parts {json.dumps(['bucket=2026-01-31-12', 'bucket=2026-01-31-13'])}".replace('"', "'") in done.stdout


