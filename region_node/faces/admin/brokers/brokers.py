"""Brokers of this region: which live, whether this one is well, what it runs with; and the metrics of this one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.brokers import config_conflicts, load_balancing, metadata_members, revocation_calls
from region_node.faces.admin.calls.admin_context import EXPECTED, Admin
from region_node.faces.admin.calls.call_bodies import OnlyGiven
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing
from region_node.faces.admin.calls.large_answers import SCRAPES
from region_node.metrics import (
    autorecovery_metrics,
    balance_metrics,
    link_metrics,
    lookup_metrics,
    storage_metrics,
    transaction_metrics,
)
from region_node.runtime import prometheus_text
from region_node.security.authentication.internal_tokens import OVERLAP_S
from region_node.usage import tenant_usage


async def list_active(admin: Admin, request: web.Request) -> list[str]:
    cluster = request.match_info.get("cluster", admin.region)
    if cluster != admin.region:
        raise NotFound(
            f"Cluster {cluster} is not this one: ask it at its own address"
            if admin.view.region(cluster)
            else f"Cluster {cluster} does not exist"
        )
    return [record.admin_address for record in admin.ownership.brokers()]


async def leader(admin: Admin) -> dict[str, str]:
    """Who has bundles moved. Nobody leads in anything else; where nobody does at this moment, the first one is
    named.
    """
    live = admin.ownership.brokers()
    if not live:
        raise MetadataUnavailable("no broker is registered at this moment")
    leads = admin.balancer.leader if admin.balancer is not None else ""
    found = next((record for record in live if record.broker == leads), live[0])
    return {"serviceUrl": found.admin_url, "brokerId": found.admin_address}


async def owned_namespaces(admin: Admin, request: web.Request, broker: str) -> Any:
    if broker != admin.ownership.record.admin_address:
        found = next((r for r in admin.ownership.brokers() if r.admin_address == broker), None)
        record = existing(found, NotFound(f"Broker {broker} does not live here"))
        return await admin.call(record, "GET", request.path)
    return {
        bundle: {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        for bundle in owned_bundles(admin)
    }


def owned_bundles(admin: Admin) -> list[str]:
    """As `tenant/namespace/0x…_0x…`."""
    found = ((namespace, index, admin.ownership.bundles(namespace)) for namespace, index in admin.ownership.owned())
    return [
        f"{namespace}/{table.name(index)}"
        for namespace, index, table in found
        if table is not None and index < table.count
    ]


async def health(admin: Admin) -> Any:
    """Well: a message is stored with its ack quorum and read back, as Pulsar's check does. It is the canary's verdict,
    which `/heliograph/v1/health` says too.
    """
    if admin.canary is not None and not (await admin.canary.once()).good:
        raise MetadataUnavailable(
            "this broker does not store a message and read it back at this moment: `canary` of GET /heliograph/v1/dr "
            "says why"
        )
    return web.Response(text="ok")


async def ready(admin: Admin) -> Any:
    """Ready: this broker is registered, as far as it knows. It may be asked often, by who sends it clients: it stays so
    while the region's metadata is away, as what is loaded is served on.
    """
    if not any(record.broker == admin.ownership.record.broker for record in admin.ownership.brokers()):
        raise MetadataUnavailable("this broker is not registered in the region's metadata at this moment")
    return web.Response(text="ok")


async def active(admin: Admin, *, namespace: str = "") -> Any:
    """Active: messages are taken here now, of a namespace (`tenant/name`), or, where none is named, as far as it
    depends on the region alone: this broker is registered, and has the lease that an active-passive namespace wants. It
    tries nothing and asks nobody, so that anybody may ask often; why not, it tells nobody. Answers where Pulsar's
    clients go, as Java's `ControlledClusterFailover` takes it; 503 where it is not, which no log has: load balancers
    ask every second. Raises MetadataUnavailable.
    """
    await ready(admin)
    if not (_takes(admin, namespace) if namespace else _has_its_lease(admin)):
        found = web.json_response({"reason": _ELSEWHERE}, status=503)
        found[EXPECTED] = True
        return found
    region = admin.view.region(admin.region)
    return {"serviceUrl": "" if region is None else region.service_url}


_ELSEWHERE = "this region does not take messages there at this moment: `heliograph dr status` says which one does"


def _takes(admin: Admin, namespace: str) -> bool:
    deleted = None if admin.tombstones is None else admin.tombstones.known.get(namespace)
    return (
        admin.ownership.bundles(namespace) is not None
        and (deleted is None or bool(deleted[0].asks))
        and admin.topics.gates.elsewhere(namespace) is None
    )


def _has_its_lease(admin: Admin) -> bool:
    leases = None if admin.leases is None else admin.leases.core
    return leases is None or leases.holds or not leases.wanted


async def version(admin: Admin) -> Any:
    return web.Response(text=admin.version)


async def check_quotas(admin: Admin) -> None:
    """Backlog quotas are looked at now, and not only at the next tick."""
    admin.topics.check_now()


async def internal_configuration(admin: Admin) -> dict[str, str]:
    return {
        "zookeeperServers": "",
        "configurationStoreServers": "",
        "ledgersRootPath": "/ledgers",
        "stateStorageServiceUrl": "",
    }


async def broker_topics(admin: Admin) -> Any:
    """Statistics of every loaded topic: namespace -> bundle -> persistent -> topic."""
    answer: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for topic, fields in (await _loaded_stats(admin)).items():
        name = TopicName.parse(topic)
        table = admin.ownership.bundles(name.namespace)
        if table is not None:
            bundle = table.name(table.of(topic))
            answer.setdefault(name.namespace, {}).setdefault(bundle, {}).setdefault(name.domain, {})[topic] = fields
    return answer


async def _loaded_stats(admin: Admin) -> dict[str, dict[str, Any]]:
    """TopicStats of what is loaded; a topic that is unloaded meanwhile is left out."""
    found: dict[str, dict[str, Any]] = {}
    for topic in sorted(admin.topics.loaded):
        with contextlib.suppress(HeliographError):
            found[topic] = await admin.topics.stats(topic)
    return found


async def load_report(admin: Admin) -> Any:
    """Pulsar's LocalBrokerData, as far as there is something to say."""
    stats = await _loaded_stats(admin)
    record = admin.ownership.record
    subscriptions = [s for fields in stats.values() for s in fields.get("subscriptions", {}).values()]
    rates = {
        key: sum(fields.get(key, 0) for fields in stats.values())
        for key in ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
    }
    used = load_balancing.used(admin)
    return {
        **rates,
        **{theirs: load_balancing.shown(used.get(ours, 0.0)) for ours, theirs in load_balancing.RESOURCES.items()},
        "webServiceUrl": record.admin_url,
        "pulsarServiceUrl": record.listeners.get("", ""),
        "pulsarServiceUrlTls": record.listeners.get("tls", ""),
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "numTopics": len(stats),
        "numBundles": len(admin.ownership.owned()),
        "numConsumers": sum(len(s.get("consumers", ())) for s in subscriptions),
        "numProducers": sum(len(fields.get("publishers", ())) for fields in stats.values()),
        "bundles": sorted(owned_bundles(admin)),
        "lastUpdate": admin.clock.wall_ms(),
        "brokerVersionString": admin.version,
        "loadReportType": "LocalBrokerData",
    }


async def metrics_as_json(admin: Admin) -> list[Any]:
    """What /metrics says of the broker as a whole, as Pulsar's Metrics: one object for each set of labels."""
    found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    _, totals = await admin.topic_metrics.text()
    for name, _, labels, value in _samples(admin, totals):
        found.setdefault(tuple(labels.items()), {})[name] = value
    return [{"metrics": values, "dimensions": dict(labels)} for labels, values in found.items()]


async def bookie_operations(admin: Admin) -> dict[str, Any]:
    """Nothing is counted by namespace here: /metrics of each bookie has what it does."""
    return {}


async def allocator(admin: Admin, name: str) -> dict[str, Any]:
    """Shows an allocator that Pulsar has, `default` or `ml-cache`, as empty: memory is taken from the interpreter as it
    is needed, so there are no arenas, and no caches of threads. Raises NotFound for any other.
    """
    if name not in ("default", "ml-cache"):
        raise NotFound(f"Allocator {name} does not exist: there are default and ml-cache")
    counts = (
        "numDirectArenas",
        "numHeapArenas",
        "numThreadLocalCaches",
        "normalCacheSize",
        "smallCacheSize",
        "tinyCacheSize",
    )
    return {**dict.fromkeys(counts, 0), "directArenas": [], "heapArenas": []}


# -- metrics ----------------------------------------------------------------------------------------------------------


async def scrape(admin: Admin, request: web.Request) -> Any:
    answers = request.app[SCRAPES]
    async with answers.place(request):
        topics, totals = await admin.topic_metrics.text()
        head = prometheus_text.render([*_samples(admin, totals), *await metadata_members.samples(admin)])
        return await answers.send(request, {"Content-Type": prometheus_text.CONTENT_TYPE}, (head, topics))


def _samples(admin: Admin, totals: dict[str, float]) -> Iterable[prometheus_text.Sample]:
    """All but topics and links."""
    yield from prometheus_text.process_samples()
    yield from prometheus_text.broker_samples(admin.region, totals)
    if admin.connection_counts is not None:
        yield from prometheus_text.connection_samples(
            admin.region, admin.ownership.record.broker, *admin.connection_counts()
        )
    admin.usage.stored(admin.topic_metrics.stored)
    yield from tenant_usage.samples(admin.region, admin.usage)
    for tenant in admin.view.tenant_quotas():
        yield (
            "heliograph_tenant_full",
            "gauge",
            {"cluster": admin.region, "tenant": tenant},
            tenant in admin.topics.policies.full,
        )
    if admin.face_samples is not None:
        yield from admin.face_samples()
    if not admin.security.authentication.open:
        yield from admin.security.authentication.counts.samples(admin.region)
    if admin.entry_cache is not None:
        yield from prometheus_text.cache_samples(
            admin.region, admin.entry_cache, int(totals["topics_count"]), admin.clock.monotonic()
        )
    if admin.appends is not None:
        yield from storage_metrics.samples(admin.region, admin.appends, admin.clock.monotonic())
    if admin.losses is not None:
        yield from storage_metrics.loss_samples(admin.region, admin.losses)
    yield from admin.topics.schemas.counts.samples(admin.region)
    yield from admin.lookups.samples(admin.region)
    yield from lookup_metrics.loading_samples(admin.region, admin.topics.load_times, admin.topics.loads_under_way)
    yield from lookup_metrics.assignment_samples(admin.region, admin.ownership.assignments)
    if admin.tier is not None:
        yield from admin.tier.samples(admin.region)
    yield from link_metrics.samples(admin.links)
    yield from admin.topics.group_samples()
    for store in admin.stores:
        yield from store.samples(admin.region)
    if admin.recovery is not None:
        yield from autorecovery_metrics.samples(admin.region, admin.recovery)
    if admin.transactions is not None:
        yield from transaction_metrics.samples(admin.region, admin.transactions)
    if admin.promises is not None:
        yield from admin.promises.samples()
    if admin.automatic is not None:
        yield from admin.automatic.samples()
    if admin.subscription_leadership is not None:
        yield from admin.subscription_leadership.samples()
    yield from config_conflicts.samples(admin)
    yield from revocation_calls.samples(admin)
    if admin.balancer is not None:
        yield from balance_metrics.samples(admin.region, admin.balancer, len(admin.ownership.owned()))
    yield "heliograph_owned_bundles", "gauge", {"cluster": admin.region}, len(admin.ownership.owned())
    yield "heliograph_config_stale_seconds", "gauge", {"cluster": admin.region}, admin.view.stale_s()


class SecretTerms(OnlyGiven):
    """at_once: the secret before counts no more; otherwise it does for ten minutes."""

    at_once: bool = False


async def rotate_secret(admin: Admin, request: web.Request, given: SecretTerms | None) -> dict[str, Any]:
    """Makes the secret anew by which the brokers of this region know each other. `before_until_ms`: until when the one
    before counts, in milliseconds since 1970; 0: no more.
    """
    why = "nobody is asked here who it is, so the brokers have no secret among themselves"
    secrets = existing(admin.security.authentication.brokers_secrets, NotAllowed(why))
    until_ms = await secrets.rotate(0.0 if given is not None and given.at_once else OVERLAP_S)
    answer = {"region": admin.region, "before_until_ms": until_ms}
    admin.changed(request, None, answer)
    return answer


ROUTES: tuple[Route, ...] = (
    Route("POST", "/heliograph/v1/brokers/secret", CallAccess.SUPER, rotate_secret),
    Route("GET", "/admin/v2/brokers", CallAccess.SUPER, list_active),
    Route("GET", "/admin/v2/brokers/health", CallAccess.PUBLIC, health),
    Route("GET", "/admin/v2/brokers/ready", CallAccess.PUBLIC, ready),
    Route("GET", "/heliograph/v1/health/active", CallAccess.PUBLIC, active),
    Route("GET", "/admin/v2/brokers/version", CallAccess.ANY, version, console="version"),
    Route("GET", "/admin/v2/brokers/leaderBroker", CallAccess.SUPER, leader),
    Route("GET", "/admin/v2/brokers/internal-configuration", CallAccess.SUPER, internal_configuration),
    Route("GET", "/admin/v2/brokers/backlog-quota-check", CallAccess.SUPER, check_quotas),
    Route("GET", "/admin/v2/brokers/{cluster}", CallAccess.SUPER, list_active),
    Route("GET", "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", CallAccess.SUPER, owned_namespaces),
    Route("GET", "/admin/v2/broker-stats/topics", CallAccess.SUPER, broker_topics),
    Route("GET", "/admin/v2/broker-stats/load-report", CallAccess.SUPER, load_report),
    Route("GET", "/admin/v2/broker-stats/metrics", CallAccess.SUPER, metrics_as_json),
    Route("GET", "/admin/v2/broker-stats/mbeans", CallAccess.SUPER, metrics_as_json),
    Route("GET", "/admin/v2/broker-stats/bookieops", CallAccess.SUPER, bookie_operations),
    Route("GET", "/admin/v2/broker-stats/allocator-stats/{name}", CallAccess.SUPER, allocator),
    Route("GET", "/status.html", CallAccess.PUBLIC, ready),
    Route("GET", "/metrics", CallAccess.METRICS, scrape),
    Route("GET", "/metrics/", CallAccess.METRICS, scrape),
)
