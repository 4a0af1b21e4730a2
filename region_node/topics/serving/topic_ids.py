"""TopicIds: one id for each incarnation of a topic in this region, for clients that know topics by ids.

Is: the table of names and ids, kept in the region's metadata and followed by every broker; making ids that are missing.
Isn't: whether a topic exists.
Invariants: a topic keeps its id until it is deleted, wherever it is served; one that is made again under the same name
gets another id; an id is never given twice. An id that was given to an earlier incarnation of a partitioned topic is
nobody's, also where no broker saw the deletion.
Key: /topic-ids/{full name}; value: a version byte, then msgpack [16 bytes, incarnation]; an earlier version has written
no incarnation, and reads none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from heliograph.kv.metadata_store import ABSENT, MetadataStore, Put
from heliograph.model.errors import CorruptData, VersionConflict
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Rng

log = logging.getLogger("region_node.topics")

IDS = "/topic-ids/"
NO_ID = bytes(16)
_PUTS_A_WRITE = 100
_TRIES = 3


def topic_id_key(topic: TopicName) -> str:
    """Returns the metadata key of a topic's id. topic: without a partition, as all partitions share one id."""
    return f"{IDS}{topic}"


class TopicIds:
    """As one broker knows them. Make it on the event loop."""

    def __init__(self, meta: MetadataStore, rng: Rng, incarnation: Callable[[str], int] = lambda topic: 0) -> None:
        """incarnation: of a partitioned topic by its full name, as `ConfigView.incarnation`; it only grows, and 0 is
        not known.
        """
        self._meta, self._rng, self._incarnation = meta, rng, incarnation
        self._ids: dict[str, tuple[bytes, int, int]] = {}
        """full name -> (id, version of its key, incarnation that it was given to)"""
        self.names: dict[bytes, TopicName] = {}
        """Also of ids that an incarnation was given which is gone: `named` looks."""
        self._stop: Callable[[], None] = meta.watch(IDS, self._on_key)

    def close(self) -> None:
        self._stop()

    def known(self, topic: TopicName) -> bytes:
        """The id, or `NO_ID` where this broker knows of none."""
        found = self._ids.get(text := str(topic))
        return NO_ID if found is None or found[2] < self._incarnation(text) else found[0]

    def named(self, number: bytes) -> TopicName | None:
        """The topic that has this id; None: none has, as far as this broker knows."""
        name = self.names.get(number)
        return name if name is not None and self.known(name) == number else None

    async def ensure(self, topics: Iterable[TopicName]) -> None:
        """Topics that exist and have no id get one. Raises what the metadata raises."""
        missing = [topic for topic in topics if self.known(topic) == NO_ID]
        for first in range(0, len(missing), _PUTS_A_WRITE):
            made = [
                (topic, self._rng.getrandbits(128).to_bytes(16, "big"), self._incarnation(str(topic)))
                for topic in missing[first : first + _PUTS_A_WRITE]
            ]
            try:
                version = await self._meta.txn(
                    [Put(topic_id_key(topic), pack([number, of]), self._expected(topic)) for topic, number, of in made]
                )
                for topic, number, of in made:
                    self._learn(str(topic), number, version, of)
            except VersionConflict:  # another broker has given some of them
                for topic, number, of in made:
                    await self._make(topic, number, of)

    async def _make(self, topic: TopicName, number: bytes, incarnation: int) -> None:
        key, value = topic_id_key(topic), pack([number, incarnation])
        for _ in range(_TRIES):
            try:
                self._learn(
                    str(topic), number, await self._meta.put(key, value, expected=self._expected(topic)), incarnation
                )
                return
            except VersionConflict:
                found = await self._meta.get(key)
            if found is None:
                self._lose(str(topic))
            else:
                self._on_key(key, *found)
            if self.known(topic) != NO_ID:
                return

    def _expected(self, topic: TopicName) -> int:
        """The version of an id that an earlier incarnation was given, where there is one."""
        found = self._ids.get(str(topic))
        return ABSENT if found is None else found[1]

    async def forget(self, topic: TopicName) -> None:
        """The topic is deleted, or about to be made. An id that was given since this broker heard of the last one
        stays.
        """
        found = self._ids.get(str(topic))
        if found is None:
            return
        try:
            await self._meta.delete(topic_id_key(topic), expected=found[1])
        except VersionConflict:
            return
        if self._ids.get(str(topic)) == found:
            self._lose(str(topic))

    # -- the watch ----------------------------------------------------------------------------------------------------

    def _on_key(self, key: str, value: bytes | None, version: int) -> None:
        text = key.removeprefix(IDS)
        if value is None:
            if text in self._ids and self._ids[text][1] <= version:
                self._lose(text)
            return
        try:
            number, *more = unpack("topic id", value)
            if not isinstance(number, bytes) or len(number) != len(NO_ID):
                raise CorruptData(f"topic id: {text} has none of 16 bytes")
            incarnation = more[0] if more else 0
            if not isinstance(incarnation, int):
                raise CorruptData(f"topic id: {text} has it of no incarnation")
        except CorruptData as error:  # as if it had none: clients are shown names alone
            log.warning("topic.id_unreadable", extra={"topic": text, "error": str(error)})
            self._lose(text)
            return
        self._learn(text, number, version, incarnation)

    def _learn(self, text: str, number: bytes, version: int, incarnation: int) -> None:
        found = self._ids.get(text)
        if found is not None and found[1] >= version:
            return
        self._lose(text)
        self._ids[text] = (number, version, incarnation)
        self.names[number] = TopicName.parse(text)

    def _lose(self, text: str) -> None:
        found = self._ids.pop(text, None)
        if found is not None:
            self.names.pop(found[0], None)
