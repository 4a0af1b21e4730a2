"""IsolationRules: the isolation policies and failure domains as they stand in the region's local metadata, and the
anti-affinity groups of its namespaces.

Is: the watches, what is remembered of the answers, and the writes. Isn't: the decision (`broker_isolation`,
`anti_affinity`).
Invariants: a value that cannot be read (of a newer version, or damaged) leaves the last good one in place.
Why in the local metadata: a policy or domain names brokers of one region, and must be changeable while that one is cut
off from the others.
Source: docs/protocols/balancing.md, "Isolation".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from global_config.view import ConfigView
from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import CorruptData, NotAllowed
from local_meta import keys
from region_node.placement.isolation.anti_affinity import DOMAINS_MAX, FailureDomain, divide
from region_node.placement.isolation.broker_isolation import POLICIES_MAX, Isolation, IsolationPolicy
from region_node.placement.ownership.broker_records import BrokerRecord

log = logging.getLogger("region_node.balance.rules")

_NAMESPACES = "/namespaces/"


def names_of(record: BrokerRecord) -> tuple[str, ...]:
    """What a regex may call a broker."""
    address = urlsplit(record.admin_url)
    return tuple(dict.fromkeys(name for name in (record.broker, address.netloc, address.hostname or "") if name))


class IsolationRules:
    """Watches from `start` on. region: its name."""

    def __init__(self, meta: MetadataStore, view: ConfigView, region: str) -> None:
        self.isolation = Isolation()
        self.domains: dict[str, FailureDomain] = {}
        self._meta, self._view, self._region = meta, view, region
        self._group_of: dict[str, str] = {}
        self._members: dict[str, dict[str, None]] = {}
        """Anti-affinity group -> its namespaces that are served in this region."""
        self._shares: dict[str, dict[str, list[str]]] = {}
        """Group -> its division among `_live`."""
        self._live: dict[str, BrokerRecord] = {}
        self._answers: dict[str, list[str]] = {}
        """Name of a policy ("": none) -> its brokers among `_live`."""
        self._stops: list[Callable[[], None]] = []
        self._listeners: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Returns once what stands is known: nothing may be taken before."""
        self._stops = [
            self._meta.watch(keys.ISOLATION, self._on_policy),
            self._meta.watch(keys.FAILURE_DOMAINS, self._on_domain),
            self._view.on_change(
                lambda key: self._on_namespace(key.removeprefix(_NAMESPACES)) if key.startswith(_NAMESPACES) else None
            ),
        ]
        for tenant in self._view.tenants():
            for namespace in self._view.namespaces(tenant):
                self._on_namespace(namespace)
        await self._meta.synced(keys.ISOLATION)
        await self._meta.synced(keys.FAILURE_DOMAINS)

    def stop(self) -> None:
        for stop in self._stops:
            stop()

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """callback() after each change of the policies. Returns "stop"."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def permitted(self, namespace: str, live: Mapping[str, BrokerRecord]) -> list[str]:
        """Those of the live brokers that may serve it, in order; empty only where none lives."""
        if live != self._live:
            self._live, self._answers, self._shares = dict(live), {}, {}
        group = self._group_of.get(namespace)
        if group is None or not live:
            return self._by_policy(namespace)
        if group not in self._shares:
            self._shares[group] = divide(
                {member: self._by_policy(member) for member in self._members[group]}, self._domain_of()
            )
        return self._shares[group][namespace]

    def _by_policy(self, namespace: str) -> list[str]:
        policy = self.isolation.policy_of(namespace)
        if policy not in self._answers:
            self._answers[policy] = self.isolation.brokers_of(
                policy, {broker: names_of(record) for broker, record in self._live.items()}
            )
        return self._answers[policy]

    def _domain_of(self) -> dict[str, str]:
        """Returns live broker -> its failure domain; of two domains that name one the first by its name counts."""
        found: dict[str, str] = {}
        for name, domain in sorted(self.domains.items(), reverse=True):
            found |= {
                broker: name
                for broker, record in self._live.items()
                if any(one in domain.brokers for one in names_of(record))
            }
        return found

    async def put(self, name: str, policy: IsolationPolicy) -> None:
        """Raises NotAllowed (too many), MetadataUnavailable."""
        if name not in self.isolation.policies and len(self.isolation.policies) >= POLICIES_MAX:
            raise NotAllowed(f"a region has at most {POLICIES_MAX} isolation policies: join some by their regexes")
        await self._meta.put(keys.isolation(name), policy.encode())

    async def delete(self, name: str) -> bool:
        """Returns whether there was one. Raises MetadataUnavailable."""
        return await self._meta.delete(keys.isolation(name))

    async def put_domain(self, name: str, domain: FailureDomain) -> None:
        """Raises NotAllowed (too many), MetadataUnavailable."""
        if name not in self.domains and len(self.domains) >= DOMAINS_MAX:
            raise NotAllowed(f"a region has at most {DOMAINS_MAX} failure domains")
        await self._meta.put(keys.failure_domain(name), domain.encode())

    async def delete_domain(self, name: str) -> bool:
        """Returns whether there was one. Raises MetadataUnavailable."""
        return await self._meta.delete(keys.failure_domain(name))

    # -- what changes -------------------------------------------------------------------------------------------------

    def _on_domain(self, key: str, value: bytes | None, version: int) -> None:
        name = keys.id_of(key)
        try:
            if value is None:
                self.domains.pop(name, None)
            else:
                self.domains[name] = FailureDomain.decode(value)
        except CorruptData as error:
            log.error("balance.domain_unknown", extra={"domain": name, "error": str(error)})
            return
        self._forget()

    def _on_namespace(self, namespace: str) -> None:
        policies = self._view.namespace(namespace)
        served = policies is not None and (not policies.regions or self._region in policies.regions)
        group = str(policies.policies.get("antiAffinity") or "") if policies is not None and served else ""
        before = self._group_of.pop(namespace, "")
        if before:
            self._members[before].pop(namespace)
            if not self._members[before]:
                del self._members[before]
        if group:
            self._group_of[namespace] = group
            self._members.setdefault(group, {})[namespace] = None
        if group != before:
            self._forget()

    def _forget(self) -> None:
        self._answers.clear()
        self._shares.clear()
        for listener in list(self._listeners):
            listener()

    def _on_policy(self, key: str, value: bytes | None, version: int) -> None:
        name = keys.id_of(key)
        try:
            self.isolation.put(name, None if value is None else IsolationPolicy.decode(value))
        except CorruptData as error:
            log.error("balance.isolation_unknown", extra={"policy": name, "error": str(error)})
            return
        log.info("balance.isolation_changed", extra={"policy": name, "gone": value is None})
        self._forget()
