"""Isolation policies and failure domains of this region: which brokers serve which namespaces, and which fail together.

Is: Pulsar's `clusters/{cluster}/namespaceIsolationPolicies` and `failureDomains`, over what lies in the region's local
metadata. Isn't: obeying them (`region_node.placement`).
Invariants: a region's policies are read and written in that region alone; a policy that is no regex, or has no
namespaces or primary brokers, is refused, and so is a broker in two domains.
Source: Pulsar's NamespaceIsolationData and BrokerNamespaceIsolationData; docs/protocols/balancing.md, "Isolation".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import Meta

from heliograph.model.errors import MetadataUnavailable, NotFound
from heliograph.model.topic_names import check_name
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import Read
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing
from region_node.placement.isolation.anti_affinity import FailureDomain
from region_node.placement.isolation.broker_isolation import IsolationPolicy
from region_node.placement.isolation.isolation_rules import IsolationRules, names_of

Whole = int | Annotated[str, Meta(pattern=r"^-?\d+$")]
"""Pulsar's clients write these as texts."""


class Limits(Given):
    min_limit: Whole
    usage_threshold: Whole


class Failover(Given):
    policy_type: Literal["min_available"]
    parameters: Limits


class IsolationData(Given):
    """Pulsar's NamespaceIsolationData; its three lists are of regexes."""

    auto_failover_policy: Failover
    namespaces: list[str] | None = None
    primary: list[str] | None = None
    secondary: list[str] | None = None


class Domain(Given):
    brokers: list[str] | None = None


async def list_all(admin: Admin, rules: Rules) -> dict[str, IsolationData]:
    return {name: _shown(policy) for name, policy in rules.isolation.policies.items()}


async def get(admin: Admin, rules: Rules, policy: str) -> IsolationData:
    error = NotFound(f"Cannot find NamespaceIsolationPolicy {policy} for cluster {admin.region}")
    return _shown(existing(rules.isolation.policies.get(policy), error))


async def put(admin: Admin, request: web.Request, rules: Rules, policy: str, given: IsolationData) -> None:
    """Makes or replaces a policy; bundles that are at other brokers by it are moved in the next cycles of the
    balancer.
    """
    name, made = check_name("isolation policy", policy), _policy(given)
    before = rules.isolation.policies.get(name)
    await rules.put(name, made)
    await admin.seen(lambda: rules.isolation.policies.get(name) == made)
    admin.changed(request, before and _shown(before), _shown(made))


async def delete(admin: Admin, request: web.Request, rules: Rules, policy: str) -> None:
    """None of that name: nothing to do."""
    before = rules.isolation.policies.get(policy)
    await rules.delete(policy)
    await admin.seen(lambda: policy not in rules.isolation.policies)
    admin.changed(request, before and _shown(before), None)


async def brokers(admin: Admin, rules: Rules) -> list[Any]:
    """What the policies say of each live broker."""
    return [_of_broker(rules, record.admin_address, names_of(record)) for record in admin.ownership.brokers()]


async def broker(admin: Admin, rules: Rules, broker: str) -> Any:
    """Shows what the policies say of one broker, by its id or host:port; one that does not live is judged by that."""
    record = next((r for r in admin.ownership.brokers() if broker in (r.broker, r.admin_address)), None)
    names = names_of(record) if record is not None else (broker, broker.partition(":")[0])
    return _of_broker(rules, record.admin_address if record is not None else broker, names)


# -- failure domains ---------------------------------------------------------------------------------------------------


async def list_domains(admin: Admin, rules: Rules) -> dict[str, Domain]:
    return {name: Domain(list(domain.brokers)) for name, domain in sorted(rules.domains.items())}


async def get_domain(admin: Admin, rules: Rules, domain: str) -> Domain:
    error = NotFound(f"Domain {domain} for cluster {admin.region} does not exist")
    return Domain(list(existing(rules.domains.get(domain), error).brokers))


async def put_domain(admin: Admin, request: web.Request, rules: Rules, domain: str, given: Domain) -> None:
    """Makes or replaces a domain; namespaces of anti-affinity groups are divided anew, and their bundles follow in the
    next cycles of the balancer.
    """
    name, made = check_name("failure domain", domain), FailureDomain(tuple(dict.fromkeys(given.brokers or ())))
    for other, theirs in rules.domains.items():
        if other != name and (both := set(theirs.brokers) & set(made.brokers)):
            raise web.HTTPConflict(
                reason=f"{min(both)} is in the failure domain {other} already: take it out there first"
            )
    before = rules.domains.get(name)
    await rules.put_domain(name, made)
    await admin.seen(lambda: rules.domains.get(name) == made)
    admin.changed(request, before and Domain(list(before.brokers)), Domain(list(made.brokers)))


async def delete_domain(admin: Admin, request: web.Request, rules: Rules, domain: str) -> None:
    before = await get_domain(admin, rules, domain)
    await rules.delete_domain(domain)
    await admin.seen(lambda: domain not in rules.domains)
    admin.changed(request, before, None)


# -- inside ------------------------------------------------------------------------------------------------------------


def _rules(admin: Admin, request: web.Request) -> IsolationRules:
    cluster = request.match_info["cluster"]
    existing(admin.view.region(cluster), NotFound(f"Cluster {cluster} does not exist"))
    if cluster != admin.region:
        raise NotFound(
            f"Cluster {cluster} is not this one: its isolation policies and failure domains are kept there, ask it at "
            "its own address"
        )
    why = "this broker does not know the isolation policies yet: it is not started"
    return existing(admin.isolation, MetadataUnavailable(why))


Rules = Annotated[IsolationRules, Read(_rules)]


def _of_broker(rules: IsolationRules, shown: str, names: Sequence[str]) -> dict[str, Any]:
    """Shows one broker by the policies that name it: the last one's name, as Pulsar does, and all their regexes."""
    answer: dict[str, Any] = {"brokerName": shown, "policyName": None, "isPrimary": False, "namespaceRegex": []}
    for name, policy in rules.isolation.policies.items():
        if policy.is_primary(names) or policy.is_secondary(names):
            answer |= {
                "policyName": name,
                "isPrimary": policy.is_primary(names),
                "namespaceRegex": [*answer["namespaceRegex"], *policy.namespaces],
            }
    return answer


def _shown(policy: IsolationPolicy) -> IsolationData:
    return IsolationData(
        auto_failover_policy=Failover("min_available", Limits(str(policy.min_available), str(policy.usage_threshold))),
        namespaces=list(policy.namespaces),
        primary=list(policy.primary),
        secondary=list(policy.secondary),
    )


def _policy(given: IsolationData) -> IsolationPolicy:
    """Raises NotAllowed for regexes and bounds that a policy refuses."""
    limits = given.auto_failover_policy.parameters
    return IsolationPolicy(
        namespaces=tuple(given.namespaces or ()),
        primary=tuple(given.primary or ()),
        secondary=tuple(given.secondary or ()),
        min_available=int(limits.min_limit),
        usage_threshold=int(limits.usage_threshold),
    )


_ALL = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
_DOMAINS = "/admin/v2/clusters/{cluster}/failureDomains"
ROUTES: tuple[Route, ...] = (
    Route("GET", _ALL, CallAccess.SUPER, list_all),
    Route("GET", f"{_ALL}/brokers", CallAccess.SUPER, brokers),
    Route("GET", f"{_ALL}/brokers/{{broker}}", CallAccess.SUPER, broker),
    Route("GET", f"{_ALL}/{{policy}}", CallAccess.SUPER, get),
    Route("POST", f"{_ALL}/{{policy}}", CallAccess.SUPER, put),
    Route("DELETE", f"{_ALL}/{{policy}}", CallAccess.SUPER, delete),
    Route("GET", _DOMAINS, CallAccess.SUPER, list_domains),
    Route("GET", f"{_DOMAINS}/{{domain}}", CallAccess.SUPER, get_domain),
    Route("POST", f"{_DOMAINS}/{{domain}}", CallAccess.SUPER, put_domain),
    Route("DELETE", f"{_DOMAINS}/{{domain}}", CallAccess.SUPER, delete_domain),
)
