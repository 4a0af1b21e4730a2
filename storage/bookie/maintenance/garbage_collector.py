"""GarbageCollector: deletes on a bookie the ledgers that the region's metadata does not know any more, and gives up
copies that it does not name.

Is: the rules when a ledger may go (`GarbageRules`, a core), and the shell that asks the metadata and tells the bookie.
Isn't: the removal of blocks (a deleted ledger's bytes go with its logs, or by compaction).
Invariants: a ledger goes only where two passes in a row, some time apart, each linearizable and of the same instance
id, did not find it; never where more than a fifth of what is here would go, or where the metadata is another than the
one this bookie knew, until an operator confirms; what goes is journalled, and its id stays dead.
A copy that was made elsewhere while this bookie was away is *surplus*. It goes by the same passes, but without a
tombstone, and its fence stays: the bookie may be its spare tomorrow. Nothing goes that has a mark of auto-recovery,
read before the metadata, or of which an entry came since before that: the mark stands from before the first copied
entry until after the copy is named.
A ledger is in the metadata before its first entry is sent, and the ledgers here are listed before the metadata is read:
what is not found was deleted. A restore of the metadata must put another text at the key `/instance`. Where the
metadata went back without that, as its disk or machine does that is put back to a snapshot, a ledger made since looks
deleted: so the bookie keeps a mark there (`local_meta.metadata_age`), puts it anew once a minute, and reads it each few
seconds; and a ledger here whose id is still to be given out, or was passed over (`local_meta.ledger_ids`), is proof,
too. Then nothing goes, also not by the word of a broker, until the metadata is another one, or an operator confirms.
Source: docs/protocols/storage.md, "Auto-recovery" and "Garbage".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgpack

from heliograph.kv.metadata_store import MetadataStore, prefix_end
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import ConfigError, DiskFailed, HeliographError, MetadataError, NotAllowed
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.clock import Rng
from heliograph.runtime.disk import Buffer
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.bookie_frames import BookieCode, Kind, encode
from local_meta import keys
from local_meta.ledger_ids import passed_over
from local_meta.metadata_age import MetadataWentBack, check_mark, put_mark
from local_meta.metadata_id import instance_of
from storage.bookie.journal.checkpoint import KnownMetadata
from storage.bookie.serving.bookie import Bookie
from storage.ledger.repair.lost_bookies import is_surplus

log = logging.getLogger("storage.bookie.garbage")

_DELETES_A_RECORD = 500
_GLANCE_S = 5.0
"""How often it reads its mark between the looks."""
_FIRST_PASS_S = 60.0
"""After the start: a new bookie should know its metadata before somebody restores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    interval_s: float = 900.0
    """How long it waits between two passes."""
    apart_s: float = 60.0
    """At least so long must a ledger be missing from the metadata."""
    look_s: float = 60.0
    """How often it looks between the passes whether the metadata went back; each look is two small writes."""
    page_ledgers: int = 10_000

    def __post_init__(self) -> None:
        if min(self.interval_s, self.look_s) <= 0 or self.apart_s < 0 or self.page_ledgers < 1:
            raise ConfigError(
                "interval_s, look_s, and page_ledgers of the garbage collection must be above 0, apart_s not below"
            )


class GarbageRules:
    """What one pass after another allows. `instance`: the id of the metadata that this bookie knows; "" before the
    first contact.
    """

    def __init__(self, instance: str, apart_s: float = 0.0) -> None:
        self.instance, self._apart_s = instance, apart_s
        self.refusal = ""
        """Why nothing is deleted until an operator confirms; "" where it is."""
        self.suspects: dict[int, float] = {}
        """What the last pass did not find -> when that began."""
        self._seen = instance
        self._confirmed: dict[int, float] = {}

    def on_doubt(self, doubt: str) -> None:
        """The metadata went back, as `doubt` says: nothing is a suspect any more."""
        self.suspects, self.refusal = {}, doubt

    def on_pass(self, instance: str, held: int, absent: Sequence[int], now: float = 0.0) -> list[int]:
        """One pass that began at `now` found `absent` of the `held` ledgers to be gone from the metadata. Returns those
        that may be deleted now.
        """
        self._seen = instance
        if instance != self.instance:
            self.suspects = {}
            self.refusal = (
                f"the metadata is instance {instance}, this bookie knows {self.instance}: it was restored or is "
                "another region's; confirm it"
            )
            return []
        before = self.suspects
        self.suspects = {ledger: before.get(ledger, now) for ledger in absent}
        if len(absent) * 5 > held and any(ledger not in self._confirmed for ledger in absent):
            self.refusal = (
                f"{len(absent)} of {held} ledgers are gone from the metadata, more than a fifth: look there, then "
                "confirm it"
            )
            return []
        self.refusal = ""
        return [ledger for ledger in absent if ledger in before and now - before[ledger] >= self._apart_s]

    def on_broken_pass(self) -> None:
        """A pass that did not come to its end: the next one is a first one."""
        self.suspects = {}

    def confirm(self) -> str:
        """An operator takes the last refusal back, for exactly what was refused. Returns the instance id to know from
        now on.
        """
        self.instance, self._confirmed, self.refusal = self._seen, self.suspects, ""
        return self.instance


class Suspects:
    """What each of several passes in a row found, and since when."""

    def __init__(self, apart_s: float = 0.0) -> None:
        self.since: dict[int, float] = {}
        self._apart_s = apart_s

    def on_pass(self, found: Sequence[int], now: float) -> list[int]:
        """Returns those that an earlier pass had found too, at least `apart_s` before."""
        before = self.since
        self.since = {ledger: before.get(ledger, now) for ledger in found}
        return [ledger for ledger in found if ledger in before and now - before[ledger] >= self._apart_s]

    def on_broken_pass(self) -> None:
        self.since = {}


class GarbageCollector:
    """One bookie's. Attributes are for reading."""

    def __init__(self, bookie: Bookie, meta: MetadataStore, settings: CollectorSettings, *, rng: Rng) -> None:
        self._bookie, self._meta, self._settings, self._rng = bookie, meta, settings, rng
        self.rules = GarbageRules(bookie.known_metadata.instance, settings.apart_s)
        self.surplus = Suspects(settings.apart_s)
        self.passes = self.deleted = self.given_up = 0
        """Passes, ledgers deleted, surplus copies given up."""
        self.trouble = ""
        """Why the last pass did not come to its end; "" where it did."""
        self.went_back = ""
        """Why the metadata is not what it was; "" where it is."""
        self._strange = ""
        """The same, as the last pass found it by the ledgers here."""
        self._mark = keys.seen_by_bookie(bookie.bookie_id)
        self._looks = 0
        """Those that came to their end. The first keeps a mark on the disks, the second says in the metadata that it is
        there.
        """
        self._name: bytes = msgpack.packb(bookie.bookie_id)
        self._wake, self._one_at_a_time = asyncio.Event(), asyncio.Lock()
        self._tasks = TaskSet("the garbage collection of the bookie has ended")

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def stop(self) -> None:
        await self._tasks.close()

    def run_soon(self) -> None:
        """Wakes the task, so that the next pass begins at once, or right after the one that runs."""
        self._wake.set()

    async def confirm(self) -> None:
        """What was refused is meant so: it goes in the passes to come. Raises DiskFailed."""
        async with self._one_at_a_time:
            known = self._bookie.known_metadata
            instance = self.rules.confirm()
            if self.went_back or instance != known.instance:
                await self._know(KnownMetadata(instance, judged=self._bookie.highest_ledger() + 1))
                self._strange = ""
                self._tell("")
        self.run_soon()

    async def look(self) -> None:
        """Whether the metadata went back. A look that did not come to its end says nothing."""
        async with self._one_at_a_time:
            if self._bookie.limbo:  # nothing is written there
                return
            try:
                await self._trusted()
                self._looks += 1
            except HeliographError as error:  # of the metadata, also one of an earlier version, or of our disks
                self.trouble = str(error)

    async def glance(self) -> None:
        """Looks at once where the mark says that the metadata went back, or none of this start is known to be kept."""
        known = self._bookie.known_metadata
        if self._looks < 2:
            await self.look()
        if self._bookie.limbo or self.went_back or not known.seen:
            return
        try:
            await check_mark(self._meta, self._mark, known.seen)
        except MetadataWentBack:
            await self.look()
        except (MetadataError, NotAllowed):
            pass  # away, or of another version: the next one asks again

    async def _run(self) -> None:
        """Learns which metadata this bookie belongs to long before the first pass: learnt after a restore, a restored
        one would be taken for it. A directory from before this start is an older copy from the second look on.
        """
        for _ in range(2):
            await self.look()
        self._tasks.spawn(every(lambda: self._settings.look_s * self._rng.uniform(0.8, 1.0), self.look))
        self._tasks.spawn(every(lambda: _GLANCE_S * self._rng.uniform(0.8, 1.0), self.glance))
        await every(
            lambda: self._settings.interval_s * self._rng.uniform(0.8, 1.0),
            self.once,
            first_s=min(_FIRST_PASS_S, self._settings.interval_s),
            wake=self._wake,
        )

    async def once(self) -> None:
        """One pass, and the deletions that it allows."""
        async with self._one_at_a_time:
            await self._pass()

    async def _pass(self) -> None:
        now = asyncio.get_running_loop().time()
        if nothing_written := self._bookie.limbo or self._bookie.failure:
            self.trouble = nothing_written
            return
        try:
            if not await self._trusted():
                self.passes += 1
                self.surplus.on_broken_pass()
                return
            self._bookie.watch(self.surplus.since)
            instance, held, absent, surplus = await self._look()
            self._strange = await self._passed_over(absent) if instance == self.rules.instance else ""
            self._tell(self._strange)
            self.passes += 1
            if self._strange:
                self.rules.on_doubt(self._strange)
                self.surplus.on_broken_pass()
                return
            doomed = self.rules.on_pass(instance, held, absent, now)
            if self.rules.refusal:
                self.surplus.on_broken_pass()
            else:
                self.given_up += sum(map(self._bookie.forget, self.surplus.on_pass(surplus, now)))
            for at in range(0, len(doomed), _DELETES_A_RECORD):
                await self._delete(doomed[at : at + _DELETES_A_RECORD])
            self.trouble = ""
        except HeliographError as error:  # of the metadata, also one of an earlier version, or of our disks
            self.rules.on_broken_pass()
            self.surplus.on_broken_pass()
            self.trouble = str(error)

    async def _trusted(self) -> bool:
        """Whether the metadata is what it was, or a later state of it; one with another id is judged by the rules.
        Raises what the metadata raises, DiskFailed.
        """
        held = self._bookie.highest_ledger()  # before the counter is asked
        instance = await instance_of(self._meta, self._rng)
        writes = not self._bookie.failure  # else no mark is put: it could not be kept
        if not self.rules.instance and writes:
            await self._know(KnownMetadata(instance))
            self.rules = GarbageRules(instance, self._settings.apart_s)
        known = self._bookie.known_metadata
        if instance != known.instance:
            return True
        doubt, seen = known.doubt, known.seen
        if not doubt:
            try:
                if writes:
                    seen = await put_mark(self._meta, self._mark, seen, self._bookie.mark_kept)
                else:
                    await check_mark(self._meta, self._mark, seen)
            except MetadataWentBack as error:
                doubt = str(error)
        upcoming = await self._meta.next_ids(keys.LEDGER_IDS, 0)
        if held >= upcoming and not doubt:
            doubt = (
                f"the metadata went back: it would give out ledger {upcoming} next, and this bookie holds, or held, "
                f"ledger {held}"
            )
            known = replace(known, doubt=doubt)
        if seen != self._bookie.known_metadata.seen:
            await self._know(replace(known, seen=seen))
        if held >= upcoming:  # what shows it is written down: no id shall come again
            await self._meta.next_ids(keys.LEDGER_IDS, at_least=held + 1)
        if doubt:
            self.rules.on_doubt(doubt)
        self._tell(doubt or self._strange)
        return not doubt

    def _tell(self, doubt: str) -> None:
        if doubt and not self.went_back:
            highest = self._bookie.highest_ledger()
            log.warning(
                "bookie.metadata_went_back", extra={"bookie": self._bookie.bookie_id, "why": doubt, "held": highest}
            )
        self.went_back = self._bookie.keeps = doubt

    async def _passed_over(self, absent: Sequence[int]) -> str:
        """Why some of these were made by another state of the metadata than this one; "" where none was. Raises what
        the metadata raises.
        """
        known = self._bookie.known_metadata
        never_given = await passed_over(self._meta)
        found = [ledger for ledger in absent if ledger >= known.judged and ledger in never_given]
        if not found:
            return ""
        return (
            f"the metadata went back, or has come back: it never gave out the id of ledger {found[0]}, which this "
            f"bookie holds, nor those of {len(found) - 1} more: they were made while it was in another state, and what "
            "was published then may lie in them"
        )

    async def _look(self) -> tuple[str, int, list[int], list[int]]:
        """(instance id, ledgers held here, those of them that the metadata does not know, those whose copies are
        elsewhere).
        """
        here = self._bookie.ledgers()
        instance = await instance_of(self._meta, self._rng)
        marked = await self._marked()
        absent = dict.fromkeys(here)
        surplus: list[int] = []
        at, end = keys.LEDGERS, prefix_end(keys.LEDGERS)
        while True:
            page = await self._meta.range(at, end, limit=self._settings.page_ledgers)
            for key, blob, _ in page:
                ledger = keys.ledger_of(key)
                if ledger in absent:
                    del absent[ledger]
                    if ledger not in marked and self._is_surplus(key, blob):
                        surplus.append(ledger)
            if len(page) < self._settings.page_ledgers:
                break
            at = page[-1][0] + "\0"
        if await instance_of(self._meta, self._rng) != instance:
            raise MetadataError("the instance id of the metadata changed during a pass")
        if instance == self._bookie.known_metadata.instance:
            await check_mark(self._meta, self._mark, self._bookie.known_metadata.seen)
        return instance, len(here), list(absent), surplus

    async def _marked(self) -> dict[int, None]:
        """Ledgers that auto-recovery is about to copy, or is copying."""
        marked: dict[int, None] = {}
        at, end = keys.UNDERREPLICATED, prefix_end(keys.UNDERREPLICATED)
        while page := await self._meta.range(at, end, limit=self._settings.page_ledgers):
            marked |= dict.fromkeys(keys.ledger_of(key) for key, _, _ in page)
            at = page[-1][0] + "\0"
        return marked

    def _is_surplus(self, key: str, blob: bytes) -> bool:
        """Looks for its own name in the bytes first: most ledgers held here name this bookie."""
        if self._name in blob:
            return False
        metadata = readable(LedgerMetadata.decode, key, blob)  # of a later version: whoever wrote it knows better
        return metadata is not None and is_surplus(metadata, self._bookie.bookie_id)

    async def _know(self, known: KnownMetadata) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def saved(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(DiskFailed(f"what is known of the metadata cannot be written down: {error}"))

        self._bookie.know_metadata(known, saved)
        await done

    async def _delete(self, ledgers: Sequence[int]) -> None:
        """Durable when it returns. Raises DiskFailed."""
        peer = _Deletions(len(ledgers))
        frames = [encode(Kind.DELETE, ledger=ledger, request=request) for request, ledger in enumerate(ledgers)]
        ends = [len(frames[0]) * (index + 1) for index in range(len(frames))]
        self._bookie.on_frames(memoryview(b"".join(frames)), ends, peer)
        self._bookie.commit()
        await peer.finished
        self.deleted += len(ledgers)


class _Deletions:
    """A `Peer` that only waits until all its requests are answered."""

    def __init__(self, count: int) -> None:
        self.refused: dict[int, int] = {}
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = count

    def acked(self, ledger: int, writer: int, through: int) -> None: ...

    def flush(self) -> None: ...

    def lost(self, ledger: int, writer: int, code: BookieCode, text: str) -> None: ...

    def answer(self, request: int, code: BookieCode, entry: int, value: int, body: Sequence[Buffer]) -> None:
        self._left -= 1
        if self.finished.done():
            return
        if code != BookieCode.OK:
            self.finished.set_exception(DiskFailed(b"".join(body).decode(errors="replace")))
        elif not self._left:
            self.finished.set_result(None)

    def resume(self) -> None: ...
