"""Which roles of a region's certificates may make which call of a listener inside a region: a row for each call.

Is: the form of a row, the check of a listener's rows, and the calls of one peer. Isn't: the rows (each listener has its
own), or who is let in at all: the TLS handshake decides that by role and region.
Invariants: a call without a row, and a row without a role, end the start; a peer whose role has no row makes no call. A
listener that speaks plainly knows no roles: whoever reaches it may make every call.
Source: docs/security.md, "Calls inside"; docs/decisions/0228-a-call-inside-says-its-roles.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from heliograph.model.roles.certificate_role import peer_identity

BROKER, BOOKIE, META, CONFIG = "broker", "bookie", "meta", "config"
ROLES = frozenset((BROKER, BOOKIE, META, CONFIG))


class CallRow(NamedTuple):
    """A call and the roles whose certificates may make it."""

    call: IntEnum
    roles: tuple[str, ...]


class CallRoles:
    """The rows of one listener. Raises TypeError where a call has no row, or a row no role of a region's; ValueError
    for two rows of one call.
    """

    def __init__(self, rows: Iterable[CallRow], calls: Iterable[IntEnum]) -> None:
        found = tuple(rows)
        self.rows = {row.call: row for row in found}
        if len(self.rows) != len(found):
            raise ValueError("a call has two rows: leave one")
        if missing := [call.name for call in calls if call not in self.rows]:
            raise TypeError(f"{', '.join(missing)}: nobody may make it: write CallRow(…, (BROKER,))")
        for row in found:
            if not row.roles or not ROLES.issuperset(row.roles):
                raise TypeError(f"{row.call.name}: {row.roles} are no roles of a region's certificates")
        self.every = frozenset(map(int, self.rows))
        self._of = {role: frozenset(int(row.call) for row in found if role in row.roles) for role in ROLES}

    def of(self, certificate: dict[str, Any] | None, *, tls: bool) -> frozenset[int]:
        """What a peer may call, by its certificate as `getpeercert()` tells it."""
        return self._of.get(peer_identity(certificate)[0], frozenset()) if tls else self.every
