"""`dr`: disaster recovery: which region a namespace is active in, what a move would cost, and moving it.

Is: asking a broker for one step after the other, and showing each. Isn't: a step, or a rule: those are the brokers',
and what was done is in the global configuration. So a command that was interrupted goes on where it was when it is
given again, here or on another machine.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Annotated, Any

import typer

from heliograph.cli.calls import Call
from heliograph.cli.groups import add, group
from heliograph.cli.regions.automatic_failover import OR_OFF, Auto, automatic_text, hold, seconds_of, set_automatic
from heliograph.cli.regions.dr_operations import (
    DryRun,
    OperationRequest,
    Wait,
    Yes,
    echo,
    operate,
    planned,
    rejoin_wanted,
    say_configuration,
    say_cost,
)
from heliograph.cli.regions.many_namespaces import carry_out
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, cells, confirm, done, table, when
from heliograph.model.admin_paths import DR, dr_path, namespace_path, path_of
from heliograph.model.errors import ConfigError
from heliograph.model.topic_names import TopicName

Namespace = Annotated[str, typer.Argument(help="tenant/namespace.")]


def register(app: typer.Typer) -> None:
    dr = group(app, "dr", "Disaster recovery: switch a namespace to another region, fail over, come back.")
    add(dr, status=status, set=set_active, unset=unset, switchover=switchover, failover=failover, rejoin=rejoin)
    add(dr, failback=failback, cancel=cancel, history=history, drill=drill, reports=reports, verify=verify)
    add(dr, hold=hold, delete=delete, undelete=undelete, deletions=deletions)
    add(dr, subscriptions=subscriptions, subscription_set=subscription_set, subscription_unset=subscription_unset)
    add(dr, subscription_move=subscription_move, subscription_cancel=subscription_cancel)


_SUBSCRIPTION = f"{DR}/subscriptions/{{topic}}/{{subscription}}"


# -- what there is -----------------------------------------------------------------------------------------------------


def status(
    rest: Rest,
    output: Output,
    namespace: Annotated[str, typer.Argument(help="tenant/namespace; none given: all active-passive ones.")] = "",
) -> None:
    """Show who is active, what is at risk, and whether another region could take over now."""
    found = rest.get(dr_path(namespace) if namespace else "/heliograph/v1/dr")
    if output.json:
        output.show(found)
    elif not namespace:
        _say_all(found)
    elif found["mode"] == "active-active":
        _say_active_active(output, namespace, found)
    else:
        _say_active_passive(output, namespace, found)


def _say_all(found: dict[str, Any]) -> None:
    same = ("namespace", "active", "epoch", "state")
    lines = [
        (*cells(n, *same, "writable_here", "lease_left_s"), round(n.get("at_risk_s", 0.0), 1), _silence(n))
        for n in found["namespaces"]
    ]
    table((*same, "takes messages here", "lease left s", "at risk s", "silent s"), lines)
    if promises := found.get("promises"):
        promised = [
            (*cells(n, "namespace", "rpo_s"), round(n["at_risk_s"], 1), _silence(n), _promise(n)) for n in promises
        ]
        table(("active in every region", "promised s", "at risk s", "silent s", "promise"), promised)


def _promise(row: dict[str, Any]) -> str:
    return "broken" if row["slo_broken"] else "kept"


def _say_active_active(output: Output, namespace: str, found: dict[str, Any]) -> None:
    promise = {"promise": f"{found['slo']['rpo_s']:g} s, {_promise(found)}"} if found.get("slo") else {}
    output.show({"namespace": namespace, "mode": found["mode"], "regions": ", ".join(found["regions"]), **promise})
    say_configuration(found)
    for title, lags in (
        ("lost with this region, not in", found["at_risk"]),
        ("missing here, if lost now", found.get("lacks", {})),
    ):
        table((title, *_LAG), [(region, *_lag(lag)) for region, lag in lags.items()])


def _say_active_passive(output: Output, namespace: str, found: dict[str, Any]) -> None:
    operation = found["operation"]
    running = "-"
    if operation and operation["state"] == "running":
        running = f"{operation['kind']} to {operation['target']}: {operation['step']} ({operation['waiting']})"
    output.show(
        {
            "namespace": namespace,
            **{key: found[key] for key in ("mode", "active", "epoch", "state")},
            **({"not effective yet": unheard} if (unheard := found.get("unheard")) else {}),
            **({"takes nothing": f"{asks}: `heliograph dr set {namespace}`"} if (asks := found["asks"]) else {}),
            "under way": running,
            **_automatic(namespace, found.get("automatic")),
        }
    )
    say_configuration(found)
    lines = []
    for region, target in found["targets"].items():
        lag = target["source"] if "unreachable" not in target["source"] else target["target"]
        at_risk = {**lag, "at_risk": target.get("at_risk")}
        numbers = _lag(at_risk) if "unreachable" not in lag else ("?",) * len(_LAG)
        lines.append((region, target["can_switch"], target["because"] or "-", *numbers))
    table(("can take over", "planned, now", "because", *_LAG), lines)


def _automatic(namespace: str, found: dict[str, Any] | None) -> dict[str, str]:
    """What is known of its failing over by itself."""
    if not found:
        return {"automatic failover": "off"}
    rows = {"automatic failover": automatic_text(namespace, found)}
    if found["held"]:
        rows["held"] = found["held"]
    if found["lost_s"]:
        rows["lost for"] = f"{found['lost_s']:.0f} s"
    return {**rows, "not failed over": found["said"]} if found["said"] else rows


_LAG = ("messages", "bytes", "age s", "silent s", "topics unheard")


def _lag(lag: dict[str, Any]) -> tuple[Any, ...]:
    age_s = lag.get("age_s", lag.get("age_s_max", 0.0))
    counts = lag["messages"], lag["bytes"]
    if (risk := lag.get("at_risk")) is not None and risk["messages"] is None:
        counts = f"? ({lag['messages']})", f"? ({lag['bytes']})"
    return *counts, round(age_s, 1), _silence(lag), len(lag.get("unheard", ()))


def _silence(row: dict[str, Any]) -> Any:
    """How old the row's numbers are; "-": as good as now."""
    return round(row["silent_s"], 1) if row.get("silent_s") else "-"


@Call("GET", f"{DR}/operations")
def history(namespace: Namespace, answer: list[dict[str, Any]]) -> None:
    """Show what was done: switchovers, failovers, rejoins, with their numbers."""
    columns = ("id", "what", "from", "to", "by", "ended", "seconds", "result")
    lines = [
        (
            *cells(op, "id", "kind", "source", "target", "by"),
            when(op["ended_ms"]),
            (op["ended_ms"] - op["begun_ms"]) / 1000,
            op["state"] if op["state"] != "done" else op["steps"][-1]["found"],
        )
        for op in answer
    ]
    table(columns, lines)


# -- active-passive ----------------------------------------------------------------------------------------------------


def set_active(
    rest: Rest,
    output: Output,
    namespace: Namespace,
    active: Annotated[
        str, typer.Option("--active", help="The region that takes messages; need not be named with --auto alone.")
    ] = "",
    rpo_s: Annotated[
        float, typer.Option("--rpo", help="Promise: no message is at risk for longer than so many seconds.")
    ] = 0.0,
    rto_s: Annotated[
        float,
        typer.Option(
            "--rto", help="Promise: so many seconds from the loss of a region to the next one's first message."
        ),
    ] = 0.0,
    auto: Auto = None,
) -> None:
    """Make a namespace active-passive: one region takes messages, the others have copies; or change what it
    promises, or whether it fails over by itself.
    """
    slo = {key: value for key, value in (("rpo_s", rpo_s), ("rto_s", rto_s)) if value}
    if auto and not slo:  # it goes on promising what it does
        now = rest.get(dr_path(namespace))
        slo = now["slo"] if now["mode"] == "active-passive" else {}
    if not active and not auto:
        raise ConfigError("name the region that takes messages with --active")
    found, says = dict[str, Any](), list[str]()
    if active:
        found = rest.put(dr_path(namespace), {"active": active, "slo": slo})
        says.append(f"{namespace} is active in {found['active']} under epoch {found['epoch']}")
        if unheard := found.get("unheard"):
            says.append(f"it is not effective yet, whoever has not heard of it takes messages: {unheard}")
    if auto:
        found["automatic"], text = set_automatic(rest, namespace, auto)
        says.append(text)
    output.told(found, "\n".join(says))


@Call("DELETE", DR, said="{namespace} is active in all of its regions")
def unset(namespace: Namespace) -> None:
    """Make a namespace active-active again: every region takes messages."""


# -- moving it ---------------------------------------------------------------------------------------------------------


def switchover(rest: Rest, output: Output, wanted: OperationRequest = OperationRequest(kind="switchover")) -> None:
    """Planned: drain the active region, bring the other up to date, flip. Nothing is lost and nothing comes twice.

    A whole region, first what it would do: heliograph dr switchover --region us --to eu --dry-run
    """
    if wanted.several:
        carry_out(rest, output, wanted)
    else:
        operate(rest, output, wanted)


def failover(
    rest: Rest,
    output: Output,
    wanted: OperationRequest = OperationRequest(kind="failover"),
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also where brokers may not have heard that the namespace is active-passive: they confirm until they "
            "hear.",
        ),
    ] = False,
) -> None:
    """Forced: the active region is lost or cut off. What it has not replicated stays there, and is taken in when it
    returns (rejoin).

    A whole region, asked of one that lives: heliograph dr failover --region us --to eu
    """
    wanted = replace(wanted, force=force)
    if wanted.several:
        carry_out(rest, output, wanted)
        return
    if not wanted.dry_run and not wanted.yes:
        plan = planned(rest, wanted)
        say_cost(plan)
        confirm(f"Fail {wanted.namespace} over to {plan['target']}?")
    operate(rest, output, wanted)


def rejoin(
    rest: Rest,
    output: Output,
    namespace: Namespace,
    returned: Annotated[str, typer.Option("--region", help="The region that came back.")] = "",
    dry_run: DryRun = False,
    wait_s: Wait = 120.0,
) -> None:
    """After a failover: count what only the returned region has, see it arrive everywhere, and report. Both tails are
    kept.
    """
    wanted = OperationRequest(kind="rejoin", namespace=namespace, to=returned, dry_run=dry_run, wait_s=wait_s)
    operate(rest, output, wanted)


def failback(
    rest: Rest, output: Output, wanted: OperationRequest = OperationRequest(kind="failback", wait_s=120.0)
) -> None:
    """Rejoin the returned region, then switch over to it. Interrupted in either, the same command goes on.

    All that had been taken away from a region: heliograph dr failback --all --to us
    """
    if wanted.several:
        carry_out(rest, output, wanted)
        return
    if rejoin_wanted(rest, wanted):
        operate(rest, output, replace(wanted, kind="rejoin"))
    operate(rest, output, replace(wanted, kind="switchover"))


def drill(
    rest: Rest,
    output: Output,
    wanted: OperationRequest = OperationRequest(kind="drill", wait_s=600.0),
    out: Annotated[str, typer.Option("--out", help="Write the signed report to this file.")] = "",
    every: Annotated[
        str,
        typer.Option(
            "--every", help="Repeat it by itself: 30m, 12h, 7d, 1w; off: no more. The first one begins at once."
        ),
    ] = "",
) -> None:
    """Rehearse a failover without touching producers; a signed report says whether it would keep what is promised (exit
    code 1: not).

    All namespaces of a tenant: heliograph dr drill --tenant shop --to eu
    """
    if wanted.several:
        if out or every:
            raise ConfigError(
                "--out and --every are of one namespace; `heliograph dr reports NAMESPACE` has the report of each"
            )
        carry_out(rest, output, wanted)
        return
    if every:
        _repeat(rest, output, wanted, every)
        return
    found = operate(rest, output, wanted, show_all=False)
    if wanted.dry_run:
        return
    report = found["report"]["signed"]
    if out:
        _save(out, report)
    if output.json:
        output.show(report)
    if not report["passed"]:
        raise typer.Exit(1)


def _repeat(rest: Rest, output: Output, wanted: OperationRequest, every: str) -> None:
    namespace, dry_run = wanted.namespace, wanted.dry_run
    path = f"{dr_path(namespace)}/schedule"
    if every == "off":
        if not dry_run:
            rest.delete(path)
        done(f"drills of {namespace} {'would' if dry_run else 'do'} not begin by themselves any more")
        return
    given = {"every_s": seconds_of("--every", every, others=OR_OFF), "to": wanted.to}
    found = given if dry_run else rest.put(path, given)
    output.told(
        found,
        f"{namespace} {'would be' if dry_run else 'is'} drilled every {every}; `heliograph dr reports {namespace}` "
        "lists the reports",
    )


def _save(out: str, report: dict[str, Any]) -> None:
    with open(out, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)


def reports(
    rest: Rest,
    output: Output,
    namespace: Namespace,
    number: Annotated[int, typer.Option("--id", help="One report alone, as `verify` takes it; -1: the newest.")] = 0,
    out: Annotated[str, typer.Option("--out", help="Write it to this file.")] = "",
) -> None:
    """List the signed reports of all drills, whoever began them; and when the next one is due."""
    found = rest.get(f"{dr_path(namespace)}/reports")
    if number or out:
        chosen = next((report for report in reversed(found) if number in (0, -1, report["id"])), None)
        if chosen is None:
            raise ConfigError(f"{namespace} has no report {number}: `heliograph dr reports {namespace}` lists them")
        if out:
            _save(out, chosen)
        output.show(chosen)
        return
    lines = [
        (
            *cells(report, "id", "from", "to", "by"),
            when(report["ended_ms"]),
            "passed" if report["passed"] else "; ".join(report["because"]),
            report["rpo"]["seconds"],
            report["rto_lost_s"],
        )
        for report in found
    ]
    output.rows(("id", "from", "to", "by", "ended", "result", "rpo s", "rto s"), lines, found)
    if not output.json:
        try:
            plan = rest.get(f"{dr_path(namespace)}/schedule")
        except ConfigError:
            return  # it has none
        done(
            f"every {plan['every_s']:g} s, the next at {when(plan['next_ms'])} UTC"
            + (f"; the last could not begin: {plan['said']}" if plan["said"] else "")
        )


def verify(
    rest: Rest, output: Output, report: Annotated[str, typer.Argument(help="The file of a drill's report.")]
) -> None:
    """Ask whether a drill's report is as it was signed, by a region of this instance."""
    try:
        with open(report, encoding="utf-8") as file:
            given = json.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{report} cannot be read as a report: {error}") from error
    found = rest.post("/heliograph/v1/dr/verify", given)
    says = "passed" if found["passed"] else "failed"
    output.told(found, f"{report} was signed by {found['signed_by']}, and says: {says}")


@Call(
    "POST",
    f"{DR}/operations/cancel",
    said="the {answer[kind]} of {namespace} is cancelled: {answer[source]} goes on",
    as_json=True,
)
def cancel(namespace: Namespace) -> None:
    """Give up what is under way, before the regions were flipped: the active region goes on."""


# -- subscriptions in one region ---------------------------------------------------------------------------------------

Topic = Annotated[str, typer.Argument(help="A full name such as persistent://tenant/namespace/topic.")]
Subscription = Annotated[str, typer.Argument(help="The subscription's name.")]


@Call("GET", f"{DR}/subscriptions")
def subscriptions(namespace: Namespace, answer: list[dict[str, Any]]) -> None:
    """List the subscriptions that are active in one region at a time, as the broker asked knows them."""
    same = ("topic", "subscription", "active", "epoch", "state")
    lines = [(*cells(row, *same, "consumers", "unacknowledged"), row["waiting"] or "-") for row in answer]
    table((*same, "consumers here", "unacknowledged here", "waits here because"), lines)


_ACTIVE = "{subscription} of {topic} is active in {answer[active]} under epoch {answer[epoch]}"


@Call("PUT", _SUBSCRIPTION, said=_ACTIVE, as_json=True)
def subscription_set(
    topic: Topic,
    subscription: Subscription,
    active: Annotated[str, typer.Option("--active", help="The region in which its messages are handed out.")],
) -> dict[str, str]:
    """Let a subscription be active in one region at a time: its consumers elsewhere wait."""
    return {"active": active}


@Call("DELETE", _SUBSCRIPTION, said="{subscription} of {topic} may be active in every region")
def subscription_unset(topic: Topic, subscription: Subscription) -> None:
    """Let it be active in every region again."""


def subscription_move(
    rest: Rest,
    output: Output,
    topic: Topic,
    subscription: Subscription,
    to: Annotated[str, typer.Option("--to", help="The region in which it goes on.")],
    drain_s: Annotated[
        float,
        typer.Option(
            "--drain", help="Seconds to wait for acknowledgements; then messages are taken back and come again.", min=0
        ),
    ] = 10.0,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="The old region is lost: its leases are waited for, and nothing else, nor that every broker has heard "
            "that it is active in one region.",
        ),
    ] = False,
    wait_s: Wait = 60.0,
) -> None:
    """Move it to another region: what is handed out is acknowledged or taken back first. Interrupted, the same command
    goes on.
    """
    path, begun = path_of(_SUBSCRIPTION, topic=topic, subscription=subscription), time.monotonic()
    waiting, pause = "", threading.Event()
    while True:
        late = time.monotonic() - begun
        found = rest.post(f"{path}/move", {"to": to, "fence": late >= drain_s, "force": force})
        if found["done"]:
            break
        if found["waiting"] != waiting:
            echo(output, f"  {found['state']}: {found['waiting']}")
        waiting = found["waiting"]
        if late > wait_s:
            raise ConfigError(
                f"{subscription} waits: {waiting}. The same command goes on; `heliograph dr subscription-cancel` "
                "gives up"
            )
        pause.wait(rest.pause_s)
    output.told(found, _ACTIVE.format(subscription=subscription, topic=topic, answer=found))


@Call("POST", f"{_SUBSCRIPTION}/cancel", said="{subscription} of {topic} goes on in {answer[active]}")
def subscription_cancel(topic: Topic, subscription: Subscription) -> None:
    """Give up a move that has not come to its end: the active region goes on."""


# -- deleting in two steps ---------------------------------------------------------------------------------------------


def _deletion(topic: str) -> tuple[str, str]:
    """topic: its full name, or `tenant/namespace` for all of a namespace. (namespace, path of its deletion)."""
    if "://" not in topic:
        return topic, f"{dr_path(topic)}/deletion"
    return TopicName.parse(topic).namespace, path_of(f"{DR}/deletions/{{topic}}", topic=topic)


Deleted = Annotated[
    str,
    typer.Argument(
        help="A full name such as persistent://tenant/namespace/topic; or tenant/namespace: everything in it."
    ),
]


def delete(
    rest: Rest,
    output: Output,
    topic: Deleted,
    grace_h: Annotated[
        float | None,
        typer.Option(
            "--grace",
            help="Hours in which it can be brought back; without it as the namespace's policy deletionGrace says, a "
            "day where that is not set. Of what is deleted already: ends its time earlier.",
            min=0.0,
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete a topic, or a namespace, in every region: nobody can use it from now on, and its data goes when the grace
    period has ended.
    """
    (namespace, path) = _deletion(topic)
    found = []
    for region in rest.get(namespace_path(namespace))["replication_clusters"]:
        cluster = rest.get(path_of("/admin/v2/clusters/{region}", region=region))
        if "gateway" in cluster:  # a Pulsar cluster: its copy is its own
            continue
        url = cluster["serviceUrl"]
        try:
            found.append(rest.at(url).get(path))
        except ConfigError as error:
            found.append({"region": region, "unknown": str(error)})
    if dry_run or not yes:
        keys = ("region", "topics", "entries", "bytes", "producers", "consumers", "not_elsewhere", "backlog")
        lines = [tuple(row.get(key, "?") for key in keys) for row in found]
        Output(output.json and dry_run).rows([key.replace("_", " ") for key in keys], lines, found)
        if dry_run:
            return
        confirm(f"Delete {topic} in all of these regions?")
    made = rest.put(path, {} if grace_h is None else {"grace_s": grace_h * 3600})
    output.told(
        {**made, "preview": found},
        f"{topic} is deleted in {', '.join(made['regions'])}; until {when(made['until_ms'])} UTC `heliograph dr "
        f"undelete {topic}` brings it back",
    )


def undelete(rest: Rest, topic: Deleted) -> None:
    """Bring back what was deleted, with its data and its subscriptions."""
    rest.delete(_deletion(topic)[1])
    done(f"{topic} is back")


@Call("GET", f"{DR}/deletions")
def deletions(namespace: Namespace, answer: list[dict[str, Any]]) -> None:
    """List topics that were deleted and are not gone yet."""
    lines = [
        (*cells(row, "topic", "by"), when(row["until_ms"]), ", ".join(row["purged"]) or "-", row["asks"] or "-")
        for row in answer
    ]
    table(("topic", "by", "can be brought back until", "purged in", "asks, and does nothing, because"), lines)
