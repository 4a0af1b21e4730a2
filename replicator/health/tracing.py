"""Tracing: a message's way through the regions, as spans of a few chosen messages. A core.

Is: which entries are chosen, the ids of their traces and spans, and the spans of publish, store, link.out, link.in, and
dispatch. Isn't: an exporter (`heliograph.runtime.span_export`), or anything that travels with a message.
Invariants: every region chooses the same entries, and gives their spans the same ids, without a byte on the wire: an
entry is chosen by its coordinate, or by the client's own `traceparent` (a property of the entry) where that says that
it is sampled; ids are digests of the trace and of where the span was made. Where tracing is off there is no such
object, and the data path asks once a run whether there is.
Source: W3C Trace Context; docs/operating/tracing.md.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from heliograph.model.coordinates import Origin
from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Buffer, Run

_NAME = "traceparent"
_LITERAL = re.compile(_NAME.encode())
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z")
_SAMPLED = 1
_PENDING_MAX = 4096


@dataclass(frozen=True, slots=True)
class Span:
    """trace: 128 bits; span, parent: 64 bits, parent 0 is none. Times in ns since 1970. remote: its parent was made by
    another process.
    """

    trace: int
    span: int
    parent: int
    name: str
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, str | int]
    remote: bool = False


_Key = tuple[str, str, Origin, Position]
"""(topic, target, coordinate) of a send that waits for its receipt."""


class Chosen(NamedTuple):
    """An entry: its coordinate, its trace, and the client's own span (0: none)."""

    origin: Origin
    at: Position
    trace: int
    client: int


class _Sent(NamedTuple):
    begin_ns: int
    origin: Origin
    at: Position
    trace: int


class Tracing:
    """Makes the spans of one broker. one_in: of so many entries, one. emit: takes each span; must not block. `dropped`:
    sends that were never receipted, or too many.
    """

    def __init__(self, region: str, one_in: int, now_ns: Callable[[], int], emit: Callable[[Span], None]) -> None:
        assert one_in >= 1
        self.region, self.now_ns, self.dropped = region, now_ns, 0
        self._one_in, self._emit = one_in, emit
        self._sent: OrderedDict[_Key, _Sent] = OrderedDict()
        self._links: dict[tuple[str, str], dict[_Key, None]] = {}
        """(topic, target) -> those of them that went there: a receipt is no business of the others."""

    # -- which entries ------------------------------------------------------------------------------------------------

    def chosen(self, run: Run, spans: Sequence[tuple[int, int, int]], origin: Origin) -> Iterator[Chosen]:
        """spans: coordinates of the run's entries."""
        parents = self._parents(run)
        start = 0
        for ledger, first, count in spans:
            salt = _digest(8, *origin, ledger)
            own = set(range((-salt - first) % self._one_in, count, self._one_in))
            for index in sorted(own | {at - start for at in parents if start <= at < start + count}):
                at = ledger, first + index
                trace, client = parents.get(start + index, (0, 0))
                yield Chosen(origin, at, trace or _digest(16, *origin, *at), client)
            start += count

    @staticmethod
    def _parents(run: Run) -> dict[int, tuple[int, int]]:
        """Index -> (trace, span) that a client gave, and wants sampled."""
        if not any(_LITERAL.search(part) for part in ([run.body] if run.body is not None else run.parts)):
            return {}
        found: dict[int, tuple[int, int]] = {}
        for index, part in enumerate(run.parts):
            if _LITERAL.search(part):
                given = _PARENT.match(_property(part))
                if given is not None and int(given[3], 16) & _SAMPLED and int(given[1], 16) and int(given[2], 16):
                    found[index] = int(given[1], 16), int(given[2], 16)
        return found

    # -- what happens to them -----------------------------------------------------------------------------------------

    def published(
        self, topic: str, origin: Origin, run: Run, segments: Sequence[tuple[int, int, int]], begin_ns: int
    ) -> None:
        """A run of local producers is durable; segments: [(count, ledger, first entry)], ledger -1: duplicates."""
        now, start = self.now_ns(), 0
        for count, ledger, first in segments:
            if ledger >= 0:
                for one in self.chosen(run.cut(start, start + count), ((ledger, first, count),), origin):
                    root = self._span(one.trace, "publish", self.region)
                    more = self._attributes(topic, one)
                    self._emit(Span(one.trace, root, one.client, "publish", begin_ns, now, more, one.client > 0))
                    self._emit(
                        Span(one.trace, self._span(one.trace, "store", self.region), root, "store", begin_ns, now, more)
                    )
            start += count

    def sent(self, topic: str, target: str, run: Run) -> None:
        """A run goes out on a link; it has its coordinates."""
        assert run.origin is not None
        now = self.now_ns()
        for one in self.chosen(run, run.spans, run.origin):
            key = topic, target, one.origin, one.at
            self._sent.pop(key, None)
            self._sent[key] = _Sent(now, one.origin, one.at, one.trace)
            self._links.setdefault(key[:2], {})[key] = None
            if len(self._sent) > _PENDING_MAX:
                self._take(next(iter(self._sent)))
                self.dropped += 1

    def receipted(self, topic: str, target: str, through: Sequence[tuple[Origin, Position]]) -> None:
        """The target has everything of those origins durably, up to there."""
        sent = self._links.get((topic, target))
        if sent is None:
            return
        upto, now = dict(through), self.now_ns()
        for key in [key for key in sent if key[2] in upto and key[3] <= upto[key[2]]]:
            one = self._take(key)
            span = self._span(one.trace, "link.out", self.region, target)
            parent = self._span(one.trace, "store", self.region)
            more = {**self._attributes(topic, Chosen(one.origin, one.at, one.trace, 0)), "heliograph.target": target}
            self._emit(Span(one.trace, span, parent, "link.out", one.begin_ns, now, more))

    def _take(self, key: _Key) -> _Sent:
        sent = self._links[key[:2]]
        del sent[key]
        if not sent:
            del self._links[key[:2]]
        return self._sent.pop(key)

    def arrived(self, topic: str, source: str, run: Run, begin_ns: int) -> None:
        """A run of another region, that came from `source`, is durable here."""
        assert run.origin is not None
        now = self.now_ns()
        for one in self.chosen(run, run.spans, run.origin):
            span = self._span(one.trace, "link.in", self.region)
            more = {**self._attributes(topic, one), "heliograph.source": source}
            self._emit(
                Span(
                    one.trace,
                    span,
                    self._span(one.trace, "link.out", source, self.region),
                    "link.in",
                    begin_ns,
                    now,
                    more,
                    True,
                )
            )
            self._emit(Span(one.trace, self._span(one.trace, "store", self.region), span, "store", begin_ns, now, more))

    def dispatched(self, topic: str, subscription: str, own: Origin, ledger: int, first: int, run: Run) -> None:
        """Entries went to a consumer. own: the origin of what was first published here."""
        now = self.now_ns()
        spans, origin = (run.spans, run.origin) if run.origin is not None else (((ledger, first, run.count),), own)
        for one in self.chosen(run, spans, origin):
            span = self._span(one.trace, "dispatch", self.region, subscription)
            more = {**self._attributes(topic, one), "messaging.destination.subscription.name": subscription}
            self._emit(Span(one.trace, span, self._span(one.trace, "store", self.region), "dispatch", now, now, more))

    def _attributes(self, topic: str, one: Chosen) -> dict[str, str | int]:
        coordinate = f"{'.'.join(str(number) for number in one.origin)}:{one.at[0]}:{one.at[1]}"
        return {
            "messaging.system": "heliograph",
            "messaging.destination.name": topic,
            "heliograph.region": self.region,
            "heliograph.coordinate": coordinate,
        }

    @staticmethod
    def _span(trace: int, *where: str) -> int:
        return _digest(8, trace, *where)


def _property(entry: Buffer) -> str:
    """ "": it has none; of a batch, only its first message's own metadata could have one, and that is not looked
    into.
    """
    try:
        metadata, _ = entry_metadata(entry)
    except CorruptData:
        return ""
    value: object = next((pair.value for pair in metadata.properties if pair.key == _NAME), "")
    return value if isinstance(value, str) else ""  # bytes, where a client wrote what is no UTF-8


def _digest(size: int, *parts: str | int) -> int:
    """Never 0: that is no id."""
    return int.from_bytes(blake2b("/".join(str(part) for part in parts).encode(), digest_size=size).digest()) or 1
