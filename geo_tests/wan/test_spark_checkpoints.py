"""Checkpoints that are damaged: the query says so instead of reading on somewhere, and a new one goes on where the
subscription stands.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.instance import Instance
from tests.heliograph.spark.running import PATIENT, started

pytestmark = pytest.mark.system  # a JVM of its own, a minute on a busy machine

pytest.importorskip("pyspark")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from heliograph.spark import session

    made = session("checkpoints", settings={"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()


def changed(how: Callable[[str], str]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        text = path.read_text()
        assert how(text) != text
        path.write_text(how(text))
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)  # else Hadoop says so

    return damage


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "an empty newest offset": ("offsets", changed(lambda text: "")),
    "half of the newest offset": ("offsets", changed(lambda text: text[: len(text) // 2])),
    "positions that are none": ("offsets", changed(lambda text: text.replace('"at": "', '"at": "x'))),
    "topics that are gone from the newest offset": (
        "offsets",
        changed(lambda text: text.replace('"topics": {', '"other": {')),
    ),
    "a bit of the newest offset": ("offsets", lambda path: path.write_text(path.read_text().replace('"us"', '"uz"'))),
    "an empty newest commit": ("commits", changed(lambda text: "")),
}


def test_a_damaged_checkpoint_ends_the_query_and_the_subscription_stands_in_for_it(
    pair: Instance, spark: Any, tmp_path: Path
) -> None:
    topic, found = "persistent://public/geo/checkpoints", list[str]()
    producer = pair.client("us").create_producer(topic, batching_enabled=True, **PATIENT)

    def publish(start: int, stop: int) -> None:
        for n in range(start, stop):
            producer.send_async(b"%d" % n, None)
        producer.flush()

    def run(state: Path) -> Exception | None:
        rows = (
            spark.readStream.format("heliograph")
            .options(admin_url=pair.admin("us"), topic=topic, subscription="checkpoints")
            .load()
        )
        writer = rows.selectExpr("cast(value as string) as body").writeStream
        writer = writer.foreachBatch(lambda part, _: found.extend(row.body for row in part.collect()))
        query = started(writer.option("checkpointLocation", str(state)).trigger(availableNow=True).start)
        try:
            assert query.awaitTermination(300)
        except Exception:  # it is asked for below
            query.stop()
        error: Exception | None = query.exception()
        return error

    whole = tmp_path / "whole"
    for start in (0, 100):
        publish(start, start + 100)
        assert run(whole) is None
    assert len(found) == 200
    publish(200, 250)
    for number, (what, (log, damage)) in enumerate(DAMAGES.items()):
        broken = tmp_path / f"broken-{number}"
        shutil.copytree(whole, broken)
        damage(
            max((path for path in (broken / log).iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        )
        assert run(broken) is not None, what
        assert len(found) == 200, f"{what}: nothing is read on somewhere"
    assert run(tmp_path / "new") is None
    assert sorted(set(map(int, found))) == list(range(250)) and len(found) <= 350, (
        "all of it, and the last micro-batch at most twice"
    )
