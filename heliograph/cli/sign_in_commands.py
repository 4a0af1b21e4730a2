"""`login`, `logout`, `whoami`: a person signs in at an identity provider, once, and the other commands use the token.

Is: options, and what a person sees. Isn't: what the issuer is asked, or the file (`heliograph.cli.signing_in`).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from heliograph.cli.groups import add
from heliograph.cli.rest import ADMIN, AdminOption
from heliograph.cli.show import Output, when
from heliograph.cli.signing_in.openid_issuer import DeviceCode, claims_of
from heliograph.cli.signing_in.signed_in import issuer_of
from heliograph.cli.signing_in.token_store import SignIn, TokenStore, address, tokens_file
from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.errors import ConfigError


def register(app: typer.Typer) -> None:
    add(app, login=login, logout=logout, whoami=whoami)


def login(
    output: Output,
    admin: AdminOption = ADMIN,
    issuer: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_ISSUER", help="The identity provider's URL; absent, the one of last time.")
    ] = "",
    client_id: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_CLIENT_ID", help="Of a public client there that may use device codes.")
    ] = "",
    scope: Annotated[str, typer.Option(help="Else `openid`, with `offline_access` where the issuer has it.")] = "",
    audience: Annotated[str, typer.Option(help="For whom the token is, where the issuer wants to be told.")] = "",
) -> None:
    """Sign in at an identity provider, in a browser on any device; commands that ask this admin address use the token.

    heliograph login --admin https://eu.example.com:8443 --issuer https://idp.example.com --client-id heliograph

    The token is kept for that address alone, in a file that only you may read, and is renewed by itself while the
    issuer lets it. `--token` and HELIOGRAPH_TOKEN go before it.
    """
    if not secret_may_go_to(address(admin)):
        raise ConfigError(f"a token is not sent to {admin} in clear: give its https:// address with --admin")
    store = TokenStore(tokens_file())
    last = store.read(admin)
    if last is not None and issuer in ("", last.issuer) and client_id in ("", last.client_id):
        issuer, client_id = last.issuer, last.client_id
        scope, audience = scope or last.scope, audience or last.audience
    if not issuer or not client_id:
        raise ConfigError("which identity provider? Give --issuer https://… and --client-id ID")
    with store.locked():
        pass  # a folder that is open to others is said before somebody confirms anything
    console = Console(stderr=True)
    with console.status("asking the issuer for a code") as status:

        def show(code: DeviceCode) -> None:
            _told(code)
            status.update("waiting")

        wanted = SignIn(issuer=issuer, client_id=client_id, token="", scope=scope, audience=audience)
        found = issuer_of(issuer).sign_in(wanted, show, status.update)
    with store.locked():
        store.write(admin, found)
    until = f", until {when(found.expires_ms)} UTC" if found.expires_ms else ""
    renewed = "; it is renewed by itself" if found.refresh_token else "; then sign in again"
    output.told(_row(admin, found), f"signed in for {admin} as {_name(found)}{until}{renewed}")


def logout(output: Output, admin: AdminOption = ADMIN) -> None:
    """Forget the token of this admin address, and take it back at the issuer, where that can be done."""
    store = TokenStore(tokens_file())
    with store.locked():
        found = store.read(admin)
        store.write(admin, None)
    if found is None:
        output.told({"admin": admin, "signed_in": False}, f"nobody was signed in for {admin}")
        return
    try:
        ended, trouble = issuer_of(found.issuer).revoke(found), ""
    except (OSError, ConfigError) as error:
        ended, trouble = False, f" ({error})"
    more = "" if ended else f"; the issuer was not told{trouble}: what was copied counts until its end"
    output.told({"admin": admin, "signed_in": False, "revoked": ended}, f"signed out of {admin}{more}")


def whoami(output: Output, admin: AdminOption = ADMIN) -> None:
    """Show who is signed in for this admin address, as the kept token says; no broker is asked."""
    found = TokenStore(tokens_file()).read(admin)
    if found is None:
        raise ConfigError(f"nobody is signed in for {admin}: `heliograph login --admin {admin} --issuer URL`")
    output.show(_row(admin, found))


def _row(admin: str, found: SignIn) -> dict[str, Any]:
    return {
        "admin": address(admin),
        "subject": _name(found),
        "issuer": found.issuer,
        "client_id": found.client_id,
        "expires": when(found.expires_ms) if found.expires_ms else None,
        "renewable": bool(found.refresh_token),
    }


def _name(found: SignIn) -> str:
    return "".join(one for one in str(claims_of(found.token).get("sub", "?")) if one.isprintable())


def _told(code: DeviceCode) -> None:
    minutes = max(code.lasts_s / 60, 1)
    typer.echo(f"Open this address in a browser, on this or another device:\n\n  {code.url}\n", err=True)
    typer.echo(f"and enter the code  {code.code}  there. It is good for {minutes:.0f} min.", err=True)
    if code.whole_url:
        typer.echo(f"This address has the code in it: {code.whole_url}", err=True)
