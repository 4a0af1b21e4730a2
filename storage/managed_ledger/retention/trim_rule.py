"""Trimming: how many ledgers may go from the front of a topic.

Is: a pure decision. Isn't: the deletion.
Invariants: a ledger goes only where the slowest durable cursor and the stored state are past its end; an open ledger
never goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import Position


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept although it is acknowledged: while it is young enough *and* all of it is small enough. 0 none, -1
    without limit.
    """

    minutes: int = 0
    mb: int = 0


def trim_count(
    ledgers: Sequence[LedgerInfo],
    slowest: Position,
    state_through: Position,
    retention: Retention,
    now_ms: int,
    truncating: Position = (-1, -1),
    last_kept_ms: int = 0,
    behind_bytes: int | None = None,
) -> int:
    """How many of `ledgers` may go. slowest: the least mark-delete position of the durable cursors, or the last
    confirmed without any.

    state_through: how far the state reaches that is stored together with the trim. truncating: up to here retention
    holds nothing.
    behind_bytes: given where `ledgers` are only the first ones: the size of those behind them that the slowest and the
    state are past too.
    last_kept_ms: how long the last ledger is kept after it was closed, as if it were open still: so that what goes does
    not hang on who was idle.
    """
    limit = min(slowest, state_through)
    acknowledged = 0
    for info in ledgers:
        newest = (
            behind_bytes is None
            and info is ledgers[-1]
            and (info.ledger, info.entries - 1) > truncating
            and now_ms - info.closed_ms < last_kept_ms
        )
        if newest or info.closed_ms == 0 or (info.ledger, info.entries - 1) > limit:
            break
        acknowledged += 1
    kept_bytes = sum(info.size_bytes for info in ledgers[:acknowledged]) + (behind_bytes or 0)
    count = 0
    for info in ledgers[:acknowledged]:
        expired = retention.minutes >= 0 and now_ms - info.closed_ms >= retention.minutes * 60_000
        too_much = retention.mb >= 0 and kept_bytes > retention.mb << 20
        if not expired and not too_much and (info.ledger, info.entries - 1) > truncating:
            break
        kept_bytes -= info.size_bytes
        count += 1
    return count
