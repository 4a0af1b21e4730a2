"""`brokers` and `bookies`: who serves this region, and with which settings."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from heliograph.cli.calls import Call
from heliograph.cli.groups import add, group
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, confirm, done, iso_time, table
from heliograph.model.admin_paths import path_of

Bookie = Annotated[str, typer.Argument(help="The bookie's id in `heliograph bookies list`.")]
Setting = Annotated[str, typer.Argument(help="A name in `heliograph brokers settings`.")]
_SETTINGS = "/admin/v2/brokers/configuration"
_BOOKIE = "/heliograph/v1/bookies/{bookie}"


def register(app: typer.Typer) -> None:
    brokers = group(app, "brokers", "Brokers of the region.")
    add(brokers, list=brokers_list, health=brokers_health, topics=brokers_topics, settings=brokers_settings)
    add(brokers, set=brokers_set, unset=brokers_unset, audit=brokers_audit)
    add(brokers, balance=brokers_balance, pause=brokers_pause, resume=brokers_resume)
    add(brokers, rotate_secret=brokers_rotate_secret)
    bookies = group(app, "bookies", "Bookies of the region.")
    add(bookies, list=bookies_list, decommission=bookies_decommission, recommission=bookies_recommission)
    add(bookies, new_life=bookies_new_life)


def brokers_list(rest: Rest, output: Output) -> None:
    """List the live brokers with their addresses."""
    found = rest.get("/heliograph/v1/status")["brokers"]
    lines = [(b["id"], b["listeners"].get("", ""), b["admin_url"], b["pid"], b.get("level", 1)) for b in found]
    output.rows(("broker", "service", "admin", "pid", "feature level"), lines, found)


@Call("GET", "/admin/v2/brokers/health", said="{answer}")
def brokers_health() -> None:
    """Say ok where this broker stores a message and reads it back."""


def brokers_topics(rest: Rest, output: Output) -> None:
    """List the topics that this broker serves just now, with their rates."""
    found = rest.get("/admin/v2/broker-stats/topics")
    domains = [topics for bundles in found.values() for domains in bundles.values() for topics in domains.values()]
    topics = {name: stats for of_domain in domains for name, stats in of_domain.items()}
    lines = [
        (t, s["msgRateIn"], s["msgRateOut"], s["storageSize"], len(s["publishers"]), len(s["subscriptions"]))
        for t, s in sorted(topics.items())
    ]
    output.rows(("topic", "in msgs/s", "out msgs/s", "bytes", "producers", "subscriptions"), lines, topics)


@Call("GET", "/heliograph/v1/balance")
def brokers_balance(answer: dict[str, Any]) -> None:
    """Show how the load lies on the brokers, as a share of what each carries, and who has bundles moved."""
    lines = []
    for b in answer["brokers"]:
        heaviest = ", ".join(f"{h['namespace']}/{h['bundle']} {h['load']:.0%}" for h in b["heaviest"][:3])
        name = b["broker"] + (" (leads)" if b["broker"] == answer["leader"] else "")
        lines.append((name, f"{b['load']:.0%}", b["bundles"], f"{b['age_s']:.0f} s ago", heaviest))
    table(("broker", "load", "bundles", "reported", "heaviest bundles"), lines)
    if answer["paused_s"]:
        typer.echo(
            f"balancing is paused by {answer['paused_by']} for another {answer['paused_s']:.0f} s: `heliograph brokers "
            "resume` ends that"
        )


def brokers_pause(
    rest: Rest,
    minutes: Annotated[
        float, typer.Option("--minutes", "-m", help="It ends by itself after so long.", min=0.1, max=1440)
    ] = 10.0,
) -> None:
    """Move no bundles for balance for a while; bundles without an owner are still taken."""
    rest.post("/heliograph/v1/balance/pause?seconds=" + str(minutes * 60))
    done(f"nothing is moved for {minutes:g} minutes")


@Call("DELETE", "/heliograph/v1/balance/pause", said="bundles are moved again where the load asks for it")
def brokers_resume() -> None:
    """End a pause of balancing."""


def brokers_settings(rest: Rest, output: Output) -> None:
    """Show the settings that can be changed while brokers run, and what holds."""
    changed, held = rest.get(f"{_SETTINGS}/values"), rest.get(f"{_SETTINGS}/runtime")
    names = rest.get(_SETTINGS)
    lines = [(n, held.get(n, "-"), n in changed) for n in names]
    output.rows(("setting", "value", "changed"), lines, {n: held.get(n) for n in names})


@Call("POST", f"{_SETTINGS}/{{name}}/{{value}}", said="{name} is {value}")
def brokers_set(name: Setting, value: Annotated[str, typer.Argument()]) -> None:
    """Change a setting of all brokers of the region, at once and lasting."""


@Call("DELETE", f"{_SETTINGS}/{{name}}", said="{name} is as the settings file says")
def brokers_unset(name: Setting) -> None:
    """Go back to what the settings files say."""


def brokers_audit(
    rest: Rest,
    output: Output,
    count: Annotated[int, typer.Option("--count", "-n", help="The newest.", min=1, max=1000)] = 20,
) -> None:
    """Show the newest changes by admin, at all brokers: who, what, before, after."""
    found = rest.get("/heliograph/v1/audit", count=count, all=True)["changes"][-count:]
    lines = []
    for c in found:
        change = f"{json.dumps(c['before'])} → {json.dumps(c['after'])}" if "before" in c else c.get("reason", "")
        lines.append((c["time"], c["role"], c["address"], c["status"], f"{c['method']} {c['path']}", change))
    output.rows(("time", "role", "from", "status", "call", "change"), lines, found)


def brokers_rotate_secret(
    rest: Rest,
    output: Output,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once",
            help="The secret before counts no more from now on: somebody else may have it. A request from broker to "
            "broker may fail in the moment of the change.",
        ),
    ] = False,
) -> None:
    """Make the secret anew by which the brokers of this region know each other. Do so after a backup of the metadata,
    or a host of the region, was in other hands; the one before counts for ten minutes more.
    """
    answer = rest.post("/heliograph/v1/brokers/secret", {"at_once": at_once})
    ends = f"until {iso_time(until)}" if (until := answer["before_until_ms"]) else "no more"
    output.told(answer, f"the brokers of {answer['region']} sign with a new secret; the one before counts {ends}")


@Call("GET", "/heliograph/v1/bookies")
def bookies_list(answer: list[dict[str, Any]]) -> None:
    """List the bookies: registered, writable, being emptied."""
    lines = [
        (b["id"], b.get("rack", ""), b["registered"], b["writable"], b["draining"], b.get("limbo", False))
        for b in answer
    ]
    table(("bookie", "rack", "registered", "writable", "emptied", "limbo"), lines)


def bookies_decommission(rest: Rest, output: Output, bookie: Bookie) -> None:
    """Begin to empty a bookie; again: show how far that is. Stop it once `done` is yes."""
    path = path_of(f"{_BOOKIE}/decommission", bookie=bookie)
    rest.post(path)
    output.show(rest.get(path))


@Call("DELETE", f"{_BOOKIE}/decommission", said="bookie {bookie} is used again")
def bookies_recommission(bookie: Bookie) -> None:
    """Use a bookie again that was being emptied."""


def bookies_new_life(
    rest: Rest,
    output: Output,
    bookie: Bookie,
    force: Annotated[
        bool, typer.Option("--force", help="Also where it may have had the only copy of something: that is lost then.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Give up what a bookie in limbo had in directories that are lost for good: it begins a new life on those it has
    now, and its copies are made again from other bookies. Again: show how far that is. First look whether a disk is
    only not mounted: then mount it, and nothing is lost.
    """
    path = path_of(f"{_BOOKIE}/new-life", bookie=bookie)
    found = rest.get(path)
    if found["state"] != "limbo":
        output.show(found)
        return
    if not yes:
        _say_price(found)
        confirm(f"Are the directories that {bookie} had lost for good?")
    output.show(rest.post(path + ("?force=true" if force else "")))


def _say_price(found: dict[str, Any]) -> None:
    bookie = found["bookie"]
    typer.echo(
        f"{found['ledgers_left']} ledgers, about {found['bytes_left'] / 1e6:.0f} MB, count on a copy on {bookie}, "
        "which is made again from other bookies. Until then "
        f"{found['one_copy_ledgers']} of them have entries with one copy only: lose no other disk",
        err=True,
    )
    if found["no_copy_ledgers"]:
        typer.echo(
            f"{found['no_copy_ledgers']} of them have entries of which no other bookie that is there is known to have "
            f"a copy (the first: {', '.join(map(str, found['no_copy'][:5]))}): they are lost for good. That wants "
            "--force",
            err=True,
        )
    if found.get("unread_ledgers"):
        typer.echo(
            f"The records of {found['unread_ledgers']} ledgers cannot be read, and have {bookie} in them (the first: "
            f"{', '.join(map(str, found['unread'][:5]))}): whether there is another copy is not known. That wants "
            "--force",
            err=True,
        )
