"""`heliograph dr … --region`: a namespace that cannot be moved says why and keeps no other from it; whatever ends the
command, the same one goes on with what is left.
"""

from __future__ import annotations

import io
import json
import threading
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from heliograph.cli.regions import dr_operations, many_namespaces
from heliograph.cli.regions.dr_operations import OperationRequest
from heliograph.cli.regions.many_namespaces import PLAN, carry_out, full_parts, plan_lines
from heliograph.cli.rest import RestRefused
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError

STEPS = ("check", "drain", "deliver", "flip", "open")
RISK = {"messages": 2, "bytes": 20, "age_s": 1.0, "last": None}


def refused(code: int, reason: str) -> RestRefused:
    body = io.BytesIO(json.dumps({"reason": reason}).encode())
    return RestRefused(urllib.error.HTTPError("http://b", code, "", Message(), body))


class Region:
    """What a broker answers of namespaces whose operations go a step each time.

    trouble: namespace -> step -> why it waits there, for ever.
    """

    pause_s = 0.0

    def __init__(self, *names: str) -> None:
        self.active = dict.fromkeys(names, "us")
        self.operations = dict[str, dict[str, Any]]()
        self.trouble = dict[str, dict[str, str]]()
        self.cannot = dict[str, str]()
        self.once = dict[str, list[Exception]]()
        """Namespace -> what its next calls raise."""
        self.begun, self.cancelled = list[str](), list[str]()
        self.asked, self.goes_through = Counter[str](), False
        """Namespace -> changing requests. goes_through: it does one step behind the other, where that is asked for, as
        a broker of this version does.
        """
        self.load: dict[str, Any] | None = {"brokers": [], "bookies": []}
        self.lock = threading.Lock()
        self.query = dict[str, Any]()
        """What the last plan was asked with."""
        self.bounded = True
        """It knows of bounds, as a broker of this version does."""
        self.risk = dict[str, dict[str, Any]]()
        """Namespace -> what is at risk when it is begun; RISK else."""
        self.others = dict[str, dict[str, str]]()
        """Namespace -> regions that are named before the one that takes it, and why they do not."""

    def get(self, path: str, **query: Any) -> Any:
        if path == PLAN:
            self.query = query
            bounds = {name: query.get(name) for name in ("risk_messages", "risk_s")} if self.bounded else {}
            return self._plan(query["to"]) | bounds
        namespace = "/".join(path.split("/")[4:6])
        if namespace not in self.active:
            raise refused(404, "Namespace does not exist")
        return {"active": self.active[namespace], "operation": self.operations.get(namespace), "to_rejoin": {}}

    def _plan(self, to: str) -> Any:
        rows = list[Any]()
        for name, active in self.active.items():
            others = self.others.get(name, {})
            takes = next(region for region in to.split(",") if region not in others)
            rows.append({**self._planned(name, active, takes), "to": takes, "others": others})
        passed = [{"because": "active in ap", "count": 1, "some": ["t/asia"]}]
        return {"namespaces": rows, "passed": passed, "configuration": "", "load": self.load}

    def _planned(self, name: str, active: str, to: str) -> dict[str, Any]:
        row = {"namespace": name, "from": active, "epoch": 1, "operation": 0, "goes_on": False, "because": ""}
        if why := self.cannot.get(name):
            return {**row, "verdict": "cannot", "because": why}
        return {**row, "verdict": "there" if active == to else "moves", "topics": 5, "at_risk": RISK}

    def post(self, path: str, given: Any = None, *, through_s: int = 0) -> Any:
        parts = path.split("/")
        namespace, what = "/".join(parts[4:6]), parts[-1]
        with self.lock:
            if errors := self.once.get(namespace):
                raise errors.pop(0)
            if namespace not in self.active:
                raise refused(404, f"namespace {namespace} does not exist")
            self.asked[namespace] += 1
            found = getattr(self, f"_{what}")(namespace, given)
            while through_s and self.goes_through and found["state"] == "running" and not found["waiting"]:
                found = self._advance(namespace, None)
            return found

    def _operations(self, namespace: str, given: Any) -> Any:
        if given["dry_run"]:
            return {"state": "planned", "cost": {"at_risk": self.risk.get(namespace, RISK)}}
        old = self.operations.get(namespace)
        if old is None or old["state"] != "running":
            if self.active[namespace] == given["to"]:
                raise refused(412, f"{namespace} is active in {given['to']} already")
            if given.get("active", self.active[namespace]) != self.active[namespace]:
                raise refused(412, f"it is active in {self.active[namespace]}")
            self.begun.append(namespace)
            self.operations[namespace] = {
                "id": 1,
                "namespace": namespace,
                "kind": given["kind"],
                "source": self.active[namespace],
                "target": given["to"],
                "state": "running",
                "step": STEPS[0],
                "waiting": "",
                "steps": [],
                "report": {"rto_s": 0.5},
            }
        return dict(self.operations[namespace])

    def _advance(self, namespace: str, _: Any) -> Any:
        op = self.operations[namespace]
        if op["state"] != "running":
            return dict(op)
        op["waiting"] = self.trouble.get(namespace, {}).get(op["step"], "")
        if not op["waiting"]:
            op["steps"] = [*op["steps"], {"step": op["step"], "found": "well"}]
            if op["step"] == "flip" and op["kind"] != "drill":
                self.active[namespace] = op["target"]
            done = len(op["steps"])
            op["step"], op["state"] = (STEPS[done], "running") if done < len(STEPS) else ("", "done")
        return dict(op)

    def _cancel(self, namespace: str, _: Any) -> Any:
        self.cancelled.append(namespace)
        self.operations[namespace]["state"] = "cancelled"
        return dict(self.operations[namespace])


def give(region: Region, **wanted: Any) -> tuple[int, Any]:
    """The exit code, and the report."""
    printed = list[Any]()
    output = Output(True)
    output.rows = lambda columns, found, value: printed.append(value)  # type: ignore[method-assign]
    given = {"kind": "switchover", "to": "eu", "region": "us", "yes": True, **wanted}
    try:
        carry_out(cast(Any, region), output, OperationRequest(**given))
        code = 0
    except typer.Exit as ended:
        code = ended.exit_code
    return code, printed[-1] if printed else None


def results(report: Any) -> dict[str, str]:
    return {row["namespace"]: row["result"] for row in report["namespaces"]}


NAMES = [f"t/n{number:02}" for number in range(20)]


def test_all_of_a_region_are_moved_so_many_at_once_and_again_there_is_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region, together, pools = Region(*NAMES), threading.Barrier(4), list[int]()

    def post(path: str, given: Any = None, **query: Any) -> Any:
        found = Region.post(region, path, given, **query)
        if given is not None:  # it has begun: nobody goes on before three others have
            together.wait()
        return found

    def pool(most: int) -> ThreadPoolExecutor:
        pools.append(most)
        return ThreadPoolExecutor(most)

    monkeypatch.setattr(region, "post", post)
    monkeypatch.setattr(many_namespaces, "ThreadPoolExecutor", pool)
    code, report = give(region, parallel=4)
    assert code == 0 and results(report) == dict.fromkeys(NAMES, "done") and report["counts"] == {"done": 20}
    assert set(region.active.values()) == {"eu"} and pools == [4]
    code, report = give(region)
    assert code == 0 and results(report) == dict.fromkeys(NAMES, "there") and len(region.begun) == 20


def test_a_namespace_takes_two_requests_beside_the_plan() -> None:
    region = Region(*NAMES)
    region.goes_through = True
    code, _ = give(region)
    assert code == 0 and region.asked == dict.fromkeys(NAMES, 2)


def test_one_that_cannot_be_moved_says_why_and_is_not_half_done() -> None:
    """By the plan it is not begun; one that waits too long is cancelled; a failover that does stays where it is."""
    region = Region(*NAMES[:4])
    region.cannot[NAMES[1]] = "it is not in eu"
    region.trouble[NAMES[2]] = {"deliver": "9 messages are on their way"}
    code, report = give(region, wait_s=0.01)
    assert code == 1
    assert results(report) == {NAMES[0]: "done", NAMES[1]: "cannot", NAMES[2]: "failed", NAMES[3]: "done"}
    assert region.cancelled == [NAMES[2]] and region.active[NAMES[2]] == "us" and NAMES[1] not in region.begun
    assert "9 messages" in report["namespaces"][2]["because"] and "us goes on" in report["namespaces"][2]["because"]
    region.trouble.clear()
    region.cannot.clear()
    code, report = give(region)
    assert code == 0 and results(report)[NAMES[2]] == "done" and results(report)[NAMES[0]] == "there"
    lost = Region(*NAMES[:2])
    lost.trouble[NAMES[0]] = {"drain": "its lease has not ended"}
    code, report = give(lost, kind="failover", wait_s=0.01)
    assert code == 1 and not lost.cancelled and "the same command again" in report["namespaces"][0]["because"]


def test_what_a_broker_cannot_do_now_is_asked_again_and_what_it_refuses_is_not() -> None:
    region = Region(*NAMES[:3])
    region.once = {
        NAMES[0]: [refused(503, "no majority"), ConfigError("no broker answers")],
        NAMES[1]: [refused(412, "a drill is under way")],
    }
    code, report = give(region)
    assert code == 1 and results(report) == {NAMES[0]: "done", NAMES[1]: "failed", NAMES[2]: "done"}
    assert "a drill is under way" in report["namespaces"][1]["because"]


LONG_S = 50.0


@pytest.mark.parametrize("kind", ("switchover", "drill"))
@pytest.mark.parametrize("after", (False, True), ids=("refused", "answer-lost"))
@pytest.mark.parametrize("at", range(len(STEPS)))
def test_an_operation_longer_than_the_patience_goes_on_after_a_broker_was_away_once(
    monkeypatch: pytest.MonkeyPatch, at: int, after: bool, kind: str
) -> None:
    """Each step takes nearly all of it."""
    region, clock, calls = Region(*NAMES[:3]), [0.0], list[str]()

    def post(path: str, given: Any = None, **query: Any) -> Any:
        if not path.endswith("advance"):
            found = Region.post(region, path, given, **query)
            region.operations[found["namespace"]]["report"]["signed"] = {"passed": True, "because": []}
            return found
        calls.append(path)
        away = calls.count(path) == at + 1 and NAMES[0] in path
        if away and not after:
            raise (ConfigError("connection refused") if at % 2 else refused(503, "no majority"))
        clock[0] += LONG_S
        found = Region.post(region, path, given, **query)
        if away:
            raise ConfigError("connection reset")
        return found

    monkeypatch.setattr(region, "post", post)
    for module in (many_namespaces, dr_operations):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    code, report = give(region, kind=kind, wait_s=LONG_S + 1, parallel=1)
    assert (code, set(results(report).values())) == (0, {"done"}), report
    assert not region.cancelled and region.begun == NAMES[:3]


def test_one_that_waits_for_ever_is_given_up_though_a_broker_is_away_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region, clock = Region(NAMES[0]), [0.0]
    region.trouble[NAMES[0]] = {"deliver": "9 messages are on their way"}

    def post(path: str, given: Any = None, **query: Any) -> Any:
        clock[0] += 1.0
        if clock[0] % 3 == 0 and not path.endswith("cancel"):
            raise refused(503, "no majority")
        return Region.post(region, path, given, **query)

    monkeypatch.setattr(region, "post", post)
    for module in (many_namespaces, dr_operations):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    code, _ = give(region, wait_s=60.0)
    assert code == 1 and region.cancelled == NAMES[:1] and clock[0] < 300.0


def test_where_one_answers_again_the_rest_is_begun() -> None:
    region = Region(*NAMES[:3])
    work = many_namespaces._Work(cast(Any, region), Output(True), OperationRequest(kind="switchover", to="eu"), 3)
    work._lost = "no broker answers"
    row = region._plan("eu")["namespaces"]
    assert work._one(row[0])["result"] == "failed"
    work._patiently(row[1], many_namespaces._Line(Output(True), work._stop, NAMES[1], work._found))
    assert work._one(row[2])["result"] == "done"


def test_where_no_broker_answers_any_more_only_the_first_is_waited_for() -> None:
    region = Region(*NAMES)
    region.once = {name: [ConfigError("no broker answers")] * 1000 for name in NAMES}
    code, report = give(region, parallel=1, wait_s=-1.0)
    assert code == 1 and set(results(report).values()) == {"failed"}
    assert sum(1000 - len(errors) for errors in region.once.values()) == 1


def test_one_that_is_deleted_midway_is_gone_and_one_that_somebody_else_moved_is_there() -> None:
    region = Region(*NAMES[:3])
    plan = region._plan("eu")
    region._plan = lambda to: plan  # type: ignore[method-assign]
    del region.active[NAMES[0]]
    region.active[NAMES[1]] = "eu"
    code, report = give(region)
    assert code == 0 and results(report) == {NAMES[0]: "gone", NAMES[1]: "there", NAMES[2]: "done"}


def test_one_that_was_moved_elsewhere_since_the_plan_is_left_there() -> None:
    region = Region(*NAMES[:3])
    plan = region._plan("eu")
    region._plan = lambda to: plan  # type: ignore[method-assign]
    region.active[NAMES[0]] = "ap"
    region.operations[NAMES[1]] = {"kind": "failover", "target": "ap", "state": "running", "step": "fence"}
    region.once = {NAMES[1]: [refused(412, "a failover to ap is under way")]}
    code, report = give(region, kind="failover")
    assert code == 1 and results(report) == {NAMES[0]: "failed", NAMES[1]: "failed", NAMES[2]: "done"}
    assert region.begun == [NAMES[2]] and region.active[NAMES[0]] == "ap"
    first, second, _ = report["namespaces"]
    assert "it is active in ap" in first["because"] and "failover to ap is under way" in second["because"]


def test_interrupted_what_is_under_way_comes_to_its_end_and_the_rest_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    region, begun, heard, post = Region(*NAMES), threading.Event(), threading.Event(), Region.post

    def echo(_: Output, text: str) -> None:
        if "nothing more is begun" in text:
            heard.set()
        if "[1/20]" in text and begun.wait():
            raise KeyboardInterrupt

    def second_waits(path: str, given: Any = None, **query: Any) -> Any:
        if f"/{NAMES[1]}/" in path:
            begun.set()
            heard.wait()
        return post(region, path, given, **query)

    monkeypatch.setattr(many_namespaces, "echo", echo)
    monkeypatch.setattr(region, "post", second_waits)
    code, report = give(region, parallel=1)
    assert code == 130 and report["interrupted"]
    assert results(report) == {**dict.fromkeys(NAMES, "not begun"), NAMES[0]: "done", NAMES[1]: "done"}
    assert region.begun == NAMES[:2]
    code, report = give(region)
    assert code == 0 and set(results(report).values()) == {"done", "there"}


def test_interrupted_twice_it_stands_where_it_is_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    region = Region(*NAMES[:3])
    region.trouble = {NAMES[1]: {"deliver": "9 messages are on their way"}}

    def echo(_: Output, text: str) -> None:
        if "[1/3]" in text or "nothing more is begun" in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(many_namespaces, "echo", echo)
    code, report = give(region, parallel=2, wait_s=600.0)
    stands = report["namespaces"][1]
    assert code == 130 and stands["result"] == "stands", report
    assert "at deliver (9 messages are on their way) and takes no messages" in stands["because"]
    region.trouble.clear()
    assert give(region)[0] == 0 and region.active[NAMES[1]] == "eu"


@pytest.mark.parametrize(
    ("kind", "step", "closed"),
    (
        ("switchover", "check", False),
        ("switchover", "deliver", True),
        ("rejoin", "deliver", False),
        ("failover", "fence", True),
    ),
)
def test_what_stands_says_whether_it_takes_messages(kind: str, step: str, closed: bool) -> None:
    said = many_namespaces._standing({"kind": kind, "step": step, "waiting": ""})
    assert ("takes no messages" in said) == closed and said.startswith(f"its {kind} stands at {step}")


def test_the_plan_has_the_numbers_and_nothing_is_done_without_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    region = Region(*NAMES[:3])
    region.active[NAMES[2]] = "eu"
    region.cannot[NAMES[1]] = "links that are down: x"
    region.load = {
        "brokers": [{"broker": "b", "cpu": 0.91, "memory": 0.2}],
        "bookies": [{"bookie": "k", "writable": True, "free_bytes": 5_000_000_000, "disk": None}],
    }
    wanted = OperationRequest(kind="switchover", to="eu", region="us")
    plan = region.get(PLAN, to="eu")
    said = "\n".join(plan_lines(wanted, plan))
    for part in (
        "1 move, with 5 topics (1 from us)",
        "2 messages (20 bytes) are not in eu yet, the oldest 1.0 s old",
        f"1 cannot be moved:\n    {NAMES[1]}: links that are down: x",
        "1 are active in eu already",
        "1 are passed over, active in ap: t/asia",
        "CPU 91%, memory 20%, 5.0 GB of disk free",
        "above 80% in eu: CPU of b 91%",
    ):
        assert part in said, said
    assert full_parts(plan["load"]) == ["CPU of b 91%"]
    give(region, dry_run=True)
    with pytest.raises(ConfigError, match="--yes"):
        give(region, yes=False)
    assert not region.begun
    capsys.readouterr()


def test_what_is_not_known_to_be_missing_is_said_with_its_age() -> None:
    region = Region(*NAMES[:2])
    plan = region.get(PLAN, to="eu")
    for row in plan["namespaces"]:
        row["at_risk"] = {"messages": None, "bytes": None, "last": {"messages": 7, "bytes": 1, "ago_s": 40.0}}
    plan["load"], plan["namespaces"][1]["because"] = None, "eu does not answer"
    said = "\n".join(plan_lines(OperationRequest(kind="failover", to="eu", region="us"), plan))
    assert "of 2 namespaces it is not known" in said and "14 messages" in said and "40.0 s ago" in said
    assert "it is not known what eu has in use" in said
    assert f"of 1 that move something is not known:\n    {NAMES[1]}: eu does not answer" in said


def test_of_several_regions_each_namespace_goes_to_its_own_and_the_plan_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    region = Region("t/a", "t/b")
    region.others = {"t/b": {"eu": "eu lacks 120 messages, and max_risk is 100"}}
    wanted = OperationRequest(kind="failover", to="eu,ap", region="us", yes=True, max_risk=["100", "5s"])
    carry_out(cast(Any, region), Output(), wanted)
    assert region.active == {"t/a": "eu", "t/b": "ap"}
    assert (region.query["risk_messages"], region.query["risk_s"]) == (100, 5)
    said = capsys.readouterr().out
    for words in ("1 to eu", "1 to ap", "t/b to ap: eu: eu lacks 120 messages, and max_risk is 100"):
        assert words in said


@pytest.mark.parametrize("dry_run", (False, True))
def test_a_bound_that_a_broker_of_an_earlier_version_does_not_know_moves_nothing(dry_run: bool) -> None:
    region = Region("t/a")
    region.bounded = False
    wanted = OperationRequest(kind="failover", to="eu", region="us", yes=True, max_risk=["100"], dry_run=dry_run)
    with pytest.raises(ConfigError, match="knows no --max-risk"):
        carry_out(cast(Any, region), Output(), wanted)
    assert not region.begun


@pytest.mark.parametrize(
    ("bound", "risk", "why"),
    [
        ("100", {**RISK, "messages": 101}, "lacks 101 messages by now"),
        ("5s", {**RISK, "age_s": 6.0}, "is 6.0 s old by now"),
        ("5s", {**RISK, "messages": None}, "not known any more"),
    ],
)
def test_a_bound_is_looked_at_again_when_a_namespace_is_begun(
    bound: str, risk: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan was well within it."""
    region = Region("t/a", "t/b")
    region.risk["t/b"] = risk
    wanted = OperationRequest(kind="failover", to="eu", region="us", yes=True, max_risk=[bound])
    with pytest.raises(typer.Exit) as ended:
        carry_out(cast(Any, region), Output(), wanted)
    assert ended.value.exit_code == 1 and region.begun == ["t/a"] and region.active["t/b"] == "us"
    assert why in capsys.readouterr().out


def test_a_bound_is_of_a_failover_of_many() -> None:
    for wrong in ({"kind": "switchover", "region": "us"}, {"kind": "failover", "namespace": "t/a"}):
        with pytest.raises(ConfigError, match="--max-risk"):
            assert OperationRequest(to="eu", max_risk=["100"], **wrong).several  # type: ignore[arg-type]
