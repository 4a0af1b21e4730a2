"""Regions in memory: the port that the load and the checkers speak to, with an official client's calls on it.

Is: a log for each region, to which its producers append, and to which the others' messages come unless the path is cut.
What it does wrong is said in `Faulty`. Isn't: a protocol, or a broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulsar

from heliograph.cli.rest import Rest

Link = tuple[str, str]
Row = tuple[bytes, str, str]
"""Body, producer, and the region where it was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty:
    """What the regions do wrong. lost, doubled: bodies that end so are not in other regions' copies, or are there
    twice. swapped: what ends so comes behind the next one. risk: what is at risk -> what is told. forgets:
    acknowledgements are forgotten when a consumer comes again.
    """

    lost: bytes = b""
    doubled: bytes = b""
    swapped: bytes = b""
    risk: Callable[[int], int] = lambda messages: messages
    forgets: bool = False


@dataclass(slots=True)
class _Sent:
    _body: bytes
    _at: int

    def data(self) -> bytes:
        return self._body

    def message_id(self) -> Any:
        return pulsar.MessageId(-1, 1, self._at, -1)


class MemoryRegions:
    """`cut`: ways on which nothing arrives. `asked`: the calls of REST that change something. deduplication: of the
    namespace, until a call says another; None: there is no namespace yet.
    """

    def __init__(
        self, names: Sequence[str], faulty: Faulty | None = None, *, deduplication: bool | None = None
    ) -> None:
        self.names, self.faulty, self.deduplication = list(names), faulty or Faulty(), deduplication
        self.replicated: list[str] | None = None if deduplication is None else list(names)
        self.cut: set[Link] = set()
        self.asked: list[tuple[str, str, Any]] = []
        self.logs: dict[str, list[Row]] = {name: [] for name in names}
        self.acked: dict[tuple[str, str], int] = {}
        self.since = time.monotonic()
        self._held: dict[Link, list[Row]] = {}
        self._sequences: dict[str, int] = {}
        self.changed = threading.Condition(threading.RLock())

    def rest(self, region: str) -> Rest:
        return _MemoryRest(self, region)

    def client(self, region: str) -> Any:
        return _Client(self, region)

    def read_on(self, region: str, topic: str, after: Any | None) -> Iterator[Any]:
        with self.changed:
            first = 0 if after is None else after.entry_id() + 1
            yield from [_Sent(body, at) for at, (body, _, _) in enumerate(self.logs[region]) if at >= first]

    # -- what happens in it ------------------------------------------------------------------------------------------

    def published(self, region: str, producer: str, sequence: int, body: bytes) -> int:
        """Returns the position; -1: a repeat, which is not stored."""
        with self.changed:
            if self.deduplication and sequence <= self._sequences.get(producer, -1):
                return -1
            self._sequences[producer] = max(sequence, self._sequences.get(producer, -1))
            row = (body, producer, region)
            self.logs[region].append(row)
            for target in self.names:
                if target != region:
                    self._held.setdefault((region, target), []).append(row)
            self.flow()
            return len(self.logs[region]) - 1

    def flow(self) -> None:
        """What is held on ways that are not cut arrives."""
        with self.changed:
            for way, held in self._held.items():
                if way in self.cut:
                    continue
                if self.faulty.swapped and held and held[0][0].rstrip().endswith(self.faulty.swapped):
                    if len(held) < 2:
                        continue
                    held[0], held[1] = held[1], held[0]
                for row in held:
                    body = row[0].rstrip()
                    if self.faulty.lost and body.endswith(self.faulty.lost):
                        continue
                    twice = bool(self.faulty.doubled) and body.endswith(self.faulty.doubled)
                    self.logs[way[1]] += [row] * (2 if twice else 1)
                held.clear()
            self.changed.notify_all()

    def heal(self) -> None:
        self.cut.clear()
        self.flow()

    def at_risk(self, region: str) -> dict[str, dict[str, Any]]:
        age_s = time.monotonic() - self.since
        with self.changed:
            rows = {target: len(self._held.get((region, target), ())) for target in self.names if target != region}
        return {
            target: {
                "messages": self.faulty.risk(count),
                "age_s": age_s if count else 0.0,
                "connected": (region, target) not in self.cut,
                "silent_s": age_s if (region, target) in self.cut else 0.0,
            }
            for target, count in rows.items()
        }


class _MemoryRest(Rest):
    def __init__(self, regions: MemoryRegions, region: str) -> None:
        super().__init__("http://in-memory")
        self._regions, self._region = regions, region

    def at(self, admin: str = "", *, timeout_s: float = 0.0) -> Rest:
        return self

    def ask(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        regions, last = self._regions, path.rpartition("/")[2]
        if method == "GET":
            if last == "risk":
                told = regions.at_risk(self._region)
                here = {name: {**row, "age_s_max": row["age_s"]} for name, row in told.items()}
                return {"not_yet_elsewhere": told, "not_yet_here": here}
            return {"replication": regions.replicated, "deduplication": regions.deduplication}[last]
        regions.asked.append((method, path, body))
        if last == "deduplication":
            regions.deduplication = body
        return None


@dataclass(slots=True)
class _Client:
    regions: MemoryRegions
    region: str

    def create_producer(self, topic: str, name: str, **settings: Any) -> Any:
        return _Producer(self.regions, self.region, name, settings.get("initial_sequence_id", -1))

    def subscribe(self, topic: str, name: str, **settings: Any) -> Any:
        return _Consumer(self.regions, self.region, name)


@dataclass(slots=True)
class _Producer:
    regions: MemoryRegions
    region: str
    name: str
    sequence: int
    sent: list[bytes] = field(default_factory=list)

    def send_async(self, body: bytes, answered: Callable[[Any, Any], None], **fields: Any) -> None:
        self.sequence = fields.get("sequence_id", self.sequence + 1)
        at = self.regions.published(self.region, self.name, self.sequence, body)
        answered(pulsar.Result.Ok, pulsar.MessageId(-1, -1 if at < 0 else 1, at, -1))

    def close(self) -> None:
        pass


class _Consumer:
    def __init__(self, regions: MemoryRegions, region: str, name: str) -> None:
        self._regions, self._key = regions, (region, name)
        there = len(regions.logs[region])
        known = regions.acked.get(self._key)
        self._next = there if known is None else 0 if regions.faulty.forgets else known
        regions.acked.setdefault(self._key, there)

    def get_last_message_id(self) -> Any:
        return pulsar.MessageId(-1, 1, self._next - 1, -1)

    def receive(self, timeout_millis: int) -> Any:
        with self._regions.changed:
            log = self._regions.logs[self._key[0]]
            if not self._regions.changed.wait_for(lambda: len(log) > self._next, timeout_millis / 1000):
                raise pulsar.Timeout("nothing came")
            self._next += 1
            return _Sent(log[self._next - 1][0], self._next - 1)

    def acknowledge(self, message: Any) -> None:
        self._regions.acked[self._key] = message.message_id().entry_id() + 1

    def close(self) -> None:
        pass

    def unsubscribe(self) -> None:
        self._regions.acked.pop(self._key, None)
