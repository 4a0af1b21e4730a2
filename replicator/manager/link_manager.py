"""LinkManager: all outgoing links of one broker.

Is: which links there are, what they share (timers, reads of backlog, rounds of subscriptions), and what is done once a
second.
Isn't: what a link sends (`replicator.sending.link_sender`), budgets (`replicator.bandwidth.bandwidth_budgets`), or
connections and looking up owners (`replicator.manager.topic_owners`).
Invariants: no task or timer of the loop per link; at most `reads_max` reads of backlog at a time; what is done for
topics that idle does not grow with them.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from heliograph.model.configuration.configuration_records import PulsarCluster, RegionInfo
from heliograph.model.coordinates import Origin
from heliograph.model.errors import HeliographError, reason_of
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.model.topic_names import TopicName
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import CautiousClock, Clock, Rng
from heliograph.runtime.standstill import stood_still_s
from heliograph.runtime.task_set import TaskSet, cancel_all, report_error, report_unexpected
from heliograph.wire.links.link_commands import FEATURE_LEVEL
from replicator.audit.audit_scan import AuditStorage
from replicator.audit.audit_settings import AuditLimits, AuditSettings
from replicator.audit.auditor import Auditor
from replicator.bandwidth.bandwidth_budgets import Budgets
from replicator.bandwidth.compression_settings import CompressionSettings
from replicator.bandwidth.drain_throttle import DrainThrottle
from replicator.bandwidth.send_window import AppendActivity
from replicator.health.incoming_stats import IncomingStats
from replicator.health.link_causes import Cause
from replicator.health.link_stats import LinkStats
from replicator.health.unopened_topics import UnopenedLinks
from replicator.links.link import Link
from replicator.links.schema_feed import SchemaHost
from replicator.links.start_position import properties_of
from replicator.links.timer_wheel import Timers
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.tree_planting import Planter
from replicator.manager.audit_channels import LinkChannels
from replicator.manager.configured_relays import ConfiguredRelays, Leaderships
from replicator.manager.departed_regions import Leaving
from replicator.manager.ended_origins import EndedOrigins
from replicator.manager.receipt_waits import ReceiptWaits
from replicator.manager.subscription_rounds import SubscriptionRounds
from replicator.manager.topic_owners import Owners
from replicator.pulsar.cluster_connections import ClusterConnections
from replicator.pulsar.pulsar_link import ClusterHost, PulsarLink
from replicator.sending.link_sender import SenderSettings
from replicator.subscriptions.ack_claims import ClaimSettings
from replicator.subscriptions.subscription_sync import SubscriptionHost
from storage.managed_ledger.append_counts import Appends

events = logging.getLogger("replicator")

_SUBSCRIPTIONS_S = 0.4
"""How often replicated subscriptions are brought in step: what was acknowledged is known elsewhere within twice that
and the way there.
"""
CURSOR_PREFIX = "pulsar.repl."


class LinkRegions(Protocol):
    """The part of the configuration's view that links use."""

    def region(self, name: str) -> RegionInfo | None: ...

    def regions(self) -> list[RegionInfo]: ...

    @property
    def region_numbers(self) -> Mapping[int, str]:
        """Every number that a region has or had -> its name."""
        ...

    @property
    def broken(self) -> Mapping[str, str]:
        """Key -> why its value cannot be read: with one of a region among them, `regions` may not be all."""
        ...

    def cluster(self, name: str) -> PulsarCluster | None: ...

    def namespace(self, namespace: str) -> object | None:
        """None: there is none of that name, or it is not known yet."""
        ...

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Bounds and intervals of the links of one broker. Times are in seconds."""

    sender: SenderSettings = field(default_factory=SenderSettings)
    budget: Mapping[str, float] = field(default_factory=dict)
    """Target region -> bytes a second of all links of this broker to it together; "*": of each region that is not
    named. None: no bound.
    """
    budget_shared: bool = False
    """The budget is of all brokers of this region together: each has an equal share."""
    audit: AuditSettings = field(default_factory=AuditSettings)
    audit_limits: AuditLimits = field(default_factory=AuditLimits)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    connect_timeout_s: float = 5.0
    heartbeat_s: float = 1.0
    backoff_min_s: float = 0.1
    backoff_max_s: float = 5.0
    establishing_max: int = 32
    """So many links to one region look their owners up at a time."""
    reads_max: int = 16
    drain_floor_bytes_per_s: float = 8 << 20
    """So fast are the drains of a broker together at least while they give way to who publishes there; 0: they never
    do.
    """
    syncs_max: int = 8
    claims: ClaimSettings = field(default_factory=ClaimSettings)
    left_grace_s: float = 86_400.0
    """So long what a region that left had not got is kept for it, should it come back."""
    feature_level: int = FEATURE_LEVEL
    """What targets are told that this side understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkHosts:
    """What the links of a broker have in it. `broker`: its name. `appends`: all of this broker. `brokers`: how many of
    this region live, this one among them. `leaderships`: None: no namespace ever had one. `storage`: None: nothing is
    audited.
    `subscriptions`: who has those of this broker. `schemas`: the registry of this region; None: schemas stay where they
    are. `clusters`: None: there are none of Pulsar's.
    """

    broker: str = ""
    appends: Appends = field(default_factory=Appends)
    brokers: Callable[[], int] = lambda: 1
    leaderships: Leaderships | None = None
    storage: AuditStorage | None = None
    subscriptions: SubscriptionHost | None = None
    schemas: SchemaHost | None = None
    clusters: ClusterHost | None = None


class LinkManager:
    """Made on the event loop. `connect`: the TLS context of links (this region's replicator certificate), None: no
    TLS.
    """

    def __init__(
        self,
        *,
        region: str,
        view: LinkRegions,
        clock: Clock,
        rng: Rng,
        connect: ssl.SSLContext | None = None,
        settings: LinkSettings | None = None,
        expiry: CautiousClock | None = None,
        hosts: LinkHosts | None = None,
    ) -> None:
        """expiry: by it goes what goes by time."""
        hosts = hosts or LinkHosts()
        appends = hosts.appends
        self.region, self.clock, self.settings = region, clock, settings or LinkSettings()
        self.expiry = expiry or CautiousClock(clock)
        self._view, self._rng = view, rng
        self._loop = asyncio.get_running_loop()
        self.timers = Timers(self._loop)
        self.publishing = AppendActivity(lambda: appends.newest.count)
        self.yielding: DrainThrottle[Any] = DrainThrottle(
            appends,
            self.settings.drain_floor_bytes_per_s,
            clock.monotonic,
            lambda after_s: self._run_later(self.yielding.run, after_s),
        )
        self.incoming = IncomingStats()
        """What comes the other way: for whoever makes receivers."""
        self.unopened = UnopenedLinks(region, hosts.broker or region, self.expiry.behind_ms)
        self.restarts: Counter[tuple[str, Cause]] = Counter()
        """(target region, cause) -> how often a link ended so, in all."""
        self._active: dict[Link | PulsarLink, None] = {}
        self._resting: dict[Link | PulsarLink, None] = {}
        """Links that have nothing to do, although their targets lack something: a transaction is open, or another
        region delivers it.
        """
        self.parked: dict[Link | PulsarLink, None] = {}
        """Links that wait for a decision."""
        self.budgets: Budgets[Link] = Budgets(
            self.settings.budget,
            hosts.brokers if self.settings.budget_shared else lambda: 1,
            clock.monotonic,
            self._run_later,
        )
        self._links: dict[str, dict[str, Link | PulsarLink]] = {}
        self.logs: dict[str, ReplicatedLog] = {}
        self._planter = Planter(region, self.logs, self._regions_of)
        self.claims = self.settings.claims
        self.subscriptions, self.schemas, self.clusters = hosts.subscriptions, hosts.schemas, hosts.clusters
        self.cluster_connections = ClusterConnections(clock.monotonic, hosts.clusters)
        self._rounds = SubscriptionRounds(self)
        self._owners = Owners(region, view, clock, self.settings, connect, self.spawn, self.soon, self._reached)
        self._waits = ReceiptWaits(clock, self.timers, self.spawn)
        self._leaving = Leaving(self.expiry, self.settings.left_grace_s, self._known, self._left_for_good)
        self._reads: deque[Link | PulsarLink] = deque()
        self._reading = 0
        self._tasks = TaskSet("a link's work failed")
        self._backoff = Backoff(self.settings.backoff_min_s, self.settings.backoff_max_s)
        self._ticked_at = clock.monotonic()
        self._closed = False
        self.auditor = Auditor(
            LinkChannels(self), clock, self.settings.audit, self.settings.audit_limits, hosts.storage
        )
        self.tails = EndedOrigins(self)
        self.relays = ConfiguredRelays(
            region,
            lambda number: self.region_name(number) or self.tails.used.get(number),
            self.auditor.ask,
            self.spawn,
            self.backoff_s,
            self.tails.ended,
            hosts.leaderships,
        )
        """Whom receivers believe of other regions' entries."""
        if hosts.schemas is not None:
            hosts.schemas.follow(self)
        self._regions_changed()
        self._stop_watching = view.on_change(self._on_config)
        self.timers.after(self.settings.heartbeat_s, self._tick)
        self.timers.after(_SUBSCRIPTIONS_S, self._sync_subscriptions)

    # -- links ---------------------------------------------------------------------------------------------------------

    def attach(self, log: ReplicatedLog, targets: Sequence[str]) -> None:
        """Links the topic to `targets` (this region among them is left out), and to no others: idempotent.

        A region that is no target any more loses its cursor when its time is over
        (`replicator.manager.departed_regions`), also where it left while the topic was not loaded: what it has not got
        stays here unsent.
        """
        self.logs[log.topic] = log
        log.sync_by = self
        links = self._links.setdefault(log.topic, {})
        for target, link in list(links.items()):
            if link.log is not log or target not in targets:
                link.detach()
                del links[target]
        if (
            self._view.namespace(TopicName.parse(log.topic).namespace) is not None
        ):  # else nobody knows which regions it has
            for name, cursor in list(log.ledger.cursors.items()):
                region = name.removeprefix(CURSOR_PREFIX)
                if region not in (name, *targets):
                    self._leaving.left(log.topic, region, cursor)
        for target in targets:
            if target != self.region and target not in links:
                link = links[target] = (
                    PulsarLink(self, log, target) if self.cluster(target) is not None else Link(self, log, target)
                )
                if isinstance(link, Link):
                    self.unopened.add(link, log.topic)
                self.spawn(self._begin(link, log.ledger.last_confirmed))
                self.keep_looking(link)
        if log.syncing is not None:  # subscriptions that were kept in step before the topic came here
            self.keep_in_step(log)
        log.sends = bool(links)
        log.state.outbox.follow(log.sends)
        if not links:
            del self._links[log.topic]

    def rests(self, log: ReplicatedLog) -> None:
        """A link has delivered everything that was published here; where all have, less is kept of when that was."""
        if not any(link.oldest_ms() for link in self._links.get(log.topic, {}).values()):
            log.state.outbox.rest()

    def obey(self, log: ReplicatedLog, values: Mapping[str, Any]) -> None:
        """values: the policies that hold for the topic. After `attach`."""
        self.require(log, values.get("durability"))
        self.tails.obey(log, values.get("replicationRoutes"))
        self.relays.obey(log, values)
        log.replicate_all = bool(values.get("replicatedSubscriptions"))
        if log.replicate_all:
            self.keep_in_step(log)
        self._planter.obey(log, values.get("replicationTopology"))
        rate = values.get("replicatorDispatchRate")
        for link in self._links.get(log.topic, {}).values():
            link.obey_rate(rate)
            link.start = values.get("replicationStart")
            if isinstance(link, Link):
                link.weight = values.get("replicationPriority") or 1
                link.obey_lifetime(values.get("replicationTTL") or 0)

    def known_changed(self, topic: str) -> None:
        """Other regions are told with the next heartbeat."""
        for link in self._links.get(topic, {}).values():
            if isinstance(link, Link):
                link.touch()

    def keep_in_step(self, log: ReplicatedLog) -> None:
        self._rounds.keep(log)
        for link in self._links.get(log.topic, {}).values():
            if isinstance(link, PulsarLink):  # it tends the subscriptions itself
                self.keep_looking(link)

    def keep_looking(self, link: Link | PulsarLink) -> None:
        """It has something to do, or to count: `link.tick` is called each second until it says that it has not."""
        self._active[link] = None

    def _regions_of(self, log: ReplicatedLog) -> list[str]:
        """That it goes to; Pulsar clusters are none."""
        return [target for target, link in self._links.get(log.topic, {}).items() if isinstance(link, Link)]

    def schemas_changed(self, topic: str) -> None:
        """The registry has, or may have, a new version of this topic's schema: its links send that before anything
        else.
        """
        for link in self._links.get(topic, {}).values():
            if isinstance(link, Link):
                link.schemas.changed()

    def unpark(self, topic: str) -> None:
        """What its parked links conflict about may have been decided elsewhere: they look again."""
        for link in self._links.get(topic, {}).values():
            if isinstance(link, Link):
                link.unpark()

    def require(self, log: ReplicatedLog, policy: Mapping[str, Any] | None) -> None:
        """Receipts of the topic wait for other regions as the policy `durability` says; None: they do not. After
        `attach`.
        """
        self._waits.require(log, policy, self._regions_of(log))

    async def detach(self, log: ReplicatedLog) -> None:
        """The topic is being unloaded: its links end, their cursors stay."""
        if self.logs.get(log.topic) is log:
            del self.logs[log.topic]
            self._planter.forget(log)
            self.tails.forget(log)
            self.relays.forget(log)
            self._leaving.forget(log.topic)
        if any(link.log is log for link in self._links.get(log.topic, {}).values()):
            for link in self._links.pop(log.topic).values():
                link.detach()

    def links(self, topic: str) -> dict[str, Link | PulsarLink]:
        """The links of a topic by target; {} where it has none, or is not loaded here."""
        return self._links.get(topic, {})

    def each(self) -> Iterator[LinkStats]:
        """Yields the numbers of every link, made when it is asked for: between two of them the loop may go on, and who
        has ended meanwhile is left out.
        """
        for link in [link for links in self._links.values() for link in links.values()]:
            if not link.ended:
                yield link.stats()

    def stats(self, topic: str | None = None) -> list[LinkStats]:
        """Every link, or those of one topic."""
        topics = self._links if topic is None else {topic: self._links.get(topic, {})}
        return [link.stats() for links in topics.values() for link in links.values()]

    def at_risk(self) -> dict[str, float]:
        """Topic -> age of its oldest message that one of its targets lacks, in seconds; of links that idle nothing is
        asked.
        """
        found: dict[str, float] = {}
        now_ms = self.expiry.stamp_ms()
        for link in (*self._active, *self._resting):
            if not link.ended and (oldest_ms := link.oldest_ms()):
                found[link.log.topic] = max(found.get(link.log.topic, 0.0), (now_ms - oldest_ms) / 1000)
        return found

    async def close(self) -> None:
        """Ends every link and connection."""
        self._closed = True
        self._stop_watching()
        for links in self._links.values():
            for link in links.values():
                link.detach()
        self._links.clear()
        self.timers.close()
        self._owners.close()
        self.cluster_connections.close()
        await self._tasks.close()
        await cancel_all([*self._owners.tasks(), *self.cluster_connections.tasks()])

    async def _begin(self, link: Link | PulsarLink, last: Position) -> None:
        """last: the topic's last entry when it was attached. What is published while its cursor cannot be made is the
        link's, wherever it begins.
        """
        name = CURSOR_PREFIX + link.target
        try:
            cursor = link.log.ledger.cursors.get(name) or await link.log.ledger.open_cursor(
                name, BEFORE_ALL, properties=properties_of(link.log, link.start, last)
            )
        except Exception as error:  # whatever it is, it is tried again
            report_unexpected(error, "a link's work failed")
            if link.ended or self._closed:
                return
            link.state, link.cause = "waiting", Cause.of(error, Cause.METADATA)
            link.cause_text = f"opening the cursor: {reason_of(error)}"
            self.timers.after(
                self.backoff_s(link.failures), lambda: None if link.ended else self.spawn(self._begin(link, last))
            )
            link.failures += 1
            return
        if not link.ended:
            self._leaving.back(link.log.topic, link.target, cursor)
        link.begin(cursor)

    def _known(self, name: str) -> bool:
        """A region, or a Pulsar cluster; or it cannot be told now: one that this copy of the configuration has never
        heard of may be younger than the copy.
        """
        if self._view.region(name) is not None or self.cluster(name) is not None or self._view.broken:
            return True
        return name not in self._view.region_numbers.values()

    def _left_for_good(self, topic: str, region: str) -> None:
        if (log := self.logs.get(topic)) is not None:
            self.spawn(self._delete_cursor(log, region))

    async def _delete_cursor(self, log: ReplicatedLog, target: str) -> None:
        """Where it fails, the next load of the topic tries again."""
        if target in self._links.get(log.topic, {}) or CURSOR_PREFIX + target not in log.ledger.cursors:
            return  # it has come back, or this was asked for twice
        events.warning("link.region_left", extra={"topic": log.topic, "target": target})
        try:
            await log.ledger.delete_cursor(CURSOR_PREFIX + target)
        except HeliographError as error:
            events.warning("link.cursor_left", extra={"topic": log.topic, "target": target, "error": str(error)})

    # -- what links ask for --------------------------------------------------------------------------------------------

    def region_number(self, region: str = "") -> int:
        """The number of a region, by default of this one; 0: it is not known."""
        info = self._view.region(region or self.region)
        return info.number if info is not None else 0

    def region_name(self, number: int) -> str | None:
        """None: the configuration has no region of that number."""
        return next((region.name for region in self._view.regions() if region.number == number), None)

    def peers(self, log: ReplicatedLog) -> list[str]:
        """The other regions of the configuration that have the topic, by a link in either direction."""
        here = [
            source
            for source in self.tails.sources(log)
            if source != self.region and self._view.region(source) is not None
        ]
        return sorted({*self._regions_of(log), *here})

    def hears(self, log: ReplicatedLog, region: str) -> bool:
        link, back = self._links.get(log.topic, {}).get(region), log.incoming.get(region)
        return (link is not None and link.state == "open") or (back is not None and back.connected)

    def silent_s(self, region: str) -> float:
        """For how long nothing was heard from the region by links to it, since this broker began."""
        return self._owners.silent_s(region)

    def gone(self, log: ReplicatedLog, origin: Origin, at: Position) -> bool:
        """Whether a coordinate beyond what is here will never come."""
        return self.tails.gone(log, origin, at)

    def cluster(self, name: str) -> PulsarCluster | None:
        """A real Pulsar cluster; None: it is a region, or not known."""
        return self._view.cluster(name)

    def _run_later(self, run: Callable[[], None], after_s: float) -> None:
        if after_s > 0:
            self.timers.after(after_s, run)
        else:
            self.soon(run)

    def backoff_s(self, failures: int) -> float:
        return self._backoff.pause_s(failures + 1, self._rng)

    def soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Short work; an error that it did not expect reaches the loop's handler."""
        self._tasks.spawn(work)

    def read(self, link: Link | PulsarLink) -> None:
        """`link.read()` as soon as there is a place."""
        self._reads.append(link)
        if self._reading < self.settings.reads_max:
            self._reading += 1
            self.spawn(self._read())

    async def _read(self) -> None:
        try:
            while self._reads:
                try:
                    await self._reads.popleft().read()
                except Exception as error:  # its watchdog sees to it; the others have their turn
                    report_error(error, "a link's work failed")
                await asyncio.sleep(0)  # those that wait for no bookie, too, are one a pass
        finally:
            self._reading -= 1

    @property
    def connections(self) -> int:
        """To brokers of other regions."""
        return self._owners.connections

    def establish(self, link: Link) -> None:
        """Finds the topic's owner in the target region and opens the link there: `link.open_on` or `link.on_ended`
        follows.
        """
        self._owners.establish(link)

    def _reached(self, region: str) -> None:
        """A connection to it was made: who waits because there was none need not wait longer."""
        for links in self._links.values():
            if (link := links.get(region)) is not None and link.cause in _UNREACHED:
                link.poke()

    # -- replicated subscriptions --------------------------------------------------------------------------------------

    def _sync_subscriptions(self) -> None:
        self.timers.after(_SUBSCRIPTIONS_S, self._sync_subscriptions)
        self._rounds.begin()

    # -- once a second -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.timers.after(
            self.settings.heartbeat_s, self._tick
        )  # first: whatever fails in this one, the next one comes
        now = self.clock.monotonic()
        stood_s = stood_still_s(self._ticked_at + self.settings.heartbeat_s, now)
        elapsed_s, self._ticked_at = max(0.001, now - self._ticked_at), now
        self._owners.beat(now, stood_s, self.unopened.told)
        self.budgets.tick()
        self.cluster_connections.tick(stood_s)
        self.yielding.look_at((link for link in self._active if isinstance(link, Link)), elapsed_s)
        for link in list(self._active):
            try:
                if link.tick(elapsed_s) is False or link.ended:
                    self._active.pop(link, None)
                    self._resting[link] = None
            except Exception as error:  # the others have their turn
                report_error(error, "a link's work failed")
        for link in list(self._resting):
            if link.ended or link in self._active or not link.oldest_ms():
                del self._resting[link]
        self._planter.tick()
        self._leaving.tick()
        self.auditor.tick()
        self.tails.tick()

    def _regions_changed(self) -> None:
        whole = not any(key.startswith("/regions/") for key in self._view.broken)
        self.tails.regions_changed(self._view.regions() if whole else (), self._view.region_numbers)

    def _on_config(self, key: str) -> None:
        if key.startswith(("/regions/", "/tenants/", "/namespaces/", "/partitioned/")):
            for parked in list(self.parked):
                parked.unpark()
        if key.startswith(("/regions/", "/clusters/")):
            self._leaving.regions_changed()
        if key.startswith("/regions/"):
            self._regions_changed()
        elif not key.startswith("/clusters/"):
            return
        for links in self._links.values():
            for link in links.values():
                if link.cause is Cause.NO_ADDRESS or key == f"/clusters/{link.target}":
                    link.poke()
                if isinstance(link, PulsarLink):
                    link.reconsider()


_UNREACHED = (Cause.UNREACHABLE, Cause.TIMEOUT, Cause.CONNECTION_LOST, Cause.HEARTBEAT_LOST)
