"""SchemaRegistry: the versions of each topic's schema, in the region's metadata.

Is: storing what clients bring, numbered from 0; the same schema again has the same number. Isn't: a check of compatibility.
Key: /schemas/{namespace}/{topic, without its partition}; value: a version byte, then msgpack [[type, name, data, {properties}], ...].
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.errors import VersionConflict
from heliograph.model.ledgers import pack, unpack
from heliograph.model.names import TopicName
from heliograph.raft.store import MetadataStore

ATTEMPTS = 16


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """`type`: as Pulsar numbers it. `data`: the definition as the client wrote it."""

    type: int
    name: str
    data: bytes
    properties: dict[str, str] = field(default_factory=dict)


class SchemaRegistry:
    def __init__(self, meta: MetadataStore) -> None:
        self._meta = meta

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        return (await self._load(topic))[0]

    async def get_or_create(self, topic: TopicName, schema: StoredSchema) -> int:
        """The number of this schema; a new one where it is not there yet."""
        for _ in range(ATTEMPTS):
            versions, stored_at = await self._load(topic)
            for number in range(len(versions) - 1, -1, -1):
                if versions[number].type == schema.type and versions[number].data == schema.data:
                    return number
            value = pack([[v.type, v.name, v.data, v.properties] for v in (*versions, schema)])
            try:
                await self._meta.put(_key(topic), value, expected=stored_at)
            except VersionConflict:
                continue
            return len(versions)
        raise VersionConflict(_key(topic), -1, -1)

    async def delete(self, topic: TopicName) -> None:
        await self._meta.delete(_key(topic))

    async def _load(self, topic: TopicName) -> tuple[list[StoredSchema], int]:
        found = await self._meta.get(_key(topic))
        if found is None:
            return [], -1
        return [StoredSchema(kind, name, data, properties) for kind, name, data, properties in unpack("schemas", found[0])], found[1]


def _key(topic: TopicName) -> str:
    base = topic.partitioned
    return f"/schemas/{base.namespace}/{base}"
