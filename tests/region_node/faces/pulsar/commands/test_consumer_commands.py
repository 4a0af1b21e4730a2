"""Consumers and readers over fake storage: permits, acknowledgements, redelivery, seeking, ends."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.errors import EntriesLost
from heliograph.wire.kafka.entry_conversion import entry_of
from heliograph.wire.kafka.record_batches import build_batch, sealed
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import FLAG_KAFKA, FLAG_MARKER, Run
from region_node.faces.pulsar.commands.consumer_commands import (
    ACK_IDS_MAX,
    ACK_SET_WORDS_MAX,
    ACK_WORDS_MAX,
    position_of,
)
from region_node.faces.pulsar.session.pulsar_broker import ConnectionLimits
from region_node.replication.replicated_subscriptions import replicate
from region_node.subscriptions.sticky_keys import key_hash
from region_node.topics.serving.topic_service import TopicSettings
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, K, ids, kinds, messages, publish, settle, with_broker


def test_permits_count_messages_and_the_last_entry_may_overdraw() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.do(*(send(1, i * 10, entry(b"b" * 60, batch=10), num_messages=10) for i in range(5)))
        await client.subscribe(1, initialPosition=1)
        assert ids(await client.flow(15)) == [(10, 0), (10, 1)]
        assert ids(await client.flow(5)) == []
        assert ids(await client.flow(1)) == [(10, 2)]

    with_broker(test)


def test_tail_and_backlog_and_resuming() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 10)
        broker.ledger().cache = False
        await client.subscribe(1, initialPosition=1)
        got = await client.flow(1000)
        assert [i[1] for i in ids(got)] == list(range(10))
        broker.ledger().cache = True
        came = await client.do(send(1, 10, entry(b"tail")))
        assert sorted(kinds(came)) == [K.SEND_RECEIPT, K.MESSAGE]
        ack = [{"ledgerId": 10, "entryId": e} for e in (0, 1, 2, 5)]
        await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[pb.MessageIdData(**m) for m in ack]))
        await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=50))
        await client.subscribe(2)
        assert [i[1] for i in ids(await client.flow(1000, 2))] == [3, 4, 6, 7, 8, 9, 10]
        last = pb.MessageIdData(ledgerId=10, entryId=8)
        ((answer, _),) = await client.do(frame(K.ACK, consumer_id=2, ack_type=1, message_id=[last], request_id=77))
        assert answer.ackResponse.request_id == 77 and broker.ledger().cursors["s"].flushes == 1
        assert broker.ledger().cursors["s"].mark_delete == (10, 8)

    with_broker(test)


def test_part_of_a_batch_and_entries_to_come_are_not_acknowledged() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 3)
        await client.subscribe(1, initialPosition=1)
        await client.flow(10)
        part = pb.MessageIdData(ledgerId=10, entryId=0, ack_set=[3])
        done = pb.MessageIdData(ledgerId=10, entryId=1, ack_set=[0])
        future = pb.MessageIdData(ledgerId=10, entryId=9)
        await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[part, done, future]))
        cursor = broker.ledger().cursors["s"]
        assert [cursor.is_acked((10, e)) for e in (0, 1, 2, 9)] == [False, True, False, False]

    with_broker(test)


@pytest.mark.parametrize("setting", [True, False])
@pytest.mark.parametrize("kind", [0, 1, 3])
def test_messages_of_a_batch_are_acknowledged_one_by_one(setting: bool, kind: int) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=kind, initialPosition=1)
        await client.do(
            *(send(1, n, entry(b"x" * 24, sequence=n, batch=4, partition_key="k"), num_messages=4) for n in range(2))
        )
        assert [list(m.ack_set) for m, _ in await client.flow(8)] == [[], []]
        for left in (0b1110, 0b1011):
            part = pb.MessageIdData(ledgerId=10, entryId=0, ack_set=[left], batch_size=4)
            ((answer, _),) = await client.do(
                frame(K.ACK, consumer_id=1, ack_type=0, message_id=[part], request_id=left)
            )
            assert answer.ackResponse.request_id == left and not answer.ackResponse.HasField("error")
        again = messages(
            await client.do(
                frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1),
                frame(K.FLOW, consumer_id=1, messagePermits=8),
            )
        )
        assert [list(m.ack_set) for m, _ in again] == [[0b1010] if setting else [], []]
        if kind == 0:
            last = pb.MessageIdData(ledgerId=10, entryId=1, ack_set=[0b1000])
            await client.do(frame(K.ACK, consumer_id=1, ack_type=1, message_id=[last]))
            again = messages(
                await client.do(
                    frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1),
                    frame(K.FLOW, consumer_id=1, messagePermits=8),
                )
            )
            assert [(m.message_id.entryId, list(m.ack_set)) for m, _ in again] == [(1, [8] if setting else [])]
        huge = pb.MessageIdData(ledgerId=10, entryId=0, ack_set=[1] * 5000)
        ((answer, _),) = await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[huge], request_id=99))
        assert (answer.ackResponse.error == pb.NotAllowedError) is setting

    with_broker(test, topic_settings=TopicSettings(batch_index_acks=setting))


def test_an_acknowledgement_of_very_many_ids_is_refused_and_nothing_of_it_is_looked_at() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 3)
        await client.subscribe(1, initialPosition=1)
        await client.flow(10)
        many = [pb.MessageIdData(ledgerId=10, entryId=entry) for entry in range(ACK_IDS_MAX + 1)]
        ((answer, _),) = await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=many, request_id=9))
        assert answer.ackResponse.error == pb.NotAllowedError and str(ACK_IDS_MAX) in answer.ackResponse.message
        cursor = broker.ledger().cursors["s"]
        assert not cursor.is_acked((10, 0))
        ((answer, _),) = await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=many[1:], request_id=10))
        assert not answer.ackResponse.HasField("error") and [cursor.is_acked((10, e)) for e in (0, 2)] == [False, True]
        unread = [pb.MessageIdData(ledgerId=9, entryId=entry) for entry in range(ACK_IDS_MAX + 1)]
        back = await client.do(
            frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=unread),
            frame(K.FLOW, consumer_id=1, messagePermits=10),
        )
        assert [m.message_id.entryId for m, _ in messages(back)] == [0]

    with_broker(test)


def test_the_ack_sets_of_an_acknowledgement_are_bounded_together(caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 3)
        await client.subscribe(1, initialPosition=1)
        words = [-1] * (ACK_SET_WORDS_MAX - 1) + [(1 << 62) - 1]
        most = ACK_WORDS_MAX // ACK_SET_WORDS_MAX
        many = [pb.MessageIdData(ledgerId=10, entryId=1, ack_set=words) for _ in range(most)]
        (answer, _), *_ = await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=many, request_id=9))
        cursor = broker.ledger().cursors["s"]
        assert not answer.ackResponse.HasField("error")
        assert cursor.partly_acked == {(10, 1): (1 << 64 * ACK_SET_WORDS_MAX - 2) - 1}
        many += [pb.MessageIdData(ledgerId=10, entryId=0, ack_set=[1]), pb.MessageIdData(ledgerId=10, entryId=2)]
        ((answer, _),) = await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=many, request_id=10))
        assert answer.ackResponse.error == pb.NotAllowedError and str(ACK_WORDS_MAX) in answer.ackResponse.message
        assert list(cursor.partly_acked) == [(10, 1)] and cursor.is_acked((10, 2)), "whole entries are taken"
        with caplog.at_level("INFO", "region_node.pulsar"):
            await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=many))
        (refused,) = [record for record in caplog.records if record.message == "request.refused"]
        assert str(ACK_WORDS_MAX) in vars(refused)["error"] and vars(refused)["consumer"] == 1

    with_broker(test)


def test_where_too_many_acknowledgements_wait_others_are_refused_all_else_is_read_and_no_ids_are_kept() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 3)
        stuck = asyncio.Event()
        for number in (1, 2):
            await client.subscribe(number, name=f"s{number}", initialPosition=1)
            broker.ledger().cursors[f"s{number}"].flushed = stuck.wait  # type: ignore[assignment]
        ids = [pb.MessageIdData(ledgerId=10, entryId=entry) for entry in range(3)]
        for request in range(20):
            client.raw(frame(K.ACK, consumer_id=1 + request % 2, ack_type=0, message_id=ids, request_id=request))
        await settle()
        for number in (1, 2):
            another = frame(K.ACK, consumer_id=number, ack_type=0, message_id=ids, request_id=20)
            ((answer, _),) = await client.do(another)
            assert answer.ackResponse.error == pb.ServiceNotReady and "try again" in answer.ackResponse.message
        assert client.transport.reading
        kept = [one for handle in client.protocol.session.consuming.handles.values() for one in handle.ack_waiting]
        assert len(kept) == 20 and all(one.ByteSize() < 10 for one in kept)
        stuck.set()
        answers = [command.ackResponse.request_id for command, _ in await client.news()]
        assert sorted(answers) == list(range(20))
        ((answer, _),) = await client.do(another)
        assert not answer.ackResponse.HasField("error")

    with_broker(test, limits=ConnectionLimits(unanswered_acks_max=20))


def test_key_shared_over_frames() -> None:
    async def test(broker: Broker) -> None:
        def meta(*ranges: tuple[int, int]) -> pb.KeySharedMeta:
            made = pb.KeySharedMeta(keySharedMode=pb.STICKY)
            for start, end in ranges:
                made.hashRanges.add(start=start, end=end)
            return made

        def subscribe(request_id: int, consumer_id: int, shared: pb.KeySharedMeta) -> bytes:
            command = pb.CommandSubscribe(
                topic=TOPIC,
                subscription="s",
                subType=pb.CommandSubscribe.Key_Shared,
                consumer_id=consumer_id,
                request_id=request_id,
                keySharedMeta=shared,
            )
            body = pb.BaseCommand(type=K.SUBSCRIBE, subscribe=command).SerializeToString()
            return struct.pack(">II", len(body) + 4, len(body)) + body

        client = await broker.client()
        await client.producer(1)
        assert kinds(await client.do(subscribe(1, 1, meta((0, 29_999))))) == [K.SUCCESS]
        for wrong in (meta((29_999, 30_000)), meta(), meta((-1, 5))):
            ((answer, _),) = await client.do(subscribe(2, 2, wrong))
            assert (answer.error.request_id, answer.error.error) == (2, pb.ConsumerAssignError)
        ((answer, _),) = await client.do(subscribe(3, 3, pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)))
        assert answer.error.error == pb.ConsumerBusy
        assert kinds(await client.do(subscribe(4, 2, meta((30_000, 65_535))))) == [K.SUCCESS]
        await client.do(
            frame(K.FLOW, consumer_id=1, messagePermits=100), frame(K.FLOW, consumer_id=2, messagePermits=100)
        )
        came = messages(
            await client.do(*(send(1, n, entry(b"x", sequence=n, partition_key=f"k{n}")) for n in range(30)))
        )
        for message, _ in came:
            assert message.consumer_id == (1 if key_hash(f"k{message.message_id.entryId}".encode()) < 30_000 else 2)
        assert len(came) == 30 and {m.consumer_id for m, _ in came} == {1, 2}
        last = pb.MessageIdData(ledgerId=10, entryId=8)
        ((answer, _),) = await client.do(frame(K.ACK, consumer_id=1, ack_type=1, message_id=[last], request_id=9))
        assert answer.ackResponse.error == pb.NotAllowedError

    with_broker(test)


def test_redelivery_on_exclusive_rewinds_and_echoes_the_epoch() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 4)
        await client.subscribe(1, initialPosition=1)
        await client.flow(10)
        await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[pb.MessageIdData(ledgerId=10, entryId=0)]))
        came = messages(await client.do(frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, consumer_epoch=3)))
        assert [i[1] for i in ids(came)] == [1, 2, 3] and {m.consumer_epoch for m, _ in came} == {3}

    with_broker(test)


def test_readers() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 5)
        start = {"ledgerId": 10, "entryId": 3}
        await client.subscribe(1, name="r", durable=False, start_message_id=start)
        assert [i[1] for i in ids(await client.flow(10))] == [3, 4]
        ((answer, _),) = await client.do(frame(K.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=5))
        assert answer.getLastMessageIdResponse.last_message_id.entryId == 4
        await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=6))
        assert "r" not in broker.ledger().cursors and "r" not in broker.topics.loaded[TOPIC].subscriptions
        everything = (1 << 64) - 1
        await client.subscribe(
            2, name="r", durable=False, start_message_id={"ledgerId": everything, "entryId": everything}
        )
        assert len(await client.flow(10, 2)) == 5

    with_broker(test)


def test_closing_and_making_a_reader_of_one_name_in_one_read() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, name="r", durable=False)
        again = frame(K.SUBSCRIBE, topic=TOPIC, subscription="r", subType=0, consumer_id=2, request_id=8, durable=False)
        came = await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=7), again)
        assert [c.success.request_id for c, _ in came if c.type == K.SUCCESS] == [7, 8]

    with_broker(test)


def test_a_message_id_below_the_first_of_a_ledger_is_right_before_that() -> None:
    """What is stored of it is one less, and has the width of what can be written."""
    for entry_id in (1 << 63, (1 << 64) - 1):
        assert position_of(pb.MessageIdData(ledgerId=7, entryId=entry_id)) == (7, -1)
    assert position_of(pb.MessageIdData(ledgerId=7, entryId=0)) == (7, 0)


def test_seek_by_id_and_time() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 5)
        broker.ledger().rollover()
        await publish(client, 5, start=5)
        await client.subscribe(1, initialPosition=1)
        await client.flow(100)
        came = await client.do(frame(K.SEEK, consumer_id=1, request_id=5, message_id={"ledgerId": 11, "entryId": 1}))
        assert kinds(came) == [K.CLOSE_CONSUMER, K.SUCCESS]
        await client.subscribe(1)
        assert ids(await client.flow(100)) == [(11, e) for e in range(1, 5)]
        for publish_time, expected in (
            (1003, (10, 3)),
            (1004, (10, 4)),
            (1005, (11, 0)),
            (1008, (11, 3)),
            (1, (10, 0)),
        ):
            await client.do(frame(K.SEEK, consumer_id=1, request_id=5, message_publish_time=publish_time))
            await client.subscribe(1)
            assert ids(await client.flow(100))[0] == expected
        await client.do(frame(K.SEEK, consumer_id=1, request_id=5, message_publish_time=99_999))
        await client.subscribe(1)
        assert await client.flow(100) == []

    with_broker(test)


def test_nobody_joins_before_a_seek_is_answered() -> None:
    """A client drops what it got before the answer: however long the move takes to be durable, nothing may come to the
    consumer that it made meanwhile.
    """

    async def test(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        await client.producer(1)
        await publish(client, 3)
        await client.subscribe(1, initialPosition=1)
        assert len(await client.flow(100)) == 3
        cursor, stored = broker.topics.loaded[TOPIC].subscriptions["s"].cursor, asyncio.Event()
        cursor.flushed = stored.wait  # type: ignore[method-assign, assignment]
        seek = frame(K.SEEK, consumer_id=1, request_id=50, message_id={"ledgerId": 10, "entryId": 0})
        assert kinds(await client.do(seek)) == [K.CLOSE_CONSUMER]
        again = frame(K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=51)
        assert await client.do(again, frame(K.FLOW, consumer_id=1, messagePermits=100)) == []
        await other.subscribe(7, name="another")
        stored.set()
        came = await client.news()
        assert kinds(came)[:2] == [K.SUCCESS] * 2 and [c.success.request_id for c, _ in came[:2]] == [50, 51]
        assert ids(messages(came)) == [(10, 0), (10, 1), (10, 2)]

    with_broker(test)


def test_who_waited_for_a_seek_while_the_topic_was_unloaded_is_told_to_come_again() -> None:
    """Its subscription is still there, elsewhere: that there is none would end a client which may not make one."""

    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        await broker.topics.policies.change_topic(
            TOPIC,
            lambda before: replace(
                before, policies={"autoSubscriptionCreation": {"allowAutoSubscriptionCreation": False}}
            ),
        )
        topic, stored = broker.topics.loaded[TOPIC], asyncio.Event()
        topic.subscriptions["s"].cursor.flushed = stored.wait  # type: ignore[method-assign, assignment]
        await client.do(frame(K.SEEK, consumer_id=1, request_id=50, message_id={"ledgerId": 10, "entryId": 0}))
        await client.do(frame(K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=51))
        await broker.topics.unload(TOPIC)
        stored.set()
        errors = [c.error for c, _ in await client.news() if c.type == K.ERROR]
        assert [(e.request_id, e.error) for e in errors] == [(51, pb.ServiceNotReady)], errors

    with_broker(test)


def test_unsubscribe() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, kind=1)
        await client.subscribe(2, kind=1)
        ((answer, _),) = await client.do(frame(K.UNSUBSCRIBE, consumer_id=1, request_id=5))
        assert answer.error.error == pb.MetadataError  # what a real broker says here
        await client.do(frame(K.CLOSE_CONSUMER, consumer_id=2, request_id=6))
        assert kinds(await client.do(frame(K.UNSUBSCRIBE, consumer_id=1, request_id=7))) == [K.SUCCESS]
        assert broker.ledger().cursors == {}
        assert kinds(await client.do(frame(K.UNSUBSCRIBE, consumer_id=1, request_id=8))) == [K.ERROR]

    with_broker(test)


def test_a_replicated_subscription_is_not_unsubscribed_in_one_region_alone() -> None:
    """Another region that has it would bring it back."""

    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        topic: Any = broker.topics.loaded[TOPIC]
        (found,) = topic.subscriptions.values()
        replicate(topic, found)
        topic.log.sends = True
        ((answer, _),) = await client.do(frame(K.UNSUBSCRIBE, consumer_id=1, request_id=5))
        assert answer.error.error == pb.NotAllowedError and "--only-here" in answer.error.message
        assert found.consumers and topic.subscriptions
        replicate(topic, found, on=False)
        assert kinds(await client.do(frame(K.UNSUBSCRIBE, consumer_id=1, request_id=6))) == [K.SUCCESS]
        assert not topic.subscriptions

    with_broker(test)


def test_last_message_of_a_batch_and_of_nothing() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, topic=TOPIC + "-partition-3")
        ask = frame(K.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=5)
        ((answer, _),) = await client.do(ask)
        assert answer.getLastMessageIdResponse.last_message_id.entryId == (1 << 64) - 1
        await client.producer(1, topic=TOPIC + "-partition-3")
        await client.do(send(1, 0, entry(b"b" * 24, batch=4), num_messages=4))
        ((answer, _),) = await client.do(ask)
        last = answer.getLastMessageIdResponse.last_message_id
        assert (last.ledgerId, last.entryId, last.batch_index, last.partition) == (10, 0, 3, 3)
        ((message, _),) = await client.flow(10)
        assert message.message_id.partition == 3

    with_broker(test)


def test_markers_are_not_delivered_but_acknowledged() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        flags = [FLAG_MARKER * (i in (0, 2, 3, 6)) for i in range(7)]
        parts = [entry(b"x", sequence=i) for i in range(7)]
        run = Run(parts, [len(part) for part in parts], flags=flags)
        broker.topics.loaded[TOPIC].publish(run, lambda _: None, lambda error: None)
        await client.subscribe(1, initialPosition=1)
        got = await client.flow(100)
        assert [i[1] for i in ids(got)] == [1, 4, 5]
        ((answer, _),) = await client.do(frame(K.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=5))
        assert answer.getLastMessageIdResponse.last_message_id.entryId == 5
        ids_ = [pb.MessageIdData(ledgerId=10, entryId=e) for e in (1, 4, 5)]
        await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=ids_))
        assert broker.ledger().cursors["s"].mark_delete == (10, 6)

    with_broker(test)


def test_dispatch_stops_above_the_high_water_mark() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 10)
        await client.subscribe(1, initialPosition=1)
        client.protocol.pause_writing()
        assert await client.flow(100) == []
        client.protocol.resume_writing()
        assert len(messages(await client.news())) == 10

    with_broker(test)


def test_who_subscribes_before_what_is_lost_hears_so_and_is_not_asked_to_try_again() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.do(*(send(1, n, entry(b"x", sequence=n)) for n in range(5)))
        factory: Any = broker.topics._factory
        now = asyncio.get_running_loop().time()
        factory.losses.told(TOPIC, EntriesLost(10, 0, 2), now)

        def asks(name: str, entry: int | None = None) -> bytes:
            fields: dict[str, object] = {"initialPosition": 1}
            if entry is not None:
                fields = {"durable": False, "start_message_id": {"ledgerId": 10, "entryId": entry}}
            return frame(K.SUBSCRIBE, topic=TOPIC, subscription=name, subType=0, consumer_id=1, request_id=7, **fields)

        for name, first in (("s", None), ("r", 1)):
            ((answer, _),) = await client.do(asks(name, first))
            assert answer.error.error == pb.NotAllowedError
            assert "entries 0 to 2 of ledger 10 are lost" in answer.error.message
        assert kinds(await client.do(asks("r", 3))) == [K.SUCCESS]
        assert [m.message_id.entryId for m, _ in await client.flow(10)] == [3, 4]

    with_broker(test)


POISON = entry_of(sealed(b"no gzip at all", 1, 2, 1, 1, 3), 3, 1)


def kafka_entries(broker: Broker, *stored: tuple[bytes, int]) -> None:
    """Published as one run: (entry, records in it)."""
    parts, counts = [part for part, _ in stored], [count for _, count in stored]
    run = Run(parts, [len(part) for part in parts], counts=counts, flags=[FLAG_KAFKA] * len(parts))
    broker.topics.loaded[TOPIC].publish(run, lambda _: None, lambda error: None)


@pytest.mark.parametrize("kind", range(4))
def test_an_entry_that_no_client_can_be_given_stops_nobody(kind: int) -> None:
    """In the middle, at both ends, and alone: its neighbours come, it is acknowledged, and its permits come back."""

    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        good = entry_of(build_batch([(1, None, b"a", ()), (2, None, b"b", ())]), 2, 1)
        kafka_entries(broker, (POISON, 3), (good, 2), (POISON, 3), (good, 2), (POISON, 3))
        kafka_entries(broker, (POISON, 3))
        await client.subscribe(1, kind=kind, initialPosition=1)
        got = await client.flow(13)
        assert [entry_id for _, entry_id in ids(got)] == [1, 3]
        (one,) = messages(await client.do(send(1, 0, entry(b"x"))))
        assert one[0].message_id.entryId == 6
        cursor = broker.ledger().cursors["s"]
        assert [cursor.is_acked((10, e)) for e in range(7)] == [True, False, True, False, True, True, False]
        consumer = broker.topics.loaded[TOPIC].subscriptions["s"].consumers[0]
        assert consumer.permits == 13 - 2 - 2 - 1, "what was not given is owed to nobody"
        assert not any((10, e) in consumer.pending for e in (0, 2, 4, 5))
        assert broker.topics.loaded[TOPIC].unreadable_out == 4

    with_broker(test)


def test_what_consumers_say_of_themselves_is_bounded() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()

        async def refused(**fields: Any) -> str:
            ((answer, _),) = await client.do(
                frame(K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=1, consumer_id=9, request_id=9, **fields)
            )
            assert answer.error.error == pb.NotAllowedError and 9 not in client.protocol.session.consuming.handles
            return answer.error.message

        for metadata in ([pb.KeyValue(key="k", value="v" * (64 << 10))], [pb.KeyValue(key="", value="")] * 656):
            assert "metadata of the consumer" in await refused(metadata=metadata)
        assert "name of the consumer" in await refused(consumer_name="n" * 1001)
        most = [pb.KeyValue(key=f"{number:02}", value="v" * 549) for number in range(100)]
        await client.subscribe(1, kind=1, metadata=most, consumer_name="n" * 1000)
        assert client.protocol.session.consuming.metadata_bytes == 65_100
        assert "use another connection" in await refused(metadata=most)
        await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=8))
        await client.subscribe(2, kind=1, metadata=most)
        await broker.topics.unload(TOPIC)
        await settle()
        assert client.protocol.session.consuming.metadata_bytes == 0

    with_broker(test, limits=ConnectionLimits(metadata_bytes_max=100_000))
