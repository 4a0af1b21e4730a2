"""IdleIds: transactional ids that nobody has used for long are forgotten, and offsets that ended transactions left.

Is: looking, now and then, which records of ids have not changed since the last look, and deleting those that have not
for as long as the settings say; and, where there are as many as may be, making room for others.
Isn't: a record's meaning (`kafka_transactions`).
Invariants: an id that changed is never deleted: what was seen is its record's version, and the deletion checks it; one
whose transaction has not ended stays. A record needs no time in it, so brokers of other versions may change it
meanwhile: that is another version.
Bounds: an id goes at the first look after its time, looks being a twenty-fourth of it apart (a minute to an hour); one
read of a look is a page.
Source: Kafka's transactional.id.expiration.ms; docs/protocols/kafka.md, "Transactions".

    /kafka/idle-transactions/{id}  ->  [1, version of the id's record, wall ms when that was first seen]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heapreplace
from urllib.parse import unquote

import msgpack

from heliograph.kv.metadata_store import Check, Delete, MetadataStore, Op, Put, pages_under, rows_under
from heliograph.model.errors import CorruptData, VersionConflict
from heliograph.runtime.clock import Clock
from heliograph.runtime.throttle import RowPace

log = logging.getLogger("region_node.kafka")

IDLE, PRODUCERS, OWNERS = "/kafka/idle-transactions/", "/kafka/producers/", "/kafka/producer-owners/"
ASKED = "/kafka/producer-epochs/"
TXN_OFFSETS = "/kafka/txn-offsets/"
FORMAT = 1
ROOM_S = 10.0
"""So long nobody looks again for ids that may go where none could."""
_FORGOTTEN_AT_ONCE = 32
_LOOKS = 24
_LOOK_S = (60.0, 3600.0)
_PUTS_A_WRITE = 500


class IdleIds:
    """Forgets idle ids that one broker coordinates. `expire_s` below 0: none. `prefix`: where records of ids lie."""

    def __init__(self, meta: MetadataStore, clock: Clock, expire_s: float, prefix: str) -> None:
        self._meta, self._clock, self._expire_s, self._prefix = meta, clock, expire_s, prefix
        self._every_s = min(max(expire_s / _LOOKS, _LOOK_S[0]), _LOOK_S[1])
        self._looked_at = clock.monotonic()
        self.making_room = asyncio.Lock()
        """Held around `make_room`: whoever waited for it may have room by then."""
        self._none_until = self._looked_at

    def due(self) -> bool:
        """Whether it is time for the next look; then `look` is to be called."""
        now = self._clock.monotonic()
        if self._expire_s < 0 or now - self._looked_at < self._every_s:
            return False
        self._looked_at = now
        return True

    async def look(self, mine: Callable[[str], bool], idle: Callable[[str, bytes, int], int | None]) -> int:
        """Forgets ids, and returns how many. mine: whether this broker coordinates that id. idle: (id, record, version)
        -> its producer where the id is in no transaction. Raises what the metadata raises: what was not looked at is at
        the next look.
        """
        seen = await self._seen()
        now_ms, forgotten = self._clock.wall_ms(), 0
        marks: list[Op] = []
        async for rows in pages_under(self._meta, self._prefix):
            for key, blob, version in rows:
                quoted = key.removeprefix(self._prefix)
                transactional_id = unquote(quoted)
                if not mine(transactional_id):
                    continue
                found = seen.get(quoted)
                if found is None or found[0] != version:
                    packed: bytes = msgpack.packb([FORMAT, version, now_ms])
                    marks.append(Put(IDLE + quoted, packed))
                elif (
                    now_ms - found[1] >= self._expire_s * 1000
                    and (producer := idle(transactional_id, blob, version)) is not None
                ):
                    forgotten += await self._forget(quoted, version, producer)
        for first in range(0, len(marks), _PUTS_A_WRITE):
            await self._meta.txn(marks[first : first + _PUTS_A_WRITE])
        if forgotten:
            log.info("kafka.transactional_ids_expired", extra={"ids": forgotten})
        return forgotten

    async def make_room(
        self, most_ids: int, count: int, mine: Callable[[str], bool], idle: Callable[[str, bytes, int], int | None]
    ) -> int:
        """Where there are `most_ids` of mine or more, forgets at most `count` that are in no transaction: one after
        another of the role that has most of them, those that changed longest ago first. Returns how many there are
        then. mine, idle: as for `look`. Raises what the metadata raises.
        """
        if self._clock.monotonic() < self._none_until:
            return most_ids
        (left, there), forgotten = await self._idle_by_role(mine, idle), 0
        if there < most_ids:
            return there
        most = [(-len(ids), role) for role, ids in left.items()]
        heapify(most)
        doomed: list[tuple[int, str, int]] = []
        while most and len(doomed) < count:
            role = most[0][1]
            doomed.append(left[role].pop())
            if left[role]:
                heapreplace(most, (-len(left[role]), role))
            else:
                heappop(most)
        for first in range(0, len(doomed), _FORGOTTEN_AT_ONCE):
            forgotten += sum(
                await asyncio.gather(
                    *(
                        self._forget(quoted, version, producer)
                        for version, quoted, producer in doomed[first : first + _FORGOTTEN_AT_ONCE]
                    )
                )
            )
        if not forgotten:
            self._none_until = self._clock.monotonic() + ROOM_S
        log.info("kafka.transactional_ids_made_room", extra={"ids": forgotten})
        return there - forgotten

    async def _idle_by_role(
        self, mine: Callable[[str], bool], idle: Callable[[str, bytes, int], int | None]
    ) -> tuple[dict[bytes, list[tuple[int, str, int]]], int]:
        """(owner, as it is stored -> (version, id, producer) of what is in no transaction, the longest unused last; how
        many are mine, with what is in one).
        """
        found, owners, pace, there = dict[int, tuple[int, str, int]](), dict[int, bytes](), RowPace(), 0
        async for rows in pages_under(self._meta, self._prefix):
            for key, blob, version in rows:
                await pace.row()
                quoted = key.removeprefix(self._prefix)
                transactional_id = unquote(quoted)
                if not mine(transactional_id):
                    continue
                there += 1
                if (producer := idle(transactional_id, blob, version)) is not None:
                    found[producer] = version, quoted, producer
        async for rows in pages_under(self._meta, OWNERS):
            for key, blob, _ in rows:
                await pace.row()
                if (producer := int(key.removeprefix(OWNERS))) in found:
                    owners[producer] = blob
        by_role: dict[bytes, list[tuple[int, str, int]]] = {}
        for producer, each in found.items():
            await pace.row()
            by_role.setdefault(owners.get(producer, b""), []).append(each)
        for ids in by_role.values():
            ids.sort(reverse=True)
        return by_role, there

    async def forget_left(self, mine: Callable[[str], bool], between: Callable[[str], Awaitable[int | None]]) -> None:
        """Offsets that lie there although their id is in no transaction, as earlier versions may have left them: they
        would be committed with its next one. between: the version of an id's record where it is in none, else None.
        Raises what the metadata raises.
        """
        left: dict[str, list[str]] = {}
        async for rows in pages_under(self._meta, TXN_OFFSETS):
            for key, _, _ in rows:
                left.setdefault(key.removeprefix(TXN_OFFSETS).partition("/")[0], []).append(key)
        for quoted, keys in left.items():
            if not mine(unquote(quoted)) or (version := await between(unquote(quoted))) is None:
                continue
            try:
                for first in range(0, len(keys), _PUTS_A_WRITE):
                    doomed = [Delete(key) for key in keys[first : first + _PUTS_A_WRITE]]
                    await self._meta.txn([Check(self._prefix + quoted, version), *doomed])
            except VersionConflict:  # it is used again, and says itself what counts
                continue
            log.warning("kafka.txn_offsets_left", extra={"id": unquote(quoted), "rows": len(keys)})

    async def _forget(self, quoted: str, version: int, producer: int) -> bool:
        left = await rows_under(self._meta, f"{TXN_OFFSETS}{quoted}/")
        try:
            await self._meta.txn(
                [
                    Delete(self._prefix + quoted, expected=version),
                    *deletions(producer),
                    Delete(IDLE + quoted),
                    *(Delete(key) for key, _, _ in left[:_PUTS_A_WRITE]),
                ]
            )
        except VersionConflict:  # it is used again
            return False
        return True

    async def _seen(self) -> dict[str, tuple[int, int]]:
        """id -> (version, since when); marks that cannot be read are made anew."""
        seen: dict[str, tuple[int, int]] = {}
        async for rows in pages_under(self._meta, IDLE):
            for key, blob, _ in rows:
                try:
                    number, version, since_ms = msgpack.unpackb(blob)
                    if number != FORMAT:
                        raise CorruptData(f"format {number}; this version reads {FORMAT}")
                    seen[key.removeprefix(IDLE)] = int(version), int(since_ms)
                except (ValueError, TypeError, msgpack.exceptions.UnpackException, CorruptData) as error:
                    log.warning(
                        "kafka.idle_mark_bad", extra={"id": unquote(key.removeprefix(IDLE)), "error": str(error)}
                    )
        return seen


def producer_key(producer: int) -> str:
    """What brokers that lead partitions know of a transactional producer."""
    return f"{PRODUCERS}{producer:020d}"


def asked_key(producer: int) -> str:
    """With which epoch a transactional producer itself asked for its next one last."""
    return f"{ASKED}{producer:020d}"


def owner_key(producer: int) -> str:
    """Whose transactional producer it is."""
    return f"{OWNERS}{producer:020d}"


def deletions(producer: int) -> list[Op]:
    """Returns what deletes all that is stored of a transactional producer."""
    return [Delete(key) for key in (producer_key(producer), owner_key(producer), asked_key(producer))]
