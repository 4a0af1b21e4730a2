"""Rest: the admin interface of a broker, as commands ask it.

Is: JSON over HTTP, redirects to a topic's owner (with their body), and refusals as one sentence. Isn't: a command, or
what it prints.
The address and a token come from options, else from HELIOGRAPH_ADMIN and HELIOGRAPH_TOKEN, else the token is what
`heliograph login` keeps for the address; HELIOGRAPH_CA names the authority of an https address.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from heliograph.cli.signing_in.signed_in import token_for
from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.errors import ConfigError

AdminOption = Annotated[
    str, typer.Option("--admin", envvar="HELIOGRAPH_ADMIN", help="The admin URL of any broker of the region.")
]
TokenOption = Annotated[
    str, typer.Option("--token", envvar="HELIOGRAPH_TOKEN", help="A token, where the brokers want one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ADMIN = "http://127.0.0.1:8080"
_HOPS_MAX = 5
_REQUEST_ID = "X-Request-Id"
_HINTS = {
    401: "sign in with `heliograph login`, or give a token with --token or HELIOGRAPH_TOKEN",
    403: "the role of this token may not do that: ask an admin of the tenant for a grant",
    503: "try again; `heliograph status` shows whether everything runs",
}


class RestRefused(ConfigError):
    """A broker's answer that is no success. `code`: HTTP's; `reason`: its own sentence."""

    def __init__(self, error: urllib.error.HTTPError) -> None:
        self.code, self.reason = error.code, _reason(error)
        more = [
            _HINTS.get(error.code, ""),
            f"request {error.headers[_REQUEST_ID]} in the broker's log" if _REQUEST_ID in error.headers else "",
        ]
        super().__init__(f"{self.reason} ({'; '.join([f'HTTP {error.code}', *filter(None, more)])})")


class Rest:
    """`admin`: http://host:port of a broker. `timeout_s`: of one request. `pause_s`: between two requests that ask how
    far something is.
    """

    def __init__(self, admin: str, token: str = "", timeout_s: float = 30.0, *, pause_s: float = 0.2) -> None:
        if not admin.startswith(("http://", "https://")):
            raise ConfigError(f"--admin: expected http://host:port, not {admin!r}")
        self._base, self._token, self.timeout_s = admin.rstrip("/"), token, timeout_s
        self.pause_s = pause_s

    def at(self, admin: str = "", *, timeout_s: float = 0.0) -> Rest:
        """At another address, or with another time limit. The token that was given goes along, none that is kept."""
        return Rest(admin or self._base, self._token, timeout_s or self.timeout_s, pause_s=self.pause_s)

    def get(self, path: str, **query: Any) -> Any:
        return self.ask("GET", path, query=query)

    def put(self, path: str, body: Any = None, **query: Any) -> Any:
        return self.ask("PUT", path, body, query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return self.ask("POST", path, body, query)

    def delete(self, path: str, **query: Any) -> Any:
        return self.ask("DELETE", path, query=query)

    def ask(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        """The JSON of the answer, text where it is none, None where there is nothing to say. Raises RestRefused;
        ConfigError where no broker answers.
        """
        text, _ = self.raw(method, path, body, query)
        try:
            return json.loads(text) if text else None
        except ValueError:
            return text.decode(errors="replace")

    def raw(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        """(bytes, headers) of the answer. A query value of None or False is left out."""
        given = {
            key: str(value).lower() if value is True else value
            for key, value in (query or {}).items()
            if value is not None and value is not False
        }
        url = f"{self._base}{path}" + (f"?{urlencode(given)}" if given else "")
        data = None if body is None else json.dumps(body).encode()
        named: dict[str, str] = {}
        token = self._token or token_for(self._base)
        for _ in range(_HOPS_MAX):
            request = urllib.request.Request(
                url, method=method, data=data, headers={"Content-Type": "application/json", **named}
            )
            if token:
                request.add_unredirected_header("Authorization", f"Bearer {token}")
            try:
                with _opener(url).open(request, timeout=self.timeout_s) as answer:
                    return answer.read(), answer.headers
            except urllib.error.HTTPError as error:
                if error.code in (307, 308) and error.headers.get("Location"):
                    url = error.headers["Location"]
                    if not self._token and not secret_may_go_to(url):  # a kept token goes nowhere in clear
                        token = ""
                    named = {_REQUEST_ID: error.headers[_REQUEST_ID]} if _REQUEST_ID in error.headers else {}
                    continue
                raise RestRefused(error) from error
            except (urllib.error.URLError, TimeoutError, OSError) as error:
                reason = getattr(error, "reason", error)
                raise ConfigError(
                    f"no broker answers at {self._base} ({reason}): start one, or give its admin URL with --admin or "
                    "HELIOGRAPH_ADMIN"
                ) from error
        raise ConfigError(f"the brokers send this request round in a circle: {url}")


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read()
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace")[:200] or error.reason


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect of the standard library would drop the body."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Reads the authorities, which takes tens of milliseconds, where the address wants some."""
    if url.startswith("https:"):
        context = ssl.create_default_context(cafile=os.environ.get("HELIOGRAPH_CA") or None)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
