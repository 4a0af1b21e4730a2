"""Waiting: what a ledger that lacks copies waits for, in words for an operator.

Is: one sentence from its mark, its metadata, and who is registered. Isn't: the judgement that it lacks them, or the
repair.
Source: docs/operating/repair.md, "Ledgers that lack copies".
"""

from __future__ import annotations

from collections.abc import Collection

from heliograph.model.ledger_metadata import LedgerMetadata
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.repair.lost_bookies import repairs, waits_for_its_writer
from storage.ledger.underreplicated_marks import Mark


def waits_for(pool: BookiePool, metadata: LedgerMetadata | None, mark: Mark, silent: Collection[str] = ()) -> str:
    """silent: bookies that are registered, and did not say what they hold."""
    if metadata is None:
        return "its metadata is gone: the mark goes with the next look"
    if mark.nowhere:
        return f"no bookie has some of its entries: heliograph topics repair {metadata.topic}"
    named = {b for _, ensemble in metadata.fragments for b in ensemble}
    gone = [b for b in mark.lost if pool.draining(b) or not pool.registered(b) or pool.lacks(b, metadata.ledger)]
    if todo := repairs(metadata, gone):
        striping, place = metadata.striping, todo[0].ensemble.index(todo[0].lost[0])
        beside = [[todo[0].ensemble[other] for other in others] for others in striping.others(place)]
        if pool.spare(todo[0].ensemble, beside, metadata.affinity) is None:
            return f"no bookie is left for the copy of what {todo[0].lost[0]} had: start one more"
        return "copies are being made"
    away = sorted(b for b in mark.lacking if b in named and not pool.registered(b))
    if waits_for_its_writer(metadata, away):
        at = next(b for b in away if b in metadata.fragments[-1][1])
        return f"open, and its writer has to leave bookie {at}, or that to come back"
    if away:
        return f"waits for bookie {', '.join(away)}, which is away"
    if mute := sorted(b for b in mark.lacking if b in named and b in silent):
        return f"bookie {', '.join(mute)} does not say what it holds"
    return "copies are being made"
