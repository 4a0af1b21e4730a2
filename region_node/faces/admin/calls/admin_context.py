"""Admin: what the handlers of the admin interface work with, and the few things that all of them do.

Is: reading a request's names and body, finding a topic's owner, asking other brokers, waiting for a configuration write
to be seen here.
Isn't: routes or handlers (a module an area), or HTTP listening (`admin_server`).
Invariants: a request for a topic is answered only by the broker that owns it; any other redirects there.
"""

from __future__ import annotations

import asyncio
import json
import platform
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.model.admin_paths import topic_path
from heliograph.model.bundles import BundleTable
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import (
    HeliographError,
    MalformedRequest,
    MetadataUnavailable,
    NotAllowed,
    NotFound,
    Unauthorized,
    reason_of,
)
from heliograph.model.topic_names import TopicName, check_name
from heliograph.runtime.clock import Clock
from region_node.dr.drill_settings import DrillSettings
from region_node.metrics import storage_metrics
from region_node.metrics.lookup_metrics import LookupCounts
from region_node.metrics.topic_metrics import TopicMetrics
from region_node.metrics.topic_series import TopicSeries
from region_node.placement.ownership.broker_calls import BrokerCalls
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.placement.ownership.ownership_service import Ownership
from region_node.runtime.prometheus_text import Sample
from region_node.security.allowed_urls import UrlList
from region_node.security.audit_log import AuditLog
from region_node.security.authentication.code_sign_in import CodeSignIn
from region_node.security.authorization.security_service import Security, open_security
from region_node.usage.stored_bytes import StoredBytes
from region_node.usage.tenant_usage import Usage

if TYPE_CHECKING:
    from global_config.deferred_edits import DeferredEdits
    from heliograph.kv.metadata_store import MetadataStore
    from region_node.dr.canary import Canary
    from region_node.dr.leadership.subscription_leadership import SubscriptionLeadership
    from region_node.dr.leadership.write_leases import WriteLeases
    from region_node.dr.operations.automatic_failover import AutomaticFailover
    from region_node.dr.operations.operation import StepAges
    from region_node.dr.operations.report_signing import Signer
    from region_node.dr.rehearsal.drill_clients import DrillClients
    from region_node.dr.slo_monitor import Promises
    from region_node.metrics.metadata_store_metrics import StoreCounts
    from region_node.placement.balance.balancer import Balancer
    from region_node.placement.isolation.isolation_rules import IsolationRules
    from region_node.tiering.broker_tier import BrokerTier
    from region_node.topics.serving.deferred_deletion import Tombstones
    from region_node.topics.serving.entry_locations import BookiePlaces
    from region_node.topics.serving.topic_service import TopicService
    from region_node.topics.topic import Topic
    from region_node.transactions.coordinators.transaction_service import Transactions
    from replicator.log.replicated_log import ReplicatedLog
    from replicator.manager.link_manager import LinkManager
    from storage.ledger.known_losses import KnownLosses
    from storage.ledger.repair.autorecovery import AutoRecovery
    from storage.managed_ledger.append_counts import Appends
    from storage.managed_ledger.cache.entry_cache import EntryCache
    from storage.managed_ledger.log.managed_ledger import ManagedLedger
    from storage.sealing.sealing import Sealing

_VISIBLE_TIMEOUT_S = 5.0

BODY_TIMEOUT_S = 30.0

EXPECTED = "expected"
"""In an answer that refuses, and is what was asked for: no line of the log says so."""


class Members(Protocol):
    """Shows or changes one metadata group, as `MetaClient.members` does: returns the report, and whether it changed
    something. Raises NotAllowed.
    """

    async def __call__(
        self, verb: str = "show", member: str = "", address: str = ""
    ) -> tuple[dict[str, Any], bool]: ...


class OwnedElsewhere(HeliographError):
    """Another broker owns the topic, or shall (`authoritative`: it is not to choose again); `record` says where that
    one is.
    """

    def __init__(self, record: BrokerRecord, *, authoritative: bool = False) -> None:
        super().__init__(f"owned by {record.broker}")
        self.record, self.authoritative = record, authoritative

    def location(self, request: web.Request) -> str:
        """The same request, at that broker. Raises MetadataUnavailable where it has no port as safe as this one."""
        target = request.rel_url.update_query(authoritative="true") if self.authoritative else request.rel_url
        base = self.record.admin_url_by(request.secure)
        if not base:
            raise MetadataUnavailable(
                f"broker {self.record.broker} owns this topic and has no HTTPS port, and what came by TLS is not sent "
                "on without: set broker.admin_tls_port there"
                if request.secure
                else f"broker {self.record.broker} owns this topic and has no admin port: set broker.admin_port there"
            )
        return base.rstrip("/") + str(target)


@dataclass(slots=True, kw_only=True)
class Admin:
    """One broker's admin interface."""

    region: str
    ownership: Ownership
    topics: TopicService
    links: LinkManager
    view: ConfigView
    config: ConfigAdmin
    clock: Clock
    step_ages: StepAges
    audit: AuditLog
    version: str
    config_status: Callable[[], Awaitable[Mapping[str, Any]]]
    """What the region's configuration node knows: leader, term, stale_s."""
    members: Mapping[str, Members] = field(default_factory=dict)
    """"metadata" and "config": what an operator asks of the members of each group."""
    recovery: AutoRecovery | None = None
    security: Security = field(default_factory=open_security)
    sign_in: CodeSignIn | None = None
    """At which issuer people sign in to the console; None: at none."""
    usage: Usage = field(default_factory=Usage)
    stored: StoredBytes | None = None
    grouped: MetadataStore | None = None
    """The configuration, for operations of namespaces that go on side by side; None: it is asked as the leases do."""
    usage_store: MetadataStore | None = None
    """Where the region's usage by day is; None: it is not kept."""
    sealing: Sealing | None = None
    places: BookiePlaces | None = None
    """Where bookies give entries to readers; None: nowhere."""
    reach_level: Callable[[int, str], Awaitable[None]] | None = None
    """Raises the region's feature level (`region_node.process.feature_level.RegionLevel.reach`)."""
    calls: BrokerCalls = field(default_factory=BrokerCalls)
    """What this broker asks of the region's others; whoever gives it closes it."""
    to_bookies: ssl.SSLContext | None = None
    """With which this broker calls bookies' HTTP; None: plainly."""
    outward: Callable[[], ssl.SSLContext] | None = None
    """With which admin URLs by TLS are asked in a caller's name: `region_node.security.tls.Certificates.outward`; None:
    as the machine trusts.
    """
    audiences: Mapping[str, str] = field(default_factory=dict)
    """Of other regions: what a token that is passed on there names."""
    authenticate_metrics: bool = False
    urls: UrlList = field(default_factory=lambda: UrlList(()))
    """Which hosts a region's URLs may name."""
    hosts: UrlList = field(default_factory=lambda: UrlList(()))
    """Further names of hosts by which this interface may be asked."""
    entry_cache: EntryCache | None = None
    appends: Appends | None = None
    losses: KnownLosses | None = None
    lookups: LookupCounts = field(default_factory=LookupCounts)
    """Counts lookups of the whole broker: its Pulsar listener counts there, too."""
    tier: BrokerTier | None = None
    face_samples: Callable[[], Iterable[Sample]] | None = None
    """Metrics of the broker's other faces; None: there are none."""
    transactions: Transactions | None = None
    """Serves this broker's transactions; None: transactions are off."""
    balancer: Balancer | None = None
    isolation: IsolationRules | None = None
    canary: Canary | None = None
    promises: Promises | None = None
    automatic: AutomaticFailover | None = None
    """Fails namespaces over by itself that somebody wants it for."""
    signer: Signer | None = None
    tombstones: Tombstones | None = None
    leases: WriteLeases | None = None
    """Says which active-passive namespaces this region may write to, and until when."""
    drill: DrillSettings = field(default_factory=DrillSettings)
    drill_clients: DrillClients | None = None
    region_patience_s: float = 2.0
    """So long a question about all regions waits for each of them; then what is known here is told."""
    deferred: DeferredEdits | None = None
    """Changes of policies that wait for the global configuration."""
    subscription_leadership: SubscriptionLeadership | None = None
    """Says which subscriptions are active in one region at a time, and in which."""
    stores: Sequence[StoreCounts] = ()
    """What this broker asked of its metadata stores."""
    metrics_series: TopicSeries = field(default_factory=TopicSeries)
    metrics_consumers: bool = False
    connection_counts: Callable[[], tuple[int, int, int, int, int, int]] | None = None
    """Counts connections of the Pulsar listener: open now; made, refused, and gone since the start; not read from just
    now, and those of them that the byte budget holds.
    """
    end: Callable[[], None] | None = None
    """Has this broker drained, and its process ended; None: it is ended otherwise."""
    topic_metrics: TopicMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.topic_metrics = TopicMetrics(
            lambda: self.topics.loaded.values(),
            self.links.each,
            region=self.region,
            clock=self.clock,
            series=self.metrics_series,
            consumers=self.metrics_consumers,
            more=self._append_metrics,
            bundle=self._bundle_labels,
        )

    def _bundle_labels(self, name: TopicName) -> str:
        table = self.ownership.bundles(name.namespace)
        if table is None:
            return ""
        bundle = f"{name.namespace}/{table.name(table.of(str(name)))}"
        return f'cluster="{self.region}",broker="{self.ownership.record.broker}",bundle="{bundle}",metric="bundle"'

    def _append_metrics(self) -> Iterable[str]:
        return (
            storage_metrics.pieces(self.region, self.appends, self.clock.monotonic())
            if self.appends is not None
            else ()
        )

    def close(self) -> None:
        self.topic_metrics.close()

    # -- names --------------------------------------------------------------------------------------------------------

    def tenant(self, request: web.Request) -> str:
        return check_name("tenant", request.match_info["tenant"])

    def namespace(self, request: web.Request) -> str:
        return f"{self.tenant(request)}/{check_name('namespace', request.match_info['namespace'])}"

    def topic(self, request: web.Request) -> TopicName:
        """Raises NotAllowed for a malformed name."""
        domain = request.match_info.get("domain", "persistent")
        return TopicName.parse(f"{domain}://{self.namespace(request)}/{request.match_info['topic']}")

    def policies(self, namespace: str) -> NamespacePolicies:
        """Returns what is set for the namespace. Raises NotFound, in Pulsar's words."""
        policies = self.view.namespace(namespace)
        if policies is None:  # the service's own namespace has no tenant behind it
            tenant = namespace.partition("/")[0]
            raise NotFound(
                f"{'Tenant' if self.view.tenant(tenant) is None else 'Namespace'} does not exist"
            )  # in Pulsar's words: its clients compare them
        return policies

    def regions(self, names: Any) -> tuple[str, ...]:
        """Regions that exist, each once. Raises MalformedRequest, and 403 as Pulsar does."""
        if not isinstance(names, list):
            raise MalformedRequest("expected a list of clusters")
        unknown = [str(name) for name in names if not isinstance(name, str) or self.view.region(name) is None]
        if unknown:
            raise Unauthorized(f"Invalid cluster id: {', '.join(unknown)}")
        return tuple(dict.fromkeys(names))

    def parted(self, names: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(regions, Pulsar clusters) of a list of clusters. Raises as `regions`."""
        if not isinstance(names, list):
            raise MalformedRequest("expected a list of clusters")
        clusters = [name for name in names if isinstance(name, str) and self.view.cluster(name) is not None]
        return self.regions([name for name in names if name not in clusters]), tuple(dict.fromkeys(clusters))

    async def exists(self, topic: TopicName) -> bool:
        """Whether there is such a topic in this region, plain or partitioned."""
        return self.view.partitions(str(topic)) > 0 or await self.topics.exists(str(topic))

    # -- the audit log ------------------------------------------------------------------------------------------------

    def changed(self, request: web.Request, before: Any, after: Any) -> None:
        """What the audit log says of this request, beside who it was and what for: JSON, or records."""
        request["change"] = [_as_json(one) for one in (before, after)]

    def changed_also(self, request: web.Request, what: str, before: Any, after: Any) -> None:
        """The same of one of several things that a request changes: partitions, subscriptions."""
        was, now = request.get("change", ({}, {}))
        request["change"] = {**was, what: before}, {**now, what: after}

    def goes_by(self, host: str) -> bool:
        """Whether the region is published, or may be asked, by that name of a host."""
        region = self.view.region(self.region)
        urls = [url for record in self.ownership.brokers() for url in record.admin_urls()]
        if region is not None:
            urls += [region.admin_url]
        return host == platform.node().lower() or self.hosts.names(host) or host in {urlsplit(u).hostname for u in urls}

    # -- ownership ----------------------------------------------------------------------------------------------------

    async def here(self, topic: TopicName) -> str:
        """The topic's full name, once it is sure that this broker owns it. Raises OwnedElsewhere, NotFound."""
        self.policies(topic.namespace)
        record = await self.ownership.owner(str(topic))
        if record is not self.ownership.record:
            raise OwnedElsewhere(record)
        return str(topic)

    async def loaded(self, topic: TopicName) -> Topic:
        """The topic, loaded here. Raises OwnedElsewhere, NotFound."""
        return await self.topics.get(await self.here(topic), create=False)

    async def log(self, topic: TopicName) -> ReplicatedLog:
        """What lies below the topic: vector, origin, managed ledger. Raises NotAllowed where it is not persistent:
        nothing does.
        """
        if not topic.persistent:
            raise NotAllowed(f"{topic} is not persistent: nothing of it is stored")
        log = cast("ReplicatedLog", (await self.loaded(topic)).log)
        await log.ledger.whole()
        return log

    async def ledger(self, topic: TopicName) -> ManagedLedger:
        return (await self.log(topic)).ledger

    def table(self, namespace: str) -> BundleTable:
        """Its bundles in this region; as it was made, where it is not served here. Raises NotFound."""
        policies = self.policies(namespace)
        return self.ownership.bundles(namespace) or BundleTable.equal(policies.bundles)

    def bundle(self, request: web.Request) -> tuple[str, int]:
        """(namespace, bundle) of the path. Raises NotFound (no such namespace), NotAllowed (no such bundle; the
        sentence names those that there are).
        """
        namespace, wanted = self.namespace(request), request.match_info["bundle"]
        table = self.table(namespace)
        if (found := table.named(wanted)) is None:
            raise NotAllowed(f"{wanted} is no bundle of {namespace}: there are {', '.join(table.names()[:64])}")
        return namespace, found

    async def call(self, record: BrokerRecord, method: str, path: str, body: Any = None) -> Any:
        """The same interface on another broker; its JSON, or None where the answer is empty. Raises NotFound,
        MetadataUnavailable.
        """
        return await self.calls.call(record, method, path, body)

    async def at_owner(
        self, name: TopicName, method: str, path: str, here: Callable[[str], Awaitable[Any]], body: Any = None
    ) -> Any:
        """Does something to one topic where it is owned: by `here`, or by `path` behind the topic's own; None where it
        was never used.
        """
        try:
            try:
                return await here(await self.here(name))
            except OwnedElsewhere as where:
                return await self.call(where.record, method, f"{topic_path(str(name))}{path}", body)
        except NotFound:
            return None

    async def for_each_partition(self, request: web.Request, act: Callable[[TopicName], Awaitable[Any]]) -> bool:
        """Carries a request for a partitioned topic out on every partition, wherever it is owned. False: the topic is
        plain.

        Raises NotFound where it could be done on none of them.
        """
        name = self.topic(request)
        count = self.view.partitions(str(name))
        if not count:
            return False
        behind = request.rel_url.raw_path.split("/", 7)[7:]
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        given, missing, last = await body(request), 0, ""
        for part in [name.with_partition(index) for index in range(count)]:
            try:
                try:
                    await self.here(part)
                    await act(part)
                except OwnedElsewhere as where:
                    path = "/".join([topic_path(str(part)), *behind])
                    await self.call(where.record, request.method, path + query, given)
            except NotFound as error:
                missing, last = missing + 1, str(error)
        if missing == count:
            raise NotFound(f"nothing of the kind on any of the {count} partitions of {name}: {last}")
        return True

    # -- configuration ------------------------------------------------------------------------------------------------

    async def seen(self, present: Callable[[], bool]) -> None:
        """Waits until a write shows in this broker's copies, so that the next request here finds it. Gives up
        quietly.
        """
        if present():
            return
        loop = asyncio.get_running_loop()
        shown: asyncio.Future[None] = loop.create_future()

        def look(key: str) -> None:
            if not shown.done() and present():
                shown.set_result(None)

        stop, stop_book = (
            self.view.on_change(look),
            self.topics.policies.on_change(lambda namespace, topic: look(topic)),
        )
        stop_rules = self.isolation.on_change(lambda: look("")) if self.isolation is not None else None
        try:
            async with asyncio.timeout(_VISIBLE_TIMEOUT_S):
                await shown
        except TimeoutError:
            return
        finally:
            stop()
            stop_book()
            if stop_rules is not None:
                stop_rules()


def _as_json(value: Any) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) or is_dataclass(value) else value


# -- bodies and queries -----------------------------------------------------------------------------------------------


async def whole_body(request: web.Request) -> bytes:
    """The body's bytes, once all have come. Raises HTTPRequestTimeout, HTTPUnsupportedMediaType, MalformedRequest."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(reason="a packed body is not taken: send it without Content-Encoding")
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the body did not come within {BODY_TIMEOUT_S:g} s") from None
    except (web.RequestPayloadError, ConnectionError) as error:
        raise MalformedRequest(f"the body did not come as its header says: {reason_of(error)}") from error


async def _text(request: web.Request) -> str:
    """The body as a text. It is UTF-8, whatever charset its header names: some of Python's take time by the square of
    its size. Raises MalformedRequest.
    """
    try:
        return (await whole_body(request)).decode()
    except UnicodeDecodeError as error:
        raise MalformedRequest("the body is no UTF-8: send it as that") from error


_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON writes half of a character; where its other half follows, that is a character."""


def parsed_json(text: str) -> Any:
    """Raises ValueError (no JSON, or a text in it has half of a character, which nothing can be written of),
    RecursionError.
    """
    value = json.loads(text)
    if _HALF.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


async def body(request: web.Request) -> Any:
    """The JSON body, or None where there is none. Raises MalformedRequest."""
    text = await _text(request)
    if not text.strip():
        return None
    try:
        request["given"] = given = parsed_json(text)
    except RecursionError as error:
        raise MalformedRequest("the body is nested too deep; give lists and objects of fewer levels") from error
    except ValueError as error:
        raise MalformedRequest(f"the body is no JSON: {error}") from error
    return given


async def text_body(request: web.Request) -> str | None:
    """A text as JSON, or as it is (Java's client sends it so); None where there is none."""
    text = (await _text(request)).strip()
    try:
        value = parsed_json(text) if text else None
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text or None


def flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def number(text: str, name: str) -> int:
    """Reads a whole number; `name` is what the refusal calls it. Raises MalformedRequest."""
    try:
        return int(text)
    except ValueError as error:
        raise MalformedRequest(f"{name} must be a whole number, not {text!r}") from error
