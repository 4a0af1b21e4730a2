"""Deferred deletion: a topic, or a namespace, that was deleted in two steps: at once nobody can use it in any
region, and only after a grace period its data goes.

Is: the deletions that the global configuration lists, what they mean at this broker, and purging what is due. Isn't:
the immediate deletion of Pulsar's interface, or a preview (`region_node.faces.admin.dr.two_step_deletion`).
Invariants: nothing is deleted before the grace period has ended by the configuration's own record, by the clock of this
broker and of every region that it hears, and, where it was there when the deletion was made, by the time that has
passed since; so one wrong clock ends nothing. While a tombstone stands, neither a client, nor a link, nor auto-creation
brings the topic back; it goes only once every region has purged its copy, or is none any more, so that a region that
was cut off cannot bring it back; taken away before that, the topic is as it was, with its data and its subscriptions,
in every region that has not purged. What was made behind a deletion is not what was deleted: a tombstone that finds
such a thing under its name (the configuration went back to an older state, or a region that had not heard made it), or
that comes out of a restore, asks first,
and does nothing in any region until it is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from global_config import keys
from heliograph.kv.metadata_store import ABSENT, MetadataStore, pages_under
from heliograph.model.configuration.tombstones import TOMBSTONES, Tombstone, tombstone
from heliograph.model.errors import AlreadyExists, CorruptData, HeliographError, VersionConflict
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import CautiousClock
from heliograph.runtime.task_set import TaskSet
from heliograph.runtime.throttle import RowPace

log = logging.getLogger("region_node.dr")


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneSettings:
    sweep_s: float = 5.0


class DeletionHost(Protocol):
    """What a broker does of a deletion. Every call raises HeliographError: it is tried again."""

    async def unload(self, topics: Sequence[str]) -> None:
        """topics: as their tombstones name them. However many they are, what is loaded is gone through once."""
        ...

    async def made_ms(self, found: Tombstone) -> int:
        """When the newest thing was made that has the name here, by the wall clock; 0: there is none."""
        ...

    async def purge(self, found: Tombstone, stands: Callable[[], Awaitable[bool]]) -> bool:
        """Deletes what this broker owns of it, and says whether this region has nothing of it any more. stands: whether
        the tombstone is what it was; asked again before each topic that no broker owns, as another may have purged it,
        and somebody may have made it again.
        """
        ...

    async def forget(self, found: Tombstone, version: int) -> None:
        """What the configuration has of it beside the tombstone goes: no region has anything. Nothing goes, and
        NotAllowed is raised, once the tombstone is not of that version: another broker, which does the same at the same
        time, has ended it, and the name may be somebody's by now.
        """
        ...

    async def back(self, found: Tombstone) -> None:
        """What was deleted can be used again."""
        ...


class Tombstones:
    """The deletions that one broker knows of, and its part in each."""

    def __init__(
        self,
        store: MetadataStore,
        host: DeletionHost,
        *,
        region: str,
        clock: CautiousClock,
        settings: TombstoneSettings | None = None,
    ) -> None:
        self.settings = settings or TombstoneSettings()
        self.known: dict[str, tuple[Tombstone, int]] = {}
        self._store, self._host, self._region, self._clock = store, host, region, clock
        self._made_at: dict[str, float] = {}
        """Topic -> this broker's monotonic time when it heard of its tombstone; of those that were made since it
        started.
        """
        self._started = False
        self._news: dict[str, None] = {}
        """Topics whose tombstones were heard, or have changed, since the last look at them."""
        self._to_unload: dict[str, None] = {}
        """Topics that have a tombstone, and may be loaded here still, as nothing was unloaded since it was heard."""
        self._returned: list[Tombstone] = []
        self._stop_watch: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()
        self._tasks = TaskSet("purging of deleted topics has ended")

    async def start(self) -> None:
        """Returns once every tombstone is known."""
        self._stop_watch = self._store.watch(TOMBSTONES, self._heard)
        await self._store.synced(TOMBSTONES)
        self._started = True

    def run(self) -> None:
        """From here on what is due is purged."""
        self._tasks.spawn(self._run())

    async def stop(self) -> None:
        self._stop_watch()
        await self._tasks.close()

    def of(self, topic: TopicName) -> Tombstone | None:
        """Returns what deleted the topic: a tombstone of its namespace, of the partitioned topic that it is a part of,
        or of itself; one that asks has deleted nothing.
        """
        if self.known:
            for name in (topic.namespace, str(topic.partitioned), str(topic)):
                if (found := self.known.get(name)) is not None and not found[0].asks:
                    return found[0]
        return None

    def longest_s(self, namespace: str) -> float:
        """How long something that was deleted in the namespace can still be brought back, or the namespace itself where
        its tombstone asks; 0: nothing was deleted.
        """
        within, now = f"persistent://{namespace}/", self._clock.latest_ms()
        known = (found for found, _ in self.known.values())
        inner = (
            found for found in known if found.topic.startswith(within) or (found.topic == namespace and found.asks)
        )
        return max([0.0, *((found.until_ms - now) / 1000 for found in inner)])

    async def bury(
        self, name: str, regions: Sequence[str], *, grace_s: float, by: str = "", partitions: int = 0
    ) -> Tombstone:
        """Deletes a topic, or a namespace, in every region that hears of it, and here before this returns. Where a
        tombstone asks, this is the answer that it is to go; where one stands, its grace period may end earlier by this,
        and never later.

        regions: where there may be copies. grace_s: how long it can be brought back. Returns what stands. Raises
        AlreadyExists (it was deleted before, and goes as early), and what the metadata raises: without a majority of
        the configuration nothing is deleted.
        """
        key, now = tombstone(name), self._clock.latest_ms()
        made = Tombstone(
            topic=name,
            regions=tuple(regions),
            since_ms=now,
            until_ms=now + int(grace_s * 1000),
            by=by,
            partitions=partitions,
        )
        deleted_before = AlreadyExists(f"{name} was deleted before: `heliograph dr deletions` shows when its data goes")
        before, expected = await self._store.get(key), ABSENT
        if before is not None:
            old, expected = Tombstone.decode(before[0]), before[1]
            if old.asks:
                made = replace(made, sure=True)
            elif not old.purging and made.until_ms < old.until_ms:
                made = replace(old, until_ms=made.until_ms)
            else:
                raise deleted_before
        try:
            version = await self._store.put(key, made.encode(), expected=expected)
        except VersionConflict:
            raise deleted_before from None
        self._heard(key, made.encode(), version)
        await self._unload([name])
        return made

    def _heard(self, key: str, value: bytes | None, version: int) -> None:
        topic = key.removeprefix(TOMBSTONES)
        try:
            if value is None:
                self._made_at.pop(topic, None)
                self._to_unload.pop(topic, None)
                gone = self.known.pop(topic, None)
                if gone is not None and self._region not in gone[0].purging and not gone[0].asks:
                    self._returned.append(gone[0])
            else:
                found, before = Tombstone.decode(value), self.known.get(topic)
                self.known[topic] = (found, version)
                self._news[topic] = None
                if found.asks:
                    self._to_unload.pop(topic, None)
                elif before is None or before[0].asks or before[0].since_ms != found.since_ms:
                    self._to_unload[topic] = None
                if found.asks and before is not None and not before[0].asks:
                    self._returned.append(found)
                if self._started and (before is None or before[0].since_ms != found.since_ms):
                    self._made_at[topic] = self._clock.monotonic()
        except CorruptData as error:
            log.error("tombstone.unreadable", extra={"topic": topic, "error": str(error)})
        self._changed.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        sweep_at = loop.time()
        while True:
            self._changed.clear()
            if self._to_unload:
                await self._unload(list(self._to_unload))
            news, self._news = self._news, {}
            if loop.time() < sweep_at:
                await self._look(news)
            else:
                await self._look(list(self.known))
                sweep_at = loop.time() + self.settings.sweep_s
            returned, self._returned = self._returned, []
            for found in returned:
                try:
                    await self._host.back(found)
                except HeliographError as error:  # whoever uses it loads it
                    log.info("tombstone.not_loaded", extra={"topic": found.topic, "error": str(error)})
            try:
                async with asyncio.timeout_at(sweep_at):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _unload(self, topics: Sequence[str]) -> None:
        """Once for each tombstone: while it is known nothing is loaded under it."""
        for topic in topics:
            self._to_unload.pop(topic, None)
        try:
            await self._host.unload(topics)
        except HeliographError as error:  # the next sweep tries again
            log.info("tombstone.waits", extra={"topics": len(topics), "error": str(error)})
            self._to_unload.update(
                (topic, None) for topic in topics if topic in self.known and not self.known[topic][0].asks
            )

    async def _look(self, topics: Iterable[str]) -> None:
        """Settles what is due of them. There may be very many, and mostly their grace periods have not ended."""
        now_ms, waits, pace = self._clock.wall_ms(), set[str](), RowPace()
        for topic in topics:
            await pace.row()
            found, version = self.known.get(topic, (None, 0))
            if found is None or found.asks or found.until_ms > now_ms:
                continue
            try:
                await self.settle(found, version, waits)
            except HeliographError as error:  # the next sweep tries again
                log.info("tombstone.waits", extra={"topic": topic, "error": str(error)})

    async def settle(self, found: Tombstone, version: int, waits: set[str]) -> None:
        """Purges it here where that is due, and takes the tombstone away where it was the last. waits: regions that
        this sweep has found to be waited for; those that it finds are added. Raises HeliographError.
        """
        if self._region in found.regions and self._region not in found.purged:
            if not self._over(found) or await self._asked(found, version):
                return
            if self._region not in found.purging:  # said first: whoever brings it back sees that, or this fails
                await self._put(replace(found, purging=(*found.purging, self._region)), version)
            elif await self._stands(found, version) and await self._host.purge(
                found, lambda: self._stands(found, version)
            ):
                log.warning("topic.purged", extra={"topic": found.topic, "region": self._region})
                await self._put(replace(found, purged=(*found.purged, self._region)), version)
        elif await self._deleted(found, waits) and not await self._asked(found, version):
            if not await self._stands(found, version):
                return
            await self._host.forget(found, version)
            try:
                await self._store.delete(tombstone(found.topic), expected=version)
            except VersionConflict:
                return

    async def _stands(self, found: Tombstone, version: int) -> bool:
        """Whether it is what it was when this sweep came to it; else another was faster, and the name may be somebody's
        by now.
        """
        truth = await self._store.get(tombstone(found.topic))
        return truth is not None and truth[1] == version

    async def _deleted(self, found: Tombstone, waits: set[str]) -> bool:
        """Whether no region has anything of it: each has purged it, or is deleted itself. A region that this
        configuration never had may only be younger than it, and is waited for. waits: as `settle` has it, so that a
        region that is away is asked about once a sweep, and not once a tombstone.
        """
        away = set(found.regions).difference(found.purged)
        if not waits.isdisjoint(away):
            return False
        for region in sorted(away):
            if await self._store.get(keys.region(region)) is not None:
                waits.add(region)
                return False
        if not away:
            return True
        async for rows in pages_under(self._store, keys.REGION_NUMBERS):
            away.difference_update(name.decode("utf-8", "replace") for _, name, _ in rows)
        waits.update(away)
        return not away

    async def _asked(self, found: Tombstone, version: int) -> bool:
        """Whether it asks from now on, because something was made here under its name behind it."""
        if found.sure or await self._host.made_ms(found) <= found.since_ms:
            return False
        log.warning("tombstone.asks", extra={"topic": found.topic, "region": self._region})
        why = f"something of that name in {self._region} was made after it was deleted"
        await self._put(replace(found, asks=why), version)
        return True

    def _over(self, found: Tombstone) -> bool:
        """Its grace period; a clock that is wrong makes it longer, never shorter."""
        if self._clock.wall_ms() < found.until_ms:
            return False
        made = self._made_at.get(found.topic)
        return made is None or (self._clock.monotonic() - made) * 1000 >= found.until_ms - found.since_ms

    async def _put(self, changed: Tombstone, version: int) -> None:
        try:
            await self._store.put(tombstone(changed.topic), changed.encode(), expected=version)
        except VersionConflict:
            pass  # another region, or another broker of this one, was faster: its version is on its way here
