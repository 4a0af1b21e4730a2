"""Which roles may make which call of a metadata node: of a region's metadata, or of the configuration.

Is: one row a call. Isn't: which roles a listener lets in: a configuration node's only brokers and its own region's
steps, a metadata node's brokers, bookies, and metadata nodes.
Source: docs/security.md, "Calls inside".
"""

from __future__ import annotations

from heliograph.model.roles.call_roles import BOOKIE, BROKER, CONFIG, META, CallRoles, CallRow
from heliograph.wire.metadata_frames import Frame

CALLS = CallRoles(
    (
        CallRow(Frame.HELLO, (BROKER, BOOKIE, META, CONFIG)),
        CallRow(Frame.COMMAND, (BROKER, BOOKIE, META, CONFIG)),
        CallRow(Frame.GET, (BROKER, BOOKIE, META, CONFIG)),
        CallRow(Frame.RANGE, (BROKER, BOOKIE, META, CONFIG)),
        CallRow(Frame.RENEW, (BROKER, BOOKIE, CONFIG)),
        CallRow(Frame.WATCH, (BROKER, BOOKIE, META, CONFIG)),
        CallRow(Frame.UNWATCH, (BROKER, BOOKIE, META, CONFIG)),
        CallRow(Frame.RAFT, (META,)),
        CallRow(Frame.STATUS, (BROKER, BOOKIE, META, CONFIG)),
        CallRow(Frame.BACKUP, (BROKER, CONFIG)),
        CallRow(Frame.MEMBERS, (BROKER, CONFIG)),
        CallRow(Frame.COUNT, (BROKER, CONFIG)),
    ),
    (frame for frame in Frame if frame < Frame.ANSWER),
)
