"""Which roles may make which call of a bookie: brokers every one; another bookie, which fetches blocks that it lacks,
only those that change nothing.

Is: one row a call. Isn't: a decision about a ledger.
Source: docs/security.md, "Calls inside".
"""

from __future__ import annotations

from heliograph.model.roles.call_roles import BOOKIE, BROKER, CallRoles, CallRow
from heliograph.wire.bookie_frames import Kind

CALLS = CallRoles(
    (
        CallRow(Kind.ADD, (BROKER,)),
        CallRow(Kind.ADD_RECOVERY, (BROKER,)),
        CallRow(Kind.READ, (BROKER, BOOKIE)),
        CallRow(Kind.FENCE, (BROKER,)),
        CallRow(Kind.WRITE_LAC, (BROKER,)),
        CallRow(Kind.READ_LAC, (BROKER, BOOKIE)),
        CallRow(Kind.DELETE, (BROKER,)),
        CallRow(Kind.LEDGERS, (BROKER,)),
    ),
    (kind for kind in Kind if kind < Kind.LOST),
)
