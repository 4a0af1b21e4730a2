"""Ids that a metadata passes over, for tests of what follows from them."""

from __future__ import annotations

from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.errors import VersionConflict
from local_meta import keys
from local_meta.ledger_ids import PassedOver


async def pass_over(meta: MetadataStore, ledger: int, highest: int) -> int:
    """The next id above `highest`, of a ledger that somebody has and this metadata did not make. ledger: the id that
    was given out, and shows it. Raises what the metadata raises.
    """
    count = max(highest - ledger, 0) + 1
    first = await meta.next_ids(keys.LEDGER_IDS, count)
    while True:
        found = await meta.get(keys.PASSED_OVER)
        known = (PassedOver() if found is None else PassedOver.decode(found[0])).also(ledger, ledger)
        if count > 1:
            known = known.also(first, first + count - 2)
        try:
            await meta.put(keys.PASSED_OVER, known.encode(), expected=ABSENT if found is None else found[1])
        except VersionConflict:
            continue
        return first + count - 1
