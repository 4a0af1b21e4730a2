"""Sealed copies: which copies of sealed runs are what was sealed there, whoever reads, recovers, or copies them.

Is: the judgement of what one bookie gave, and the opening. Isn't: the choice of another copy (`ledger_reader`,
`ledger_recovery`), or the cipher (`storage.sealing`).
Invariants: what is not what was sealed there is named in the log, with its bookie, and is never handed out. A copy
whose data key is not known here is judged by nobody: who copies takes it only where no other one opens.
Source: docs/decisions/0237-a-seal-holds-where-it-was-put.md.
"""

from __future__ import annotations

import contextlib
import logging

from heliograph.model.errors import BookieUnavailable, CorruptData, HeliographError, KeyMissing, StorageError
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.wire.block import verify_block
from heliograph.wire.run import Buffer, Run
from storage.ledger.ledger_context import LedgerContext
from storage.sealing.cipher import check_form

log = logging.getLogger("storage.ledger.sealed_copies")


class NotJudged(StorageError):
    """The data key of a copy that is to be copied is not known here. runs: what cannot be judged so, as it is stored,
    from the first entry on; for who finds no copy that opens.
    """

    def __init__(self, error: KeyMissing, runs: list[tuple[int, Run]]) -> None:
        super().__init__(str(error))
        self.runs = runs


async def opened(
    context: LedgerContext, ledger: int, runs: list[tuple[int, Run]], *, looking: bool = True
) -> list[tuple[int, Run]]:
    """[(first entry, run)] of one ledger, open. Raises KeyMissing; CorruptData where one is not what was sealed.

    looking: the configuration is asked for a data key that is not known here; raises what that raises.
    """
    sealed = next((run.seal for _, run in runs if run.seal is not None), None)
    if sealed is None:
        return runs
    if context.sealing is None:
        raise KeyMissing(f"ledger {ledger} is sealed with data key {sealed.key:016x}, and no master key is set here")
    return await context.sealing.opened(ledger, runs, looking=looking)


async def verified(
    context: LedgerContext, metadata: LedgerMetadata, bookie: str, runs: list[tuple[int, Run]], *, opening: bool
) -> list[tuple[int, Run]]:
    """The runs before the first that is not what was sealed there; opened, or as they are stored. Raises CorruptData
    where that is none; KeyMissing where the first one's data key is not known, NotJudged where that is to be copied.
    """
    try:
        return await _checked(context, metadata, runs, opening=opening)
    except (CorruptData, KeyMissing):
        good: list[tuple[int, Run]] = []  # one by one: which of them it is
    unjudged: list[tuple[int, Run]] = []
    missing: KeyMissing | None = None
    for first, run in runs:
        try:
            found = await _checked(context, metadata, [(first, run)], opening=opening)
        except KeyMissing as error:
            if good:
                break
            if opening:
                raise
            missing = missing or error
            unjudged.append((first, run))
        except CorruptData as error:
            copy_refused(metadata.ledger, first, bookie, error)
            if not good and not unjudged:
                raise
            break
        else:
            if unjudged:
                break
            good += found
    if missing is not None:
        raise NotJudged(missing, unjudged)
    return good


def copy_refused(ledger: int, entry: int, bookie: str, error: HeliographError) -> None:
    """Says of one copy that somebody has written it."""
    told = {"ledger": ledger, "entry": entry, "bookie": bookie, "error": str(error)}
    log.error("ledger.copy_refused", extra=told)


def not_decoded(ledger: int, entry: int, bookie: str, block: Buffer, error: CorruptData) -> None:
    """Says the same of a block that raised `error`, where its checksum fits: by chance none is so."""
    with contextlib.suppress(CorruptData):
        verify_block(block)
        copy_refused(ledger, entry, bookie, error)


def may_open(context: LedgerContext, bookie: str, error: HeliographError) -> bool:
    """Whether a bookie that has failed is there, and may soon give a copy that opens."""
    return isinstance(error, BookieUnavailable) and not error.forgotten and context.pool.registered(bookie)


async def _checked(
    context: LedgerContext, metadata: LedgerMetadata, runs: list[tuple[int, Run]], *, opening: bool
) -> list[tuple[int, Run]]:
    for first, run in runs:
        check_form(metadata.ledger, first, run, metadata.seal_form)
    if context.sealing is None and not opening:
        return runs
    found = await opened(context, metadata.ledger, runs, looking=opening)
    return found if opening else runs
