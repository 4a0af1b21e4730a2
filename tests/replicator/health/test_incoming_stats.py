"""What is said of a source region comes from when it was heard, whether its connections stand or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.wire.links.link_commands import Risk
from region_node.dr.operations.namespace_facts import lacking
from replicator.health.incoming_stats import LOST_S, SILENT_S, Heard, IncomingLink, IncomingRegion
from replicator.log.replicated_log import ReplicatedLog

WALL_MS = 1_700_000_000_000


class Now:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def linked(now: Now, risk: Risk | None = None) -> tuple[Heard, IncomingLink]:
    """A connection, and one stream on it."""
    heard = Heard(now)
    return heard, IncomingLink(IncomingRegion(), heard, open=True, risk=risk)


@pytest.mark.parametrize("silent_s", (0.0, 1.0, SILENT_S))
def test_what_is_as_good_as_now_has_no_age(silent_s: float) -> None:
    """A region that lives beats each second: a beat that is a little late makes nobody doubt it."""
    now = Now()
    _, link = linked(now, Risk(0, 0, 0, 0))
    now.at += silent_s
    told = link.status(WALL_MS)
    assert told["connected"] and told["messages"] == 0 and told["age_s_max"] == 0.0 and told["silent_s"] == silent_s
    assert link.untold_s(now.at) == 0.0


@pytest.mark.parametrize("silent_s", (SILENT_S + 0.1, LOST_S - 0.1, LOST_S, 60.0))
def test_a_silent_connection_is_told_with_its_age_and_from_five_seconds_on_is_none(silent_s: float) -> None:
    now = Now()
    heard, link = linked(now, Risk(0, 0, 0, 0))
    now.at += silent_s
    told = link.status(WALL_MS)
    assert told["connected"] is (silent_s < LOST_S)
    assert told["silent_s"] == told["age_s_max"] == link.at_risk_s(WALL_MS, now.at) == pytest.approx(silent_s)
    heard.bytes()
    assert link.connected and link.at_risk_s(WALL_MS, now.at) == 0.0, "one word, and all is known again"


def test_what_is_known_to_be_missing_grows_no_younger_by_silence() -> None:
    now = Now()
    _, link = linked(now, Risk(3, 30, 300, WALL_MS - 40_000))
    now.at += 10
    assert link.at_risk_s(WALL_MS, now.at) == 40.0 and link.at_risk_s(WALL_MS - 35_000, now.at) == 10.0


def test_a_wall_clock_that_jumps_makes_no_silence_and_hides_none() -> None:
    now = Now()
    _, link = linked(now)
    assert link.status(WALL_MS + 3_600_000)["silent_s"] == 0.0 and link.connected
    now.at += 30
    assert link.status(WALL_MS - 3_600_000)["silent_s"] == 30.0 and not link.connected


def test_a_stream_that_ended_is_silent_although_its_connection_goes_on() -> None:
    now = Now()
    heard, link = linked(now)
    link.open, link.heard = False, heard.stopped()
    now.at += 1
    heard.bytes()
    assert not link.connected and link.untold_s(now.at) == 1.0, "an end is told at once"
    now.at += 9
    assert link.status(WALL_MS)["silent_s"] == 10.0


def test_a_region_is_as_silent_as_the_connection_that_was_heard_last() -> None:
    now = Now()
    region, first = IncomingRegion(), Heard(now)
    assert region.silent_s == 0.0, "no stream was ever open"
    region.on.append(first)
    now.at += 3
    second = Heard(now)
    region.on.append(second)
    now.at += 4
    assert region.silent_s == 4.0
    region.end(second)
    assert region.silent_s == 4.0, "what was heard stays heard"
    region.end(first)
    now.at += 1
    assert region.silent_s == 5.0 and not region.on and region.ended is second
    for _ in range(10_000):  # a link that flaps leaves nothing behind
        again = Heard(now)
        region.on.append(again)
        region.end(again)
    assert not region.on and region.silent_s == 0.0


def test_a_link_that_opens_again_knows_what_was_told_before() -> None:
    """Else a source that connects again, and falls silent before it tells anything, is said to have nothing at risk."""
    now = Now()
    log: Any = SimpleNamespace(incoming={})
    first, second = (IncomingLink(IncomingRegion(), Heard(now), open=True) for _ in range(2))
    ReplicatedLog.comes_from(log, "us", first)
    first.risk = Risk(105, 105, 9, WALL_MS - 40_000)
    ReplicatedLog.comes_from(log, "us", second)
    assert log.incoming["us"] is second and second.status(WALL_MS)["messages"] == 105
    facts = {"missing": [], "topics": {"x": {"lacks": {"us": second.status(WALL_MS)}}}}
    assert lacking(facts, "us")["unheard"] == ["x"], "that was of before: there may be more"
