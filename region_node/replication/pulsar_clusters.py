"""PulsarClusters: the real Pulsar clusters behind this region, as links to them and producers from them ask for them.

Is: which clusters this region is the gateway of, their partitioned topics, schemas by the version that messages name,
markers to the link that they are for. Isn't: a link (`replicator.pulsar`), or a producer
(`region_node.faces.pulsar.commands.replicator_producers`).
Source: docs/protocols/interop.md.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector

from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.configuration.configuration_records import PulsarCluster
from heliograph.model.errors import LinkError, NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import Buffer
from region_node.runtime.bounded_answers import read_at_most
from region_node.schemas.schema_registry import SchemaRegistry
from replicator.health.link_causes import Cause
from replicator.manager.link_manager import LinkManager
from replicator.pulsar.cluster_credentials import ClientCredentials, ClusterFiles, lasts_s
from replicator.pulsar.pulsar_link import PulsarLink

_TIMEOUT = ClientTimeout(total=10)
_ANSWER_BYTES_MAX = 1 << 20
"""Of another cluster or an issuer: what is asked of them takes a few KiB."""
_WRONG = (ClientError, TimeoutError, OSError, ValueError, RecursionError)
"""What an answer that does not come, or cannot be read, raises."""


class ClusterView(Protocol):
    """`global_config.view.ConfigView`, as it is asked here."""

    def cluster(self, name: str) -> PulsarCluster | None: ...

    def partitions(self, topic: str) -> int: ...


class PulsarClusters:
    """Knows the Pulsar clusters behind one broker's region. Implements `replicator.pulsar.pulsar_link.ClusterHost`."""

    def __init__(
        self,
        region: str,
        view: ClusterView,
        schemas: SchemaRegistry,
        files: ClusterFiles,
        clock: Clock,
    ) -> None:
        self._region, self._view, self._schemas, self.files, self._clock = region, view, schemas, files, clock
        self._issued: dict[ClientCredentials, tuple[str, float]] = {}
        """Tokens, and until when each is used."""
        self._asking: dict[ClientCredentials, asyncio.Task[tuple[str, float]]] = {}
        """Requests under way: whoever wants the same token meanwhile waits for the same answer."""

    # -- from the clusters ---------------------------------------------------------------------------------------------

    def cluster(self, name: str) -> PulsarCluster | None:
        found = self._view.cluster(name)
        return found if found is not None and found.gateway == self._region else None

    # -- to the clusters -----------------------------------------------------------------------------------------------

    async def schema(self, topic: str, version: bytes) -> pb.Schema | None:
        if len(version) != 8:
            return None
        (number,) = struct.unpack(">Q", version)
        for known, schema in await self._schemas.versions(TopicName.parse(topic)):
            if known.number == number:
                return schema.to_wire()
        return None

    async def prepare(self, cluster: PulsarCluster, topic: str) -> None:
        name = TopicName.parse(topic)
        if name.partition < 0 or not cluster.admin_url:
            return
        base = name.partitioned
        wanted = self._view.partitions(str(base))
        url = (
            f"{cluster.admin_url.rstrip('/')}/admin/v2/{base.domain}/{base.tenant}/{base.namespace_local}/"
            f"{quote(base.local, safe='')}/partitions"
        )
        headers = {"Content-Type": "application/json"}
        try:
            if cluster.oauth_file and not secret_may_go_to(url):
                raise NotAllowed(
                    f"cluster {cluster.name}: a token by OAuth goes by TLS only: give it an https:// --url, not "
                    f"{cluster.admin_url}"
                )
            self.files.check_destination(cluster, urlsplit(url).hostname or "")
            if token := await self.token(cluster):
                headers["Authorization"] = f"Bearer {token}"
            tls = TCPConnector(ssl=self.files.tls(cluster)) if url.startswith("https:") else None
            async with ClientSession(timeout=_TIMEOUT, headers=headers, connector=tls) as session:
                found = await _asked(session, "GET", url, None)
                have = int(found.get("partitions", 0)) if isinstance(found, dict) else 0
                if have < wanted:
                    await _asked(session, "POST" if have else "PUT", url, wanted)
        except _WRONG as error:
            raise LinkError(
                Cause.LOOKUP_FAILED,
                f"the partitions of {base} in {cluster.name} could not be seen to at {cluster.admin_url}: {error}",
            ) from error

    async def token(self, cluster: PulsarCluster) -> str:
        """By which this region is known there; "": by none. Raises NotAllowed (a file), LinkError (its issuer)."""
        if not cluster.oauth_file:
            return self.files.token(cluster)
        who = self.files.client(cluster)
        now = self._clock.monotonic()
        self._issued = {client: issued for client, issued in self._issued.items() if issued[1] > now}
        if (known := self._issued.get(who)) is not None:
            return known[0]
        asking = self._asking.get(who)
        if asking is None:
            asking = self._asking[who] = asyncio.get_running_loop().create_task(_given(who))
            asking.add_done_callback(lambda done: self._on_given(who, done, now))
        return (await asyncio.shield(asking))[0]  # whoever gives up takes the answer from nobody else

    def _on_given(self, who: ClientCredentials, done: asyncio.Task[tuple[str, float]], asked_at: float) -> None:
        self._asking.pop(who, None)
        if not done.cancelled() and done.exception() is None:  # an error was told to those who waited
            token, lasts = done.result()
            self._issued[who] = token, asked_at + lasts


async def _given(who: ClientCredentials) -> tuple[str, float]:
    """(a token, for how many seconds it is used), as its issuer gives it. Takes `_TIMEOUT` at most for each of two
    questions. Raises LinkError.
    """
    try:
        async with ClientSession(timeout=_TIMEOUT) as session:
            metadata = await _asked(session, "GET", who.metadata_url, None)
            endpoint = metadata["token_endpoint"]
            if not secret_may_go_to(endpoint):
                raise LinkError(
                    Cause.UNAUTHORIZED,
                    f"{who.issuer} names {endpoint!r:.200} for tokens: it must be https://, the secret goes there",
                )
            async with session.post(endpoint, data=who.form, allow_redirects=False) as answer:
                given = json.loads(await _text(answer))
                if answer.status >= 300:
                    why = str(given.get("error", answer.status))[:200]
                    raise LinkError(Cause.UNAUTHORIZED, f"{who.issuer} gives client {who.client} no token: {why}")
        return str(given["access_token"]), lasts_s(given.get("expires_in"))
    except (*_WRONG, KeyError, TypeError, AttributeError, NotFound) as error:
        raise LinkError(
            Cause.UNAUTHORIZED, f"{who.issuer} gave client {who.client} no token: {type(error).__name__}: {error}"[:500]
        ) from error


async def _asked(session: ClientSession, method: str, url: str, body: Any) -> Any:
    """Raises NotFound where the cluster refuses."""
    async with session.request(method, url, data=None if body is None else json.dumps(body)) as answer:
        text = await _text(answer)
        if answer.status == 404 and method == "GET":
            return {}
        if answer.status >= 300 and answer.status != 409:
            raise NotFound(f"{method} {url}: {answer.status} {text[:200]}")
        return json.loads(text) if method == "GET" else None


async def _text(answer: ClientResponse) -> str:
    """UTF-8, whatever the answer calls it. Raises ValueError where it is too long."""
    found = await read_at_most(answer, _ANSWER_BYTES_MAX)
    if found is None:
        raise ValueError(f"the answer of {answer.url.host} has more than {_ANSWER_BYTES_MAX >> 20} MiB")
    return found.decode(errors="replace")


class ClusterMarkers:
    """Gives what producers of clusters send to the links that it is for. Implements
    `region_node.faces.pulsar.session.pulsar_broker.ClusterPort`.
    """

    def __init__(self, clusters: PulsarClusters, links: LinkManager) -> None:
        self._links, self.cluster = links, clusters.cluster

    async def marker(self, topic: str, cluster: str, kind: int, payload: Buffer) -> None:
        link = self._links.links(topic).get(cluster)
        if isinstance(link, PulsarLink):
            await link.subscriptions.on_marker(kind, payload)
