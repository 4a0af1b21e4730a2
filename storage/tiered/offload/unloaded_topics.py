"""TopicSweep: finds topics that nobody has loaded and whose ledgers are due for the object store, and has them loaded
for as long as that takes.

Is: a walk over the topics in the metadata, a bounded number at a time, and which of them were loaded for it. Isn't: a
step of an offload: that is the same as for a topic with clients (`offloader`), by the topic's owner alone, so that
every write is fenced as ever.
Invariants: at most `BORROWED_MAX` topics are loaded for this at once; one that clients use meanwhile stays loaded; a
step costs a bounded number of topics, however many there are; a pass that fails goes on at the next step where it was.
Source: docs/protocols/tiered.md, "Topics that are not loaded".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from heliograph.kv.metadata_store import MetadataStore, prefix_end
from heliograph.kv.unreadable_records import tell_unreadable
from heliograph.model.errors import CorruptData, HeliographError
from heliograph.model.ledger_metadata import LedgerInfo, ManagedLedgerMetadata
from local_meta import keys
from storage.managed_ledger.metadata.ledger_pages import stored_topic

log = logging.getLogger("storage.tiered.sweep")

BORROWED_MAX = 16
_PAGE = 500
_DECODED_A_SLICE = 50


class TopicLoader(Protocol):
    """The port to what loads topics on this broker and unloads them."""

    def lends(self, topic: str) -> bool:
        """Whether this broker is the one to load it, and has not yet."""
        ...

    async def load(self, topic: str) -> bool:
        """Returns whether it is loaded here now."""
        ...

    async def give_back(self, topic: str) -> None:
        """Unloads it, unless clients use it by now."""
        ...


class TopicSweep:
    """due: by topic and its ledgers, whether something is to be moved now. busy: whether it is being moved."""

    def __init__(
        self,
        meta: MetadataStore,
        lender: TopicLoader,
        due: Callable[[str, list[LedgerInfo]], bool],
        busy: Callable[[str], bool],
        topics_a_step: int,
    ) -> None:
        self._meta, self._lender, self._due, self._busy, self._topics_a_step = meta, lender, due, busy, topics_a_step
        self._at = keys.MANAGED_LEDGERS
        self._borrowed: dict[str, bool] = {}  # topic -> whether its move was seen to begin
        self.passes = 0
        """How often the walk has come to its end."""
        self.loaded = 0
        """Topics that were loaded for this."""

    async def step(self) -> None:
        """Gives back what is done, and looks at some more topics. Never raises but when it is cancelled."""
        try:
            await self._return_done()
            left = self._topics_a_step
            while left > 0 and len(self._borrowed) < BORROWED_MAX:
                page = await self._meta.range(self._at, prefix_end(keys.MANAGED_LEDGERS), limit=min(_PAGE, left))
                if not page:
                    self._at, self.passes = keys.MANAGED_LEDGERS, self.passes + 1
                    return
                left -= len(page)
                await self._look_at(page)
        except HeliographError as error:
            log.info("tier.sweep_put_off", extra={"error": str(error)})

    async def _look_at(self, page: list[tuple[str, bytes, int]]) -> None:
        for number, (key, blob, _) in enumerate(page):
            if len(self._borrowed) >= BORROWED_MAX:
                return  # the walk goes on here
            topic = keys.topic_of(key)
            if topic not in self._borrowed and self._lender.lends(topic) and await self._is_due(topic, blob):
                try:
                    if await self._lender.load(topic):
                        self._borrowed[topic] = False
                        self.loaded += 1
                except HeliographError as error:
                    log.info("tier.topic_not_loaded", extra={"topic": topic, "error": str(error)})
            self._at = key + "\0"
            if number % _DECODED_A_SLICE == _DECODED_A_SLICE - 1:
                await asyncio.sleep(0)

    async def _is_due(self, topic: str, blob: bytes) -> bool:
        try:
            stored = ManagedLedgerMetadata.decode(blob)
            if not all(page.settled for page in stored.pages):
                whole = await stored_topic(self._meta, topic)
                stored = whole[0] if whole is not None else ManagedLedgerMetadata()
            return self._due(topic, list(stored.ledgers))
        except CorruptData as error:
            tell_unreadable(keys.managed_ledger(topic), error)
            return False

    async def _return_done(self) -> None:
        for topic, seen in list(self._borrowed.items()):
            if self._busy(topic):
                self._borrowed[topic] = True
            elif seen:
                del self._borrowed[topic]
                await self._lender.give_back(topic)
            else:
                self._borrowed[topic] = (
                    True  # at the next step at the latest it has begun, or nothing is to be done any more
                )
