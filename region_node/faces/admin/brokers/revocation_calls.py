"""What was revoked: tokens, what all tokens of a subject or of an issuer are, certificates, users with a password.

Is: paths of our own, and metrics. Isn't: the list (`global_config.revocation_list`), or what is refused and closed by
it (`region_node.security.authentication.revocations`, and each face).
Source: docs/security.md, "Revocation".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from heliograph.model.configuration.revocations import Revocation, Revoked, named
from heliograph.model.errors import NotAllowed
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.auth_middleware import ANSWERED_FIRST
from region_node.faces.admin.calls.call_bodies import OnlyGiven
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import role_of
from region_node.runtime.prometheus_text import Sample

_HEARD_S = 5.0
_TIME_MAX = 1 << 53


async def listed(admin: Admin) -> dict[str, Any]:
    """What counts as revoked here, and how old this broker's copy of the list may be."""
    found = admin.security.authentication.revocations
    return {
        "region": admin.region,
        "stale_s": admin.view.stale_s(),
        "revocations": [_shown(record) for record in found.records()],
    }


class RevocationTerms(OnlyGiven):
    """before_ms: of a subject or an issuer: tokens that were issued before; absent: of a subject now, of an issuer all.
    until_ms: what is revoked has run out by itself then; 0: never. Milliseconds since 1970.
    """

    before_ms: Annotated[int, Meta(ge=0, le=_TIME_MAX)] | None = None
    until_ms: Annotated[int, Meta(ge=0, le=_TIME_MAX)] = 0
    reason: Annotated[str, Meta(max_length=1000)] = ""


async def revoke(admin: Admin, request: web.Request, given: RevocationTerms | None) -> dict[str, Any]:
    """From now on it is refused in every region, and what is open by it is closed. `closed_here`: connections that this
    broker has closed by it when it answers; other brokers close theirs when they hear of it.
    """
    kind, name = _named(request)
    asked, now_ms = given or RevocationTerms(), admin.clock.wall_ms()
    dated = kind in (Revoked.SUBJECT, Revoked.ISSUER)
    if asked.before_ms and not dated:
        raise NotAllowed(
            f"before_ms is for tokens of a subject or an issuer: a {kind} is revoked whenever it was issued"
        )
    if asked.until_ms and kind == Revoked.USER:
        raise NotAllowed("until_ms is for what runs out by itself: a password does not, so revoke the user without one")
    if 0 < asked.until_ms <= now_ms:
        raise NotAllowed("until_ms lies in the past: what has run out needs no revocation")
    before_ms = asked.before_ms
    if before_ms is None:
        before_ms = now_ms if kind == Revoked.SUBJECT else 0
    record = Revocation(
        kind=kind,
        name=name,
        since_ms=now_ms,
        before_ms=before_ms,
        until_ms=asked.until_ms,
        reason=asked.reason,
        by=role_of(request),
        regions=(admin.region,),
    )
    revocations = admin.security.authentication.revocations
    request[ANSWERED_FIRST] = True
    closed = sum(revocations.closed.values())
    replaced, record = await admin.config.revocations.add(record)
    await revocations.heard(record, _HEARD_S)
    admin.changed(request, None if replaced is None else _shown(replaced), _shown(record))
    return {**_shown(record), "closed_here": sum(revocations.closed.values()) - closed}


async def lift(admin: Admin, request: web.Request) -> dict[str, Any]:
    """What it names counts again, in every region that hears of it; but where other regions have revoked it too
    (`still_in`) it stays so until it is lifted there.
    """
    kind, name = _named(request)
    before, after = await admin.config.revocations.lift(
        kind, name, admin.clock.wall_ms(), role_of(request), admin.region
    )
    await admin.security.authentication.revocations.heard(after, _HEARD_S)
    admin.changed(request, _shown(before), None if after.lifted_ms else _shown(after))
    return {**_shown(before), "still_in": [] if after.lifted_ms else list(after.regions)}


def samples(admin: Admin) -> Iterator[Sample]:
    found, labels = admin.security.authentication.revocations, {"cluster": admin.region}
    yield "heliograph_revocations", "gauge", labels, len(found)
    for face, count in sorted(found.closed.items()):
        yield "heliograph_revoked_connections_closed_total", "counter", {**labels, "face": face}, count


def _named(request: web.Request) -> tuple[str, str]:
    kind = request.match_info["kind"]
    return kind, named(kind, request.match_info["name"])


def _shown(record: Revocation) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if not name.startswith("lifted")}


_ONE = "/heliograph/v1/revocations/{kind}/{name}"
ROUTES: tuple[Route, ...] = (
    Route("GET", "/heliograph/v1/revocations", CallAccess.SUPER, listed),
    Route("PUT", _ONE, CallAccess.SUPER, revoke),
    Route("DELETE", _ONE, CallAccess.SUPER, lift),
)
