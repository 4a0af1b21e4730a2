"""Located ledgers: the record by which a ledger's entries are read, be they under its own number or another's.

Is: the way from the number by which a topic names a ledger to the one that bookies know. Isn't: who writes a ledger
anew (`storage.managed_ledger.resealing`).
Invariants: a record and the place that leads to it change in one transaction, so who finds neither looks again. A
bookie never asks here: what it holds it knows by the number under which it lies.
Source: docs/protocols/ledger.md, "Ledgers that were sealed anew".
"""

from __future__ import annotations

from dataclasses import replace

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import NoSuchLedger
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from local_meta.located_ledger import NOWHERE, LocatedLedger

_LOOKS = 3
"""It is written anew at most once while somebody looks."""


async def record_of(meta: MetadataStore, ledger: int) -> tuple[LedgerMetadata, int]:
    """(metadata of where its entries lie, version of that). Raises NoSuchLedger where there is none; what the metadata
    raises.
    """
    for _ in range(_LOOKS):
        found = await meta.get(keys.ledger(ledger))
        if found is None:
            place = await place_of(meta, ledger)
            if place is None or place.at < 0:
                break
            found = await meta.get(keys.ledger(place.at))
        if found is not None:
            return LedgerMetadata.decode(found[0]), found[1]
    raise NoSuchLedger(f"ledger {ledger} has no metadata")


async def place_of(meta: MetadataStore, ledger: int) -> LocatedLedger | None:
    """None: it was never written anew."""
    found = await meta.get(keys.located(ledger))
    return None if found is None else LocatedLedger.decode(found[0])


async def data_key_of(meta: MetadataStore, ledger: int) -> int:
    """Number of the data key with which something of it is to be sealed; 0: the one of its time."""
    place = await place_of(meta, ledger)
    return 0 if place is None else place.data_key


async def forget_copy(meta: MetadataStore, ledger: int) -> None:
    """What readers read of it was put right: a copy that is no reader's yet is made anew, and what was made of it is an
    orphan. Raises VersionConflict where it is being moved just now, and what the metadata raises.
    """
    found = await meta.get(keys.located(ledger))
    if found is not None and (place := LocatedLedger.decode(found[0])).next != NOWHERE:
        left = replace(place, next=NOWHERE, next_key=0, copied_ms=0)
        await meta.put(keys.located(ledger), left.encode(), expected=found[1])
