"""A subscription is active in one region at a time, whatever is cut, stopped, late, or started twice; and each rule
that says so is needed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.leadership import Confirmed, DriftingClock, SubscriptionWorld
from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.leadership import (
    DRAINING,
    FENCED,
    Leadership,
    Writer,
    is_subscription,
    leadership,
    name_of,
    subscription_name,
    writer,
)
from heliograph.model.topic_names import TopicName
from local_meta.keys import cursor, managed_ledger
from region_node.dr.leadership import leadership_changes
from region_node.dr.leadership.leadership_changes import closing, unheard_text
from region_node.dr.leadership.subscription_leadership import SubscriptionLeadership
from region_node.dr.leadership.write_gates import SubscriptionGate, Writing
from tests.broken_rules import BrokenRules

NAME = subscription_name("persistent://t/n/x", "s")


def test_messages_go_out_in_the_active_region_alone() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        world = SubscriptionWorld(seed)
        world.run()
        seen += world.counts
    assert (
        seen["confirmed"] > 500
        and seen["flips"] > 40
        and seen["drained"] > 5
        and seen["waited for its leadership"] > 500
    ), seen


def _mutants() -> Mapping[str, Callable[[BrokenRules], None]]:
    def the_lease_is_not_asked(patch: BrokenRules) -> None:
        patch.setattr(Writing, "holds", property(lambda self: True))

    def counted_from_the_answer(patch: BrokenRules) -> None:
        patch.setattr(
            Writing, "on_renewed", lambda self, sent_at, _=0.0: setattr(self, "until", self.now() + self._usable_s)
        )

    def nobody_is_waited_for(patch: BrokenRules) -> None:
        patch.setattr(leadership_changes, "waits_for", lambda namespace, version, found: [])

    def a_drain_is_obeyed_at_once(patch: BrokenRules) -> None:
        patch.setattr(SubscriptionGate, "obeyed", property(lambda self: self.version))

    def a_draining_region_hands_out(patch: BrokenRules) -> None:
        patch.setattr(
            SubscriptionGate, "waiting", lambda self: "" if self.active and self._writing.holds else "elsewhere"
        )

    return {name: mutant for name, mutant in locals().items() if callable(mutant)}


@pytest.mark.parametrize("mutant", sorted(_mutants()))
def test_each_rule_is_needed(mutant: str, broken: BrokenRules) -> None:
    _mutants()[mutant](broken)
    broken.look(lambda seed: SubscriptionWorld(seed).run(), (39, *range(40)), Confirmed)


class Leases:
    """One broker's, that hears at once what the configuration says."""

    def __init__(self, region: str, store: EmbeddedStore) -> None:
        self.core = Writing(region, ttl_s=6.0, drift=0.1, now=lambda: asyncio.get_running_loop().time())
        self.leadership: SubscriptionLeadership | None = None
        store.watch("/subscription-leadership/", self._heard)

    def _heard(self, key: str, value: bytes | None, version: int) -> None:
        self.core.on_record(name_of(key), None if value is None else Leadership.decode(value), version)
        if self.leadership is not None:
            self.leadership.changed(name_of(key))

    def subscription_gate(self, name: str) -> SubscriptionGate | None:
        return self.core.subscription_gate(name)

    def tell(self) -> None: ...

    def hold(self) -> None:
        self.core.on_renewed(self.core.now())
        self.core.registered = True


def served(regions: list[str], policies: Any = None) -> Any:
    """Topics of a broker, of which none is loaded."""
    view = SimpleNamespace(partitions=lambda _: 0, namespace=lambda _: SimpleNamespace(regions=tuple(regions)))
    return SimpleNamespace(loaded={}, policies=policies, view=view)


def test_a_kafka_group_works_where_its_turn_is_and_takes_over_from_a_lost_region() -> None:
    """Its position in a topic is a subscription of it; its members hold no connection with a subscription, so they are
    consumers as long as they ask.
    """
    topic, group = TopicName.parse("persistent://t/n/x"), "kafka.g"
    name, wanted = subscription_name(str(topic), group), [False]

    async def main() -> None:
        store = EmbeddedStore()
        policies = SimpleNamespace(of=lambda _: SimpleNamespace(on=lambda _: wanted[0]))
        topics = served(["us", "eu"], policies)
        topics.view.partitions = lambda _: 1
        leases: Any = Leases("us", store)
        leadership = leases.leadership = SubscriptionLeadership(
            leases, store, topics, meta=EmbeddedStore(), region="us", clock=DriftingClock(1.0)
        )
        await leadership.start()
        leases.hold()
        assert leadership.waits([topic], group) == ""
        wanted[0] = True
        assert "not said yet" in leadership.waits([topic.with_partition(2), topic], group)
        await asyncio.sleep(1.5)
        assert leadership.waits([topic], group) == "" and leadership.known(name), (
            "by policy it works where it was first wanted"
        )
        await store.put(writer("eu", "b", 1), Writer(since=100, beside=("b",)).encode())
        await store.put(writer("us", "b", 1), Writer(since=100, beside=("b",)).encode())
        assert not await leadership.switching.settle(name, ["us", "eu"]), "everybody has heard of it"
        await store.delete(writer("eu", "b", 1))
        members = [2]
        leadership.count(lambda subscription: members[0] if subscription == group else 0)
        gate = leases.subscription_gate(name)
        assert gate is not None and leadership.status("t/n")[0]["consumers"] == 2
        await leadership.switching.change(name, lambda old: closing(old, "eu", DRAINING, 0))
        assert "being moved from us to eu" in leadership.waits([topic], group) and gate.obeyed < gate.version, (
            "a planned move waits for its members"
        )
        members[0] = 0
        assert gate.obeyed == gate.version
        await store.delete(writer("us", "b", 1))
        assert (await leadership.switching.flip(name, "eu", regions=["us", "eu"]))[0] is not None
        await asyncio.sleep(0)
        assert leadership.waits([topic], group) == "persistent://t/n/x: it is active in region eu"
        await asyncio.sleep(4)
        assert leadership.taken_over == 0, "eu is not lost for long enough"
        leadership.waits([topic], group)
        await asyncio.sleep(10)
        leases.hold()
        assert leadership.taken_over == 1 and leadership.waits([topic], group) == "", (
            "no broker of eu has a lease, and somebody waits here"
        )
        await leadership.switching.change(name, lambda old: closing(old, "eu", FENCED, 0))
        assert (await leadership.switching.flip(name, "eu", regions=["us", "eu"]))[0] is not None
        await asyncio.sleep(60)
        assert leadership.taken_over == 1, "nobody asks here any more"
        await leadership.stop()

    run_alone(main())


def test_nobody_leads_where_there_is_no_topic_until_there_is_one() -> None:
    """A member of a Kafka group names what it likes, fifty thousand topics of one namespace."""
    topic, group = TopicName.parse("persistent://t/n/x"), "kafka.g"
    name = subscription_name(str(topic), group)

    async def main() -> None:
        store, meta = EmbeddedStore(), EmbeddedStore()
        topics = served(["us", "eu"], SimpleNamespace(of=lambda _: SimpleNamespace(on=lambda _: True)))
        leases: Any = Leases("us", store)
        leadership = leases.leadership = SubscriptionLeadership(
            leases, store, topics, meta=meta, region="us", clock=DriftingClock(1.0)
        )
        await leadership.start()
        leases.hold()
        assert "not said yet" in leadership.waits([topic], group)
        await asyncio.sleep(1.5)
        assert not leadership.known(name) and not leadership._unmade
        await meta.put(managed_ledger(str(topic)), b"")
        assert "not said yet" in leadership.waits([topic], group), "whoever waits asks again"
        await asyncio.sleep(1)
        assert leadership.known(name) and leadership.waits([topic], group) == ""
        await leadership.stop()

    run_alone(main())


def test_names_and_keys_fit_each_other() -> None:
    for name in (NAME, "t/n"):
        assert name_of(leadership(name)) == name and is_subscription(name) == (name is NAME)


def test_nobody_takes_over_from_a_region_that_may_not_have_heard_and_somebody_does_when_it_has_left() -> None:
    """us, where consumers wait, sees no lease of eu. Before eu has said that it knows of the leadership it may hand
    out as ever; afterwards it is lost. Where it leaves the namespace, and its brokers live, they are heard first.
    """
    topic, regions = TopicName.parse("persistent://t/n/x"), ["us", "eu"]

    async def main() -> None:
        store = EmbeddedStore()
        topics = served(regions, SimpleNamespace(of=lambda _: SimpleNamespace(on=lambda _: True)))
        leases: Any = Leases("us", store)
        taking = leases.leadership = SubscriptionLeadership(
            leases, store, topics, meta=EmbeddedStore(), region="us", clock=DriftingClock(1.0)
        )
        switching = taking.switching
        await switching.begin(NAME, "eu", {})
        await store.put(writer("us", "b", 1), Writer(since=100, beside=("b",)).encode())
        await taking.start()

        async def wait(seconds: int) -> str:
            for _ in range(seconds):
                taking.waits([topic], "s")
                await asyncio.sleep(1)
            return (await switching.get(NAME))[0].active

        assert await wait(60) == "eu"
        await store.put(writer("eu", "b", 1), Writer(since=0, beside=("b",)).encode())
        await store.delete(writer("eu", "b", 1))
        assert await wait(60) == "eu", "it had a lease, and had not heard yet"
        await store.put(writer("eu", "b", 1), Writer(since=100, beside=("b", "c")).encode())
        assert await wait(10) == "eu" and "1 of 2" in unheard_text(await switching.settle(NAME, regions))
        await store.put(writer("eu", "c", 2), Writer(since=100, beside=("b", "c")).encode())
        assert not await switching.settle(NAME, regions)
        assert await wait(20) == "eu", "it has leases"
        regions.remove("eu")
        assert await wait(20) == "us" and taking.taken_over == 1
        await taking.stop()

    run_alone(main())


def test_a_leadership_ends_once_every_region_has_deleted_its_subscription() -> None:
    """us deletes it, first of one partition, then of the last, while its metadata is away for a moment; eu has it, and
    takes over; us is asked again when eu deletes it, too.
    """
    regions = ["us", "eu"]

    async def main() -> None:
        store, metas = EmbeddedStore(), {region: EmbeddedStore() for region in regions}
        topics = served(regions, SimpleNamespace(of=lambda _: SimpleNamespace(on=lambda _: True)))
        topics.view.partitions = lambda _: 2
        partitions = [cursor(f"persistent://t/n/x-partition-{index}", "s") for index in range(2)]
        leases: dict[str, Any] = {region: Leases(region, store) for region in regions}
        for region in regions:
            for key in partitions:
                await metas[region].put(key, b"")
            taking = leases[region].leadership = SubscriptionLeadership(
                leases[region], store, topics, meta=metas[region], region=region, clock=DriftingClock(1.0)
            )
            await taking.start()
            await store.put(writer(region, "b", 1), Writer(since=1000, beside=("b",)).encode())
        us, eu = (leases[region].leadership for region in regions)
        await us.switching.begin(NAME, "us", {})
        await asyncio.sleep(2)
        assert not await us.switching.settle(NAME, regions)

        async def deleted(region: str, key: str) -> None:
            await metas[region].delete(key)
            leases[region].subscription_gate(NAME).deleted()
            await asyncio.sleep(3)

        async def record() -> Leadership:
            return (await us.switching.get(NAME))[0]

        await deleted("us", partitions[0])
        assert (await record()).gone == (), "it has the other partition's"
        metas["us"].unavailable = "away"
        leases["us"].subscription_gate(NAME).deleted()
        await asyncio.sleep(3)
        metas["us"].unavailable = None
        await deleted("us", partitions[1])
        assert (await record()).gone == ("us",) and (await record()).active == "us"
        for _ in range(5):
            eu.waits([TopicName.parse("persistent://t/n/x")], "s")
            await asyncio.sleep(1)
        assert (await record()).active == "eu" and eu.taken_over == 1, "nobody waits in us"
        await us.switching.mark_gone(NAME, "us", regions, gone=False)
        await deleted("eu", partitions[0])
        await deleted("eu", partitions[1])
        await asyncio.sleep(3)
        assert await store.get(leadership(NAME)) is None and not leases["eu"].core.deleted
        for region in regions:
            await leases[region].leadership.stop()

    run_alone(main())
