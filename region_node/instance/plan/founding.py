"""Founding: the regions that an instance begins with, and `public/default`, which is in all of them.

Is: one region's entry into the configuration, whoever of them comes first, and however often each writes itself down.
Isn't: a region that joins a running instance, whose namespaces are its operator's to choose
(`region_node.instance.plan.region_growth`), or the voters.
Invariants: a region enters `public`, and `public/default`, by the transaction that makes it, and never again: what an
operator has changed since then stays, also that it was taken out, or that the namespace was deleted; both are made with
the first region alone; a region that has left does not come back under its name.
"""

from __future__ import annotations

from dataclasses import replace

from global_config import keys
from global_config.admin import ConfigAdmin
from global_config.write_retries import Tries, busy
from heliograph.kv.metadata_store import ABSENT, Check, MetadataStore, Op, Put, rows_under
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.model.errors import ConfigError, VersionConflict
from heliograph.model.topic_names import check_name
from heliograph.runtime.clock import Rng

TENANT, NAMESPACE = "public", "public/default"


async def found(store: MetadataStore, info: RegionInfo, rng: Rng | None = None) -> None:
    """Makes the region, as one that the instance begins with, or updates what differs of it. Repeating it changes
    nothing.

    Raises ConfigError (it has left), NotAllowed (its name has another number, or the number was used by another name),
    MetadataUnavailable, OutcomeUnknown.
    """
    admin = ConfigAdmin(store, rng=rng)
    async for _ in Tries(rng):
        if await store.get(keys.region(info.name)) is not None:
            break
        await check_stays(store, info.name, info.number)
        numbered = await store.get(keys.region_number(info.number))
        if numbered is not None or await store.get(keys.cluster(info.name)) is not None:
            break  # which is refused there
        check_name("region", info.name)
        try:
            await store.txn(await _entry(store, info))
        except VersionConflict:  # another region was faster
            continue
        break
    else:
        raise busy()
    await admin.ensure_region(info)


async def check_stays(store: MetadataStore, name: str, number: int) -> None:
    """Raises ConfigError where the region was in the instance, and was taken out of it."""
    numbered = await store.get(keys.region_number(number))
    if numbered is None or numbered[0].decode(errors="replace") != name:
        return
    if await store.get(keys.region(name)) is None:
        raise ConfigError(
            f"region {name} was taken out of this instance, and does not come back under its name and number: take it "
            "out of the description, or uninstall its release; one that comes anew has others"
        )


async def _entry(store: MetadataStore, info: RegionInfo) -> list[Op]:
    """All that makes the region, if nothing changes meanwhile."""
    made: list[Op] = [
        Put(keys.region(info.name), info.encode(), ABSENT),
        Put(keys.region_number(info.number), info.name.encode(), ABSENT),
        Put(keys.GUARD, b""),
    ]
    others = {key.removeprefix(keys.REGIONS) for key, _, _ in await rows_under(store, keys.REGIONS)}
    tenant, namespace = await store.get(keys.tenant(TENANT)), await store.get(keys.namespace(NAMESPACE))
    if not others and tenant is None and namespace is None:
        first = (info.name,)
        return [
            *made,
            Put(keys.tenant(TENANT), TenantInfo(allowed_regions=first).encode(), ABSENT),
            Put(keys.namespace(NAMESPACE), NamespacePolicies(regions=first).encode(), ABSENT),
        ]
    if tenant is None:
        return made
    allowed = TenantInfo.decode(tenant[0])
    if allowed.encryption_at_rest or not others <= set(allowed.allowed_regions):
        return [*made, Check(keys.tenant(TENANT), tenant[1])]
    grown = replace(allowed, allowed_regions=_with(allowed.allowed_regions, info.name))
    made.append(Put(keys.tenant(TENANT), grown.encode(), tenant[1]))
    if namespace is None:
        return made
    policies = NamespacePolicies.decode(namespace[0])
    if not others <= set(policies.regions):
        return made
    grown_namespace = replace(policies, regions=_with(policies.regions, info.name))
    return [*made, Put(keys.namespace(NAMESPACE), grown_namespace.encode(), namespace[1])]


def _with(regions: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*regions, name)))
