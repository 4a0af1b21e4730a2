"""Clients at a passive region: what each of them is sent, and where its next look-up leads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import ClusterMigration
from heliograph.model.configuration.leadership import FENCED, Leadership
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.dr.leadership.write_gates import Writing
from region_node.faces.pulsar.session.look_ups_to_come import LED_S
from region_node.faces.pulsar.session.pulsar_broker import ConnectionLimits, TopicAddress
from region_node.topics.serving.topic_service import TopicDuties
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, Client, K, kinds, obey, with_broker

HERE, THERE = "pulsar://here:6650", "pulsar://there:6650"
CPP, NODE, OTHER = "Pulsar-CPP-v4.2.0", "Pulsar-CPP-v3.8.0-node", "pulsar-rs-v6"
GO, OLD_GO = "Pulsar-Go-0.19.0", "Pulsar Go 0.12.0"
JAVA = "Pulsar-Java-v4.0.7"
REFUSED, MOVED = [K.ERROR], [K.TOPIC_MIGRATED, K.ERROR]
CLOSED = [K.PRODUCER_SUCCESS, K.CLOSE_PRODUCER]
Came = Sequence[tuple[pb.BaseCommand, bytes]]


class World:
    """A broker in region us, where public/default is active in eu."""

    def __init__(self, url: str = THERE, **settings: Any) -> None:
        self.writing = Writing("us", ttl_s=6.0, drift=0.1, now=lambda: 0.0, url_of=lambda region: url)
        self.writing.on_record("public/default", Leadership(active="eu"), 1)
        self.settings = {"duties": TopicDuties(gate_of=self.writing.gate), **settings}

    def run(self, test: Any) -> None:
        with_broker(test, **self.settings)


async def client(broker: Broker, version: str, protocol: int = 20) -> Client:
    made = Client(broker.listener)
    await made.do(frame(K.CONNECT, client_version=version, protocol_version=protocol))
    return made


async def produce(made: Client, producer: int = 1, **fields: Any) -> Came:
    return await made.do(frame(K.PRODUCER, topic=TOPIC, producer_id=producer, request_id=producer, **fields))


def migrate(broker: Broker, target: ClusterMigration) -> None:
    broker.view.migrations["us"] = target
    for callback in list(broker.view.callbacks):
        callback("/migrations/us")


async def look_up(made: Client, *, authoritative: bool = False, topic: str = TOPIC) -> tuple[str, bool, bool]:
    """(Where, whether it is only asked there, whether with authority.)"""
    ((answer, _),) = await made.do(frame(K.LOOKUP, topic=topic, request_id=9, authoritative=authoritative))
    found = answer.lookupTopicResponse
    return found.brokerServiceUrl or found.brokerServiceUrlTls, found.response == found.Redirect, found.authoritative


LOCAL, ASK_OWNER, AWAY = (HERE, False, True), (HERE, True, True), (THERE, True, False)


@pytest.mark.parametrize(
    ("version", "protocol", "sent"),
    [
        (CPP, 20, REFUSED),
        ("Pulsar-CPP-v3.5.0", 20, REFUSED),
        ("Pulsar-CPP-v3.3.0", 19, REFUSED),
        (NODE, 21, REFUSED),
        (OTHER, 21, REFUSED),
        ("", 21, REFUSED),
        (JAVA, 21, REFUSED),
        ("Pulsar-Java-v3.0.0", 20, REFUSED),
        (GO, 20, CLOSED),
        ("Pulsar Go 0.13.0", 20, CLOSED),
        (OLD_GO, 18, REFUSED),
    ],
)
def test_each_client_is_led_by_a_way_that_it_bears(version: str, protocol: int, sent: list[int]) -> None:
    """It asks the owner of the topic, and is led away by that. Nobody is told by TOPIC_MIGRATED: Java's would look the
    topic up in that region for good, also once it is lost, whatever addresses its program has given it.
    """

    async def test(broker: Broker) -> None:
        made = await client(broker, version, protocol)
        assert await look_up(made) == ASK_OWNER
        assert await look_up(made, authoritative=True) == LOCAL
        came = await produce(made)
        assert kinds(came) == sent
        if sent is not CLOSED:
            assert came[-1][0].error.error == pb.ServiceNotReady
        assert await look_up(made, authoritative=True) == AWAY
        assert await look_up(made, authoritative=True) == LOCAL, "its consumers stay"

    World().run(test)


def test_the_next_look_up_of_that_topic_on_that_connection_is_led_away_soon_and_no_other() -> None:
    async def test(broker: Broker) -> None:
        made, other = await client(broker, CPP), await client(broker, CPP)
        await produce(made)
        assert await look_up(other, authoritative=True) == LOCAL
        assert await look_up(made, authoritative=True, topic=f"{TOPIC}2") == LOCAL
        assert await look_up(made) == AWAY
        await produce(made)
        broker.clock.now += LED_S
        assert await look_up(made, authoritative=True) == LOCAL

    World().run(test)


def test_a_client_with_several_connections_is_led_away_once_it_has_looked_up_elsewhere() -> None:
    """Others of its kind at its address keep their consumers here, as long as it does not."""

    async def test(broker: Broker) -> None:
        made, sibling, node = [await client(broker, version) for version in (CPP, CPP, NODE)]
        await produce(made)
        assert await look_up(sibling, authoritative=True) == LOCAL
        await produce(made)
        assert await look_up(node, authoritative=True) == LOCAL
        assert await look_up(sibling, authoritative=True) == AWAY
        assert await look_up(sibling, authoritative=True) == LOCAL
        await produce(made)
        assert await look_up(made) == AWAY and await look_up(sibling, authoritative=True) == LOCAL

    World().run(test)


async def close_consumers(broker: Broker) -> None:
    topic = await broker.topics.get(TOPIC, create=False)
    for subscription in topic.subscriptions.values():
        subscription.disconnect()


@pytest.mark.parametrize("refused_before", [True, False])
def test_a_consumer_that_is_told_to_come_again_is_not_led_away_in_a_producers_place(refused_before: bool) -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, CPP)
        await made.subscribe(1)
        if refused_before:
            await produce(made)
        await close_consumers(broker)
        assert kinds(await made.news()) == [K.CLOSE_CONSUMER]
        if not refused_before:
            await produce(made)
        assert await look_up(made, authoritative=True) == LOCAL
        await produce(made)
        assert await look_up(made, authoritative=True) == LOCAL, "it may be the other one's"
        await made.subscribe(1)
        await produce(made)
        assert await look_up(made, authoritative=True) == AWAY

    World().run(test)


def test_a_consumer_that_goes_elsewhere_holds_a_producer_no_longer_than_its_look_up_may_take() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, CPP)
        await made.subscribe(1)
        await close_consumers(broker)
        await made.news()
        broker.clock.now += LED_S
        await produce(made)
        assert await look_up(made, authoritative=True) == AWAY

    World().run(test)


def test_another_connections_consumer_is_not_led_away_in_a_producers_place() -> None:
    async def test(broker: Broker) -> None:
        made, sibling = await client(broker, CPP), await client(broker, CPP)
        await sibling.subscribe(1)
        await produce(made)
        await produce(made)
        await close_consumers(broker)
        assert kinds(await sibling.news()) == [K.CLOSE_CONSUMER]
        assert await look_up(sibling, authoritative=True) == LOCAL

    World().run(test)


def test_a_consumer_that_is_sent_on_itself_is_led_away_at_once() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, CPP)
        await made.subscribe(1)
        await close_consumers(broker)
        await made.news()
        migrate(broker, ClusterMigration(migrated=True, broker_service_url=THERE))
        fields = {"subscription": "s", "subType": 1, "initialPosition": pb.CommandSubscribe.Latest}
        came = await made.do(frame(K.SUBSCRIBE, topic=TOPIC, consumer_id=1, request_id=1, **fields))
        assert kinds(came) == REFUSED
        assert await look_up(made, authoritative=True) == AWAY

    World().run(test)


def test_who_is_thrown_out_is_not_led_away_either() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, CPP)
        await made.subscribe(1)
        await produce(made)
        consuming = made.protocol.session.consuming
        consuming.throw_out(consuming.handles[1])
        assert kinds(await made.news()) == [K.CLOSE_CONSUMER]
        assert await look_up(made, authoritative=True) == LOCAL

    World().run(test)


@pytest.mark.parametrize("version", ["2.10.4", "3.1.2", "Pulsar-CPP-v3.2.0"])
def test_who_would_take_service_not_ready_for_success_is_told_another_error(version: str) -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, version, 19)
        ((answer, _),) = await produce(made)
        assert answer.error.error == pb.UnknownError and "produce there" in answer.error.message
        assert await look_up(made) == AWAY
        ((answer, _),) = await produce(made, producer_name="heliograph-1", epoch=1)
        assert answer.error.error == pb.ServiceNotReady, "it was made before: it comes again"

    World().run(test)


def test_whom_a_region_that_is_asked_has_nobody_to_send_to_stays() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, GO)
        assert kinds(await produce(made)) == REFUSED and await look_up(made) == LOCAL

    World(url="").run(test)


def test_who_has_become_the_active_region_sends_nobody_away() -> None:
    world = World()

    async def test(broker: Broker) -> None:
        made = await client(broker, CPP)
        await produce(made)
        world.writing.on_record("public/default", Leadership(active="us", epoch=2, state=FENCED), 2)
        assert await look_up(made) == LOCAL

    world.run(test)


@pytest.mark.parametrize(
    ("url", "tls", "led"),
    [
        ("pulsar://a:1,b:2", False, {"pulsar://a:1", "pulsar://b:2"}),
        ("pulsar+ssl://a:1,b:2", True, {"pulsar+ssl://a:1", "pulsar+ssl://b:2"}),
        ("pulsar+ssl://a:1", False, {HERE}),
        (THERE, True, {HERE}),
    ],
)
def test_one_address_of_its_kind_is_told(url: str, tls: bool, led: set[str]) -> None:
    async def test(broker: Broker) -> None:
        broker.lookup.answer = TopicAddress(HERE, "pulsar+ssl://here:6651")
        made = await client(broker, CPP)
        made.protocol.tls = tls
        seen = set()
        for _ in range(20):
            await produce(made)
            seen.add((await look_up(made, authoritative=True))[0])
        assert seen == led

    World(url=url).run(test)


PLAIN_URL, TLS_URL = "pulsar://a:1", "pulsar+ssl://a:1"


@pytest.mark.parametrize(
    ("url", "tls", "found", "led"),
    [
        (PLAIN_URL, False, HERE, True),
        (TLS_URL, True, HERE, True),
        (TLS_URL, False, HERE, False),
        (PLAIN_URL, True, HERE, False),
        (TLS_URL, False, "", True),  # a load balancer takes TLS off
        (PLAIN_URL, False, "", False),
    ],
)
def test_nobody_is_led_to_an_address_of_the_other_kind(url: str, tls: bool, found: str, led: bool) -> None:
    """Go's would take its producer for made and hang."""

    async def test(broker: Broker) -> None:
        broker.lookup.answer = TopicAddress(found, "pulsar+ssl://here:6651")
        made = await client(broker, GO)
        made.protocol.tls = tls
        await look_up(made, authoritative=True)
        assert kinds(await produce(made)) == (CLOSED if led else REFUSED)

    World(url=url).run(test)


@pytest.mark.parametrize(("balanced", "sent"), [(False, REFUSED), (True, MOVED)])
def test_java_behind_a_load_balancer_is_told_of_tls_on_each_connection(balanced: bool, sent: list[int]) -> None:
    """It looks up on another one: this one does not know that TLS is taken off."""

    async def test(broker: Broker) -> None:
        made = await client(broker, JAVA)
        broker.listener.broker.settings = replace(broker.listener.broker.settings, proxy_protocol=balanced)
        migrate(broker, ClusterMigration(migrated=True, broker_service_url_tls=TLS_URL))
        assert kinds(await produce(made)) == sent

    with_broker(test)


@pytest.mark.parametrize(("version", "sent"), [(JAVA, MOVED), ("Pulsar-Java-v3.0.0", MOVED), (CPP, REFUSED)])
def test_a_migration_is_told_to_whoever_bears_that_and_its_look_ups_stay(version: str, sent: list[int]) -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, version)
        migrate(broker, ClusterMigration(migrated=True, broker_service_url=THERE))
        assert await look_up(made) == (LOCAL if sent is MOVED else ASK_OWNER)
        assert kinds(await produce(made)) == sent
        assert await look_up(made, authoritative=True) == (LOCAL if sent is MOVED else AWAY)

    with_broker(test)


def test_what_a_load_balancer_takes_off_is_seen_by_the_address_here() -> None:
    async def test(broker: Broker) -> None:
        broker.lookup.answer = TopicAddress("", "pulsar+ssl://here:6651")
        made = await client(broker, CPP)
        await produce(made)
        assert (await look_up(made))[0] == "pulsar+ssl://there:6651"

    World(url="pulsar+ssl://there:6651").run(test)


def test_a_broker_that_only_chooses_is_believed() -> None:
    async def test(broker: Broker) -> None:
        broker.lookup.answer = TopicAddress("pulsar://b:1", redirect=True, authoritative=True)
        assert await look_up(await client(broker, CPP)) == ("pulsar://b:1", True, True)

    World().run(test)


def test_what_is_remembered_is_bounded() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, CPP)
        for n in range(3):
            await made.do(frame(K.PRODUCER, topic=f"{TOPIC}{n}", producer_id=n, request_id=n))
        assert [(await look_up(made, topic=f"{TOPIC}{n}"))[0] for n in range(3)] == [HERE, THERE, THERE]

    World(limits=ConnectionLimits(clients_max=2)).run(test)


# -- Go: a producer that is refused at first is given up


def test_a_producer_of_go_has_a_name_of_its_own_and_leaves_nothing() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, GO)
        (success, _), (close, _) = await produce(made)
        made_here = success.producer_success
        assert made_here.producer_name and made_here.last_sequence_id == -1 and made_here.producer_ready
        assert close.close_producer.producer_id == 1
        topic = await broker.topics.get(TOPIC, create=False)
        assert not topic.producers.producers and not made.protocol.session.producing.handles
        assert await made.do(send(1, 0, entry(b"m0"))) == [], "it sends that again where it is made next"
        assert broker.ledger().next_index == 0

    World().run(test)


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_name": "orders", "user_provided_producer_name": True},  # elsewhere there may be sequences of it
        {"producer_name": "heliograph-1", "epoch": 1},
        {"producer_access_mode": pb.Exclusive},
        {"producer_access_mode": pb.WaitForExclusive},
    ],
)
def test_what_go_would_take_for_a_promise_is_refused_and_led_away_when_it_is_tried_again(
    fields: dict[str, Any],
) -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, GO)
        assert kinds(await produce(made, **fields)) == REFUSED
        assert await look_up(made) == AWAY

    World().run(test)


def test_what_is_refused_everywhere_is_refused_to_go_at_once() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker, GO)
        obey(broker, encryptionRequired=True)
        ((answer, _),) = await produce(made)
        assert answer.error.error == pb.MetadataError

    World().run(test)
