"""Which token a request takes where none is given: the one that is kept for its address.

Is: finding it, and having it renewed shortly before it runs out. Isn't: the file, or the issuer's protocol.
Invariants: a token goes to the address that it is kept for, and there by TLS or on this machine alone.
"""

from __future__ import annotations

import time
from urllib.request import Request

from heliograph.cli.signing_in.openid_issuer import OpenIdIssuer
from heliograph.cli.signing_in.token_store import SignIn, TokenStore, tokens_file
from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.errors import ConfigError
from heliograph.runtime.clock import SystemClock

_AHEAD_MS = 60_000
"""So long before its end a token is renewed."""


def issuer_of(url: str) -> OpenIdIssuer:
    from heliograph.cli.signing_in.issuer_requests import ask

    return OpenIdIssuer(url, ask, SystemClock(), time.sleep)


def token_for(admin: str) -> str:
    """The token that is kept for this admin URL; "": none is. Raises ConfigError where it has run out, or others may
    see it.
    """
    try:
        if not secret_may_go_to(admin) or not (path := tokens_file()).exists():
            return ""
    except (ValueError, OSError, ConfigError):
        return ""
    store = TokenStore(path)
    found = store.read(admin)
    if found is None or _lasts_ms(found) > _AHEAD_MS:
        return found.token if found else ""
    with store.locked():
        found = store.read(admin)
        if found is None or _lasts_ms(found) > _AHEAD_MS:  # another command was faster
            return found.token if found else ""
        if fresh := _renewed(admin, found, store):
            store.write(admin, fresh)
            found = fresh
    return found.token


def authorize(request: Request, admin: str, token: str) -> Request:
    """Adds a token to a request to that admin URL: the one that was given, else the one that is kept."""
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    elif kept := token_for(admin):
        request.add_unredirected_header("Authorization", f"Bearer {kept}")
    return request


def _renewed(admin: str, found: SignIn, store: TokenStore) -> SignIn | None:
    """None: not now, and the token that is there is still good. Raises ConfigError. store: is locked, and keeps the
    next refresh token whatever becomes of the rest.
    """
    again = f"sign in again: `heliograph login --admin {admin} --issuer {found.issuer} --client-id {found.client_id}`"
    try:
        if found.refresh_token:
            return issuer_of(found.issuer).renewed(found, lambda following: store.write(admin, following))
        reason = "the issuer gave no refresh token"
    except (OSError, ConfigError) as error:
        reason = str(error)
    if _lasts_ms(found) > 0:
        return None
    raise ConfigError(f"the token that is kept for {admin} has run out, and is not renewed: {reason}; {again}")


def _lasts_ms(found: SignIn) -> int:
    return found.expires_ms - SystemClock().wall_ms() if found.expires_ms else 1 << 62
