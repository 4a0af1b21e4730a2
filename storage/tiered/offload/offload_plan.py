"""What of a topic is offloaded, and which local copies go: the decisions, as plain values.

Is: policies against the list of a topic's ledgers. Isn't: I/O.
Invariants: only closed ledgers; always the oldest first and without a hole, so that what an object store holds of a
topic has one end; a local copy goes only where its object was committed, and a deletion lag ago.
Source: Pulsar's OffloadPolicies; docs/protocols/tiered.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.model.errors import ConfigError
from heliograph.model.ledger_metadata import LedgerInfo, OffloadState
from heliograph.model.ledger_metadata import stored as stored
from heliograph.model.positions import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPolicy:
    threshold_bytes: int = -1
    """What is offloaded once the topic's newer ledgers hold more than this; 0: each as it is closed; -1: nothing by
    size.
    """
    threshold_s: int = -1
    """What is offloaded once it has been closed for so long; -1: nothing by age."""
    deletion_lag_ms: int = 4 * 3600_000
    """How long the local copy stays after the commit; -1: for ever."""

    def __post_init__(self) -> None:
        if min(self.threshold_bytes, self.threshold_s, self.deletion_lag_ms) < -1:
            raise ConfigError("offload policies: thresholds and deletion lag must be at least -1 (off)")

    @property
    def active(self) -> bool:
        return self.threshold_bytes >= 0 or self.threshold_s >= 0


def to_offload(
    ledgers: Sequence[LedgerInfo], policy: OffloadPolicy, now_ms: int, before: Position | None = None
) -> list[LedgerInfo]:
    """Those to offload now, oldest first. before: by command, whole ledgers that end before this position, whatever the
    policy says.

    What was begun, and not committed, counts as asked for: its broker died over it.
    """
    end = 0
    newer_bytes = 0
    for at in range(len(ledgers) - 1, -1, -1):
        info = ledgers[at]
        newer_bytes += info.size_bytes
        if info.closed_ms == 0:
            continue
        by_size = 0 <= policy.threshold_bytes < newer_bytes
        by_age = policy.threshold_s >= 0 and now_ms - info.closed_ms >= policy.threshold_s * 1000
        asked = (
            before is not None
            and (info.ledger, info.entries - 1) < before
            and (info.ledger < before[0] or before[1] >= info.entries)
        )
        if by_size or by_age or asked or (info.offload is not None and not stored(info)):
            end = at + 1
            break
    return [info for info in ledgers[:end] if info.closed_ms and not stored(info)]


def to_drop(ledgers: Sequence[LedgerInfo], policy: OffloadPolicy, now_ms: int) -> list[LedgerInfo]:
    """Those whose local copy may go now."""
    if policy.deletion_lag_ms < 0:
        return []
    return [
        i
        for i in ledgers
        if i.offload is not None
        and i.offload.state == OffloadState.STORED
        and (not policy.deletion_lag_ms or now_ms - i.offload.stored_ms >= policy.deletion_lag_ms)
    ]


def stored_prefix(ledgers: Sequence[LedgerInfo]) -> list[LedgerInfo]:
    """From the first ledger on, those that an object store has: all that can be restored from it."""
    prefix: list[LedgerInfo] = []
    for info in ledgers:
        if not stored(info):
            break
        prefix.append(info)
    return prefix
