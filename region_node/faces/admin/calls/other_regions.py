"""Asking another region over its admin interface for what only it knows, with the caller's own credentials.

Is: one call, and whose credentials go with it. Isn't: a path, or what an answer means.
Invariants: no answer takes more memory than ANSWER_BYTES_MAX; credentials go only to an address that may be called
(`allowed_urls`), and only by TLS, but on this machine; where the audience of a region is known (`region_audiences`),
only a token that names it goes there. What a region says of its own audience is not asked: one that is taken over would
name another's.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Protocol

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from global_config.view import ConfigView
from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.errors import MetadataUnavailable, NotAllowed, reason_of
from heliograph.runtime.throttle import RowPace
from heliograph.wire.run import Buffer
from region_node.faces.admin.calls.auth_middleware import ORIGINAL
from region_node.runtime.bounded_answers import read_at_most
from region_node.security.allowed_urls import UrlList

TIMEOUT = ClientTimeout(total=10.0, connect=3.0)
ANSWER_BYTES_MAX = 16 << 20
VALUES_MAX = 2_000_000
"""Values of an answer: each takes some tens of bytes of memory, and its time."""
PIECE_BYTES = 256 << 10
"""So much is parsed at once: some milliseconds."""
_LEVELS_MAX = 8
_GATEWAY = (502, 503, 504)
"""What a proxy says, too, behind which nothing is; what a broker says is JSON."""
_PROOF = ("Authorization", ORIGINAL)


class RegionAnswered(MetadataUnavailable):
    """Something there answers, but not with what was asked for."""


class RegionRefused(NotAllowed):
    """It answers, and refuses whoever asks."""


class Caller(Protocol):
    """Whose credentials go to other regions: a request, or a broker of its own accord."""

    @property
    def headers(self) -> Mapping[str, str]: ...


class RegionsPort(Protocol):
    """Where other regions are, and how they may be called: `region_node.faces.admin.calls.admin_context.Admin`, or
    `region_node.faces.admin.calls.ends_elsewhere.EndsElsewhere`.
    """

    @property
    def view(self) -> ConfigView: ...

    @property
    def urls(self) -> UrlList: ...

    @property
    def outward(self) -> Callable[[], ssl.SSLContext] | None: ...

    @property
    def audiences(self) -> Mapping[str, str]:
        """Region -> the audience that a token for it names."""


def check_passed_on(admin: RegionsPort, url: str, region: str, headers: Mapping[str, str]) -> None:
    """Raises NotAllowed where the headers prove who calls, and would go to another machine for everybody to read, or
    are of use elsewhere than in the region that they would go to.
    """
    if "Authorization" not in headers:
        return
    audience = admin.audiences.get(region, "")
    if audience and audience not in (named := _audiences(headers["Authorization"])):
        names = f"is for {', '.join(named)[:200]}" if named else "names no audience"
        raise NotAllowed(
            f"region {region} takes tokens for {audience} (security.region_audiences), and what the caller brings "
            f"{names}: it is not passed on, as it would be of use to that region elsewhere. Ask with a token that "
            f"names {audience} in aud, or ask region {region} itself"
        )
    if not secret_may_go_to(url):
        raise NotAllowed(
            f"region {region} is asked at {url.partition('?')[0]}, which is not https://: the caller's token would go "
            "there in clear. Open broker.admin_tls_port there, and name it: "
            f"heliograph clusters update {region} --url https://HOST:PORT"
        )


def _audiences(authorization: str) -> list[str]:
    """Those that a token names, whose signature is not looked at here; of anything else: none."""
    scheme, _, token = authorization.partition(" ")
    parts = token.strip().split(".")
    if scheme.lower() != "bearer" or len(parts) != 3:
        return []
    try:
        claims = msgspec.json.decode(
            base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), type=dict[str, Any]
        )
    except (ValueError, RecursionError):
        return []
    named = claims.get("aud")
    return [each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)]


def published_url(admin: RegionsPort, region: str) -> str:
    """Where the region's admin interface is. Raises MetadataUnavailable where it publishes none."""
    info = admin.view.region(region)
    if info is None or not info.admin_url:
        raise MetadataUnavailable(
            f"region {region} publishes no admin URL: set it with `heliograph clusters update {region} --url URL`"
        )
    return info.admin_url


async def elsewhere(admin: RegionsPort, request: Caller, region: str, method: str, path: str, given: Any = None) -> Any:
    """The JSON that the same interface of another region answers, in the name of whoever asks, or None where the answer
    is empty. Raises MetadataUnavailable (RegionAnswered: it is there), NotAllowed (an address that may not be called;
    RegionRefused: the region refuses whoever asks).
    """
    url = published_url(admin, region)
    admin.urls.check(url, ("http", "https"))
    headers = {name: request.headers[name] for name in _PROOF if name in request.headers}
    check_passed_on(admin, url, region, headers)
    try:
        async with (
            ClientSession(timeout=TIMEOUT) as session,
            session.request(
                method,
                url.rstrip("/") + path,
                headers=headers,
                json=given,
                ssl=admin.outward() if admin.outward else True,
            ) as answer,
        ):
            raw = await read_at_most(answer, ANSWER_BYTES_MAX)
            if raw is None:
                raise MetadataUnavailable(
                    f"region {region} answers at {url} with more than {ANSWER_BYTES_MAX >> 20} MiB: ask it there for "
                    f"{path}"
                )
            text = raw[:300].decode(errors="replace")
    except (ClientError, TimeoutError, OSError) as error:
        raise MetadataUnavailable(f"region {region} does not answer at {url}: {reason_of(error)}") from error
    if answer.status in (401, 403):
        raise RegionRefused(_refusal(region, answer.status, text, proven="Authorization" in headers))
    if answer.status >= 300:
        answered = answer.status not in _GATEWAY or answer.content_type == "application/json"
        raise (RegionAnswered if answered else MetadataUnavailable)(f"region {region} answered {answer.status}: {text}")
    try:
        return await parsed(raw) if raw else None
    except (ValueError, RecursionError) as error:
        raise MetadataUnavailable(f"region {region} answers at {url} with something else than JSON") from error


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text!r:.100} is no number that JSON has")
    return number


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


async def parsed(raw: Buffer, level: int = 0, *, piece_bytes: int = PIECE_BYTES, values_max: int = VALUES_MAX) -> Any:
    """What the JSON says, piece by piece where it is long: the parser lets nobody else go on. Raises ValueError (also
    for Python's Infinity and NaN, and for what is as large: whoever counts with it would fail), RecursionError.
    """
    if len(raw) <= piece_bytes:
        return _JSON.decode(bytes(raw).decode())
    if level > _LEVELS_MAX or (not level and sum(map(bytes(raw).count, (b",", b"[", b"{"))) > values_max):
        raise ValueError("it has too many values, or long ones too deep in it")
    parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw] | list[msgspec.Raw] | str)
    if isinstance(parts, str):
        return parts
    pace = RowPace()
    found = []
    for part in parts.values() if isinstance(parts, dict) else parts:
        await pace.row()
        found.append(await parsed(memoryview(part), level + 1, piece_bytes=piece_bytes, values_max=values_max))
    return dict(zip(parts, found, strict=True)) if isinstance(parts, dict) else found


def _refusal(region: str, status: int, text: str, *, proven: bool) -> str:
    if status == 403:
        return f"region {region} does not let whoever asks do that there: {text}"
    if proven:
        return f"region {region} does not take the caller's credentials, ask with some that it takes too: {text}"
    return (
        f"region {region} does not know who asks: a certificate proves that here alone, and is not passed on; ask with "
        f"a token that region {region} takes too"
    )
