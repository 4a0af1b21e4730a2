"""ConfigAdmin: the writes to the global configuration, each one a checked transaction.

Is: regions, tenants, namespaces, partitioned topics: validation, compare-and-set, references that hold. Isn't: who may
call it, or the copy that is read (`global_config.view`).
Invariants: a region's number is never used again, also after the region was deleted; its epoch never falls; what a
namespace or a tenant names exists when the write commits, and is not deleted while it is named; a namespace's regions
are among its tenant's.

Every call raises, beside what it says: MetadataUnavailable (no majority of regions: nothing was changed),
OutcomeUnknown (it may have been).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from global_config import cluster_migrations, deleted_leaderships, keys
from global_config.acl_writes import AclWrites
from global_config.peer_clusters import PeerClusters
from global_config.revocation_list import RevocationList
from global_config.write_retries import Tries, busy
from heliograph.kv.metadata_store import ABSENT, OPS_MAX, Check, Delete, MetadataStore, Op, Put, pages_under, prefix_end
from heliograph.model.configuration.configuration_records import (
    ClusterPeers,
    NamespacePolicies,
    PartitionedTopic,
    PulsarCluster,
    RegionInfo,
    ResourceGroup,
    TenantInfo,
    TenantQuota,
    TopicPolicies,
)
from heliograph.model.configuration.policy_table import checked
from heliograph.model.errors import AlreadyExists, MetadataUnavailable, NotAllowed, NotFound, VersionConflict
from heliograph.model.feature_levels import SEALED_TENANTS
from heliograph.model.topic_names import TopicName, check_name
from heliograph.runtime.clock import Clock, Rng

V = TypeVar(
    "V",
    RegionInfo,
    PulsarCluster,
    TenantInfo,
    NamespacePolicies,
    PartitionedTopic,
    TopicPolicies,
    ResourceGroup,
    TenantQuota,
)

PARTITIONS_MAX = 4096
NUMBER_MAX = (1 << 31) - 1
_DOMAINS = ("persistent", "non-persistent")


class Offline(Protocol):
    """Takes policies while the configuration cannot be reached; `global_config.deferred_edits.DeferredEdits` is one."""

    def waits(self, key: str) -> bool: ...

    async def namespace(
        self, name: str, change: Callable[[NamespacePolicies], NamespacePolicies]
    ) -> NamespacePolicies: ...

    async def topic(
        self, topic: str, change: Callable[[TopicPolicies], TopicPolicies]
    ) -> tuple[TopicPolicies, TopicPolicies]: ...


class ConfigAdmin:
    """Over a linearizable store of the global configuration."""

    def __init__(
        self, store: MetadataStore, offline: Offline | None = None, rng: Rng | None = None, clock: Clock | None = None
    ) -> None:
        """offline: where changes of policies go while the configuration cannot be reached; None: they fail then. rng:
        spreads tries that collided.

        clock: dates partitioned topics that are made; None: they have no date.
        """
        self._store, self._offline, self._rng, self._clock = store, offline, rng, clock
        self.peers, self.migrations = PeerClusters(store, rng), cluster_migrations.ClusterMigrations(store, rng)
        self.revocations, self.acls = RevocationList(store, rng), AclWrites(store, rng)

    # -- regions ------------------------------------------------------------------------------------------------------

    async def create_region(
        self,
        name: str,
        *,
        number: int = 0,
        service_url: str = "",
        admin_url: str = "",
        link_urls: dict[str, list[str]] | None = None,
        feature_level: int = 1,
    ) -> RegionInfo:
        """number: 0 = the next one that was never used. Returns what was stored. Raises AlreadyExists, NotAllowed (the
        number was used).
        """
        check_name("region", name)
        if await self._version(keys.region(name)) != ABSENT:
            raise AlreadyExists(f"region {name!r} exists already")
        if await self._version(keys.cluster(name)) != ABSENT:
            raise AlreadyExists(f"{name!r} is the name of a Pulsar cluster")
        async for _ in Tries(self._rng):
            chosen = number or await self._store.next_ids(keys.NUMBERS, at_least=1)
            if not 0 < chosen <= NUMBER_MAX:
                raise NotAllowed(f"region {name!r}: its number must be 1 to {NUMBER_MAX}, not {chosen}")
            info = RegionInfo(
                name=name,
                number=chosen,
                service_url=service_url,
                admin_url=admin_url,
                link_urls=link_urls or {},
                feature_level=feature_level,
            )
            try:
                await self._store.txn(
                    [
                        Put(keys.region(name), info.encode(), ABSENT),
                        Put(keys.region_number(chosen), name.encode(), ABSENT),
                    ]
                )
            except VersionConflict as conflict:
                if conflict.key == keys.region(name):
                    raise AlreadyExists(f"region {name!r} exists already") from None
                if number:
                    raise NotAllowed(
                        f"region number {number} was used before; a number is never used twice, because it stands in "
                        "every coordinate: give another"
                    ) from None
            else:
                return info
        raise MetadataUnavailable("region numbers are being taken faster than one can be had: try again")

    async def ensure_region(self, info: RegionInfo) -> RegionInfo:
        """Creates it with the number given, or updates what differs (the epoch never falls). Repeating it changes
        nothing.

        Returns what is stored. Raises NotAllowed (the name has another number, or the number was used by another name).
        """
        found = await self._store.get(keys.region(info.name))
        if found is None:
            try:
                created = await self.create_region(
                    info.name,
                    number=info.number,
                    service_url=info.service_url,
                    admin_url=info.admin_url,
                    link_urls=info.link_urls,
                    feature_level=info.feature_level,
                )
            except AlreadyExists:
                pass  # somebody else was faster: then it is an update
            else:
                return created if info.epoch <= created.epoch else await self.update_region(info.name, lambda _: info)
        return await self._change(
            keys.region(info.name),
            RegionInfo,
            f"region {info.name!r}",
            lambda old: replace(
                _same_number(old, info),
                epoch=max(old.epoch, info.epoch),
                feature_level=max(old.feature_level, info.feature_level),
            ),
        )

    async def update_region(self, name: str, change: Callable[[RegionInfo], RegionInfo]) -> RegionInfo:
        """change: over what stands there; the feature level never falls. Raises NotFound, NotAllowed (another number,
        or an epoch that falls).
        """

        def checked_change(old: RegionInfo) -> RegionInfo:
            info = change(old)
            if info.epoch < old.epoch:
                raise NotAllowed(f"region {name!r}: its epoch is {old.epoch} and cannot fall to {info.epoch}")
            return replace(_same_number(old, info), feature_level=max(old.feature_level, info.feature_level))

        return await self._change(keys.region(name), RegionInfo, f"region {name!r}", checked_change)

    async def raise_level(self, name: str, level: int) -> int:
        """The region's processes all speak `level`. Returns its level then, which never falls. Raises NotFound."""
        found = await self._change(
            keys.region(name),
            RegionInfo,
            f"region {name!r}",
            lambda old: replace(old, feature_level=max(old.feature_level, level)),
        )
        return found.feature_level

    async def raise_epoch(self, name: str, expected: int) -> int:
        """The region's metadata was restored or rebuilt: its epoch rises from `expected` by one. Raises NotFound,
        NotAllowed (it is another).
        """

        def change(old: RegionInfo) -> RegionInfo:
            if old.epoch != expected:
                raise NotAllowed(f"region {name!r}: its epoch is {old.epoch}, not {expected}")
            return replace(old, epoch=expected + 1)

        return (await self._change(keys.region(name), RegionInfo, f"region {name!r}", change)).epoch

    async def begin_metadata(self, name: str, instance: str) -> RegionInfo:
        """The region's local metadata is `instance`: where another one was known, that was restored or rebuilt, and the
        region's epoch rises by one.

        Repeating it changes nothing. Raises NotFound.
        """

        def change(old: RegionInfo) -> RegionInfo:
            if old.metadata_instance == instance:
                return old
            return replace(old, metadata_instance=instance, epoch=old.epoch + bool(old.metadata_instance))

        return await self._change(keys.region(name), RegionInfo, f"region {name!r}", change)

    async def delete_region(self, name: str) -> None:
        """Raises NotFound, NotAllowed (a tenant, a namespace, or a cluster names it, or has it as its peer). Its number
        stays used.
        """

        async def users() -> str:
            for key, value, _ in await self._all(keys.CLUSTERS):
                if PulsarCluster.decode(value).gateway == name:
                    return f"cluster {key.removeprefix(keys.CLUSTERS)}"
            for key, value, _ in await self._all(keys.NAMESPACES):
                if name in NamespacePolicies.decode(value).regions:
                    return f"namespace {key.removeprefix(keys.NAMESPACES)}"
            for key, value, _ in await self._all(keys.TENANTS):
                if name in TenantInfo.decode(value).allowed_regions:
                    return f"tenant {key.removeprefix(keys.TENANTS)}"
            return await self._peer_of(name)

        await self._delete_unused(keys.region(name), f"region {name!r}", users, keys.peers(name), keys.migration(name))

    # -- real Pulsar clusters -----------------------------------------------------------------------------------------

    async def create_cluster(self, cluster: PulsarCluster) -> None:
        """Raises AlreadyExists (also where a region has the name), NotFound (its gateway)."""
        check_name("cluster", cluster.name)
        if await self._version(keys.region(cluster.name)) != ABSENT:
            raise AlreadyExists(f"{cluster.name!r} is the name of a region")
        await self._create(
            keys.cluster(cluster.name),
            cluster.encode(),
            f"cluster {cluster.name!r}",
            lambda: self._regions([cluster.gateway]),
        )

    async def update_cluster(self, name: str, change: Callable[[PulsarCluster], PulsarCluster]) -> PulsarCluster:
        """Raises NotFound (it, or its gateway)."""
        async for _ in Tries(self._rng):
            old, version = await self._existing(keys.cluster(name), PulsarCluster, f"cluster {name!r}")
            new = change(old)
            if new == old or await self._committed(
                [Put(keys.cluster(name), new.encode(), version), *await self._regions([new.gateway])]
            ):
                return new
        raise busy()

    async def delete_cluster(self, name: str) -> None:
        """Raises NotFound, NotAllowed (a namespace names it, or a cluster has it as its peer)."""

        async def users() -> str:
            for key, value, _ in await self._all(keys.NAMESPACES):
                if name in NamespacePolicies.decode(value).clusters:
                    return f"namespace {key.removeprefix(keys.NAMESPACES)}"
            return await self._peer_of(name)

        await self._delete_unused(
            keys.cluster(name), f"cluster {name!r}", users, keys.peers(name), keys.migration(name)
        )

    async def _peer_of(self, name: str) -> str:
        """Who has it as a peer; "": nobody."""
        for key, value, _ in await self._all(keys.PEERS):
            if name in ClusterPeers.decode(value).names:
                return f"cluster {key.removeprefix(keys.PEERS)}, as its peer"
        return ""

    # -- tenants ------------------------------------------------------------------------------------------------------

    async def create_tenant(self, name: str, info: TenantInfo) -> None:
        """Raises AlreadyExists, NotFound (a region), NotAllowed (it has to be encrypted, as one that is restored, and a
        region could not read that).
        """
        check_name("tenant", name)

        async def references() -> list[Op]:
            if info.encryption_at_rest:
                await self._seals(name, info.allowed_regions)
            return [*await self._regions(info.allowed_regions), Delete(keys.acls(name))]

        await self._create(keys.tenant(name), info.encode(), f"tenant {name!r}", references)

    async def update_tenant(self, name: str, given: TenantInfo) -> TenantInfo:
        """Who administers it, and where it may be; what it has to encrypt stays as it is. Returns what is there then.

        Raises NotFound (it, or a region), NotAllowed (a namespace of it is in a region that would no longer be allowed;
        `require_encryption`).
        """
        async for _ in Tries(self._rng):
            guard, found = (
                await self._version(keys.GUARD),
                await self._existing(keys.tenant(name), TenantInfo, f"tenant {name!r}"),
            )
            info = replace(given, encryption_at_rest=found[0].encryption_at_rest)
            for key, value, _ in await self._all(keys.NAMESPACES + name + "/"):
                left = [r for r in NamespacePolicies.decode(value).regions if r not in info.allowed_regions]
                if left:
                    raise NotAllowed(
                        f"tenant {name!r}: its namespace {key.removeprefix(keys.NAMESPACES)} is in region "
                        f"{left[0]!r}: take it out there first"
                    )
            if found[0] == info:
                return info
            checks = await self._regions(info.allowed_regions)
            if info.encryption_at_rest:
                await self._seals(name, info.allowed_regions)
            if await self._committed(
                [Put(keys.tenant(name), info.encode(), found[1]), *checks, Put(keys.GUARD, b"", guard)]
            ):
                return info
        raise busy()

    async def require_encryption(self, name: str, *, on: bool) -> TenantInfo:
        """Whether everything of the tenant is encrypted at rest. Raises NotFound, NotAllowed (a region's processes
        would not obey it).
        """
        async for _ in Tries(self._rng):
            old, version = await self._existing(keys.tenant(name), TenantInfo, f"tenant {name!r}")
            new = replace(old, encryption_at_rest=on)
            if new == old and not on:
                return old
            # written also where it is set: an earlier version may have done so, in a form that others could take it off
            if on:
                await self._seals(name, old.allowed_regions)
            if await self._committed([Put(keys.tenant(name), new.encode(), version)]):
                return new
        raise busy()

    async def _seals(self, tenant: str, regions: Sequence[str]) -> None:
        """A region's level never falls, so that what is found here holds when the write commits."""
        for region in regions:
            info, _ = await self._existing(keys.region(region), RegionInfo, f"region {region!r}")
            if info.feature_level < SEALED_TENANTS:
                raise NotAllowed(
                    f"tenant {tenant!r} is to be encrypted at rest, and region {region!r} is at feature level "
                    f"{info.feature_level}, which cannot read that: "
                    f"upgrade that region first (it wants level {SEALED_TENANTS})"
                )

    async def delete_tenant(self, name: str) -> None:
        """Raises NotFound, NotAllowed (it has namespaces)."""

        async def users() -> str:
            found = await self._store.range(
                keys.NAMESPACES + name + "/", prefix_end(keys.NAMESPACES + name + "/"), limit=1
            )
            return f"namespace {found[0][0].removeprefix(keys.NAMESPACES)}" if found else ""

        beside = keys.acls(name), keys.tenant_quota(name)
        await self._delete_unused(keys.tenant(name), f"tenant {name!r}", users, *beside)

    # -- namespaces ---------------------------------------------------------------------------------------------------

    async def create_namespace(self, name: str, policies: NamespacePolicies) -> None:
        """name: `tenant/namespace`. Raises AlreadyExists, NotFound (tenant or region), NotAllowed (a region that the
        tenant may not use, no region).
        """
        tenant, separator, local = name.partition("/")
        if not separator:
            raise NotAllowed(f"namespace {name!r}: expected tenant/namespace")
        check_name("tenant", tenant)
        check_name("namespace", local)
        checked(policies.policies)

        async def references() -> list[Op]:
            return [*await self._references(name, policies), *await self.acls.without(name)]

        await self._create(keys.namespace(name), policies.encode(), f"namespace {name!r}", references)

    async def update_namespace(
        self, name: str, change: Callable[[NamespacePolicies], NamespacePolicies]
    ) -> NamespacePolicies:
        """Applies `change` by compare-and-set (it may be called several times). Raises NotFound, NotAllowed.

        With `offline`, a change of policies alone is kept and merged later where the configuration cannot be reached.
        """
        if self._offline is None:
            return await self._update_namespace(name, change)
        if not self._offline.waits(keys.namespace(name)):
            try:
                return await self._update_namespace(name, change)
            except MetadataUnavailable:
                pass  # nothing was changed
        return await self._offline.namespace(name, change)

    async def _update_namespace(
        self, name: str, change: Callable[[NamespacePolicies], NamespacePolicies]
    ) -> NamespacePolicies:
        async for _ in Tries(self._rng):
            old, version = await self._existing(keys.namespace(name), NamespacePolicies, f"namespace {name!r}")
            new = change(old)
            if new == old:
                return old
            if new.bundles != old.bundles:
                raise NotAllowed(
                    f"namespace {name!r}: the number of its bundles is {old.bundles} and cannot be changed to "
                    f"{new.bundles} afterwards"
                )
            checked(new.policies, old.policies)
            checks = await self._references(name, new)
            if await self._committed([Put(keys.namespace(name), new.encode(), version), *checks, Put(keys.GUARD, b"")]):
                return new
        raise busy()

    async def delete_namespace(self, name: str) -> None:
        """Its partitioned topics' entries, its ACLs, its leadership, and its topics' policies go with it; whether
        topics hold data is the caller's to see. Raises NotFound, NotAllowed (too many).
        """
        async for _ in Tries(self._rng):
            guard = await self._version(keys.GUARD)
            _, version = await self._existing(keys.namespace(name), NamespacePolicies, f"namespace {name!r}")
            topics = [
                key for domain in _DOMAINS for key, _, _ in await self._all(keys.partitioned(f"{domain}://{name}/"))
            ]
            ops: list[Op] = [
                Delete(keys.namespace(name), version),
                *map(Delete, (*topics, keys.migrated(name))),
                *await deleted_leaderships.without(self._store, name),
                *await self.acls.without(name),
                Check(keys.GUARD, guard),
            ]
            if len(ops) > OPS_MAX:
                raise NotAllowed(f"namespace {name!r} still has {len(topics)} partitioned topics: delete them first")
            for domain in _DOMAINS:  # before the namespace: who is asked again after a failure finds what is left
                for key, _, _ in await self._all(keys.topic_policies(f"{domain}://{name}/")):
                    await self._store.delete(key)
            if await self._committed(ops):
                return
        raise busy()

    # -- partitioned topics -------------------------------------------------------------------------------------------

    async def create_partitioned(self, topic: str, partitions: int) -> None:
        """topic: its full name. Raises AlreadyExists, NotFound (the namespace), NotAllowed (a number out of bounds, a
        partition of another).
        """
        name = TopicName.parse(topic)
        if name.partition >= 0:
            raise NotAllowed(f"topic {topic!r} is a partition: it cannot have partitions of its own")
        _check_partitions(topic, partitions)

        async def references() -> list[Op]:
            _, version = await self._existing(
                keys.namespace(name.namespace), NamespacePolicies, f"namespace {name.namespace!r}"
            )
            return [Check(keys.namespace(name.namespace), version)]

        key, what = keys.partitioned(str(name)), f"partitioned topic {topic!r}"
        if await self._version(key) != ABSENT:
            raise AlreadyExists(f"{what} exists already")
        await references()
        incarnation = await self._store.next_ids(keys.INCARNATIONS, at_least=1)
        made = PartitionedTopic(
            partitions=partitions,
            incarnation=incarnation,
            created_ms=0 if self._clock is None else self._clock.wall_ms(),
        )
        await self._create(key, made.encode(), what, references)

    async def update_partitioned(self, topic: str, partitions: int) -> None:
        """Raises NotFound, NotAllowed (fewer than there are: keys would move)."""
        _check_partitions(topic, partitions)

        def change(old: PartitionedTopic) -> PartitionedTopic:
            if partitions < old.partitions:
                raise NotAllowed(
                    f"topic {topic!r} has {old.partitions} partitions; their number can only grow, not fall to "
                    f"{partitions}"
                )
            return replace(old, partitions=partitions)

        await self._change(
            keys.partitioned(str(TopicName.parse(topic))), PartitionedTopic, f"partitioned topic {topic!r}", change
        )

    async def delete_partitioned(self, topic: str) -> None:
        """Forgets the topic's partition count, not its partitions. Raises NotFound."""
        if not await self._store.delete(keys.partitioned(str(TopicName.parse(topic)))):
            raise NotFound(f"partitioned topic {topic!r} does not exist")

    # -- topics' policies that hold in all regions, resource groups ----------------------------------------------------

    async def change_topic_policies(
        self, topic: str, change: Callable[[TopicPolicies], TopicPolicies]
    ) -> tuple[TopicPolicies, TopicPolicies]:
        """topic: its full name, without a partition. (before, after). Raises NotAllowed. `offline`: as
        `update_namespace`.
        """
        if self._offline is None:
            return await self._change_topic_policies(topic, change)
        if not self._offline.waits(keys.topic_policies(topic)):
            try:
                return await self._change_topic_policies(topic, change)
            except MetadataUnavailable:
                pass  # nothing was changed
        return await self._offline.topic(topic, change)

    async def _change_topic_policies(
        self, topic: str, change: Callable[[TopicPolicies], TopicPolicies]
    ) -> tuple[TopicPolicies, TopicPolicies]:

        def checked_change(old: TopicPolicies | None) -> TopicPolicies | None:
            known = old or TopicPolicies()
            after = change(known)
            checked(after.policies, known.policies)
            return None if after == TopicPolicies() else after

        key = keys.topic_policies(str(TopicName.parse(topic)))
        before, after = await self._change_or_make(key, TopicPolicies, checked_change)
        return before or TopicPolicies(), after or TopicPolicies()

    async def change_resource_group(
        self, name: str, change: Callable[[ResourceGroup | None], ResourceGroup]
    ) -> tuple[ResourceGroup | None, ResourceGroup]:
        """(before, after). change: over what stands there, None: it is made; it may be called several times."""
        key = keys.resource_group(check_name("resource group", name))
        before, after = await self._change_or_make(key, ResourceGroup, change)
        assert after is not None
        return before, after

    async def change_tenant_quota(
        self, tenant: str, change: Callable[[TenantQuota | None], TenantQuota | None]
    ) -> tuple[TenantQuota | None, TenantQuota | None]:
        """(before, after): a tenant's bounds, None: it has none. change: over what stands there; it may be called
        several times. Raises NotFound (the tenant).
        """

        async def exists() -> list[Op]:
            _, version = await self._existing(keys.tenant(tenant), TenantInfo, f"tenant {tenant!r}")
            return [Check(keys.tenant(tenant), version)]

        return await self._change_or_make(keys.tenant_quota(check_name("tenant", tenant)), TenantQuota, change, exists)

    async def delete_resource_group(self, name: str) -> None:
        """Raises NotFound, NotAllowed (a namespace is in it)."""

        async def users() -> str:
            for key, value, _ in await self._all(keys.NAMESPACES):
                if NamespacePolicies.decode(value).policies.get("resourceGroup") == name:
                    return f"namespace {key.removeprefix(keys.NAMESPACES)}"
            return ""

        await self._delete_unused(keys.resource_group(name), f"resource group {name!r}", users)

    # -- what they share ----------------------------------------------------------------------------------------------

    async def _create(self, key: str, value: bytes, what: str, references: Callable[[], Awaitable[list[Op]]]) -> None:
        """references: makes the checks that what `value` names is there; it raises where it isn't."""
        async for _ in Tries(self._rng):
            if await self._store.get(key) is not None:
                raise AlreadyExists(f"{what} exists already")
            if await self._committed([Put(key, value, ABSENT), *await references(), Put(keys.GUARD, b"")]):
                return
        raise busy()

    async def _change(self, key: str, kind: type[V], what: str, change: Callable[[V], V]) -> V:
        async for _ in Tries(self._rng):
            old, version = await self._existing(key, kind, what)
            new = change(old)
            if new == old or await self._committed([Put(key, new.encode(), version)]):
                return new
        raise busy()

    async def _change_or_make(
        self,
        key: str,
        kind: type[V],
        change: Callable[[V | None], V | None],
        references: Callable[[], Awaitable[list[Op]]] | None = None,
    ) -> tuple[V | None, V | None]:
        """(before, after); None: nothing stands there. references: as in `_create`."""
        async for _ in Tries(self._rng):
            checks: list[Op] = [] if references is None else await references()
            found = await self._store.get(key)
            before, version = (None, ABSENT) if found is None else (kind.decode(found[0]), found[1])
            after = change(before)
            if after == before or await self._committed(
                [Delete(key, version) if after is None else Put(key, after.encode(), version), *checks]
            ):
                return before, after
        raise busy()

    async def _delete_unused(self, key: str, what: str, users: Callable[[], Awaitable[str]], *beside: str) -> None:
        """users: names one that refers to it, or "". beside: keys that go with it. Whoever begins to refer meanwhile
        puts the guard, and this tries again.
        """
        async for _ in Tries(self._rng):
            guard = await self._version(keys.GUARD)
            version = await self._version(key)
            if version == ABSENT:
                raise NotFound(f"{what} does not exist")
            user = await users()
            if user:
                raise NotAllowed(f"{what} is still used by {user}")
            if await self._committed([Delete(key, version), *map(Delete, beside), Check(keys.GUARD, guard)]):
                return
        raise busy()

    async def _references(self, namespace: str, policies: NamespacePolicies) -> list[Op]:
        """The checks that a namespace's tenant and regions are as they were found to be right."""
        name = namespace.partition("/")[0]
        tenant, version = await self._existing(keys.tenant(name), TenantInfo, f"tenant {name!r}")
        if not policies.regions:
            raise NotAllowed(f"namespace {namespace!r}: name at least one region")
        for region in policies.regions:
            if region not in tenant.allowed_regions:
                allowed = ", ".join(tenant.allowed_regions) or "none"
                raise NotAllowed(
                    f"namespace {namespace!r}: region {region!r} is not allowed to tenant {name!r} (allowed: {allowed})"
                )
        return [
            Check(keys.tenant(name), version),
            *await self._regions(policies.regions),
            *await self._clusters(policies),
        ]

    async def _clusters(self, policies: NamespacePolicies) -> list[Op]:
        """The checks that these clusters exist, and lie behind a region of the namespace."""
        checks: list[Op] = []
        for name in policies.clusters:
            cluster, version = await self._existing(keys.cluster(name), PulsarCluster, f"cluster {name!r}")
            if cluster.gateway not in policies.regions:
                raise NotAllowed(
                    f"cluster {name!r} lies behind region {cluster.gateway!r}: replicate the namespace to that region "
                    "too"
                )
            checks.append(Check(keys.cluster(name), version))
        return checks

    async def _regions(self, names: Sequence[str]) -> list[Op]:
        """The checks that these regions exist. (Their addresses may change meanwhile: then the write is tried
        again.)
        """
        checks: list[Op] = []
        for name in dict.fromkeys(names):
            version = await self._version(keys.region(name))
            if version == ABSENT:
                raise NotFound(f"region {name!r} does not exist")
            checks.append(Check(keys.region(name), version))
        return checks

    async def _existing(self, key: str, kind: type[V], what: str) -> tuple[V, int]:
        found = await self._store.get(key)
        if found is None:
            raise NotFound(f"{what} does not exist")
        return kind.decode(found[0]), found[1]

    async def _version(self, key: str) -> int:
        found = await self._store.get(key)
        return ABSENT if found is None else found[1]

    async def _all(self, prefix: str) -> list[tuple[str, bytes, int]]:
        return [row async for rows in pages_under(self._store, prefix) for row in rows]

    async def _committed(self, ops: Sequence[Op]) -> bool:
        """False: something changed meanwhile; look again."""
        try:
            await self._store.txn(ops)
        except VersionConflict:
            return False
        return True


def _same_number(old: RegionInfo, new: RegionInfo) -> RegionInfo:
    if new.number != old.number:
        raise NotAllowed(f"region {old.name!r} has number {old.number}; it cannot become {new.number}")
    return replace(new, metadata_instance=old.metadata_instance)


def _check_partitions(topic: str, partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise NotAllowed(f"topic {topic!r}: 1 to {PARTITIONS_MAX} partitions are allowed, not {partitions}")
