"""TopicResealing: what a topic's owner alone can write anew under another data key: what it was compacted to, by one
more compaction, and objects of its log in a store, by one more upload.

Is: the port `SideReseals` (`storage.managed_ledger.resealing.reseal_job`) over `Compactor` and `ObjectResealing`: which
topics are due, one after the other on each broker, and those that are loaded for it. Isn't: a compaction (`compactor`),
or the upload of an object (`storage.tiered.offload.object_resealing`).
Invariants: a topic is compacted by its owner alone; not again within _AGAIN_MS of a try that failed; and only where the
key that it would be sealed with may stay. At most one topic is loaded for this at a time; one that clients use
meanwhile stays loaded.
Source: docs/operating/keys.md, "Encryption at rest: older ledgers under a new key".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from heliograph.kv.metadata_store import MetadataStore, prefix_end
from heliograph.model.errors import CorruptData, HeliographError, MetadataUnavailable
from heliograph.model.positions import BEFORE_ALL
from heliograph.runtime.clock import Clock
from heliograph.runtime.throttle import RowPace
from local_meta import keys
from region_node.compaction.compacted_view import CURSOR, OPEN, Compacted, read_properties
from region_node.compaction.compaction_state import CompactedTopic
from region_node.compaction.compactor import Compactor
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.log.shadow_ledger import ShadowLedger
from storage.managed_ledger.metadata.ledger_pages import stored_topic
from storage.managed_ledger.resealing.reseal_job import EVERY_KEY, Aim
from storage.sealing.sealing import Sealing
from storage.tiered.offload.object_resealing import ObjectResealing
from storage.tiered.offload.unloaded_topics import TopicLoader

log = logging.getLogger("region_node.tiering")

_AGAIN_MS = 60_000
_TOPICS_A_STEP = 500
"""Rows of topics' metadata that a step reads at most, in its search for one that nobody has loaded."""


async def stored_compacted(meta: MetadataStore, topic: str) -> Compacted | None:
    """What a topic is compacted to, as it is stored now: of one whose first compaction is still to end, nothing. None:
    nobody compacts it. Raises CorruptData, and what the metadata raises.
    """
    found = await meta.get(keys.cursor(topic, CURSOR))
    if found is None:
        return None
    return read_properties(Cursor.properties_in(found[0]))[0] or Compacted(-1, 0, 0, BEFORE_ALL, data_key=OPEN)


def is_due(compacted: Compacted | None, aim: Aim, wanted: bool) -> bool:
    """wanted: whether the topic is to be sealed by now."""
    if compacted is None or compacted.ledger < 0:
        return False
    if compacted.data_key != OPEN:
        return compacted.data_key not in aim.newer
    # an object of what lay in the clear may be sealed, with the key of that time
    return wanted or (compacted.offload is not None and compacted.made_ms < aim.before_ms)


class TopicResealing:
    """compactor, loaded, objects: of this broker. lender: loads topics of nobody."""

    def __init__(
        self,
        compactor: Callable[[], Compactor | None],
        loaded: Callable[[], Iterable[CompactedTopic]],
        meta: MetadataStore,
        sealing: Sealing,
        clock: Clock,
        lender: TopicLoader,
        objects: ObjectResealing | None = None,
    ) -> None:
        self._compactor, self._loaded, self._meta = compactor, loaded, meta
        self._sealing, self._clock, self._lender = sealing, clock, lender
        self._objects = objects
        self._at = ""
        """Where the search for topics that nobody has loaded goes on."""
        self._borrowed = self._uploading = ""
        self._at_work: Collection[str] = ()
        """Tenants with a job that goes on."""
        self._lent = dict[str, float]()
        """Topic -> when it was loaded for this, of the monotonic clock; the last few."""

    @property
    def writes_objects(self) -> bool:
        return self._objects is not None and self._objects.possible

    async def left(self, topic: str, aim: Aim) -> bool:
        return is_due(await stored_compacted(self._meta, topic), aim, self._sealing.wanted(topic))

    async def step(self, aims: Sequence[Aim]) -> None:
        """Begins the work on at most one topic, where none is under way."""
        self._at_work = {aim.tenant for aim in aims if aim.newer is not EVERY_KEY}
        compactor = self._compactor()
        if compactor is None or compactor.busy or self._uploads:
            return
        began = await self._begin(compactor, {aim.tenant: aim for aim in aims}) if aims else ""
        if self._borrowed and began != self._borrowed:
            gone, self._borrowed = self._borrowed, ""
            await self._lender.give_back(gone)
        for aim in aims if not began else ():
            if (aim.left or aim.objects_left) and await self._borrow(aim):
                return

    async def _begin(self, compactor: Compactor, aims: Mapping[str, Aim]) -> str:
        """The topic of which something was begun; "": of none."""
        pace = RowPace()
        for topic in sorted(self._loaded(), key=lambda one: one.text != self._borrowed):
            await pace.row()
            aim = aims.get(topic.text.split("/", 3)[2])
            if aim is None:
                continue
            if (aim.left and self._begun(compactor, topic, aim)) or self._begun_objects(topic, aim):
                return topic.text
        return ""

    @property
    def _uploads(self) -> bool:
        return self._objects is not None and self._objects.busy(self._uploading)

    def _begun_objects(self, topic: CompactedTopic, aim: Aim) -> bool:
        if self._objects is None or not aim.objects_left or not self.writes_objects:
            return False
        if self._sealing.seals_with(topic.text) not in aim.newer or not isinstance(topic.ledger, ManagedLedger):
            return False
        if isinstance(topic.ledger, ShadowLedger):
            return False
        try:
            if not self._objects.left(topic.ledger.ledgers(), aim.newer, aim.settled_ms, aim.keep_ms):
                return False
        except MetadataUnavailable:  # they are being read
            return topic.text == self._borrowed
        goes_on = partial(self._goes_on, aim.tenant)
        if not self._objects.begin(topic.ledger, aim.newer, aim.settled_ms, aim.bytes_per_s, aim.keep_ms, goes_on):
            return False
        self._uploading = topic.text
        return True

    def _goes_on(self, tenant: str) -> bool:
        return tenant in self._at_work

    def _begun(self, compactor: Compactor, topic: CompactedTopic, aim: Aim) -> bool:
        if topic.volatile or topic.closed or CURSOR not in topic.ledger.cursors:
            return False
        state, now_ms = topic.compaction(), self._clock.wall_ms()
        if state.status == "RUNNING" or state.truncating or 0 <= now_ms - state.failed_ms < _AGAIN_MS:
            return False
        if not is_due(state.view.compacted, aim, self._sealing.wanted(topic.text)):
            return False
        if self._sealing.seals_with(topic.text) not in aim.newer:  # this broker is yet to hear of the newer key
            return False
        compactor.start(topic, anew=True)
        return True

    async def _stored_left(self, topic: str, aim: Aim) -> bool:
        if aim.left and await self.left(topic, aim):
            return True
        if self._objects is None or not aim.objects_left or not self.writes_objects:
            return False
        found = await stored_topic(self._meta, topic)
        return found is not None and self._objects.left(found[0].ledgers, aim.newer, aim.settled_ms, aim.keep_ms)

    async def _borrow(self, aim: Aim) -> bool:
        """Whether a topic that is due was loaded; it is begun at the next step."""
        now = self._clock.monotonic()
        self._lent = {topic: at for topic, at in self._lent.items() if now - at < _AGAIN_MS / 1000}
        prefix = keys.managed_ledgers_of(aim.tenant)
        start = self._at if self._at.startswith(prefix) else prefix
        rows = await self._meta.range(start, prefix_end(prefix), limit=_TOPICS_A_STEP)
        for key, _, _ in rows:
            self._at = key + "\0"
            topic = keys.topic_of(key)
            try:
                if topic in self._lent or not self._lender.lends(topic) or not await self._stored_left(topic, aim):
                    continue
                self._lent[topic] = now
                if await self._lender.load(topic):
                    self._borrowed = topic
                    return True
            except CorruptData as error:
                log.error("compaction.unreadable", extra={"topic": topic, "error": str(error)})
            except HeliographError as error:
                log.info("reseal.topic_not_loaded", extra={"topic": topic, "error": str(error)})
        if not rows:
            self._at = ""
        return False
