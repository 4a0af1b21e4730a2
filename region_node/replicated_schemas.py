"""ReplicatedSchemas: this region's schema registry, as links read and fill it.

Is: which topics have schemas at all (one watch of the metadata a broker), reading and taking over, and telling links of new versions, whichever broker
of the region stored them. Isn't: the registry (`region_node.schemas.registry`), or a link.
Invariants: what another region gives has that region's numbers, and changes nothing that is here; only versions of this region's own numbers are
told on as they come, all of them when a link opens.
Source: docs/protocols/links.md, "Schemas".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from heliograph.model.names import TopicName
from heliograph.raft.store import MetadataStore
from heliograph.wire.link_schemas import BYTES_MAX, SchemaRow
from region_node.schemas.registry import REGION_SHIFT, SchemaRegistry

log = logging.getLogger("region_node.schemas")

_PREFIX = "/schemas/"


class ReplicatedSchemas:
    """Implements `replicator.schemas.SchemaHost`. partitions(topic): how many; 0: it is not partitioned. changed(topic, or one of its partitions):
    there is a new version of this region's own."""

    def __init__(
        self,
        meta: MetadataStore,
        registry: SchemaRegistry,
        *,
        region_number: Callable[[], int],
        partitions: Callable[[str], int],
        changed: Callable[[str], None],
    ) -> None:
        self._registry, self._region_number, self._partitions, self._changed = registry, region_number, partitions, changed
        self._topics: dict[str, None] = {}
        self.close = meta.watch(_PREFIX, self._on_key)

    def has(self, topic: str) -> bool:
        return str(TopicName.parse(topic).partitioned) in self._topics

    async def dump(self, topic: str) -> Sequence[SchemaRow]:
        return await self._registry.dump(TopicName.parse(topic), BYTES_MAX)

    async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
        name = TopicName.parse(topic)
        here = {number for number, _ in await self._registry.dump(name, BYTES_MAX)}
        fresh = [row for row in rows if row[0] not in here]
        if fresh:
            new = await self._registry.restore(name, fresh)
            log.info("schemas.adopted", extra={"topic": topic, "versions": new})

    def _on_key(self, key: str, value: bytes | None, version: int) -> None:
        base, _, number = key.removeprefix(_PREFIX).partition("/")[2].partition("/")[2].rpartition("/")
        if value is None or not base:
            return
        self._topics[base] = None
        if int(number, 16) >> REGION_SHIFT == self._region_number() - 1:
            self._changed(base)
            name = TopicName.parse(base)
            for index in range(self._partitions(base)):
                self._changed(str(name.with_partition(index)))
