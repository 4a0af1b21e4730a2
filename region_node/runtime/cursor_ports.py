"""What subscriptions ask of a topic's storage. `storage.managed_ledger` provides it; tests give a small fake."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from heliograph.model.positions import Position
from heliograph.wire.run import FLAG_KAFKA, Run

Piece = tuple[int, int, Run]
"""(ledger, its first entry's id, run): the run's entries follow one another in that ledger."""


class LedgerPort(Protocol):
    """The reading half of a managed ledger."""

    @property
    def last_confirmed(self) -> Position: ...

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        """Confirmed entries at or after `position` from the cache; [] where they are not cached, or not there."""
        ...

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]: ...


class CompactedPort(LedgerPort, Protocol):
    """The same, without what is not the latest of its key, as far as the topic is compacted."""

    def beyond(self, position: Position) -> Position:
        """Where a reader stands who found nothing at or after `position`."""
        ...


class LeadershipPort(Protocol):
    """A subscription that is active in one region at a time:
    `region_node.dr.leadership.write_gates.SubscriptionGate`."""

    @property
    def open(self) -> bool:
        """Whether messages may be handed out here at this very moment."""
        ...

    def waiting(self) -> str:
        """Why no messages may be handed out here now; "": they may."""
        ...

    def deleted(self) -> None:
        """The subscription was deleted in this region, in one partition at least."""
        ...


class CursorPort(Protocol):
    """What a subscription has acknowledged."""

    reading: Callable[[], Position] | None
    """Set while somebody reads for it: where. The entry cache keeps what active readers need."""
    on_moved: Callable[[], None] | None
    """Called when the mark-delete position has moved, by whomever."""

    @property
    def fits(self) -> bool:
        """False: what is acknowledged is more than the last write of it could hold."""
        ...

    @property
    def properties(self) -> dict[str, str]: ...

    @property
    def mark_delete(self) -> Position: ...

    @property
    def backlog_entries(self) -> int: ...

    @property
    def backlog_bytes(self) -> int:
        """Estimated, from the mark-delete position on: what is acknowledged above it counts too."""
        ...

    @property
    def partly_acked(self) -> Mapping[Position, int]:
        """Batches of which some messages are acknowledged -> bits of those that are not. May hold entries that are
        acknowledged.
        """
        ...

    def ack_batch(self, position: Position, given: int) -> int:
        """Bit i of `given`: message i of the batch is not acknowledged. Returns the bits left; 0: the whole entry is
        acknowledged.
        """
        ...

    def ack(self, positions: Sequence[Position]) -> None: ...

    def ack_ranges(self, ranges: Sequence[tuple[int, int, int]]) -> None: ...

    def ack_cumulative(self, position: Position) -> None: ...

    def is_acked(self, position: Position) -> bool: ...

    def unacked_runs(self, runs: list[Piece]) -> list[Piece]: ...

    def reset(self, mark_delete: Position) -> None: ...

    def begin_earlier(self, mark_delete: Position, start: Position, never: Sequence[tuple[int, int, int]]) -> None:
        """What lies in (mark_delete, start] and in `never` counts as not acknowledged; all else behind `start` stays as
        it is.
        """
        ...

    def set_properties(self, properties: dict[str, str]) -> None: ...

    def read_at(self, now: float) -> None:
        """Somebody reads for it who comes and goes, and did at that time of the event loop."""
        ...

    async def flushed(self) -> None:
        """Until what was acknowledged so far is durable."""
        ...


def visible(piece: Piece) -> tuple[list[Piece], list[tuple[int, int, int]]]:
    """(what clients may see of it, hidden and marker entries as (ledger, first, last))."""
    ledger, first, run = piece
    if run.flags is None or not any(flag & ~FLAG_KAFKA for flag in run.flags):
        return [piece], []
    shown: list[Piece] = []
    hidden: list[tuple[int, int, int]] = []
    start = 0
    for index in range(1, run.count + 1):
        if index == run.count or bool(run.flags[index] & ~FLAG_KAFKA) != bool(run.flags[start] & ~FLAG_KAFKA):
            if run.flags[start] & ~FLAG_KAFKA:
                hidden.append((ledger, first + start, first + index - 1))
            else:
                shown.append((ledger, first + start, run.cut(start, index)))
            start = index
    return shown, hidden


def entries_for(run: Run, permits: int) -> int:
    """How many entries go out for `permits` messages: as long as any permit is left, so that the last one may
    overdraw.
    """
    if run.counts is None:
        return min(run.count, permits)
    for index, count in enumerate(run.counts):
        if permits <= 0:
            return index
        permits -= count
    return run.count
