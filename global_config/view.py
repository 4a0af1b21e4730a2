"""ConfigView: a copy of the global configuration that answers at once, fed by a watch.

Is: regions, tenants, namespaces, partition counts as this process last heard of them, and how stale that may be. Isn't:
linearizable, or writable (`global_config.admin`).
Invariants: the copy changes in the order of the configuration's log, and goes on answering while the region is cut off;
a value that cannot be read (of a newer version, or damaged) leaves the last good one in place and is named in `broken`;
ACLs without a last good one are not taken for none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from global_config import keys
from global_config.policy_edits import PROPERTIES, Change, Fields, flat
from global_config.write_retries import Tries
from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.configuration.acl_records import AclRecord, TenantAcls, unreadable
from heliograph.model.configuration.configuration_records import (
    ClusterMigration,
    ClusterPeers,
    MigratedNamespace,
    NamespacePolicies,
    PartitionedTopic,
    PulsarCluster,
    RegionInfo,
    ResourceGroup,
    TenantInfo,
    TenantQuota,
    TopicPolicies,
)
from heliograph.model.errors import CorruptData, MetadataError
from heliograph.runtime.task_set import report_error

log = logging.getLogger("global_config")

_V = TypeVar("_V")
V = TypeVar(
    "V",
    RegionInfo,
    PulsarCluster,
    ClusterPeers,
    ClusterMigration,
    MigratedNamespace,
    TenantInfo,
    NamespacePolicies,
    PartitionedTopic,
    TopicPolicies,
    ResourceGroup,
    TenantQuota,
    TenantAcls,
)
_ALL = "/"


class ConfigView:
    """Watches from the start; make it on the event loop. `ready` waits for the first full copy."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._regions: dict[str, RegionInfo] = {}
        self._clusters: dict[str, PulsarCluster] = {}
        self._peers: dict[str, ClusterPeers] = {}
        self._migrations: dict[str, ClusterMigration] = {}
        self._migrated: dict[str, MigratedNamespace] = {}
        self._tenants: dict[str, TenantInfo] = {}
        self._namespaces: dict[str, NamespacePolicies] = {}
        self._by_tenant: dict[str, dict[str, None]] = {}
        self._partitioned: dict[str, PartitionedTopic] = {}
        self._partitioned_in: dict[str, dict[str, int]] = {}
        """Namespace -> its partitioned topics -> how many partitions each has."""
        self._topic_policies: dict[str, TopicPolicies] = {}
        self._resource_groups: dict[str, ResourceGroup] = {}
        self._quotas: dict[str, TenantQuota] = {}
        self._acls: dict[str, TenantAcls] = {}
        self._unread_acls: dict[str, None] = {}
        """Tenants with ACLs of which none could ever be read here."""
        self._listeners: list[Callable[[str], None]] = []
        self._pending: dict[str, list[tuple[Change, ...]]] = {}
        """Key -> edits of its policies that were made here and are not in the configuration yet, in their order."""
        self.region_numbers: dict[int, str] = {}
        """Every number that a region has or had -> its name. A number that is not here belongs to nobody, or to a
        region that is younger than this copy.
        """
        self.restored = b""
        """Another value each time that the configuration went back to a backup. Where something is not in the copy any
        more that was there under another value, nobody deleted it.
        """
        self.broken: dict[str, str] = {}
        """Key -> why its newest value cannot be read."""
        self._guard = ABSENT
        """Version of the newest write of the guard that this copy has heard of."""
        self._stop = store.watch(_ALL, self._on_change)

    async def ready(self, fresh_within_s: float = 0.0) -> None:
        """Returns once there is a full copy; fresh_within_s: and, if that comes so soon, one that has everything that
        was written before this call. A node that replays its log gives out a copy as old as its last snapshot, and
        hears its leader meanwhile. A region that is cut off goes on with what it has.
        """
        await self._store.synced(_ALL)
        if fresh_within_s <= 0:
            return
        version, why = ABSENT, "no leader is heard"
        async for _ in Tries(patience_s=fresh_within_s):
            if version == ABSENT and not self.stale_s():
                try:
                    version, why = await self._store.put(keys.GUARD, b""), "it does not come to what was written last"
                except MetadataError as error:
                    why = str(error)
            if ABSENT < version <= self._guard:
                return
        log.warning("config.may_be_old", extra={"stale_s": round(self.stale_s(), 1), "error": why})

    def close(self) -> None:
        self._stop()

    def stale_s(self) -> float:
        """How old the copy may be: 0 while the configuration node that feeds it hears the leader."""
        return self._store.stale_s()

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """callback(key) after each change of the copy; keys are those of `global_config.keys`. Returns "stop"."""
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    # -- reads --------------------------------------------------------------------------------------------------------

    def region(self, name: str) -> RegionInfo | None:
        return self._regions.get(name)

    def regions(self) -> list[RegionInfo]:
        """In the order of their names."""
        return [self._regions[name] for name in sorted(self._regions)]

    def cluster(self, name: str) -> PulsarCluster | None:
        """Returns what is known of a real Pulsar cluster; None: no such one is known."""
        return self._clusters.get(name)

    def clusters(self) -> list[PulsarCluster]:
        """In the order of their names."""
        return [self._clusters[name] for name in sorted(self._clusters)]

    def peers(self, name: str) -> tuple[str, ...]:
        """Returns the peers of a region, or of a Pulsar cluster, sorted."""
        found = self._peers.get(name)
        return () if found is None else found.names

    def migration(self, name: str) -> ClusterMigration | None:
        """Returns the migration of a region, or of a Pulsar cluster; None: nobody ever spoke of one."""
        return self._migrations.get(name)

    def migrated_in(self, namespace: str) -> tuple[str, ...]:
        """The regions that send the clients of `tenant/namespace` on."""
        found = self._migrated.get(namespace)
        return () if found is None else found.regions

    def tenant(self, name: str) -> TenantInfo | None:
        return self._tenants.get(name)

    def tenants(self) -> list[str]:
        return sorted(self._tenants)

    def namespace(self, name: str) -> NamespacePolicies | None:
        """Returns a namespace with this region's edits that wait to be merged. name: `tenant/namespace`."""
        found = self._namespaces.get(name)
        if self._pending and found is not None and (pending := self._pending.get(keys.namespace(name))):
            return replace(found, policies=_above(found.policies, pending))
        return found

    def namespaces(self, tenant: str) -> list[str]:
        """Returns a tenant's namespaces as `tenant/namespace`, sorted."""
        return sorted(self._by_tenant.get(tenant, ()))

    def partitions(self, topic: str) -> int:
        """topic: its full name. 0: it is not partitioned."""
        found = self._partitioned.get(topic)
        return 0 if found is None else found.partitions

    def incarnation(self, topic: str) -> int:
        """topic: its full name. Of a partitioned topic, higher than that of any made before it; 0: not known, or it is
        not partitioned.
        """
        found = self._partitioned.get(topic)
        return 0 if found is None else found.incarnation

    def created_ms(self, topic: str) -> int:
        """topic: its full name. When a partitioned topic was made; 0: not known, or it is not partitioned."""
        found = self._partitioned.get(topic)
        return 0 if found is None else found.created_ms

    def partitioned(self, namespace: str) -> list[str]:
        """Full names of the partitioned topics of a namespace, sorted."""
        return sorted(self._partitioned_in.get(namespace, ()))

    def partitions_in(self, namespace: str) -> int:
        """How many partitions the partitioned topics of a namespace have together, used or not."""
        return sum(self._partitioned_in.get(namespace, {}).values())

    def topic_policies(self, topic: str) -> TopicPolicies | None:
        """topic: its full name, without a partition."""
        found = self._topic_policies.get(topic)
        if self._pending and (pending := self._pending.get(keys.topic_policies(topic))):
            fields = _above(flat(found or TopicPolicies()), pending)
            return TopicPolicies(
                policies={name: fields[name] for name in fields if name != PROPERTIES},
                properties=fields.get(PROPERTIES, {}),
            )
        return found

    def resource_group(self, name: str) -> ResourceGroup | None:
        return self._resource_groups.get(name)

    def resource_groups(self) -> list[str]:
        return sorted(self._resource_groups)

    def tenant_quota(self, tenant: str) -> TenantQuota | None:
        return self._quotas.get(tenant)

    def tenant_quotas(self) -> dict[str, TenantQuota]:
        return dict(self._quotas)

    def acls(self, tenant: str) -> tuple[AclRecord, ...] | None:
        """What Kafka's tools allow or refuse in a tenant; None: there is something, and nobody knows what."""
        found = self._acls.get(tenant)
        if found is None:
            return None if tenant in self._unread_acls else ()
        return found.records

    # -- what was edited here while the configuration could not be reached ---------------------------------------------

    def set_pending(self, key: str, edits: list[tuple[Change, ...]]) -> None:
        """Policies at `key` are obeyed as these edits leave them, whatever the configuration told last. []: no more."""
        if edits:
            self._pending[key] = edits
        else:
            self._pending.pop(key, None)
        _tell(self._listeners, key)

    # -- the watch ----------------------------------------------------------------------------------------------------

    def _on_change(self, key: str, value: bytes | None, version: int) -> None:
        self.broken.pop(key, None)
        if key == keys.GUARD:
            self._guard = version
            return
        if key == keys.RESTORED:
            self.restored = value or b""
            return
        if key.startswith(keys.REGION_NUMBERS):
            _number_given(self.region_numbers, self.broken, key, value)
            return
        try:
            if key.startswith(keys.REGIONS):
                _set(self._regions, key.removeprefix(keys.REGIONS), RegionInfo, value)
            elif key.startswith(keys.CLUSTERS):
                _set(self._clusters, key.removeprefix(keys.CLUSTERS), PulsarCluster, value)
            elif key.startswith(keys.PEERS):
                _set(self._peers, key.removeprefix(keys.PEERS), ClusterPeers, value)
            elif key.startswith(keys.MIGRATIONS):
                _set(self._migrations, key.removeprefix(keys.MIGRATIONS), ClusterMigration, value)
            elif key.startswith(keys.MIGRATED):
                _set(self._migrated, key.removeprefix(keys.MIGRATED), MigratedNamespace, value)
            elif key.startswith(keys.TENANTS):
                _set(self._tenants, key.removeprefix(keys.TENANTS), TenantInfo, value)
            elif key.startswith(keys.NAMESPACES):
                name = key.removeprefix(keys.NAMESPACES)
                _set(self._namespaces, name, NamespacePolicies, value)
                _index(self._by_tenant, name.partition("/")[0], name, None, known=name in self._namespaces)
            elif key.startswith(keys.PARTITIONED):
                name = key.removeprefix(keys.PARTITIONED)
                _set(self._partitioned, name, PartitionedTopic, value)
                namespace, count = "/".join(name.partition("://")[2].split("/", 2)[:2]), self.partitions(name)
                _index(self._partitioned_in, namespace, name, count, known=count > 0)
            elif key.startswith(keys.TOPIC_POLICIES):
                _set(self._topic_policies, key.removeprefix(keys.TOPIC_POLICIES), TopicPolicies, value)
            elif key.startswith(keys.RESOURCE_GROUPS):
                _set(self._resource_groups, key.removeprefix(keys.RESOURCE_GROUPS), ResourceGroup, value)
            elif key.startswith(keys.TENANT_QUOTAS):
                _set(self._quotas, key.removeprefix(keys.TENANT_QUOTAS), TenantQuota, value)
            elif key.startswith(keys.ACLS):
                _set(self._acls, key.removeprefix(keys.ACLS), TenantAcls, value)
                self._unread_acls.pop(key.removeprefix(keys.ACLS), None)
            else:
                return
        except CorruptData as error:
            self.broken[key] = str(error)
            if not key.startswith(keys.ACLS):
                return
            tenant = key.removeprefix(keys.ACLS)
            if tenant not in self._acls:
                self._unread_acls[tenant] = None
            counts = "those read last" if tenant in self._acls else "everything is refused, but to admins"
            log.error("config.acls_unreadable", extra={"error": unreadable(tenant, str(error)), "until_then": counts})
        _tell(self._listeners, key)


def _number_given(numbers: dict[int, str], broken: dict[str, str], key: str, value: bytes | None) -> None:
    """Nobody takes a number away: where it is gone, the configuration went back, and its region may live."""
    try:
        number = int(key.removeprefix(keys.REGION_NUMBERS))
        if value is None:
            numbers.pop(number, None)
        else:
            numbers[number] = value.decode()
    except ValueError as error:
        broken[key] = f"no number of a region with its name: {error}"


def _index(groups: dict[str, dict[str, _V]], group: str, name: str, value: _V, *, known: bool) -> None:
    """Keeps which names each group has. known: whether this one is there."""
    members = groups.setdefault(group, {})
    if known:
        members[name] = value
    else:
        members.pop(name, None)
        if not members:
            del groups[group]


def _above(fields: Fields, pending: list[tuple[Change, ...]]) -> dict[str, Any]:
    """What was set here counts here until it is merged, also where somebody else set it too."""
    out = dict(fields)
    for changes in pending:
        for path, _, after in changes:
            if after:
                out[path[0]] = after[0]
            else:
                out.pop(path[0], None)
    return out


def _set(table: dict[str, V], name: str, kind: type[V], value: bytes | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = kind.decode(value)


def _tell(listeners: Sequence[Callable[[str], None]], key: str) -> None:
    for listener in tuple(listeners):
        try:
            listener(key)
        except Exception as error:  # policies, links, and gates all wait for this: the others hear of it
            report_error(error, "who waits for the configuration failed")
