"""No link stands still unnoticed: each way of getting nowhere is named by its own cause, and ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.positions import Position
from replicator.health.link_causes import Cause
from replicator.health.watchdog import Facts, Watchdog
from replicator.log.replicated_log import ReplicatedLog
from replicator.receiving.link_receiver import LinkReceiver
from replicator.receiving.receiver_stream import ReceiverStream
from replicator.sending.link_sender import SenderSettings
from tests.replicator.link_instance import Instance, TestRegion, play

QUICK = SenderSettings(stalled_after_s=2.0, filtered_after_s=0.5)
IDLE = Facts(mark=(1, 5), receipts=3, rewinds=0, reading=False, skipping=False, blocked=False, in_flight=False)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, Cause.IDLE),
        ({"reading": True}, Cause.READ_STALLED),
        ({"in_flight": True, "reading": True}, Cause.STALLED),
        ({"in_flight": True, "blocked": True}, Cause.WRITE_BLOCKED),
        ({"skipping": True, "blocked": True}, Cause.SKIP_STALLED),
        ({"rewinds": 3, "in_flight": True}, Cause.GAPS),
        ({"rewinds": 2, "in_flight": True}, Cause.STALLED),
    ],
)
def test_what_stands_still_is_named(changes: dict[str, Any], cause: Cause) -> None:
    dog = Watchdog(30.0, every_s=31.0)
    dog.opened(100.0, 0)
    assert dog.look(101.0, IDLE) is None
    facts = IDLE._replace(**changes)
    assert dog.look(130.9, facts) is None, "not before the time is over"
    found = dog.look(131.1, facts)
    assert found is not None and found[0] is cause
    assert dog.look(132.0, facts) is None, "once; then it has another chance"


def test_slow_is_not_still_and_idle_is_not_behind() -> None:
    dog = Watchdog(30.0, every_s=31.0)
    dog.opened(0.0, 0)
    for minute in range(60):
        assert dog.look(minute * 29.0, IDLE._replace(receipts=minute)) is None
    dog.caught_up()
    assert dog.look(6000.0, IDLE) is None, "the time counts from when it fell behind"


@pytest.mark.parametrize("stood_s", [5.0, 29.0, 31.0, 300.0])
def test_a_process_that_stood_still_blames_no_link_for_that_time(stood_s: float) -> None:
    dog, facts = Watchdog(30.0), IDLE._replace(in_flight=True)
    dog.opened(0.0, 0)
    for second in range(11):
        assert dog.look(float(second), facts) is None
    assert dog.look(10.0 + stood_s, facts) is None
    looks = [dog.look(10.0 + stood_s + second, facts) for second in range(1, 40)]
    assert looks.index(next(filter(None, looks))) in range(18, 24), "and the rest of its time counts"


def test_every_cause_has_a_remedy() -> None:
    assert all(cause.remedy for cause in Cause if cause not in (Cause.NONE, Cause.DETACHED))


Fault = Callable[[Instance, pytest.MonkeyPatch], Callable[[], None]]


def reads_hang(instance: Instance, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    store = instance.regions["us"].store
    instance.regions["us"].ledger.cache, store.read_s = False, 1e6
    return lambda: setattr(store, "read_s", 0.0)


def receipts_are_not_sent(instance: Instance, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The target takes everything and is silent about it."""
    with_patch = pytest.MonkeyPatch()
    with_patch.setattr(LinkReceiver, "_send_receipts", lambda self: setattr(self, "_timer", None))
    return with_patch.undo


def every_run_is_a_gap(instance: Instance, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    with_patch = pytest.MonkeyPatch()

    def refuse(self: ReceiverStream, attempt: int, previous: Position, run: Any) -> None:
        if attempt > self._gapped:
            asyncio.get_running_loop().call_later(0.3, lambda: self._gap(attempt))

    with_patch.setattr(ReceiverStream, "on_run", refuse)
    return with_patch.undo


def nothing_wakes_the_link(instance: Instance, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As a lost wake-up would leave it."""
    us = instance.regions["us"]
    wakes, us.ledger.wakers = us.ledger.wakers, []

    def heal() -> None:
        us.ledger.wakers += wakes

    return heal


def the_path_takes_no_bytes(instance: Instance, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    link = next(
        link
        for links in instance.regions["us"].brokers[0].links._links.values()
        for link in links.values()
        if link.target == "eu"
    )
    connection = link.connection
    assert connection is not None
    connection.client.pause_writing()
    return lambda: None


FAULTS: dict[Fault, Cause] = {
    reads_hang: Cause.READ_STALLED,
    receipts_are_not_sent: Cause.STALLED,
    every_run_is_a_gap: Cause.GAPS,
    nothing_wakes_the_link: Cause.IDLE,
    the_path_takes_no_bytes: Cause.WRITE_BLOCKED,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_each_ends_by_itself_with_its_cause(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        us.publish(5)
        await asyncio.sleep(1)
        heal = fault(instance, monkeypatch)
        try:
            us.publish(20)
            seen = set()
            for _ in range(40):
                await asyncio.sleep(0.1)
                seen |= {row["cause"] for row in us.link("eu").history}
        finally:
            heal()
        assert str(FAULTS[fault]) in seen
        assert us.brokers[0].links.restarts["eu", FAULTS[fault]] >= 1
        us.publish(1)
        await asyncio.sleep(15)
        assert_whole(us, eu)

    play(scenario, names=("us", "eu"), sender=QUICK)


def test_a_skip_that_is_not_stored() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        us.publish(5)
        await asyncio.sleep(1)
        patch = pytest.MonkeyPatch()
        patch.setattr(ReplicatedLog, "append_skip", lambda *_, **__: None)
        us.publish(3, to=("ap",))  # nothing follows: a SKIP(filtered) is due
        await asyncio.sleep(5)
        assert us.link("eu").history[0]["cause"] == Cause.SKIP_STALLED
        patch.undo()
        us.publish(2)
        await asyncio.sleep(10)
        assert us.link("eu").backlog_entries == 0 and len(eu.bodies()) == 7

    play(scenario, names=("us", "eu"), sender=QUICK)


def assert_whole(us: TestRegion, eu: TestRegion) -> None:
    link = us.link("eu")
    assert eu.bodies() == us.bodies() and link.connected and link.cause == "none" and link.remedy == ""
    assert link.backlog_entries == 0 and link.restarts == len(link.history)
