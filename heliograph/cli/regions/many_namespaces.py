"""`dr` for a whole region, a tenant, or the instance: the plan with numbers, many namespaces side by side, one report.

Is: asking for the plan, and carrying out each namespace's own operation, so many at once; what becomes of one that does
not go. Isn't: a verdict, or a step: those are the brokers'.
Invariants: a namespace that cannot be moved keeps no other from it, and a switchover that waits for too long is
cancelled: its region goes on; whatever ends the command, the same one goes on with what is left.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from enum import StrEnum
from typing import Any

import typer

from heliograph.cli.regions.automatic_failover import risk_of
from heliograph.cli.regions.dr_operations import (
    NotDone,
    OperationRequest,
    StepProgress,
    Stopped,
    carried_out,
    echo,
    rejoin_wanted,
)
from heliograph.cli.regions.dr_operations import (
    planned as asked_for,
)
from heliograph.cli.rest import Rest, RestRefused
from heliograph.cli.show import Output, cells, confirm
from heliograph.model.admin_paths import dr_path, namespace_path
from heliograph.model.errors import ConfigError

PLAN = "/heliograph/v1/dr/plan"
FULL = 0.8
"""A machine of the target that has more of something in use is pointed at, and asked about."""
_SILENT_S = 5.0
"""A step that waits for no longer is not spoken of."""
_NAMED = 10
_INTERRUPTED = 130
_CLOSED = frozenset(
    [("switchover", step) for step in ("drain", "deliver", "subscriptions", "flip")]
    + [("failover", step) for step in ("fence", "boundary", "flip")]
)
"""Steps before which the namespace was closed, or is being closed."""

Row = dict[str, Any]


class Result(StrEnum):
    """What became of a namespace; of those that are not moved some are a plan's verdicts."""

    DONE = "done"
    THERE = "there"
    """It is active in the target already, or somebody else has moved it."""
    CANNOT = "cannot"
    FAILED = "failed"
    GONE = "gone"
    """It was deleted meanwhile."""
    STANDS = "stands"
    """It was begun, and its operation is where it is."""
    NOT_BEGUN = "not begun"

    @property
    def good(self) -> bool:
        """Nothing is left to do."""
        return self in (Result.DONE, Result.THERE, Result.GONE)


def carry_out(rest: Rest, output: Output, wanted: OperationRequest) -> None:
    """The plan, a question, the namespaces, the report. Exit code 1 where one could not be moved, 130 where somebody
    has interrupted it.
    """
    asked: dict[str, Any] = {"to": wanted.to, "region": wanted.region, "tenant": wanted.tenant, "force": wanted.force}
    asked |= _bounds(wanted)
    plan = rest.get(PLAN, kind=wanted.kind, **asked)
    if any(plan.get(bound) != asked[bound] for bound in ("risk_messages", "risk_s") if bound in asked):
        raise ConfigError(
            "the broker that was asked knows no --max-risk, and would move what lacks more: ask one of this version "
            "(--admin), or leave it out"
        )
    if wanted.dry_run and output.json:
        output.show(plan)
        return
    for line in plan_lines(wanted, plan):
        echo(output, line)
    if wanted.dry_run:
        return
    moving = [row for row in plan["namespaces"] if row["verdict"] == "moves"]
    full = [to for to, load in _loads(wanted, plan).items() if full_parts(load)]
    if moving and not wanted.yes and (wanted.kind != "drill" or full):
        note = f" (full: {', '.join(full)})" if full else ""
        confirm(f"{wanted.text}: {len(moving)} namespaces{note}. Go on?")
    began = time.monotonic()
    work = _Work(rest, output, wanted, len(moving))
    found = {row["namespace"]: row for row in work.run(moving)}
    rows = [
        found.get(row["namespace"], {**_named(row), "result": _unmoved(row), "because": row["because"]})
        for row in plan["namespaces"]
    ]
    _report(output, wanted, plan, rows, time.monotonic() - began, interrupted=work.interrupted)
    if work.interrupted:
        raise typer.Exit(_INTERRUPTED)
    if any(not row["result"].good for row in rows):
        raise typer.Exit(1)


# -- the plan ----------------------------------------------------------------------------------------------------------


def plan_lines(wanted: OperationRequest, plan: Mapping[str, Any]) -> Iterator[str]:
    """The plan for people, line by line."""
    rows: Sequence[Row] = plan["namespaces"]
    moving = [row for row in rows if row["verdict"] == "moves"]
    yield f"{wanted.text}: {len(rows)} namespaces"
    if plan["configuration"]:
        yield f"  {plan['configuration']}"
    topics = sum(row.get("topics") or 0 for row in moving)
    sources = ", ".join(f"{n} from {region}" for region, n in sorted(Counter(row["from"] for row in moving).items()))
    what = "are rehearsed" if wanted.kind == "drill" else "move"
    yield f"  {len(moving)} {what}, with {topics} topics{f' ({sources})' if moving else ''}"
    if begun := sum(row["goes_on"] for row in moving):
        yield f"  {begun} of them were begun before, and go on where they stand"
    for to, here in _by_target(wanted, moving).items():
        if "," in wanted.to:
            yield f"  {len(here)} to {to}"
        yield from _risk_lines(to, [row["at_risk"] for row in here if "at_risk" in row])
    if later := [row for row in moving if row.get("others")]:
        yield f"  {len(later)} do not go to a region that is named before:"
        for row in later[:_NAMED]:
            why = "; ".join(f"{region}: {because}" for region, because in row["others"].items())
            yield f"    {row['namespace']} to {row['to']}: {why}"
    if warned := [row for row in moving if row["because"]]:
        yield f"  of {len(warned)} that {what} something is not known:"
        yield from (f"    {row['namespace']}: {row['because']}" for row in warned[:_NAMED])
    for to, there in _by_target(wanted, [row for row in rows if row["verdict"] == Result.THERE]).items():
        yield f"  {len(there)} are active in {to} already"
    if cannot := [row for row in rows if row["verdict"] == Result.CANNOT]:
        yield f"  {len(cannot)} cannot be moved:"
        for row in cannot:
            more = "".join(f"; {region}: {because}" for region, because in row.get("others", {}).items())
            yield f"    {row['namespace']}: {row['because']}{more}"
    for other in plan["passed"]:
        names = ", ".join(other["some"][:_NAMED]) + (" …" if other["count"] > _NAMED else "")
        yield f"  {other['count']} are passed over, {other['because']}: {names}"
    for to, load in _loads(wanted, plan).items():
        yield from _load_lines(to, load)


def _by_target(wanted: OperationRequest, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Region -> those that it takes over, or has. A broker of an earlier version names none: all are the one's."""
    found = dict[str, list[Row]]()
    for row in rows:
        found.setdefault(row.get("to", wanted.to), []).append(row)
    return found


def _loads(wanted: OperationRequest, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Region -> what it has in use, of those that may take over."""
    found: dict[str, Any] = plan.get("loads") or {wanted.to: plan["load"]}
    return found


def _risk_lines(to: str, risks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    known = [risk for risk in risks if risk["messages"] is not None]
    unknown = [risk for risk in risks if risk["messages"] is None]
    if known:
        messages, size = (sum(risk[key] for risk in known) for key in ("messages", "bytes"))
        oldest = f", the oldest {max(risk['age_s'] for risk in known):.1f} s old" if messages else ""
        yield f"  {messages} messages ({size} bytes) are not in {to} yet{oldest}"
    if unknown:
        last = [risk["last"] for risk in unknown if risk["last"] is not None]
        heard = ""
        if last:
            messages, ago_s = sum(one["messages"] for one in last), max(one["ago_s"] for one in last)
            heard = f": {messages} messages when they were heard last, up to {ago_s:.1f} s ago, and there may be more"
        yield f"  of {len(unknown)} namespaces it is not known how much is missing in {to}{heard}"


def full_parts(load: Mapping[str, Any] | None) -> list[str]:
    """What of a target has more than FULL in use, or takes nothing more. None: it is not known."""
    load = load or {"brokers": [], "bookies": []}
    shares = [
        (f"{what} of {row[kind]}", row[part])
        for kind, parts in (("broker", ("cpu", "memory")), ("bookie", ("disk",)))
        for row in load[f"{kind}s"]
        for part in parts
        if row[part] is not None
        for what in (part.upper() if part == "cpu" else part,)
    ]
    found = [f"{name} {share:.0%}" for name, share in shares if share > FULL]
    return found + [f"{row['bookie']} takes nothing" for row in load["bookies"] if not row["writable"]]


def _load_lines(to: str, load: Mapping[str, Any] | None) -> Iterator[str]:
    if load is None:
        yield f"  it is not known what {to} has in use: it does not answer"
        return
    brokers, bookies = load["brokers"], load["bookies"]
    parts = [
        f"{name} {highest:.0%}"
        for name, of, part in (("CPU", brokers, "cpu"), ("memory", brokers, "memory"), ("disk", bookies, "disk"))
        if (highest := max((row[part] for row in of if row[part] is not None), default=None)) is not None
    ]
    free = min((row["free_bytes"] for row in bookies if row["free_bytes"]), default=0)
    yield (
        f"  {to} now, the highest of what {len(brokers)} brokers and {len(bookies)} bookies say: "
        f"{', '.join([*parts, f'{free / 1e9:.1f} GB of disk free'])}"
    )
    if full := full_parts(load):
        yield f"  above {FULL:.0%} in {to}: {', '.join(full[:_NAMED])}"


# -- the namespaces ----------------------------------------------------------------------------------------------------


class _Line(StepProgress):
    """One namespace's: only what waits for long is spoken of, once a step. told: of each answer."""

    def __init__(self, output: Output, stop: threading.Event, namespace: str, told: Callable[[], None]) -> None:
        super().__init__(output, stop)
        self._answer, self._missed, self.heard = told, False, time.monotonic()
        """heard: when a broker answered last, by `time.monotonic`."""
        self._namespace, self._step, self._since, self._told = namespace, "", 0.0, False

    def passed(self, step: dict[str, Any]) -> None:
        self._step = ""

    def missed(self) -> None:
        """A broker does not answer, or cannot do it now."""
        self._missed = True

    def waits(self, operation: dict[str, Any]) -> None:
        now = time.monotonic()
        if self._missed:
            self.unheard(now - self.heard)
        self._missed, self.heard = False, now
        self._answer()
        if operation["step"] != self._step:
            self._step, self._since, self._told = operation["step"], time.monotonic(), False
        elif not self._told and time.monotonic() - self._since > _SILENT_S:
            self._told = True
            echo(self.output, f"  {self._namespace}: {operation['step']} waits: {operation['waiting']}")


class _Work:
    """Several namespaces side by side, each by one thread."""

    def __init__(self, rest: Rest, output: Output, wanted: OperationRequest, count: int) -> None:
        self._rest, self._output, self._wanted, self._count = rest, output, wanted, count
        self._stop = threading.Event()
        self._lost = ""
        """Why no broker answers any more; "": one does."""
        self._interrupts, self.interrupted = 0, False

    def run(self, rows: Sequence[Row]) -> list[Row]:
        """Every row with its `result`, in the order in which they ended."""
        out = dict[Future[Row], Row]()
        with ThreadPoolExecutor(self._wanted.parallel) as pool:
            futures = {pool.submit(self._one, row): row for row in rows}
            while len(out) < len(futures):
                try:
                    self._heed([future for future in futures if future not in out])
                    wait([future for future in futures if future not in out], return_when=FIRST_COMPLETED)
                    for future, row in futures.items():
                        if future.done() and future not in out:
                            out[future] = _not_begun(row) if future.cancelled() else future.result()
                            self._tell(sum(row["result"] != Result.NOT_BEGUN for row in out.values()), out[future])
                except KeyboardInterrupt:
                    self._interrupts += 1
        return list(out.values())

    def _tell(self, number: int, row: Row) -> None:
        if row["result"] == Result.NOT_BEGUN:
            return
        what = f"{row['seconds']:.1f} s" if row["result"] == Result.DONE else f"{row['result']}: {row['because']}"
        echo(self._output, f"  [{number}/{self._count}] {row['namespace']}: {what}")

    def _heed(self, left: Sequence[Future[Row]]) -> None:
        """Interrupted once, nothing more is begun; twice, what was begun stands where it is."""
        if self._interrupts > 1:
            self._stop.set()
        elif self._interrupts and not self.interrupted:
            self.interrupted = True
            begun = sum(not future.cancel() for future in left)
            echo(
                self._output,
                f"interrupted: nothing more is begun; {begun} namespaces that are under way come to their end "
                "(Ctrl-C again: they stand where they are)",
            )

    def _one(self, row: Row) -> Row:
        began, namespace = time.monotonic(), row["namespace"]
        out: Row = _named(row)
        line = _Line(self._output, self._stop, namespace, self._found)
        if self._lost:
            return {**out, **_failed(self._lost), "seconds": 0.0}
        try:
            out |= self._patiently(row, line)
        except Stopped as stopped:
            out |= {"result": Result.STANDS, "because": _standing(stopped.operation)}
        except ConfigError as error:
            out |= self._given_up(namespace, row.get("to", self._wanted.to), error)
        return {**out, "seconds": round(time.monotonic() - began, 1)}

    def _found(self) -> None:
        self._lost = ""

    def _patiently(self, row: Row, line: _Line) -> Row:
        """Asks again where a broker does not answer, or cannot yet, for `wait_s` since one did: that goes on with what
        was begun.
        """
        while True:
            try:
                return self._moved(row, line)
            except ConfigError as error:
                if not _passes(error) or time.monotonic() > line.heard + self._wanted.wait_s or self._stop.is_set():
                    raise
                line.missed()
                self._stop.wait(self._rest.pause_s)

    def _moved(self, row: Row, line: StepProgress) -> Row:
        wanted = replace(self._wanted, namespace=row["namespace"], to=row.get("to", self._wanted.to))
        planned = {"active": row["from"], "epoch": row["epoch"], "operation": row.get("operation")}
        if wanted.kind == "failback":
            if rejoin_wanted(self._rest, wanted):
                carried_out(self._rest, replace(wanted, kind="rejoin"), line, planned)
            wanted = replace(wanted, kind="switchover")
        if wanted.max_risk and not row["goes_on"] and not line.begun(wanted.kind):
            now = asked_for(self._rest, wanted)["cost"].get("at_risk") or {}
            if why := _above(wanted, now):
                return {"result": Result.CANNOT, "because": why}
        found = carried_out(self._rest, wanted, line, planned)
        report = found["report"]
        if found["state"] != "done":
            return _failed(f"somebody has {found['state']} it meanwhile")
        if wanted.kind == "drill" and not report["signed"]["passed"]:
            return _failed(f"the drill did not pass: {'; '.join(report['signed']['because'])}")
        closed = {"closed_s": report["rto_s"]} if "rto_s" in report else {}
        return {"result": Result.DONE, "because": found["steps"][-1]["found"], "operation": found["id"], **closed}

    def _given_up(self, namespace: str, to: str, error: ConfigError) -> Row:
        """What became of one that does not go to `to`: it is gone, or somebody else has moved it, or it stays where it
        is.
        """
        if not isinstance(error, NotDone | RestRefused):
            self._lost = self._lost or str(error)
            return _failed(str(error))
        try:
            found = self._rest.get(dr_path(namespace))
        except ConfigError:
            if self._gone(namespace):
                return {"result": Result.GONE, "because": "it was deleted meanwhile"}
            return _failed(str(error))
        wanted, operation = self._wanted, found.get("operation") or {}
        running = operation if operation.get("state") == "running" else {}
        if found.get("active") == to and not running and wanted.kind != "drill":
            return {"result": Result.THERE, "because": f"it is active in {to} by now"}
        why = str(error)
        if running.get("kind") == "switchover" and running["target"] == to and wanted.kind != "failover":
            try:
                self._rest.post(f"{dr_path(namespace)}/operations/cancel")
                why = f"waits at {running['step']}: {running['waiting']}; it is cancelled, {running['source']} goes on"
            except ConfigError as refused:
                why = f"{_standing(running)}; it could not be cancelled: {refused}"
        elif running.get("kind") == wanted.kind and running["target"] == to:
            why = _standing(running)
        return _failed(why)

    def _gone(self, namespace: str) -> bool:
        try:
            self._rest.get(namespace_path(namespace))
        except RestRefused as refused:
            return refused.code == 404
        except ConfigError:
            pass
        return False


def _bounds(wanted: OperationRequest) -> dict[str, int]:
    """risk_messages, risk_s: those that were given. Raises ConfigError."""
    found = dict[str, int]()
    for risk in wanted.max_risk:
        found |= risk_of("--max-risk", risk)
    return found


def _above(wanted: OperationRequest, risk: Mapping[str, Any]) -> str:
    """Why a failover that is to begin now would lose more than `--max-risk`; "": it would not. The plan may be minutes
    old. risk: `at_risk` of the namespace.
    """
    bounds, messages = _bounds(wanted), risk.get("messages")
    if messages is None:
        return f"it is not known any more how much {wanted.to} lacks, and --max-risk is set"
    if messages > bounds.get("risk_messages", messages):
        return f"{wanted.to} lacks {messages} messages by now, and --max-risk is {bounds['risk_messages']}"
    age_s = risk.get("age_s") or 0.0
    if messages and age_s > bounds.get("risk_s", age_s):
        oldest = f"the oldest message that {wanted.to} lacks is {age_s:.1f} s old by now"
        return f"{oldest}, and --max-risk is {bounds['risk_s']}s"
    return ""


def _named(row: Row) -> Row:
    return {"namespace": row["namespace"], "from": row["from"], "topics": row.get("topics")}


def _unmoved(row: Row) -> Result:
    return Result.THERE if row["verdict"] == Result.THERE else Result.CANNOT


def _failed(because: str) -> Row:
    return {"result": Result.FAILED, "because": because}


def _not_begun(row: Row) -> Row:
    return {**_named(row), "result": Result.NOT_BEGUN, "because": "interrupted"}


def _passes(error: ConfigError) -> bool:
    """Whether it may be otherwise soon: no broker answers, or it cannot do it now."""
    return error.code >= 500 if isinstance(error, RestRefused) else not isinstance(error, NotDone)


def _standing(operation: Mapping[str, Any]) -> str:
    closed = " and takes no messages" if (operation["kind"], operation["step"]) in _CLOSED else ""
    why = f" ({operation['waiting']})" if operation["waiting"] else ""
    return f"its {operation['kind']} stands at {operation['step']}{why}{closed}: give the same command again"


# -- the report --------------------------------------------------------------------------------------------------------


def _report(
    output: Output,
    wanted: OperationRequest,
    plan: Mapping[str, Any],
    rows: Sequence[Row],
    took_s: float,
    *,
    interrupted: bool,
) -> None:
    counts = Counter(row["result"] for row in rows)
    value = {
        "kind": wanted.kind,
        "to": wanted.to,
        "region": wanted.region,
        "tenant": wanted.tenant,
        "seconds": round(took_s, 1),
        "interrupted": interrupted,
        "counts": dict(counts),
        "passed": plan["passed"],
        "namespaces": rows,
    }
    fields = ("namespace", "from", "topics", "result", "seconds", "closed_s")
    output.rows(
        [*(name.replace("_", " ") for name in fields), "because"],
        [(*cells(row, *fields), "" if row["result"] == Result.DONE else row["because"]) for row in rows],
        value,
    )
    if output.json:
        return
    bad = sum(count for result, count in counts.items() if not result.good)
    text = f"{wanted.text}: {counts[Result.DONE]} done in {took_s:.1f} s, {counts[Result.THERE]} were there"
    if bad:
        text += f"; {bad} are left: the same command goes on with them"
    typer.echo(text)
