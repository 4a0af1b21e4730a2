"""More leaderships than one answer of the configuration holds, and more than one record of a broker can name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from geo_tests.sim.leadership import DriftingClock
from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import OPS_MAX, RANGE_LIMIT, VALUE_BYTES_MAX, Put
from heliograph.model.configuration.leadership import DRAINING, Leadership, leadership, subscription_name
from region_node.dr.leadership.leadership_changes import Switching, closing
from region_node.dr.leadership.write_leases import WriteLeases
from tests.known_faults.region_stories import given

BEYOND = RANGE_LIMIT + 5
LONG = "a-topic-with-a-long-name-" * 10


async def store_leaderships(store: EmbeddedStore, names: Iterable[str], active: str) -> None:
    left = list(names)
    while left:
        now, left = left[:OPS_MAX], left[OPS_MAX:]
        await store.txn([Put(leadership(name), Leadership(active=active).encode()) for name in now])


async def started(store: EmbeddedStore, region: str) -> WriteLeases:
    """A broker of that region, which has heard of every leadership and is not registered yet."""
    leases = WriteLeases(
        store, region=region, broker="b", clock=DriftingClock(1.0), url_of=lambda _: "", on_change=lambda _: None
    )
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


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a broker that registers takes every active-passive namespace behind the first 10,000 for active-active",
)
def test_no_namespace_is_forgotten_because_there_are_many() -> None:
    """A namespace that is active in us takes nothing in eu, however many such namespaces there are.

    A broker reads all leaderships behind its registration, and opens the gate of each that it did not find. It asks
    once, and an answer has at most ten thousand rows: behind them every region confirms. Right would be to read on to
    the end, and to shut what is not known.
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

    with given():
        refusal = run_alone(main())
    assert refusal is not None, "eu confirms in a namespace that is active in us"


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a broker that registers hands out every subscription behind the first 10,000, whoever's turn it is",
)
def test_no_subscription_is_forgotten_because_there_are_many() -> None:
    """A subscription whose turn is in us hands nothing out in eu, however many such subscriptions there are.

    What was not in the one answer is taken for a subscription that is active everywhere, and the dispatcher's own turn
    opens: two regions hand out the same messages. Right would be to read on to the end, and to wait with what is not
    known.
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

    with given():
        handed_out = run_alone(main())
    assert not handed_out, "eu hands out a subscription that is active in us"


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="what a broker tells of the leaderships that it obeys outgrows the largest value, and is not told",
)
def test_a_drain_is_obeyed_by_a_broker_that_has_heard_of_many_changes() -> None:
    """A drain, a fence, or a flip waits until every broker of the old region says that it obeys, which a broker that is
    well does soon.

    It says so in one value that names each leadership that has changed since it registered, and never leaves one out.
    Beyond a mebibyte the configuration refuses the value, and every move in that region waits until the broker dies.
    Right would be one version through which all is obeyed, and the exceptions.
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

    with given():
        waiting = run_alone(main())
    assert not waiting, f"twenty seconds after it began the drain waits for {waiting}"
