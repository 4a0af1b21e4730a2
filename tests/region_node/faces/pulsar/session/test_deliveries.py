"""Entries of Kafka's clients that take long to convert are made ready off the event loop, and sent as they would have
been.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.model.errors import CorruptData
from heliograph.runtime.compute_thread import Offload
from heliograph.wire.kafka.entry_conversion import as_pulsar, entry_of, for_pulsar
from heliograph.wire.kafka.record_batches import ReadRoom, build_batch, sealed
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import FLAG_KAFKA, Run
from region_node.faces.pulsar.session import deliveries
from region_node.faces.pulsar.session.deliveries import ROOM
from region_node.faces.pulsar.session.pulsar_broker import ConnectionLimits
from tests.region_node.faces.pulsar.codec import frame
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, Client, K, ids, kinds, messages, settle, with_broker

MANY = ROOM[1] + 1
Stored = tuple[bytes, int]
"""An entry, and the records in it."""


def stored(count: int, text: bytes = b"v", codec: int = 0, headers: int = 0) -> Stored:
    records = [(1, b"k", text, ((b"h", b""),) * headers)] * count
    return entry_of(build_batch(records, codec=codec), count, 1), count


SMALL, LARGE = stored(2), stored(MANY)
CORRUPT = entry_of(sealed(b"\x01" * 8 * MANY, 0, MANY - 1, 1, 1, MANY), MANY, 1), MANY


class Thread:
    """What for_pulsar is asked in another thread; it waits there for `go_on`."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self, run: Run, room: ReadRoom, *, whole_first: bool = False) -> Any:
        assert whole_first is (threading.current_thread() is not threading.main_thread())
        if whole_first:
            self.calls += 1
            self.begun.set()
            assert self.go_on.wait(60), "whoever holds the event loop never gets here"
        return for_pulsar(run, room, whole_first=whole_first)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Thread]:
    made = Thread()
    monkeypatch.setattr(deliveries, "for_pulsar", made)
    yield made
    made.go_on.set()


async def published(broker: Broker, *entries: Stored, topic: str = TOPIC) -> None:
    parts = [part for part, _ in entries]
    counts = [count for _, count in entries]
    run = Run(parts, [len(part) for part in parts], counts=counts, flags=[FLAG_KAFKA] * len(parts))
    (await broker.topics.get_for_client(topic, create=True)).publish(run, lambda _: None, lambda error: None)
    await settle()


async def come(client: Client, count: int) -> list[tuple[pb.CommandMessage, bytes]]:
    got: list[tuple[pb.CommandMessage, bytes]] = []
    for _ in range(5000):
        got += messages(await client.news())
        if len(got) >= count:
            return got
        await asyncio.sleep(0.001)
    raise AssertionError(f"{len(got)} of {count} messages came")


def consumer(broker: Broker, number: int = 0) -> Any:
    return broker.topics.loaded[TOPIC].subscriptions["s"].consumers[number]


@pytest.mark.parametrize("kind", range(4))
def test_what_takes_long_is_made_in_a_thread_and_comes_in_its_order(thread: Thread, kind: int) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await published(broker, SMALL, LARGE, SMALL, LARGE, SMALL)
        await published(broker, SMALL, topic=TOPIC + "2")
        await client.subscribe(1, kind=kind, initialPosition=1)
        await client.subscribe(2, topic=TOPIC + "2", initialPosition=1)
        assert ids(await client.flow(10_000)) == [(10, 0)] and consumer(broker).busy
        assert await asyncio.to_thread(thread.begun.wait, 20)
        assert len(await client.flow(10, consumer_id=2)) == 1, "others are served meanwhile"
        await published(broker, SMALL)
        assert not messages(await client.news()), "nothing goes past it"
        thread.go_on.set()
        got = await come(client, 5)
        assert [entry for _, entry in ids(got)] == [1, 2, 3, 4, 5]
        assert [payload for _, payload in got] == [as_pulsar(part) for part, _ in (LARGE, SMALL, LARGE, SMALL, SMALL)]
        assert consumer(broker).permits == 10_000 - 2 * MANY - 8 and not consumer(broker).busy
        assert thread.calls == 2, "what lies behind it goes with it, as far as it is small"
        assert broker.topics.loaded[TOPIC].converted_out == 2 * MANY + 8

    with_broker(test)


def test_an_error_that_nobody_expected_keeps_its_consumer_from_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(run: Run, room: ReadRoom, *, whole_first: bool = False) -> Any:
        if whole_first:
            raise KeyError("nobody expected this")
        return for_pulsar(run, room)

    async def test(broker: Broker) -> None:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
        monkeypatch.setattr(deliveries, "for_pulsar", failing)
        client = await broker.client()
        await published(broker, LARGE)
        await client.subscribe(1, initialPosition=1)
        await client.flow(10_000)
        for _ in range(5000):
            if told and not consumer(broker).busy:
                break
            await asyncio.sleep(0.001)
        assert told == ["KeyError('nobody expected this')"] and consumer(broker).permits == 10_000
        await published(broker, SMALL)
        assert ids(await come(client, 1))[0][1] == 1, "what lies behind it comes"

    with_broker(test)


@pytest.mark.parametrize(
    "large", [*(stored(1, bytes(ROOM[0] + 1), codec) for codec in range(5)), stored(1, b"", 0, MANY)]
)
def test_an_entry_is_large_by_what_it_unpacks_to_and_by_its_headers(thread: Thread, large: Stored) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await published(broker, SMALL, large)
        await client.subscribe(1, initialPosition=1)
        assert ids(await client.flow(100)) == [(10, 0)]
        thread.go_on.set()
        ((_, payload),) = await come(client, 1)
        assert payload == as_pulsar(large[0]) and thread.calls == 1

    with_broker(test)


def test_many_small_ones_are_large_together(thread: Thread) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await published(broker, *(stored(ROOM[1] // 4) for _ in range(6)))
        await client.subscribe(1, initialPosition=1)
        assert len(await client.flow(10_000)) == 4
        thread.go_on.set()
        assert [entry for _, entry in ids(await come(client, 2))] == [4, 5]
        assert thread.calls == 1

    with_broker(test)


@pytest.mark.parametrize("kind", range(4))
def test_what_is_asked_for_again_meanwhile_comes_once_and_permits_are_right(thread: Thread, kind: int) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await published(broker, LARGE, SMALL)
        await client.subscribe(1, kind=kind, initialPosition=1)
        assert not await client.flow(10_000)
        again = frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, consumer_epoch=7)
        assert not messages(await client.do(again))
        permits = 10_000 - MANY - (0 if kind in (1, 3) else 2)
        assert consumer(broker).permits == permits, "what was given up is owed again, and then given again"
        thread.go_on.set()
        got = await come(client, 2)
        assert [entry for _, entry in ids(got)] == [0, 1]
        assert all(message.consumer_epoch == 7 for message, _ in got)
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert not messages(await client.news())
        assert consumer(broker).permits == 10_000 - MANY - 2

    with_broker(test)


@pytest.mark.parametrize("kind", [1, 3])
def test_with_the_consumer_that_leaves_goes_what_waits_for_it(thread: Thread, kind: int) -> None:
    async def test(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        await published(broker, LARGE, LARGE, SMALL)
        await client.subscribe(1, kind=kind, initialPosition=1)
        assert not await client.flow(10_000)
        assert await asyncio.to_thread(thread.begun.wait, 20)
        await other.subscribe(1, kind=kind)
        assert kinds(await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=9))) == [K.SUCCESS]
        assert not await other.flow(10_000)
        thread.go_on.set()
        assert sorted(entry for _, entry in ids(await come(other, 3))) == [0, 1, 2]
        assert not await client.news()
        assert all(message.redelivery_count == 1 for message, _ in messages(other.got))

    with_broker(test)


def test_nothing_comes_behind_the_news_that_the_topic_is_closed(thread: Thread) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await published(broker, LARGE)
        await client.subscribe(1, initialPosition=1)
        assert not await client.flow(10_000)
        assert await asyncio.to_thread(thread.begun.wait, 20)
        await broker.topics.unload(TOPIC)
        assert K.CLOSE_CONSUMER in kinds(await client.news())
        thread.go_on.set()
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert not await client.news()

    with_broker(test)


def test_a_large_one_that_no_client_can_be_given_stops_nobody(thread: Thread) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await published(broker, SMALL, CORRUPT, SMALL)
        with pytest.raises(CorruptData):
            as_pulsar(CORRUPT[0])
        await client.subscribe(1, initialPosition=1)
        assert ids(await client.flow(10_000)) == [(10, 0)]
        thread.go_on.set()
        assert ids(await come(client, 1)) == [(10, 2)]
        await settle()
        assert broker.ledger().cursors["s"].is_acked((10, 1)) and broker.topics.loaded[TOPIC].unreadable_out == 1
        assert consumer(broker).permits == 10_000 - 4

    with_broker(test)


def test_of_a_batch_that_is_acknowledged_in_parts_the_rest_is_owed(thread: Thread) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await published(broker, LARGE)
        await client.subscribe(1, kind=1, initialPosition=1)
        broker.ledger().cursors["s"].partly_acked[10, 0] = 0b101
        assert not await client.flow(100)
        assert consumer(broker).permits == 100 - 2
        assert not messages(await client.do(frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)))
        thread.go_on.set()
        ((message, _),) = await come(client, 1)
        assert list(message.ack_set)[:1] == [0b101]
        assert consumer(broker).permits == 100 - 2

    with_broker(test)


def test_where_too_many_wait_it_is_tried_again(thread: Thread) -> None:
    async def test(broker: Broker) -> None:
        client, has_room = await broker.client(), broker.listener.broker.converting
        broker.listener.broker.converting = Offload(waiting_max=0)
        thread.go_on.set()
        await published(broker, LARGE)
        await client.subscribe(1, initialPosition=1)
        assert not await client.flow(10_000) and not thread.calls
        broker.listener.broker.converting = has_room
        assert len(await come(client, 1)) == 1

    with_broker(test, limits=ConnectionLimits(conversion_again_s=0))
