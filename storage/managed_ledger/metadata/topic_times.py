"""When a topic was made, and when something was published to it last, as two properties of its metadata.

Is: reading them, where they are not there finding what is known instead, and writing them. Isn't: whoever keeps them
while the topic is open (TopicRecord).
Invariants: a topic is dated once, by the claim that makes it, or by the first one of a version that dates. A version
that does not know of them keeps them as they are: so the second one says of which message it speaks, and holds only
while that one is the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph.model.ledger_metadata import TRIMMED_MS, LedgerInfo, ManagedLedgerMetadata
from heliograph.wire.run import FLAG_HIDDEN, Run

CREATED_MS = "heliograph.created_ms"
"""Names the property with the wall time at which the topic was made, in milliseconds."""
PUBLISHED = "heliograph.published"
"""Index behind the last message, a space, and the wall time at which a broker took it."""


def dated(properties: Mapping[str, str], created_ms: int, published_ms: int = 0, next_index: int = 0) -> dict[str, str]:
    """The same, with both; a time of 0 is left out. next_index: behind the last message."""
    out = {name: value for name, value in properties.items() if name not in (CREATED_MS, PUBLISHED)}
    if created_ms:
        out[CREATED_MS] = str(created_ms)
    if published_ms:
        out[PUBLISHED] = f"{next_index} {published_ms}"
    return out


def created_ms(stored: ManagedLedgerMetadata, now_ms: int = 0) -> int:
    """The wall time at which the topic was made. An older topic has the earliest time at which it is known to have been
    there; where there is none, `now_ms`.
    """
    if known := _number(stored.properties.get(CREATED_MS, "")):
        return known
    times = (_number(stored.properties.get(TRIMMED_MS, "")), *(closed for _, closed in stored.spans()))
    return next((time for time in times if time), now_ms)


def published_ms(stored: ManagedLedgerMetadata, infos: Sequence[LedgerInfo] = ()) -> int:
    """As stored; else when the last ledger was closed, which is later. 0: nothing is known. infos: the ledgers as they
    are by now.
    """
    index, _, time = stored.properties.get(PUBLISHED, "").partition(" ")
    if index == str(stored.next_index) and _number(time):
        return _number(time)
    last = infos[-1].closed_ms if infos else stored.pages[-1].last.closed_ms if stored.pages else 0
    return last or _number(stored.properties.get(TRIMMED_MS, ""))


def published_by(run: Run, before_ms: int) -> int:
    """Once it is confirmed too; what ends with something hidden, such as the end of a transaction, is nothing that was
    published.
    """
    return before_ms if run.flags is not None and run.flags[-1] & FLAG_HIDDEN else run.time_ms


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
