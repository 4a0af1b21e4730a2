"""What a link's target had confirmed when the cursor was stored: by this a new owner knows a target that was put back
to an older copy.

Is: a coordinate in the properties of the link's cursor, in the same write as its position. Isn't: the judgement whether
a target went back (`replicator.sending.link_sender`).
Invariants: it is never older than the position that is stored with it. The topic's state has it too, but is stored less
often; and the position alone does not tell it, as it passes over what was not meant for the target.
Source: docs/protocols/links.md, "Handshake".
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.model.coordinates import Coordinate, format_coordinate, parse_coordinate
from heliograph.model.errors import NotAllowed

PROPERTY = "heliograph.delivered"


def properties_of(delivered: Coordinate | None) -> dict[str, str]:
    """To be stored with the cursor. None: nothing was confirmed yet."""
    return {} if delivered is None else {PROPERTY: format_coordinate(delivered)}


def delivered_of(properties: Mapping[str, str]) -> Coordinate | None:
    """As it was stored; None: it was not, or cannot be read."""
    try:
        return parse_coordinate(properties.get(PROPERTY, ""))
    except NotAllowed:
        return None
