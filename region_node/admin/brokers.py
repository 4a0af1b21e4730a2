"""Brokers of this region: which live, whether this one is well, what it runs with; and the metrics of this one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from heliograph.model.errors import HeliographError, MetadataUnavailable, NotFound
from heliograph.model.names import TopicName, bundle_range
from region_node import metrics
from region_node.admin.context import Admin
from region_node.ownership.records import BrokerRecord


def _address(record: BrokerRecord) -> str:
    return urlsplit(record.admin_url).netloc


async def list_active(admin: Admin, request: web.Request) -> Any:
    cluster = request.match_info.get("cluster", admin.region)
    if cluster != admin.region:
        raise NotFound(f"Cluster {cluster} is not this one: ask it at its own address" if admin.view.region(cluster) else f"Cluster {cluster} does not exist")
    return [_address(record) for record in admin.ownership.brokers()]


async def leader(admin: Admin, request: web.Request) -> Any:
    """There is no leader among our brokers; clients that ask get the first one."""
    live = admin.ownership.brokers()
    if not live:
        raise MetadataUnavailable("no broker is registered at this moment")
    return {"serviceUrl": live[0].admin_url, "brokerId": _address(live[0])}


async def owned_namespaces(admin: Admin, request: web.Request) -> Any:
    wanted = request.match_info["broker"]
    if wanted != _address(admin.ownership.record):
        record = next((r for r in admin.ownership.brokers() if _address(r) == wanted), None)
        if record is None:
            raise NotFound(f"Broker {wanted} does not live here")
        return await admin.call(record, "GET", request.path)
    answer = {}
    for namespace, index in admin.ownership.owned():
        policies = admin.view.namespace(namespace)
        if policies is not None:
            status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
            answer[f"{namespace}/{bundle_range(index, policies.bundles)}"] = status
    return answer


async def health(admin: Admin, request: web.Request) -> Any:
    """Well: this broker is registered, which takes the local metadata and a live lease."""
    if not any(record.broker == admin.ownership.record.broker for record in admin.ownership.brokers()):
        raise MetadataUnavailable("this broker is not registered in the region's metadata at this moment")
    return web.Response(text="ok")


async def version(admin: Admin, request: web.Request) -> Any:
    return web.Response(text=admin.version)


async def dynamic_settings(admin: Admin, request: web.Request) -> Any:
    """None can be changed while a broker runs."""
    return []


async def setting_values(admin: Admin, request: web.Request) -> Any:
    return {}


async def runtime_settings(admin: Admin, request: web.Request) -> Any:
    record = admin.ownership.record
    return {"clusterName": admin.region, "brokerId": record.broker, "webServiceUrl": record.admin_url, "brokerServiceUrl": record.listeners.get("", "")}


async def internal_configuration(admin: Admin, request: web.Request) -> Any:
    return {"zookeeperServers": "", "configurationStoreServers": "", "ledgersRootPath": "/ledgers", "stateStorageServiceUrl": ""}


async def broker_topics(admin: Admin, request: web.Request) -> Any:
    """Statistics of every loaded topic: namespace -> bundle -> persistent -> topic."""
    answer: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for topic, fields in (await _loaded_stats(admin)).items():
        name = TopicName.parse(topic)
        policies = admin.view.namespace(name.namespace)
        if policies is not None:
            bundle = bundle_range(admin.bundle(name), policies.bundles)
            answer.setdefault(name.namespace, {}).setdefault(bundle, {}).setdefault("persistent", {})[topic] = fields
    return answer


async def _loaded_stats(admin: Admin) -> dict[str, dict[str, Any]]:
    """TopicStats of what is loaded; a topic that is unloaded meanwhile is left out."""
    found: dict[str, dict[str, Any]] = {}
    for topic in sorted(admin.topics.loaded):
        with contextlib.suppress(HeliographError):
            found[topic] = await admin.topics.stats(topic)
    return found


# -- metrics ----------------------------------------------------------------------------------------------------------


async def scrape(admin: Admin, request: web.Request) -> Any:
    stats = await _loaded_stats(admin)
    return web.Response(body=metrics.render(_samples(admin, stats)), headers={"Content-Type": metrics.CONTENT_TYPE})


def _samples(admin: Admin, stats: dict[str, dict[str, Any]]) -> Iterable[metrics.Sample]:
    yield from metrics.process_samples()
    subscriptions = [s for fields in stats.values() for s in fields.get("subscriptions", {}).values()]
    totals = {
        "topics_count": len(stats),
        "subscriptions_count": len(subscriptions),
        "producers_count": sum(len(fields.get("publishers", ())) for fields in stats.values()),
        "consumers_count": sum(len(s.get("consumers", ())) for s in subscriptions),
        "rate_in": sum(fields.get("msgRateIn", 0) for fields in stats.values()),
        "rate_out": sum(fields.get("msgRateOut", 0) for fields in stats.values()),
        "throughput_in": sum(fields.get("msgThroughputIn", 0) for fields in stats.values()),
        "throughput_out": sum(fields.get("msgThroughputOut", 0) for fields in stats.values()),
        "storage_size": sum(fields.get("storageSize", 0) for fields in stats.values()),
        "msg_backlog": sum(s.get("msgBacklog", 0) for s in subscriptions),
    }
    yield from metrics.broker_samples(admin.region, totals)
    for topic, fields in stats.items():
        yield from metrics.topic_samples(admin.region, topic, TopicName.parse(topic).namespace, fields)
    for link in admin.links.stats():
        labels = {"cluster": admin.region, "namespace": TopicName.parse(link.topic).namespace, "topic": link.topic, "remote_cluster": link.target}
        yield "pulsar_replication_backlog", "gauge", labels, link.backlog_entries
        yield "pulsar_replication_rate_out", "gauge", labels, link.rate_out
        yield "pulsar_replication_connected_count", "gauge", labels, int(link.connected)
        yield "pulsar_replication_delay_in_seconds", "gauge", labels, link.age_s
        yield "heliograph_replication_backlog_bytes", "gauge", labels, link.backlog_bytes
    yield "heliograph_owned_bundles", "gauge", {"cluster": admin.region}, len(admin.ownership.owned())
    yield "heliograph_config_stale_seconds", "gauge", {"cluster": admin.region}, admin.view.stale_s()


ROUTES = (
    ("GET", "/admin/v2/brokers", list_active),
    ("GET", "/admin/v2/brokers/health", health),
    ("GET", "/admin/v2/brokers/ready", health),
    ("GET", "/admin/v2/brokers/version", version),
    ("GET", "/admin/v2/brokers/leaderBroker", leader),
    ("GET", "/admin/v2/brokers/configuration", dynamic_settings),
    ("GET", "/admin/v2/brokers/configuration/values", setting_values),
    ("GET", "/admin/v2/brokers/configuration/runtime", runtime_settings),
    ("GET", "/admin/v2/brokers/internal-configuration", internal_configuration),
    ("GET", "/admin/v2/brokers/{cluster}", list_active),
    ("GET", "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", owned_namespaces),
    ("GET", "/admin/v2/broker-stats/topics", broker_topics),
    ("GET", "/status.html", health),
    ("GET", "/metrics", scrape),
    ("GET", "/metrics/", scrape),
)
