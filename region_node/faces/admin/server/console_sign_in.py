"""Signing in to the console at an issuer: three paths below /console, and their cookies.

Is: the browser's side: where it is sent, what it keeps, and the session in the end. Isn't: what the issuer is asked
(`region_node.security.authentication.code_sign_in`).
Invariants: no cookie can be read by a script; without TLS only a browser of this machine signs in.
Source: docs/operating/console.md, "Signing in".
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.errors import MetadataUnavailable, NotAllowed, Unauthenticated
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.console_session import HEADER, PATH, cookie_name
from region_node.faces.admin.calls.existing import sign_in_of
from region_node.security.authentication.code_sign_in import Begun, Session

_BACK = "/console/signed-in"
_BEGUN_S = 600
_COOKIE_BYTES_MAX = 3800
"""Browsers take 4 KiB, with the name and what it is for."""
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


async def begin(admin: Admin, request: web.Request) -> Any:
    """Sends the browser to the issuer."""
    sign_in, redirect, begun = sign_in_of(admin), _redirect(request), Begun.fresh()
    answer = _to(await sign_in.address(begun, redirect))
    answer.set_cookie(
        cookie_name("sign-in", request.secure),
        str(begun),
        max_age=_BEGUN_S,
        path=_BACK,
        secure=request.secure,
        httponly=True,
        samesite="Lax",  # the browser comes back from the issuer's site
    )
    return answer


async def end(admin: Admin, request: web.Request) -> Any:
    """Where the issuer sends the browser back to: what goes wrong is said in plain text, as nobody reads JSON here."""
    sign_in, name = sign_in_of(admin), cookie_name("sign-in", request.secure)
    try:
        begun = Begun.read(request.cookies.get(name, ""))
        session = await sign_in.completed(begun, request.query, _redirect(request))
        answer = _to(PATH)
        _keep(answer, session, request.secure)
    except (Unauthenticated, MetadataUnavailable, NotAllowed) as error:
        text = f"Not signed in: {error}.\n\nOpen {PATH} to try again.\n"
        answer = web.Response(status=403, text=text, headers=_HEADERS)
    answer.del_cookie(name, path=_BACK, secure=request.secure, httponly=True, samesite="Lax")
    return answer


async def sign_out(admin: Admin, request: web.Request) -> Any:
    """Forgets the session. Other sites' pages cannot ask for it."""
    if HEADER not in request.headers:
        raise NotAllowed(f"the console itself asks for this, with the header {HEADER}")
    answer = web.Response(status=204, headers=_HEADERS)
    answer.del_cookie(
        cookie_name("session", request.secure), path=PATH, secure=request.secure, httponly=True, samesite="Strict"
    )
    return answer


def _keep(answer: web.Response, session: Session, secure: bool) -> None:
    if len(session.token) > _COOKIE_BYTES_MAX:
        raise NotAllowed(
            f"the token has {len(session.token)} bytes, and a browser keeps {_COOKIE_BYTES_MAX}: let the issuer put "
            "fewer claims (often groups) into it, or give the console a token of `heliograph tokens create`"
        )
    answer.set_cookie(
        cookie_name("session", secure),
        session.token,
        max_age=session.lasts_s or None,
        path=PATH,
        secure=secure,
        httponly=True,
        samesite="Strict",
    )


def _redirect(request: web.Request) -> str:
    """Where the browser comes back to: by the name that it knows this broker by. Raises NotAllowed."""
    url = f"{request.scheme}://{request.host}{_BACK}"
    if not secret_may_go_to(url):
        raise NotAllowed(
            f"{request.scheme}://{request.host} is not https://, and a session would go there in clear: open the "
            "console by https (broker.admin_tls_port)"
        )
    return url


def _to(url: str) -> web.Response:
    return web.Response(status=303, headers={**_HEADERS, "Location": url})


ROUTES: tuple[Route, ...] = (
    Route("GET", "/console/sign-in", CallAccess.PUBLIC, begin),
    Route("GET", _BACK, CallAccess.PUBLIC, end),
    Route("GET", "/console/sign-out", CallAccess.PUBLIC, sign_out),
)
