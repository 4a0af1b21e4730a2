"""Recovery: takes a ledger from its writer and closes it where it ends.

Is: the shell around LedgerRecovery: fence, read the tail, write it to the whole write quorum, close by compare-and-set.
Isn't: repair of older entries.
Invariants: the metadata is marked IN_RECOVERY before the first fence, so that the writer can change the ensemble no
more; the ensemble that the tail was written to is published only with the closing compare-and-set; whoever loses that
race takes the winner's result.
Source: docs/protocols/ledger.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from heliograph.model.errors import (
    BookieUnavailable,
    CorruptData,
    HeliographError,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    OutcomeUnknown,
    VersionConflict,
)
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from heliograph.runtime.task_set import cancel_all
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.run import Buffer
from local_meta import keys
from storage.ledger.bookies.added_copies import add_copies
from storage.ledger.bookies.bookie_port import END
from storage.ledger.ledger_context import RETURNS_WITHIN_S, LedgerContext
from storage.ledger.recovery.recovery_rules import LedgerRecovery
from storage.ledger.sealed_copies import NotJudged, copy_refused, may_open, not_decoded, verified
from storage.ledger.underreplicated_marks import mark_lacking

READ_BYTES = 1 << 20
FENCE_GRACE_S = 0.2
"""How long the last bookies are waited for once enough are fenced: each may know of a higher LAC."""
_Block = tuple[int, int, list[Buffer], int]
"""(first entry, count, block, bytes of the entries)."""


async def recover_ledger(
    context: LedgerContext, ledger: int, marked: tuple[LedgerMetadata, int] | None = None
) -> LedgerMetadata:
    """The metadata of the closed ledger. Idempotent; two may try at once, and both return the same end.

    marked: (metadata, version), where the caller has just marked it IN_RECOVERY.
    Raises NoSuchLedger; BookieUnavailable where too many bookies have not answered for `recovery_timeout_s`; what the
    metadata raises.
    """
    deadline = asyncio.get_running_loop().time() + context.settings.recovery_timeout_s
    attempt = 0
    while True:
        try:
            return await _recover_once(context, ledger, marked)
        except (BookieUnavailable, VersionConflict, OutcomeUnknown, MetadataUnavailable):
            if asyncio.get_running_loop().time() > deadline:
                raise
        attempt, marked = attempt + 1, None
        await asyncio.sleep(context.pause_s(attempt))


async def _recover_once(
    context: LedgerContext, ledger: int, marked: tuple[LedgerMetadata, int] | None
) -> LedgerMetadata:
    if marked is None:
        found = await context.meta.get(keys.ledger(ledger))
        if found is None:
            raise NoSuchLedger(f"ledger {ledger} has no metadata")
        metadata, version = LedgerMetadata.decode(found[0]), found[1]
        if metadata.state == LedgerState.CLOSED:
            return metadata
        if metadata.state == LedgerState.OPEN:
            metadata = replace(metadata, state=LedgerState.IN_RECOVERY)
            version = await context.meta.put(keys.ledger(ledger), metadata.encode(), expected=version)
    else:
        metadata, version = marked
    core = LedgerRecovery(metadata, lambda bookie: context.pool.comes_soon(bookie, RETURNS_WITHIN_S))
    await _fence(context, core, ledger)
    tail = await _read_tail(context, core, metadata)
    if core.forgotten:  # what was confirmed has its numbers, though nobody has it here: it may come from elsewhere
        core.on_confirmed(await context.confirmed(metadata))
        tail += await _read_tail(context, core, metadata)
    tail = _cut_at_stripes(metadata, tail)
    closed = replace(
        metadata, state=LedgerState.CLOSED, last_entry=core.next - 1, size_bytes=sum(size for *_, size in tail)
    )
    lacking: dict[str, None] = {}
    if tail:
        first = tail[0][0]
        ensemble, lacking = await _write_tail(context, metadata, tail)
        if ensemble != core.ensemble:
            closed = closed.with_fragment(first, ensemble)
    if (
        metadata.ack_quorum < metadata.write_quorum and closed.last_entry >= metadata.fragments[-1][0]
    ):  # what the writer knew of gaps went with it
        lacking |= dict.fromkeys(b for b in core.unfenced() if not context.pool.registered(b))
    await context.meta.put(keys.ledger(ledger), closed.encode(), expected=version)
    if lacking:
        with contextlib.suppress(HeliographError):  # then the check of copies finds it
            await mark_lacking(context.meta, ledger, dict.fromkeys(lacking, closed.last_entry))
    return closed


async def _fence(context: LedgerContext, core: LedgerRecovery, ledger: int) -> None:
    """Fences whoever is not yet fenced. Raises BookieUnavailable where that is not enough."""

    async def one(bookie: str) -> None:
        try:
            lac, last = await context.pool.client(bookie).fence(ledger)
        except HeliographError:
            context.pool.suspect(bookie)
        else:
            core.on_fenced(bookie, lac, last)

    await _some([one(bookie) for bookie in core.unfenced()], lambda: core.fenced)
    if not core.fenced:
        raise BookieUnavailable(
            f"ledger {ledger}: too few of the bookies {', '.join(core.ensemble)} answered the fence"
        )


async def _some(work: list[Coroutine[Any, Any, None]], enough: Callable[[], bool]) -> None:
    """Runs all at once; once there is enough, waits FENCE_GRACE_S for the others and lets go of them."""
    tasks = [asyncio.ensure_future(w) for w in work]
    try:
        while not enough() and (waiting := [t for t in tasks if not t.done()]):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting := [t for t in tasks if not t.done()]:
            await asyncio.wait(waiting, timeout=FENCE_GRACE_S)
    finally:
        await cancel_all(tasks)


async def _read_tail(context: LedgerContext, core: LedgerRecovery, metadata: LedgerMetadata) -> list[_Block]:
    """The entries above the known LAC, to the end. Raises BookieUnavailable where the end can't be told now."""
    ledger, tail = metadata.ledger, list[_Block]()
    while not core.ended:
        unjudged: dict[str, tuple[NotJudged, list[_Block]]] = {}
        silent = False
        for bookie in core.to_ask():
            try:
                blocks = await context.pool.client(bookie).read(ledger, core.next, END, READ_BYTES)
                pieces = _pieces(ledger, core.next, bookie, blocks)
                if metadata.seal_form:
                    found = [(first, decode_block(b"".join(block))[2]) for first, _, block, _ in pieces]
                    pieces = pieces[: len(await verified(context, metadata, bookie, found, opening=False))]
            except (NoSuchEntry, NoSuchLedger):
                core.on_absent(bookie)
                if core.ended:
                    break
            except NotJudged as error:
                unjudged[bookie] = error, pieces[: len(error.runs)]
            except HeliographError as error:
                if isinstance(error, BookieUnavailable) and error.forgotten:
                    core.on_forgotten(bookie)
                    if core.ended:
                        break
                else:
                    context.pool.suspect(bookie)
                    silent = silent or may_open(context, bookie, error)
            else:
                for other, (refusal, _) in unjudged.items():
                    copy_refused(ledger, core.next, other, refusal)
                tail += pieces
                core.on_found(pieces[-1][0] + pieces[-1][1] - 1)
                break
        else:
            if unjudged and not silent:  # no copy opens
                pieces = min((found for _, found in unjudged.values()), key=len)
                tail += pieces
                core.on_found(pieces[-1][0] + pieces[-1][1] - 1)
            elif not core.ended:
                raise BookieUnavailable(f"ledger {ledger}: nobody can tell yet whether entry {core.next} exists")
    return tail


def _pieces(ledger: int, at: int, bookie: str, blocks: Sequence[Buffer]) -> list[_Block]:
    """The blocks from entry `at` on, verified, cut where the first begins earlier. Raises CorruptData where not even
    the first is good.
    """
    pieces: list[_Block] = []
    for block in blocks:
        try:
            found, first, run = decode_block(block)
        except CorruptData as error:
            not_decoded(ledger, at, bookie, block, error)
            if pieces:
                break
            raise
        if found != ledger or first > at or first + run.count <= at:
            break
        if first < at:
            run = run.cut(at - first, run.count)
            pieces.append((at, run.count, encode_block(run, ledger, at), run.size_bytes))
        else:
            pieces.append((at, run.count, [block], run.size_bytes))
        at += run.count
    if not pieces:
        raise CorruptData(f"ledger {ledger}: the answer does not hold entry {at}")
    return pieces


def _cut_at_stripes(metadata: LedgerMetadata, tail: list[_Block]) -> list[_Block]:
    """The same, so that no block lies in two stripes: a writer of ours sends none, but what was found need not be
    ours.
    """
    if not metadata.stride:
        return tail
    pieces: list[_Block] = []
    for first, count, block, size in tail:
        if metadata.striping.last(first) >= first + count - 1:
            pieces.append((first, count, block, size))
            continue
        _, start, run = decode_block(b"".join(block))
        at = first
        while at < first + count:
            stop = min(metadata.striping.last(at) + 1, first + count)
            piece = run.cut(at - start, stop - start)
            pieces.append((at, piece.count, encode_block(piece, metadata.ledger, at), piece.size_bytes))
            at = stop
    return pieces


async def _write_tail(
    context: LedgerContext, metadata: LedgerMetadata, tail: list[_Block]
) -> tuple[tuple[str, ...], dict[str, None]]:
    """Writes the tail to the write quorum, with spares in the places of bookies that fail. Returns who is to be
    recorded, and who of them lacks some of it.

    Where no spare is left, the ack quorum is enough: the rest is repair. Raises BookieUnavailable.
    """
    striping, ensemble = metadata.striping, list(metadata.fragments[-1][1])
    holders: dict[str, None] = {}
    failed: dict[str, None] = {}

    async def one(place: int, bookie: str) -> None:
        try:
            mine = [(first, count, block) for first, count, block, _ in tail if striping.holds(place, first)]
            await add_copies(context.pool.client(bookie), metadata.ledger, mine, tail[0][0] - 1)
        except HeliographError:
            context.pool.suspect(bookie)
            failed[bookie] = None
        else:
            holders[bookie] = None

    while True:
        await asyncio.gather(
            *(
                one(place, bookie)
                for place, bookie in enumerate(ensemble)
                if bookie not in holders and bookie not in failed
            )
        )
        replaced = False
        for at, bookie in enumerate(ensemble):
            beside = [[ensemble[place] for place in others] for others in striping.others(at)]
            if (
                bookie in failed
                and (spare := context.pool.spare([*ensemble, *failed], beside, metadata.affinity)) is not None
            ):
                ensemble[at] = spare
                replaced = True
        if not replaced:
            break
    for first, *_ in tail:
        if sum(ensemble[place] in holders for place in striping.places(first)) < metadata.ack_quorum:
            raise BookieUnavailable(
                f"ledger {metadata.ledger}: entry {first} could not be written to {metadata.ack_quorum} bookies"
            )
    return tuple(ensemble), {b: None for b in ensemble if b in failed}
