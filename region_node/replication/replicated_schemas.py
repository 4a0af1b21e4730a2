"""ReplicatedSchemas: this region's schema registry, as links read and fill it.

Is: which topics have schemas at all (one watch of the metadata a broker), reading and taking over, and telling links of
new versions, whichever broker of the region stored them. Isn't: the registry (`region_node.schemas.schema_registry`),
or a link.
Invariants: what another region gives has that region's numbers, and changes nothing that is here unless somebody has
decided so; only versions of this region's own numbers are told on as they come, all of them when a link opens.
Source: docs/protocols/links.md, "Schemas".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import CorruptData, LinkError
from heliograph.model.topic_names import TopicName
from heliograph.wire.links.schema_commands import BYTES_MAX, SchemaRow
from region_node.schemas.schema_registry import REGION_SHIFT, SchemaRegistry, conflicting, shown
from replicator.health.link_causes import Cause
from replicator.links.schema_feed import SchemaConflict, SchemaLinks

log = logging.getLogger("region_node.schemas")

_PREFIX = "/schemas/"
_NAMED = 5
_TOLD_ROWS, _TOLD_BYTES = 200, 1 << 20


def _told(rows: Sequence[SchemaRow]) -> list[SchemaRow]:
    """The first of them, as many as an answer takes, one at least: what is left shows when these are decided."""
    kept: list[SchemaRow] = []
    room = _TOLD_BYTES
    for row in rows[:_TOLD_ROWS]:
        room -= len(row[1])
        if room < 0 and kept:
            break
        kept.append(row)
    return kept


class ReplicatedSchemas:
    """Implements `replicator.links.schema_feed.SchemaHost`. partitions(topic): how many; 0: it is not partitioned."""

    def __init__(
        self,
        meta: MetadataStore,
        registry: SchemaRegistry,
        *,
        region_number: Callable[[], int],
        partitions: Callable[[str], int],
    ) -> None:
        self._registry, self._region_number, self._partitions = registry, region_number, partitions
        self._links: list[SchemaLinks] = []
        self._topics: dict[str, set[int]] = {}
        """Topic -> the numbers of its versions."""
        self.close = meta.watch(_PREFIX, self._on_key)

    def follow(self, links: SchemaLinks) -> None:
        self._links.append(links)

    def _unpark(self, topic: str) -> None:
        for links in self._links:
            links.unpark(topic)

    def has(self, topic: str) -> bool:
        return str(TopicName.parse(topic).partitioned) in self._topics

    async def dump(self, topic: str) -> Sequence[SchemaRow]:
        return await self._registry.dump(TopicName.parse(topic), BYTES_MAX)

    async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
        name = TopicName.parse(topic)
        here = dict(await self._registry.dump(name, BYTES_MAX))
        try:
            parted = conflicting(here.items(), rows)
            fresh = [row for row in rows if row[0] not in here]
            for row in fresh:
                shown(*row)
        except CorruptData as error:
            raise LinkError(Cause.SCHEMA_REFUSED, f"a version of its schema cannot be read here: {error}") from error
        if parted:
            numbers = ", ".join(map(str, parted[:_NAMED]))
            arriving = dict(rows)
            others = [
                number for number in sorted(here) if number not in arriving
            ]  # a source that takes what is here must not give these numbers again
            raise SchemaConflict(
                f"other schemas are here under the numbers {numbers}",
                _told([(number, here[number]) for number in (*parted, *others)]),
            )
        if fresh:
            new = await self._registry.restore(name, fresh)
            log.info("schemas.adopted", extra={"topic": topic, "versions": new})
        self._unpark(topic)  # the way back may be parked for what is decided now

    async def overrule(self, topic: str, rows: Sequence[SchemaRow]) -> None:
        name = TopicName.parse(topic)
        try:
            await self._registry.replace(name, rows)
        except CorruptData as error:
            raise LinkError(Cause.SCHEMA_REFUSED, f"a version of its schema cannot be read here: {error}") from error
        log.warning("schemas.overruled", extra={"topic": topic, "numbers": [number for number, _ in rows]})

    def _on_key(self, key: str, value: bytes | None, version: int) -> None:
        base, _, number = key.removeprefix(_PREFIX).partition("/")[2].partition("/")[2].rpartition("/")
        if not base:
            return
        if value is None:
            self._gone(base, int(number, 16))
            return
        self._topics.setdefault(base, set()).add(int(number, 16))
        name, own = TopicName.parse(base), int(number, 16) >> REGION_SHIFT == self._region_number() - 1
        for topic in (base, *(str(name.with_partition(index)) for index in range(self._partitions(base)))):
            self._unpark(topic)
            for links in self._links if own else ():
                links.schemas_changed(topic)

    def _gone(self, base: str, number: int) -> None:
        found = self._topics.get(base)
        if found is not None:
            found.discard(number)
            if not found:
                del self._topics[base]
