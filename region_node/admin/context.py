"""Admin: what the handlers of the admin interface work with, and the few things that all of them do.

Is: reading a request's names and body, finding a topic's owner, asking other brokers, waiting for a configuration write to be seen here.
Isn't: routes or handlers (a module an area), or HTTP listening (`server`).
Invariants: a request for a topic is answered only by the broker that owns it; any other redirects there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed, NotFound
from heliograph.model.names import TopicName, bundle_of, check_name
from heliograph.model.policies import NamespacePolicies
from heliograph.runtime.clock import Clock
from region_node.ownership.records import BrokerRecord
from region_node.ownership.service import Ownership

if TYPE_CHECKING:
    from region_node.topics.service import TopicService
    from region_node.topics.topic import Topic
    from replicator.log import ReplicatedLog
    from replicator.manager import LinkManager
    from storage.ledger.autorecovery import AutoRecovery
    from storage.managed_ledger.managed_ledger import ManagedLedger

_CALL_TIMEOUT_S = 15.0
_VISIBLE_TIMEOUT_S = 5.0


class Elsewhere(HeliographError):
    """Another broker owns the topic, or shall (`authoritative`: it is not to choose again); `record` says where that one is."""

    def __init__(self, record: BrokerRecord, *, authoritative: bool = False) -> None:
        super().__init__(f"owned by {record.broker}")
        self.record, self.authoritative = record, authoritative

    def location(self, request: web.Request) -> str:
        """The same request, at that broker."""
        target = request.rel_url.update_query(authoritative="true") if self.authoritative else request.rel_url
        return self.record.admin_url.rstrip("/") + str(target)


class Malformed(HeliographError):
    """The request's body or query is not what the path wants."""


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
    version: str
    config_status: Callable[[], Awaitable[Mapping[str, Any]]]
    """What the region's configuration node knows: leader, term, stale_s."""
    recovery: AutoRecovery | None = None
    _session: ClientSession | None = field(default=None)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    # -- names --------------------------------------------------------------------------------------------------------

    def tenant(self, request: web.Request) -> str:
        return check_name("tenant", request.match_info["tenant"])

    def namespace(self, request: web.Request) -> str:
        return f"{self.tenant(request)}/{check_name('namespace', request.match_info['namespace'])}"

    def topic(self, request: web.Request) -> TopicName:
        """Raises NotAllowed for a malformed name."""
        domain = request.match_info.get("domain", "persistent")
        name = TopicName.parse(f"{domain}://{self.namespace(request)}/{request.match_info['topic']}")
        if not name.persistent:
            raise NotAllowed(f"{name}: only persistent topics are served here")
        return name

    def policies(self, namespace: str) -> NamespacePolicies:
        """Raises NotFound."""
        tenant = namespace.partition("/")[0]
        if self.view.tenant(tenant) is None:
            raise NotFound(f"Tenant {tenant} does not exist")
        policies = self.view.namespace(namespace)
        if policies is None:
            raise NotFound(f"Namespace {namespace} does not exist")
        return policies

    # -- ownership ----------------------------------------------------------------------------------------------------

    async def here(self, topic: TopicName) -> str:
        """The topic's full name, once it is sure that this broker owns it. Raises Elsewhere, NotFound."""
        self.policies(topic.namespace)
        record = await self.ownership.owner(str(topic))
        if record is not self.ownership.record:
            raise Elsewhere(record)
        return str(topic)

    async def loaded(self, topic: TopicName) -> Topic:
        """The topic, loaded here. Raises Elsewhere, NotFound."""
        return await self.topics.get(await self.here(topic), create=False)

    async def log(self, topic: TopicName) -> ReplicatedLog:
        """What lies below the topic: vector, origin, managed ledger."""
        return cast("ReplicatedLog", (await self.loaded(topic)).log)

    async def ledger(self, topic: TopicName) -> ManagedLedger:
        return (await self.log(topic)).ledger

    def bundle(self, topic: TopicName) -> int:
        return bundle_of(str(topic), self.policies(topic.namespace).bundles)

    async def call(self, record: BrokerRecord, method: str, path: str) -> Any:
        """The same interface on another broker; its JSON, or None where the answer is empty. Raises NotFound, MetadataUnavailable."""
        if self._session is None:
            self._session = ClientSession(timeout=ClientTimeout(total=_CALL_TIMEOUT_S))
        try:
            async with self._session.request(method, record.admin_url.rstrip("/") + path) as answer:
                text = await answer.text()
        except (ClientError, TimeoutError) as error:
            raise MetadataUnavailable(f"broker {record.broker} does not answer at {record.admin_url}: {error}") from error
        if answer.status == 404:
            raise NotFound(f"broker {record.broker}: {text}")
        if answer.status >= 300:
            raise MetadataUnavailable(f"broker {record.broker} answered {answer.status}: {text}")
        return json.loads(text) if text else None

    # -- configuration ------------------------------------------------------------------------------------------------

    async def seen(self, present: Callable[[], bool]) -> None:
        """Waits until a configuration write shows in this broker's copy, so that the next request here finds it. Gives up quietly."""
        if present():
            return
        loop = asyncio.get_running_loop()
        shown: asyncio.Future[None] = loop.create_future()

        def look(key: str) -> None:
            if not shown.done() and present():
                shown.set_result(None)

        stop = self.view.on_change(look)
        try:
            async with asyncio.timeout(_VISIBLE_TIMEOUT_S):
                await shown
        except TimeoutError:
            return
        finally:
            stop()


# -- bodies and queries -----------------------------------------------------------------------------------------------


async def body(request: web.Request) -> Any:
    """The JSON body, or None where there is none. Raises Malformed."""
    text = await request.text()
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise Malformed(f"the body is no JSON: {error}") from error


async def typed_body(request: web.Request, kind: type | tuple[type, ...], wanted: str) -> Any:
    """Raises Malformed unless the body is of that kind (a bool is no number)."""
    value = await body(request)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise Malformed(f"expected {wanted} in the body")
    return value


def flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def number(text: str, name: str) -> int:
    """Raises Malformed."""
    try:
        return int(text)
    except ValueError as error:
        raise Malformed(f"{name} must be a whole number, not {text!r}") from error
