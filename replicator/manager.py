"""LinkManager: all outgoing links of one broker.

Is: which links there are, their connections (one to each broker of each region, shared by topics), looking up owners, heartbeats, backoff.
Isn't: what a link sends (`replicator.sender`). A link's look-ups go to the addresses that the target region publishes for this source
(`RegionInfo.link_urls`), under the listener name `link-<source region>`, so that each directed link can have a network of its own.
Invariants: no task or timer of the loop per link; at most `establishing_max` look-ups and `reads_max` reads of backlog at a time.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from heliograph.client.pulsar import REDIRECTS_MAX, Address, ConnectionLost, PulsarConnection
from heliograph.model.errors import HeliographError, LinkError
from heliograph.model.identity import REPLICATOR, peer_identity
from heliograph.model.names import TopicName
from heliograph.model.policies import PulsarCluster, RegionInfo
from heliograph.model.positions import BEFORE_ALL
from heliograph.model.routes import Topology, tree
from heliograph.runtime.clock import Clock, Rng
from replicator.audit_channels import LinkChannels
from replicator.audit_settings import AuditSettings
from replicator.auditor import Auditor
from replicator.causes import Cause, cause_of
from replicator.compression import Traffic
from replicator.compression_settings import CompressionSettings
from replicator.connection import Key, LinkConnection
from replicator.durability import RegionWaits
from replicator.incoming import Incoming
from replicator.link import Link
from replicator.link_stats import LinkStats
from replicator.log import ReplicatedLog
from replicator.planting import plant
from replicator.pulsar.connection import ClusterConnections
from replicator.pulsar.link import ClusterHost, PulsarLink
from replicator.schemas import SchemaHost
from replicator.sender import SenderSettings
from replicator.starting import properties_of
from replicator.subscription_sync import SubscriptionHost
from replicator.timers import Timers
from replicator.turns import Budget

events = logging.getLogger("replicator")

CURSOR_PREFIX = "pulsar.repl."


class Regions(Protocol):
    """The part of the configuration's view that links use."""

    def region(self, name: str) -> RegionInfo | None: ...

    def cluster(self, name: str) -> PulsarCluster | None: ...

    def namespace(self, namespace: str) -> object | None:
        """None: there is none of that name, or it is not known yet."""
        ...

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Times in seconds."""

    sender: SenderSettings = field(default_factory=SenderSettings)
    budget: Mapping[str, float] = field(default_factory=dict)
    """Target region -> bytes a second of all links of this broker to it together; "*": of each region that is not named. None: no bound."""
    audit: AuditSettings = field(default_factory=AuditSettings)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    connect_timeout_s: float = 5.0
    parked_look_s: float = 30.0
    """How often a parked link looks whether its conflict is over, where nothing tells it."""
    open_timeout_s: float = 10.0
    heartbeat_s: float = 1.0
    heartbeat_lost_s: float = 5.0
    backoff_min_s: float = 0.1
    backoff_max_s: float = 5.0
    idle_connection_s: float = 30.0
    establishing_max: int = 32
    reads_max: int = 16
    subscriptions_s: float = 0.4
    """How often replicated subscriptions are brought in step: what was acknowledged is known elsewhere within twice that and the way there."""
    syncs_max: int = 8


class LinkManager:
    """Made on the event loop. `connect`: the TLS context of links (this region's replicator certificate), None: no TLS."""

    def __init__(
        self,
        *,
        region: str,
        view: Regions,
        clock: Clock,
        rng: Rng,
        connect: ssl.SSLContext | None = None,
        settings: LinkSettings | None = None,
    ) -> None:
        self.region, self.clock, self.settings = region, clock, settings or LinkSettings()
        self._view, self._rng, self._ssl = view, rng, connect
        self._loop = asyncio.get_running_loop()
        self.timers = Timers(self._loop)
        self.incoming = Incoming()
        """What comes the other way: for whoever makes receivers."""
        self.restarts: Counter[tuple[str, Cause]] = Counter()
        """(target region, cause) -> how often a link ended so, in all."""
        self.traffic: dict[str, Traffic] = {}
        """Target region -> what all links to it have sent."""
        self._active: dict[Link | PulsarLink, None] = {}
        self.parked: dict[Link, None] = {}
        """Links that wait for a decision."""
        self._budgets: dict[str, Budget[Link]] = {}
        self._links: dict[str, dict[str, Link | PulsarLink]] = {}
        self._topologies: dict[str, Topology | None] = {}
        """Topic -> its policy, of those that have one or have a tree."""
        self._unplanted: dict[str, ReplicatedLog] = {}
        """Topics whose tree is to be compared with the policy again."""
        self.logs: dict[str, ReplicatedLog] = {}
        self.subscriptions: SubscriptionHost | None = None
        """Who has the subscriptions of this broker; set before the first topic is attached."""
        self.schemas: SchemaHost | None = None
        """The registry of this region; None: schemas stay where they are."""
        self.clusters: ClusterHost | None = None
        """Set before the first topic is attached."""
        self.cluster_connections = ClusterConnections(clock.monotonic)
        self._syncs: deque[ReplicatedLog] = deque()
        self._syncing = 0
        self._connections: dict[Key, LinkConnection] = {}
        self._connecting: dict[Key, asyncio.Task[LinkConnection]] = {}
        self._idle_since: dict[Key, float] = {}
        self._waiting: deque[Link] = deque()
        self._establishing = 0
        self._reads: deque[Link | PulsarLink] = deque()
        self._reading = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._ticked_at = clock.monotonic()
        self._turn: dict[str, int] = {}
        self._closed = False
        self.auditor = Auditor(LinkChannels(self), clock, self.settings.audit)
        self._stop_watching = view.on_change(self._on_config)
        self.timers.after(self.settings.heartbeat_s, self._tick)
        self.timers.after(self.settings.subscriptions_s, self._sync_subscriptions)

    # -- links ---------------------------------------------------------------------------------------------------------

    def attach(self, log: ReplicatedLog, targets: Sequence[str]) -> None:
        """Links the topic to `targets` (this region among them is left out), and to no others: idempotent.

        A region that is no target any more loses its cursor, also where it left while the topic was not loaded: what it has not got stays
        here unsent.
        """
        self.logs[log.topic] = log
        log.sync_by = self
        links = self._links.setdefault(log.topic, {})
        for target, link in list(links.items()):
            if link.log is not log or target not in targets:
                link.detach()
                del links[target]
        if self._view.namespace(TopicName.parse(log.topic).namespace) is not None:  # else nobody knows which regions it has
            for name in list(log.ledger.cursors):
                region = name.removeprefix(CURSOR_PREFIX)
                if region not in (name, *targets):
                    self.spawn(self._delete_cursor(log, region))
        for target in targets:
            if target != self.region and target not in links:
                link = links[target] = PulsarLink(self, log, target) if self.cluster(target) is not None else Link(self, log, target)
                self.spawn(self._begin(link))
                self.keep_looking(link)
        _ = log.syncing  # subscriptions that were kept in step before the topic came here
        if not links:
            del self._links[log.topic]

    def obey(self, log: ReplicatedLog, values: Mapping[str, Any]) -> None:
        """values: the policies that hold for the topic. After `attach`."""
        self.require(log, values.get("durability"))
        log.replicate_all = bool(values.get("replicatedSubscriptions"))
        self._plant(log, values.get("replicationTopology"))
        rate = values.get("replicatorDispatchRate")
        for link in self._links.get(log.topic, {}).values():
            link.obey_rate(rate)
            link.start = values.get("replicationStart")
            if isinstance(link, Link):
                link.weight = values.get("replicationPriority") or 1

    def known_changed(self, topic: str) -> None:
        """Other regions are told with the next heartbeat."""
        for link in self._links.get(topic, {}).values():
            if isinstance(link, Link):
                link.touch()

    def keep_looking(self, link: Link | PulsarLink) -> None:
        """It has something to do, or to count: `link.tick` is called each second until it says that it has not."""
        self._active[link] = None

    def _plant(self, log: ReplicatedLog, topology: Topology | None) -> None:
        """By which way its entries go on, to the regions that it is linked to. What has to wait is looked at again every second."""
        regions = [target for target, link in self._links.get(log.topic, {}).items() if isinstance(link, Link)]
        self._topologies[log.topic] = topology
        if topology is None and not log.state.trees:
            del self._topologies[log.topic]
            return
        again = partial(self._plant_again, log)
        if plant(log, self.region, tree(topology, self.region, regions), regions, again):
            self._unplanted.pop(log.topic, None)
        else:
            self._unplanted[log.topic] = log

    def _plant_again(self, log: ReplicatedLog) -> None:
        """A record is stored, or was not: the policy may have changed meanwhile. Not at once: bookies that fail do so again."""
        self._unplanted[log.topic] = log

    def _plant_due(self) -> None:
        waiting, self._unplanted = self._unplanted, {}
        for topic, log in waiting.items():
            if self.logs.get(topic) is log and topic in self._topologies:
                self._plant(log, self._topologies[topic])

    def schemas_changed(self, topic: str) -> None:
        """The registry has, or may have, a new version of this topic's schema: its links send that before anything else."""
        for link in self._links.get(topic, {}).values():
            if isinstance(link, Link):
                link.schemas.changed()

    def unpark(self, topic: str) -> None:
        """What its parked links conflict about may have been decided elsewhere: they look again."""
        for link in self._links.get(topic, {}).values():
            if isinstance(link, Link):
                link.unpark()

    def require(self, log: ReplicatedLog, policy: Mapping[str, Any] | None) -> None:
        """Receipts of the topic wait for other regions as the policy `durability` says; None: they do not. After `attach`."""
        waits = log.waits
        if policy is None or (policy["regions"] == 1 and not policy.get("perMessage")):
            if waits is not None:
                log.waits = None
                waits.release()
            return
        if waits is None:
            made = waits = log.waits = RegionWaits(
                self.clock.monotonic,
                self.clock.wall_ms,
                lambda: self._watch_waits(log),
                log.state.affected,
                lambda then: self.spawn(self._store_affected(log, made, then)),
                log.state.own_end(),
            )
            for region, (vector, _) in log.known.items():
                waits.heard(region, vector.prefix(log.origin))
        waits.obey(policy, [target for target, link in self._links.get(log.topic, {}).items() if isinstance(link, Link)])

    def _watch_waits(self, log: ReplicatedLog) -> None:
        """One timer a topic, while receipts wait."""
        waits = log.waits
        due = None if waits is None else waits.next_deadline()
        if due is not None:
            self.timers.after(max(0.0, due - self.clock.monotonic()), lambda: self._expire(log))

    def _expire(self, log: ReplicatedLog) -> None:
        if (waits := log.waits) is not None:
            waits.expire()
            self._watch_waits(log)

    async def _store_affected(self, log: ReplicatedLog, waits: RegionWaits, then: Callable[[], None]) -> None:
        """The list of affected messages goes with the topic's state. Where that cannot be written the topic ends, and who waits hears that."""
        log.state.affected = waits.listed
        if waits.listed.since is not None:
            events.warning("durability.degraded topic=%s regions=%s reached=%s", log.topic, waits.regions, waits.shown()["reached"])
        try:
            await log.ledger.store_state()
        except HeliographError as error:
            events.warning("durability.list_failed topic=%s error=%r", log.topic, error)
            return
        then()

    async def detach(self, log: ReplicatedLog) -> None:
        """The topic is being unloaded: its links end, their cursors stay."""
        if self.logs.get(log.topic) is log:
            del self.logs[log.topic]
            self._topologies.pop(log.topic, None)
        if any(link.log is log for link in self._links.get(log.topic, {}).values()):
            for link in self._links.pop(log.topic).values():
                link.detach()

    def links(self, topic: str) -> dict[str, Link | PulsarLink]:
        """By target."""
        return self._links.get(topic, {})

    def stats(self, topic: str | None = None) -> list[LinkStats]:
        """Every link, or those of one topic."""
        topics = self._links if topic is None else {topic: self._links.get(topic, {})}
        return [link.stats() for links in topics.values() for link in links.values()]

    async def close(self) -> None:
        """Ends every link and connection."""
        self._closed = True
        self._stop_watching()
        for links in self._links.values():
            for link in links.values():
                link.detach()
        self._links.clear()
        self.timers.close()
        for connection in list(self._connections.values()):
            connection.close(ConnectionLost("this broker stops"))
        self.cluster_connections.close()
        tasks = [*self._tasks, *self._connecting.values(), *self.cluster_connections.tasks()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self, link: Link | PulsarLink) -> None:
        name = CURSOR_PREFIX + link.target
        try:
            cursor = link.log.ledger.cursors.get(name) or await link.log.ledger.open_cursor(
                name, BEFORE_ALL, properties=properties_of(link.log, link.start)
            )
        except HeliographError as error:
            if link.ended or self._closed:
                return
            link.state, link.cause, link.cause_text = "waiting", Cause.of(error), f"opening the cursor: {error}"
            self.timers.after(self.backoff_s(link.failures), lambda: None if link.ended else self.spawn(self._begin(link)))
            link.failures += 1
            return
        link.begin(cursor)

    async def _delete_cursor(self, log: ReplicatedLog, target: str) -> None:
        """Where it fails, the next load of the topic tries again."""
        if target in self._links.get(log.topic, {}) or CURSOR_PREFIX + target not in log.ledger.cursors:
            return  # it has come back, or this was asked for twice
        events.warning("link.region_left topic=%s target=%s", log.topic, target)
        try:
            await log.ledger.delete_cursor(CURSOR_PREFIX + target)
        except HeliographError as error:
            events.warning("link.cursor_left topic=%s target=%s error=%r", log.topic, target, error)

    # -- what links ask for --------------------------------------------------------------------------------------------

    def region_number(self, region: str = "") -> int:
        """Of this region, or another; 0: it is not known."""
        info = self._view.region(region or self.region)
        return info.number if info is not None else 0

    def cluster(self, name: str) -> PulsarCluster | None:
        """A real Pulsar cluster; None: it is a region, or not known."""
        return self._view.cluster(name)

    def budget(self, region: str) -> Budget[Link] | None:
        """None: links to it share nothing but their connections."""
        found = self._budgets.get(region)
        if found is None and (bytes_per_s := self.settings.budget.get(region, self.settings.budget.get("*", 0))) > 0:
            made = found = self._budgets[region] = Budget(bytes_per_s, self.clock.monotonic, lambda after_s: self._run_budget(made, after_s))
        return found

    def _run_budget(self, budget: Budget[Link], after_s: float) -> None:
        if after_s > 0:
            self.timers.after(after_s, budget.run)
        else:
            self.soon(budget.run)

    def traffic_to(self, region: str) -> Traffic:
        return self.traffic.setdefault(region, Traffic())

    def backoff_s(self, failures: int) -> float:
        longest = min(self.settings.backoff_max_s, self.settings.backoff_min_s * 2.0 ** min(failures, 16))
        return self._rng.uniform(longest / 2, longest)

    def soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Short work; an error that it did not expect reaches the loop's handler."""
        if self._closed:
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a link's work failed", "exception": error, "task": task})

    def read(self, link: Link | PulsarLink) -> None:
        """`link.read()` as soon as there is a place."""
        self._reads.append(link)
        if self._reading < self.settings.reads_max:
            self._reading += 1
            self.spawn(self._read())

    async def _read(self) -> None:
        try:
            while self._reads:
                await self._reads.popleft().read()
        finally:
            self._reading -= 1

    def establish(self, link: Link) -> None:
        """Finds the topic's owner in the target region and opens the link there: `link.open_on` or `link.on_ended` follows."""
        self._waiting.append(link)
        if self._establishing < self.settings.establishing_max:
            self._establishing += 1
            self.spawn(self._establish())

    async def _establish(self) -> None:
        try:
            while self._waiting:
                link = self._waiting.popleft()
                if link.ended:
                    continue
                try:
                    connection = await self._owner(link)
                except (HeliographError, OSError, TimeoutError) as error:
                    link.on_ended(cause_of(error), str(error) or type(error).__name__)
                else:
                    link.open_on(connection)
        finally:
            self._establishing -= 1

    # -- finding the owner ---------------------------------------------------------------------------------------------

    async def _owner(self, link: Link) -> LinkConnection:
        """A connection to the broker that owns the topic in the target region."""
        info = self._view.region(link.target)
        urls = (info.link_urls.get(self.region) or ([info.service_url] if info.service_url else [])) if info is not None else []
        if not urls:
            raise LinkError(Cause.NO_ADDRESS, f"region {link.target} publishes no address for links from {self.region}")
        turn = self._turn[link.target] = self._turn.get(link.target, -1) + 1 if link.failures else self._turn.get(link.target, 0)
        address, authoritative = Address.parse(urls[turn % len(urls)]), False
        for _ in range(REDIRECTS_MAX):
            connection = await self._connect(link.target, address)
            answer = await connection.client.lookup(
                link.log.topic,
                listener=f"link-{self.region}",
                authoritative=authoritative,
                timeout_s=self.settings.connect_timeout_s,
            )
            address, authoritative = answer.address(self._ssl is not None), answer.authoritative
            if not answer.redirect:
                return await self._connect(link.target, address)
        raise LinkError(Cause.LOOKUP_FAILED, f"the look-up of {link.log.topic} in {link.target} was redirected too often")

    async def _connect(self, target: str, address: Address) -> LinkConnection:
        key = (target, address)
        connection = self._connections.get(key)
        if connection is not None and not connection.closed:
            return connection
        task = self._connecting.get(key)
        if task is None:
            task = self._connecting[key] = self._loop.create_task(self._make(key))
            task.add_done_callback(lambda done: self._made(key, done))
        return await asyncio.shield(task)

    async def _make(self, key: Key) -> LinkConnection:
        client = await PulsarConnection.connect(key[1], ssl=self._ssl, timeout_s=self.settings.connect_timeout_s)
        if self._ssl is not None and peer_identity(client.certificate) != (REPLICATOR, key[0]):
            client.close()
            raise LinkError(Cause.UNAUTHORIZED, f"{key[1]} does not prove to be region {key[0]}: its link address leads to somebody else")
        connection = self._connections[key] = LinkConnection(key, client, self.clock, self._on_connection_ended, self.soon)
        return connection

    def _made(self, key: Key, task: asyncio.Task[LinkConnection]) -> None:
        self._connecting.pop(key, None)
        if not task.cancelled() and task.exception() is None:  # an error was told to those who waited
            for links in self._links.values():
                if (link := links.get(key[0])) is not None and link.cause in _UNREACHED:
                    link.poke()

    def _on_connection_ended(self, connection: LinkConnection) -> None:
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]
        self._idle_since.pop(connection.key, None)

    # -- replicated subscriptions --------------------------------------------------------------------------------------

    def _sync_subscriptions(self) -> None:
        for log in self.logs.values():
            if log.replicate_all and log.closed is None:
                log.subscriptions.enable_all()
            sync = log.synced
            if sync is not None and sync.active and log.closed is None and sync.due() and log not in self._syncs:
                self._syncs.append(log)
        while self._syncs and self._syncing < min(len(self._syncs), self.settings.syncs_max):
            self._syncing += 1
            self.spawn(self._sync())
        self.timers.after(self.settings.subscriptions_s, self._sync_subscriptions)

    async def _sync(self) -> None:
        try:
            while self._syncs:
                await self._syncs.popleft().subscriptions.round(self.clock.wall_ms())
        finally:
            self._syncing -= 1

    # -- once a second -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.clock.monotonic()
        elapsed_s, self._ticked_at = max(0.001, now - self._ticked_at), now
        for connection in list(self._connections.values()):
            if connection.closed:
                continue
            if now - connection.heard_at > self.settings.heartbeat_lost_s and connection.streams:
                connection.close(LinkError(Cause.HEARTBEAT_LOST, f"nothing heard for {self.settings.heartbeat_lost_s:g} s"))
                continue
            if connection.streams:
                self._idle_since.pop(connection.key, None)
            elif now - self._idle_since.setdefault(connection.key, now) > self.settings.idle_connection_s:
                connection.close(ConnectionLost("no stream needs it"))
                continue
            connection.beat()
        self.cluster_connections.tick()
        for link in list(self._active):
            if link.tick(elapsed_s) is False or link.ended:
                self._active.pop(link, None)
        self._plant_due()
        self.auditor.tick()
        self.timers.after(self.settings.heartbeat_s, self._tick)

    def _on_config(self, key: str) -> None:
        if key.startswith(("/regions/", "/tenants/", "/namespaces/", "/partitioned/")):
            for parked in list(self.parked):
                parked.unpark()
        if not key.startswith(("/regions/", "/clusters/")):
            return
        for links in self._links.values():
            for link in links.values():
                if link.cause is Cause.NO_ADDRESS or key == f"/clusters/{link.target}":
                    link.poke()


_UNREACHED = (Cause.UNREACHABLE, Cause.TIMEOUT, Cause.CONNECTION_LOST, Cause.HEARTBEAT_LOST)
