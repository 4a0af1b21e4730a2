"""The commands `config force-quorum` and `config rejoin`: the region that is left decides alone, and a lost one comes
back.

Is: options, requests to a broker of the region that goes on, waiting, and what a person sees. Isn't: a rule; that
region's configuration node decides, and its sentences are shown.
Invariants: nothing is forced without the plan having been shown; each command may be repeated.
Source: docs/operating/forced-quorum.md.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from heliograph.cli.groups import add, group
from heliograph.cli.rest import Rest
from heliograph.cli.servers.metadata_members import Wait, again
from heliograph.cli.show import Output, confirm
from heliograph.model.errors import NotAllowed


def register(app: typer.Typer) -> None:
    config = group(app, "config", "The global configuration where most of its voters are lost.")
    add(config, force_quorum=force_quorum, rejoin=rejoin)


def force_quorum(
    rest: Rest,
    output: Output,
    lost: Annotated[
        list[str], typer.Option("--lost", help="A region, or witness, that is lost; give each other member.")
    ],
    lost_are_stopped: Annotated[
        bool,
        typer.Option(
            "--lost-are-stopped",
            help="You know that none of them runs: they may be a majority, and would go on beside what is forced.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Let the region that is asked decide alone about the global configuration, since all its other voters are lost.

    They count for nothing from then on, until each comes back by `config rejoin`.
    """
    given = {
        "lost": [name for names in lost for name in names.split(",") if name],
        "lost_are_stopped": lost_are_stopped,
    }
    answer = _ask(rest, given, dry_run=True)
    plan = answer["plan"]
    if plan is None:
        output.told(answer, f"nothing to do: {answer['node']} decides alone")
        return
    if not output.json:
        for line in plan_lines(answer["node"], plan):
            typer.echo(line)
    if dry_run:
        if output.json:
            output.show(answer)
        return
    if plan["refused"]:
        raise NotAllowed(plan["refused"][0])
    if not yes:
        confirm(f"Let {answer['node']} decide alone, without {', '.join(plan['lost'])}?")
    answer = _ask(rest, given, dry_run=False)
    output.told(answer, f"{answer['node']} decides alone, in generation {answer['generation']} of the configuration")


def plan_lines(node: str, plan: dict[str, Any]) -> list[str]:
    """What a person is told before."""
    lost = ", ".join(f"{name} (silent for {plan['silent_s'][name]:g} s)" for name in plan["lost"])
    behind = plan["last_index"] - plan["committed"]
    return [
        f"{node} would decide alone, in generation {plan['generation']} of the configuration",
        f"lost: {lost}; of {len(plan['voters'])} voters {plan['majority']} are a majority",
        f"{node} holds entries through {plan['last_index']}, of term {plan['term']}; {plan['committed']} are known to "
        f"be decided, {plan['applied']} applied" + (f"; the other {behind} count from then on" if behind else ""),
        (
            "lost with them: whatever they decided behind that, without this region. What may have moved asks: every "
            "active-passive namespace takes nothing until `heliograph dr set NAMESPACE --active REGION`"
            if plan["others_may_decide"]
            else "lost with them: nothing that was answered; without this region they were no majority"
        ),
        f"a failover then waits up to {plan['wait_s']:g} s for leases of "
        f"{', '.join(plan['writers']) or 'nobody: there are none of others'}",
        *(f"refused: {why}" for why in plan["refused"]),
    ]


def _ask(rest: Rest, given: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    return again(rest, "POST", "/heliograph/v1/config/force-quorum", given, dry_run=dry_run)


def rejoin(
    rest: Rest,
    output: Output,
    member: Annotated[str, typer.Argument(help="The region, or witness, that was lost, and runs again.")],
    wait: Wait = 120.0,
) -> None:
    """Bring a member back that was left behind by `config force-quorum`: what it holds of the configuration is set
    aside in its folder, it learns everything anew, and votes. An interrupted one is given again.
    """
    path = f"/heliograph/v1/config/members/{quote(member, safe='')}/rejoin"
    answer = again(rest, "POST", path, what=f"{member} comes back", wait_s=wait, quiet=output.json)
    output.told(answer, f"{member} votes" if answer["changed"] else f"nothing to do: {member} votes")
