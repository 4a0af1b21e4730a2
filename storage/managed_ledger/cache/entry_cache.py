"""EntryCache: the one memory of a broker for entries, bounded by bytes, shared fairly between its topics.

Is: the byte bound, and which run goes when. Isn't: the runs (TopicCache), or what lagging readers fetch: that is
ReadAhead's, within this bound.
Invariants: at most `byte_bound` bytes (of entries, of the blocks that they pin, and of what was fetched ahead), the
newest run excepted. What is above the bound goes from the topics that hold most, to within a factor of two: so a
flooded topic cannot empty the cache of the others.
Only the newest end of a topic's log is ever held: a cold backlog that is drained evicts nothing from here.

Three strategies say what goes before the bound is hit; in each, a run that has been here for longer than `time_ms` goes
too:

    read         what every active cursor has read
    mark_delete  what every active cursor has acknowledged: a consumer that restarts finds what it had not acknowledged
    time         nothing else

A cursor is active while somebody reads for it, and `time_ms` longer, and while its backlog is at most
`backlogged_entries`.
Source: Pulsar's managedLedgerCacheSizeMB, managedLedgerCacheEvictionTimeThresholdMillis,
managedLedgerCursorBackloggedThreshold, cacheEvictionByMarkDeletedPosition; docs/protocols/ledger.md,
"Entry cache".
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph.model.positions import Position
from storage.managed_ledger.cache.cache_settings import CacheSettings, Eviction
from storage.managed_ledger.cache.topic_cache import TopicCache
from storage.managed_ledger.cursors.cursor import Cursor

SWEEP_S = 0.1
"""How often what nobody needs is looked for while there is anything at all."""
_SWEPT_A_SLICE = 1000
"""Topics that one sweep looks at. Where more hold something, a round takes several: the bound holds all the same."""
_LOW_WATER = 0.9
_RATE_S = 1.0


class EntryCache:
    """hits, misses: entries that readers got from memory, and from bookies; beside them their bytes."""

    def __init__(self, byte_bound: int, settings: CacheSettings | None = None) -> None:
        self.byte_bound, self.settings = byte_bound, settings or CacheSettings()
        self.size_bytes = self.entries = 0
        self.inserted = self.evicted = self.evictions = 0
        self.hits = self.hit_bytes = self.misses = self.miss_bytes = 0
        self.now = 0.0
        """Monotonic time of the last sweep, or of the write that found nothing here: coarse, so that a write reads no
        clock.
        """
        self.on_first: Callable[[], None] | None = None
        """Called when there is something again: sets `now`, and sees to it that `sweep` is called."""
        self._buckets: list[dict[TopicCache, None]] = [{} for _ in range(65)]  # by size_bytes.bit_length()
        self._top = 0
        self._round: list[TopicCache] = []  # whom the sweeps of this round have not looked at yet
        self._runs = 0
        self._rated_at = 0.0
        self._counted = (0, 0, 0, 0)
        self._rates = (0.0, 0.0, 0.0, 0.0)

    def topic(self) -> TopicCache:
        return TopicCache(self)

    @property
    def topics(self) -> int:
        """How many topics have something in the cache."""
        return sum(len(bucket) for bucket in self._buckets)

    def on_hit(self, entries: int, size_bytes: int) -> None:
        self.hits += entries
        self.hit_bytes += size_bytes

    def on_miss(self, entries: int, size_bytes: int) -> None:
        self.misses += entries
        self.miss_bytes += size_bytes

    def rates(self, now: float) -> tuple[float, float, float, float]:
        """Hits, bytes of hits, misses, bytes of misses, a second, since about the last call."""
        if now - self._rated_at >= _RATE_S:
            counted = (self.hits, self.hit_bytes, self.misses, self.miss_bytes)
            elapsed, before = now - self._rated_at, self._counted
            hits, hit_bytes, misses, miss_bytes = ((b - a) / elapsed for a, b in zip(before, counted, strict=True))
            self._rates = hits, hit_bytes, misses, miss_bytes
            self._rated_at, self._counted = now, counted
        return self._rates

    # -- what comes and goes ------------------------------------------------------------------------------------------

    def on_written(self, topic: TopicCache, cost: int, entries: int) -> None:
        """Called by a topic's cache after it took a run of so many entries; cost: bytes with all that it pins. May
        evict.
        """
        first = not self._runs
        self._runs += 1
        self.size_bytes += cost
        self.entries += entries
        self.inserted += entries
        self._place(topic)
        if first and self.on_first is not None:
            self.on_first()
        if self.size_bytes > self.byte_bound:
            self._shrink(topic)

    def on_gone(self, topic: TopicCache, cost: int, entries: int, *, evicted: bool) -> None:
        """Called by a topic's cache after it gave a run up. evicted: for want of room, or as nobody needs it; counted
        then.
        """
        self._runs -= 1
        self.size_bytes -= cost
        self.entries -= entries
        if evicted:
            self.evicted += entries
        self._place(topic)

    def reserve(self, size_bytes: int) -> None:
        """So many more bytes of the bound (or fewer: below 0) are used for something else."""
        self.size_bytes += size_bytes
        if size_bytes > 0 and self.size_bytes > self.byte_bound:
            self._shrink(None)

    def sweep(self, now: float) -> bool:
        """Evicts what nobody needs, and what is too old, of the next topics of the round. Returns whether anything is
        left, and `sweep` must be called again.
        """
        self.now = now
        by_position, oldest = self.settings.eviction is not Eviction.TIME, now - self.settings.time_ms / 1000
        before = self.evicted
        if not self._round:
            self._round = [topic for bucket in reversed(self._buckets) for topic in reversed(bucket)]
        for _ in range(min(len(self._round), _SWEPT_A_SLICE)):
            topic = self._round.pop()
            topic.evict_older(oldest)
            if by_position and topic.runs:
                topic.evict_passed()
        self.evictions += self.evicted > before
        if not self._runs:
            self._round.clear()
        return self._runs > 0

    def needed_from(self, cursors: dict[str, Cursor]) -> Position | None:
        """The first position that an active one of these cursors needs, by the strategy; None: there is none."""
        settings = self.settings
        slowest: Position | None = None
        since = self.now - settings.time_ms / 1000
        for cursor in cursors.values():
            needed = cursor.needed_from(self.now, since, by_mark_delete=settings.eviction is Eviction.MARK_DELETE)
            if needed is None or (slowest is not None and slowest <= needed):
                continue
            if not settings.backlogged_entries or cursor.backlog_entries <= settings.backlogged_entries:
                slowest = needed
        return slowest

    # -- the bound ----------------------------------------------------------------------------------------------------

    def _shrink(self, writer: TopicCache | None) -> None:
        """Evicts down to a little below the bound; of `writer` not the last run."""
        wanted = int(self.byte_bound * _LOW_WATER)
        looked: dict[TopicCache, None] = {}
        self.evictions += 1
        while self.size_bytes > wanted:
            victim = self._largest(writer)
            if victim is None:
                return
            if victim not in looked and self.settings.eviction is not Eviction.TIME:
                looked[victim] = None
                victim.evict_passed()
            else:
                victim.evict_first()
            bucket = self._buckets[victim.bucket]
            if victim.bucket and victim in bucket:  # the others of about its size are next
                del bucket[victim]
                bucket[victim] = None

    def _largest(self, writer: TopicCache | None) -> TopicCache | None:
        at = self._top
        while at and not self._buckets[at]:
            at -= 1
        self._top = at
        while at:
            for topic in self._buckets[at]:
                if topic is not writer or topic.runs > 1:
                    return topic
            at -= 1
        return None

    def _place(self, topic: TopicCache) -> None:
        bucket = topic.size_bytes.bit_length()
        if bucket != topic.bucket:
            self._buckets[topic.bucket].pop(topic, None)
            if bucket:
                self._buckets[bucket][topic] = None
                self._top = max(self._top, bucket)
            topic.bucket = bucket
