"""The ledgers of a topic, as lists of few numbers, for tests of what is offloaded and of what is stored about it."""

from __future__ import annotations

from heliograph.model.ledger_metadata import LedgerInfo, OffloadRecord, OffloadState

ATTEMPT = "00112233445566778899aabbccddeeff"


def infos(*ledgers: tuple[int, int, int, OffloadState | None]) -> list[LedgerInfo]:
    """(id, bytes, closed at ms, state)."""
    return [
        LedgerInfo(
            at, 10, size, closed, 0, None if state is None else OffloadRecord(ATTEMPT, "us-1", state, stored_ms=closed)
        )
        for at, size, closed, state in ledgers
    ]
