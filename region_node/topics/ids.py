"""TopicIds: one id for each incarnation of a topic in this region, for clients that know topics by ids.

Is: the table of names and ids, kept in the region's metadata and followed by every broker; making ids that are missing. Isn't: whether a topic exists.
Invariants: a topic keeps its id until it is deleted, wherever it is served; one that is made again under the same name gets another id; an id is never
given twice.
Key: /topic-ids/{full name}; value: a version byte, then msgpack [16 bytes].
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from heliograph.model.errors import CorruptData, VersionConflict
from heliograph.model.ledgers import pack, unpack
from heliograph.model.names import TopicName
from heliograph.raft.store import ABSENT, MetadataStore, Put
from heliograph.runtime.clock import Rng

log = logging.getLogger("region_node.topics")

IDS = "/topic-ids/"
NO_ID = bytes(16)
_PUTS_A_WRITE = 100


def topic_id_key(topic: TopicName) -> str:
    """topic: without a partition."""
    return f"{IDS}{topic}"


class TopicIds:
    """As one broker knows them. Make it on the event loop."""

    def __init__(self, meta: MetadataStore, rng: Rng) -> None:
        self._meta, self._rng = meta, rng
        self._ids: dict[str, tuple[bytes, int]] = {}
        """full name -> (id, version of its key)"""
        self.names: dict[bytes, TopicName] = {}
        self._stop: Callable[[], None] = meta.watch(IDS, self._on_key)

    def close(self) -> None:
        self._stop()

    def known(self, topic: TopicName) -> bytes:
        """The id, or `NO_ID` where this broker knows of none."""
        found = self._ids.get(str(topic))
        return NO_ID if found is None else found[0]

    async def ensure(self, topics: Iterable[TopicName]) -> None:
        """Topics that exist and have no id get one. Raises what the metadata raises."""
        missing = [topic for topic in topics if str(topic) not in self._ids]
        for first in range(0, len(missing), _PUTS_A_WRITE):
            made = [(topic, self._rng.getrandbits(128).to_bytes(16, "big")) for topic in missing[first : first + _PUTS_A_WRITE]]
            try:
                version = await self._meta.txn([Put(topic_id_key(topic), pack([number]), ABSENT) for topic, number in made])
                for topic, number in made:
                    self._learn(str(topic), number, version)
            except VersionConflict:  # another broker has given some of them
                for topic, number in made:
                    await self._make(topic, number)

    async def _make(self, topic: TopicName, number: bytes) -> None:
        try:
            self._learn(str(topic), number, await self._meta.put(topic_id_key(topic), pack([number]), expected=ABSENT))
        except VersionConflict:
            found = await self._meta.get(topic_id_key(topic))
            if found is not None:
                self._on_key(topic_id_key(topic), *found)

    async def forget(self, topic: TopicName) -> None:
        """The topic is deleted, or about to be made. An id that was given since this broker heard of the last one stays."""
        found = self._ids.get(str(topic))
        if found is None:
            return
        try:
            await self._meta.delete(topic_id_key(topic), expected=found[1])
        except VersionConflict:
            return
        if self._ids.get(str(topic)) == found:
            self._lose(str(topic))

    # -- the watch ------------------------------------------------------------------------------------------------------------

    def _on_key(self, key: str, value: bytes | None, version: int) -> None:
        text = key.removeprefix(IDS)
        if value is None:
            if text in self._ids and self._ids[text][1] <= version:
                self._lose(text)
            return
        try:
            number = unpack("topic id", value)[0]
            if not isinstance(number, bytes) or len(number) != len(NO_ID):
                raise CorruptData(f"topic id: {text} has none of 16 bytes")
        except CorruptData as error:  # as if it had none: clients are shown names alone
            log.warning("topic.id_unreadable", extra={"topic": text, "error": str(error)})
            self._lose(text)
            return
        self._learn(text, number, version)

    def _learn(self, text: str, number: bytes, version: int) -> None:
        found = self._ids.get(text)
        if found is not None and found[1] >= version:
            return
        self._lose(text)
        self._ids[text] = (number, version)
        self.names[number] = TopicName.parse(text)

    def _lose(self, text: str) -> None:
        found = self._ids.pop(text, None)
        if found is not None:
            self.names.pop(found[0], None)
