"""PolicyBook: what holds for each topic, put together from every level, and told to whoever follows a topic.

Is: copies of what is set (of topics and brokers in the region's metadata, of namespaces and topics in the global
configuration), fed by watches;
and the writes of the region's own levels, by compare-and-set. Isn't: the table of policies
(`heliograph.model.configuration.policy_table`), or what obeys them.
Invariants: a topic and its partitions have the same policies; a value that cannot be read leaves the last good one in
place; what a tenant has to do comes before what is set for its namespaces and topics.

Why two places: a topic's own policies are the region's (Pulsar's non-global kind), so they can be changed while the
region is cut off; namespaces, and the global kind, hold in all regions and need a majority of them. Keys:
`local_meta.keys`; values: TopicPolicies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from global_config.write_retries import Tries
from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.configuration.configuration_records import (
    NamespacePolicies,
    TenantInfo,
    TenantQuota,
    TopicPolicies,
)
from heliograph.model.configuration.policy_table import Applied, Level, applied, checked
from heliograph.model.errors import CorruptData, OutcomeUnknown, VersionConflict
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Rng
from local_meta import keys

log = logging.getLogger("region_node.topics")

_TENANTS = "/tenants/"
_NAMESPACES = "/namespaces/"
_TOPICS = "/topic-policies/"
_GROUPS = "/resource-groups/"
_QUOTAS = "/tenant-quotas/"
_CLUSTERS = "/clusters/"


class PoliciesView(Protocol):
    """The part of the global configuration's copy that this needs."""

    def tenant(self, name: str) -> TenantInfo | None: ...

    def tenant_quota(self, tenant: str) -> TenantQuota | None: ...

    def namespace(self, namespace: str) -> NamespacePolicies | None: ...

    def topic_policies(self, topic: str) -> TopicPolicies | None: ...

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]: ...


class PolicyBook:
    """`brokers`: what the settings file of this broker says. rng: spreads tries that collided. Make it on the event
    loop.
    """

    def __init__(self, meta: MetadataStore, view: PoliciesView, brokers: Level, rng: Rng | None = None) -> None:
        self._meta, self._view, self._rng = meta, view, rng
        self._settings = checked(brokers)
        self._dynamic: dict[str, Any] = {}
        self._topics: dict[str, TopicPolicies] = {}
        self._namespaces: dict[str, Applied] = {}
        self._duties: dict[str, Level] = {}
        """What a tenant's topics have to do, as whoever asked was told; of tenants that were asked about."""
        self.full: frozenset[str] = frozenset()
        """Tenants that have stored as much as they may: nobody publishes to their topics."""
        self._listeners: list[Callable[[str, str], None]] = []
        self._ready = False
        self._stops = [
            meta.watch(keys.TOPIC_POLICIES, self._on_topic),
            meta.watch(keys.BROKER_POLICIES, self._on_brokers),
            view.on_change(self._on_config),
        ]

    async def ready(self) -> None:
        """Returns once the region's own levels are known."""
        if not self._ready:
            await self._meta.synced(keys.TOPIC_POLICIES)
            await self._meta.synced(keys.BROKER_POLICIES)
            self._ready = True

    def close(self) -> None:
        for stop in self._stops:
            stop()

    def on_change(self, callback: Callable[[str, str], None]) -> Callable[[], None]:
        """callback(namespace, topic): of one topic (its name without a partition), of a whole namespace (topic ""), or
        of all (both "").

        Returns "stop".
        """
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    # -- questions ----------------------------------------------------------------------------------------------------

    def of(self, topic: TopicName) -> Applied:
        base = str(topic.partitioned)
        here, everywhere = self.topic(base).policies, self._view.topic_policies(base)
        if not here and everywhere is None:
            return self.of_namespace(topic.namespace)
        namespace = self._view.namespace(topic.namespace)
        return applied(
            self._duty(topic.tenant),
            here,
            everywhere.policies if everywhere is not None else {},
            namespace.policies if namespace is not None else {},
            *self.brokers(),
        )

    def of_namespace(self, namespace: str) -> Applied:
        """For topics that have no policies of their own: one value for all of them, which is kept where the namespace
        is known: whoever asks may have invented its name.
        """
        known = self._namespaces.get(namespace)
        if known is None:
            found, tenant = self._view.namespace(namespace), namespace.partition("/")[0]
            if found is None:
                return applied(self._duty_now(tenant), {}, *self.brokers())
            known = self._namespaces[namespace] = applied(self._duty(tenant), found.policies, *self.brokers())
        return known

    def _duty(self, tenant: str) -> Level:
        """What a tenant's topics have to do, before anything that is set for them."""
        known = self._duties.get(tenant)
        if known is None:
            known = self._duties[tenant] = self._duty_now(tenant)
        return known

    def _duty_now(self, tenant: str) -> Level:
        found, quota, duty = self._view.tenant(tenant), self._view.tenant_quota(tenant), dict[str, Any]()
        if found is not None:
            duty["allowedRegions"] = found.allowed_regions  # no policy: where it changes, its topics' links do
            if found.encryption_at_rest:
                duty["encryptionAtRest"] = True
        if quota is not None and quota.resource_group:
            duty["resourceGroup"] = quota.resource_group
        if tenant in self.full:
            duty["storageFull"] = True
        return duty

    def set_full(self, tenants: frozenset[str]) -> None:
        """Their topics take nothing from now on, and those of others do."""
        changed, self.full = self.full ^ tenants, tenants
        for tenant in sorted(changed):
            self._on_tenant(tenant)

    def topic(self, base: str) -> TopicPolicies:
        """What is set for a topic in this region. base: its full name, without a partition."""
        return self._topics.get(base, _NOTHING)

    def brokers(self) -> tuple[Level, Level]:
        """(set while they run, of the settings file)."""
        return self._dynamic, self._settings

    # -- writes -------------------------------------------------------------------------------------------------------

    async def change_topic(
        self, base: str, change: Callable[[TopicPolicies], TopicPolicies]
    ) -> tuple[TopicPolicies, TopicPolicies]:
        """(before, after). Raises NotAllowed, and what the metadata raises."""
        return await self._change(keys.topic_policies(base), change)

    async def change_brokers(
        self, change: Callable[[TopicPolicies], TopicPolicies]
    ) -> tuple[TopicPolicies, TopicPolicies]:
        """Changes what holds at every broker of the region, above their settings files. Returns and raises as
        `change_topic`.
        """
        return await self._change(keys.BROKER_POLICIES, change)

    async def forget(self, base: str) -> None:
        """Deletes what is set for a topic in this region, once the topic is deleted. base: as in `topic`."""
        if base in self._topics:
            await self._meta.delete(keys.topic_policies(base))

    async def forget_namespace(self, namespace: str) -> None:
        """The same of every topic of a namespace."""
        within = tuple(f"{domain}://{namespace}/" for domain in ("persistent", "non-persistent"))
        for base in [base for base in self._topics if base.startswith(within)]:
            await self.forget(base)

    async def _change(
        self, key: str, change: Callable[[TopicPolicies], TopicPolicies]
    ) -> tuple[TopicPolicies, TopicPolicies]:
        lost: VersionConflict | OutcomeUnknown | None = None
        async for _ in Tries(self._rng):
            found = await self._meta.get(key)
            before, version = (_NOTHING, ABSENT) if found is None else (TopicPolicies.decode(found[0]), found[1])
            after = change(before)
            if after == before:
                return before, after
            checked(after.policies, before.policies)
            try:
                await self._meta.put(key, after.encode(), expected=version)
            except (VersionConflict, OutcomeUnknown) as error:
                lost = error
                continue
            return before, after
        assert lost is not None
        raise lost

    # -- watches ------------------------------------------------------------------------------------------------------

    def _on_topic(self, key: str, value: bytes | None, _: int) -> None:
        base = keys.topic_of(key)
        try:
            found = _NOTHING if value is None else TopicPolicies.decode(value)
        except CorruptData as error:
            log.error("policies.unreadable", extra={"topic": base, "error": str(error)})
            return
        if found == self.topic(base):
            return
        if found == _NOTHING:
            del self._topics[base]
        else:
            self._topics[base] = found
        self._tell(TopicName.parse(base).namespace, base)

    def _on_brokers(self, key: str, value: bytes | None, _: int) -> None:
        try:
            self._dynamic = {} if value is None else TopicPolicies.decode(value).policies
        except CorruptData as error:
            log.error("policies.unreadable", extra={"key": key, "error": str(error)})
            return
        self._tell("", "")

    def _on_config(self, key: str) -> None:
        if key.startswith(_TENANTS):
            self._on_tenant(key.removeprefix(_TENANTS))
        elif key.startswith(_QUOTAS):
            self._on_tenant(key.removeprefix(_QUOTAS))
        elif key.startswith(_NAMESPACES):
            self._tell(key.removeprefix(_NAMESPACES), "")
        elif key.startswith(_TOPICS):
            base = key.removeprefix(_TOPICS)
            self._tell(TopicName.parse(base).namespace, base)
        elif not key or key.startswith((_GROUPS, _CLUSTERS)):
            self._tell("", "")

    def _on_tenant(self, tenant: str) -> None:
        before = self._duties.pop(tenant, None)
        if before is not None and self._duty(tenant) != before:
            self._tell("", "")

    def _tell(self, namespace: str, topic: str) -> None:
        if not namespace:
            self._namespaces.clear()
        elif not topic:
            self._namespaces.pop(namespace, None)
        for listener in tuple(self._listeners):
            listener(namespace, topic)


_NOTHING = TopicPolicies()
