"""Following: the entries of a ledger as they are confirmed, read from its bookies by somebody who is not its writer.

Is: a long poll on what the bookies know of the last confirmed entry, and the reads up to it. Isn't: a broker's way of
reading (that knows what it has confirmed), or a recovery: nothing is fenced.
Invariants: nothing beyond a LAC that a bookie was told of, or the last entry of a closed ledger, is read; entries come
in order, each once. A bookie that does not answer costs the wait of one poll, and the next one is asked. The writer
tells its LAC with each add, and within 100 ms of idleness.
Source: docs/protocols/storage.md, "Readers of an open ledger".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from heliograph.model.errors import BookieUnavailable, HeliographError
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from heliograph.wire.run import Run
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import ledger_metadata, read_open

WAIT_S = 2.0
_READ_BYTES = 1 << 20
_PAUSE_S = 0.1


async def wait_for_lac(context: LedgerContext, metadata: LedgerMetadata, known: int, wait_s: float = WAIT_S) -> int:
    """The LAC of an open ledger once it is above `known`, or after about `wait_s` whatever is known by then. Raises
    BookieUnavailable.
    """
    bookies = context.pool.best_first(metadata.fragments[-1][1])
    polls = {
        asyncio.ensure_future(context.pool.client(bookie).wait_lac(metadata.ledger, known, wait_s)): bookie
        for bookie in bookies
    }
    best, error = -1, None
    try:
        while polls and best <= known:
            done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
            for poll in done:
                bookie = polls.pop(poll)
                try:
                    best = max(best, poll.result())
                except HeliographError as failed:
                    error = failed
                    if isinstance(failed, BookieUnavailable):
                        context.pool.suspect(bookie)
    finally:
        for poll in polls:
            poll.cancel()
    if best < 0 and error is not None:
        raise BookieUnavailable(f"ledger {metadata.ledger}: no bookie says how far it is confirmed: {error}") from error
    return max(best, known)


async def follow(context: LedgerContext, ledger: int, first: int = 0) -> AsyncIterator[tuple[int, Run]]:
    """(first entry, run) from entry `first` on, as they are confirmed; ends where the ledger is closed.

    Raises NoSuchLedger, and what reads raise. While a recovery is under way it waits for its end.
    """
    at, known = first, -1
    loop = asyncio.get_running_loop()
    while True:
        metadata = await ledger_metadata(context, ledger)
        closed = metadata.state == LedgerState.CLOSED
        if closed:
            known = metadata.last_entry
        while at <= known:
            for start, run in await read_open(context, metadata, at, known, _READ_BYTES):
                yield start, run
                at = start + run.count
        if closed:
            return
        began = loop.time()
        try:
            reached = await wait_for_lac(context, metadata, known)
        except BookieUnavailable:
            reached = known  # the ensemble may be another by now, or the ledger closed
        if reached == known and loop.time() - began < _PAUSE_S:
            await asyncio.sleep(_PAUSE_S)
        known = reached
