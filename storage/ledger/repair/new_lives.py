"""NewLives: what it costs that a bookie begins a new life, the grant of it, and the marks by which it gets its copies
again.

Is: an operator's decision about a bookie that came without its directories, carried out; and the auditor's part in it.
Isn't: the judgement of a bookie (`storage.bookie.serving.enrolment`), or the copies (`ledger_repair`).
Invariants: nobody but an operator grants a new life, and never, unless forced, where the bookie may have the only copy
of something. A grant names every ledger made before it (`BookieCookie.floor`); the bookie never says of those that
something is absent. Each of them gets a mark; how far that has come is written down, so that any auditor goes on.
That a life is whole is the auditor's word, which alone knows of ledgers that were open: no broker says so before it is
written down.
Source: docs/protocols/storage.md, "Identity".
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import msgpack

from heliograph.kv.metadata_store import pages_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import NotAllowed, VersionConflict
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState, pack, unpack
from local_meta import keys
from storage.ledger.bookies.bookie_cookie import BookieCookie
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.underreplicated_marks import Mark, mark_lacking

log = logging.getLogger("storage.ledger.new_lives")

_PAGE = 200
"""Ledgers looked at in a step of the auditor."""
LISTED_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLife:
    """What a bookie has lost, or would lose by a new life, as far as that is not made good. An entry counts where the
    bookie should have a copy.
    """

    bookie: str
    state: str
    """`limbo`: it waits for an operator. `granted`: it begins as soon as it hears of that. `filling`: it gets its
    copies again. `whole`: it has all of which there is a copy, and the auditor has written that down.
    """
    ledgers_left: int
    """Ledgers that lack its copy."""
    bytes_left: int
    """An estimate: the sizes of those ledgers."""
    one_copy_ledgers: int
    """How many of those have an entry with one copy only, on another bookie."""
    one_copy: tuple[int, ...]
    """The first LISTED_MAX of them."""
    no_copy_ledgers: int
    """How many have an entry of which no other bookie that is there is known to have a copy."""
    no_copy: tuple[int, ...]
    unread_ledgers: int
    """How many ledgers' records cannot be read, and have its name in them: what others have of those is not known."""
    unread: tuple[int, ...]
    lost_ledgers: int
    """How many ledgers that name it have entries of which no bookie of the region has a copy, all having been asked:
    what is missing of those comes from elsewhere, or is lost.
    """
    lost_topics: tuple[str, ...]
    """Their topics, the first LISTED_MAX of them."""


class NewLives:
    """One broker's. marks: what is marked, by ledger, as its watch says."""

    def __init__(self, context: LedgerContext, marks: Callable[[int], Mark]) -> None:
        self._context, self._mark = context, marks
        self._cookies: dict[str, tuple[BookieCookie, int]] = {}
        self._open: dict[str, dict[int, None]] = {}
        """By bookie: ledgers below `marked` whose last fragment names it and was not closed when it was looked at."""
        self._look_again_at = 0.0
        self._scanned = False
        """Whether this auditor has looked at every ledger, since it is the auditor: else `_open` may lack some."""
        self._begins = True
        """Whether it has not yet begun the marks anew of lives that are not known to be whole."""
        self._said: dict[str, int] = {}
        """Bookie -> the floor of its life that is written down as whole."""

    def on_cookie(self, key: str, value: bytes | None, version: int) -> None:
        """The watch on `/bookie-cookies/` calls it."""
        bookie = keys.id_of(key)
        self._cookies.pop(bookie, None)
        if value is not None and (cookie := readable(BookieCookie.decode, key, value)) is not None:
            self._cookies[bookie] = cookie, version

    def forgot(self, bookie: str, ledger: int) -> bool:
        """Whether the bookie may have lost what it had of a ledger, and nobody has marked that yet."""
        found = self._cookies.get(bookie)
        return found is not None and (
            found[0].marked <= ledger < found[0].floor or ledger in self._open.get(bookie, ())
        )

    @property
    def waits(self) -> bool:
        """Whether a ledger of which a bookie may have lost entries is open still."""
        return any(self._open.values())

    def on_elected(self) -> None:
        """This broker is the auditor from now on: what others found open it has to find itself, also where that was
        closed since, and nobody marked it.
        """
        self._scanned, self._begins = False, True

    def on_scan_ended(self) -> None:
        """Every ledger of the region was given to `on_scanned`."""
        self._scanned = True

    # -- for operators ------------------------------------------------------------------------------------------------

    async def look(self, bookie: str) -> NewLife:
        """Reads the metadata of every ledger of the region, so it takes a while. Raises what the metadata raises."""
        cookie = await self._cookie(bookie)
        told = not cookie.floor or await self._written(bookie) == cookie.floor
        doubt = self._context.pool.limbo.get(bookie, False)
        left = size = 0
        one: list[int] = []
        none: list[int] = []
        lost = 0
        topics: dict[str, None] = {}
        unread: list[int] = []
        async for metadata in self._named(bookie, unread):
            if self._mark(metadata.ledger).nowhere:
                lost += 1
                topics[metadata.topic] = None
            if (
                not doubt
                and not (cookie.granted and metadata.ledger < cookie.floor)
                and not self._lacks(bookie, metadata)
                and (told or not _is_open(metadata, bookie) or metadata.ledger >= cookie.floor)
            ):
                continue
            left, size = left + 1, size + metadata.size_bytes
            others = self._others(metadata, bookie)
            if others <= 1:
                (one if others else none).append(metadata.ledger)
        state = "granted" if cookie.granted else "limbo" if doubt else "whole" if told and not left else "filling"
        return NewLife(
            bookie=bookie,
            state=state,
            ledgers_left=left,
            bytes_left=size,
            one_copy_ledgers=len(one),
            one_copy=tuple(one[:LISTED_MAX]),
            no_copy_ledgers=len(none),
            no_copy=tuple(none[:LISTED_MAX]),
            unread_ledgers=len(unread),
            unread=tuple(unread[:LISTED_MAX]),
            lost_ledgers=lost,
            lost_topics=tuple(topics)[:LISTED_MAX],
        )

    async def grant(self, bookie: str, *, force: bool = False) -> NewLife:
        """The bookie may begin a new life on the directories it has; what it had is made again from the other copies.
        Idempotent. Returns the price.

        Raises NotAllowed where it is not in doubt which life of it this is, and, unless forced, where it may have the
        only copy of something; what the metadata raises.
        """
        if not self._context.pool.limbo.get(bookie, False):
            raise NotAllowed(
                f"bookie {bookie} is not in limbo for want of its directories (`heliograph bookies list`): it needs no "
                "new life"
            )
        meta, key = self._context.meta, keys.bookie_cookie(bookie)
        found = await meta.get(key)
        cookie, version = (BookieCookie.decode(found[0]), found[1]) if found is not None else (BookieCookie(), -1)
        price = await self.look(bookie)
        if price.no_copy_ledgers and not force:
            raise NotAllowed(
                f"of {price.no_copy_ledgers} ledgers no other bookie that is there is known to have a copy of all "
                f"entries (the first: {', '.join(map(str, price.no_copy[:5]))}): what only {bookie} had is lost by its "
                "new life. Start the other bookies, let the copies be made that are under way, or force it"
            )
        if price.unread_ledgers and not force:
            raise NotAllowed(
                f"the records of {price.unread_ledgers} ledgers cannot be read, and have {bookie} in them (the first: "
                f"{', '.join(map(str, price.unread[:5]))}): whether another bookie has a copy is not known. Where a "
                "later version wrote them, update this process; where they are damaged, restore the metadata; or force "
                "it"
            )
        if not cookie.granted:
            floor = await meta.next_ids(keys.LEDGER_IDS)
            await meta.put(key, replace(cookie, granted=True, floor=floor, marked=0).encode(), expected=version)
            log.warning("bookie.new_life", extra={"bookie": bookie, "floor": floor, "ledgers": price.ledgers_left})
        return replace(price, state="granted")

    async def _cookie(self, bookie: str) -> BookieCookie:
        found = await self._context.meta.get(keys.bookie_cookie(bookie))
        return BookieCookie.decode(found[0]) if found is not None else BookieCookie()

    async def _written(self, bookie: str) -> int:
        """The floor of its life that the auditor found to be whole; 0: of none."""
        found = await self._context.meta.get(keys.bookie_whole(bookie))
        return int(unpack("life of a bookie", found[0])[0]) if found is not None else 0

    async def _named(self, bookie: str, unread: list[int]) -> AsyncIterator[LedgerMetadata]:
        """The ledgers that name it where they have, or may have, an entry. unread: gets those whose record cannot be
        read, and has its name in it.
        """
        packed: bytes = msgpack.packb(bookie)
        async for page in pages_under(self._context.meta, keys.LEDGERS):
            for key, blob, _ in page:
                metadata = readable(LedgerMetadata.decode, key, blob)
                if metadata is None:
                    if packed in blob:
                        unread.append(keys.ledger_of(key))
                elif any(bookie in ensemble for _, ensemble in _held(metadata)):
                    yield metadata

    def _lacks(self, bookie: str, metadata: LedgerMetadata) -> bool:
        """Whether it is known that the bookie, as it is, may lack entries of the ledger of which there is a copy."""
        mark = self._mark(metadata.ledger)
        return (
            self._context.pool.lacks(bookie, metadata.ledger)
            or self.forgot(bookie, metadata.ledger)
            or (not mark.nowhere and (bookie in mark.lacking or bookie in mark.lost))
        )

    def _others(self, metadata: LedgerMetadata, bookie: str) -> int:
        """The fewest copies that others are known to have of an entry that the bookie should have."""
        pool, striping = self._context.pool, metadata.striping
        fewest = metadata.write_quorum - 1
        for _, ensemble in _held(metadata):
            good = [pool.registered(b) and not self._lacks(b, metadata) for b in ensemble]
            for others in striping.others(ensemble.index(bookie)) if bookie in ensemble else ():
                fewest = min(fewest, sum(good[place] for place in others))
        return fewest

    # -- the auditor's ------------------------------------------------------------------------------------------------

    def on_scanned(self, metadata: LedgerMetadata) -> list[str]:
        """Who of its last fragment may have lost entries that only its writer, or a recovery, makes good: of a ledger
        that is not closed. What an earlier auditor waited for is waited for again.
        """
        if metadata.state == LedgerState.CLOSED or not self._cookies:
            return []
        older = {
            b: found[0]
            for b in metadata.fragments[-1][1]
            if (found := self._cookies.get(b)) is not None and metadata.ledger < found[0].floor
        }
        for bookie, cookie in older.items():
            if not cookie.granted:  # also above `marked`, which may be higher than is known here by now
                self._open.setdefault(bookie, {})[metadata.ledger] = None
        return [bookie for bookie, cookie in older.items() if metadata.ledger < cookie.marked]

    async def step(self, room: int, now: float, again_s: float) -> None:
        """Marks some more of what bookies in new lives have lost, about `room` ledgers at most; each `again_s` it looks
        at those that were open. Raises what the metadata raises.
        """
        if self._begins:
            await self._mark_anew()
        for bookie, (cookie, version) in list(self._cookies.items()):
            pool = self._context.pool
            if cookie.granted or bookie in pool.limbo or not pool.registered(bookie):
                continue
            if cookie.marked < cookie.floor and room > 0:
                with contextlib.suppress(VersionConflict):  # somebody changed it just now: again next time
                    await self._mark_some(bookie, cookie, version, room)
        if now >= self._look_again_at:
            self._look_again_at = now + again_s
            for bookie, ledgers in list(self._open.items()):
                for ledger in list(ledgers):
                    key = keys.ledger(ledger)
                    found = await self._context.meta.get(key)
                    metadata = None if found is None else readable(LedgerMetadata.decode, key, found[0])
                    if found is not None and metadata is None:
                        continue  # it names this bookie, perhaps: whoever can read it marks it
                    with contextlib.suppress(VersionConflict):
                        if metadata is None or await self._mark_one(bookie, metadata):
                            del ledgers[ledger]
            await self._say_who_is_whole()

    async def _mark_anew(self) -> None:
        """A mark of a ledger that lacks nothing goes with a look. Raises what the metadata raises."""
        for bookie, (cookie, version) in list(self._cookies.items()):
            if cookie.marked and not cookie.granted and await self._written(bookie) != cookie.floor:
                try:
                    await self._mark_through(bookie, cookie, version, 0)
                except VersionConflict:  # somebody changed it just now: again next time
                    return
        self._begins = False

    async def _say_who_is_whole(self) -> None:
        """Writes down each life whose ledgers of before are all marked, closed, and copied again."""
        pool, meta = self._context.pool, self._context.meta
        done = {
            bookie: cookie.floor
            for bookie, (cookie, _) in self._cookies.items()
            if self._scanned
            and cookie.marked >= cookie.floor > self._said.get(bookie, 0)
            and not (cookie.granted or self._open.get(bookie) or bookie in pool.limbo)
        }
        if not done:
            return
        async for page in pages_under(meta, keys.UNDERREPLICATED):  # those of the watch may lack the newest ones
            for key, blob, _ in page:
                mark = readable(Mark.decode, key, blob)
                wanted = list(done) if mark is None else [] if mark.nowhere else [*mark.lacking, *mark.lost]
                for bookie in wanted:
                    done.pop(bookie, None)
        for bookie, floor in done.items():
            await meta.put(keys.bookie_whole(bookie), pack([floor]))
            self._said[bookie] = floor

    async def _mark_some(self, bookie: str, cookie: BookieCookie, version: int, room: int) -> None:
        meta = self._context.meta
        rows = await meta.range(keys.ledger(cookie.marked), keys.ledger(cookie.floor), limit=min(_PAGE, room))
        for key, blob, _ in rows:
            metadata = readable(LedgerMetadata.decode, key, blob)
            if metadata is not None and not await self._mark_one(bookie, metadata):
                self._open.setdefault(bookie, {})[metadata.ledger] = None
        marked = keys.ledger_of(rows[-1][0]) + 1 if len(rows) == min(_PAGE, room) else cookie.floor
        await self._mark_through(bookie, cookie, version, marked)

    async def _mark_through(self, bookie: str, cookie: BookieCookie, version: int, marked: int) -> None:
        further, key = replace(cookie, marked=marked), keys.bookie_cookie(bookie)
        self._cookies[bookie] = further, await self._context.meta.put(key, further.encode(), expected=version)

    async def _mark_one(self, bookie: str, metadata: LedgerMetadata) -> bool:
        """False where its last fragment names the bookie and is not closed: it is to be looked at again then."""
        closed = metadata.state == LedgerState.CLOSED
        through = metadata.last_entry if closed else metadata.fragments[-1][0] - 1
        if through >= 0 and any(bookie in ensemble for _, ensemble in metadata.fragments):
            await mark_lacking(self._context.meta, metadata.ledger, {bookie: through})
        return closed or bookie not in metadata.fragments[-1][1]


def _is_open(metadata: LedgerMetadata, bookie: str) -> bool:
    """Whether it is not known yet what the bookie is to have of it."""
    return metadata.state != LedgerState.CLOSED and bookie in metadata.fragments[-1][1]


def _held(metadata: LedgerMetadata) -> list[tuple[int, tuple[str, ...]]]:
    """The fragments that have entries, or may have."""
    if metadata.state != LedgerState.CLOSED:
        return list(metadata.fragments)
    return [(first, ensemble) for first, ensemble in metadata.fragments if first <= metadata.last_entry]
