"""The data source: topics of one region, as they were when a job was planned, or as they grow.

Is: planning of batch reads and the positions of a streaming query. Isn't: what a task does (`task_reading`), or a
consumer: nothing is acknowledged, but a streaming query may have a subscription, which holds what it has not read.
Invariants: a retried task, and a micro-batch that is run again, read the same ranges; every message appears once; the
subscription never stands before something that the checkpoint does not hold yet. Options: docs/spark.md.
What only tasks and sinks want is imported where they begin: a stream's positions have a Python process of their own,
which starts with each query.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from heliograph.client.block_reader import BlockReader, TopicSnapshot
from heliograph.model.errors import ConfigError, MetadataUnavailable, NotFound, Trimmed
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.spark.scan.offsets import (
    EntryRange,
    Places,
    Positions,
    TopicPlace,
    Watermarks,
    begin,
    between,
    decode,
    encode,
    end,
    left_by,
    limited,
    limited_rows,
    parts_up_to,
    planned,
    size_up_to,
    sized,
    steady,
    tasks_of,
)
from heliograph.spark.scan.region_moves import ALL, CoordinateRange, advanced, first_unread, plan
from heliograph.spark.scan.source_options import Options, Start
from heliograph.spark.scan.task_planning import bundles, even
from heliograph.spark.scan.topic_groups import replace_file

_HOLD_AGAIN_S = 30.0

if TYPE_CHECKING:
    import pyarrow as pa

    from heliograph.spark.sink import HeliographStreamWriter, HeliographWriter


def position_of(reader: BlockReader, snapshot: TopicSnapshot, place: Start, *, behind: bool = False) -> Position:
    """Returns where the first entry at or after `place` lies in that copy. behind: a coordinate's own entry is before
    it.
    """
    if place == "earliest":
        return begin(snapshot)
    if place == "latest":
        return end(snapshot)
    if isinstance(place, int):
        at = reader.position_at_time(snapshot.topic, place)
        return end(snapshot) if at is None else min(at, end(snapshot))
    assert isinstance(place, tuple)
    found = reader.find(snapshot.topic, *place)
    if found.position is not None:
        return (found.position[0], found.position[1] + 1) if behind else found.position
    return min(found.following or end(snapshot), end(snapshot))


def in_region(options: Options, snapshots: dict[str, TopicSnapshot]) -> dict[str, TopicSnapshot]:
    """The same, once it is sure that they are of the region that was meant. Raises ConfigError."""
    for snapshot in snapshots.values():
        if options.region and snapshot.region != options.region:
            raise ConfigError(
                f"{options.admin_url} belongs to region {snapshot.region}, and the option region says {options.region}"
            )
    return snapshots


def asked(reader: BlockReader, options: Options, topics: list[str]) -> dict[str, TopicSnapshot]:
    """Snapshots of all of them, in their order (tasks are cut by it); of those that a pattern found, some may be gone
    meanwhile, and a partition comes into being when it is first used.

    Raises NotFound where one that the user named is not there.
    """
    found = in_region(options, reader.snapshots(topics))
    missing = [topic for topic in topics if topic not in found and topic in options.full_names]
    if missing:
        raise NotFound(f"{missing[0]} is not there; publish to it once, or take it out of `topics`")
    return {topic: found[topic] for topic in topics if topic in found}


class HeliographReader(DataSourceReader):
    """Planned once on the driver; `read` runs in a worker for each bundle.

    With an `ending`, who plans it again has the same rows in the same tasks, whatever came since: a batch job with a
    name may run again (`sink`).
    """

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._schema, self._options = schema, Options(options)
        _check(self._options, schema)

    def partitions(self) -> list[InputPartition]:
        options, reader = self._options, self._options.reader()
        snapshots = asked(reader, options, options.topics(reader))
        ranges: list[EntryRange] = []
        for snapshot in snapshots.values():
            first, stop = (
                position_of(reader, snapshot, options.starting),
                position_of(reader, snapshot, options.ending, behind=True),
            )
            found = between(snapshot, first, stop, may_lose=True)
            ranges += found if options.ending == "latest" else steady(found)
        reader.close()
        tasks = even(sum(r.size_bytes for r in ranges), options.task_bytes, options.tasks_min)
        return bundles(ranges, snapshots, {}, options.task_bytes, tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)


class HeliographStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches over topics that grow, and topics that come; exactly once with Spark's checkpoint, in whatever
    region is asked.
    """

    def __init__(self, schema: StructType, options: dict[str, str], *, hold_again_s: float = _HOLD_AGAIN_S) -> None:
        """hold_again_s: how often a subscription is used though nothing came: one that nobody uses may expire."""
        self._schema, self._options, self._hold_again_s = schema, Options(options), hold_again_s
        if self._options.ending != "latest":
            raise ConfigError(
                "ending is of a batch read: a stream goes on; to read up to a place, read a batch, or end the query"
            )
        self._until: Positions | None = None
        self._held: Positions = {}
        self._region = ""
        """The one that is asked, since it was."""
        self._other: set[str] = set()
        """Topics that stood in another copy when they were last looked at: the subscription here is not theirs yet."""
        self._came: dict[str, tuple[Watermarks, Position]] = {}
        """By topic that stands in another region: its vector, and from where on that goes on here."""
        self._held_at = time.monotonic()
        """When the subscription was last told where all topics stand."""
        self._whole: dict[str, tuple[Position, Position]] = {}
        """By topic, a place and a beginning between which nothing unread was deleted."""
        self._topics: tuple[float, list[str]] = (-math.inf, [])
        """When they were looked for, and what of them was there."""
        self._behind: dict[str, tuple[str, int, int]] = {}
        """By topic that the newest micro-batch does not read to its end: where that is, and about how many bytes and
        messages are left.
        """
        self._connected: BlockReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks of a micro-batch: whoever plans them says what cannot be declared."""
        _check(self._options, self._schema)
        return {**self.__dict__, "_connected": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where the subscription stands, where there is one: a query whose checkpoint was lost goes on there. Otherwise
        as `starting` says.

        A query that took topics over from another begins where that one ended, and with what is new at its beginning.
        """
        reader, options = self._reader(), self._options
        snapshots = asked(reader, options, options.topics(reader))
        told = options.told
        if told is not None and told.places is not None:
            taken = dict(told.places)  # also of topics that have not arrived in this region yet
            new = _firsts(
                reader,
                snapshots,
                {topic: begin(snapshot) for topic, snapshot in snapshots.items() if topic not in taken},
            )
            self._hold(reader, {topic: place.at for topic, place in new.items()})
            return encode({**taken, **new})
        held = reader.held(options.subscription, snapshots) if options.subscription else {}
        begins: Positions = {}
        for topic, snapshot in snapshots.items():
            begins[topic] = (
                max(held[topic], begin(snapshot)) if topic in held else position_of(reader, snapshot, options.starting)
            )
        places = _firsts(reader, snapshots, begins)
        self._hold(reader, {topic: place.at for topic, place in places.items()})
        return encode(places)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._options.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        if self._options.ends_in is not None:
            return
        reader = self._reader()
        self._until = {
            topic: end(snapshot)
            for topic, snapshot in asked(reader, self._options, self._options.topics(reader)).items()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Spark asks only once the batch up to `start` is committed: the subscription goes there."""
        begins, reader = decode(start), self._reader()
        places = dict(begins)
        if self._options.ends_in is not None:  # what comes is another query's
            self._done(reader, places)
            replace_file(self._options.ends_in, start)
            return start
        pending: dict[str, list[EntryRange]] = {}
        new: Positions = {}
        snapshots = asked(reader, self._options, self._known(reader) if self._until is None else list(self._until))
        self._topics = (
            self._topics[0],
            list(snapshots),
        )  # of a partition that nobody has used, brokers read the metadata each time
        self._check_held(reader, snapshots, places)
        self._region = next((snapshot.region for snapshot in snapshots.values()), self._region)
        self._other = {topic for topic in places.keys() & snapshots.keys() if not places[topic].here(snapshots[topic])}
        self._done(reader, places)
        came = _firsts(
            reader, snapshots, {topic: begin(snapshot) for topic, snapshot in snapshots.items() if topic not in places}
        )
        for topic, snapshot in snapshots.items():
            region = self._region = snapshot.region
            stop = end(snapshot) if self._until is None else self._until[topic]
            place = places.get(topic)
            if place is None:  # it came while the query runs: all of it is new
                if topic not in came:
                    continue  # and it went at this moment
                place = came[topic]
                new[topic] = place.at
            elif place.vector is None:
                place = replace(place, region=region, vector=reader.vector(topic, _before(place.at)))
            places[topic] = place
            if place.here(snapshot):
                pending[topic] = between(snapshot, place.at, stop, may_lose=self._options.may_lose)
            else:
                pending[topic] = between(snapshot, self._coming(reader, snapshot, place, new), stop, may_lose=True)
        self._hold(reader, new)
        stops = self._stops(pending, snapshots, limit)
        self._behind = {}
        for topic, ranges in pending.items():
            at, stop = (ranges[-1].ledger, ranges[-1].last + 1) if ranges else BEFORE_ALL, stops.get(topic, BEFORE_ALL)
            if stop < at:
                self._behind[topic] = (f"{at[0]}:{at[1]}", *left_by(ranges, stop, snapshots[topic]))
        seen = reader.vectors({topic: _before(at) for topic, at in stops.items()}) if stops else {}
        batch_bytes = 0
        for topic, at in stops.items():
            if topic in seen:  # else it was deleted at this moment
                place = advanced(places[topic], snapshots[topic], at, seen[topic])
                parts = parts_up_to(pending[topic], begins.get(topic), at)
                places[topic] = replace(place, size_bytes=size_up_to(pending[topic], at), parts=parts)
                batch_bytes += places[topic].size_bytes
        if places == begins:
            return start  # the very same text: Spark takes any other for news
        return encode(
            places, (self._options.task_bytes, even(batch_bytes, self._options.task_bytes, self._options.tasks_min))
        )

    def _stops(
        self, pending: dict[str, list[EntryRange]], snapshots: dict[str, TopicSnapshot], limit: ReadLimit
    ) -> Positions:
        if isinstance(limit, ReadAllAvailable):
            return limited(pending, 1 << 62)
        stops = limited(pending, limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.batch_bytes)
        if not self._options.batch_rows:
            return stops
        fewer = limited_rows(pending, snapshots, self._options.batch_rows)
        return {topic: min(at, fewer[topic]) for topic, at in stops.items() if topic in fewer}

    def reportLatestOffset(self) -> dict[str, Any]:
        """For the query's progress: what the newest micro-batch leaves to the next ones. Topics that it reads to their
        end are not named.
        """
        topics = {
            topic: {"at": at, "bytes": size, "messages": messages}
            for topic, (at, size, messages) in sorted(self._behind.items())
        }
        return {
            "bytes": sum(each[1] for each in self._behind.values()),
            "messages": sum(each[2] for each in self._behind.values()),
            "topics": topics,
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begins, stops, reader = decode(start), decode(end), self._reader()
        moved = [topic for topic, stop in stops.items() if begins.get(topic) != stop]
        snapshots = asked(reader, self._options, moved)
        held = {topic: reader.vector(topic) for topic, found in snapshots.items() if not stops[topic].here(found)}
        if held:  # what arrives at this moment is in the vector and behind the snapshot's end, and would not be read
            snapshots |= reader.snapshots(held)
        self._check_held(reader, snapshots, begins)
        kept: dict[str, CoordinateRange] = {}
        ranges: list[EntryRange] = []
        region = self._asked(reader, snapshots) if len(snapshots) < len(moved) else ""
        for topic in moved:
            snapshot = snapshots.get(topic)
            if (
                snapshot is None
            ):  # deleted meanwhile: other topics' rows stay in their tasks, by which the sink knows them
                if stops[topic].region not in ("", region) and not self._options.gaps_allowed:
                    raise MetadataUnavailable(
                        f"{topic}: the query was in the middle of a batch of region {stops[topic].region} with "
                        "messages of this topic, which has not arrived in"
                        f" region {region or 'that is asked'}: start it again when it has, or in the region where it "
                        "was; or set fail_on_data_loss to false"
                    )
                ranges += planned(topic, begins.get(topic), stops[topic])
                continue
            lossy = self._options.gaps_allowed
            may_lose = self._options.may_lose
            found, wanted = plan(
                reader,
                snapshot,
                begins.get(topic),
                stops[topic],
                held.get(topic, {}),
                may_lose=may_lose,
                moved_may_lose=lossy,
            )
            if not found:  # all of it is gone, with the topic that had this name, or by what may be lost
                ranges += planned(topic, begins.get(topic), stops[topic])
                del snapshots[topic]
                continue
            ranges += sized(found, stops[topic].size_bytes)
            if wanted != ALL:
                kept[topic] = wanted
        task_bytes, tasks_min = tasks_of(end) or (self._options.task_bytes, self._options.tasks_min)
        return bundles(ranges, snapshots, kept, task_bytes, tasks_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark says so one batch late, and may say so again."""
        self._done(self._reader(), decode(end))

    def _done(self, reader: BlockReader, places: Places) -> None:
        """The subscription moves to where the checkpoint is; never back."""
        here = {
            topic: place.at
            for topic, place in places.items()
            if place.region in ("", self._region) and topic not in self._other
        }
        again = time.monotonic() - self._held_at >= self._hold_again_s
        moved = {
            topic: at
            for topic, at in here.items()
            if at > self._held.get(topic, (-1, -1)) or (again and at == self._held.get(topic))
        }
        if again:
            self._held_at = time.monotonic()
            for topic in self._other & places.keys():  # it goes on here, and is as idle as the others
                if topic in self._came and self._held.get(topic) == self._came[topic][1]:
                    moved[topic] = self._came[topic][1]
        self._hold(reader, moved)

    def _check_held(self, reader: BlockReader, snapshots: dict[str, TopicSnapshot], places: Places) -> None:
        """Raises Trimmed where ledgers are gone that the subscription had not passed by this query: it was moved, or
        removed, by somebody or some policy.

        Asked before the subscription is moved again, and only of topics that stand before all that is kept; most of
        these had been read.
        """
        if not self._options.subscription or self._options.gaps_allowed:
            return
        doubtful: Positions = {}
        for topic, snapshot in snapshots.items():
            place, first = places.get(topic), begin(snapshot)
            if place is None or not place.here(snapshot) or not snapshot.trimmed or place.at >= first:
                continue
            if self._whole.get(topic) != (place.at, first):
                doubtful[topic] = place.at
        held = reader.held(self._options.subscription, doubtful) if doubtful else {}
        for topic, at in doubtful.items():
            stands = held.get(topic)
            if stands is None or stands > at:
                found = "is gone" if stands is None else f"stands at {stands[0]}:{stands[1]}"
                raise Trimmed(
                    f"{topic}: the query stands at {at[0]}:{at[1]}, the subscription {self._options.subscription} "
                    f"{found}, and ledgers between were deleted:"
                    " see the topic's time to live, backlog quota, and subscription expiration; set fail_on_data_loss "
                    "to false once to go on with what is left"
                )
            self._whole[topic] = at, begin(snapshots[topic])

    def _known(self, reader: BlockReader) -> list[str]:
        """Topics and partitions; looked for anew when the interval is over."""
        now = time.monotonic()
        at, topics = self._topics
        if now - at >= self._options.discovery_s:
            topics = self._options.topics(reader)
            self._topics = now, topics
        return topics

    def _asked(self, reader: BlockReader, snapshots: dict[str, TopicSnapshot]) -> str:
        """The region that is asked; "": it has no topic of the query's to tell by."""
        if not snapshots and not self._region:  # begun in the middle of a batch
            snapshots = asked(reader, self._options, self._options.topics(reader))
        return next((snapshot.region for snapshot in snapshots.values()), self._region)

    def _coming(self, reader: BlockReader, snapshot: TopicSnapshot, place: TopicPlace, new: Positions) -> Position:
        """From where on a query goes on here that stands at `place` of another region; `new` gets what the subscription
        here is to hold then.
        """
        topic, read = snapshot.topic, place.vector or {}
        known = self._came.get(topic)
        if known is None or known[0] != read:
            first = first_unread(reader, snapshot, read, may_lose=self._options.gaps_allowed)
            known = self._came[topic] = read, first
            new[topic] = first
        return known[1]

    def _hold(self, reader: BlockReader, positions: dict[str, Position]) -> None:
        """The subscription stands before what is not read yet."""
        if self._options.subscription and positions:
            reader.hold(self._options.subscription, positions)
            self._held |= positions

    def _reader(self) -> BlockReader:
        if self._connected is None:
            self._connected = self._options.reader()
        elif self._options.rotated:
            self._connected.renew(self._options.current_token())
        return self._connected


def _check(options: Options, schema: StructType) -> None:
    """Raises ConfigError for what cannot be declared."""
    from heliograph.spark.scan.task_reading import payload_columns

    payload_columns(options, schema)


def _read(options: Options, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    from heliograph.spark.scan.task_reading import read_bundle

    return read_bundle(options, schema, partition)


def _firsts(reader: BlockReader, snapshots: Mapping[str, TopicSnapshot], begins: Positions) -> Places:
    """Places of topics that are read from there on; without those that were deleted at this moment.

    What lies before is not wanted, also where another region still has it.
    """
    behind = {
        topic: _before(at) for topic, at in begins.items() if at != begin(snapshots[topic]) or snapshots[topic].trimmed
    }
    seen = reader.vectors(behind) if behind else {}
    nothing: dict[str, Watermarks] = {topic: {} for topic in begins if topic not in behind}
    return {
        topic: TopicPlace(snapshots[topic].region, begins[topic], vector, vector, own=snapshots[topic].own)
        for topic, vector in (nothing | seen).items()
    }


def _before(at: Position) -> Position:
    return at[0], at[1] - 1


class HeliographDataSource(DataSource):
    """Offers topics to Spark as `format("heliograph")`, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return "heliograph"

    def schema(self) -> str | StructType:
        from heliograph.spark.columns.registered_columns import registered_columns
        from heliograph.spark.scan.task_reading import ENTRIES, SCHEMA

        given = dict(self.options)
        if given.get("columns") == "json":
            raise ConfigError(
                "columns = 'json' takes fields of payloads, and none is declared: give a schema, or leave the option "
                "out"
            )
        if given.get("columns") != "registered":
            return ENTRIES if given.get("columns") == "entries" else SCHEMA
        options = Options(given)
        reader = options.reader()
        return registered_columns(reader, options.topics(reader))

    def reader(self, schema: StructType) -> HeliographReader:
        return HeliographReader(schema, dict(self.options))

    def streamReader(self, schema: StructType) -> HeliographStreamReader:
        return HeliographStreamReader(schema, dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> HeliographWriter:
        if overwrite:
            raise ConfigError(
                "a topic is a log, and is not overwritten: use mode('append'), or truncate the topic first"
            )
        from heliograph.spark.sink import HeliographWriter

        return HeliographWriter(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeliographStreamWriter:
        from heliograph.spark.sink import HeliographStreamWriter

        return HeliographStreamWriter(dict(self.options), schema)
