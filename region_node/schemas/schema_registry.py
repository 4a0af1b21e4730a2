"""SchemaRegistry: the versions of each topic's schema, in the region's metadata.

Is: storing what clients bring, under numbers that no other region gives; the same schema again has the same number.
Isn't: the rule of what may follow what (`compatibility`), or which policy holds.
Invariants: a number never means two schemas of a topic, also after a deletion; a deletion hides what was there, and the
next number goes on.
Key: /schemas/{namespace}/{topic, without its partition}/{number, 16 hex digits}; value: a version byte, then msgpack
[type, name, data, {properties}, time ms]; type -1: a deletion.

    number: u64 = (region's number - 1) << 40 | counter     so the first region of an instance counts 0, 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from heliograph.kv.metadata_store import ABSENT, Delete, MetadataStore, Op, Put, pages_between, pages_under
from heliograph.model.errors import CorruptData, NotAllowed, VersionConflict
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from region_node.runtime.shared_reads import SharedReads
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.registry_metrics import SchemaCounts
from region_node.schemas.schema_checks import SchemaChecks
from region_node.schemas.schema_definition import Schema

REGION_SHIFT = 40
VERSIONS_MAX = 1000
BYTES_MAX = 8 << 20
"""All versions of a topic's schema together: each question about it reads all of them."""
AHEAD_MAX = 10_000
"""So many versions may a namespace have where topics that do not exist yet still get one."""
_DELETES = 256
_OF_ALL = ("BACKWARD_TRANSITIVE", "FULL_TRANSITIVE")
"""Strategies by which a consumer's schema is compared with each version, not with the last one alone."""
_ATTEMPTS = 16
_DELETION = -1


@dataclass(frozen=True, slots=True)
class Version:
    """`schema`: None: here everything before was deleted."""

    number: int
    schema: Schema | None
    time_ms: int


class _Stored:
    """All versions of a topic, by the time they came. `every`: deletions included; `alive`: what can be read."""

    __slots__ = ("alive", "every")

    def __init__(self, every: list[Version]) -> None:
        self.every = every
        self.alive = [(version, version.schema) for version in every if version.schema is not None]


class SchemaRegistry:
    """`region`: this region's number, 1 or more. `bytes_max`: of all versions of a topic's schema."""

    def __init__(
        self, meta: MetadataStore, region: Callable[[], int], clock: Clock, *, bytes_max: int = BYTES_MAX
    ) -> None:
        self._meta, self._region, self._clock, self._bytes_max = meta, region, clock, bytes_max
        self.counts, self.checks = SchemaCounts(clock), SchemaChecks()
        self._reads = SharedReads(self._read, lambda topic: topic.tenant)
        self._listeners: list[Callable[[TopicName], None]] = []

    def on_new(self, callback: Callable[[TopicName], None]) -> None:
        """Calls back with the topic of each version that is stored by way of this object."""
        self._listeners.append(callback)

    def _new(self, topic: TopicName) -> None:
        for callback in self._listeners:
            callback(topic)

    async def versions(self, topic: TopicName) -> list[tuple[Version, Schema]]:
        """What is there, oldest first; a list that others have, too."""
        with self.counts.one("get"):
            return (await self._reads.of(topic.partitioned)).alive

    async def find(self, topic: TopicName, schema: Schema) -> int | None:
        """The number of this very schema."""
        return _find(await self.versions(topic), schema)

    async def get_or_create(self, topic: TopicName, schema: Schema, strategy: str, *, may_create: bool = True) -> int:
        """The number of this schema; a new one where it is not there yet. Raises IncompatibleSchema, InvalidSchema."""
        with self.counts.one("put"):
            return await self._get_or_create(topic, schema, strategy, may_create)

    async def _get_or_create(self, topic: TopicName, schema: Schema, strategy: str, may_create: bool) -> int:
        for _ in range(_ATTEMPTS):
            stored = await self._reads.of(topic.partitioned)
            every, alive = stored.every, stored.alive
            number = _find(alive, schema)
            if number is not None:
                return number
            if not may_create:
                raise IncompatibleSchema(
                    "the topic does not have this schema, and clients may not add any here: an operator must "
                    "(isAllowAutoUpdateSchema)"
                )
            await self.checks.definition(topic.tenant, schema)
            with self.counts.check():
                await self.checks.new(topic.tenant, schema, [each for _, each in alive], strategy)
            if len(alive) >= VERSIONS_MAX:
                raise NotAllowed(
                    f"{topic} has {VERSIONS_MAX} versions of its schema; delete them, or find out who changes it so "
                    "often"
                )
            size = schema.size_bytes + sum(each.size_bytes for _, each in alive)
            if size > self._bytes_max:
                raise NotAllowed(
                    f"{topic} would have {size:,} bytes of schemas, and may have {self._bytes_max:,}; delete them, or "
                    "find out who changes it so often"
                )
            number = self._next(every)
            try:
                await self._meta.put(_key(topic, number), _encode(schema, self._later(every)), expected=ABSENT)
            except VersionConflict:
                continue
            self._new(topic)
            return number
        raise VersionConflict(_prefix(topic), -1, -1)

    async def check_consumer(self, topic: TopicName, schema: Schema, strategy: str) -> None:
        """Returns where a consumer with `schema` may read the topic. Raises IncompatibleSchema, InvalidSchema, and what
        the metadata raises.
        """
        existing = [each for _, each in await self.versions(topic)]
        with self.counts.check():
            if existing and strategy not in _OF_ALL and schema.same(existing[-1]):
                return
            await self.checks.definition(topic.tenant, schema)
            await self.checks.consumer(topic.tenant, schema, existing, strategy)

    async def mark_deleted(self, topic: TopicName) -> int:
        """Nothing is there any more; returns the number that the deletion took, so that none is given twice."""
        with self.counts.one("del"):
            return await self._mark_deleted(topic)

    async def _mark_deleted(self, topic: TopicName) -> int:
        for _ in range(_ATTEMPTS):
            every = (await self._reads.of(topic.partitioned)).every
            number = self._next(every)
            ops: list[Op] = [Delete(_key(topic, version.number)) for version in every]
            try:
                await self._meta.txn(
                    [Put(_key(topic, number), _encode(None, self._later(every)), expected=ABSENT), *ops]
                )
            except VersionConflict:
                continue
            return number
        raise VersionConflict(_prefix(topic), -1, -1)

    async def delete(self, topic: TopicName) -> None:
        """The topic itself is gone."""
        for version in (await self._reads.of(topic.partitioned)).every:
            await self._meta.delete(_key(topic, version.number))

    async def delete_namespace(self, namespace: str, still: Callable[[], bool] = lambda: True) -> None:
        """Deletes what is left of its topics, those too that never came to exist. Raises what the metadata raises.

        still: asked before each write; from where it says no, nothing more is deleted.
        """
        async for rows in pages_under(self._meta, _namespace(namespace)):
            for start in range(0, len(rows), _DELETES):
                if not still():
                    return
                await self._meta.txn([Delete(key) for key, _, _ in rows[start : start + _DELETES]])

    async def check_ahead(self, topic: TopicName) -> None:
        """Raises NotAllowed where the namespace has too many versions for one of a topic that does not exist."""
        if await self._meta.count(_namespace(topic.namespace)) >= AHEAD_MAX:
            raise NotAllowed(
                f"{topic} does not exist, and {topic.namespace} has {AHEAD_MAX:,} schema versions or more: create the "
                "topic first"
            )

    async def dump(self, topic: TopicName, bytes_max: int) -> list[tuple[int, bytes]]:
        """(number, as it is stored) of every version, deletions included; of more than `bytes_max` bytes, the
        newest.
        """
        prefix = _prefix(topic)
        rows = [(int(key.removeprefix(prefix), 16), value) for key, value, _ in await self._rows(prefix)]
        kept: list[tuple[int, bytes]] = []
        for number, value in sorted(rows, key=lambda row: (_decode(*row).time_ms, row[0]), reverse=True):
            bytes_max -= len(value)
            if bytes_max < 0:
                break
            kept.append((number, value))
        return sorted(kept)

    async def restore(self, topic: TopicName, rows: Iterable[tuple[int, bytes]]) -> int:
        """Takes over what `dump` returned, under the same numbers, which messages name; what is there stays. Returns
        how many were new.

        Raises CorruptData.
        """
        new = 0
        for number, value in rows:
            _decode(number, value)
            try:
                await self._meta.put(_key(topic, number), value, expected=ABSENT)
                new += 1
            except VersionConflict:
                continue
        if new:
            self._new(topic)
        return new

    async def replace(self, topic: TopicName, rows: Iterable[tuple[int, bytes]]) -> None:
        """Puts `rows` in place of what is there under their numbers, in one transaction. What was there, and is nowhere
        else, goes on under the next numbers of this region.

        Raises CorruptData, MetadataError.
        """
        rows = list(rows)
        given = {number: _decode(number, value) for number, value in rows}
        prefix = _prefix(topic)
        for _ in range(_ATTEMPTS):
            stored = {
                int(key.removeprefix(prefix), 16): (value, version) for key, value, version in await self._rows(prefix)
            }
            every = {number: _decode(number, value) for number, (value, _) in stored.items()}
            ops: list[Op] = [
                Put(_key(topic, number), value, expected=stored[number][1] if number in stored else ABSENT)
                for number, value in rows
            ]
            after = [version.schema for version in ({**every, **given}).values() if version.schema is not None]
            following = self._next([*every.values(), *given.values()])
            for number in given:
                old = every[number].schema if number in every else None
                if old is not None and not any(old.same(other) for other in after):
                    ops.append(Put(_key(topic, following), stored[number][0], expected=ABSENT))
                    after.append(old)
                    following += 1
            try:
                await self._meta.txn(ops)
            except VersionConflict:
                continue
            self._new(topic)
            return
        raise VersionConflict(prefix, -1, -1)

    async def _rows(self, prefix: str) -> list[tuple[str, bytes, int]]:
        return [row async for rows in pages_between(self._meta, prefix, prefix + "g") for row in rows]

    async def _read(self, topic: TopicName) -> _Stored:
        prefix = _prefix(topic)
        rows = await self._rows(prefix)
        return _Stored(
            sorted(
                (_decode(int(key.removeprefix(prefix), 16), value) for key, value, _ in rows),
                key=lambda v: (v.time_ms, v.number),
            )
        )

    def _next(self, every: list[Version]) -> int:
        base = self._region() - 1 << REGION_SHIFT
        return max((v.number + 1 for v in every if v.number >> REGION_SHIFT == base >> REGION_SHIFT), default=base)

    def _later(self, every: list[Version]) -> int:
        return max(self._clock.wall_ms(), every[-1].time_ms + 1 if every else 0)


def _find(alive: list[tuple[Version, Schema]], schema: Schema) -> int | None:
    return next((version.number for version, each in reversed(alive) if each.same(schema)), None)


def _encode(schema: Schema | None, time_ms: int) -> bytes:
    if schema is None:
        return pack([_DELETION, "", b"", {}, time_ms])
    return pack([schema.type, schema.name, schema.data, schema.properties, time_ms])


def conflicting(here: Iterable[tuple[int, bytes]], arriving: Iterable[tuple[int, bytes]]) -> list[int]:
    """The numbers under which the two say different things. When each was stored does not matter. Raises
    CorruptData.
    """
    held, found = dict(here), []
    for number, value in arriving:
        if (old := held.get(number, value)) != value:
            mine, other = _decode(number, old).schema, _decode(number, value).schema
            if (mine is None) != (other is None) or (mine is not None and other is not None and not mine.same(other)):
                found.append(number)
    return found


def shown(number: int, value: bytes) -> dict[str, Any]:
    """A version as people read it; `deleted`: everything before it was. Raises CorruptData."""
    version = _decode(number, value)
    if version.schema is None:
        return {"deleted": True, "time_ms": version.time_ms}
    schema = version.schema
    data = schema.data.decode(errors="backslashreplace")
    return {
        "type": schema.type_name,
        "name": schema.name,
        "data": data,
        "properties": schema.properties,
        "time_ms": version.time_ms,
    }


def _decode(number: int, value: bytes) -> Version:
    try:
        kind, name, data, properties, time_ms = unpack("schema", value)
    except (TypeError, ValueError) as error:
        raise CorruptData(f"schema version {number:x} is no list of five") from error
    return Version(number, None if kind == _DELETION else Schema(kind, name, data, properties), time_ms)


def _prefix(topic: TopicName) -> str:
    base = topic.partitioned
    return f"{_namespace(base.namespace)}{base}/"


def _namespace(namespace: str) -> str:
    return f"/schemas/{namespace}/"


def _key(topic: TopicName, number: int) -> str:
    return f"{_prefix(topic)}{number:016x}"
