"""Which topics may still hold what a data key of their tenant sealed: in ledgers, in an object store, or compacted.

Is: the rule, and a count over a tenant's topics. Isn't: removing a key, or sealing anew (`topic_resealing`).
Invariants: where it is not known which key sealed something, it counts for each that may have.
Source: docs/operating/keys.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from itertools import pairwise

from heliograph.kv.metadata_store import MetadataStore, pages_under
from heliograph.model.ledger_metadata import LedgerInfo, ManagedLedgerMetadata, local_gone
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from local_meta import keys
from local_meta.located_ledger import LocatedLedger
from region_node.compaction.compacted_view import OPEN, UNKNOWN, Compacted
from region_node.tiering.topic_resealing import stored_compacted
from storage.managed_ledger.metadata.ledger_pages import stored_topic
from storage.sealing.keyring import SETTLED_MS, DataKey

_EXAMPLES = 5


async def uses(
    meta: MetadataStore,
    tenant: str,
    found: tuple[DataKey, ...],
    topics: AsyncIterable[str],
    wall_ms: Callable[[], int],
) -> list[tuple[int, list[str]]]:
    """Counts, for each key of the tenant, those of its stored topics that may hold something it sealed, and names
    _EXAMPLES of them; the last key, which seals now, has none.
    """
    counts, examples, pace = [0] * len(found), [list[str]() for _ in found], RowPace()
    places, order = await _places(meta, tenant), {key.number: at for at, key in enumerate(found)}
    async for name in topics:
        stored = await meta.get(keys.managed_ledger(name))
        if stored is None:
            continue
        metadata = ManagedLedgerMetadata.decode(stored[0])
        compacted, now_ms = await stored_compacted(meta, name), wall_ms()
        # what was sealed anew has a key that its time does not tell: each ledger is asked
        ledgers = await _ledgers(meta, name) if metadata.pages else _with_times(metadata)
        anew = places.get(name, {})
        await pace.rows(len(found))
        for at, (key, following) in enumerate(pairwise(found)):
            # with the first one also what was lost of older ledgers is sealed
            times = (key.earliest_ms if at else 0), following.created_ms
            holds = compacted is not None and compacted_holds(compacted, key.number, *times, now_ms)
            for info, span in () if holds else ledgers:
                await pace.row()
                if holds_key(info, span, anew.get(info.ledger), key.number, *times, order):
                    holds = True
                    break
            if holds:
                counts[at] += 1
                if len(examples[at]) < _EXAMPLES:
                    examples[at].append(name)
    return list(zip(counts, examples, strict=True))


async def _places(meta: MetadataStore, tenant: str) -> dict[str, dict[int, LocatedLedger]]:
    """Topic -> its ledgers that were written anew, or looked at for that. Raises CorruptData: each may hold any key."""
    found: dict[str, dict[int, LocatedLedger]] = {}
    pace = RowPace()
    async for page in pages_under(meta, keys.LOCATED):
        for _, blob, _ in page:
            await pace.row()
            place = LocatedLedger.decode(blob)
            if TopicName.parse(place.topic).tenant == tenant:
                found.setdefault(place.topic, {})[place.ledger] = place
    return found


async def _ledgers(meta: MetadataStore, topic: str) -> list[tuple[LedgerInfo, tuple[int, int]]]:
    """(ledger, its times as `spans` says them) of all, those in pages too."""
    stored = await stored_topic(meta, topic)
    return [] if stored is None else _with_times(stored[0])


def _with_times(metadata: ManagedLedgerMetadata) -> list[tuple[LedgerInfo, tuple[int, int]]]:
    return list(zip(metadata.ledgers, metadata.spans(), strict=True))


def holds_key(
    info: LedgerInfo,
    span: tuple[int, int],
    place: LocatedLedger | None,
    number: int,
    made_ms: int,
    replaced_ms: int,
    order: Mapping[int, int],
) -> bool:
    """Whether anything of a ledger, here or in an object store, may be sealed with data key `number`, which sealed from
    `made_ms` to `replaced_ms`. place: where it was written anew. order: of the tenant's keys, the oldest is 0.
    """
    by_time = may_hold([span], made_ms, replaced_ms)
    if info.offload is not None:
        sealed_with = info.offload.data_key
        if info.offload.also or sealed_with == number:  # of two, one is of before
            return True
        if by_time and order.get(sealed_with, -1) < order[number]:
            return True
    if local_gone(info):
        return False
    if place is None or not place.data_key:
        return by_time or (place is not None and place.next_key == number)
    if number in (place.data_key, place.next_key):
        return True
    return place.at < 0 and by_time and order.get(place.data_key, -1) < order[number]  # it was only looked at


def compacted_holds(compacted: Compacted, number: int, made_ms: int, replaced_ms: int, now_ms: int) -> bool:
    """The same of what a topic was compacted to. For a day after its rotation a key may still come to be needed: a
    broker that has not heard of it may be compacting.
    """
    if now_ms < replaced_ms + SETTLED_MS or compacted.data_key == UNKNOWN:
        return True
    if compacted.data_key != OPEN or compacted.offload is None or compacted.ledger < 0:
        return compacted.ledger >= 0 and compacted.data_key == number
    # what lay in the clear was perhaps sealed as it was offloaded, with the key of its time
    return may_hold([(compacted.made_ms, compacted.made_ms)], made_ms, replaced_ms)


def may_hold(spans: Sequence[tuple[int, int]], made_ms: int, replaced_ms: int) -> bool:
    """Whether a topic with these ledgers may hold entries of a key that sealed from `made_ms` to `replaced_ms`, give or
    take SETTLED_MS.

    spans: as `ManagedLedgerMetadata.spans` says them.
    """
    return any(
        begun_ms < replaced_ms + SETTLED_MS and (not closed_ms or closed_ms >= made_ms - SETTLED_MS)
        for begun_ms, closed_ms in spans
    )
