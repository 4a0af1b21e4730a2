"""What one broker may confirm, and hand out, at this very moment."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from heliograph.model.configuration.leadership import DRAINING, FENCED, OPEN, Leadership, subscription_name
from heliograph.model.errors import HeliographError, NotAllowed, RegionPassive
from region_node.dr.leadership.write_gates import Passage, Writing

NAME = subscription_name("persistent://t/n/x", "s")


def test_why_it_waits_is_said() -> None:
    now = [100.0]
    writing = Writing("us", ttl_s=6.0, drift=0.1, now=lambda: now[0])
    writing.on_record(NAME, Leadership(active="eu"), 5)
    gate = writing.subscription_gate(NAME)
    assert (
        gate is not None
        and writing.gate("t/n") is None
        and not writing.gates()
        and writing.subscription_gates() == [gate]
    )
    assert gate.waiting() == "it is active in region eu" and not gate.open
    writing.on_record(NAME, Leadership(active="us", epoch=2), 6)
    assert "has not renewed its lease" in gate.waiting()
    writing.on_renewed(now[0])
    writing.on_record(NAME, Leadership(active="us", epoch=2), 6)
    writing.on_registered(7, [NAME])
    assert gate.open and gate.status()["open_here"]
    gate.outstanding = lambda: 3
    writing.on_record(NAME, Leadership(active="us", epoch=2, state=DRAINING, to="eu"), 8)
    assert "moved from us to eu" in gate.waiting() and gate.obeyed < 8
    writing.on_record(NAME, Leadership(active="us", epoch=2, state=FENCED, to="eu"), 9)
    assert gate.obeyed == 9, "what it had handed out was taken back"
    writing.on_record(NAME, None, 10)
    assert writing.subscription_gate(NAME) is None


def test_a_pause_that_only_the_wall_clock_shows_ends_the_lease() -> None:
    """The monotonic clock does not count a hypervisor's pause; what was taken before it is not confirmed behind it."""
    now, wall, told = [100.0], [5000.0], list[str]()
    writing = Writing("us", ttl_s=6.0, drift=0.1, now=lambda: now[0], wall=lambda: wall[0])
    writing.on_renewed(100.0, 5000.0)
    writing.on_record("t/n", Leadership(active="us"), 4)
    writing.on_registered(5, ["t/n"])
    gate = writing.gate("t/n")
    assert gate is not None and gate.open and writing.left_s == pytest.approx(5.4)
    wall[0] += 5.3
    assert gate.open and writing.left_s == pytest.approx(0.1)
    passage = gate.enter(lambda _: told.append("confirmed"), lambda error: told.append(type(error).__name__))
    wall[0] += 0.2
    assert not gate.open and writing.left_s == 0.0
    passage.done([(1, 1, 0)])
    assert told == ["RegionPassive"]
    writing.on_renewed(100.0, 5006.0)
    assert gate.open, "it is renewed behind the pause"
    wall[0] -= 3600.0
    now[0] += 5.5
    assert not gate.open, "a wall clock that is set back lengthens nothing"


def test_what_was_taken_under_an_earlier_lease_is_not_confirmed_under_the_next() -> None:
    """Whoever closed the namespace between the two did not wait for it: the new lease says that it obeys everything
    before it.
    """
    now, told = [100.0], list[str]()
    writing = Writing("us", ttl_s=6.0, drift=0.1, now=lambda: now[0])
    writing.on_renewed(now[0])
    writing.on_record("t/n", Leadership(active="us"), 4)
    writing.on_registered(5, ["t/n"])
    gate = writing.gate("t/n")
    assert gate is not None
    early = gate.enter(lambda _: told.append("confirmed"), lambda error: told.append(type(error).__name__))
    now[0] += 10
    writing.on_lost()
    writing.on_renewed(now[0])
    writing.on_record("t/n", Leadership(active="us", state=DRAINING, to="eu"), 8)
    writing.on_registered(9, ["t/n"])
    assert writing.obeyed().obeys("t/n", 8), "so it may be flipped now"
    assert not isinstance(early, RegionPassive)
    early.done([(1, 1, 1)])
    assert told == ["RegionPassive"] and writing.refused == 1


def told() -> tuple[list[str], Callable[[object], None], Callable[[HeliographError], None]]:
    """(what came of runs, what to give as `done`, and as `failed`)."""
    came: list[str] = []
    return came, lambda _: came.append("confirmed"), lambda error: came.append(type(error).__name__)


def test_the_lease_counts_from_before_its_renewal_was_sent_less_what_clocks_drift_and_ends_sharply() -> None:
    now = [100.0]
    writing = Writing("us", ttl_s=10.0, drift=0.25, now=lambda: now[0])
    writing.on_registered(1, [])
    assert not writing.holds
    now[0] = 103.0
    writing.on_renewed(100.0)
    assert writing.until == 107.5 and writing.holds
    writing.on_renewed(99.0)
    assert writing.until == 107.5, "an answer that comes late takes nothing back"
    now[0] = 107.25
    assert writing.holds
    now[0] = 107.5
    assert not writing.holds
    writing.on_renewed(107.5)
    assert writing.holds
    writing.on_lost()
    assert not writing.holds and not writing.registered and writing.life == 1
    writing.on_renewed(107.5)
    assert not writing.holds, "not before it stands in the configuration"


def test_a_drain_is_obeyed_once_nothing_waits_and_an_older_record_is_no_news() -> None:
    writing, (came, done, failed) = Writing("us", ttl_s=6.0, drift=0.0, now=lambda: 0.0), told()
    writing.on_renewed(0.0)
    writing.on_record("t/n", Leadership(active="us"), 4)
    writing.on_registered(5, ["t/n"])
    gate = writing.gate("t/n")
    assert gate is not None and writing.obeyed().since == 5
    drained: list[int] = []
    gate.on_drained = lambda: drained.append(len(came))
    runs = [gate.enter(done, failed) for _ in range(2)]
    assert writing.on_record("t/n", Leadership(active="us", state=DRAINING, to="eu"), 8)
    assert not writing.on_record("t/n", Leadership(active="us"), 8) and not writing.on_record("t/n", None, 7)
    assert isinstance(gate.enter(done, failed), RegionPassive), "nothing more is taken"
    assert not writing.obeyed().obeys("t/n", 8) and writing.obeyed().obeys("t/n", 5)
    for index, run in enumerate(runs):
        assert not isinstance(run, RegionPassive) and not drained
        run.done([]) if index else run.failed(NotAllowed("it failed"))
    assert came == ["NotAllowed", "confirmed"] and len(drained) == 1 and writing.obeyed().obeys("t/n", 8)


def test_where_to_go_is_said_only_while_somebody_is_open_there() -> None:
    writing = Writing("us", ttl_s=6.0, drift=0.0, now=lambda: 0.0, url_of=lambda region: f"pulsar://{region}")
    writing.on_record("t/n", Leadership(active="eu"), 1)
    gate = writing.gate("t/n")
    assert gate is not None
    refused = gate.refusal()
    assert refused is not None and refused.url == "pulsar://eu"
    writing.on_record("t/n", Leadership(active="eu", state=DRAINING, to="us"), 2)
    refused = gate.refusal()
    assert refused is not None and refused.url == ""


def test_a_namespace_that_is_not_found_when_the_lease_stands_is_active_active_again() -> None:
    writing = Writing("us", ttl_s=6.0, drift=0.0, now=lambda: 0.0)
    for name in ("t/gone", "t/newer"):
        writing.on_record(name, Leadership(active="eu"), 3 if name == "t/gone" else 9)
    writing.on_registered(7, [])
    assert writing.gate("t/gone") is None
    assert writing.gate("t/newer") is not None, "what was heard of it is newer than what was read"
    assert writing.gate("t/never") is None and not writing.on_record("t/never", None, 9)


@pytest.mark.parametrize("seed", range(150))
def test_nothing_is_confirmed_but_in_the_active_region_under_the_lease_and_the_epoch_of_its_taking(seed: int) -> None:
    """Against the rule as it reads, over any order of what a broker hears, takes, and is answered."""
    rng = random.Random(seed)
    ttl_s, drift = 8.0, 0.25
    now, until, registered, life = [0.0], float("-inf"), False, 0
    writing = Writing("us", ttl_s=ttl_s, drift=drift, now=lambda: now[0])
    record, version = Leadership(active="us"), 1
    writing.on_record("t/n", record, version)
    gate = writing.gate("t/n")
    assert gate is not None
    came, done, failed = told()
    waiting: list[tuple[Passage, int, int]] = []
    met = version
    """The version whose demands are met: nothing that was taken before it waits, or it asks for nothing."""
    refused = 0
    for _ in range(300):
        holds = registered and now[0] < until
        match rng.randrange(8):
            case 0:
                now[0] += rng.choice((0.5, 1.0, 3.0))
            case 1:
                sent = now[0] - rng.choice((0.0, 0.5, 2.0))
                writing.on_renewed(sent)
                until = max(until, sent + ttl_s * (1 - drift))
            case 2 if rng.random() < 0.3:
                writing.on_lost()
                until, registered, life = float("-inf"), False, life + 1
            case 3:
                version += 1
                writing.on_registered(version, ["t/n"])  # once more under one lease: what is told begins anew, no more
                if not registered:
                    registered, met = True, gate.version
            case 4 if rng.random() < 0.6:
                state = rng.choice((OPEN, OPEN, DRAINING, FENCED))
                active = rng.choice(("us", "us", "us", "eu"))
                moved = rng.random() < (0.8 if active != record.active else 0.1)
                record = Leadership(active=active, epoch=record.epoch + moved, state=state, to="eu")
                version += rng.randrange(1, 3)
                assert writing.on_record("t/n", record, version)
            case 5 | 6:
                taken = gate.enter(done, failed)
                expected = record.active == "us" and record.state == OPEN and holds
                assert isinstance(taken, RegionPassive) is not expected and gate.open is expected
                if not isinstance(taken, RegionPassive):
                    waiting.append((taken, record.epoch, life))
            case 7 if waiting:
                passage, epoch, taken_in = waiting.pop(rng.randrange(len(waiting)))
                allowed = record.active == "us" and epoch == record.epoch and taken_in == life
                allowed = allowed and record.state != FENCED and holds
                passage.done([(1, 1, 1)])
                assert came.pop() == ("confirmed" if allowed else "RegionPassive") and not came
                refused += not allowed
            case _:
                pass
        if not (waiting and record.state == DRAINING):
            met = gate.version
        if registered:
            assert writing.obeyed().obeys("t/n", gate.version) == (met >= gate.version)
        assert gate.obeyed == met and gate.status()["in_flight"] == len(waiting)
    assert refused == writing.refused
