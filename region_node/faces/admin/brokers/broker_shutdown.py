"""A broker ends by an admin's word, as by SIGTERM to its process.

Invariants: the answer is out before anything ends; then the broker gives its bundles away, in at most
`broker.drain_timeout_s`, and its process ends with every role that it has.
"""

from __future__ import annotations

import logging
from typing import Any

from aiohttp import web

from heliograph.model.errors import NotAllowed
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_rights import CallAccess, Route

log = logging.getLogger("region_node.admin.ending")


async def shutdown(admin: Admin, request: web.Request, *, maxConcurrentUnloadPerSec: int = 0) -> Any:
    """Ends this broker. maxConcurrentUnloadPerSec and forcedTerminateTopic are read and change nothing: a drain takes
    what time it needs, and a limit.
    """
    if maxConcurrentUnloadPerSec < 0:
        raise NotAllowed("maxConcurrentUnloadPerSec must not be negative; 0 is no limit")
    if admin.end is None:
        raise NotAllowed("this broker is not told from here when to end: stop its process by SIGTERM")
    log.info("broker.told_to_end", extra={"broker": admin.ownership.record.broker})
    answer = web.Response(status=204)
    answer.force_close()
    await answer.prepare(request)
    await answer.write_eof()
    admin.changed(request, "serving", "ended")
    admin.end()
    return answer


ROUTES: tuple[Route, ...] = (Route("POST", "/admin/v2/brokers/shutdown", CallAccess.SUPER, shutdown),)
