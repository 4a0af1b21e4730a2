"""The console's files, and asking in the user's name where a browser cannot go by itself: another broker of the region,
another region.

Is: paths below /console. Isn't: a handler of the data: the page asks the paths that everybody asks.
Invariants: a file is served by its name in a table, never by a path; what is passed on carries the caller's own
credentials and none of ours, so whoever is asked decides; other regions are only read; an answer is JSON, whatever the
other side says it is.
Source: docs/operating/console.md; docs/decisions/0092-a-console-of-static-files.md.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Collection, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, web
from yarl import URL

from heliograph.model.admin_paths import plain
from heliograph.model.errors import MetadataUnavailable, NotAllowed, NotFound, reason_of
from region_node import console
from region_node.faces.admin.calls.admin_context import Admin, whole_body
from region_node.faces.admin.calls.auth_middleware import ORIGINAL
from region_node.faces.admin.calls.call_rights import SERVED, CallAccess, Route
from region_node.faces.admin.calls.console_session import authorization_of
from region_node.faces.admin.calls.other_regions import check_passed_on, published_url
from region_node.faces.admin.server import console_sign_in
from region_node.runtime import request_ids
from region_node.runtime.bounded_answers import read_at_most

FILES = Path(console.__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_BELOW = ("/admin/v2/", "/heliograph/v1/")
_HOPS = 3
_ANSWER_BYTES_MAX = 16 << 20
_TIMEOUT = ClientTimeout(total=12.0, connect=3.0)


@cache
def files() -> dict[str, tuple[str, str]]:
    """Name -> (text, content type). The page is `index.html`."""
    found = {
        path.name: (path.read_text(encoding="utf-8"), _TYPES[path.suffix])
        for path in sorted(FILES.iterdir())
        if path.suffix in _TYPES
    }
    if "index.html" not in found:
        raise NotFound("the console's files were not installed with this broker")
    return found


async def page(admin: Admin) -> Any:
    """It says which region it is of, as /heliograph/v1/health does to everybody."""
    issuer = urlsplit(admin.sign_in.issuer).netloc if admin.sign_in is not None else ""
    filled = f'data-region="{escape(admin.region)}" data-issuer="{escape(issuer)}"'
    return _file("index.html", 'data-region="" data-issuer=""', filled)


async def file(admin: Admin, request: web.Request, file: str) -> Any:
    if file == "paths.js":
        return web.Response(text=paths(request.app[SERVED]), content_type=_TYPES[".js"], headers=_HEADERS)
    return _file(file)


def paths(rows: Sequence[Route]) -> str:
    """The page's table of calls, made from the rows that have a name there: name -> method and path."""
    named = {row.console: f"{row.method} {plain(row.path)}" for row in rows if row.console}
    return f"export const PATHS = {json.dumps(named, indent=2)};\n"


async def to_page(admin: Admin) -> Any:
    return web.Response(status=308, headers={"Location": "/console/"})


def _file(name: str, place: str = "", filled: str = "") -> web.Response:
    if name not in files():
        raise NotFound(f"the console has no file {name!r:.60}")
    text, kind = files()[name]
    return web.Response(text=text.replace(place, filled, 1), content_type=kind, headers=_HEADERS)


async def passed_on(admin: Admin, request: web.Request) -> Any:
    """Asks an admin path of a region in the caller's name, and follows to the broker that owns the topic. Only GET
    where the region is another one.
    """
    region, path = request.match_info["region"], f"/{request.match_info['path']}"
    if not path.startswith(_BELOW) or {".", ".."} & set(path.split("/")):
        raise NotAllowed(f"only paths below {' and '.join(_BELOW)} are passed on")
    if region != admin.region and request.method != "GET":
        raise NotAllowed(f"region {region} is only read from here: change it by its own console")
    if region == admin.region:  # by TLS for who came by TLS: the credentials they bring must not go on without
        base, brokers = (
            admin.ownership.record.admin_url_by(request.secure),
            {record.admin_url_by(request.secure) for record in admin.ownership.brokers()},
        )
    else:
        base, brokers = published_url(admin, region), set()
    behind = request.rel_url.raw_path.split("/", 4)[4]  # as it was written: names may hold what a path may not
    query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
    status, text = await _ask(admin, request, f"{base.rstrip('/')}/{behind}{query}", region, brokers)
    request["passed_on"] = True  # who was asked has it in the audit log
    return web.Response(text=text, status=status, content_type="application/json", headers=_HEADERS)


async def _ask(admin: Admin, request: web.Request, url: str, region: str, brokers: Collection[str]) -> tuple[int, str]:
    """brokers: the addresses that may be followed to; none: those that `allowed_urls` names."""
    headers: dict[str, str] = {
        name: request.headers[name] for name in (ORIGINAL, "Content-Type") if name in request.headers
    }
    if authorization := authorization_of(request):
        headers["Authorization"] = authorization
    headers.update(request_ids.header())
    trusted: ssl.SSLContext | bool = admin.outward() if admin.outward is not None else True
    body, schemes = await whole_body(request), ("https",) if url.startswith("https:") else ("http", "https")
    try:
        async with ClientSession(timeout=_TIMEOUT) as session:
            for _ in range(_HOPS):
                if brokers:
                    _check(url, brokers)
                else:
                    admin.urls.check(url, schemes)
                    check_passed_on(admin, url, region, headers)
                asked = session.request(
                    request.method,
                    URL(url, encoded=True),
                    headers=headers,
                    data=body or None,
                    allow_redirects=False,
                    ssl=trusted,
                )
                async with asked as answer:
                    if answer.status == 307:
                        url = answer.headers.get("Location", "")
                        continue
                    given = await read_at_most(answer, _ANSWER_BYTES_MAX)
                    if given is None:
                        raise NotAllowed(
                            f"the answer is larger than the {_ANSWER_BYTES_MAX >> 20} MiB that a page takes"
                        )
                    return answer.status, _json(given)
    except (ClientError, TimeoutError, OSError) as error:
        raise MetadataUnavailable(f"region {region} does not answer at {url}: {reason_of(error)}") from error
    raise MetadataUnavailable(f"the topic is moving between brokers of {region}: try again")


def _check(url: str, brokers: Collection[str]) -> None:
    if urlsplit(url)[:2] not in {urlsplit(known)[:2] for known in brokers}:
        raise MetadataUnavailable(f"{url} is no broker of this region")


def _json(given: bytes) -> str:
    text = given.decode("utf-8", "replace")
    try:
        msgspec.json.decode(text or "null", type=msgspec.Raw)  # nothing is made of it
    except (msgspec.DecodeError, RecursionError):
        return json.dumps({"reason": text[:300]})
    return text


_AT = "/console/at/{region}/{path:.+}"
ROUTES: tuple[Route, ...] = (
    Route("GET", "/console", CallAccess.PUBLIC, to_page),
    Route("GET", "/console/", CallAccess.PUBLIC, page),
    *console_sign_in.ROUTES,
    Route("GET", "/console/{file}", CallAccess.PUBLIC, file),
    Route("GET", _AT, CallAccess.PASSED_ON, passed_on),
    Route("PUT", _AT, CallAccess.PASSED_ON, passed_on),
    Route("POST", _AT, CallAccess.PASSED_ON, passed_on),
    Route("DELETE", _AT, CallAccess.PASSED_ON, passed_on),
)
