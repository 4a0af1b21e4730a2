"""Loading, unloading, deleting, policies: the life of topics in one broker."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo, TopicPolicies
from heliograph.model.configuration.leadership import Leadership, subscription_name
from heliograph.model.errors import (
    AlreadyExists,
    ConsumerBusy,
    HeliographError,
    LedgerFenced,
    MetadataUnavailable,
    NotAllowed,
    NotEnoughBookies,
    NotFound,
    NotOwner,
    ProducerBusy,
    SubscriptionNotFound,
    TopicClosed,
    TopicTerminated,
)
from heliograph.model.ledger_metadata import OffloadRecord, OffloadState
from heliograph.model.positions import BEFORE_ALL
from heliograph.model.topic_names import TopicName, bundle_of
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import Run
from local_meta import keys
from region_node.compaction.compacted_view import CURSOR, Compacted, properties_of
from region_node.compaction.compactor import Compactor
from region_node.dr.leadership.write_gates import Writing
from region_node.runtime.cursor_ports import LeadershipPort
from region_node.topics.serving.topic_service import TopicDuties, TopicSettings
from region_node.topics.topic import Topic
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.retention.trim_rule import Retention
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, K, settle, with_broker
from tests.region_node.topics.fake_storage import FakeLedger

NAMESPACE = "public/default"


def test_a_topic_is_loaded_once_whoever_asks() -> None:
    async def test(broker: Broker) -> None:
        topics = await asyncio.gather(*(broker.topics.get(TOPIC, create=True) for _ in range(20)))
        assert broker.factory.opened == 1 and len({id(t) for t in topics}) == 1

    with_broker(test)


def test_who_would_create_is_not_put_off_by_who_would_not() -> None:
    async def test(broker: Broker) -> None:
        found = await asyncio.gather(
            broker.topics.get(TOPIC, create=False), broker.topics.get(TOPIC, create=True), return_exceptions=True
        )
        assert isinstance(found[0], NotFound) and isinstance(found[1], Topic)

    with_broker(test)


def test_a_failed_load_can_be_tried_again() -> None:
    async def test(broker: Broker) -> None:
        broker.factory.open_error = NotEnoughBookies("none")
        with pytest.raises(NotEnoughBookies):
            await broker.topics.get(TOPIC, create=True)
        broker.factory.open_error = None
        assert await broker.topics.get(TOPIC, create=True)

    with_broker(test)


def test_ownership_lost_while_loading() -> None:
    async def test(broker: Broker) -> None:
        loading = asyncio.ensure_future(broker.topics.get(TOPIC, create=True))
        await asyncio.sleep(0)
        broker.owned = lambda topic: False
        with pytest.raises(NotOwner):
            await loading
        assert broker.topics.loaded == {} and broker.ledger().closed

    with_broker(test)


def test_who_asks_while_it_is_unloaded_waits_and_gets_a_new_one() -> None:
    async def test(broker: Broker) -> None:
        old = await broker.topics.get(TOPIC, create=True)
        _, new = await asyncio.gather(broker.topics.unload(TOPIC), broker.topics.get(TOPIC, create=False))
        assert new is not old and old.closed and not new.closed
        assert broker.topics.loaded == {TOPIC: new} and broker.factory.opened == 2
        failures: list[HeliographError] = []
        old.publish(Run([b"x"], [1]), lambda _: None, failures.append)
        assert isinstance(failures[0], TopicClosed)

    with_broker(test)


def test_who_asks_while_it_is_deleted_waits_and_gets_a_new_one() -> None:
    """Loaded in between it would stay here with a log that is deleted under it."""

    async def test(broker: Broker) -> None:
        old = await broker.topics.get(TOPIC, create=True)
        asked: list[asyncio.Future[Topic]] = []

        async def slow(_: TopicName) -> None:
            asked.append(asyncio.ensure_future(broker.topics.get(TOPIC, create=True)))
            await settle()
            assert broker.topics.loaded == {} and broker.factory.opened == 1

        stop = broker.topics.before_deletion(slow)
        await broker.topics.delete_topic(TOPIC)
        stop()
        assert old.closed and not await broker.factory.exists(TOPIC)
        new = await asked[0]
        assert broker.topics.loaded == {TOPIC: new} and broker.factory.opened == 2

        async def fails(_: TopicName) -> None:
            raise NotEnoughBookies("no")

        broker.topics.before_deletion(fails)
        with pytest.raises(NotEnoughBookies):
            await broker.topics.delete_topic(TOPIC)
        assert not (await broker.topics.get(TOPIC, create=False)).closed, "it is not kept out for ever"

    with_broker(test)


def test_grants_go_before_data_and_stay_with_a_topic_that_is_used() -> None:
    """A deletion that fails at them is given again, and a topic that somebody made meanwhile has none of before."""

    async def test(broker: Broker) -> None:
        away, asked = True, list[str]()

        async def forget(name: TopicName) -> None:
            asked.append(str(name))
            assert await broker.factory.exists(TOPIC)
            if away:
                raise MetadataUnavailable("no majority")

        broker.topics._forget_grants = forget
        await (await broker.client()).producer(1)
        with pytest.raises(ProducerBusy):
            await broker.topics.delete_topic(TOPIC)
        assert asked == []
        with pytest.raises(MetadataUnavailable):
            await broker.topics.delete_topic(TOPIC, force=True)
        assert await broker.factory.exists(TOPIC)
        away = False
        await broker.topics.delete_topic(TOPIC, force=True)
        assert asked == [TOPIC, TOPIC] and not await broker.factory.exists(TOPIC)

    with_broker(test)


def test_a_topic_that_another_broker_has_opened_since_is_not_deleted() -> None:
    """This one stood still for longer than its lease, and has not heard that it is gone."""

    async def test(broker: Broker) -> None:
        await broker.topics.get(TOPIC, create=True)
        broker.factory.owners[TOPIC] = 99
        left: list[TopicName] = []

        async def leave(name: TopicName) -> None:
            left.append(name)

        broker.topics.before_deletion(leave)
        with pytest.raises(LedgerFenced):
            await broker.topics.delete_topic(TOPIC, force=True)
        assert await broker.factory.exists(TOPIC) and not left

    with_broker(test)


@pytest.mark.parametrize("purged", [True, False])
def test_what_is_compacted_goes_with_its_topic(purged: bool) -> None:
    async def test(broker: Broker) -> None:
        context: Any = None
        compactor = Compactor(context, broker.meta, broker.clock, broker.topics.tasks)
        forgotten: list[tuple[str, int]] = []

        async def forget(topic: str, ledger: int, record: OffloadRecord) -> None:
            forgotten.append((topic, ledger))

        compactor.delete_objects_by(forget)
        await broker.topics.get(TOPIC, create=True)
        broker.topics.compactor = compactor
        catalog: Any = None
        options: Any = {"request_flush": lambda _: None, "wait_flushed": None}
        record = OffloadRecord("ab", "us-1", OffloadState.STORED)
        properties = properties_of(Compacted(7, 3, 100, (2, 1), offload=record), [4, 5])
        cursor = Cursor(CURSOR, catalog, BEFORE_ALL, durable=True, properties=properties, **options)
        await broker.meta.put(keys.cursor(TOPIC, CURSOR), cursor.encode())
        await (broker.topics.purge(TOPIC) if purged else broker.topics.delete_topic(TOPIC))
        assert broker.factory.beside == [4, 5, 7] and forgotten == [(TOPIC, 7)]
        assert not await broker.factory.exists(TOPIC)

    with_broker(test)


@pytest.mark.parametrize("purged", [True, False])
def test_a_topic_is_not_deleted_once_its_bundle_is_on_its_way_to_another_broker(purged: bool) -> None:
    async def test(broker: Broker) -> None:
        await broker.topics.get(TOPIC, create=True)
        broker.owned = lambda topic: False
        with pytest.raises(NotOwner):
            await (broker.topics.purge(TOPIC) if purged else broker.topics.delete_topic(TOPIC))
        assert await broker.factory.exists(TOPIC)

    with_broker(test)


def test_a_bundle_is_handed_over_once_what_is_deleted_of_it_is_gone() -> None:
    async def test(broker: Broker) -> None:
        await broker.topics.get(TOPIC, create=True)
        go_on = asyncio.Event()

        async def slow(_: TopicName) -> None:
            await go_on.wait()

        broker.topics.before_deletion(slow)
        deleting = asyncio.ensure_future(broker.topics.delete_topic(TOPIC))
        await settle()
        others = [asyncio.ensure_future(broker.topics.unload_bundle(NAMESPACE, bundle)) for bundle in range(4)]
        await settle()
        assert [other.done() for other in others] == [bundle != bundle_of(TOPIC, 4) for bundle in range(4)]
        go_on.set()
        await asyncio.gather(*others)
        assert not await broker.factory.exists(TOPIC)
        await deleting

    with_broker(test)


def test_unloading_a_bundle_takes_only_its_topics() -> None:
    async def test(broker: Broker) -> None:
        names = [f"persistent://{NAMESPACE}/t{i}" for i in range(20)]
        for name in names:
            await broker.topics.get(name, create=True)
        await broker.topics.unload_bundle(NAMESPACE, 1)
        assert sorted(broker.topics.loaded) == sorted(n for n in names if bundle_of(n, 4) != 1)

    with_broker(test)


def test_a_topics_own_regions_are_no_more_than_its_tenants() -> None:
    """Also where the tenant loses one later: that region takes nothing, and the link would try for ever."""

    async def test(broker: Broker) -> None:
        def tenant(*regions: str) -> None:
            broker.view.tenants["public"] = TenantInfo(allowed_regions=regions)
            for callback in list(broker.view.callbacks):
                callback("/tenants/public")

        name = f"persistent://{NAMESPACE}/t"
        broker.view.topics[name] = TopicPolicies(policies={"replication": ["us", "eu", "ap"]})
        tenant("us", "eu", "ap")
        await broker.topics.get(name, create=True)
        for left, linked in ((("us", "ap"), ["ap"]), (("us",), []), (("us", "eu", "ap"), ["eu", "ap"])):
            tenant(*left)
            await settle()
            assert broker.links.attached[name] == linked

    with_broker(test)


def test_replicated_topics_load_without_clients_and_follow_their_policies() -> None:
    async def test(broker: Broker) -> None:
        names = [f"persistent://{NAMESPACE}/t{i}" for i in range(20)]
        for name in names:
            await broker.topics.get(name, create=True)
            await broker.topics.unload(name)
        await broker.topics.load_replicated(NAMESPACE, 2)
        assert broker.topics.loaded == {}
        broker.view.set(NAMESPACE, NamespacePolicies(regions=("us", "eu", "ap")))
        await broker.topics.load_replicated(NAMESPACE, 2)
        mine = [n for n in names if bundle_of(n, 4) == 2]
        assert sorted(broker.topics.loaded) == sorted(mine)
        assert broker.links.attached == {n: ["eu", "ap"] for n in mine}
        broker.view.set(
            NAMESPACE,
            NamespacePolicies(
                regions=("us", "ap"),
                policies={"deduplication": True, "retention": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7}},
            ),
        )
        assert broker.links.attached == {n: ["ap"] for n in mine}
        routes = {"replicationRoutes": {"us": ["eu", "elsewhere"], "eu": ["us"]}}
        broker.view.set(NAMESPACE, NamespacePolicies(regions=("us", "eu", "ap"), policies=routes))
        assert broker.links.attached == {n: ["eu"] for n in mine}, (
            "only where a route leads, and only to regions of the namespace"
        )
        kept = {"deduplication": True, "retention": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7}}
        broker.view.set(NAMESPACE, NamespacePolicies(regions=("us", "ap"), policies=kept))
        topic = broker.topics.loaded[mine[0]]
        assert topic.log.deduplication and broker.ledger(mine[0]).retention == Retention(5, 7)
        quorums = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1}
        broker.view.set(NAMESPACE, NamespacePolicies(regions=("us", "ap"), policies={"persistence": quorums}))
        assert broker.ledger(mine[0]).quorums == (3, 2, 1) and not topic.log.deduplication

    with_broker(test)


def test_the_leadership_of_a_subscription_hears_of_its_deletion_and_of_its_topics() -> None:
    """Behind the data; what is only unloaded is not deleted."""

    writing = Writing("us", ttl_s=6.0, drift=0.0, now=lambda: 0.0)

    def leadership_of(topic: TopicName, name: str, _: bool) -> LeadershipPort | None:
        return writing.subscription_gate(subscription_name(str(topic), name))

    async def test(broker: Broker) -> None:
        names = [subscription_name(TOPIC, name) for name in ("s", "t", "kept")]
        for name in names:
            writing.on_record(name, Leadership(active="us"), 1)
        await broker.topics.create_topic(TOPIC)
        for name in ("s", "t", "free"):
            await broker.topics.create_subscription(TOPIC, name)
        await broker.topics.unload(TOPIC)
        assert not writing.deleted
        for name in ("s", "free"):
            await broker.topics.delete_subscription(TOPIC, name)
        assert list(writing.deleted) == names[:1]
        await broker.topics.delete_topic(TOPIC)
        assert list(writing.deleted) == names[:2]

    with_broker(test, duties=TopicDuties(leadership_of=leadership_of))


def test_administration() -> None:
    async def test(broker: Broker) -> None:
        await broker.topics.create_topic(TOPIC)
        with pytest.raises(AlreadyExists):
            await broker.topics.create_topic(TOPIC)
        assert await broker.topics.topics(NAMESPACE) == [TOPIC]
        with pytest.raises(NotFound):
            await broker.topics.topics("no/such")
        await broker.topics.create_subscription(TOPIC, "s", at=BEFORE_ALL)
        with pytest.raises(AlreadyExists):
            await broker.topics.create_subscription(TOPIC, "s")
        client = await broker.client()
        await client.producer(1)
        with pytest.raises(ProducerBusy):
            await broker.topics.delete_topic(TOPIC)
        await client.do(send(1, 0, entry(b"a")), send(1, 1, entry(b"b", sequence=1)))
        assert broker.ledger().cursors["s"].backlog_entries == 2
        await broker.topics.skip_all(TOPIC, "s")
        assert broker.ledger().cursors["s"].backlog_entries == 0
        await broker.topics.reset_subscription(TOPIC, "s", publish_ms=1001)
        assert broker.ledger().cursors["s"].backlog_entries == 1
        await client.subscribe(1)
        with pytest.raises(ConsumerBusy):
            await broker.topics.delete_subscription(TOPIC, "s")
        await broker.topics.delete_subscription(TOPIC, "s", force=True)
        with pytest.raises(SubscriptionNotFound):
            await broker.topics.skip_all(TOPIC, "s")
        await broker.topics.delete_topic(TOPIC, force=True)
        assert await broker.topics.topics(NAMESPACE) == []
        with pytest.raises(NotFound):
            await broker.topics.get(TOPIC, create=False)

    with_broker(test)


def test_subscriptions_outlive_an_unload_and_readers_do_not() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, name="s")
        await broker.topics.unload(TOPIC)
        topic = await broker.topics.get(TOPIC, create=False)
        assert list(topic.subscriptions) == ["s"]
        with pytest.raises(HeliographError):
            await topic.subscription("pulsar.repl.eu", initial=BEFORE_ALL)

    with_broker(test)


def test_the_end_is_told_once_everything_is_acknowledged() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        await client.flow(10)
        for n in range(2):
            await client.do(send(1, n, entry(b"x")))
        await broker.topics.terminate(TOPIC)
        assert K.REACHED_END_OF_TOPIC not in [c.type for c, _ in await client.news()]  # read, but not acknowledged
        ids = [pb.MessageIdData(ledgerId=10, entryId=n) for n in range(2)]
        assert await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[ids[1]])) == []
        told = await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[ids[0]]))
        assert [c.type for c, _ in told] == [K.REACHED_END_OF_TOPIC]

    with_broker(test)


def test_a_terminated_topic() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        await client.flow(10)
        await broker.topics.terminate(TOPIC)
        assert sorted(c.type for c, _ in await client.news()) == [K.CLOSE_PRODUCER, K.REACHED_END_OF_TOPIC]
        ((answer, _),) = await client.do(frame(K.PRODUCER, topic=TOPIC, producer_id=2, request_id=7))
        assert answer.error.error == pb.TopicTerminatedError
        failures: list[HeliographError] = []
        broker.topics.loaded[TOPIC].publish(Run([b"x"], [1]), lambda _: None, failures.append)
        assert isinstance(failures[0], TopicTerminated)

    with_broker(test)


def test_a_topic_is_not_terminated_while_a_message_of_a_transaction_is_being_stored() -> None:
    """Nothing in it could end that transaction."""

    async def test(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC, create=True)
        broker.ledger().hold = True
        topic.publish(Run([b"x"], [1], transaction=(0, 1)), lambda _: None, lambda _: None)
        with pytest.raises(NotAllowed, match="is being stored in it: try again"):
            await topic.terminate()
        assert not topic.terminated
        broker.ledger().release()
        with pytest.raises(NotAllowed, match="are open in it"):
            await topic.terminate()

    with_broker(test)


def test_closing_the_service_unloads_everything_and_takes_nothing_more() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await broker.topics.close()
        assert [c.type for c, _ in await client.news()] == [K.CLOSE_PRODUCER] and broker.ledger().closed
        with pytest.raises(TopicClosed):
            await broker.topics.get(TOPIC, create=True)

    with_broker(test)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_loading_and_unloading(seed: int) -> None:
    async def test(broker: Broker) -> None:
        rng = random.Random(seed)
        working: list[asyncio.Future[object]] = []
        for _ in range(100):
            match rng.randrange(4):
                case 0:
                    working.append(asyncio.ensure_future(broker.topics.unload(TOPIC)))
                case 1:
                    working.append(asyncio.ensure_future(broker.topics.unload_bundle(NAMESPACE, bundle_of(TOPIC, 4))))
                case 2:
                    owned = rng.random() < 0.7
                    broker.owned = lambda topic, owned=owned: owned
                case _:
                    working.append(asyncio.ensure_future(broker.topics.get(TOPIC, create=True)))
            await asyncio.sleep(0)
        broker.owned = lambda topic: True
        done = await asyncio.wait_for(asyncio.gather(*working, return_exceptions=True), 60)
        assert all(e is None or isinstance(e, (Topic, HeliographError)) for e in done)
        await settle()
        topic = await broker.topics.get(TOPIC, create=True)
        assert not topic.closed and broker.topics.loaded == {TOPIC: topic}
        assert broker.topics._loading == {} and broker.topics._unloading == {}

    with_broker(test)


def test_clients_who_come_all_at_once_have_their_topics_loaded_a_few_at_a_time() -> None:
    async def test(broker: Broker) -> None:
        names = [f"persistent://{NAMESPACE}/all-at-once-{index}" for index in range(50)]
        at_once, most, real = 0, 0, broker.factory.open

        async def counted(*given: Any, **named: Any) -> FakeLedger:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            try:
                return await real(*given, **named)
            finally:
                at_once -= 1

        broker.factory.open = counted  # type: ignore[method-assign]
        found = await asyncio.gather(*(broker.topics.get(name, create=True) for name in names))
        assert most == 4 and [topic.text for topic in found] == names and not broker.topics.loads_under_way

    with_broker(test, topic_settings=TopicSettings(loads_max=4))


def test_a_log_that_fails_before_its_topic_is_made_is_not_loaded() -> None:
    """Another owner fences it while the rest is opened: there is nobody yet to be told. The next one who asks gets it
    opened anew.
    """

    async def test(broker: Broker) -> None:
        real = broker.factory.open

        async def opened(*given: Any, **named: Any) -> FakeLedger:
            ledger = await real(*given, **named)
            ledger.failed = LedgerFenced("another owner has it")
            return ledger

        broker.factory.open = opened  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(LedgerFenced):
                await broker.topics.get(TOPIC, create=True)
            assert broker.topics.loaded == {}
        broker.factory.open = real  # type: ignore[method-assign]
        broker.factory.ledgers[TOPIC].failed = None  # the next opening has an object of its own
        topic = await broker.topics.get(TOPIC, create=True)
        assert broker.topics.loaded == {TOPIC: topic}

    with_broker(test)
