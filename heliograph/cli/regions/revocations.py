"""`revocations`: credentials that count no more, in any region, before they run out."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from heliograph.cli.calls import Call
from heliograph.cli.groups import add, group
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, cells, table, when
from heliograph.model.configuration.revocations import Revoked, named
from heliograph.model.errors import ConfigError

_PATH = "/heliograph/v1/revocations"
_KINDS = (
    "token: its id (`jti`). subject: all tokens of a role that were issued before --before. issuer: all tokens of an "
    "issuer. certificate: its serial number. user: a name of htpasswd or SCRAM."
)
KindArgument = Annotated[Revoked, typer.Argument(help=_KINDS, show_default=False)]


def register(app: typer.Typer) -> None:
    found = group(
        app,
        "revocations",
        "Tokens, certificates, and users with a password that count no more, before they run out: refused at sign-in "
        "in every region, and what is open by them is closed, within seconds of hearing of it.",
    )
    add(found, add=revoke, list=listed, remove=remove)


def revoke(
    rest: Rest,
    output: Output,
    kind: KindArgument,
    name: Annotated[str, typer.Argument(help="What is revoked; of a token, --token-file may say it.")] = "",
    token_file: Annotated[
        str, typer.Option(help="A file that holds the token itself, - for stdin: its id and its end are taken from it.")
    ] = "",
    before: Annotated[
        str,
        typer.Option(
            help="Of a subject or an issuer: tokens that were issued before this time (2026-11-28T15:00:00Z), and "
            "those that do not say when. Absent: of a subject now, of an issuer all."
        ),
    ] = "",
    until: Annotated[
        str,
        typer.Option(help="It has run out by itself then (a token's `exp`): the record may go. Absent: it stays."),
    ] = "",
    reason: Annotated[str, typer.Option(help="For those who read the list; clients are not told.")] = "",
) -> None:
    """Revoke a credential, in every region.

    A token leaked, and you have it:      heliograph revocations add token --token-file leaked.jwt --reason "in a log"

    You know whose it is:                 heliograph revocations add subject orders-app

    A password leaked:                    heliograph revocations add user ann; then change it, then `remove` this.

    A client's certificate was stolen:    heliograph revocations add certificate 4F0A…

    From then on it is refused with an error that says so, and connections that were opened by it are closed: those of
    the broker that is asked before the command returns, others within seconds; in a region that is cut off, when it is
    back. A subject's new tokens are good: give its clients new ones.
    """
    until_ms = _time(until, "--until")
    if token_file:
        if kind != Revoked.TOKEN or name:
            raise ConfigError("--token-file says which token: write `revocations add token --token-file FILE`")
        name, until_ms = _of_token(token_file, until_ms)
    if not name:
        raise ConfigError(f"which {kind}? Write `heliograph revocations add {kind} NAME`")
    body: dict[str, Any] = {"until_ms": until_ms, "reason": reason}
    if before:
        body["before_ms"] = _time(before, "--before")
    found = rest.put(_one(kind, name), body)
    closed, since = found["closed_here"], found["before_ms"]
    issued = f", with what was issued before {when(since)} UTC" if since else ""
    output.told(
        found,
        f"{kind} {found['name']} is revoked{issued}: this broker has closed {closed} "
        f"{'connection' if closed == 1 else 'connections'} by it; others do within seconds, regions that are cut off "
        "when they are back",
    )


@Call("GET", _PATH)
def listed(answer: dict[str, Any]) -> None:
    """List what is revoked, as the broker that is asked has heard of it."""
    lines = [
        (
            *cells(row, "kind", "name"),
            *(when(row[time]) for time in ("before_ms", "since_ms", "until_ms")),
            *cells(row, "by", "reason"),
        )
        for row in answer["revocations"]
    ]
    table(("kind", "name", "issued before", "revoked", "runs out", "by", "reason"), lines)
    if answer["stale_s"]:
        typer.echo(
            f"region {answer['region']} is cut off from the configuration for {answer['stale_s']:.0f} s: what was "
            "revoked since is not known here",
            err=True,
        )


def remove(
    rest: Rest,
    output: Output,
    kind: KindArgument,
    name: Annotated[str, typer.Argument(help="As the list shows it.")],
) -> None:
    """Take a revocation back: what it names counts again (after a password was changed, or for a slip)."""
    found = rest.delete(_one(kind, name))
    still = " and ".join(found.get("still_in", ()))
    output.told(
        found,
        f"{kind} {found['name']} is still revoked, in {still}: `remove` it there too"
        if still
        else f"{kind} {found['name']} counts again",
    )


def _one(kind: Revoked, name: str) -> str:
    return f"{_PATH}/{kind}/{quote(named(kind, name), safe='')}"


def _time(text: str, option: str) -> int:
    """Milliseconds since 1970; 0: none was given."""
    if not text:
        return 0
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: expected a time such as 2026-11-28T15:00:00Z") from error
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _of_token(file: str, until_ms: int) -> tuple[str, int]:
    """(its id, when it runs out), as it says itself: nobody's key is asked."""
    try:
        text = (sys.stdin.read() if file == "-" else Path(file).read_text()).strip().removeprefix("token:")
        part = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        token, ends = claims.get("jti"), claims.get("exp")
    except (OSError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"{file} holds no JSON web token: {error}") from error
    if not isinstance(token, str) or not token:
        raise ConfigError(
            f"the token in {file} has no id (`jti`): revoke all tokens of its subject with `heliograph revocations add "
            f"subject {claims.get('sub', 'ROLE')}`, and give its clients new ones"
        )
    return token, until_ms or (int(ends * 1000) if isinstance(ends, int | float) else 0)
