"""Reads a topic's local copy as blocks of runs, from a region's admin port: what the topic held at a moment, and any range of it.

Is: a blocking client over the standard library, cheap to import in a Spark worker. Isn't: a consumer; it acknowledges nothing and keeps nothing.
`GET /heliograph/v1/topics/{tenant}/{namespace}/{topic}/snapshot` answers JSON; `…/blocks?first=L:E&last=L:E` answers blocks
(`heliograph.wire.run`), one behind another. A broker that does not own the topic redirects to the one that does.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from heliograph.model.coordinates import format_coordinate
from heliograph.model.errors import CorruptData, HeliographError, MetadataUnavailable, NotFound
from heliograph.model.names import TopicName
from heliograph.model.positions import Position
from heliograph.wire.run import Origin, Run, decode_block

_TIMEOUT_S = 60
_HOPS_MAX = 5
_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """What a topic held when it was asked.

    ledgers: (ledger, entries, bytes), in order, cut at `last`.  own: the origin of entries that are first published there now.
    regions: region number -> name.  past: earlier own origins, each with its last position.
    trimmed: whether something was ever deleted from its front.
    """

    topic: str
    ledgers: tuple[tuple[int, int, int], ...]
    last: Position
    own: Origin
    regions: dict[int, str]
    past: tuple[tuple[Origin, Position], ...] = ()
    trimmed: bool = True

    @property
    def region(self) -> str:
        """The name of the region that was asked."""
        return self.regions.get(self.own[0], str(self.own[0]))

    def origin_at(self, position: Position) -> Origin:
        """Of an entry that was first published there, at `position`."""
        return next((origin for origin, through in self.past if position <= through), self.own)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where a coordinate lies in a region: `replicator.lookup.Found`, as the region tells it."""

    status: str
    position: Position | None
    following: Position | None


class BlockReader:
    """Talks to one region. Raises NotFound, MetadataUnavailable (nobody answers), CorruptData."""

    def __init__(self, admin_url: str, token: str = "") -> None:
        """token: of a role that may consume the topics, where the region wants one."""
        self._base = admin_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def _open(self, path: str, method: str = "GET", body: Any = None, *, at: str = "", hops: int = 0) -> Any:
        """at: a whole URL that a broker redirected to."""
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": "application/json"} if data is not None else self._headers
        request = urllib.request.Request(at or self._base + path, data, headers, method=method)
        try:
            return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            target = error.headers.get("Location", "")
            if error.code == 307 and target and hops < _HOPS_MAX:  # the library follows these for GET only
                error.close()
                return self._open(path, method, body, at=target, hops=hops + 1)
            reason = error.read().decode(errors="replace").strip()
            if error.code == 404:
                raise NotFound(f"{self._base}{path}: {reason}") from error
            raise HeliographError(f"{self._base}{path}: {error.code} {reason}") from error
        except (urllib.error.URLError, TimeoutError) as error:
            raise MetadataUnavailable(f"{self._base} does not answer ({error}); is the region up, and is this its admin URL?") from error

    def topics(self, namespace: str) -> list[str]:
        """Full names of the persistent topics of a namespace, each partition by itself."""
        with self._open(f"/admin/v2/persistent/{namespace}") as answer:
            return sorted(json.load(answer))

    def hold(self, topic: str, subscription: str, position: Position) -> None:
        """A durable subscription stands before `position`, and keeps what is behind it; it is made where it is not there. Raises NotFound."""
        name = TopicName.parse(topic)
        path = f"/admin/v2/{name.domain}/{name.tenant}/{name.namespace_local}/{urllib.parse.quote(name.local, safe='')}/subscription"
        path = f"{path}/{urllib.parse.quote(subscription, safe='')}"
        place = {"ledgerId": position[0], "entryId": position[1], "partitionIndex": name.partition}
        try:
            self._open(f"{path}/resetcursor", "POST", place).close()
        except NotFound:
            self._open(path, "PUT", place).close()
            self._open(f"{path}/resetcursor", "POST", place).close()

    def partitions(self, topic: str) -> int:
        """0 where the topic is not partitioned."""
        name = TopicName.parse(topic)
        with self._open(f"/admin/v2/{name.domain}/{name.tenant}/{name.namespace_local}/{urllib.parse.quote(name.local, safe='')}/partitions") as answer:
            return int(json.load(answer).get("partitions", 0))

    def snapshot(self, topic: str) -> TopicSnapshot:
        with self._open(f"{_path(topic)}/snapshot") as answer:
            body = json.load(answer)
        return TopicSnapshot(
            topic=str(TopicName.parse(topic)),
            ledgers=tuple((r["ledger"], r["entries"], r["size_bytes"]) for r in body["ledgers"]),
            last=(body["last_confirmed"][0], body["last_confirmed"][1]),
            own=(body["origin"][0], body["origin"][1], body["origin"][2]),
            regions={int(number): name for number, name in body["regions"].items()},
            past=tuple(((o[0], o[1], o[2]), (at[0], at[1])) for o, at in body.get("past", ())),
            trimmed=body.get("trimmed", True),
        )

    def vector(self, topic: str, at: Position | None = None) -> dict[Origin, Position]:
        """By origin, the last coordinate that the region holds; at: that lies at or below this position there. Raises HeliographError of an old broker."""
        with self._open(f"{_path(topic)}/vector" + ("" if at is None else f"?at={at[0]}:{at[1]}")) as answer:
            body = json.load(answer)
        if at is not None and "at" not in body:
            raise HeliographError(f"{self._base} is of a version that does not tell the vector of a position: upgrade its brokers before the reader")
        rows = body["vector"]
        return {(r["origin"][0], r["origin"][1], r["origin"][2]): (r["prefix"][0], r["prefix"][1]) for r in rows}

    def find(self, topic: str, origin: Origin, at: Position) -> Lookup:
        """Where the entry lies in the region that was first published as `at` of `origin`, or the next one of that origin."""
        with self._open(f"{_path(topic)}/positions/{format_coordinate((origin, at))}") as answer:
            body = json.load(answer)
        position, following = (None if found is None else (found[0], found[1]) for found in (body["position"], body["following"]))
        return Lookup(body["status"], position, following)

    def runs(self, topic: str, first: Position, last: Position) -> Iterator[tuple[int, int, Run]]:
        """(ledger, first entry, run) from `first` to `last`, both included, in order; memory stays at a few blocks."""
        path = f"{_path(topic)}/blocks?first={first[0]}:{first[1]}&last={last[0]}:{last[1]}"
        with self._open(path) as answer:
            pending = bytearray()
            while True:
                while len(pending) >= 8:
                    size = int.from_bytes(pending[4:8], "big")
                    if size > _BLOCK_BYTES_MAX or size < 48:
                        raise CorruptData(f"{topic}: a block of {size} bytes")
                    if len(pending) < size:
                        break
                    block = bytes(pending[:size])
                    del pending[:size]
                    yield decode_block(block)
                chunk = answer.read(_CHUNK_BYTES)
                if not chunk:
                    break
                pending += chunk
        if pending:
            raise CorruptData(f"{topic}: the answer ended inside a block")


def _path(topic: str) -> str:
    name = TopicName.parse(topic)
    return f"/heliograph/v1/topics/{name.tenant}/{name.namespace_local}/{urllib.parse.quote(name.local, safe='')}"
