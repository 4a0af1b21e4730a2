"""Mending: a ledger of a topic that is lost or damaged here comes back under the same local ids.

Is: what of a topic's ledger no copy can be read of, and its repair in place from a source, whether the topic is loaded
or not. Isn't: the copying (`storage.ledger.repair.in_place_repair`), the source (another region, an object store), or a
ledger that is open.
Invariants: only a ledger that the topic names, closed, and not left to an object store, is touched. One whose metadata
is lost gets it anew, in a transaction that checks the topic's own: so never for a ledger that was trimmed meanwhile;
and before the first entry is written, because bookies collect what no metadata knows. A crash after any step leaves a
ledger that is as damaged as before, or less; the next attempt goes on from there.
Source: docs/protocols/storage.md, "In-place repair".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from heliograph.kv.metadata_store import ABSENT, Check, Put
from heliograph.model.errors import (
    HeliographError,
    NoSuchLedger,
    NotAllowed,
    NotEnoughBookies,
    NotFound,
    OutcomeUnknown,
    VersionConflict,
)
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata, LedgerState, local_gone
from heliograph.runtime.throttle import Throttle
from local_meta import keys
from local_meta.located_ledger import NOWHERE, LocatedLedger
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.ledger.repair.in_place_repair import Refilled, Source, refill, unreadable
from storage.managed_ledger.metadata.ledger_pages import stored_topic

_ATTEMPTS_MAX = 10


async def damaged(
    context: LedgerContext, info: LedgerInfo, throttle: Throttle, first: int = 0, last: int | None = None
) -> list[tuple[int, int]]:
    """[first, last] of the entries in that range that no bookie has; [] of a ledger that is open, or left to an object
    store.
    """
    if not info.closed_ms or local_gone(info) or not info.entries:
        return []
    try:
        metadata = await ledger_metadata(context, info.ledger)
    except NoSuchLedger:
        return [(first, info.entries - 1 if last is None else min(last, info.entries - 1))]
    return await unreadable(context, metadata, throttle, first, last)


async def mend(
    context: LedgerContext,
    topic: str,
    info: LedgerInfo,
    quorums: tuple[int, int, int],
    source: Source,
    throttle: Throttle,
    first: int = 0,
    last: int | None = None,
) -> Refilled:
    """quorums: for a ledger whose metadata is lost. Raises what `refill` raises; NoSuchLedger where it was trimmed
    meanwhile.
    """
    check_can_be_mended(topic, info)
    try:
        await ledger_metadata(context, info.ledger)
    except NoSuchLedger:
        await _name_anew(context, topic, info, quorums)
    return await refill(
        context,
        info.ledger,
        source,
        throttle,
        first=first,
        last=last,
        first_index=info.first_index,
        closed_ms=info.closed_ms,
    )


def check_can_be_mended(topic: str, info: LedgerInfo) -> None:
    """Raises NotAllowed where the ledger is open, or where only an object store has its entries."""
    if not info.closed_ms:
        raise NotAllowed(
            f"ledger {info.ledger} of {topic} is open: what is damaged of it is mended once it is closed; unload the "
            "topic, or let it roll over"
        )
    if local_gone(info):
        raise NotAllowed(
            f"ledger {info.ledger} of {topic} lies in an object store only: there is nothing to mend on bookies; see "
            "`heliograph tier`"
        )


async def stored_info(context: LedgerContext, topic: str, ledger: int) -> LedgerInfo:
    """What the metadata of a topic says of one of its ledgers. Raises NotFound, NoSuchLedger."""
    found = await stored_topic(context.meta, topic)
    if found is None:
        raise NotFound(f"topic {topic} does not exist")
    return _named(topic, found[0].ledgers, ledger)


def _named(topic: str, infos: Collection[LedgerInfo], ledger: int) -> LedgerInfo:
    for info in infos:
        if info.ledger == ledger:
            return info
    raise NoSuchLedger(f"{topic} has no ledger {ledger}: it was trimmed, or never was its own")


async def _name_anew(context: LedgerContext, topic: str, info: LedgerInfo, quorums: tuple[int, int, int]) -> None:
    """Metadata for a ledger that has lost its own, on the bookies that still hold some of it, and on others; of one
    that was sealed anew, under the number where its entries lie.
    """
    _, write_quorum, ack_quorum = quorums
    place = await context.meta.get(keys.located(info.ledger))
    at = NOWHERE if place is None else LocatedLedger.decode(place[0]).at
    number = info.ledger if at == NOWHERE else at
    holders = await _holders(context, number)
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        found = await stored_topic(context.meta, topic)
        if found is None:
            raise NotFound(f"topic {topic} does not exist")
        stored = found[0]
        check_can_be_mended(topic, _named(topic, stored.ledgers, info.ledger))
        picked = dict.fromkeys([*holders, *context.pool.pick(write_quorum)])
        bookies = tuple(picked)[:write_quorum]
        metadata = LedgerMetadata(
            number,
            write_quorum,
            ack_quorum,
            ((0, bookies),),
            LedgerState.CLOSED,
            info.entries - 1,
            info.size_bytes,
            topic,
            stored.owner,
        )
        try:
            await context.meta.txn(
                [
                    Put(keys.ledger(number), metadata.encode(), ABSENT),
                    Check(keys.managed_ledger(topic), found[1]),
                    Check(keys.located(info.ledger), ABSENT if place is None else place[1]),
                ]
            )
            return
        except (VersionConflict, OutcomeUnknown):
            if await context.meta.get(keys.ledger(number)) is not None:
                return  # by an attempt whose outcome was unknown, or by somebody else
            await asyncio.sleep(context.pause_s(attempt))
    raise NotEnoughBookies(
        f"ledger {info.ledger} of {topic}: its metadata could not be written anew, the topic's own changes too often; "
        "try again"
    )


async def _holders(context: LedgerContext, ledger: int) -> list[str]:
    """Writable bookies that have something of it."""
    found: list[str] = []
    for bookie in context.pool.writable():
        try:
            await context.pool.client(bookie).read_lac(ledger)
            found.append(bookie)
        except HeliographError:
            continue
    return found
