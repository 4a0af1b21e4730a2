"""Where a link begins that is switched on later: with everything that is there, or with a part, which the policy
`replicationStart` names.

Is: the first position that is sent, kept in the properties of the link's cursor from its making on. Isn't: the SKIP
that tells the target of what is left out (`replicator.sending.link_sender`).
Invariants: it is chosen once, when the cursor is made; what lies before it and was not delivered is named by a
SKIP(admin), so that the target shows it as missing and no audit takes it for lost.
Source: docs/protocols/links.md, "Where a link begins".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heliograph.model.coordinates import parse_coordinate
from heliograph.model.errors import NotAllowed
from heliograph.model.positions import BEFORE_ALL, Position

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog

PROPERTY = "heliograph.begins"


def properties_of(log: ReplicatedLog, policy: Mapping[str, Any] | None, last: Position) -> dict[str, str]:
    """The properties of a new link's cursor. last: the topic's last entry when the link was switched on.

    Raises NotAllowed where the policy names a coordinate of another region.
    """
    begins = _begins(log, policy or {}, last)
    return {PROPERTY: f"{begins[0]}:{begins[1]}"} if begins > BEFORE_ALL else {}


def begins_of(properties: Mapping[str, str]) -> Position:
    """The first position that the link sends, as its cursor says; BEFORE_ALL: it begins with everything."""
    ledger, _, entry = properties.get(PROPERTY, "").partition(":")
    return (int(ledger), int(entry)) if ledger.isdecimal() and entry.isdecimal() else BEFORE_ALL


def _begins(log: ReplicatedLog, policy: Mapping[str, Any], last: Position) -> Position:
    match policy.get("position", "earliest"):
        case "latest":
            return (last[0], last[1] + 1) if last > BEFORE_ALL else BEFORE_ALL
        case "time":
            before = log.state.outbox.last_before(policy.get("timeMs", 0))
            return (before[0], before[1] + 1) if before > BEFORE_ALL else BEFORE_ALL
        case "coordinate":
            origin, at = parse_coordinate(policy.get("coordinate", ""))
            if at > log.state.local_end(origin):
                raise NotAllowed(
                    f"{log.topic}: replicationStart names {policy.get('coordinate')}, which came from another region: "
                    "this one sends its own only"
                )
            return at
    return BEFORE_ALL
