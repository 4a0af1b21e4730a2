"""What one broker may confirm, and hand out, at this very moment."""

from __future__ import annotations

from heliograph.model.configuration.leadership import DRAINING, FENCED, Leadership, subscription_name
from heliograph.model.errors import RegionPassive
from region_node.dr.leadership.write_gates import Writing

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
    writing.on_registered(7, [(NAME, Leadership(active="us", epoch=2), 6)])
    assert gate.open and gate.status()["open_here"]
    gate.outstanding = lambda: 3
    writing.on_record(NAME, Leadership(active="us", epoch=2, state=DRAINING, to="eu"), 8)
    assert "moved from us to eu" in gate.waiting() and gate.obeyed < 8
    writing.on_record(NAME, Leadership(active="us", epoch=2, state=FENCED, to="eu"), 9)
    assert gate.obeyed == 9, "what it had handed out was taken back"
    writing.on_record(NAME, None, 10)
    assert writing.subscription_gate(NAME) is None


def test_what_was_taken_under_an_earlier_lease_is_not_confirmed_under_the_next() -> None:
    """Whoever closed the namespace between the two did not wait for it: the new lease says that it obeys everything
    before it.
    """
    now, told = [100.0], list[str]()
    writing = Writing("us", ttl_s=6.0, drift=0.1, now=lambda: now[0])
    writing.on_renewed(now[0])
    writing.on_registered(5, [("t/n", Leadership(active="us"), 4)])
    gate = writing.gate("t/n")
    assert gate is not None
    early = gate.enter(lambda _: told.append("confirmed"), lambda error: told.append(type(error).__name__))
    now[0] += 10
    writing.on_lost()
    writing.on_renewed(now[0])
    writing.on_registered(9, [("t/n", Leadership(active="us", state=DRAINING, to="eu"), 8)])
    assert writing.obeyed().obeys("t/n", 8), "so it may be flipped now"
    assert not isinstance(early, RegionPassive)
    early.done([(1, 1, 1)])
    assert told == ["RegionPassive"] and writing.refused == 1
