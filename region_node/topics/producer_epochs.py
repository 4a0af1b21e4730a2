"""TopicEpoch: the epoch of a topic's exclusive producers, kept in the region's metadata.

Is: read before the first exclusive producer, written before a producer hears of its epoch. Isn't: the rules
(`producers`).
Invariants: what a producer was told never comes again with another owner, also after the topic moved; two brokers never
tell the same epoch, for the write is a compare-and-set, and an epoch that stands there, but may be another broker's, is
told by nobody.
Key: /topic-epochs/{namespace}/{topic}; value: a version byte, then msgpack [epoch].
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import OutcomeUnknown, TopicClosed, VersionConflict
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.topic_names import TopicName
from region_node.topics.producers import EPOCH_GIVEN_MAX, ProducerRegistry

_NEVER_GIVEN = 1 << 62
"""Versions before took any epoch from a client: the one after this could not be stored some day."""


class TopicEpoch:
    """Keeps the epoch of one loaded topic in step with the metadata: `load` it before, `save` it after it has grown."""

    __slots__ = ("_key", "_lock", "_meta", "_registry", "_saved", "_version")

    def __init__(self, meta: MetadataStore, topic: TopicName, registry: ProducerRegistry) -> None:
        self._meta, self._key, self._registry = meta, topic_epoch_key(topic), registry
        self._version: int | None = None
        """None: what stands there is to be read first."""
        self._saved = -1
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Once, and again after a write that failed; the registry knows the epoch then."""
        async with self._lock:
            if self._version is None:
                known = self._registry.topic_epoch
                await self._read()
                if self._registry.topic_epoch == known:
                    self._registry.topic_epoch = max(known, self._saved)
                else:  # one was given out meanwhile: its `save` looks whether it is free
                    self._version = None

    async def save(self) -> None:
        """Until the registry's epoch is durable. Raises TopicClosed where another broker has the topic, or may have it,
        and what the metadata raises.
        """
        async with self._lock:
            if self._version is None:
                await self._read()
                if self._saved >= self._registry.topic_epoch:
                    self._moved()
            while self._saved < self._registry.topic_epoch:
                epoch, version, self._version = self._registry.topic_epoch, self._version, None
                try:
                    self._version = await self._meta.put(self._key, pack([epoch]), expected=version)
                    self._saved = epoch
                except OutcomeUnknown:
                    await self._read()
                    if self._version != version:  # by this write, or by another broker's
                        self._moved()
                except VersionConflict:
                    self._moved()

    def _moved(self) -> NoReturn:
        self._version = None
        raise TopicClosed("the topic has moved, or may have: look it up again")

    async def _read(self) -> None:
        found = await self._meta.get(self._key)
        self._saved, self._version = (-1, -1) if found is None else (int(unpack("topic epoch", found[0])[0]), found[1])
        if self._saved >= _NEVER_GIVEN:
            self._saved = EPOCH_GIVEN_MAX


def topic_epoch_key(topic: TopicName) -> str:
    return f"/topic-epochs/{topic.namespace}/{topic}"
