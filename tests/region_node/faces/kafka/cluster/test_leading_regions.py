"""Which region's brokers Kafka's clients are led to, and under which leader epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.bundles import BundleTable
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.configuration.kafka_brokers import KafkaBrokerInfo, kafka_broker
from heliograph.model.configuration.leadership import EPOCHS_IN_MS, following
from heliograph.model.topic_names import topic_hash
from region_node.faces.kafka.cluster.kafka_nodes import A_REGION, KafkaNode, node_url
from region_node.faces.kafka.cluster.leading_regions import (
    BROKERS_A_REGION,
    LED,
    LED_KEPT,
    TOLD_BYTES,
    LeadingRegions,
    announcement,
    leader_epoch,
)
from region_node.faces.kafka.error_codes import Code, Refused
from tests.region_node.faces.kafka.cluster.leaderships import Leaderships
from tests.region_node.faces.pulsar.harness import settle
from tests.region_node.topics.fake_storage import FakeClock

N = "public/default"
TABLE = BundleTable.equal(2)


class World:
    """us, as one of its brokers has it, and what the others have told."""

    def __init__(self) -> None:
        self.regions = {"us": RegionInfo(name="us", number=1), "eu": RegionInfo(name="eu", number=3)}
        self.heard, self.config, self.meta, self.clock = (
            Leaderships("us"),
            EmbeddedStore(),
            EmbeddedStore(),
            FakeClock(),
        )
        self.leading = self.broker()

    def broker(self) -> LeadingRegions:
        return LeadingRegions("us", 4, self.regions.get, self.heard.ports(self.config, self.meta, self.clock))

    async def tells(self, region: str, number: int, *, of: str = N, **owns: list[list[int]]) -> str:
        info = KafkaBrokerInfo(
            listeners={"kafka": node_url(number, f"{region}{number}", 9092)},
            namespace=of,
            owns={N if name == "n" else name: rows for name, rows in owns.items()},
        )
        key = kafka_broker(region, f"b{number}", number)
        await self.config.put(key, info.encode())
        await settle(5)
        return key


def with_world(test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        await world.leading.start()
        await test(world)
        await world.leading.close()

    asyncio.run(run())


def test_the_leader_epoch_rises_with_each_leadership_and_when_every_region_leads_again() -> None:
    async def test(world: World) -> None:
        seen = [world.leading.epoch(N)]
        for active, epoch in (("us", 1), ("eu", 2), ("us", 3)):
            world.heard.say(active, epoch)
            seen.append(world.leading.epoch(N))
        world.heard.end()
        seen.append(world.leading.epoch(N))
        world.heard.say("eu", 4)
        seen.append(world.leading.epoch(N))
        assert seen[0] == 0 and seen == sorted({*seen})

    with_world(test)


def test_an_epoch_of_a_restored_configuration_is_an_int32_too_and_rises() -> None:
    restored = 1_790_000_000_000
    epochs = [1, EPOCHS_IN_MS - 1, restored, following(restored), following(following(restored)), 2 * restored]
    told = [leader_epoch(epoch, led=led) for epoch in epochs for led in (True, False)]
    assert told == sorted({*told}) and told[-1] < 1 << 31 and following(7) == 8


def test_a_passive_region_refuses_readers_and_an_active_one_those_of_another_epoch() -> None:
    async def test(world: World) -> None:
        world.leading.check(N, 7)  # every region leads: as before
        world.heard.say("eu", 5)
        with pytest.raises(Refused) as refused:
            world.leading.check(N)
        assert refused.value.code == Code.NOT_LEADER_OR_FOLLOWER and world.leading.elsewhere(N) == "eu"
        world.heard.say("us", 6)
        own = world.leading.epoch(N)
        world.leading.check(N)
        world.leading.check(N, own)
        for epoch, code in ((own - 1, Code.FENCED_LEADER_EPOCH), (own + 1, Code.UNKNOWN_LEADER_EPOCH)):
            with pytest.raises(Refused) as refused:
                world.leading.check(N, epoch)
            assert refused.value.code == code

    with_world(test)


def test_the_owner_in_the_other_region_leads_and_where_nobody_owns_it_somebody_who_will_say() -> None:
    async def test(world: World) -> None:
        topic = "persistent://public/default/t"
        low, high = TABLE.range(TABLE.of(topic))
        assert world.leading.leader("eu", topic, N, False) is None
        await world.tells("eu", 0)
        owner = await world.tells("eu", 1, n=[[low, high]])
        assert low <= topic_hash(topic) < high
        assert world.leading.leader("eu", topic, N, False) == KafkaNode(2 * A_REGION + 1, "eu1", 9092)
        assert world.leading.leader("eu", topic, N, True) is None
        await world.config.delete(owner)
        await settle(5)
        assert world.leading.leader("eu", topic, N, False) == KafkaNode(2 * A_REGION, "eu0", 9092)

    with_world(test)


def test_a_bounded_number_of_other_regions_brokers_is_shown_and_none_of_the_own() -> None:
    async def test(world: World) -> None:
        for number in range(BROKERS_A_REGION + 3):
            await world.tells("eu", number)
        await world.tells("us", 4)
        await world.config.put(kafka_broker("eu", "bad", 1), b"no value")
        await settle(5)
        shown = world.leading.others(False)
        assert [node.number for node in shown] == [2 * A_REGION + n for n in range(BROKERS_A_REGION)]
        assert world.leading.number == 4

    with_world(test)


def test_a_region_knows_under_which_leader_epochs_it_led_also_behind_a_restart() -> None:
    async def test(world: World) -> None:
        epochs = list[int]()
        for active, epoch in (("us", 1), ("eu", 2), ("us", 3)):
            world.heard.say(active, epoch)
            epochs.append(world.leading.epoch(N))
            await settle(5)
        again = world.broker()
        await again.start()
        for leading in (world.leading, again):
            assert [leading.led(N, epoch) for epoch in epochs] == [True, False, True]
        await again.close()
        for epoch in range(4, 4 + LED_KEPT):
            world.heard.say("us", epoch)
        await settle(20)
        (stored,) = [row async for row in _values(world.meta)]
        assert stored.count(b",") == LED_KEPT - 1

    with_world(test)


async def _values(meta: EmbeddedStore):  # type: ignore[no-untyped-def]
    from heliograph.kv.metadata_store import rows_under

    for _, value, _ in await rows_under(meta, LED):
        yield value


def test_who_listens_hears_of_a_new_leader_epoch_and_of_no_other_change() -> None:
    async def test(world: World) -> None:
        heard = list[str]()
        world.leading.on_change(heard.append)
        assert world.leading.since(N) == float("-inf")
        world.clock.now += 5
        world.heard.say("us", 1)
        world.heard.say("us", 1)
        assert heard == [N] and world.leading.since(N) == world.clock.monotonic()

    with_world(test)


def test_a_broker_tells_what_it_owns_of_the_namespaces_that_others_have_to_know() -> None:
    listeners = {"": "pulsar://a:1", "kafka": node_url(1, "a", 2)}
    owned = [(N, 0), (N, 1), ("public/other", 0), (N, 99)]
    told = announcement(listeners, owned, lambda _: TABLE, lambda namespace: namespace == N, N)
    assert told == KafkaBrokerInfo(
        listeners={"kafka": listeners["kafka"]},
        namespace=N,
        owns={N: [list(TABLE.range(0)), list(TABLE.range(1))]},
    )
    assert announcement({"": "pulsar://a:1"}, owned, lambda _: TABLE, lambda _: True, N) is None
    many = BundleTable.equal(20_000)
    bounded = announcement(listeners, [(N, bundle) for bundle in range(20_000)], lambda _: many, lambda _: True, N)
    assert bounded is not None and TOLD_BYTES // 2 < len(bounded.encode()) < 2 * TOLD_BYTES


def test_clients_are_led_to_no_broker_that_reads_their_topics_in_another_namespace() -> None:
    async def test(world: World) -> None:
        await world.tells("eu", 0, of="public/other")
        assert world.leading.others(False) == []
        assert world.leading.leader("eu", "persistent://public/default/t", N, False) is None

    with_world(test)


def test_brokers_of_regions_that_the_listeners_namespace_is_not_in_or_that_are_gone_are_not_shown() -> None:
    async def test(world: World) -> None:
        world.regions["asia"] = RegionInfo(name="asia", number=2)
        await world.tells("asia", 0)
        await world.tells("eu", 0)
        assert [node.host for node in world.leading.others(False)] == ["eu0"]
        del world.regions["eu"]
        assert world.leading.others(False) == []
        assert world.leading.leader("eu", "persistent://public/default/t", N, False) is None

    with_world(test)


def test_every_region_led_under_odd_epochs_of_before_the_leadership_alone() -> None:
    async def test(world: World) -> None:
        world.heard.say("us", 1)
        first = world.clock.now
        world.clock.now += 5
        world.heard.say("eu", 2)
        world.heard.say("us", 3)
        assert [epoch for epoch in range(7) if world.leading.every_region(N, epoch)] == [0, 1]
        assert world.leading.began(N) == first
        world.heard.end()
        assert not world.leading.every_region(N, 3), "nobody was given that one"
        world.heard.say("us", 4, began=4)
        assert world.leading.every_region(N, 7) and not world.leading.every_region(N, 9)
        assert world.leading.began(N) == world.clock.now

    with_world(test)


def test_nothing_is_kept_of_a_namespace_that_is_gone_and_no_offset_of_it_is_good_once_it_is_made_again() -> None:
    async def test(world: World) -> None:
        again = world.broker()
        await again.start()
        world.heard.say("us", 1)
        led, both = world.leading.epoch(N), (world.leading, again)
        await settle(5)
        assert all(leading.led(N, led) and leading.every_region(N, 0) for leading in both)
        world.heard.gone[N] = None
        for leading in both:
            await leading.forget(N)
        world.heard.end()  # which is heard behind that
        await settle(5)
        assert [row async for row in _values(world.meta)] == []
        for leading in both:
            assert not leading.led(N, led) and not leading.every_region(N, 0)
            assert leading.since(N) == leading.began(N) == float("-inf")
        await again.close()

    with_world(test)


def test_a_broker_that_hears_late_that_a_namespace_is_gone_brings_nothing_of_it_back() -> None:
    async def test(world: World) -> None:
        late, heard = world.broker(), world.leading
        await late.start()
        world.heard.say("us", 1)
        led = heard.epoch(N)
        world.heard.say("eu", 2)
        await settle(5)
        assert heard.led(N, led) and late.led(N, led)
        await world.meta.delete(
            LED + "public%2Fdefault"
        )  # as a third one forgets it, and before the configuration says so
        await settle(5)
        assert [row async for row in _values(world.meta)] == []
        assert not heard.led(N, led) and not late.led(N, led)
        world.heard.say("us", 3)
        await settle(5)
        assert heard.led(N, heard.epoch(N)) and not heard.led(N, led)
        await late.close()

    with_world(test)


def test_a_namespace_that_is_there_again_keeps_the_epoch_it_is_led_under_whoever_deletes_them_late() -> None:
    async def test(world: World) -> None:
        world.heard.say("us", 1)
        led = world.leading.epoch(N)
        await settle(5)
        await world.leading.forget(N)
        await world.meta.delete(LED + "public%2Fdefault")
        await settle(5)
        again = world.broker()
        await again.start()
        assert world.leading.led(N, led) and again.led(N, led)
        await again.close()

    with_world(test)


def test_a_bounded_number_of_leader_epochs_is_known_as_it_is_stored() -> None:
    async def test(world: World) -> None:
        for epoch in range(1, LED_KEPT + 3):
            world.heard.say("us", epoch)
        await settle(20)
        assert sum(world.leading.led(N, epoch) for epoch in range(4 * LED_KEPT)) == LED_KEPT

    with_world(test)
