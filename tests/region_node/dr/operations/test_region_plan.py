"""What one command would do with each namespace: by the leadership, the last operation, and what both regions say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.configuration.leadership import Leadership
from heliograph.model.errors import NotAllowed
from region_node.dr.operations.operation import DRILL, FAILOVER, REJOIN, SWITCHOVER, Operation
from region_node.dr.operations.region_plan import (
    CANNOT,
    FAILBACK,
    MOVES,
    PASSED,
    THERE,
    MoveTarget,
    Verdict,
    WantedMoves,
    came_by,
    came_from,
    chosen,
    judged,
    with_costs,
    within_risk,
)

NS, BOTH = "t/n", ("us", "eu")
US, EU = Leadership(active="us"), Leadership(active="eu")


def operation(kind: str, source: str, target: str, **changed: Any) -> Operation:
    return replace(Operation.new(1, kind, NS, source, target, "op", 0), **changed)


def moved(source: str, target: str) -> Operation:
    return operation(SWITCHOVER, source, target, state="done", step="", steps=(["flip", 1, ""],))


@pytest.mark.parametrize(
    ("kind", "region", "record", "last", "wanted"),
    (
        (SWITCHOVER, "us", US, None, MOVES),
        (SWITCHOVER, "", US, None, MOVES),
        (SWITCHOVER, "us", EU, None, PASSED),
        (SWITCHOVER, "us", EU, moved("us", "eu"), THERE),
        (SWITCHOVER, "", EU, None, THERE),
        (SWITCHOVER, "us", Leadership(active="ap"), None, PASSED),
        (SWITCHOVER, "us", Leadership(active="us", asks="restored"), None, CANNOT),
        (SWITCHOVER, "us", US, operation(FAILOVER, "us", "eu"), CANNOT),
        (FAILOVER, "us", US, operation(SWITCHOVER, "us", "eu"), MOVES),
        (SWITCHOVER, "us", US, operation(DRILL, "us", "eu"), MOVES),
        (DRILL, "us", US, operation(SWITCHOVER, "us", "eu"), CANNOT),
        (DRILL, "", EU, None, PASSED),
    ),
)
def test_a_verdict(kind: str, region: str, record: Leadership, last: Operation | None, wanted: str) -> None:
    found = judged(WantedMoves(kind=kind, to="eu", region=region), NS, BOTH, record, last)
    assert found.what == wanted, found
    assert not found.goes_on and bool(found.because) == (wanted != MOVES)


def test_a_namespace_that_is_not_in_the_region_cannot_be_moved_there() -> None:
    found = judged(WantedMoves(kind=SWITCHOVER, to="eu"), NS, ("us", "ap"), US, None)
    assert (found.what, found.because) == (CANNOT, "it is not in eu; it is in us, ap")
    found = judged(WantedMoves(kind=SWITCHOVER, to="eu", region="ap"), NS, ("us", "ap"), US, None)
    assert found.what == PASSED, "what is active elsewhere is none of this command's"


@pytest.mark.parametrize("record", (US, EU), ids=("not-flipped", "flipped"))
def test_what_is_under_way_is_gone_on_with_whatever_is_said_of_it(record: Leadership) -> None:
    """Behind the flip the namespace is active in the target, and not open there yet."""
    wanted = WantedMoves(kind=SWITCHOVER, to="eu", region="us")
    found = judged(wanted, NS, BOTH, record, operation(SWITCHOVER, "us", "eu", step="open"))
    assert found == Verdict(what=MOVES, source="us", goes_on=True)
    silent = {"unreachable": "it is away"}
    assert with_costs(wanted, found, silent, silent, "somebody").what == MOVES
    back = WantedMoves(kind=FAILBACK, to="us", region="eu")
    for begun in (operation(REJOIN, "us", "eu"), operation(SWITCHOVER, "eu", "us")):
        assert judged(back, NS, BOTH, EU, begun) == Verdict(what=MOVES, source="eu", goes_on=True)


def test_a_failback_takes_back_what_came_from_there() -> None:
    drill = operation(DRILL, "eu", "us", state="done")
    assert came_from("us", "eu", {"us": [2]}, [])
    assert came_from("us", "eu", {}, [moved("us", "eu"), drill])
    assert not came_from("us", "eu", {}, [drill])
    assert not came_from("us", "eu", {}, [moved("us", "eu"), moved("eu", "ap"), moved("ap", "eu")])
    given_up = operation(SWITCHOVER, "us", "eu", state="cancelled")
    assert not came_from("us", "eu", {}, [given_up])
    assert came_by("us", "eu", moved("us", "eu")) and came_by("us", "eu", None) is False
    for last in (drill, given_up, moved("ap", "eu")):
        assert came_by("us", "eu", last) is None


SAYS: dict[str, Any] = {"missing": [], "down": []}
AWAY: dict[str, Any] = {"unreachable": "nothing came"}


@pytest.mark.parametrize(
    ("kind", "published", "lacks", "unheard", "why"),
    (
        (SWITCHOVER, SAYS, SAYS, "", ""),
        (SWITCHOVER, AWAY, SAYS, "", "us does not answer: nothing came"),
        (SWITCHOVER, SAYS, AWAY, "", "eu does not answer: nothing came"),
        (SWITCHOVER, SAYS, {**SAYS, "missing": ["x"]}, "", "eu has not loaded x"),
        (SWITCHOVER, {**SAYS, "down": ["x (UNREACHABLE)"]}, SAYS, "", "links that are down: x (UNREACHABLE)"),
        (SWITCHOVER, SAYS, SAYS, "ap: 1 of 1", "not every broker has heard"),
        (FAILOVER, AWAY, SAYS, "", ""),
        (FAILOVER, AWAY, {**SAYS, "missing": ["x"]}, "", ""),
        (SWITCHOVER, SAYS, {**SAYS, "unlisted": "not within 1 s"}, "", "eu could not read which topics"),
        (FAILOVER, AWAY, {**SAYS, "unlisted": "not within 1 s"}, "", ""),
        (FAILOVER, AWAY, SAYS, "us: 1 of 1", "--force fails over all the same"),
        (DRILL, AWAY, SAYS, "", "us does not answer"),
        (DRILL, {**SAYS, "down": ["x"]}, SAYS, "us: 1 of 1", ""),
    ),
)
def test_what_cannot_be_moved_now(
    kind: str, published: dict[str, Any], lacks: dict[str, Any], unheard: str, why: str
) -> None:
    moves = Verdict(what=MOVES, source="us")
    found = with_costs(WantedMoves(kind=kind, to="eu"), moves, published, lacks, unheard)
    assert (found.what == CANNOT) == bool(why) and why in found.because
    nobody = with_costs(WantedMoves(kind=kind, to="eu"), moves, SAYS, SAYS, "", takes_over=False)
    assert nobody.what == CANNOT and "no broker of eu holds a lease" in nobody.because
    forced = with_costs(WantedMoves(kind=FAILOVER, to="eu", force=True), moves, AWAY, SAYS, "us: 1 of 1")
    assert forced.what == MOVES


@pytest.mark.parametrize(
    "wanted",
    (
        WantedMoves(kind=REJOIN, to="eu"),
        WantedMoves(kind=SWITCHOVER, to=""),
        WantedMoves(kind=SWITCHOVER, to="us", region="us"),
    ),
)
def test_what_makes_no_sense_is_refused(wanted: WantedMoves) -> None:
    with pytest.raises(NotAllowed):
        wanted.check()


@pytest.mark.parametrize(("takes_over", "what"), ((True, MOVES), (None, CANNOT), (False, CANNOT)))
def test_a_failover_needs_a_lease_in_the_target_and_not_its_answer(takes_over: bool | None, what: str) -> None:
    moves = Verdict(what=MOVES, source="us")
    found = with_costs(WantedMoves(kind=FAILOVER, to="eu"), moves, AWAY, AWAY, "", takes_over=takes_over)
    assert found.what == what and "eu does not answer: nothing came" in found.because


@pytest.mark.parametrize(
    ("found", "to", "others"),
    (
        ([(MOVES, ""), (MOVES, "")], "eu", {}),
        ([(CANNOT, "it lacks too much"), (MOVES, "")], "ap", {"eu": "it lacks too much"}),
        ([(MOVES, "not known"), (MOVES, "")], "ap", {"eu": "not known"}),
        ([(MOVES, "not known"), (CANNOT, "no lease")], "eu", {}),
        ([(MOVES, "not known"), (MOVES, "nor here")], "eu", {}),
        ([(MOVES, ""), (THERE, "active in ap already")], "ap", {}),
        ([(CANNOT, "not in eu"), (CANNOT, "no lease")], "eu", {"ap": "no lease"}),
        ([(PASSED, "active in sa"), (PASSED, "active in sa")], "eu", {}),
        ([(PASSED, "nothing to rehearse"), (MOVES, "")], "ap", {"eu": "nothing to rehearse"}),
    ),
)
def test_of_several_regions_the_first_takes_it_that_may(
    found: list[tuple[str, str]], to: str, others: dict[str, str]
) -> None:
    candidates = [
        MoveTarget(to=region, verdict=Verdict(what=what, because=because))
        for region, (what, because) in zip(("eu", "ap"), found, strict=True)
    ]
    first, why = chosen(candidates)
    assert (first.to, why) == (to, others)


def test_what_was_begun_goes_on_whichever_region_is_named_first() -> None:
    begun = MoveTarget(to="ap", verdict=Verdict(what=MOVES, goes_on=True))
    assert chosen([MoveTarget(to="eu", verdict=Verdict(what=MOVES)), begun])[0] is begun


@pytest.mark.parametrize(
    ("bounds", "risk", "says"),
    (
        ({}, {"messages": None, "age_s": None}, ""),
        ({"risk_messages": 100}, {"messages": 100, "age_s": 900.0}, ""),
        ({"risk_messages": 100}, {"messages": 101, "age_s": 0.0}, "lacks 101 messages"),
        ({"risk_messages": 100}, {"messages": None, "age_s": None}, "not known how much eu lacks"),
        ({"risk_s": 5.0}, {"messages": 7, "age_s": 5.1}, "5.1 s old"),
        ({"risk_s": 5.0}, {"messages": 0, "age_s": 5.1}, ""),
    ),
)
def test_a_failover_moves_nothing_of_which_more_is_missing_than_is_wanted(
    bounds: dict[str, Any], risk: dict[str, Any], says: str
) -> None:
    moves, begun = Verdict(what=MOVES, source="us"), Verdict(what=MOVES, source="us", goes_on=True)
    failover = WantedMoves(kind=FAILOVER, to="eu", **bounds)
    found = within_risk(failover, moves, risk)
    assert found.what == (CANNOT if says else MOVES) and says in found.because
    assert within_risk(failover, begun, risk) is begun
    assert within_risk(replace(failover, kind=SWITCHOVER), moves, risk) is moves
