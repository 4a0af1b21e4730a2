"""Unopened topics: what a heartbeat tells of topics that the target may not have at all.

Is: the meaning of the item for stream 0, and its bytes. Isn't: who counts (`replicator.health.unopened_topics`).

    [0, nil, {}, [0, 0, 0, 0], [source region, broker, whole, {namespace: [topics, messages, bytes, oldest ms]}]]

No stream has the number 0: a version that does not know the item takes it for a stream that is not open, and passes it
over.
Source: docs/protocols/links.md, "Risk".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heliograph.model.errors import PeerError
from heliograph.wire.links.command_fields import number as _number
from heliograph.wire.links.command_fields import text as _text

STREAM = 0
"""The number under which a heartbeat tells of them."""
ROWS_MAX = 200
"""So many namespaces are named in one heartbeat."""


@dataclass(frozen=True, slots=True)
class UnopenedRow:
    """What lies in those of one namespace. oldest_ms: broker time of the oldest message, by the source's clock."""

    topics: int
    messages: int
    size_bytes: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class UnopenedTopics:
    """Topics with messages whose link to the target was never opened by `broker`, by namespace; what is not named has
    none, where it is `whole`.
    """

    source: str
    broker: str
    whole: bool = True
    rows: Mapping[str, UnopenedRow] = field(default_factory=dict)

    def item(self) -> list[Any]:
        """As it lies in a heartbeat."""
        rows = {name: [row.topics, row.messages, row.size_bytes, row.oldest_ms] for name, row in self.rows.items()}
        return [STREAM, None, {}, [0, 0, 0, 0], [self.source, self.broker, self.whole, rows]]


def read_unopened(item: list[Any]) -> UnopenedTopics | None:
    """Reads the item; None: it tells nothing that is known here. Raises PeerError."""
    if len(item) < 5:
        return None
    told = item[4]
    if not isinstance(told, list) or len(told) < 4 or not isinstance(told[3], dict) or len(told[3]) > ROWS_MAX:
        raise PeerError(f"link: unopened topics have a source, a broker, and at most {ROWS_MAX} namespaces")
    rows = {}
    for name, row in told[3].items():
        if not isinstance(row, list) or len(row) < 4:
            raise PeerError("link: unopened topics have four numbers")
        rows[_text(name)] = UnopenedRow(*(_number(value) for value in row[:4]))
    return UnopenedTopics(_text(told[0]), _text(told[1]), told[2] is True, rows)
