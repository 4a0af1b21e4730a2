"""Reads topics' local copies as blocks of runs, from a region's admin ports: what topics held at a moment, and any
ranges of them.

Is: a blocking client, cheap to import in a Spark worker; it remembers which broker owns a topic. Isn't: a consumer; it
acknowledges nothing.
What it asks, many topics at once: docs/protocols/admin.md, "Reading". An answer of blocks names the end of each range,
so that a broken one is seen.
"""

from __future__ import annotations

import ssl
import time
import urllib.parse
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, NamedTuple

from heliograph.client.admin_http import Http
from heliograph.client.bookie_reader import BookieRange, BookiesUnread, read_bookies
from heliograph.client.object_reader import ObjectRange, ObjectUnread, fill, read_object
from heliograph.model.coordinates import format_coordinate, parse_coordinate
from heliograph.model.errors import CorruptData, EntriesLost, HeliographError, MetadataUnavailable, NotFound, Trimmed
from heliograph.model.positions import Position
from heliograph.model.topic_names import TopicName
from heliograph.wire.run import Origin, Run

_BLOCK_BYTES_MAX = 64 << 20
_TOPICS_A_REQUEST = 500
_PLACES_A_REQUEST = 1000
PATIENCE_S = 30.0
_PAUSES_S = (0.0, 0.05, 0.2, 0.5)
_READING = "/heliograph/v1/reading"
Range = tuple[str, int, int, int]
"""(topic, ledger, first entry, last entry), both included."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """What a topic held when it was asked.

    ledgers: (ledger, entries, bytes), in order, cut at `last`.  own: the origin of entries that are first published
    there now.
    regions: region number -> name.  past: earlier own origins, each with its last position.
    trimmed: whether something was ever deleted from its front.  messages: in all of the ledgers, about.
    """

    topic: str
    ledgers: tuple[tuple[int, int, int], ...]
    last: Position
    own: Origin
    regions: dict[int, str]
    past: tuple[tuple[Origin, Position], ...] = ()
    trimmed: bool = True
    messages: int = 0

    @property
    def region(self) -> str:
        """The name of the region that was asked."""
        return self.regions.get(self.own[0], str(self.own[0]))

    def origin_at(self, position: Position) -> Origin:
        """Returns the origin of the entry at `position`, which was first published in this region."""
        return next((origin for origin, through in self.past if position <= through), self.own)


@dataclass(frozen=True, slots=True)
class CoordinatePlace:
    """Where a coordinate lies in a region: `replicator.log.coordinate_lookup.Found`, as the region tells it."""

    status: str
    position: Position | None
    following: Position | None


class OriginHoldings(NamedTuple):
    """Says what a region that gets an origin's entries holds of them. missing: (after, through], and the reason, where
    one is known.
    """

    through: Position | None
    missing: tuple[tuple[Position, Position, str | None], ...]


class BlockReader:
    """Talks to one region. Raises NotFound, MetadataUnavailable (nobody answers), CorruptData."""

    def __init__(
        self,
        admin_url: str,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        *,
        patience_s: float = PATIENCE_S,
        bookies: bool = True,
    ) -> None:
        """admin_url: of one broker, or of several, separated by commas. token: of a role that may consume the topics,
        where the region wants one.

        patience_s: how long nobody may answer, or a topic be on its way to another broker, before that is an error.
        bookies: they may be asked for entries; else only brokers and the object store are.
        """
        self._http = Http(admin_url, token=token, tls=tls)
        self._patience_s, self._bookies = patience_s, bookies
        self._owners: dict[str, str] = {}
        """By topic, the admin URL of the broker that owns it, as was last said; "": of the one that was named. Any
        broker is asked about others.
        """

    def renew(self, token: str) -> None:
        """Takes a new token of the same role, from the next request on: tokens run out."""
        self._http.renew(token)

    def _get(self, path: str, topic: str = "") -> Any:
        """The answer's JSON, of the topic's owner where one is known. Waits where nobody answers, as long as there is
        patience.
        """
        waiting = _Waiting(self._patience_s)
        while True:
            try:
                return self._http.json("GET", path, base=self._owners.get(topic, ""))
            except MetadataUnavailable as error:
                self._forget([topic])
                waiting.reason = error
                waiting.pause(fewer=False)

    # -- names --------------------------------------------------------------------------------------------------------

    def topics(self, namespace: str) -> list[str]:
        """Full names of the persistent topics of a namespace, each partition by itself."""
        return sorted(self._get(f"/admin/v2/persistent/{namespace}"))

    def partitions(self, topic: str) -> int:
        """0 where the topic is not partitioned."""
        return int(self._get(f"{_admin_path(topic)}/partitions").get("partitions", 0))

    def schemas(self, topic: str) -> list[dict[str, Any]]:
        """The topic's registered schemas, oldest first: `version`, `type`, `data` (text), `properties`; empty where it
        has none.
        """
        name = TopicName.parse(topic).partitioned
        path = (
            f"/admin/v2/schemas/{name.tenant}/{name.namespace_local}/{urllib.parse.quote(name.local, safe='')}/schemas"
        )
        try:
            return list(self._get(path)["getSchemaResponses"])
        except NotFound:
            return []

    # -- many topics at once ------------------------------------------------------------------------------------------

    def snapshot(self, topic: str) -> TopicSnapshot:
        """Returns what one topic holds now. Raises NotFound where the region does not have it."""
        name = str(TopicName.parse(topic))
        found = self.snapshots([name])
        if name not in found:
            raise NotFound(f"{self._http.bases[0]}: {name} is not there")
        return found[name]

    def snapshots(self, topics: Collection[str]) -> dict[str, TopicSnapshot]:
        """By full name; a topic that is not there is left out."""
        found: dict[str, TopicSnapshot] = {}
        for answer in self._at_owners("snapshots", dict.fromkeys(topics), {}, "topics", list):
            regions = {int(number): name for number, name in answer["regions"].items()}
            for topic, body in answer["found"].items():
                found[topic] = _snapshot(topic, body, regions)
        return found

    def vectors(self, positions: Mapping[str, Position]) -> dict[str, dict[Origin, Position]]:
        """By topic, and by origin, the last coordinate at or below its position."""
        found: dict[str, dict[Origin, Position]] = {}
        for answer in self._at_owners("vectors", _texts(positions), {}, "positions", dict):
            found |= {topic: _vector(rows) for topic, rows in answer["found"].items()}
        return found

    def hold(self, subscription: str, positions: Mapping[str, Position]) -> None:
        """A durable subscription on each topic stands before its position, and keeps what is behind it; it is made
        where it is not there.

        A topic that is not there is passed over.
        """
        for _ in self._at_owners("hold", _texts(positions), {"subscription": subscription}, "positions", dict):
            pass

    def held(self, subscription: str, topics: Collection[str]) -> dict[str, Position]:
        """By topic that has the durable subscription, the first position that it has not acknowledged."""
        found: dict[str, Position] = {}
        for answer in self._at_owners("held", dict.fromkeys(topics), {"subscription": subscription}, "topics", list):
            found |= {topic: (at[0], at[1]) for topic, at in answer["found"].items()}
        return found

    def _at_owners(
        self, verb: str, wanted: Mapping[str, Any], fixed: dict[str, Any], field: str, shape: type
    ) -> Iterator[dict[str, Any]]:
        """Asks about each topic where it is owned; answers name those that are elsewhere, or cannot be asked at this
        moment.
        """
        left, waiting = dict(wanted), _Waiting(self._patience_s)
        while left:
            later: dict[str, Any] = {}
            for base, names in self._by_owner(left).items():
                for start in range(0, len(names), _TOPICS_A_REQUEST):
                    some = {name: wanted[name] for name in names[start : start + _TOPICS_A_REQUEST]}
                    try:
                        answer = self._http.json("POST", f"{_READING}/{verb}", {**fixed, field: shape(some)}, base=base)
                    except MetadataUnavailable as error:
                        self._forget(some)
                        later |= some
                        waiting.reason = error
                        continue
                    for name, why in answer.get("refused", {}).items():
                        raise HeliographError(f"{name}: {why}")
                    waiting.reason = MetadataUnavailable(
                        "; ".join([f"{name}: {why}" for name, why in answer["later"].items()][:3])
                    )
                    yield answer
                    self._owners |= dict.fromkeys([*answer["found"], *answer["missing"]], base)
                    for owner, moved in answer["elsewhere"].items():
                        self._owners |= dict.fromkeys(moved, owner)
                        later |= {name: wanted[name] for name in moved}
                    self._forget(answer["later"])
                    later |= {name: wanted[name] for name in answer["later"]}
            if later:
                waiting.pause(fewer=len(later) < len(left))
            left = later

    def _by_owner(self, topics: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for topic in topics:
            found.setdefault(self._owners.get(topic, ""), []).append(topic)
        return found

    def _forget(self, topics: Iterable[str]) -> None:
        """Their broker is gone, or gives them away: any other one knows more."""
        for topic in topics:
            self._owners.pop(topic, None)

    # -- one topic ----------------------------------------------------------------------------------------------------

    def vector(self, topic: str, at: Position | None = None) -> dict[Origin, Position]:
        """By origin, the last coordinate that the region holds; at: that lies at or below this position there. Raises
        HeliographError of an old broker.
        """
        body = self._get(f"{_path(topic)}/vector" + ("" if at is None else f"?at={at[0]}:{at[1]}"), topic)
        if at is not None and "at" not in body:
            raise HeliographError(
                f"{self._http.bases[0]} is of a version that does not tell the vector of a position: upgrade its "
                "brokers before the reader"
            )
        return _vector(body["vector"])

    def told(self, topic: str, region: str) -> dict[Origin, OriginHoldings]:
        """What that region, which is asked, says of each origin: through where it has taken it over, and what it names
        as missing below. Raises NotFound.
        """
        body = self._get(f"{_path(topic)}/vectors", topic)
        found: dict[Origin, OriginHoldings] = {}
        for row in body["regions"].get(region, {}).get("origins", ()):
            named = tuple(
                ((r["after"][0], r["after"][1]), (r["through"][0], r["through"][1]), r["reason"])
                for r in row.get("reasons", ())
            )
            through = row["through"]
            found[parse_coordinate(f"{row['origin']}:0:0")[0]] = OriginHoldings(
                None if through is None else (through[0], through[1]), named
            )
        return found

    def find(self, topic: str, origin: Origin, at: Position) -> CoordinatePlace:
        """Where the entry lies in the region that was first published as `at` of `origin`, or the next one of that
        origin.
        """
        body = self._get(f"{_path(topic)}/positions/{format_coordinate((origin, at))}", topic)
        position, following = (
            None if found is None else (found[0], found[1]) for found in (body["position"], body["following"])
        )
        return CoordinatePlace(body["status"], position, following)

    def position_at_time(self, topic: str, at_ms: int) -> Position | None:
        """Returns where the first message lies that was published at or after that time; None: there is none yet."""
        body = self._get(f"{_admin_path(topic)}/messageid/{at_ms}", topic)
        return None if body is None or body["ledgerId"] < 0 else (body["ledgerId"], body["entryId"])

    # -- entries ------------------------------------------------------------------------------------------------------

    def runs(
        self, ranges: Sequence[Range], *, placed: Collection[int] = (), may_lose: bool = True, may_go: bool = False
    ) -> Iterator[tuple[int, int, int, Run]]:
        """(number of the range, ledger, first entry, run), strictly in the order of the ranges, whoever owns their
        topics; memory stays at a block a broker.

        placed: numbers of ranges of which it is worth asking where they lie: those in closed ledgers, which may be
        offloaded, and large ones. They are read from their objects, or from bookies, without a broker, where the broker
        says so.
        What a broker broke off is read on where it stopped, and what an object or the bookies do not give is asked of a
        broker; so is a range from its first entry of a transaction on, as only brokers know what was committed.
        may_lose: what was trimmed meanwhile is left out; else it raises Trimmed. may_go: the same of a topic that was
        deleted; else NotFound.
        Raises CorruptData, MetadataUnavailable.
        """
        left, waiting = dict(enumerate(ranges)), _Waiting(self._patience_s)
        unknown = dict.fromkeys(part[0] for part in ranges if part[0] not in self._owners)
        if len(unknown) > 1:
            self.snapshots(unknown)  # one request tells all their owners
        places = self._places({number: left[number] for number in placed})
        streams: dict[str, _Stream] = {}
        try:
            for number in range(len(ranges)):
                if number in places:
                    yield from self._from_place(places.pop(number), left, number)
                while number in left:
                    try:
                        yield from self._from_broker(streams, left, number, places, may_lose=may_lose, may_go=may_go)
                    except MetadataUnavailable as error:
                        waiting.reason = error
                    if number in left:
                        before = left[number]
                        self._drop(streams, before[0])
                        waiting.pause(fewer=before != waiting.last)
                        waiting.last = before
        finally:
            for stream in streams.values():
                stream.http.close()

    def _from_broker(
        self,
        streams: dict[str, _Stream],
        left: dict[int, Range],
        number: int,
        places: Collection[int],
        *,
        may_lose: bool,
        may_go: bool,
    ) -> Iterator[tuple[int, int, int, Run]]:
        """Takes the range from `left` once it was read; where its topic is owned elsewhere it stays, and that is
        remembered.
        """
        from heliograph.wire.block import (
            decode_block,
        )  # its checksums take a while to import, and who asks for positions alone wants none

        topic = left[number][0]
        owner = self._owners.get(topic, "")
        stream = streams.get(owner)
        if stream is None or not stream.numbers or stream.numbers[0] != number:
            if stream is not None:
                stream.http.close()
            some = [n for n in left if n >= number and n not in places and self._owners.get(left[n][0], "") == owner][
                :_TOPICS_A_REQUEST
            ]
            http = self._http.another()
            answer = http.open("POST", f"{_READING}/blocks", {"ranges": [left[n] for n in some]}, base=owner)
            stream = streams[owner] = _Stream(http, answer, deque(some))
        try:
            for block in _blocks(stream.answer):
                if isinstance(block, str):  # its topic is owned there, and nothing more of this range follows
                    self._owners[topic] = block
                    stream.numbers.popleft()
                    return
                ledger, first, run = decode_block(block)
                yield number, ledger, first, run
                self._read(left, number, first + run.count)
        except NotFound:
            if not may_go:
                raise
            left.pop(number, None)
        except EntriesLost as lost:
            if not may_lose:
                raise
            stream.numbers.popleft()
            self._read(left, number, lost.last + 1)  # what is behind it is asked for anew
            return
        stream.numbers.popleft()
        gone = left.pop(number, None)
        if gone is not None and not may_lose:
            raise Trimmed(
                f"{topic}: entries {gone[2]} to {gone[3]} of ledger {gone[1]} were deleted before they were read; see "
                "its retention, time to live, and quotas,"
                " or set fail_on_data_loss to false"
            )

    @staticmethod
    def _read(left: dict[int, Range], number: int, through: int) -> None:
        """Entries before `through` were given. With the last one the range is done, whether or not the answer's mark
        follows.
        """
        topic, ledger, _, last = left[number]
        if through > last:
            del left[number]
        else:
            left[number] = (topic, ledger, through, last)

    def _drop(self, streams: dict[str, _Stream], topic: str) -> None:
        """Closes the answer in which a range broke: its broker is asked anew, if it is still the owner."""
        for owner, stream in list(streams.items()):
            if owner == self._owners.get(topic, "") or not stream.numbers:
                stream.http.close()
                del streams[owner]

    def _places(self, ranges: Mapping[int, Range]) -> dict[int, ObjectRange | BookieRange]:
        """Where those of them lie that need no broker to be read."""
        found, parts = dict[int, ObjectRange | BookieRange](), list(ranges.items())
        for start in range(0, len(parts), _PLACES_A_REQUEST):
            found |= self._some_places(dict(parts[start : start + _PLACES_A_REQUEST]))
        return found

    def _some_places(self, ranges: Mapping[int, Range]) -> dict[int, ObjectRange | BookieRange]:
        by_topic: dict[str, list[tuple[int, Range]]] = {}
        for number, part in ranges.items():
            by_topic.setdefault(part[0], []).append((number, part))
        found: dict[int, ObjectRange | BookieRange] = {}
        wanted = {topic: [part[1:] for _, part in parts] for topic, parts in by_topic.items()}
        for answer in self._at_owners("objects", wanted, {"bookies": self._bookies}, "ranges", dict) if wanted else ():
            region, authority = answer.get("region", ""), answer.get("authority", "")
            for topic, places in answer["found"].items():
                for (number, part), place in zip(by_topic[topic], places, strict=True):
                    if place is not None and "permit" in place:
                        found[number] = BookieRange.of(part[1], place, region, authority)
                    elif place is not None:
                        found[number] = ObjectRange(
                            place["url"], part[1], place["first"], place["start"], place["stop"]
                        )
        return found

    def _from_place(
        self, where: ObjectRange | BookieRange, left: dict[int, Range], number: int
    ) -> Iterator[tuple[int, int, int, Run]]:
        _, ledger, first, last = left[number]
        try:
            if isinstance(where, ObjectRange):
                runs = read_object(where, first, last)
            else:
                runs = read_bookies(where, first, min(last, where.last), hash((ledger, first)))
            with closing(runs):
                for at, run in runs:
                    if run.transaction is not None:
                        return  # whether it was committed, the broker knows: it lies nowhere in the entries themselves
                    yield number, ledger, at, run
                    self._read(left, number, at + run.count)
        except (ObjectUnread, BookiesUnread):
            return  # a broker may have it yet, or say why not

    def close(self) -> None:
        self._http.close()


class _Stream(NamedTuple):
    """An answer of blocks that is being read. numbers: of the ranges that still come, in their order."""

    http: Http
    answer: Any
    numbers: deque[int]


class _Waiting:
    """Pauses between requests, and when there were enough. `reason`: the last thing that went wrong."""

    def __init__(self, patience_s: float) -> None:
        self.reason: HeliographError = MetadataUnavailable("a topic moves from broker to broker; try again")
        self.last: Any = None
        self._patience_s, self._since, self._tries = patience_s, time.monotonic(), 0

    def pause(self, *, fewer: bool) -> None:
        """fewer: something was done since the last one. Raises `reason` after all patience without that."""
        if fewer:
            self._since, self._tries = time.monotonic(), 0
        elif time.monotonic() - self._since > self._patience_s:
            raise self.reason
        time.sleep(_PAUSES_S[min(self._tries, len(_PAUSES_S) - 1)])
        self._tries += 1


def _blocks(answer: Any) -> Iterator[bytearray | str]:
    """The blocks of one range, up to the mark of its end; the owner's admin URL where the range was not read. Raises
    NotFound, EntriesLost.
    """
    while True:
        head = _exactly(answer, bytearray(8), 0)
        size = int.from_bytes(head[4:8], "big")
        if head[0] == 0:
            if head[1] == 1:
                yield _exactly(answer, bytearray(size), 0).decode()
            elif head[1] == 2:
                raise NotFound(_exactly(answer, bytearray(size), 0).decode())
            elif head[1] == 3:
                ledger, first, last = map(int, _exactly(answer, bytearray(size), 0).split())
                raise EntriesLost(ledger, first, last)
            return
        if not 48 <= size <= _BLOCK_BYTES_MAX:
            raise CorruptData(f"a block of {size} bytes")
        block = bytearray(size)
        block[:8] = head
        yield _exactly(answer, block, 8)


def _exactly(answer: Any, into: bytearray, at: int) -> bytearray:
    try:
        return fill(answer.readinto, into, at)
    except (OSError, EOFError, ValueError, HTTPException) as error:
        raise MetadataUnavailable(f"the broker broke off in the middle of an answer: {error}") from error


def _texts(positions: Mapping[str, Position]) -> dict[str, str]:
    return {topic: f"{at[0]}:{at[1]}" for topic, at in positions.items()}


def _snapshot(topic: str, body: Mapping[str, Any], regions: dict[int, str]) -> TopicSnapshot:
    return TopicSnapshot(
        topic=topic,
        ledgers=tuple((r["ledger"], r["entries"], r["size_bytes"]) for r in body["ledgers"]),
        last=(body["last_confirmed"][0], body["last_confirmed"][1]),
        own=(body["origin"][0], body["origin"][1], body["origin"][2]),
        regions=regions,
        past=tuple(((o[0], o[1], o[2]), (at[0], at[1])) for o, at in body.get("past", ())),
        trimmed=body.get("trimmed", True),
        messages=body.get("messages", 0),
    )


def _vector(rows: Iterable[Mapping[str, Any]]) -> dict[Origin, Position]:
    return {(r["origin"][0], r["origin"][1], r["origin"][2]): (r["prefix"][0], r["prefix"][1]) for r in rows}


def _path(topic: str) -> str:
    name = TopicName.parse(topic)
    return f"/heliograph/v1/topics/{name.tenant}/{name.namespace_local}/{urllib.parse.quote(name.local, safe='')}"


def _admin_path(topic: str) -> str:
    name = TopicName.parse(topic)
    return f"/admin/v2/{name.domain}/{name.tenant}/{name.namespace_local}/{urllib.parse.quote(name.local, safe='')}"
