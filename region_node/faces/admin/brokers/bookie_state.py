"""What a bookie says of itself, asked through a broker: its directories, their space, garbage collection and scrub, and
how far it is emptied.

Is: one path, /heliograph/v1/bookies/{id}, for the console and for who cannot reach the bookies' own HTTP. Isn't: an act
on a bookie.
Invariants: nothing is asked but the address that the bookie has registered in the region's metadata, with this broker's
certificate where the region speaks TLS inside, and with the caller's own token where it does not: the bookie decides. A
bookie that does not answer is told with the reason; the rest is there.
"""

from __future__ import annotations

import json
from typing import Any

import msgpack
from aiohttp import ClientError, ClientSession, ClientTimeout, web

from heliograph.model.errors import MetadataUnavailable, NotFound, reason_of
from local_meta import keys
from region_node.faces.admin.brokers.extensions import Bookie
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing, recovery_of
from region_node.runtime.bounded_answers import read_at_most

_TIMEOUT = ClientTimeout(total=5.0, connect=2.0)
_ANSWER_BYTES_MAX = 4 << 20


async def state(admin: Admin, request: web.Request, bookie: Bookie) -> Any:
    """`state`: as the bookie's own GET /state; null where it does not say, and `reason` why."""
    row = next((row for row in recovery_of(admin).bookies() if row["id"] == bookie), None)
    if row is None or admin.usage_store is None:
        raise NotFound(f"Bookie {bookie} is not registered in this region")
    found = await admin.usage_store.get(keys.bookie(bookie))
    try:
        return {**row, "state": await _ask(admin, request, _address(found)), "reason": ""}
    except MetadataUnavailable as error:
        return {**row, "state": None, "reason": str(error)}


def _address(registered: tuple[bytes, int] | None) -> str:
    """Raises MetadataUnavailable where the bookie has none."""
    fields = msgpack.unpackb(existing(registered, MetadataUnavailable("it is away: its registration has ended"))[0])
    if not fields.get("http_port"):
        raise MetadataUnavailable("it has no HTTP port: set bookie.http_port (0 is any free one), and start it again")
    return f"{fields['host']}:{fields['http_port']}"


async def _ask(admin: Admin, request: web.Request, address: str) -> Any:
    url = f"{'http' if admin.to_bookies is None else 'https'}://{address}/state"
    headers = (
        {"Authorization": token} if (token := request.headers.get("Authorization")) and admin.to_bookies is None else {}
    )
    try:
        async with (
            ClientSession(timeout=_TIMEOUT) as session,
            session.get(url, headers=headers, ssl=admin.to_bookies or True, allow_redirects=False) as answer,
        ):
            if (text := await read_at_most(answer, _ANSWER_BYTES_MAX)) is None:
                raise MetadataUnavailable(f"its answer at {address} is larger than {_ANSWER_BYTES_MAX >> 20} MiB")
            if answer.status != 200:
                raise MetadataUnavailable(
                    f"it answered {answer.status} at {address}: {text[:200].decode(errors='replace')}"
                )
            return json.loads(text)
    except (ClientError, TimeoutError, OSError, ValueError) as error:
        raise MetadataUnavailable(f"it does not answer at {address}: {reason_of(error)}") from error


ROUTES: tuple[Route, ...] = (Route("GET", "/heliograph/v1/bookies/{id}", CallAccess.SUPER, state, console="bookie"),)
