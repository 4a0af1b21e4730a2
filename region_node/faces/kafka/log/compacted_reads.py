"""CompactedReads: what Kafka's consumers read of a topic that is compacted.

Is: the choice between the log and what compaction has left of it. Isn't: compaction (`region_node.compaction`), or
offsets (`partition_log`).
Invariants: an offset keeps its record, or has none any more; what compaction left is read where the log does not go
back so far, or once the last compaction is older than delete.retention.ms: until then a consumer still finds in the log
the record without a value that took a key away.
Source: docs/protocols/kafka.md, "Compacted topics".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.model.positions import Position
from heliograph.runtime.clock import Clock

if TYPE_CHECKING:
    from region_node.compaction.compacted_view import CompactedView
    from region_node.runtime.cursor_ports import Piece
    from region_node.topics.topic import Topic


class CompactedReads:
    """Chooses, for reads of one partition, between its log and what compaction has left."""

    __slots__ = ("_expiry", "_loaded_at", "_topic")

    def __init__(self, topic: Topic, expiry: Clock) -> None:
        """expiry: by which what deletes by time goes."""
        self._topic, self._expiry = topic, expiry
        self._loaded_at = expiry.monotonic()
        """What was compacted before may have been so at any time up to then."""

    @property
    def view(self) -> CompactedView | None:
        """None: nothing was compacted yet."""
        state = self._topic.compacted
        return None if state is None or state.view.compacted is None else state.view

    @property
    def horizon(self) -> Position | None:
        """The last entry that compaction has seen."""
        view = self.view
        return None if view is None or view.compacted is None else view.compacted.horizon

    def holds(self, position: Position) -> bool:
        horizon = self.horizon
        return horizon is not None and position <= horizon

    async def position_of(self, offset: int) -> Position:
        """Finds an offset that the log has no more: the entry left that holds it, or the next one, or the place behind
        all of them. Only where `view` is not None.
        """
        view, horizon = self.view, self.horizon
        assert view is not None and horizon is not None
        return await view.position_of_index(offset) or (horizon[0], horizon[1] + 1)

    async def read(
        self, at: Position, delete_retention_ms: int, max_entries: int, max_bytes: int
    ) -> list[Piece] | Position:
        """Pieces of what is left, at least one; or where to read the log itself. Raises what a read raises."""
        view, horizon = self.view, self.horizon
        first: Position = self._topic.ledger.first_position()
        if view is None or horizon is None or at > horizon:
            return max(at, first)
        end = (horizon[0], horizon[1] + 1)
        if not self._aged(delete_retention_ms):
            end = min(end, first)
        if at >= end:
            return at
        out: list[Piece] = []
        for ledger, start, run in await view.read(at, max_entries, max_bytes):
            if (ledger, start) >= end:
                break
            count = run.count if (ledger, start + run.count) <= end or ledger != end[0] else end[1] - start
            out.append((ledger, start, run if count == run.count else run.cut(0, count)))
        return out or end

    def _aged(self, delete_retention_ms: int) -> bool:
        state = self._topic.compacted
        loaded_ms = (self._expiry.monotonic() - self._loaded_at) * 1000
        compacted_ms = self._expiry.wall_ms() - (state.succeeded_ms if state is not None else 0)
        return min(loaded_ms, compacted_ms) >= delete_retention_ms
