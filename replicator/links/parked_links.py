"""Parking: a link that waits for a decision, because what must travel before the data conflicts with what its target
has.

Is: what is known of the conflict, and the three decisions. Isn't: finding the conflict (`SchemaHost.adopt`), or the
life of a link (`replicator.links.link`).
Invariants: a parked link sends nothing and drops nothing; no other link waits for it; only a decision changes what a
region has under a number.
Source: docs/protocols/links.md, "Parked links".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from heliograph.model.errors import NotAllowed
from heliograph.wire.links.schema_commands import SchemaRow
from replicator.health.link_causes import Cause

if TYPE_CHECKING:
    from replicator.links.link import Link
    from replicator.pulsar.pulsar_link import PulsarLink

events = logging.getLogger("replicator")

LEVEL = 6
"""From here on a target hears OVERRULE."""
_LOOK_S = 30.0
"""How often a parked link looks whether its conflict is over, where nothing tells it."""


class Choice(StrEnum):
    THEIRS = "theirs"
    OURS = "ours"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class ParkedLink:
    """`rows`: what the target has, what parts both among it; none where the conflict is of another kind."""

    cause: Cause
    text: str
    since_ms: int
    rows: tuple[SchemaRow, ...]


def park(link: Link | PulsarLink, cause: Cause, text: str, rows: Sequence[SchemaRow] = ()) -> float:
    """Nothing is sent before somebody decides. Returns after how many seconds the link looks again by itself: that
    counts as no restart, and brings no new event where it finds the same. rows: of a conflict, what the target has.
    """
    manager, before = link.manager, link.parked
    now_ms = manager.clock.wall_ms()
    if before is None or (before.cause, before.text) != (cause, text):
        events.warning(
            "link.parked", extra={"topic": link.log.topic, "target": link.target, "cause": cause, "text": text}
        )
        link.history.add(now_ms, cause, text)
    link.parked = ParkedLink(cause, text, now_ms if before is None else before.since_ms, tuple(rows))
    manager.parked[link] = None
    link.state, link.cause, link.cause_text = "parked", cause, text
    # A route may only be on its way to the target: the first looks follow soon.
    wait_s = _LOOK_S if cause is not Cause.ROUTE_CONFLICT else min(_LOOK_S, 2.0**link.failures)
    link.failures = min(link.failures + 1, 16)
    return wait_s


def settled(link: Link | PulsarLink) -> None:
    """The target takes what comes: the conflict, if there was one, is over."""
    if link.parked is not None:
        events.info("link.unparked", extra={"topic": link.log.topic, "target": link.target})
        link.parked = None
        link.manager.parked.pop(link, None)


async def resolve(link: Link, choice: Choice, *, dry_run: bool = False) -> list[int]:
    """Carries a decision out, and lets the link look again at once. Returns the numbers of the schema versions that it
    changes; in which region says the choice. A dry run only says them.

    THEIRS: this region takes what the target has. OURS: the target takes what this region has. What either had is kept
    under a new number.
    Raises NotAllowed, MetadataError.
    """
    parked, host = _decided(link), link.manager.schemas
    if choice is Choice.RETRY:
        return look_again(link, dry_run=dry_run)
    if parked.cause is not Cause.SCHEMA_CONFLICT or host is None or not parked.rows:
        raise NotAllowed(f"there is nothing to take ({parked.cause}): {parked.cause.remedy}")
    here = dict(await host.dump(link.log.topic))
    numbers = [
        number for number, value in parked.rows if here.get(number, value if choice is Choice.OURS else None) != value
    ]
    if choice is Choice.OURS and link.level < LEVEL:
        raise NotAllowed(f"{link.target} runs a version that cannot be overruled: upgrade it, or take theirs")
    if not dry_run:
        if choice is Choice.THEIRS:
            await host.overrule(link.log.topic, parked.rows)
        else:
            link.schemas.overrule(numbers)
        link.poke()
    return numbers


def look_again(link: Link | PulsarLink, *, dry_run: bool = False) -> list[int]:
    """As `resolve` with RETRY, which is all that is to be decided of a link to a Pulsar cluster. Raises NotAllowed."""
    _decided(link)
    if not dry_run:
        link.poke()
    return []


def _decided(link: Link | PulsarLink) -> ParkedLink:
    if link.parked is None:
        raise NotAllowed(f"the link of {link.log.topic} to {link.target} is not parked: nothing is to be decided")
    return link.parked
