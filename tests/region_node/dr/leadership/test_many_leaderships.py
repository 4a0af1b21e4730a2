"""More leaderships than one answer of the configuration holds, and more than one record of a broker can name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from geo_tests.sim.leadership import DriftingClock
from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import OPS_MAX, RANGE_LIMIT, VALUE_BYTES_MAX, Put
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.configuration.leadership import (
    DRAINING,
    FENCED,
    SUBSCRIPTIONS,
    Leadership,
    Writer,
    leadership,
    subscription_name,
)
from heliograph.model.errors import RegionPassive
from region_node.dr.leadership.leadership_changes import Switching, closing
from region_node.dr.leadership.write_gates import AHEAD_BYTES, Passage, Writing
from region_node.dr.leadership.write_leases import WriteLeases

BEYOND = RANGE_LIMIT + 5
LONG = "a-topic-with-a-long-name-" * 10


async def store_leaderships(store: EmbeddedStore, names: Iterable[str], active: str) -> None:
    left = list(names)
    while left:
        now, left = left[:OPS_MAX], left[OPS_MAX:]
        await store.txn([Put(leadership(name), Leadership(active=active).encode()) for name in now])


async def started(store: EmbeddedStore, region: str) -> WriteLeases:
    """A broker of that region, which has heard of every leadership and is not registered yet."""
    leases = WriteLeases(store, region=region, broker="b", clock=DriftingClock(1.0), url_of=lambda _: "")
    await leases.start()
    return leases


async def registered(leases: WriteLeases) -> None:
    """Returns once its lease stands in the configuration."""
    for _ in range(30):
        if leases.core.registered:
            return
        await asyncio.sleep(1)
    raise AssertionError("the broker does not register")


def namespace(number: int) -> str:
    return f"t/ns{number:06d}"


def subscription(number: int, topic: str = "topic") -> str:
    return subscription_name(f"persistent://t/n/{topic}-{number:06d}", "billing")


class _SlowPages(EmbeddedStore):
    """Pages of three rows, each a second away: together they take longer than a lease lasts."""

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        await asyncio.sleep(1.0)
        return await super().range(start, end, limit=limit)


def test_a_broker_registers_though_reading_what_there_is_takes_longer_than_its_lease() -> None:
    """Else it loses the lease while it reads, and begins again, for ever."""

    async def main() -> None:
        store = _SlowPages(KvMachine(settings=MachineSettings(range_limit=3)))
        await store_leaderships(store, map(namespace, range(60)), "us")
        leases = await started(store, "eu")
        await registered(leases)
        await leases.stop()

    run_alone(main())


@pytest.mark.slow
def test_no_namespace_is_forgotten_because_there_are_many() -> None:
    """A namespace that is active in us takes nothing in eu, however many such namespaces there are.

    A broker reads all leaderships behind its registration, and opens the gate of each that it did not find: it reads on
    to the end, though an answer has at most ten thousand rows.
    """

    async def main() -> str | None:
        store = EmbeddedStore()
        await store_leaderships(store, map(namespace, range(BEYOND)), "us")
        leases = await started(store, "eu")
        before = leases.gate(namespace(BEYOND - 1))
        assert before is not None and before.refusal() is not None, "as it was heard at first"
        await registered(leases)
        gate = leases.gate(namespace(BEYOND - 1))
        refusal = None if gate is None else gate.refusal()
        await leases.stop()
        return None if refusal is None else str(refusal)

    refusal = run_alone(main())
    assert refusal is not None, "eu confirms in a namespace that is active in us"


@pytest.mark.slow
def test_no_subscription_is_forgotten_because_there_are_many() -> None:
    """A subscription whose turn is in us hands nothing out in eu, however many such subscriptions there are.

    What was not found is taken for a subscription that is active everywhere: two regions would hand out the same
    messages.
    """

    async def main() -> bool:
        store = EmbeddedStore()
        await store_leaderships(store, map(subscription, range(BEYOND)), "us")
        leases = await started(store, "eu")
        gate = leases.subscription_gate(subscription(BEYOND - 1))
        assert gate is not None and not gate.open, "as it was heard at first"
        await registered(leases)
        handed_out = gate.open
        await leases.stop()
        return handed_out

    handed_out = run_alone(main())
    assert not handed_out, "eu hands out a subscription that is active in us"


@pytest.mark.slow
def test_a_drain_is_obeyed_by_a_broker_that_has_heard_of_many_changes() -> None:
    """A drain, a fence, or a flip waits until every broker of the old region says that it obeys, which a broker that is
    well does soon.

    It says so in one value of bounded size: a version through which all is obeyed, and the exceptions.
    """

    async def main() -> list[str]:
        store = EmbeddedStore()
        switching = Switching(store, lambda: 0)
        await switching.begin("t/n", "us", {})
        leases = await started(store, "us")
        await registered(leases)
        count = VALUE_BYTES_MAX // len(subscription(0, LONG)) + 1
        assert count < RANGE_LIMIT
        await store_leaderships(store, (subscription(number, LONG) for number in range(count)), "us")
        await switching.change("t/n", lambda old: closing(old, "eu", DRAINING, 0))
        await asyncio.sleep(20)
        assert leases.core.holds, "it is well, and keeps its lease"
        waiting = await switching.waiting("t/n")
        await leases.stop()
        return waiting

    waiting = run_alone(main())
    assert not waiting, f"twenty seconds after it began the drain waits for {waiting}"


def draining(count: int) -> tuple[Writing, list[Passage]]:
    """A broker of us that has a run on its way in each of so many namespaces with long names, all of which drain, and
    has read them all again.
    """
    writing = Writing("us", ttl_s=6.0, drift=0.0, now=lambda: 0.0)
    writing.on_renewed(0.0)
    names = [f"t/{LONG}{number:06d}" for number in range(count)]
    for number, name in enumerate(names):
        writing.on_record(name, Leadership(active="us"), number + 1)
    writing.on_registered(count, names)
    runs = []
    for number, name in enumerate(names):
        gate = writing.gate(name)
        assert gate is not None
        run = gate.enter(lambda _: None, lambda _: None)
        assert not isinstance(run, RegionPassive)
        runs.append(run)
        writing.on_record(name, Leadership(active="us", state=DRAINING, to="eu"), count + number + 1)
    writing.on_registered(3 * count, names)
    return writing, runs


def test_ten_thousand_drains_that_are_not_finished_are_told_in_bounded_size() -> None:
    """Nothing is claimed that is not so; what is finished is told, the oldest first; and what changes meanwhile is
    obeyed in spite of them.
    """
    count = 10_000
    writing, runs = draining(count)
    writing.on_record("t/n", Leadership(active="us", state=FENCED, to="eu"), 4 * count)
    told = writing.obeyed()
    assert len(told.encode()) < VALUE_BYTES_MAX and Writer.decode(told.encode()) == told
    gates = {gate.namespace: gate for gate in writing.gates()}
    assert told.obeys("t/n", 4 * count) and len(gates) == count + 1
    assert not any(told.obeys(name, gate.version) for name, gate in gates.items() if name != "t/n")
    while runs:
        done, runs = runs[:1000], runs[1000:]
        for run in done:
            run.done([])
        told, before = writing.obeyed(), told
        assert told.since >= before.since and len(told.encode()) < VALUE_BYTES_MAX
        obeyed = [name for name, gate in gates.items() if told.obeys(name, gate.version)]
        assert all(gates[name].status()["in_flight"] == 0 for name in obeyed)
    assert len(obeyed) == count + 1 and told.since == 3 * count and len(told.seen) == 1


def test_what_is_told_of_many_changes_leaves_out_and_never_claims() -> None:
    """Until it is read anew: then all of it is behind the version that is told."""
    writing = Writing("us", ttl_s=6.0, drift=0.0, now=lambda: 0.0)
    writing.on_registered(1, [])
    names = [subscription(number, LONG) for number in range(1000)]
    for number, name in enumerate(names):
        writing.on_record(name, Leadership(active="us"), number + 2)
    told = writing.obeyed()
    assert writing.crowded and len(told.encode()) < 2 * AHEAD_BYTES
    assert told.obeys(names[0], 2) and not told.obeys(names[-1], 1001)
    writing.on_registered(2000, names)
    told = writing.obeyed()
    assert not writing.crowded and told == Writer(since=2000)
    assert all(told.obeys(name, number + 2) for number, name in enumerate(names))


def test_what_has_ended_is_not_kept() -> None:
    """A subscription comes and goes, ten thousand times: a broker knows none of them any more, and an older word about
    one, which comes late, brings nothing back.
    """
    writing = Writing("us", ttl_s=6.0, drift=0.0, now=lambda: 0.0)
    writing.on_registered(1, [])
    for number in range(10_000):
        writing.on_record(subscription(number), Leadership(active="eu"), 2 * number + 2)
        writing.on_record(subscription(number), None, 2 * number + 3)
    writing.on_registered(30_000, [])
    assert not writing._gates and not writing.wanted and writing.obeyed() == Writer(since=30_000)
    assert not writing.on_record(subscription(7), Leadership(active="eu"), 16)
    assert writing.subscription_gate(subscription(7)) is None
    assert writing.on_record(subscription(7), Leadership(active="eu"), 30_001)
    writing.on_lost()
    assert writing.on_record(subscription(8), Leadership(active="eu"), 18), "it may come from a backup"


def test_one_leadership_that_cannot_be_read_holds_up_no_other() -> None:
    """The broker registers, what cannot be read is nobody's, and the others are as they say."""

    async def main() -> tuple[bool, bool]:
        store = EmbeddedStore()
        await store.put(leadership("t/broken"), b"no record")
        await store_leaderships(store, ["t/n"], "us")
        leases = await started(store, "us")
        await registered(leases)
        broken, whole = leases.gate("t/broken"), leases.gate("t/n")
        assert broken is not None and whole is not None
        states = broken.open, whole.open
        await leases.stop()
        return states

    assert run_alone(main()) == (False, True)


@pytest.mark.slow
def test_all_that_is_of_a_namespace_ends_with_it_however_much_it_is() -> None:
    async def main() -> int:
        store = EmbeddedStore()
        await store_leaderships(store, [*map(subscription, range(BEYOND)), "t/n", "t/n2"], "us")
        await Switching(store, lambda: 0).forget("t/n")
        assert list(await Switching(store, lambda: 0).all()) == ["t/n2"]
        return len(store.machine.under(SUBSCRIPTIONS))

    assert run_alone(main()) == 0
