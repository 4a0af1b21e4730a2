"""Producers over fake storage: receipts, refusals in their place, exclusive access, what is held back by memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import LedgerFenced, NotEnoughBookies
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.frame_cutter import IN_ORDER
from region_node.faces.pulsar.session.pulsar_broker import ConnectionLimits
from region_node.topics.producer_epochs import topic_epoch_key
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, K, kinds, publish, receipts, settle, with_broker


def test_sends_behind_their_producer_wait_for_it() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        came = await client.do(
            frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1), *(send(1, i, entry(b"x")) for i in range(3))
        )
        assert receipts(came) == [(1, i, i) for i in range(3)]
        assert kinds(came)[0] in (K.PRODUCER_SUCCESS, K.SEND_RECEIPT)

    with_broker(test)


def test_receipts_of_several_producers_on_one_connection() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1, producer_name="a")
        await client.producer(2, producer_name="b")
        came = await client.do(*(send(1 + i % 2, i, entry(b"x")) for i in range(10)))
        assert receipts(came) == [(1 + i % 2, i, i) for i in range(10)]
        assert [run.count for _, _, run in broker.ledger().runs] == [10]

    with_broker(test)


def test_one_write_a_loop_turn() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        client.raw(b"".join(send(1, i, entry(b"x")) for i in range(600)))
        await settle()
        assert len(client.transport.written) == 1

    with_broker(test)


def test_a_receipt_that_no_other_can_follow_waits_for_no_end_of_a_turn() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        ledger = broker.ledger()
        ledger.hold = True
        client.raw(send(1, 0, entry(b"x")))
        client.raw(send(1, 1, entry(b"y")))
        await settle()
        assert not client.transport.written
        ledger.release(1)
        assert not client.transport.written, "another one is on its way"
        ledger.release(1)
        assert len(client.transport.written) == 1
        assert receipts(await client.news()) == [(1, 0, 0), (1, 1, 1)]

    with_broker(test)


def test_a_damaged_entry_is_refused_in_its_place() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        broker.ledger().hold = True
        stored = entry(b"x" * 50)
        assert await client.do(send(1, 0, stored), send(1, 1, stored[:-1] + b"?"), send(1, 2, stored)) == []
        broker.ledger().release()
        came = await client.news()
        assert kinds(came) == [K.SEND_RECEIPT, K.SEND_ERROR, K.SEND_RECEIPT] or kinds(came) == [
            K.SEND_RECEIPT,
            K.SEND_RECEIPT,
            K.SEND_ERROR,
        ]
        assert [c.send_error.error for c, _ in came if c.type == K.SEND_ERROR] == [pb.ChecksumError]
        assert len(broker.ledger().positions()) == 2

    with_broker(test)


def test_a_batch_that_cannot_hold_what_it_says_is_one_message_and_its_producer_goes_on() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        bad = entry(b"", batch=2**31 - 1)
        came = await client.do(send(1, 0, entry(b"x")), send(1, 1, bad), send(1, 2, entry(b"x")))
        assert sorted(kinds(came)) == sorted([K.SEND_RECEIPT, K.SEND_ERROR, K.SEND_RECEIPT])
        (refused,) = [c.send_error for c, _ in came if c.type == K.SEND_ERROR]
        assert (refused.sequence_id, refused.error) == (1, pb.NotAllowedError)
        assert "2147483647 messages" in refused.message and len(broker.ledger().positions()) == 2

    with_broker(test)


def test_what_a_policy_keeps_out_is_one_message_and_not_its_neighbours() -> None:
    async def test(broker: Broker) -> None:
        await broker.topics.policies.change_topic(
            TOPIC, lambda before: replace(before, policies={"maxMessageSize": 200})
        )
        client = await broker.client()
        await client.producer(1, producer_name="a")
        await client.producer(2, producer_name="b")
        broker.ledger().hold = True
        large, batch = entry(b"x" * 300), entry(b"y" * 42, batch=7)
        first, second = send(1, 0, entry(b"x")) + send(1, 1, large), send(1, 2, entry(b"x")) + send(2, 12, large)
        assert await client.do(first, send(2, 5, batch, num_messages=7), second, send(1, 3, entry(b"x"))) == []
        broker.ledger().release()
        came = await client.news()
        told = [(c.send_receipt, True) if c.type == K.SEND_RECEIPT else (c.send_error, False) for c, _ in came]
        assert [(one.sequence_id, good) for one, good in told if one.producer_id == 1] == [
            (0, True),
            (1, False),
            (2, True),
            (3, True),
        ]
        assert [(one.sequence_id, good) for one, good in told if one.producer_id == 2] == [(5, True), (12, False)]
        assert {c.send_error.error for c, _ in came if c.type == K.SEND_ERROR} == {pb.NotAllowedError}
        assert len(broker.ledger().positions()) == 4
        producers = broker.topics.loaded[TOPIC].producers.producers
        assert {name: one.messages_in for name, one in producers.items()} == {"a": 3, "b": 7}
        assert producers["b"].bytes_in == len(batch) and producers["a"].bytes_in == 3 * len(entry(b"x"))
        assert broker.listener.broker.budget.used == 0
        broker.ledger().hold = False
        assert receipts(await client.do(send(1, 4, entry(b"x")))) == [(1, 4, 4)], "it goes on"

    with_broker(test)


def test_behind_what_is_refused_of_a_producer_in_order_nothing_is_stored() -> None:
    """By its highest sequence id a topic would take what was refused for a duplicate, once it comes again as its client
    had it.
    """

    async def test(broker: Broker) -> None:
        await broker.topics.policies.change_topic(
            TOPIC, lambda before: replace(before, policies={"maxMessageSize": 200})
        )
        client = await broker.client()
        await client.producer(1, producer_name="a", metadata=[pb.KeyValue(key=IN_ORDER, value="true")])
        await client.producer(2, producer_name="b")
        broker.ledger().hold = True
        large, small = entry(b"x" * 300), entry(b"x")
        assert (
            await client.do(
                send(1, 0, small) + send(1, 1, large) + send(1, 2, small) + send(2, 0, small),
                send(1, 3, large),
                send(1, 4, small),
            )
            == []
        )
        broker.ledger().release()
        came = await client.news()
        assert sorted(receipts(came)) == [(1, 0, 0), (2, 0, 1)]
        refused = [c.send_error for c, _ in came if c.type == K.SEND_ERROR]
        assert [(each.producer_id, each.sequence_id, each.error) for each in refused] == [(1, 1, pb.NotAllowedError)]
        assert broker.listener.broker.budget.used == 0
        broker.ledger().hold = False
        assert kinds(await client.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=50))) == [K.SUCCESS]
        await client.producer(3, producer_name="a", metadata=[pb.KeyValue(key=IN_ORDER, value="true")])
        wrong = small[:-1] + b"?"
        came = await client.do(send(3, 1, small), send(3, 2, wrong), send(3, 3, small))
        assert [one[:2] for one in receipts(came)] == [(3, 1)] and kinds(came).count(K.SEND_ERROR) == 1

    with_broker(test)


def test_a_log_that_has_failed_takes_nothing_of_what_a_refusal_has_cut() -> None:
    async def test(broker: Broker) -> None:
        await broker.topics.policies.change_topic(
            TOPIC, lambda before: replace(before, policies={"maxMessageSize": 200})
        )
        client = await broker.client()
        await client.producer(1)
        broker.ledger(TOPIC).refusal = LedgerFenced("another broker has it")
        came = await client.do(send(1, 0, entry(b"x")), send(1, 1, entry(b"x" * 300)), send(1, 2, entry(b"x")))
        assert K.CLOSE_PRODUCER in kinds(came) and K.SEND_RECEIPT not in kinds(came)
        assert broker.listener.broker.budget.used == 0 and not client.protocol.closed

    with_broker(test)


def test_a_checksum_error_never_overtakes_receipts() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        broker.ledger().hold = True
        stored = entry(b"x" * 50)
        assert await client.do(send(1, 0, stored), send(1, 1, stored[:-1] + b"?")) == []
        broker.ledger().release()
        assert kinds(await client.news()) == [K.SEND_RECEIPT, K.SEND_ERROR]

    with_broker(test)


def test_after_a_failed_append_nothing_later_is_stored() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1, producer_name="a")
        broker.ledger().fail_with = NotEnoughBookies("one of two")
        came = await client.do(send(1, 5, entry(b"x")), send(1, 6, entry(b"x")))
        assert kinds(came) == [K.SEND_ERROR]
        assert (came[0][0].send_error.sequence_id, came[0][0].send_error.error) == (5, pb.PersistenceError)
        broker.ledger().fail_with = None
        assert await client.do(send(1, 7, entry(b"x"))) == []
        assert broker.ledger().positions() == []

    with_broker(test)


def test_a_fenced_topic_is_unloaded_and_its_clients_told() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        broker.ledger().fail_with = LedgerFenced("by another")
        came = await client.do(send(1, 5, entry(b"x")))
        assert sorted(kinds(came)) == [K.CLOSE_PRODUCER, K.CLOSE_CONSUMER]
        assert TOPIC not in broker.topics.loaded
        broker.ledger().fail_with = None
        await client.producer(1)
        await publish(client, 1)

    with_broker(test)


def test_unloading_answers_what_is_under_way_first() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        broker.ledger().hold = True
        await client.do(send(1, 0, entry(b"x")))
        unloading = asyncio.ensure_future(broker.topics.unload(TOPIC))
        await settle()
        assert await client.do(send(1, 1, entry(b"late"))) == []
        broker.ledger().release()
        await unloading
        assert kinds(await client.news()) == [K.SEND_RECEIPT, K.CLOSE_PRODUCER]
        assert len(broker.ledger().positions()) == 1

    with_broker(test)


def test_closing_waits_for_the_receipts() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        broker.ledger().hold = True
        assert await client.do(send(1, 0, entry(b"x")), frame(K.CLOSE_PRODUCER, producer_id=1, request_id=9)) == []
        broker.ledger().release()
        assert kinds(await client.news()) == [K.SEND_RECEIPT, K.SUCCESS]
        assert kinds(await client.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=10))) == [K.ERROR]

    with_broker(test)


def test_deduplication() -> None:
    async def test(broker: Broker) -> None:
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"deduplication": True}))
        client = await broker.client()
        assert (await client.producer(1, producer_name="a")).last_sequence_id == -1
        await publish(client, 3)
        came = await client.do(send(1, 1, entry(b"again")))
        none = (1 << 64) - 1
        assert receipts(came) == [(1, 1, none)]
        await client.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=9))
        assert (await client.producer(1, producer_name="a")).last_sequence_id == 2

    with_broker(test)


def test_reading_stops_above_the_budget() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        await one.producer(1)
        await two.subscribe(1)
        broker.ledger().hold = True
        one.raw(send(1, 0, entry(bytes(4 << 20))))
        one.raw(send(1, 1, entry(bytes(4 << 20))))
        assert not one.transport.reading and two.transport.reading
        broker.ledger().release()
        assert one.transport.reading and broker.listener.broker.budget.used == 0

    with_broker(test, inflight_bytes_max=6 << 20)


def test_what_is_sent_before_its_producer_is_made_takes_nothing_of_the_budget_and_is_bounded() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        broker.owned = lambda topic: False
        made = frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
        client.raw(made + send(1, 0, entry(b"x" * 900_000)))
        assert broker.listener.broker.budget.used == 0 and client.transport.reading
        await settle()
        client.raw(made + send(1, 0, entry(b"x" * 900_000)))
        assert not client.protocol.closed, "what went with the producer is held no more"
        client.raw(send(1, 1, entry(b"x" * 200_000)))
        assert client.protocol.closed and broker.listener.broker.budget.used == 0
        other = await broker.client()
        other.raw(
            made
            + b"".join(
                send(1, i, entry(b"x")) + frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
                for i in range(1100)
            )
        )
        assert other.protocol.closed, "each run counts, however small"
        await settle()

    with_broker(test)


def test_who_waits_for_access_and_sends_is_closed_and_takes_nothing_of_the_budget() -> None:
    async def test(broker: Broker) -> None:
        one, two, three = await broker.client(), await broker.client(), await broker.client()
        await one.producer(1, producer_access_mode=1)
        await two.producer(1, producer_access_mode=2)
        ((answer, _),) = await two.do(send(1, 0, entry(b"x")))
        assert "producer_ready" in answer.error.message and two.protocol.closed
        three.raw(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, producer_access_mode=2))
        three.raw(send(1, 0, entry(b"x")))
        await settle()
        assert three.protocol.closed and broker.listener.broker.budget.used == 0
        await publish(one, 3)

    with_broker(test)


def test_exclusive_access_and_waiting_for_it() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        first = await one.producer(1, producer_access_mode=1)
        assert first.topic_epoch == 0
        waiting = await two.producer(1, producer_access_mode=2)
        assert not waiting.producer_ready
        came = await one.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=9))
        assert kinds(came) == [K.SUCCESS]
        (success,) = [c.producer_success for c, _ in await two.news()]
        assert success.producer_ready and success.topic_epoch == 1 and success.request_id == waiting.request_id
        await publish(two, 2)
        three = await broker.client()
        fencing = await three.producer(1, producer_access_mode=3)
        assert fencing.topic_epoch == 2 and kinds(await two.news()) == [K.CLOSE_PRODUCER]
        ((answer, _),) = await two.do(
            frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=5, producer_access_mode=1, topic_epoch=1)
        )
        assert answer.error.error == pb.ProducerFenced

    with_broker(test)


def test_the_topic_epoch_outlives_the_topic_being_loaded() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        assert (await one.producer(1, producer_access_mode=1, producer_name="a")).topic_epoch == 0
        await broker.topics.unload(TOPIC)
        assert kinds(await one.news()) == [K.CLOSE_PRODUCER]
        assert (
            await one.producer(1, producer_access_mode=1, producer_name="a", topic_epoch=0)
        ).topic_epoch == 0  # connected again
        await broker.topics.unload(TOPIC)
        await one.news()
        assert (await two.producer(1, producer_access_mode=1)).topic_epoch == 1
        await broker.topics.unload(TOPIC)
        for mode in (1, 2, 3, 0):
            ((answer, _),) = await one.do(
                frame(K.PRODUCER, topic=TOPIC, producer_id=2, request_id=5, producer_access_mode=mode, topic_epoch=0)
            )
            assert answer.error.error == pb.ProducerFenced, mode
        await two.news()
        assert (await two.producer(1, producer_access_mode=2, topic_epoch=1)).topic_epoch == 1
        waiting = await one.producer(2, producer_access_mode=2)
        assert not waiting.producer_ready
        await two.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=9))
        (ready,) = [c.producer_success for c, _ in await one.news()]
        assert ready.producer_ready and ready.topic_epoch == 2
        await broker.topics.unload(TOPIC)
        await one.news()
        assert (await two.producer(7, producer_access_mode=1)).topic_epoch == 3
        await one.news()
        await broker.topics.delete_topic(TOPIC, force=True)
        await one.news()
        assert (await one.producer(3, producer_access_mode=1)).topic_epoch == 0

    with_broker(test)


def test_an_epoch_is_told_only_once_it_is_durable() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        await one.producer(1, producer_access_mode=1)
        name = broker.topics.loaded[TOPIC].name
        await broker.meta.put(topic_epoch_key(name), b"another broker's")
        ((answer, _),) = await two.do(
            frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=5, producer_access_mode=3)
        )
        assert (answer.error.request_id, answer.error.error) == (5, pb.ServiceNotReady)
        broker.meta.unavailable = "no majority"
        broker.topics.loaded[TOPIC].producers.topic_epoch = 7
        ((answer, _),) = await two.do(
            frame(K.PRODUCER, topic=TOPIC, producer_id=2, request_id=6, producer_access_mode=3)
        )
        assert answer.error.request_id == 6 and not broker.topics.loaded[TOPIC].producers.producers
        broker.meta.unavailable = ""

    with_broker(test)


def test_who_is_thrown_out_before_its_epoch_is_durable() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        for client in (one, two):
            client.raw(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=5, producer_access_mode=3))
        ((answer, _),) = [c for c in await one.news() if c[0].type == K.ERROR]
        assert (answer.error.request_id, answer.error.error) == (5, pb.ProducerFenced)
        ((answer, _),) = await two.news()
        assert answer.producer_success.producer_ready and answer.producer_success.topic_epoch == 1

    with_broker(test)


def test_a_dead_connection_gives_its_producer_name_up() -> None:
    async def test(broker: Broker) -> None:
        old, new = await broker.client(), await broker.client()
        await old.producer(1, producer_name="me")
        new.raw(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, producer_name="me", epoch=1))
        assert kinds(await old.news()) == [K.PING]
        old.protocol.close()
        assert kinds(await new.news()) == [K.PRODUCER_SUCCESS]
        third = await broker.client()
        third.raw(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, producer_name="me"))
        await settle()
        await new.do(frame(K.PONG))
        ((answer, _),) = await third.news()
        assert answer.error.error == pb.ProducerBusy

    with_broker(test)


def test_what_producers_say_of_themselves_is_bounded() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()

        async def refused(**fields: Any) -> str:
            ((answer, _),) = await client.do(frame(K.PRODUCER, topic=TOPIC, producer_id=9, request_id=9, **fields))
            assert answer.error.error == pb.NotAllowedError and 9 not in client.protocol.session.producing.handles
            return answer.error.message

        for metadata in ([pb.KeyValue(key="k", value="v" * (64 << 10))], [pb.KeyValue(key="", value="")] * 656):
            assert "metadata of the producer" in await refused(metadata=metadata)
        assert "1000" in await refused(producer_name="n" * 1001)
        most = [pb.KeyValue(key=f"{number:02}", value="v" * 549) for number in range(100)]
        for number in range(3):
            await client.producer(number, producer_name=f"p{number}", metadata=most)
        assert client.protocol.session.producing.metadata_bytes == 3 * 65_100
        assert "use another connection" in await refused(metadata=most)
        await client.do(*(frame(K.CLOSE_PRODUCER, producer_id=number, request_id=1) for number in (0, 1)))
        await client.producer(9999, metadata=most)
        await broker.topics.unload(TOPIC)
        await settle()
        assert client.protocol.session.producing.metadata_bytes == 0

    with_broker(test, limits=ConnectionLimits(metadata_bytes_max=200_000))


def test_the_producers_and_consumers_of_a_connection_are_bounded() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        fields = {"topic": TOPIC, "subscription": "s", "subType": 1, "consumer_id": 2}
        for one in (
            frame(K.PRODUCER, topic=TOPIC, producer_id=2, request_id=7),
            frame(K.SUBSCRIBE, request_id=7, **fields),
        ):
            ((answer, _),) = await client.do(one)
            assert (answer.error.request_id, answer.error.error) == (7, pb.TooManyRequests)
        await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=8))
        await client.producer(2)

    with_broker(test, limits=ConnectionLimits(clients_max=2))
