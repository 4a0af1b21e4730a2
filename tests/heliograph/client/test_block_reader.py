"""Ranges of many topics from brokers that move them, break off, and come back, and from objects that are there or not:
every entry once, in order.

Two real HTTP servers stand for a region's brokers; what they do wrong is drawn from a seed.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from heliograph.client.admin_http import admin_urls
from heliograph.client.block_reader import BlockReader
from heliograph.client.object_reader import ObjectRange, ObjectUnread, read_object
from heliograph.model.errors import ConfigError, EntriesLost, HeliographError, MetadataUnavailable, NotFound, Trimmed
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from tests.heliograph.client.serving import Handler, Servers

TOPICS = [f"persistent://a/b/t{n}" for n in range(6)]
LEDGERS = {topic: 10 + 10 * n for n, topic in enumerate(TOPICS)}
ENTRIES = 60


def entry(topic: str, number: int) -> bytes:
    return f"{topic}:{number}".encode()


def block(topic: str, ledger: int, first: int, last: int) -> bytes:
    parts = [entry(topic, number) for number in range(first, last + 1)]
    return b"".join(encode_block(Run(parts, [len(p) for p in parts]), ledger, first))


class Region:
    """Two brokers; `owner`: by topic, the number of its one. faults: how many requests still go wrong."""

    def __init__(self, seed: int, faults: int = 0) -> None:
        self.rng, self.faults, self.requests = random.Random(seed), faults, 0
        self.owner = {topic: self.rng.randrange(2) for topic in TOPICS}
        self.objects: dict[str, dict[str, Any]] = {}
        self.given: list[list[Any]] = []
        """Ranges that were asked of brokers."""
        self.placed: list[int] = []
        """Of how many ranges each request for places was."""
        self.kept: dict[str, int] = {}
        self.lost: dict[str, range] = {}
        """The last entry that a broker gives of a topic, where that is not all."""
        self.gone: set[str] = set()
        self.absent: set[str] = set()
        self.refused: dict[str, str] = {}
        self.away = 0
        """How many questions by GET are not answered yet."""
        self.lock = threading.Lock()
        region = self

        class Broker(Handler):
            def do_POST(self) -> None:
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                broker = region.brokers.number(self.server)
                with region.lock:
                    region.requests += 1
                    if self.path.endswith("/blocks"):
                        region.given = [*region.given, *given["ranges"]]
                        self.answer_blocks(broker, given["ranges"])
                    else:
                        self.answer_each(broker, given)

            def do_GET(self) -> None:
                with region.lock:
                    region.away -= 1
                    status, body = (503, b"it starts") if region.away >= 0 else (200, json.dumps(TOPICS).encode())
                self.answer(body, status)

            def answer_each(self, broker: int, given: dict[str, Any]) -> None:
                names = given.get("topics") or given.get("ranges")
                if "ranges" in given:
                    region.placed.append(sum(map(len, given["ranges"].values())))
                found: dict[str, Any] = {}
                elsewhere: dict[str, list[str]] = {}
                missing: dict[str, str] = {}
                for topic in names:
                    if topic in region.refused:
                        continue
                    if region.owner[topic] != broker:
                        elsewhere.setdefault(region.url(region.owner[topic]), []).append(topic)
                    elif topic in region.absent:
                        missing[topic] = f"{topic} is not there"
                    elif "ranges" in given:
                        found[topic] = [region.objects.get(topic) for _ in given["ranges"][topic]]
                    else:
                        ledgers = [{"ledger": LEDGERS[topic], "entries": ENTRIES, "size_bytes": 1000}]
                        found[topic] = {
                            "ledgers": ledgers,
                            "last_confirmed": [LEDGERS[topic], ENTRIES - 1],
                            "origin": [1, 1, 1],
                        }
                said = {"missing": missing, "refused": region.refused, "later": {}, "regions": {"1": "us"}}
                body = json.dumps({"found": found, "elsewhere": elsewhere, **said}).encode()
                self.answer(body)

            def answer_blocks(self, broker: int, ranges: list[Any]) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for topic, ledger, first, last in ranges:
                    fault = region.rng.random() if region.faults > 0 else 1.0
                    region.faults -= fault < 0.6
                    if fault < 0.2:  # it is given to the other broker at this moment
                        region.owner[topic] = 1 - broker
                    if region.owner[topic] != broker:
                        url = region.url(region.owner[topic]).encode()
                        self.chunk(b"\0\1\0\0" + len(url).to_bytes(4, "big") + url)
                        continue
                    if topic in region.gone:
                        self.chunk(b"\0\2\0\0" + (4).to_bytes(4, "big") + b"gone")
                        continue
                    lost, end = region.lost.get(topic, range(0)), last
                    last = min(last, lost.start - 1) if first < lost.stop <= 1 + last else last
                    at, last = first, min(last, region.kept.get(topic, last))
                    while at <= last:
                        stop = min(last, at + region.rng.randrange(1, 20))
                        data = block(topic, ledger, at, stop)
                        if 0.2 <= fault < 0.6 and region.rng.random() < 0.5:  # it dies, within a block or between two
                            self.chunk(data[: region.rng.randrange(len(data) + 1)])
                            self.close_connection = True
                            return
                        self.chunk(data)
                        at = stop + 1
                    if last < end and topic in region.lost:
                        text = f"{ledger} {lost.start} {lost.stop - 1}".encode()
                        self.chunk(b"\0\3\0\0" + len(text).to_bytes(4, "big") + text)
                        continue
                    self.chunk(b"\0" * 8)
                self.wfile.write(b"0\r\n\r\n")

            def chunk(self, data: bytes) -> None:
                if data:
                    self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        self.brokers = Servers(Broker, 2)

    def url(self, broker: int) -> str:
        return f"http://{self.brokers.addresses[broker]}"


@pytest.fixture
def make() -> Iterator[Any]:
    made: list[Region] = []

    def one(seed: int, faults: int = 0) -> Region:
        made.append(Region(seed, faults))
        return made[-1]

    yield one
    for region in made:
        region.brokers.close()


def read(
    reader: BlockReader, ranges: list[tuple[str, int, int, int]], placed: tuple[int, ...] = ()
) -> list[tuple[int, bytes]]:
    return [(number, bytes(part)) for number, _, _, run in reader.runs(ranges, placed=placed) for part in run.parts]


def drawn(rng: random.Random) -> tuple[list[tuple[str, int, int, int]], list[tuple[int, bytes]]]:
    """(ranges, what is in them)."""
    ranges = []
    for _ in range(rng.randrange(1, 20)):
        topic, first = rng.choice(TOPICS), rng.randrange(ENTRIES)
        ranges.append((topic, LEDGERS[topic], first, rng.randrange(first, ENTRIES)))
    return ranges, [
        (n, entry(topic, e)) for n, (topic, _, first, last) in enumerate(ranges) for e in range(first, last + 1)
    ]


@pytest.mark.parametrize("seed", range(25))
def test_every_entry_comes_once_and_in_the_order_of_the_ranges(make: Any, seed: int) -> None:
    """The sink counts a partition's rows: another order after a move would be other sequence ids."""
    region, rng = make(seed, faults=seed % 12), random.Random(seed)
    reader = BlockReader(f"{region.url(0)},{region.url(1)}")
    for _ in range(3):
        ranges, expected = drawn(rng)
        assert read(reader, ranges) == expected
    reader.close()


def test_what_was_trimmed_meanwhile_is_left_out_or_an_error(make: Any) -> None:
    region = make(3)
    reader, ranges = BlockReader(region.url(0)), [(topic, LEDGERS[topic], 10, 40) for topic in TOPICS]
    region.kept = {TOPICS[1]: 20, TOPICS[4]: 5}
    left = {1: 11, 4: 0}
    assert read(reader, ranges) == [
        (n, entry(topic, 10 + e)) for n, topic in enumerate(TOPICS) for e in range(left.get(n, 31))
    ]
    with pytest.raises(Trimmed, match="t1: entries 21 to 40 of ledger 20 were deleted"):
        list(reader.runs(ranges, may_lose=False))
    region.kept = {}
    assert sum(run.count for _, _, _, run in reader.runs(ranges, may_lose=False)) == 31 * len(TOPICS)


def test_what_is_lost_is_an_error_or_left_out_and_what_is_behind_it_is_read(make: Any) -> None:
    region = make(3)
    reader, ranges = BlockReader(region.url(0)), [(topic, LEDGERS[topic], 10, 40) for topic in TOPICS]
    region.lost = {TOPICS[1]: range(20, 25), TOPICS[4]: range(10, 41)}
    assert read(reader, ranges) == [
        (n, entry(topic, e))
        for n, topic in enumerate(TOPICS)
        for e in range(10, 41)
        if e not in region.lost.get(topic, ())
    ]
    with pytest.raises(EntriesLost, match="entries 20 to 24 of ledger 20 are lost"):
        list(reader.runs(ranges, may_lose=False))


def test_many_topics_are_a_few_requests(make: Any) -> None:
    region = make(1)
    reader = BlockReader(region.url(0))
    assert set(reader.snapshots(TOPICS)) == set(TOPICS) and region.requests <= 2
    ranges = [(topic, LEDGERS[topic], 0, 5) for topic in TOPICS] * 50
    before = region.requests
    assert len(read(reader, ranges)) == 6 * len(ranges)
    assert region.requests - before == 2, "one a broker"


@pytest.mark.parametrize("seed", range(8))
def test_offloaded_ledgers_are_read_from_their_objects_or_else_from_brokers(
    make: Any, seed: int, tmp_path: Path
) -> None:
    region, rng = make(seed), random.Random(seed)
    for number, topic in enumerate(TOPICS):
        ledger = LEDGERS[topic]
        pieces = [block(topic, ledger, first, min(first + 6, ENTRIES - 1)) for first in range(0, ENTRIES, 7)]
        path, whole = tmp_path / str(number), b"head" + b"".join(pieces)
        kind = rng.choice(("good", "good", "gone", "torn", "other"))
        if kind == "torn":
            whole = whole[: rng.randrange(4, len(whole) - 1)]
        if kind == "other":
            whole = b"head" + b"".join(
                block(topic, ledger + 1, first, min(first + 6, ENTRIES - 1)) for first in range(0, ENTRIES, 7)
            )
        if kind != "gone":
            path.write_bytes(whole)
        region.objects[topic] = {"url": f"file://{path}", "first": 0, "start": 4, "stop": 4 + sum(map(len, pieces))}
    ranges, expected = drawn(rng)
    assert read(BlockReader(region.url(0)), ranges, tuple(range(len(ranges)))) == expected


def test_the_places_of_very_many_ranges_are_asked_for_in_several_requests(make: Any) -> None:
    region = make(2)
    region.owner = dict.fromkeys(TOPICS, 0)
    topic, other = TOPICS[:2]
    ranges = [(topic, LEDGERS[topic], number, number) for number in range(2_500)] + [(other, LEDGERS[other], 0, 0)]
    places = BlockReader(region.url(0))._places(dict(enumerate(ranges)))
    assert places == {} and region.placed == [1_000, 1_000, 501]
    region.objects[topic] = {"url": "file:///x", "first": 0, "start": 0, "stop": 1}
    assert list(BlockReader(region.url(0))._places(dict(enumerate(ranges)))) == list(range(2_500))


def test_what_a_transaction_published_is_asked_of_a_broker(make: Any, tmp_path: Path) -> None:
    """Nothing in the entries says whether it was committed; behind the first of them the broker gives the rest of that
    range.
    """
    region, topic, path = make(2), TOPICS[0], tmp_path / "object"
    parts = [b"taken back"] * 10
    inside = b"".join(encode_block(Run(parts, [10] * 10, transaction=(1, 2)), LEDGERS[topic], 20))
    path.write_bytes(block(topic, LEDGERS[topic], 0, 19) + inside + block(topic, LEDGERS[topic], 30, ENTRIES - 1))
    region.objects[topic] = {"url": f"file://{path}", "first": 0, "start": 0, "stop": path.stat().st_size}
    ranges = [(topic, LEDGERS[topic], 0, 15), (topic, LEDGERS[topic], 5, ENTRIES - 1), (topic, LEDGERS[topic], 40, 50)]
    reader = BlockReader(region.url(0))
    before = region.given
    expected = [(n, entry(topic, e)) for n, (_, _, first, last) in enumerate(ranges) for e in range(first, last + 1)]
    assert read(reader, ranges, (0, 1, 2)) == expected
    assert [part[:4] for part in region.given[len(before) :]] == [[topic, LEDGERS[topic], 20, ENTRIES - 1]]


def test_an_object_gives_its_part_and_nothing_that_is_not_whole(tmp_path: Path) -> None:
    topic, path = TOPICS[0], tmp_path / "object"
    pieces = [block(topic, 10, first, first + 9) for first in range(0, 40, 10)]
    path.write_bytes(b"".join(pieces))
    second = ObjectRange(f"file://{path}", 10, 10, len(pieces[0]), sum(map(len, pieces)))
    found = [(at, run.count) for at, run in read_object(second, 13, 32)]
    assert found == [(13, 7), (20, 10), (30, 3)]
    for broken in (
        second._replace(first=11),
        second._replace(ledger=9),
        second._replace(stop=second.stop - len(pieces[3])),
        second._replace(url="s3://x/y"),
    ):
        with pytest.raises(ObjectUnread):
            list(read_object(broken, 13, 32))


def test_a_region_that_does_not_answer_is_an_error_in_the_end(make: Any) -> None:
    region = make(1)
    region.brokers.close()
    with pytest.raises(MetadataUnavailable, match="does not answer"):
        BlockReader(region.url(0), patience_s=0.2).snapshots(TOPICS)
    with pytest.raises((MetadataUnavailable, NotFound)):
        read(BlockReader(region.url(0), patience_s=0.2), [(TOPICS[0], 10, 0, 3)])


class _Told(BaseHTTPRequestHandler):
    """A broker's Pulsar port, as far as HTTP goes, and one that says nothing."""

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self.send_response(307)
        if self.server.server_name != "silent":
            self.send_header("Location", f"http://broker-{self.server.server_port}:8080/")
        self.end_headers()


def test_a_service_url_leads_to_the_admin_ports_of_who_answers() -> None:
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Told) for _ in range(3)]
    servers[2].server_name = "silent"
    ports = [server.server_port for server in servers]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        every = ",".join(f"127.0.0.1:{port}" for port in ports)
        assert admin_urls(f"pulsar://{every}") == f"http://broker-{ports[0]}:8080,http://broker-{ports[1]}:8080"
        servers[0].shutdown()
        servers[0].server_close()
        assert admin_urls(f"pulsar://{every}/") == f"http://broker-{ports[1]}:8080"
        with pytest.raises(MetadataUnavailable, match="give admin_url"):
            admin_urls(f"pulsar://127.0.0.1:{ports[2]}")
    finally:
        for server in servers[1:]:
            server.shutdown()
            server.server_close()
    assert admin_urls("http://a:8080,b:8080") == "http://a:8080,http://b:8080"
    for wrong in ("a:6650", "kafka://a:9092", "pulsar://", "pulsar://a:b"):
        with pytest.raises(ConfigError, match="no service URL"):
            admin_urls(wrong)


def test_a_topic_that_was_deleted_meanwhile_is_left_out_or_an_error(make: Any) -> None:
    region = make(1)
    region.owner = dict.fromkeys(TOPICS, 0)
    region.gone = {TOPICS[1]}
    ranges = [(topic, LEDGERS[topic], 0, 9) for topic in TOPICS[:3]]
    reader = BlockReader(region.url(0))
    left = [number for number, _, _, run in reader.runs(ranges, may_go=True) for _ in range(run.count)]
    assert left == [0] * 10 + [2] * 10
    with pytest.raises(NotFound, match="gone"):
        list(BlockReader(region.url(0)).runs(ranges))


def test_whose_a_topic_is_that_is_not_there_is_remembered(make: Any) -> None:
    region = make(1)
    region.owner, region.absent = dict.fromkeys(TOPICS, 1), set(TOPICS)
    reader = BlockReader(region.url(0))
    for requests in (2, 1):
        region.requests = 0
        assert reader.snapshots(TOPICS) == {}
        assert region.requests == requests


def test_questions_about_names_wait_for_who_starts(make: Any) -> None:
    region = make(1)
    region.away = 3
    assert BlockReader(region.url(0)).topics("a/b") == sorted(TOPICS)
    region.away = 1 << 30
    with pytest.raises(MetadataUnavailable, match="it starts"):
        BlockReader(region.url(0), patience_s=0.1).topics("a/b")


def test_a_subscription_that_is_refused_is_an_error(make: Any) -> None:
    region = make(1)
    region.owner = dict.fromkeys(TOPICS, 0)
    region.refused = {TOPICS[0]: "it has as many subscriptions as it may have"}
    with pytest.raises(HeliographError, match="as many subscriptions"):
        BlockReader(region.url(0)).held("s", TOPICS[:2])
