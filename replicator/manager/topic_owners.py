"""Owners: finds the broker that owns a topic in another region, and keeps one connection to each, shared by the links
of all its topics.

Is: looking owners up, making connections, heartbeats on them, closing those that nobody needs. Isn't: a link, or when
it tries again (`replicator.links.link`). A look-up goes to the addresses that the target region publishes for this
source (`RegionInfo.link_urls`), under the listener name `link-<source region>`, so that each directed link can have a
network of its own.
Invariants: at most `establishing_max` look-ups in a region at a time, and no region's wait for another's; each link
that was given here hears `open_on` or `on_ended` once.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from heliograph.client.pulsar_connection import REDIRECTS_MAX, Address, BrokerConnection, ConnectionLost
from heliograph.model.errors import LinkError, NotFound, reason_of
from heliograph.model.roles.certificate_role import REPLICATOR, peer_identity
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import report_unexpected
from heliograph.wire.links.unopened_topics import UnopenedTopics
from replicator.health.incoming_stats import LOST_S, Heard
from replicator.health.link_causes import Cause, cause_of
from replicator.links.link_connection import Key, LinkConnection

if TYPE_CHECKING:
    from replicator.links.link import Link
    from replicator.manager.link_manager import LinkRegions, LinkSettings

_IDLE_S = 30.0
"""A connection that no stream needs is closed after so long."""


class Owners:
    """The connections of one broker to other regions. connect: the TLS context of links; None: no TLS.

    spawn: runs short work. soon: in the next pass of the loop. reached(region): a connection to it was made.
    """

    def __init__(
        self,
        region: str,
        view: LinkRegions,
        clock: Clock,
        settings: LinkSettings,
        connect: ssl.SSLContext | None,
        spawn: Callable[[Coroutine[Any, Any, Any]], None],
        soon: Callable[[Callable[[], None]], None],
        reached: Callable[[str], None],
    ) -> None:
        self._region, self._view, self._clock, self._settings, self._ssl = region, view, clock, settings, connect
        self._spawn, self._soon, self._reached = spawn, soon, reached
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Key, LinkConnection] = {}
        self._connecting: dict[Key, asyncio.Task[LinkConnection]] = {}
        self._idle_since: dict[Key, float] = {}
        self._waiting: defaultdict[str, deque[Link]] = defaultdict(deque)
        """Target region -> links that wait for a look-up there. By way of one that swallows packets each takes
        `connect_timeout_s`.
        """
        self._establishing: Counter[str] = Counter()
        self._next_address: dict[str, int] = {}
        self._began = Heard(clock.monotonic)
        self._ended: dict[str, Heard] = {}
        """Region -> of its connections that are gone, the one that was heard last."""

    @property
    def connections(self) -> int:
        """How many connections stand, with or without streams."""
        return len(self._connections)

    def silent_s(self, region: str) -> float:
        """For how long nothing has come from that region, on any connection, since this broker began."""
        open_ones = [connection.heard for key, connection in self._connections.items() if key[0] == region]
        return min(one.silent_s for one in (*open_ones, self._ended.get(region, self._began)))

    def establish(self, link: Link) -> None:
        self._waiting[link.target].append(link)
        if self._establishing[link.target] < self._settings.establishing_max:
            self._establishing[link.target] += 1
            self._spawn(self._establish(link.target))

    def beat(self, now: float, stood_s: float, unopened: Callable[[str], UnopenedTopics]) -> None:
        """Once a second: heartbeats; connections of which nothing is heard, or that have had no stream for a while, are
        closed. stood_s: for so long this process has stood still since the last one; what was said meanwhile lies
        unread, and the next beat sees it. unopened: by region, what it is to be told.
        """
        told = dict[str, UnopenedTopics]()
        for connection in list(self._connections.values()):
            if connection.closed:
                continue
            silent = connection.heard.silent_s >= LOST_S
            if silent and connection.streams and not stood_s:
                connection.close(LinkError(Cause.HEARTBEAT_LOST, f"nothing heard for {LOST_S:g} s"))
                continue
            if connection.streams:
                self._idle_since.pop(connection.key, None)
            elif now - self._idle_since.setdefault(connection.key, now) > _IDLE_S:
                connection.close(ConnectionLost("no stream needs it"))
                continue
            if (region := connection.key[0]) not in told:
                told[region] = unopened(region)
            connection.beat(told[region])

    def close(self) -> None:
        """Ends every connection; `tasks` are left to be cancelled."""
        for connection in list(self._connections.values()):
            connection.close(ConnectionLost("this broker stops"))

    def tasks(self) -> list[asyncio.Task[LinkConnection]]:
        return list(self._connecting.values())

    async def _establish(self, region: str) -> None:
        waiting = self._waiting[region]
        try:
            while waiting:
                link = waiting.popleft()
                if link.ended:
                    continue
                try:
                    link.open_on(await self._owner(link))
                except Exception as error:  # whatever it is, the link comes again, and the others have their turn
                    report_unexpected(error, "a link's work failed")
                    link.on_ended(cause_of(error), reason_of(error))
        finally:
            self._establishing[region] -= 1

    async def _owner(self, link: Link) -> LinkConnection:
        """A connection to the broker that owns the topic in the target region."""
        info = self._view.region(link.target)
        urls = (
            (info.link_urls.get(self._region) or ([info.service_url] if info.service_url else []))
            if info is not None
            else []
        )
        if not urls:
            raise LinkError(
                Cause.NO_ADDRESS, f"region {link.target} publishes no address for links from {self._region}"
            )
        index = self._next_address[link.target] = (
            self._next_address.get(link.target, -1) + 1 if link.failures else self._next_address.get(link.target, 0)
        )
        try:
            address, authoritative = Address.parse(urls[index % len(urls)]), False
        except NotFound as error:
            raise LinkError(Cause.NO_ADDRESS, f"region {link.target}: {error}") from error
        for _ in range(REDIRECTS_MAX):
            connection = await self._connect(link.target, address)
            answer = await connection.client.lookup(
                link.log.topic,
                listener=f"link-{self._region}",
                authoritative=authoritative,
                timeout_s=self._settings.connect_timeout_s,
            )
            address, authoritative = answer.address(self._ssl is not None), answer.authoritative
            if not answer.redirect:
                return await self._connect(link.target, address)
        raise LinkError(
            Cause.LOOKUP_FAILED, f"the look-up of {link.log.topic} in {link.target} was redirected too often"
        )

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
        client = await BrokerConnection.connect(key[1], ssl=self._ssl, timeout_s=self._settings.connect_timeout_s)
        if self._ssl is not None and peer_identity(client.certificate) != (REPLICATOR, key[0]):
            client.close()
            raise LinkError(
                Cause.UNAUTHORIZED,
                f"{key[1]} does not prove to be region {key[0]}: its link address leads to somebody else",
            )
        connection = self._connections[key] = LinkConnection(
            key, client, self._clock, self._on_ended, self._soon, self._settings.feature_level
        )
        return connection

    def _made(self, key: Key, task: asyncio.Task[LinkConnection]) -> None:
        self._connecting.pop(key, None)
        if not task.cancelled() and task.exception() is None:  # an error was told to those who waited
            self._reached(key[0])

    def _on_ended(self, connection: LinkConnection) -> None:
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]
        region, heard = connection.key[0], connection.heard
        if (before := self._ended.get(region)) is None or before.at < heard.at:
            self._ended[region] = heard
        self._idle_since.pop(connection.key, None)
