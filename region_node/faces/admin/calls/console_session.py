"""The console's session: a token in a cookie, for who signed in at an issuer.

Is: the cookie, and when it stands for an Authorization header. Isn't: how somebody signs in.
Invariants: it counts for what the console passes on alone, and only with a header that no other site's page can send;
a script never sees it; beyond this machine it goes by TLS alone.
"""

from __future__ import annotations

from aiohttp import web

HEADER = "X-Heliograph-Console"
PATH = "/console/"
_PASSED_ON = "/console/at/"


def cookie_name(name: str, secure: bool) -> str:
    """A browser takes `__Secure-` by TLS alone, so nobody in between can plant one."""
    return f"__Secure-heliograph-{name}" if secure else f"heliograph-{name}"


def authorization_of(request: web.Request) -> str:
    """The Authorization header; where the console asks without one, its session."""
    if (given := request.headers.get("Authorization")) is not None:
        return given
    if request.path.startswith(_PASSED_ON) and HEADER in request.headers:
        token = request.cookies.get(cookie_name("session", request.secure), "")
        return f"Bearer {token}" if token else ""
    return ""
