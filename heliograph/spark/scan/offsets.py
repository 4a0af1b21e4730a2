"""Positions of a streaming query: from where to where each micro-batch reads each topic.

Is: pure: what is pending between positions and snapshots, and how far a batch of a bounded size goes. Isn't: HTTP,
Spark, or entries.
Invariants: two calls with the same positions give the same ranges, whatever was appended or sealed since, so that a
batch that is run again reads what it read; a position is that of the first entry that is not read yet; equal places
encode to equal text, by which Spark compares them.
Format (a query's checkpoint holds it; `above` and what is not known are left out):
    {"format": 2, "tasks": "bytes a task:tasks at least", "topics": {full name:
        {"above": {origin: coordinate}, "at": "ledger:entry", "bytes": "size", "own": origin,
         "parts": "ledger:first-last,...", "region": name, "vector": {origin: "ledger:entry"}}}}
Format 1, still read: {"format": 1, "topics": {full name: [ledger, entry]}}, positions of whatever region is asked.
What places mean in another region: `heliograph.spark.scan.region_moves`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from heliograph.client.block_reader import TopicSnapshot
from heliograph.model.coordinates import Origin, format_coordinate, parse_coordinate
from heliograph.model.errors import ConfigError, CorruptData, NotAllowed, Trimmed
from heliograph.model.positions import Position

FORMAT = 2
_SOME_BYTES = 16 << 10
Positions = dict[str, Position]
Parts = tuple[tuple[int, int, int], ...]
Watermarks = Mapping[Origin, Position]
"""By origin, a coordinate: it and all below it."""


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """How far a topic is read.

    at: the first entry that is not, in the copy of `region`; "": of format 1, the region that is asked.
    vector: what is read, in coordinates, which hold in every region; None: of format 1, not known.
    above: of a query that came from another region, what it has to skip from `at` on; empty once that lies behind it.
    size_bytes: of what the batch that ends here reads, as was known when it was planned: a batch that is run again is
    cut into the same tasks by it, though the ledger it reads has grown since. 0: of an earlier version, not known.
    own: the origin of what that region published first, when the place was made; None: of format 1, or of an earlier
    version.
    parts: (ledger, first, last) of what that batch reads, where its two ends do not say it: so that other topics' tasks
    stay as they were cut when this topic is deleted.
    """

    region: str
    at: Position
    vector: Watermarks | None
    above: Watermarks = field(default_factory=dict)
    size_bytes: int = 0
    parts: Parts = ()
    own: Origin | None = None

    def here(self, snapshot: TopicSnapshot) -> bool:
        """Whether `at` is a position of that copy: not of another region's, nor of one that lay under the region's name
        before it was made anew, or restored from a backup.
        """
        if self.region not in ("", snapshot.region):
            return False
        before = self.at[0], self.at[1] - 1
        return self.own in (None, snapshot.own) or any(
            origin == self.own and through >= before for origin, through in snapshot.past
        )


Tasks = tuple[int, int]
"""(bytes a task, tasks at least): as a batch was planned."""
Places = dict[str, TopicPlace]


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries first to last, both included, of one ledger of one topic."""

    topic: str
    ledger: int
    first: int
    last: int
    size_bytes: int


def encode(places: Mapping[str, TopicPlace], tasks: Tasks | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "format": FORMAT,
        "topics": {topic: _encoded(place) for topic, place in sorted(places.items())},
    }
    return found if tasks is None else {"format": FORMAT, "tasks": f"{tasks[0]}:{tasks[1]}", "topics": found["topics"]}


def tasks_of(offset: Mapping[str, Any]) -> Tasks | None:
    """How the batch that ends there was planned; None: of an earlier version, or it is none."""
    return _position(offset["tasks"]) if "tasks" in offset else None


def _encoded(place: TopicPlace) -> dict[str, Any]:
    fields: dict[str, Any] = {"above": _texts(place.above)} if place.above else {}
    fields |= {"bytes": str(place.size_bytes)} if place.size_bytes else {}
    fields |= (
        {"parts": ",".join(f"{ledger}:{first}-{last}" for ledger, first, last in place.parts)} if place.parts else {}
    )
    fields |= {"own": _text(place.own)} if place.own is not None else {}
    fields |= {"at": f"{place.at[0]}:{place.at[1]}", "region": place.region}
    return fields if place.vector is None else {**fields, "vector": _texts(place.vector)}


def _texts(marks: Watermarks) -> dict[str, str]:
    return {_text(origin): f"{at[0]}:{at[1]}" for origin, at in sorted(marks.items())}


def _text(origin: Origin) -> str:
    return format_coordinate((origin, (0, 0)))[:-4]


def decode(offset: Mapping[str, Any]) -> Places:
    """Raises ConfigError where a checkpoint is not ours, or was made by a later version; CorruptData."""
    if offset.get("format") not in (1, FORMAT) or not isinstance(offset.get("topics"), dict):
        raise ConfigError(
            f"the checkpoint holds no positions of format {FORMAT}: {str(offset)[:200]}; start with another "
            "checkpoint folder"
        )
    try:
        if offset["format"] == 1:
            return {
                str(topic): TopicPlace("", (int(ledger), int(entry)), None)
                for topic, (ledger, entry) in offset["topics"].items()
            }
        return {str(topic): _decoded(fields) for topic, fields in offset["topics"].items()}
    except (TypeError, ValueError, KeyError, AttributeError, NotAllowed) as error:
        raise CorruptData(f"the checkpoint's positions cannot be read: {str(offset)[:200]}") from error


def _decoded(fields: Mapping[str, Any]) -> TopicPlace:
    vector = _marks(fields["vector"]) if "vector" in fields else None
    parts = tuple(_part(text) for text in fields["parts"].split(",")) if "parts" in fields else ()
    return TopicPlace(
        str(fields["region"]),
        _position(fields["at"]),
        vector,
        _marks(fields.get("above", {})),
        int(fields.get("bytes", 0)),
        parts,
        parse_coordinate(f"{fields['own']}:0:0")[0] if "own" in fields else None,
    )


def _part(text: str) -> tuple[int, int, int]:
    ledger, entries = text.split(":")
    first, last = entries.split("-")
    return int(ledger), int(first), int(last)


def _marks(texts: Mapping[str, str]) -> Watermarks:
    return {parse_coordinate(f"{origin}:0:0")[0]: _position(at) for origin, at in texts.items()}


def _position(text: str) -> Position:
    ledger, entry = text.split(":")
    return int(ledger), int(entry)


def begin(snapshot: TopicSnapshot) -> Position:
    """Before everything that is kept."""
    return (snapshot.ledgers[0][0], 0) if snapshot.ledgers else end(snapshot)


def end(snapshot: TopicSnapshot) -> Position:
    """Behind everything that is confirmed."""
    return snapshot.last[0], snapshot.last[1] + 1


def between(snapshot: TopicSnapshot, start: Position, stop: Position, *, may_lose: bool) -> list[EntryRange]:
    """Entries from `start` on and before `stop`. Raises Trimmed where `start` lies in a ledger that was deleted, unless
    `may_lose`.

    Whether all of that ledger had been read is not known then: a query with a subscription, which holds what is not
    read, passes `may_lose`.
    """
    ranges: list[EntryRange] = []
    nothing = end(snapshot)[0] + 1 if snapshot.trimmed else stop[0]
    oldest = min((ledger for ledger, _, _ in snapshot.ledgers), default=nothing)
    if start < stop and start[0] < oldest and snapshot.trimmed and not may_lose:
        raise Trimmed(
            f"{snapshot.topic}: the query stands at {start[0]}:{start[1]}, and everything before ledger {oldest} was "
            "deleted, read or not;"
            " give the query a subscription, which holds what it has not read, or set fail_on_data_loss to false"
        )
    for ledger, entries, size_bytes in snapshot.ledgers:
        if not start[0] <= ledger <= stop[0] or not entries:
            continue
        first = start[1] if ledger == start[0] else 0
        last = min(stop[1] - 1 if ledger == stop[0] else entries - 1, entries - 1)
        if first <= last:
            ranges.append(
                EntryRange(snapshot.topic, ledger, first, last, max(1, size_bytes * (last - first + 1) // entries))
            )
    return ranges


def steady(ranges: list[EntryRange]) -> list[EntryRange]:
    """Sizes one topic's ranges so that who reads the same entries again later cuts them alike: the ledger of the last
    of them may have grown by then, and is taken to have entries as large as the others', which are closed, or some
    size.
    """
    if not ranges:
        return ranges
    *closed, last = ranges
    known = sum(r.last - r.first + 1 for r in closed)
    each = sum(r.size_bytes for r in closed) // known if known else _SOME_BYTES
    return [*closed, replace(last, size_bytes=max(1, each * (last.last - last.first + 1)))]


def limited(pending: Mapping[str, list[EntryRange]], max_bytes: int) -> dict[str, Position]:
    """How far a batch of about `max_bytes` goes in each topic: everywhere the same part of what is pending, and at
    least an entry.
    """
    total = sum(r.size_bytes for ranges in pending.values() for r in ranges)
    stops: dict[str, Position] = {}
    for topic, ranges in pending.items():
        left = (
            sum(r.size_bytes for r in ranges)
            if total <= max_bytes
            else sum(r.size_bytes for r in ranges) * max_bytes // total
        )
        for r in ranges:
            count = r.last - r.first + 1
            taken = (
                count
                if r.size_bytes <= left
                else min(count, max(0 if topic in stops else 1, left * count // r.size_bytes))
            )
            if taken:
                stops[topic] = r.ledger, r.first + taken
            left -= r.size_bytes
            if taken < count:
                break
    return stops


def limited_rows(
    pending: Mapping[str, list[EntryRange]], snapshots: Mapping[str, TopicSnapshot], max_rows: int
) -> dict[str, Position]:
    """The same by messages, of which a topic's entries are taken to hold as many as they do on the whole."""
    guessed: dict[str, list[EntryRange]] = {}
    for topic, ranges in pending.items():
        guessed[topic] = [
            replace(r, size_bytes=max(1, _messages(r.last - r.first + 1, snapshots[topic]))) for r in ranges
        ]
    return limited(guessed, max_rows)


def size_up_to(ranges: list[EntryRange], stop: Position) -> int:
    """Bytes of what lies before `stop`."""
    return sum(r.size_bytes * _taken(r, stop) // (r.last - r.first + 1) for r in ranges)


def left_by(ranges: list[EntryRange], stop: Position, snapshot: TopicSnapshot) -> tuple[int, int]:
    """Bytes and messages, about, of what does not."""
    entries = sum(r.last - r.first + 1 - _taken(r, stop) for r in ranges)
    return sum(r.size_bytes for r in ranges) - size_up_to(ranges, stop), _messages(entries, snapshot)


def _taken(r: EntryRange, stop: Position) -> int:
    """How many entries of it lie before `stop`."""
    return (
        r.last - r.first + 1 if (r.ledger, r.last) < stop else max(0, stop[1] - r.first) if r.ledger == stop[0] else 0
    )


def _messages(entries: int, snapshot: TopicSnapshot) -> int:
    """In so many entries of a topic, as it holds on the whole."""
    known = sum(count for _, count, _ in snapshot.ledgers)
    return entries * max(snapshot.messages, known) // max(1, known)


def parts_up_to(ranges: list[EntryRange], begin: TopicPlace | None, stop: Position) -> Parts:
    """Returns the parts of a batch from `begin` to `stop`; () where these two say it."""
    parts = tuple(
        (r.ledger, r.first, min(r.last, stop[1] - 1) if r.ledger == stop[0] else r.last)
        for r in ranges
        if (r.ledger, r.first) < stop
    )
    return (
        ()
        if begin is not None and begin.at[0] == stop[0] and parts == ((stop[0], begin.at[1], stop[1] - 1),)
        else parts
    )


def planned(topic: str, begin: TopicPlace | None, stop: TopicPlace) -> list[EntryRange]:
    """What a batch read when it was planned, whatever there is now; nothing where an earlier version planned it."""
    parts = stop.parts
    if (
        not parts
        and begin is not None
        and begin.region == stop.region
        and begin.at[0] == stop.at[0]
        and begin.at < stop.at
    ):
        parts = ((stop.at[0], begin.at[1], stop.at[1] - 1),)
    return sized([EntryRange(topic, *part, 1) for part in parts], stop.size_bytes)


def covers(found: list[EntryRange], wanted: list[EntryRange]) -> bool:
    """Whether all entries of `wanted` are among `found`, of one topic, with one range a ledger."""
    there = {r.ledger: r for r in found}
    return all(
        r.ledger in there and there[r.ledger].first <= r.first and r.last <= there[r.ledger].last for r in wanted
    )


def sized(ranges: list[EntryRange], size_bytes: int) -> list[EntryRange]:
    """The same ranges with that size altogether, by entries: whatever their ledgers' sizes are said to be now."""
    entries = sum(r.last - r.first + 1 for r in ranges)
    return (
        [replace(r, size_bytes=max(1, size_bytes * (r.last - r.first + 1) // entries)) for r in ranges]
        if size_bytes
        else ranges
    )
