"""Which role may read, write, and watch which keys of a region's metadata.

Is: one row a prefix. Isn't: the check (`heliograph.model.roles.key_roles`, asked by
`heliograph.kv.server.metadata_server`).
Source: docs/security.md, "Keys of the metadata".
"""

from __future__ import annotations

from heliograph.kv.history import HISTORY
from heliograph.model.roles.call_roles import BOOKIE, BROKER, META
from heliograph.model.roles.key_roles import KeyRoles, KeyRow
from local_meta import keys

KEYS = KeyRoles(
    (
        KeyRow("", read=(BROKER,), write=(BROKER,), watch=(BROKER,)),
        KeyRow(keys.BOOKIES, watch=(BOOKIE,), own=(BOOKIE,)),
        KeyRow(keys.BOOKIE_COOKIES, own=(BOOKIE,)),
        KeyRow(keys.SEEN_BY_BOOKIES, own=(BOOKIE,)),
        KeyRow(keys.BOOKIE_LABELS, watch=(BOOKIE,)),
        KeyRow(keys.DECOMMISSIONS, watch=(BOOKIE,)),
        KeyRow(keys.LEDGERS, read=(BOOKIE,)),
        KeyRow(keys.UNDERREPLICATED, read=(BOOKIE,)),
        KeyRow(keys.PASSED_OVER, read=(BOOKIE,)),
        KeyRow(HISTORY, watch=(BOOKIE, META)),
        KeyRow(keys.INSTANCE, read=(BOOKIE,), make=(BOOKIE,)),
        KeyRow(keys.READ_KEYS, watch=(BOOKIE,)),
        KeyRow(keys.REVOKED, watch=(BOOKIE, META)),
        KeyRow(keys.METADATA_NODES, own=(META,)),
        KeyRow(keys.LEDGER_IDS, write=(BOOKIE,)),
    )
)
"""A bookie reads and raises the counter of ledger ids: one above what it holds is never given out again."""
