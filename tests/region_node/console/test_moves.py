"""The console moves namespaces as the command does: by the same calls, and after numbers were shown and words typed.

The pages run in node, as they are served, upon answers that are given here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.region_node.console.run_pages import calls, shown

RISK = {"messages": 3, "bytes": 30, "age_s": 1.5, "last": None}
UNKNOWN = {"messages": None, "bytes": None, "age_s": None, "last": {"messages": 9, "bytes": 90, "ago_s": 40.0}}
LOAD = {
    "brokers": [{"broker": "eu-b", "cpu": 0.91, "memory": 0.25}],
    "bookies": [{"bookie": "eu-k", "writable": True, "free_bytes": 5 << 30, "disk": 0.4}],
}
NUMBERS = (
    "CPU 91 %, memory 25 %, disk 40 %, 5.0 GiB of disk free",
    "Above 80 % in eu: CPU of eu-b 91 %",
    "3 messages (30 B) are not in eu yet, the oldest 1.5 s old",
)
LED: dict[str, Any] = {"mode": "active-passive", "active": "us", "epoch": 4, "state": "open", "since_ms": 1, "slo": {}}
ONE = calls(tenant="t", namespace="n")
PLAN = "/heliograph/v1/dr/plan"


def row(name: str = "t/n", verdict: str = "moves", **more: Any) -> dict[str, Any]:
    known = {"namespace": name, "from": "us", "epoch": 4, "operation": 6, "verdict": verdict, "because": ""}
    return {**known, "goes_on": False, "topics": 5, "at_risk": RISK, **more}


def plan(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"namespaces": rows, "passed": [], "configuration": "", "load": LOAD, **more}


def operation(kind: str, state: str = "running", step: str = "", **more: Any) -> dict[str, Any]:
    sides = {"source": "us", "target": "eu", "begun_ms": 1000, "ended_ms": 3500 if state != "running" else 0}
    steps = [{"step": "flip", "done_ms": 1, "found": "flipped"}] if state == "done" else []
    return {
        "id": 7,
        "kind": kind,
        "state": state,
        "step": step,
        "waiting": "",
        **sides,
        "steps": steps,
        "report": {},
    } | more


def page(*acts: dict[str, Any], answers: dict[str, Any], **led: Any) -> dict[str, Any]:
    target = {"can_switch": False, "because": "us does not answer", "source": {"unreachable": "-"}, "target": {}}
    status = {**LED, "targets": {"eu": {**target, "at_risk": RISK}}, **led}
    found = {ONE["disasterOf"]: status, ONE["operations"]: [], ONE["reports"]: [], **answers}
    return {"page": "disaster", "rest": ["t", "n"], "acts": acts, "answers": found}


def changed(found: dict[str, Any]) -> list[Any]:
    return [(url, body) for method, url, body in found["asked"] if method != "GET"]


@pytest.mark.parametrize("kind", ("failover", "drill"))
def test_one_namespace_is_moved_after_its_numbers_were_shown_and_words_typed(tmp_path: Path, kind: str) -> None:
    signed = {"passed": False, "because": ["5 entries differ"], "rto_s": 0.4, "rto_lost_s": 6.4}
    after = {"messages": 2, "bytes": 20}
    report = (
        {"signed": signed} if kind == "drill" else {"rto_s": 0.5, "rto_kept": True, "before": after, "after": after}
    )
    steps = [operation(kind, step="fence", waiting="brokers of us"), operation(kind, "done", report=report)]
    answers = {
        f"GET {PLAN}": plan(row()),
        ONE["begin"]: operation(kind, step="measure"),
        ONE["advance"]: {"each": steps},
    }
    open_box = {"press": f"{kind} eu"}
    typed = [open_box, {"type": ["typed", f"{kind} to eu"]}, {"press": "act"}]
    unsure, wrong, done = shown(
        tmp_path,
        page(open_box, {"press": "act"}, answers=answers),
        page(open_box, {"type": ["typed", "eu"]}, {"press": "act"}, answers=answers),
        page(*typed, answers=answers),
    )
    for text in (*NUMBERS, "5 topics"):
        assert text in unsure["dialog"], unsure["dialog"]
    assert changed(unsure) == changed(wrong) == [], "nothing begins before the words are typed"
    asked = [url for _, url, _ in done["asked"]]
    assert f"{PLAN}?kind={kind}&to=eu&region=us&tenant=t" in asked
    begun = {"kind": kind, "to": "eu", "dry_run": False, "active": "us", "epoch": 4, "operation": 6}
    there = "/heliograph/v1/dr/t/n/operations"
    assert changed(done) == [(there, begun), *[(f"{there}/advance?through_s=2", None)] * 2]
    assert "done" in done["text"] and [told["Step"] for told in done["tables"]["Steps done"]] == ["flip"]
    told = {one["What"]: one["How much"] for one in done["tables"]["Report"]}
    if kind == "drill":
        assert told["Verdict"] == "failed: 5 entries differ" and "6.4 s" in told["Back within"]
    else:
        assert told["Closed for"] == "0.5 s, as promised"
        assert told["Known to be missing when it was closed"] == "2 messages (20 B)"


def test_a_failback_is_a_rejoin_and_a_switchover_and_is_offered_where_there_is_a_tail(tmp_path: Path) -> None:
    tail = {"tail": {"messages": 4, "topics_count": 2}, "kept": 3, "lost": 1}
    begun = {"each": [operation("rejoin"), operation("switchover", id=8)]}
    steps = {"each": [operation("rejoin", "done", report=tail), operation("switchover", "done", id=8)]}
    answers = {f"GET {PLAN}": plan(row()), ONE["begin"]: begun, ONE["advance"]: steps}
    acts = [{"press": "failback eu"}, {"type": ["typed", "failback to eu"]}, {"press": "act"}]
    none, back = shown(tmp_path, page(*acts, answers=answers), page(*acts, answers=answers, to_rejoin={"eu": [3]}))
    assert none["dialog"] == "" and not changed(none), "no tail: a switchover is all that it takes"
    assert [body["kind"] for _, body in changed(back) if body] == ["rejoin", "switchover"]
    assert "switchover from us to eu: done" in back["text"]


def test_what_is_refused_or_cannot_be_moved_is_said_and_no_box_is_opened(tmp_path: Path) -> None:
    press = {"press": "failover eu"}
    no = {"status": 403, "reason": "'dora' may not GET this: it takes a super user"}
    passed = [{"because": "active in ap", "count": 1, "some": ["t/n"]}]
    refused, cannot, gone, late = shown(
        tmp_path,
        page(press, answers={f"GET {PLAN}": no}),
        page(press, answers={f"GET {PLAN}": plan(row(verdict="cannot", because="no broker of eu holds a lease"))}),
        page(press, answers={f"GET {PLAN}": plan(passed=passed)}),
        page(
            press,
            {"type": ["typed", "failover to eu"]},
            {"press": "act"},
            answers={f"GET {PLAN}": plan(row(at_risk=UNKNOWN)), ONE["begin"]: {"status": 412, "reason": "it is in ap"}},
        ),
    )
    assert "Refused: 'dora' may not GET this" in refused["text"]
    assert (
        "is not begun: no broker of eu holds a lease." in cannot["text"]
        and "is not begun: active in ap." in gone["text"]
    )
    assert all(one["dialog"] == "" and not changed(one) for one in (refused, cannot, gone))
    assert "9 messages when they were heard last, up to 40 s ago, and there may be more" in late["dialog"]
    assert "it is in ap" in late["text"]


def whole(*acts: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    overview = {"lease": {"not_confirmed": 0}, "events": [], "namespaces": []}
    known = {ONE["clusters"]: ["us", "eu"], ONE["disaster"]: overview}
    fill: list[dict[str, Any]] = [{"type": ["kind", "failover"]}, {"type": ["from", "us"]}, {"type": ["to", "eu"]}]
    plan_first: list[dict[str, Any]] = [*fill, {"submit": "Many namespaces"}]
    return {"page": "disaster", "rest": [], "acts": [*plan_first, *acts], "answers": {**known, **answers}}


def test_a_whole_region_is_moved_each_namespace_by_its_own_operation(tmp_path: Path) -> None:
    rows = [row(f"t/n{number}") for number in range(7)]
    others = [row("t/cannot", "cannot", because="it is not in eu"), row("t/there", "there")]
    passed = [{"because": "active-active", "count": 2, "some": ["t/a", "t/b"]}]
    answers: dict[str, Any] = {f"GET {PLAN}": plan(*rows, *others, passed=passed)}
    for number, one in enumerate(rows):
        there = calls(tenant="t", namespace=one["namespace"].partition("/")[2])
        answers[there["begin"]] = operation("failover", step="measure")
        answers[there["advance"]] = operation("failover", "done", report={"rto_s": 0.5})
        if number == 3:
            answers[there["begin"]] = {"status": 412, "reason": "a failover to ap is under way"}
            answers[there["disasterOf"]] = {**LED, "targets": {}}
        if number == 4:
            answers[there["begin"]] = {"status": 404, "reason": "it does not exist"}
    begin = [{"press": "begin many"}, {"type": ["typed", "failover to eu"]}, {"press": "act"}]
    planned, unsure, done = shown(
        tmp_path,
        whole(answers=answers),
        whole({"press": "begin many"}, {"press": "act"}, answers=answers),
        whole(*begin, answers=answers),
    )
    assert f"{PLAN}?kind=failover&region=us&to=eu&tenant=" in [url for _, url, _ in planned["asked"]]
    for text in ("7 of 9 namespaces move, with 35 topics; 1 are there already; 1 cannot be moved", *NUMBERS[:2]):
        assert text in planned["text"], planned["text"]
    assert "21 messages (210 B) are not in eu yet" in planned["text"]
    first, *_ = planned["tables"]["Namespaces of the plan"]
    assert (first["Namespace"], first["Moves"], first["Why"]) == ("t/cannot", "no", "it is not in eu")
    assert planned["tables"]["Passed over"][0]["How many"] == "2"
    assert not changed(planned) and not changed(unsure)
    assert "35 topics" in unsure["dialog"] and NUMBERS[1] in unsure["dialog"]
    assert "5 done in" in done["text"] and "2 are left" in done["text"]
    results = {one["Namespace"]: (one["Result"], one["Closed for"], one["Because"]) for one in done["tables"]["Report"]}
    assert results["t/n0"] == ("done", "0.5 s", "") and results["t/n3"] == (
        "failed",
        "",
        "a failover to ap is under way",
    )
    assert results["t/n4"][0] == "gone" and results["t/cannot"] == ("cannot", "", "it is not in eu")
    assert [body["kind"] for _, body in changed(done) if body] == ["failover"] * 7


def test_a_switchover_that_waits_for_too_long_is_cancelled_and_the_rest_goes_on(tmp_path: Path) -> None:
    """As the command does it; here another one was begun meanwhile, which is as good a reason."""
    there = calls(tenant="t", namespace="n0")
    running = operation("switchover", step="deliver", waiting="9 messages are on their way")
    answers = {
        f"GET {PLAN}": plan(row("t/n0")),
        there["begin"]: running,
        there["advance"]: {**running, "id": 8},
        there["disasterOf"]: {**LED, "targets": {}, "operation": running},
        there["cancel"]: operation("switchover", "cancelled"),
    }
    begin = [{"press": "begin many"}, {"type": ["typed", "switchover to eu"]}, {"press": "act"}]
    kind: list[dict[str, Any]] = [{"type": ["kind", "switchover"]}, {"submit": "Many namespaces"}]
    (done,) = shown(tmp_path, whole(*kind, *begin, answers=answers))
    (told,) = done["tables"]["Report"]
    assert told["Result"] == "failed" and "it is cancelled, us goes on" in told["Because"], told
    assert changed(done)[-1][0].endswith("/operations/cancel")
