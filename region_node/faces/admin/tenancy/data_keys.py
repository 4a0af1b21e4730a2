"""The data keys of a region: what tenants' entries are encrypted with at rest.

Is: paths of our own, below /heliograph/v1/keys. Isn't: keys; no answer holds one, wrapped or not.
Invariants: a key is removed only where no ledger can hold anything that it sealed, unless the caller says that this may
be lost.
Source: docs/operating/keys.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from aiohttp import web

from heliograph.kv.metadata_store import MetadataStore, pages_under
from heliograph.model.errors import KeyMissing, MalformedRequest, NotAllowed, NotFound
from heliograph.model.feature_levels import SEALED_TENANTS
from heliograph.model.ledger_metadata import LedgerInfo, ManagedLedgerMetadata, local_gone
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from local_meta import keys
from local_meta.located_ledger import LocatedLedger
from region_node.compaction.compacted_view import OPEN, UNKNOWN, Compacted
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing
from region_node.tiering.topic_resealing import stored_compacted
from storage.managed_ledger.metadata.ledger_pages import stored_topic
from storage.sealing.keyring import SETTLED_MS, DataKey
from storage.sealing.sealing import Sealing

KEYS_MAX = 400
"""A tenant that rotates daily has so many after a year; only a super user makes more."""
_EXAMPLES = 5


async def listing(admin: Admin, request: web.Request) -> dict[str, Any]:
    sealing = await _sealing(admin)
    return {
        "region": admin.region,
        "master": sealing.master,
        "tenants": {tenant: _shown(found) for tenant, found in sealing.listing().items()},
    }


async def of_tenant(admin: Admin, request: web.Request) -> dict[str, Any]:
    """With the topics that may still hold something sealed with each older key."""
    sealing, tenant = await _sealing(admin), request.match_info["tenant"]
    found = sealing.listing().get(tenant, ())
    rows = _shown(found)
    for row, (count, names) in zip(rows, await _uses(admin, tenant, found), strict=True):
        row["topics"] = count
        row["for_example"] = names
    info = admin.view.tenant(tenant)
    return {
        "region": admin.region,
        "tenant": tenant,
        "required": info is not None and info.encryption_at_rest,
        "keys": rows,
    }


async def require(admin: Admin, request: web.Request) -> Any:
    """Everything of the tenant is encrypted at rest from now on, in each of its regions. Where one has no master key,
    its topics cannot be written there.
    """
    return await _require(admin, request, on=True)


async def lift(admin: Admin, request: web.Request) -> Any:
    """What is set for namespaces and topics holds again."""
    return await _require(admin, request, on=False)


async def _require(admin: Admin, request: web.Request, *, on: bool) -> dict[str, Any]:
    tenant = admin.tenant(request)
    if on and admin.reach_level is not None:
        await admin.reach_level(SEALED_TENANTS, f"that tenant {tenant} has to be encrypted at rest")
    after = await admin.config.require_encryption(tenant, on=on)
    await admin.seen(lambda: (found := admin.view.tenant(tenant)) is None or found.encryption_at_rest == on)
    admin.changed(request, {"required": not on}, {"required": on})
    return {
        "tenant": tenant,
        "required": on,
        "regions": list(after.allowed_regions),
        "master": admin.sealing.master if admin.sealing is not None else "",
    }


async def rotate(admin: Admin, request: web.Request) -> dict[str, Any]:
    tenant = request.match_info["tenant"]
    existing(admin.view.tenant(tenant), NotFound(f"tenant {tenant} does not exist"))
    sealing = await _sealing(admin)
    count = len(sealing.listing().get(tenant, ()))
    if count >= KEYS_MAX and not admin.security.rights.is_super(request[PRINCIPAL]):
        raise NotAllowed(
            f"tenant {tenant} has {count} data keys, and {KEYS_MAX} are enough: ask an operator to remove those that "
            "no topic needs any more"
        )
    key = await sealing.rotate(tenant)
    return {"region": admin.region, "tenant": tenant, "number": f"{key.number:016x}", "master": key.master}


async def rewrap(admin: Admin, request: web.Request) -> dict[str, Any]:
    sealing = await _sealing(admin)
    return {"region": admin.region, "master": sealing.master, "tenants": await sealing.rewrap()}


async def remove(admin: Admin, request: web.Request) -> Any:
    """?force=true: also where ledgers may hold what it sealed; that cannot be read by anybody any more."""
    sealing, tenant, text = await _sealing(admin), request.match_info["tenant"], request.match_info["number"]
    try:
        number = int(text, 16)
    except ValueError as error:
        raise MalformedRequest(f"key {text!r}: expected a number as `heliograph keys list` shows it") from error
    found = sealing.listing().get(tenant, ())
    numbers = [key.number for key in found]
    if request.query.get("force") != "true" and number in numbers[:-1]:
        count, names = (await _uses(admin, tenant, found))[numbers.index(number)]
        if count:
            raise NotAllowed(
                f"{count} topics may hold entries that are sealed with data key {text}, {', '.join(names[:3])} "
                f"among them: `heliograph keys reseal {tenant}` writes them anew, or let them be trimmed; with force "
                "they cannot be read any more"
            )
    await sealing.remove(tenant, number)
    return None


async def _sealing(admin: Admin) -> Sealing:
    sealing = existing(admin.sealing, KeyMissing("this broker knows of no encryption at rest"))
    await sealing.look()
    return sealing


def _shown(found: tuple[DataKey, ...]) -> list[dict[str, Any]]:
    return [
        {
            "number": f"{key.number:016x}",
            "master": key.master,
            "created_ms": key.created_ms,
            "seals": at == len(found) - 1,
        }
        for at, key in enumerate(found)
    ]


async def _uses(admin: Admin, tenant: str, found: tuple[DataKey, ...]) -> list[tuple[int, list[str]]]:
    """Counts, for each key, the topics that may hold something it sealed, and names _EXAMPLES of them; the last key,
    which seals now, has none.
    """
    counts, examples = [0] * len(found), [list[str]() for _ in found]
    meta, pace = admin.usage_store, RowPace()
    if meta is None or len(found) < 2:
        return list(zip(counts, examples, strict=True))
    places, order = await _places(meta, tenant), {key.number: at for at, key in enumerate(found)}
    for namespace in admin.view.namespaces(tenant):
        for name in await admin.topics.stored(namespace):
            stored = await meta.get(keys.managed_ledger(name))
            if stored is None:
                continue
            metadata = ManagedLedgerMetadata.decode(stored[0])
            compacted, now_ms = await stored_compacted(meta, name), admin.links.expiry.wall_ms()
            # what was sealed anew has a key that its time does not tell: each ledger is asked
            ledgers = await _ledgers(meta, name) if metadata.pages else _with_times(metadata)
            anew = places.get(name, {})
            await pace.rows(len(found))
            for at, (key, following) in enumerate(pairwise(found)):
                # with the first one also what was lost of older ledgers is sealed
                times = (key.created_ms if at else 0), following.created_ms
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


_TENANT = "/heliograph/v1/keys/{tenant}"
ROUTES: tuple[Route, ...] = (
    Route("GET", "/heliograph/v1/keys", CallAccess.SUPER, listing),
    Route("POST", "/heliograph/v1/keys", CallAccess.SUPER, rewrap),
    Route("GET", _TENANT, CallAccess.TENANT, of_tenant),
    Route("POST", f"{_TENANT}/rotate", CallAccess.TENANT, rotate),
    Route("POST", f"{_TENANT}/required", CallAccess.SUPER, require),
    Route("DELETE", f"{_TENANT}/required", CallAccess.SUPER, lift),
    Route("DELETE", f"{_TENANT}/{{number}}", CallAccess.SUPER, remove),
)
