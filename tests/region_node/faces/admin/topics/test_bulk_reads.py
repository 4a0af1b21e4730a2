"""A reader's subscriptions: where they stand, whoever says so, and how often; and what it reads without the broker."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from heliograph.client import bookie_reader
from heliograph.client.block_reader import BlockReader
from heliograph.model.errors import HeliographError
from heliograph.wire.run import FLAG_HIDDEN, Run
from tests.region_node.live import provisioned, until
from tests.region_node.region_processes import Region
from tests.region_node.transactions.frame_client import ABORT, COMMIT, WireClient

pytestmark = [pytest.mark.wan, pytest.mark.slow]

TOPIC = "persistent://public/default/read"


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with provisioned(tmp_path_factory.mktemp("reading")) as made:
        with closing(pulsar.Client(made.service_url())) as client:
            producer = client.create_producer(TOPIC)
            for number in range(10):
                producer.send(b"%d" % number)
        yield made


@pytest.fixture
def url(region: Region) -> str:
    return region.admin_url()


def test_a_subscription_is_moved_on_and_never_back(url: str) -> None:
    reader = BlockReader(url)
    ledger = reader.snapshot(TOPIC).last[0]
    stands = []
    for entry in (3, 7, 2, 7, 8):
        reader.hold("query", {TOPIC: (ledger, entry)})
        stands.append(reader.held("query", [TOPIC])[TOPIC])
    assert stands == [(ledger, entry) for entry in (3, 7, 7, 7, 8)], (
        "what a runner says that was stopped for a while moves nothing"
    )


def test_a_subscription_that_may_not_be_made_is_said(url: str) -> None:
    reader = BlockReader(url)
    with pytest.raises(HeliographError, match="has 5000 bytes"):
        reader.hold("n" * 5000, {TOPIC: reader.snapshot(TOPIC).last})


def test_what_comes_behind_a_query_is_read_from_memory(region: Region) -> None:
    """Between two micro-batches nobody is connected; other topics' entries leave the memory meanwhile, those of a
    query's subscription stay.
    """
    tail = "persistent://public/default/tail"
    with closing(pulsar.Client(region.service_url())) as client:
        reader = BlockReader(region.admin_url())

        def reads() -> float:
            names = ("us-bookie-0", "us-bookie-1")
            return sum(counted(region, name, "http", "bookkeeper_server_READ_ENTRY_count") for name in names)

        def published(topic: str) -> tuple[str, int, int, int]:
            """Three more, as a range."""
            before = client.create_producer(topic)
            for _ in range(3):
                before.send(b"x")
            before.close()
            ledger, last = reader.snapshot(topic).last
            return topic, ledger, last - 2, last

        def asked_of_bookies(part: tuple[str, int, int, int]) -> bool:
            before = reads()
            assert sum(run.count for *_, run in reader.runs([part])) == 3
            return reads() > before

        def stays() -> bool:
            reader.hold("query", {tail: (held[1], held[3] + 1)})
            part = published(tail)
            until(lambda: asked_of_bookies(published(TOPIC)))  # its memory was swept since
            return not asked_of_bookies(part)

        held = published(tail)
        until(stays)


def test_what_a_transaction_took_back_does_not_come_from_bookies_either(region: Region) -> None:
    topic, pad = "persistent://public/default/transactions", bytes(1 << 16)
    reader, expected = BlockReader(region.admin_url()), []
    bookie_reader.forget()
    with WireClient(region.service_url()) as wire:
        wire.connect()
        producer = wire.producer(topic)
        for number, how in enumerate([None] * 24 + [COMMIT, ABORT, None, ABORT, COMMIT, None]):
            if how is None:
                wire.publish(producer, b"%06d" % number + pad)
            else:
                txn = wire.begin(topics=(topic,))
                wire.publish(producer, b"%06d" % number + pad, txn)
                wire.end(txn, how)
            expected += [b"%06d" % number] if how != ABORT else []
        wire.publish(producer, b"unseen" + pad, wire.begin(topics=(topic,)))
    read_directly: list[int] = []
    direct = BlockReader._from_place

    def from_place(*arguments: Any) -> Iterator[tuple[int, int, int, Run]]:
        for one in direct(*arguments):
            read_directly.append(one[3].count)
            yield one

    def shown(*, placed: bool) -> list[bytes]:
        (ledger, entries, _), *others = reader.snapshot(topic).ledgers
        runs = [run for *_, run in reader.runs([(topic, ledger, 0, entries - 1)], placed=[0] if placed else [])]
        assert not others
        return [
            bytes(part)[-65542:-65536]
            for run in runs
            for n, part in enumerate(run.parts)
            if run.flags is None or not run.flags[n] & FLAG_HIDDEN
        ]

    assert shown(placed=False) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockReader, "_from_place", from_place)
        until(lambda: shown(placed=True) == expected and sum(read_directly) > 0)
    assert shown(placed=True) == expected and max(read_directly) <= 24


def counted(region: Region, process: str, port: str, name: str) -> float:
    """In namespace public/default, where it is told by namespace."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{region.processes[process].ports[port]}/metrics", timeout=30
    ) as answer:
        lines = answer.read().decode().splitlines()
    rows = [
        line
        for line in lines
        if line.startswith((f"{name} ", f"{name}{{"))
        and ("namespace=" not in line or 'namespace="public/default"' in line)
    ]
    return sum(float(row.rpartition(" ")[2]) for row in rows)


def test_large_ranges_come_from_bookies_also_when_one_is_killed_meanwhile(tmp_path: Path) -> None:
    """The broker gives none of it while a bookie does; from one that was killed in the middle the other one takes over,
    and none is read twice.
    """
    bookie_reader.forget()
    with provisioned(tmp_path) as region:
        with closing(pulsar.Client(region.service_url())) as client:
            producer = client.create_producer(TOPIC, batching_enabled=False)
            for number in range(384):
                producer.send_async(b"%06d" % number + bytes(1 << 16), lambda *_: None)
            producer.flush()
        url, names = region.admin_url(), ("us-bookie-0", "us-bookie-1")
        snapshot = BlockReader(url).snapshot(TOPIC)
        ranges = [(TOPIC, ledger, 0, entries - 1) for ledger, entries, _ in snapshot.ledgers]
        size, placed = sum(size for *_, size in snapshot.ledgers), range(len(ranges))

        def by_bookies() -> float:
            return sum(
                counted(region, name, "http", "bookie_direct_read_bytes_total")
                for name in names
                if region.processes[name].popen.poll() is None
            )

        def read(reader: BlockReader) -> list[bytes]:
            return [bytes(part)[-65542:-65536] for *_, run in reader.runs(ranges, placed=placed) for part in run.parts]

        def by_broker() -> float:
            return counted(region, "us-broker-0", "admin", "pulsar_ml_ReadEntriesSucceeded")

        def whole() -> bool:
            before = by_bookies()
            assert read(BlockReader(url)) == expected
            return by_bookies() - before >= size

        expected = [b"%06d" % number for number in range(384)]
        until(whole)  # until the broker's memory has let go of it, and the bookies have heard of the key of its permits
        asked: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BlockReader, "_from_broker", lambda _self, _streams, _left, number, *_: asked.append(number))
            assert whole() and not asked
        gave, reads = by_bookies(), by_broker()
        assert read(BlockReader(url, bookies=False)) == expected and by_bookies() == gave
        until(lambda: by_broker() > reads)

        found: list[bytes] = []
        for *_, run in BlockReader(url).runs(ranges, placed=placed):
            if not found:
                (busy,) = [name for name in names if counted(region, name, "http", "bookie_direct_reads_open")]
                region.processes[busy].kill()
            found += [bytes(part)[-65542:-65536] for part in run.parts]
        assert found == expected
        assert read(BlockReader(url)) == expected, "a new task, while that bookie is away"

        (other,) = [name for name in names if name != busy]
        earlier = {"port": 0, "http_port": 0, "direct_reads": 0}  # to brokers as one of a version that knows no permits
        region.spawn(
            region.settings(busy.removeprefix("us-"), ["bookie"], **region.addresses, bookie=earlier)
        ).wait_ready()
        bookie_reader.forget()
        until(whole)
        assert counted(region, busy, "http", "bookie_direct_read_bytes_total") == 0
        region.processes[other].kill()
        until(lambda: read(BlockReader(url)) == expected)
        assert counted(region, busy, "http", "bookie_direct_read_bytes_total") == 0, "the broker reads for others"
