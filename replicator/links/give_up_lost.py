"""Giving up: entries that this region lost before a target got them, named to it as lost, so that the link goes on
behind them.

Is: which entries these are, and a person's decision. Isn't: a repair (the audit fetches what another region has, and
should be tried first), or the SKIP itself (`replicator.sending.link_sender` makes it, and the target stores it).
Invariants: only what no bookie gives now is given up, one stretch of one closed ledger at a time; nothing does so by
itself, because a bookie that is only away comes back with what it holds.
Source: docs/protocols/links.md, "What was lost at its source".
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from heliograph.model.errors import NotAllowed
from heliograph.model.positions import Position
from replicator.health.link_causes import Cause

if TYPE_CHECKING:
    from replicator.links.link import Link

events = logging.getLogger("replicator")


async def give_up(link: Link, *, dry_run: bool = False) -> tuple[Position, Position]:
    """Returns the first and the last of the entries that the link stands before and that no bookie gives; unless it is
    a dry run, they are not sent any more.

    Raises NotAllowed where the link does not wait for storage, or has left this broker, or everything of that ledger
    can be read; what storage raises.
    """
    core, log = link.core, link.log
    if core is None or link.cause is not Cause.STORAGE:
        raise NotAllowed(
            f"the link of {log.topic} to {link.target} does not wait for entries that cannot be read ({link.cause}): "
            "there is nothing to give up"
        )
    read_at = core.read_at
    ledger, entry = (
        await log.ledger.first_from(read_at) or read_at
    )  # what it read last may be the end of the ledger before
    damaged = await log.ledger.damaged(ledger, entry)
    if link.ended:
        raise NotAllowed(f"{log.topic} was moved to another broker meanwhile: nothing is given up, ask again")
    if not damaged:
        raise NotAllowed(
            f"all of ledger {ledger} of {log.topic} from entry {entry} on can be read, or the ledger is still open: "
            "look again, or unload the topic"
        )
    first, last = (ledger, damaged[0][0]), (ledger, damaged[0][1])
    if not dry_run:
        events.warning("link.gives_up", extra={"topic": log.topic, "target": link.target, "first": first, "last": last})
        link.give_up(read_at if first == (ledger, entry) else first, last)
    return first, last
