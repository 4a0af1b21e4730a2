"""The commands for the members of a metadata group: `meta members`, `meta add`, `meta promote`, `meta remove`, `meta
replace`, `meta transfer`.

Is: options, requests to a broker's admin interface, waiting with progress, and what a person sees. Isn't: a rule; the
group's leader decides, and its sentence is shown. `--config` means the global configuration, whose members are regions,
instead of the region's own metadata.
Invariants: each command may be repeated, also after it was interrupted: what is done already is not done again.
Source: docs/operating.md, "Members of the metadata"; docs/protocols/admin.md, "Members".
"""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from heliograph.cli import groups
from heliograph.cli.rest import Rest, RestRefused
from heliograph.cli.show import Output
from heliograph.model.errors import NotAllowed

Config = Annotated[
    bool, typer.Option("--config", help="The global configuration instead of the region's own metadata.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Ask the leader whether it would be done, and do nothing.")]
Member = Annotated[str, typer.Argument(help="Its node id; of the global configuration the region's name.")]
Wait = Annotated[
    float, typer.Option("--wait", help="Seconds to wait until the member has caught up.", min=0, max=86_400)
]
_POLL_S = 0.2
_SOON = ("behind", "does not answer", "try again")
"""These words in a refusal say that time alone may end it."""


def register(app: typer.Typer) -> None:
    meta = groups.group(
        app, "meta", "Members of the region's metadata (or, with --config, of the global configuration)."
    )
    groups.add(meta, members=members, add=add, promote=promote, remove=remove, replace=replace, transfer=transfer)


def members(rest: Rest, output: Output, config: Config = False) -> None:
    """Who belongs to the group, who leads, how far each is, and how long writes take."""
    answer = call(rest, config, "GET")
    if output.json:
        output.show(answer)
    else:
        _show(answer)


def add(
    rest: Rest,
    output: Output,
    member: Member,
    address: Annotated[
        str,
        typer.Argument(
            help="HOST:PORT of its listener for other members; or SOURCE=HOST:PORT,... where each reaches it by "
            "another way."
        ),
    ],
    config: Config = False,
    promote_too: Annotated[
        bool, typer.Option("--promote", help="Make it a voter as soon as it has caught up.")
    ] = False,
    wait: Wait = 60.0,
    dry_run: DryRun = False,
) -> None:
    """Add a member that was started with `joining`: it receives everything, and counts for nothing until it is
    promoted.
    """
    answer = call(rest, config, "POST", f"/{quote(member, safe='')}", dry_run=dry_run, given={"address": address})
    if promote_too and not dry_run:
        answer = _promote(rest, config, member, wait, quiet=output.json)
        answer["changed"] = True
    role = "voter" if promote_too else "learner"
    _tell(output, answer, dry_run, f"{member} is a {role}", f"{member} would be added as a learner")


def promote(
    rest: Rest, output: Output, member: Member, config: Config = False, wait: Wait = 60.0, dry_run: DryRun = False
) -> None:
    """Make a learner a voter, as soon as it has caught up."""
    answer = _promote(rest, config, member, 0 if dry_run else wait, quiet=output.json, dry_run=dry_run)
    _tell(output, answer, dry_run, f"{member} is a voter", f"{member} would become a voter")


def remove(rest: Rest, output: Output, member: Member, config: Config = False, dry_run: DryRun = False) -> None:
    """Remove a voter or a learner; then stop its process, and delete its folder. Refused where the quorum would be
    lost.
    """
    answer = call(rest, config, "DELETE", f"/{quote(member, safe='')}", dry_run=dry_run)
    gone = f"{member} is no member any more: stop its process"
    _tell(output, answer, dry_run, gone, f"{member} would be removed")


def replace(
    rest: Rest,
    output: Output,
    old: Annotated[str, typer.Argument(help="The member that goes; it may be dead already.")],
    new: Annotated[str, typer.Argument(help="The member that comes: started with `joining`.")],
    address: Annotated[str, typer.Argument(help="Of the new one, as for `meta add`.")],
    config: Config = False,
    wait: Wait = 60.0,
) -> None:
    """Put one member in the place of another: added, made a voter once it has caught up, leader if the old one is, and
    then the old one goes.

    It may be run again after an interruption; at each moment the group has at least as many voters as before.
    """
    if new not in [row["member"] for row in call(rest, config, "GET")["members"]]:
        call(rest, config, "POST", f"/{quote(new, safe='')}", given={"address": address})
    _again(rest, config, "POST", f"/{quote(new, safe='')}/promote", f"{new} catches up", wait, quiet=output.json)
    # While the old one can still tell them where to go, clients that know no other member follow.
    if any(row["member"] == old and row["leads"] for row in call(rest, config, "GET")["members"]):
        _again(rest, config, "POST", f"/{quote(new, safe='')}/lead", f"{new} takes over", wait, quiet=output.json)
    answer = _again(rest, config, "DELETE", f"/{quote(old, safe='')}", f"{old} goes", wait, quiet=output.json)
    done = f"{new} is a voter in the place of {old}: stop the old process, and delete its folder"
    _tell(output, answer, False, done, "")


def transfer(rest: Rest, output: Output, to: Member, config: Config = False, dry_run: DryRun = False) -> None:
    """Hand the leadership to another voter; writes wait meanwhile, for one election time-out at most."""
    answer = call(rest, config, "POST", f"/{quote(to, safe='')}/lead", dry_run=dry_run)
    _tell(output, answer, dry_run, f"{to} leads", f"the leadership would move to {to}")


def _promote(
    rest: Rest, config: bool, member: str, wait_s: float, *, quiet: bool, dry_run: bool = False
) -> dict[str, Any]:
    path, what = f"/{quote(member, safe='')}/promote", f"{member} catches up"
    return _again(rest, config, "POST", path, what, wait_s, quiet=quiet, dry_run=dry_run)


def _again(
    rest: Rest,
    config: bool,
    method: str,
    path: str,
    what: str,
    wait_s: float,
    *,
    quiet: bool,
    dry_run: bool = False,
) -> dict[str, Any]:
    path = f"/heliograph/v1/{'config' if config else 'metadata'}/members{path}"
    return again(rest, method, path, what=what, wait_s=wait_s, quiet=quiet, dry_run=dry_run)


def again(
    rest: Rest,
    method: str,
    path: str,
    given: Any = None,
    *,
    what: str = "",
    wait_s: float = 0.0,
    quiet: bool = True,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Asks again and again, for `wait_s` at most, while the refusal says that it is not yet time. Raises as `call`."""
    deadline = time.monotonic() + wait_s
    with Console(stderr=True, quiet=quiet).status(what) as spinner:
        while True:
            try:
                return _asked(rest, method, path, given, dry_run)
            except NotAllowed as error:
                if time.monotonic() >= deadline or not any(sign in str(error) for sign in _SOON):
                    raise
                spinner.update(str(error).partition(": a learner")[0])
            time.sleep(_POLL_S)


def _tell(output: Output, answer: dict[str, Any], dry_run: bool, done: str, would: str) -> None:
    if dry_run:
        output.told(answer, would if answer["would_change"] else "nothing would change")
    else:
        output.told(answer, done if answer["changed"] else f"nothing to do: {done}")


def _show(answer: dict[str, Any]) -> None:
    table = Table("member", "role", "state", "behind", "address")
    for row in answer["members"]:
        silent = row["silent_s"]
        state = (
            "[green]leads[/]"
            if row["leads"]
            else ""
            if silent is None
            else "follows"
            if silent < 3
            else f"[red]silent for {silent:.0f} s[/]"
        )
        table.add_row(
            row["member"],
            "witness" if row.get("witness") else row["role"],
            state,
            "" if row["behind"] is None else str(row["behind"]),
            row["address"] or "(settings)",
        )
    console = Console()
    console.print(table)
    if answer.get("superseded"):
        console.print(
            f"[red]{answer['node']} was left behind[/]: the quorum was forced without it; give `heliograph config "
            f"rejoin {answer['node']}` to a region that goes on",
            soft_wrap=True,
        )
        return
    if answer["leader"] is None:
        console.print(
            f"[red]nobody leads[/], as {answer['node']} knows it: a majority of the voters must run and reach each "
            "other"
        )
        return
    writes = answer["writes"]
    took = (
        f"; of the last {writes['count']} writes half took {writes['p50_ms']:g} ms, 99 % {writes['p99_ms']:g} ms"
        if writes["count"]
        else ""
    )
    console.print(
        f"{answer['leader']} leads term {answer['term']}, {answer['commit']} entries committed{took}", soft_wrap=True
    )


def call(
    rest: Rest,
    config: bool,
    method: str,
    path: str = "",
    *,
    dry_run: bool = False,
    given: Any = None,
) -> dict[str, Any]:
    """One request. Raises NotAllowed with the leader's reason of a refusal, ConfigError with what else went wrong."""
    path = f"/heliograph/v1/{'config' if config else 'metadata'}/members{path}"
    return _asked(rest, method, path, given, dry_run)


def _asked(rest: Rest, method: str, path: str, given: Any, dry_run: bool) -> dict[str, Any]:
    try:
        found: dict[str, Any] = rest.ask(method, path, given, {"dry_run": dry_run})
        return found
    except RestRefused as error:
        if error.code == 412:
            raise NotAllowed(error.reason) from error
        raise
