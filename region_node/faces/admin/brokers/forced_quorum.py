"""A forced quorum of the global configuration: its plan, the deed, and how a member that was left behind comes back.

Is: paths of our own, and whether this broker hears anything of the lost regions. Isn't: a rule of it
(`global_config.voters.forced_quorum`, at the region's own configuration node).
Source: docs/operating/forced-quorum.md.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from global_config.voters.forced_quorum import HEARD_S, STOPPED
from heliograph.model.errors import HeliographError, NotAllowed
from region_node.faces.admin.calls.admin_context import Admin, flag
from region_node.faces.admin.calls.call_bodies import OnlyGiven
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.other_regions import RegionAnswered, RegionRefused, elsewhere

_STATUS = "/heliograph/v1/config/status"


class Lost(OnlyGiven):
    """lost: every other member of the configuration. lost_are_stopped: an operator knows that none of them runs, where
    they may be a majority.
    """

    lost: Annotated[list[Annotated[str, Meta(min_length=1, pattern="^[^,]*$")]], Meta(min_length=1, max_length=64)]
    lost_are_stopped: bool = False


async def force(admin: Admin, request: web.Request, given: Lost) -> dict[str, Any]:
    """This region's configuration node decides alone from now on, in another generation; 412 with the reason where that
    is refused. `plan`: what is known of it, with every reason in `refused`; null where it decides alone already.
    """
    dry, group = flag(request, "dry_run"), admin.members["config"]
    asked = ",".join(given.lost), STOPPED if given.lost_are_stopped else ""
    report, _ = await group("dry-force", *asked)
    plan = report["plan"]
    if plan is not None:
        plan["refused"] += await _heard(admin, request, plan["silent_s"])
    would = plan is not None and not plan["refused"]
    if plan is not None and not dry:
        if not would:
            raise NotAllowed(plan["refused"][0])
        done, _ = await group("force", *asked)
        report = {**done, "plan": plan}
        admin.changed(request, None, {"members": report["members"], "generation": report["generation"]})
    return {"changed": would and not dry, "would_change": would, **report}


async def _heard(admin: Admin, request: web.Request, members: dict[str, float]) -> list[str]:
    """What this broker hears of the regions among them: by links, or by their admin interface."""
    why = []
    for name in members:
        if admin.view.region(name) is None:
            continue
        if (silent_s := admin.links.silent_s(name)) < HEARD_S:
            why.append(
                f"a link from {name} was heard {silent_s:.1f} s ago, or this broker was started then: nothing must "
                f"have been heard of it for {HEARD_S:g} s"
            )
        try:
            async with asyncio.timeout(admin.region_patience_s):
                await elsewhere(admin, request, name, "GET", _STATUS)
        except (RegionAnswered, RegionRefused):  # it is there, whatever it says
            pass
        except (HeliographError, TimeoutError):
            continue
        why.append(f"a broker of {name} answers: it is not lost")
    return why


async def rejoin(admin: Admin, request: web.Request) -> dict[str, Any]:
    """One step of a member's way back: what it holds is set aside, it learns, it votes. 412 with what it waits for, or
    why it is refused; repeated until it is done.
    """
    report, changed = await admin.members["config"]("rejoin", request.match_info["member"])
    if changed:
        admin.changed(request, None, {"members": report["members"]})
    return {"changed": changed, **report}


ROUTES: tuple[Route, ...] = (
    Route("POST", "/heliograph/v1/config/force-quorum", CallAccess.SUPER, force, flags=("dry_run",)),
    Route("POST", "/heliograph/v1/config/members/{member}/rejoin", CallAccess.SUPER, rejoin),
)
