"""Parking: a link that waits for a decision, because what must travel before the data conflicts with what its target has.

Is: what is known of the conflict, and the three decisions. Isn't: finding the conflict (`SchemaHost.adopt`), or the life of a link (`replicator.link`).
Invariants: a parked link sends nothing and drops nothing; no other link waits for it; only a decision changes what a region has under a number.
Source: docs/protocols/links.md, "Parked links".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from heliograph.model.errors import NotAllowed
from heliograph.wire.link_schemas import SchemaRow
from replicator.causes import Cause

if TYPE_CHECKING:
    from replicator.link import Link

LEVEL = 6
"""From here on a target hears OVERRULE."""


class Choice(StrEnum):
    THEIRS = "theirs"
    OURS = "ours"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Parked:
    """`rows`: what the target has, what parts both among it; none where the conflict is of another kind."""

    cause: Cause
    text: str
    since_ms: int
    rows: tuple[SchemaRow, ...]


async def resolve(link: Link, choice: Choice, *, dry_run: bool = False) -> list[int]:
    """Carries a decision out, and lets the link look again at once. Returns the numbers of the schema versions that it changes; in which region says
    the choice. A dry run only says them.

    THEIRS: this region takes what the target has. OURS: the target takes what this region has. What either had is kept under a new number.
    Raises NotAllowed, MetadataError.
    """
    parked, host = link.parked, link.manager.schemas
    if parked is None:
        raise NotAllowed(f"the link of {link.log.topic} to {link.target} is not parked: nothing is to be decided")
    if choice is Choice.RETRY:
        if not dry_run:
            link.poke()
        return []
    if parked.cause is not Cause.SCHEMA_CONFLICT or host is None or not parked.rows:
        raise NotAllowed(f"there is nothing to take ({parked.cause}): {parked.cause.remedy}")
    here = dict(await host.dump(link.log.topic))
    numbers = [number for number, value in parked.rows if here.get(number, value if choice is Choice.OURS else None) != value]
    if choice is Choice.OURS and link.level < LEVEL:
        raise NotAllowed(f"{link.target} runs a version that cannot be overruled: upgrade it, or take theirs")
    if not dry_run:
        if choice is Choice.THEIRS:
            await host.overrule(link.log.topic, parked.rows)
        else:
            link.schemas.overrule(numbers)
        link.poke()
    return numbers
