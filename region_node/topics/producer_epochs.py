"""TopicEpoch: the epoch of a topic's exclusive producers, kept in the region's metadata.

Is: read before the first exclusive producer, written before a producer hears of its epoch. Isn't: the rules
(`producers`).
Invariants: what a producer was told never comes again with another owner, also after the topic moved; two brokers never
tell the same epoch, for the write is a compare-and-set.
Key: /topic-epochs/{namespace}/{topic}; value: a version byte, then msgpack [epoch].
"""

from __future__ import annotations

import asyncio

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import OutcomeUnknown, TopicClosed, VersionConflict
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.topic_names import TopicName
from region_node.topics.producers import ProducerRegistry


class TopicEpoch:
    """Keeps the epoch of one loaded topic in step with the metadata: `load` it before, `save` it after it has grown."""

    __slots__ = ("_key", "_lock", "_meta", "_registry", "_saved", "_version")

    def __init__(self, meta: MetadataStore, topic: TopicName, registry: ProducerRegistry) -> None:
        self._meta, self._key, self._registry = meta, topic_epoch_key(topic), registry
        self._version: int | None = None
        self._saved = -1
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Once; the registry knows the epoch then."""
        async with self._lock:
            if self._version is None:
                await self._read()
                self._registry.topic_epoch = max(self._registry.topic_epoch, self._saved)

    async def save(self) -> None:
        """Until the registry's epoch is durable. Raises TopicClosed where another broker has the topic, and what the
        metadata raises.
        """
        async with self._lock:
            while self._saved < self._registry.topic_epoch:
                epoch = self._registry.topic_epoch
                try:
                    self._version = await self._meta.put(self._key, pack([epoch]), expected=self._version)
                    self._saved = epoch
                except OutcomeUnknown:
                    await self._read()
                except VersionConflict as error:
                    raise TopicClosed("the topic has moved: look it up again") from error

    async def _read(self) -> None:
        found = await self._meta.get(self._key)
        self._saved, self._version = (-1, -1) if found is None else (int(unpack("topic epoch", found[0])[0]), found[1])


def topic_epoch_key(topic: TopicName) -> str:
    return f"/topic-epochs/{topic.namespace}/{topic}"
