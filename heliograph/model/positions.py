"""Positions: where an entry lies in one region. Plain tuples, because they pile up.

A position is (ledger, entry). Coordinates (where an entry was first published) are in `heliograph.model.coordinates`.
"""

from __future__ import annotations

Position = tuple[int, int]
"""Names an entry by (ledger id, entry id)."""

BEFORE_ALL: Position = (-1, -1)
"""Before every entry: the mark-delete position of a cursor that has acknowledged nothing."""

AFTER_ALL: Position = ((1 << 63) - 1, (1 << 63) - 1)
"""After every entry: Pulsar's "latest"."""


def position_text(position: Position) -> str:
    """Returns it as answers and sentences have it: ledger:entry."""
    return f"{position[0]}:{position[1]}"
