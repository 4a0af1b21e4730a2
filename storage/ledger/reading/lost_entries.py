"""Lost entries: what is really gone of a ledger, told apart from what cannot be read now.

Is: the question to all bookies that should have an entry, once a read of it has failed. Isn't: a repair, or who is told
(`storage.ledger.known_losses`).
Invariants: an entry is lost only where each bookie of its write set, as the metadata names them before and after, has
answered that it does not hold it. Who is away, in limbo, or of a version that cannot say, may have it; so may one that
holds it and cannot read it now.
Source: docs/protocols/storage.md, "What is gone".
"""

from __future__ import annotations

import asyncio

from heliograph.model.errors import BookieUnavailable, EntriesLost, HeliographError, NoSuchLedger
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import ledger_metadata, same_places


async def lost_entries(context: LedgerContext, ledger: int, entry: int, last: int) -> EntriesLost | None:
    """The range around `entry`, at most to `last`, of which no bookie has a copy, within its fragment and stripe; None:
    somebody has `entry`, or may have it. Raises NoSuchLedger, and what the metadata raises.
    """
    metadata, pool = await ledger_metadata(context, ledger), context.pool
    first = max(start for start, _ in metadata.fragments if start <= entry)
    if metadata.stride:
        first = max(first, entry - entry % metadata.stride)
    last = min(last, metadata.striping.last(entry), *(start - 1 for start, _ in metadata.fragments if start > entry))
    bookies = metadata.write_set(entry)
    if not all(pool.registered(bookie) for bookie in bookies):
        return None

    async def held(bookie: str) -> list[tuple[int, int]] | None:
        try:
            ranges = await pool.client(bookie).held(metadata.ledger, first, last)
        except NoSuchLedger:
            return []
        except BookieUnavailable as error:
            return [] if error.forgotten else None
        except HeliographError:
            return None
        return None if ranges is None else list(ranges)

    begin, end = first, last
    for ranges in await asyncio.gather(*map(held, bookies)):
        if ranges is None:
            return None
        for low, high in ranges:
            if low <= entry <= high:
                return None
            begin, end = (max(begin, high + 1), end) if high < entry else (begin, min(end, low - 1))
    if not same_places(await ledger_metadata(context, ledger), metadata):
        return None  # copies move: who reads again asks others
    return EntriesLost(ledger, begin, end)


def told(context: LedgerContext, topic: str, lost: EntriesLost) -> EntriesLost | BookieUnavailable:
    """What a reader of the topic is told of it; remembered."""
    return context.losses.told(topic, lost, asyncio.get_running_loop().time())
