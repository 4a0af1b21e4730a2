"""The driver's side of a stream, beside what it reads: as whom it asks, and how a micro-batch is cut when topics go."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import BinaryType, StructField, StructType

from heliograph.spark.planning import Bundle
from heliograph.spark.source import HeliographStreamReader

TOPICS = [f"persistent://a/b/t{number}" for number in range(4)]


class Region:
    """One broker that owns all topics, of two ledgers each. tokens: what requests came with. gone: topics that were deleted."""

    def __init__(self) -> None:
        self.tokens: list[str | None] = []
        self.gone: set[str] = set()
        self.two = 1
        region = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                self.answer([topic for topic in TOPICS if topic not in region.gone])

            def do_POST(self) -> None:
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                names = [topic for topic in given.get("topics") or given["positions"] if topic not in region.gone]
                found: dict[str, Any] = {}
                for topic in names:
                    if self.path.endswith("vectors"):
                        found[topic] = [{"origin": [1, 1, 7], "prefix": [2, 9], "missing": []}]
                    else:
                        size = 1000 * (1 + TOPICS.index(topic))
                        found[topic] = {"ledgers": region.ledgers(size), "last_confirmed": [2, 9], "origin": [1, 1, 7], "trimmed": False}
                self.answer({"found": found, "elsewhere": {}, "missing": {}, "later": {}, "regions": {"1": "us"}})

            def answer(self, what: Any) -> None:
                region.tokens.append(self.headers["Authorization"])
                body = json.dumps(what).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def ledgers(self, size: int) -> list[dict[str, int]]:
        return [{"ledger": 1, "entries": 7, "size_bytes": size}] * self.two + [{"ledger": 2, "entries": 10, "size_bytes": size}]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region()
    yield made
    made.server.shutdown()
    made.server.server_close()


def query(region: Region, **more: str) -> HeliographStreamReader:
    options = {"admin_url": region.url, "namespace": "a/b", "columns": "raw", **more}
    return HeliographStreamReader(StructType([StructField("value", BinaryType())]), options)


def test_a_stream_asks_with_the_token_that_its_file_holds_now(region: Region, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    made = query(region, token_file=str(file))
    start = made.initialOffset()
    assert set(region.tokens) == {"Bearer first"}
    file.write_text("second\n")
    region.tokens.clear()
    made.latestOffset(start, ReadMaxBytes(1 << 30))
    assert set(region.tokens) == {"Bearer second"}, "no query outlives its first token otherwise"


@pytest.mark.parametrize(("two", "gone"), [(1, 0), (1, 1), (0, 2), (0, 3)])
def test_a_micro_batch_keeps_its_cuts_when_one_of_its_topics_is_deleted(region: Region, two: int, gone: int) -> None:
    region.two = two
    made = query(region, task_bytes="2500", tasks_min="1")
    start = json.loads(json.dumps(made.initialOffset()))
    if not two:  # the batch begins within the ledger that it ends in
        for place in start["topics"].values():
            place["at"] = "2:3"
    stop = json.loads(json.dumps(made.latestOffset(start, ReadMaxBytes(1 << 30))))

    def cuts() -> list[list[tuple[str, int, int]]]:
        return [[(r.topic, r.first, r.last) for r in task.ranges] for task in made.partitions(start, stop) if isinstance(task, Bundle)]

    before = cuts()
    assert len(before) >= 3
    region.gone.add(TOPICS[gone])
    left = [[part for part in task if part[0] != TOPICS[gone]] for task in before]
    assert cuts() == left, "the sink's producers and sequence ids go by task"
