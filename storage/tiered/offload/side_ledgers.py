"""SideLedgers: ledgers that a topic has beside its log, as tiering sees them.

Is: a port. Isn't: what they are (a compacted ledger: `region_node.tiering.compacted_offload`), or the steps of an
offload.
Invariants: as of a log's ledgers: what `set_offload` returned True for is durable, written by the topic's owner; the
local copy goes only after the record says so.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from heliograph.model.ledger_metadata import LedgerInfo, OffloadRecord


class SideLedgers(Protocol):
    def ledgers(self, topic: str) -> list[LedgerInfo]:
        """Closed ones that may be offloaded now; each is offloaded for itself. [] where the topic has none, or is not
        open here.
        """
        ...

    async def set_offload(self, topic: str, ledger: int, record: OffloadRecord) -> bool:
        """False: the topic has another ledger there by now. LOCAL_GONE: deletes the local copy, after it is stored that
        it is gone.
        """
        ...

    async def named(self, topic: str) -> Collection[tuple[int, str]]:
        """(ledger, attempt) of each object, read from the metadata now, whoever owns the topic."""
        ...
