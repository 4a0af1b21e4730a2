"""LedgerReader: ranges of confirmed entries, from whichever copy can be read.

Is: one read, from one bookie after the other, or from a second one while the first is late. Isn't: a cache, or a judge
of what is confirmed: the caller never asks beyond LAC.
Invariants: what it returns is verified, starts at the first entry asked for, and has no hole. A late bookie is no
failed one: the second read counts only as what it brings. A copy of a sealed run that is not what was sealed there is a
bad copy: others are read, also by who wants it as it is stored. One whose data key is not known here is copied only
where no other one opens, and no bookie that is there is silent.
Source: docs/protocols/ledger.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from heliograph.model.errors import (
    BookieUnavailable,
    CorruptData,
    HeliographError,
    KeyMissing,
    NoSuchEntry,
    NoSuchLedger,
)
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.wire.block import decode_block
from heliograph.wire.run import Buffer, Run
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.located_ledgers import record_of
from storage.ledger.sealed_copies import NotJudged, copy_refused, may_open, not_decoded, verified

OnEnd = Callable[[int], None]
"""Called with the entry behind what a read will bring, before it has brought it: the next one may begin there."""


async def read_open(
    context: LedgerContext, metadata: LedgerMetadata, first: int, last: int, max_bytes: int, on_end: OnEnd | None = None
) -> list[tuple[int, Run]]:
    """As `read_entries`, for who wants what is in the entries: runs that were sealed are opened. Raises KeyMissing
    too.
    """
    return await _read(context, metadata, first, last, max_bytes, on_end, opening=True)


async def read_entries(
    context: LedgerContext, metadata: LedgerMetadata, first: int, last: int, max_bytes: int, on_end: OnEnd | None = None
) -> list[tuple[int, Run]]:
    """[(first entry, run)]: entries from `first` on, at most to `last`; at least one, up to about `max_bytes`. As they
    are stored, to be copied.

    on_end: may be called, while nothing has been returned yet. What is returned may end before that, where a block is
    bad or another bookie answers. Raises CorruptData, BookieUnavailable, or NoSuchEntry where no copy can be read, in
    that order of preference.
    """
    return await _read(context, metadata, first, last, max_bytes, on_end, opening=False)


async def _read(
    context: LedgerContext,
    metadata: LedgerMetadata,
    first: int,
    last: int,
    max_bytes: int,
    on_end: OnEnd | None,
    *,
    opening: bool,
) -> list[tuple[int, Run]]:
    assert first <= last
    for start, _ in metadata.fragments:
        if start > first:
            last = min(last, start - 1)
            break
    last = min(last, metadata.striping.last(first))
    bookies = list(metadata.write_set(first))
    shift = metadata.ledger % len(bookies)
    left = context.pool.best_first(bookies[shift:] + bookies[:shift])
    asked: dict[asyncio.Task[list[tuple[int, Run]]], str] = {}
    worst: HeliographError | None = None
    failed: dict[str, HeliographError] = {}

    def ask() -> None:
        bookie = left.pop(0)
        work = _read_from(context, bookie, metadata, first, last, max_bytes, on_end, opening=opening)
        asked[asyncio.ensure_future(work)] = bookie

    try:
        while left or asked:
            if not asked:
                ask()
            done, _ = await asyncio.wait(
                asked, timeout=context.second_read_s() if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                context.latency.second_reads += 1
                ask()
            for task in [task for task in asked if task in done]:
                bookie = asked.pop(task)
                try:
                    found = task.result()
                except HeliographError as error:
                    worst, failed[bookie] = _worse(worst, error), error
                else:
                    for other, refusal in failed.items():
                        if isinstance(refusal, KeyMissing | NotJudged):
                            copy_refused(metadata.ledger, first, other, refusal)
                    return found
    finally:
        for task in asked:
            task.cancel()
    unjudged = [error.runs for error in failed.values() if isinstance(error, NotJudged)]
    if unjudged and not any(may_open(context, bookie, error) for bookie, error in failed.items()):
        return min(unjudged, key=len)  # behind the shorter one another copy may open
    assert worst is not None
    raise worst


async def _read_from(
    context: LedgerContext,
    bookie: str,
    metadata: LedgerMetadata,
    first: int,
    last: int,
    max_bytes: int,
    on_end: OnEnd | None,
    *,
    opening: bool,
) -> list[tuple[int, Run]]:
    def ends(behind: int) -> None:
        if on_end is not None and behind > first:
            on_end(min(behind, last + 1))

    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        blocks = await context.pool.client(bookie).read(metadata.ledger, first, last, max_bytes, ends)
    except (NoSuchEntry, NoSuchLedger, CorruptData):
        raise
    except HeliographError as error:
        if not (isinstance(error, BookieUnavailable) and error.forgotten):  # an answer is no failure
            context.pool.suspect(bookie)
        raise
    context.latency.add(loop.time() - began)
    runs = _cut(metadata.ledger, first, last, bookie, blocks)
    if not metadata.seal_form and all(run.seal is None for _, run in runs):
        return runs
    return await verified(context, metadata, bookie, runs, opening=opening)


def _worse(worst: HeliographError | None, error: HeliographError) -> HeliographError:
    """Which of two is told: damage before silence, that before a key that is missing, as who is silent may have a copy
    that opens, and that before an explicit no.
    """
    return error if worst is None or _weight(error) > _weight(worst) else worst


def _weight(error: HeliographError) -> int:
    if isinstance(error, CorruptData):
        return 3
    if isinstance(error, NoSuchEntry | NoSuchLedger):
        return 0
    return 1 if isinstance(error, KeyMissing | NotJudged) else 2


def _cut(ledger: int, first: int, last: int, bookie: str, blocks: Sequence[Buffer]) -> list[tuple[int, Run]]:
    """Raises CorruptData where not even the first entry is good."""
    runs: list[tuple[int, Run]] = []
    at = first
    for block in blocks:
        try:
            found, start, run = decode_block(block)
        except CorruptData as error:
            not_decoded(ledger, at, bookie, block, error)
            if runs:
                break
            raise
        if found != ledger or not start <= at < start + run.count:
            break
        run = run.cut(at - start, min(run.count, last - start + 1))
        runs.append((at, run))
        at += run.count
        if at > last:
            break
    if not runs:
        raise CorruptData(f"ledger {ledger}: the answer does not hold entry {first}")
    return runs


async def ledger_metadata(context: LedgerContext, ledger: int) -> LedgerMetadata:
    """Reads the metadata of a ledger, as a topic names it, from the region's store: of another number where its entries
    lie under that. Raises NoSuchLedger where there is none, and what the store raises.
    """
    return (await record_of(context.meta, ledger))[0]


def same_places(one: LedgerMetadata, other: LedgerMetadata) -> bool:
    """Whether a read by the one asks nobody for anything that a read by the other did not."""
    return one.ledger == other.ledger and one.fragments == other.fragments
