"""Arrivals: what of this region's topic a Pulsar cluster has, read from the end of the cluster's own topic.

Is: the newest entry of this region before a barrier, and from where on to look for it. Isn't: the cluster's
deduplication, which may be off, and forgets positions when a topic of it is loaded anew.
Invariants: asked once this link's new producer stands, so that the one before it sends nothing more, and behind a
barrier: its receipt says that everything before it is stored there. What is noted goes into storage together with the
cursor's position.
Source: docs/protocols/interop.md, "Once".
"""

from __future__ import annotations

from heliograph.client.pulsar_connection import BrokerConnection, TopicReader
from heliograph.model.errors import CorruptData
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.pulsar.geo_replication import source_position

PROPERTY = "heliograph.arrived"
"""A property of a link's cursor: a position in the cluster's topic, behind which everything lies that is sent and not
confirmed.
"""
_SILENT_S = 3.0
"""A cluster that counts markers as its last message delivers nothing behind them."""


def noted(properties: dict[str, str]) -> Position | None:
    """None: nothing was ever sent."""
    ledger, _, entry = properties.get(PROPERTY, "").partition(":")
    return (int(ledger), int(entry)) if ledger.isdecimal() and entry.isdecimal() else None


def note(position: Position) -> str:
    return f"{max(0, position[0])}:{max(0, position[1])}"


async def newest_there(
    connection: BrokerConnection, topic: str, source: str, after: Position, barrier: Position
) -> Position:
    """The newest entry of region `source` between two positions of the cluster's topic; BEFORE_ALL: there is none.

    connection: of its own, to the topic's owner there. Raises Refused, ConnectionLost, TimeoutError.
    """
    reader = await TopicReader.open(connection, topic, start=after, name=f"arrivals-{source}")
    last, found = await connection.last_message(1), BEFORE_ALL
    end = min(last, barrier)
    position = BEFORE_ALL
    while position < end:
        try:
            position, entry = await reader.next(_SILENT_S)
        except TimeoutError:
            break
        if position > end:
            break
        try:
            metadata, _ = entry_metadata(entry)
            if metadata.replicated_from == source and (here := source_position(metadata)) is not None:
                found = max(found, here)
        except CorruptData:
            continue
    return found
