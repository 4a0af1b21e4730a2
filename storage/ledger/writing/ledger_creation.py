"""Creation of a ledger: where it lies, its id, and its first metadata.

Is: one placement, and one write. Isn't: a topic's decision to have another ledger
(`storage.managed_ledger.log.log_tail`), or its writer (`ledger_handle`).
Invariants: an id is given once; the write quorum is a promise, the width of the ensemble is not.
Source: docs/protocols/ledger.md, "Metadata of a ledger".
"""

from __future__ import annotations

from heliograph.model.ledger_metadata import ANYWHERE, Affinity, LedgerMetadata
from local_meta import keys
from storage.ledger.ledger_context import LedgerContext


async def create_ledger(
    context: LedgerContext,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    *,
    topic: str = "",
    owner: int = 0,
    affinity: Affinity = ANYWHERE,
    seal_form: int = 0,
) -> tuple[LedgerMetadata, int]:
    """A new, empty, open ledger on bookies chosen by chance: (metadata, version). Raises NotEnoughBookies and what the
    metadata raises.

    ensemble: wider than the write quorum, entries are striped over it; with fewer writable bookies it is as wide as
    they are, because the write quorum is a promise and the width is not. topic, owner: by which it is known later that
    nobody will ever name it. seal_form: see LedgerMetadata.
    """
    bookies = context.pool.pick(ensemble, write_quorum, affinity)
    ledger = await context.meta.next_ids(keys.LEDGER_IDS)
    stride = context.settings.stride if len(bookies) > write_quorum else 0
    metadata = LedgerMetadata(
        ledger,
        write_quorum,
        ack_quorum,
        ((0, bookies),),
        topic=topic,
        owner=owner,
        stride=stride,
        affinity=affinity,
        seal_form=seal_form,
    )
    return metadata, await context.meta.put(keys.ledger(ledger), metadata.encode(), expected=-1)
