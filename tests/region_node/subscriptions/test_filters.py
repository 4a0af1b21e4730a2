"""Entry filters: what is rejected, what comes later, what a faulty filter does, under every type of subscription."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from heliograph.model.configuration.policy_table import applied
from heliograph.model.configuration.policy_values import WrongKind
from heliograph.model.errors import ConfigError
from heliograph.wire.run import Run
from region_node.subscriptions.consumer import SubscriptionType
from region_node.subscriptions.filter_plugins import load_filters
from region_node.subscriptions.filters import ACCEPT, REJECT, RESCHEDULE, Entries, EntryFilter
from region_node.subscriptions.subscription import Rules
from tests.region_node.faces.pulsar.codec import entry
from tests.region_node.subscriptions.dispatch_world import Timers, World
from tests.region_node.subscriptions.example_filters import Broken, ByProperty

KINDS = list(SubscriptionType)


def run(test: Callable[[World, Timers], Any]) -> None:
    async def main() -> None:
        time = Timers()
        world = World(time.wheel)
        await test(world, time)
        await world.tasks.close()

    asyncio.run(main())


def rules(*filters: EntryFilter | None, delaying: bool = True) -> Rules:
    return Rules(filters=tuple((f"f{i}", one) for i, one in enumerate(filters)), topic="t", delaying=delaying)


def append(w: World, words: str, keys: int = 3) -> None:
    """words: one letter an entry: a accepted, n rejected, l later."""
    says = {"a": "yes", "n": "no", "l": "later"}
    parts = [
        entry(b"x", sequence=i, partition_key=f"k{i % keys}", properties=[{"key": "filter", "value": says[word]}])
        for i, word in enumerate(words)
    ]
    w.ledger.append_run(Run(parts, [len(p) for p in parts]), lambda *_: None, None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
def test_what_is_rejected_counts_as_acknowledged(kind: SubscriptionType) -> None:
    async def test(w: World, _: Timers) -> None:
        w.subscription.obey(rules(ByProperty()))
        append(w, "anaanna")
        consumer = w.join(kind, 2)
        await w.settle()
        assert w.entries(consumer) == [0, 2]
        w.subscription.flow(consumer, 10)
        await w.settle()
        assert sorted(w.entries(consumer)) == [0, 2, 3, 6]
        w.subscription.ack(consumer, [(10, e) for e in (0, 2, 3, 6)])
        assert w.cursor.backlog_entries == 0
        stats = w.subscription.stats(0, 0)
        assert (stats["filterRejectedMsgCount"], stats["filterRescheduledMsgCount"]) == (3, 0)
        if kind is not SubscriptionType.KEY_SHARED:  # there what waits for its key is asked about again
            assert (stats["filterProcessedMsgCount"], stats["filterAcceptedMsgCount"]) == (7, 4)
        w.subscription.obey(rules())
        append(w, "nn")
        await w.settle()
        assert sorted(w.entries(consumer))[-2:] == [7, 8]

    run(test)


def test_what_comes_later_lets_others_pass_on_shared_and_holds_an_exclusive_one() -> None:
    async def test(w: World, time: Timers) -> None:
        w.subscription.obey(rules(ByProperty(), delaying=False))
        append(w, "alaa")
        consumer = w.join(SubscriptionType.SHARED, 10)
        await w.settle()
        assert w.entries(consumer) == [0, 2, 3]
        time.pass_ms(1100)
        await w.settle()
        assert w.entries(consumer) == [0, 2, 3, 1]
        w.subscription.remove(consumer)
        w.cursor.ack_cumulative((10, 3))
        append(w, "alaa")
        alone = w.join(SubscriptionType.EXCLUSIVE, 10)
        await w.settle()
        assert w.entries(alone) == [4]
        w.subscription.tick(2.0)
        await w.settle()
        assert w.entries(alone) == [4, 5, 6, 7]

    run(test)


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED], ids=lambda kind: kind.label)
def test_what_comes_later_waits_as_long_whatever_the_clock_is_set_to(kind: SubscriptionType, ahead_s: float) -> None:
    async def test(w: World, time: Timers) -> None:
        w.subscription.obey(rules(ByProperty()))
        append(w, "ala")
        consumer = w.join(kind, 10)
        await w.settle()
        assert w.entries(consumer) == [0, 2] and w.subscription.stats(3, 0)["msgDelayed"] == 1
        time.clock.ahead_s = ahead_s
        time.pass_ms(500)
        append(w, "a")
        await w.settle()
        assert w.entries(consumer) == [0, 2, 3], "it is not early"
        time.pass_ms(600)
        await w.settle()
        assert w.entries(consumer) == [0, 2, 3, 1], "nor late"
        assert time.wheel.held == 0

    run(test)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
@pytest.mark.parametrize("bad", [Broken(), None], ids=["raises", "is not here"])
def test_nothing_gets_past_a_filter_that_cannot_say(kind: SubscriptionType, bad: EntryFilter | None) -> None:
    async def test(w: World, time: Timers) -> None:
        w.subscription.obey(rules(bad))
        append(w, "aaaa")
        consumer = w.join(kind, 10)
        for _ in range(3):
            await w.settle()
            time.pass_ms(1100)
            w.subscription.tick(1.0)
        await w.settle()
        assert w.entries(consumer) == [] and w.cursor.backlog_entries == 4
        w.subscription.obey(rules())
        time.pass_ms(1100)
        w.subscription.tick(1.0)
        await w.settle()
        assert sorted(w.entries(consumer)) == [0, 1, 2, 3]

    run(test)


@pytest.mark.parametrize("cached", [True, False])
def test_each_entry_is_asked_about_once(cached: bool) -> None:
    async def test(w: World, _: Timers) -> None:
        w.subscription.obey(rules(ByProperty()))
        w.ledger.cache = cached
        words = "aaanaannaaaanaaan" * 4
        append(w, words)
        consumer = w.join(SubscriptionType.EXCLUSIVE)
        for _ in range(len(words)):
            w.subscription.flow(consumer, 1)
            await w.settle()
        assert w.entries(consumer) == [i for i, word in enumerate(words) if word == "a"]
        stats = w.subscription.stats(0, 0)
        assert (stats["filterProcessedMsgCount"], stats["filterRejectedMsgCount"]) == (len(words), words.count("n"))

    run(test)


class ByChance(EntryFilter):
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.said: dict[Any, int] = {}

    def decide(self, entries: Entries) -> Sequence[int] | None:
        if self._rng.random() < 0.2:
            return (
                None if not any(entries.position(i) in self.said for i in range(len(entries))) else self._each(entries)
            )
        return self._each(entries)

    def _each(self, entries: Entries) -> list[int]:
        out = []
        for index in range(len(entries)):
            before = self.said.get(entries.position(index))
            now = before if before in (REJECT, ACCEPT) else self._rng.choice([ACCEPT, ACCEPT, REJECT, RESCHEDULE])
            assert now is not None
            self.said[entries.position(index)] = now
            out.append(now)
        return out


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
@pytest.mark.parametrize("seed", range(12))
def test_everything_goes_out_or_is_rejected(kind: SubscriptionType, seed: int) -> None:
    async def test(w: World, time: Timers) -> None:
        rng = random.Random(seed)
        chance = ByChance(rng)
        w.subscription.obey(rules(chance, ByProperty()))
        consumers = [w.join(kind, 0) for _ in range(1 if kind is SubscriptionType.EXCLUSIVE else 2)]
        for _ in range(12):
            append(w, "".join(rng.choice("aaanl") for _ in range(rng.randrange(1, 12))))
            w.subscription.flow(rng.choice(consumers), rng.randrange(8))
            w.ledger.cache = rng.random() < 0.7
            await w.settle()
        rejected = set()
        for _ in range(60):
            for consumer in consumers:
                w.subscription.flow(consumer, 5)
                w.subscription.ack(consumer, [(10, e) for e in w.entries(consumer)])
            time.pass_ms(1100)
            w.subscription.tick(1.0)
            await w.settle()
        for consumer in consumers:
            w.subscription.ack(consumer, [(10, e) for e in w.entries(consumer)])
        got = [e for consumer in consumers for e in w.entries(consumer)]
        rejected = {position[1] for position, verdict in chance.said.items() if verdict == REJECT}
        assert w.cursor.backlog_entries == 0, f"{w.cursor.backlog_entries} neither went out nor were rejected"
        assert len(set(got)) == len(got) and not rejected & set(got)

    run(test)


def test_filters_of_the_settings() -> None:
    book = load_filters(
        {
            "mine": "tests.region_node.subscriptions.example_filters:ByProperty",
            "bad": "tests.region_node.subscriptions.example_filters:Broken",
        }
    )
    assert book.names == ["bad", "mine"]
    chosen = book.of(applied({"entryFilters": {"entryFilterNames": "mine, gone,bad"}}))
    assert [(name, type(one).__name__) for name, one in chosen] == [
        ("mine", "ByProperty"),
        ("gone", "NoneType"),
        ("bad", "Broken"),
    ]
    assert book.of(applied()) == ()
    book.check("mine,bad")
    with pytest.raises(WrongKind, match="no entry filter 'gone'; there are bad, mine"):
        book.check("mine,gone")
    here = "tests.region_node.subscriptions.example_filters"
    for place in (
        here,
        f"{here}:Nothing",
        "no.such.module:A",
        f"{here}:REJECT",
        "tests.region_node.subscriptions.dispatch_world:World",
    ):
        with pytest.raises(ConfigError, match=r"entry_filters\.x"):
            load_filters({"x": place})
