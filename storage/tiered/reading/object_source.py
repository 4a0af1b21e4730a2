"""Objects: what an object store has of a topic's ledgers, as a source of an in-place repair.

Is: a `Source` over ledgers whose object was committed. Isn't: the repair
(`storage.managed_ledger.log.damaged_ledgers`), or the reading (`cold_reader`).
Source: docs/protocols/tiered.md; docs/protocols/storage.md, "In-place repair".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heliograph.model.errors import NoSuchEntry, NoSuchObject
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.wire.run import Run
from storage.managed_ledger.log.log_reader import ColdReads
from storage.tiered.offload.offload_plan import stored


class Objects:
    """One topic's, as of now."""

    def __init__(self, reader: ColdReads, ledgers: Iterable[LedgerInfo]) -> None:
        self._reader = reader
        self._records = {info.ledger: info.offload for info in ledgers if stored(info)}

    async def read(self, topic: str, ledger: int, first: int, last: int, max_bytes: int) -> Sequence[tuple[int, Run]]:
        record = self._records.get(ledger)
        if record is None:
            return []
        try:
            return await self._reader.read(topic, ledger, record, first, last, max_bytes)
        except (NoSuchEntry, NoSuchObject):
            return []
