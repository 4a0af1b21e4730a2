"""Replay: a topic that is loaded gives its state the entries that the stored one lacks.

Is: the reading of them, and what follows where some are lost. Isn't: the state (`LogState`), or who is told of a loss
(`storage.ledger.known_losses`).
Invariants: an entry is passed over only where each bookie that should have it has answered that it does not hold it,
and no object store has it: whoever is away is waited for. The topic's next message index lies behind those of what was
passed over, so that none is given twice where that comes back.
Source: docs/protocols/storage.md, "What is gone".
"""

from __future__ import annotations

import logging
from itertools import pairwise

from heliograph.model.errors import BookieUnavailable, EntriesLost, NoSuchEntry, NoSuchLedger
from heliograph.model.ledger_metadata import LedgerMetadata, ManagedLedgerMetadata, OffloadState
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import ledger_metadata, read_open
from storage.ledger.reading.lost_entries import lost_entries
from storage.managed_ledger.log.managed_ledger import LogState
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from storage.managed_ledger.metadata.topic_times import published_by

log = logging.getLogger("storage.managed_ledger")

_REPLAY_BYTES = 1 << 20
_BATCH = 1000
"""Messages that a lost entry is given room for, of a topic with batches: as many as clients put into one."""


async def replayed(
    context: LedgerContext,
    topic: str,
    state: LogState,
    catalog: Catalog,
    stored: ManagedLedgerMetadata,
    recovered: LedgerMetadata | None,
    newest_ms: int,
) -> tuple[int, int]:
    """Gives `state` the entries that its snapshot lacks. Returns the index of the next message, and when one was
    published last.

    newest_ms: the same without what is replayed. Raises what reads and the metadata raise.
    """
    next_index, metadata = stored.next_index, recovered
    position = catalog.at_or_after((stored.state_through[0], stored.state_through[1] + 1))
    while position is not None:
        ledger, first = position
        last = catalog.entries_of(ledger) - 1
        if metadata is None or metadata.ledger != ledger:
            metadata = await ledger_metadata(context, ledger)
        try:
            runs = await read_open(context, metadata, first, last, _REPLAY_BYTES)
        except (BookieUnavailable, NoSuchEntry, NoSuchLedger):
            lost = await _lost(context, catalog, ledger, first, last)
            if lost is None:
                raise
            log.warning(
                "topic.loaded_without", extra={"topic": topic, "ledger": ledger, "first": first, "last": lost.last}
            )
            next_index += (lost.last + 1 - first) * (_BATCH if _batched(catalog) else 1)
            position = catalog.at_or_after((ledger, lost.last + 1))
            continue
        for first, run in runs:
            state.replay(ledger, first, run)
            catalog.add_bytes(ledger, run.size_bytes)
            next_index, newest_ms = run.first_index + run.messages, published_by(run, newest_ms)
        position = catalog.at_or_after((ledger, first + run.count))
    return next_index, newest_ms


async def _lost(context: LedgerContext, catalog: Catalog, ledger: int, first: int, last: int) -> EntriesLost | None:
    record = catalog.offload_of(ledger)
    if record is not None and record.state != OffloadState.BEGUN:
        return None
    return await lost_entries(context, ledger, first, last)


def _batched(catalog: Catalog) -> bool:
    """False: its newest closed ledgers show one message in each entry."""
    pairs = list(pairwise(catalog.recent()))
    return not pairs or any(after.first_index > info.first_index + info.entries for info, after in pairs)
