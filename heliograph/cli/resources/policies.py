"""Policies on the command line: show, set, and unset by the names of the policy table, for namespaces and topics alike.

Is: one set of three commands, made for each level from the table. Isn't: a check of values; the broker says what is
wrong.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from heliograph.cli.groups import add
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, done
from heliograph.model.configuration.policy_table import POLICIES, Policy
from heliograph.model.errors import ConfigError

_QUOTAS, _STORAGE = "backlogQuota", "destination_storage"
Applied = Annotated[bool, typer.Option("--applied", help="Also what is inherited.")]
Value = Annotated[
    str,
    typer.Argument(
        help="A number, true, a word, JSON, or fields such as retentionTimeInMinutes=60,retentionSizeInMB=-1."
    ),
]
QuotaType = Annotated[str, typer.Option("--type", help="Of a backlog quota: destination_storage or message_age.")]


def register(group: typer.Typer, what: str, path_of: Callable[[str], str]) -> None:
    """what: `namespace` or `topic`, whose column of the table counts."""
    names = [policy.name for policy in POLICIES if _path(policy, what)] + [_QUOTAS]

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    Target = Annotated[str, typer.Argument(metavar=what.upper(), help=f"The {what}.")]
    Name = Annotated[
        str, typer.Argument(metavar="POLICY", help=f"One of: {', '.join(names)}.", autocompletion=complete)
    ]

    def policies(rest: Rest, output: Output, target: Target, applied: Applied = False) -> None:
        """Show the policies that are set here."""
        path = (
            path_of(target)
            .replace("/admin/v2/namespaces/", "/admin/v2/", 1)
            .replace("/admin/v2/", "/heliograph/v1/policies/", 1)
        )
        output.show(rest.get(path, applied=applied))

    def set_(rest: Rest, target: Target, name: Name, value: Value) -> None:
        """Set one policy; it holds for live clients within a second."""
        base = path_of(target)
        given = parsed(value)
        if name == _QUOTAS:
            kind = given.pop("type", _STORAGE) if isinstance(given, dict) else _STORAGE
            rest.post(f"{base}/{_QUOTAS}", given, backlogQuotaType=kind)
        else:
            policy = _policy(name, names)
            put = policy.put if what == "namespace" else policy.put_topic
            rest.ask("PUT" if put else "POST", f"{base}/{_path(policy, what)}", given)
        done(f"{name} of {target} is set")

    def unset(rest: Rest, target: Target, name: Name, quota_type: QuotaType = _STORAGE) -> None:
        """Remove one policy: what is inherited holds again."""
        base = path_of(target)
        if name == _QUOTAS:
            rest.delete(f"{base}/{_QUOTAS}", backlogQuotaType=quota_type)
        else:
            rest.delete(f"{base}/{_path(_policy(name, names), what)}")
        done(f"{name} of {target} is removed")

    add(group, policies=policies, set=set_, unset=unset)


def _path(policy: Policy, what: str) -> str:
    return policy.namespace if what == "namespace" else policy.topic


def _policy(name: str, names: list[str]) -> Policy:
    if name not in names:
        raise ConfigError(f"there is no policy {name!r} here; there are {', '.join(names)}")
    return next(policy for policy in POLICIES if policy.name == name)


def parsed(text: str) -> Any:
    """JSON where it is some; `a=1,b=x` as an object; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    if "=" in text and all("=" in part for part in text.split(",")):
        return {
            key.strip(): parsed(value.strip()) for key, _, value in (part.partition("=") for part in text.split(","))
        }
    return text
