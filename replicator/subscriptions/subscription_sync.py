"""SubscriptionSync: keeps the replicated subscriptions of one topic the same in all regions, whoever acknowledges
where.

Is: which ones there are, rounds, who is told what, and making and moving a subscription where another region says so.
Isn't: a rule (`replicator.subscriptions.subscription_state`), a cursor
(`replicator.subscriptions.subscription_cursor`), a frame, or a timer: `LinkManager` asks `due` and calls `round` every
0.4 s while there are any, links and receivers bring and take claims.
Invariants: one round at a time; nobody is told of a beginning before it is known; a round that meets storage that does
not answer changes nothing but what it did so far, and the next one goes on.
Source: docs/protocols/links.md, "Replicated subscriptions".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from heliograph.model.errors import CorruptData, HeliographError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.task_set import report_error
from replicator.log.coordinate_lookup import vector_at
from replicator.subscriptions.ack_claims import COUNTS_MAX, USUAL, Claims, ClaimSettings
from replicator.subscriptions.subscription_cursor import SyncCursor, SyncedCursor
from replicator.subscriptions.subscription_state import (
    BEGAN,
    INTERNAL,
    OFF,
    PROPERTY,
    SubscriptionState,
    is_replicated,
    read_began,
)

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog

events = logging.getLogger("replicator")

_NAME_BYTES_MAX = 1000
"""As of every subscription."""

Send = Callable[[str, Claims], bool]
"""Tells another region; False: not now."""


def any_replicated(cursors: Iterable[SyncCursor]) -> bool:
    """Whether one of them is of a replicated subscription."""
    return any(PROPERTY in cursor.properties for cursor in cursors)


class SubscriptionHost(Protocol):
    """Whoever has the subscriptions of this broker."""

    async def ensure(self, topic: str, name: str, mark_delete: Position) -> None:
        """Makes the subscription where it is not there."""
        ...

    def reset(self, topic: str, name: str, mark_delete: Position) -> bool:
        """Moves it, its consumers are closed; False: nobody has it loaded, the caller moves the cursor."""
        ...

    def begin_earlier(
        self, topic: str, name: str, mark_delete: Position, start: Position, never: Sequence[tuple[int, int, int]]
    ) -> bool:
        """The same, but what was acknowledged behind `start` stays so, except `never`: (ledger, first entry, last
        entry).
        """
        ...

    def redelivered(self, topic: str, name: str) -> int:
        """How many messages were handed out again here, all in all: grows with each."""
        ...

    def redeliveries(self, topic: str, name: str, most: int) -> Mapping[Position, int]:
        """How often each of the `most` oldest entries that are not acknowledged was handed out again, where it was."""
        ...

    def count(self, topic: str, name: str, counts: Mapping[Position, int]) -> None:
        """In other regions these were handed out again so often; in place of what was said before."""
        ...


class SubscriptionSync:
    """Keeps the replicated subscriptions of one loaded topic; the log makes it when it first needs one."""

    __slots__ = (
        "_channels",
        "_full",
        "_gone",
        "_heard_at",
        "_log",
        "_numbers",
        "_running",
        "_subscriptions",
        "host",
        "region_number",
    )

    def __init__(self, log: ReplicatedLog) -> None:
        self._log = log
        self.host: SubscriptionHost | None = None
        self.region_number: Callable[[str], int] = lambda _: 0
        self._subscriptions: dict[str, SyncedCursor] = {}
        self._gone: dict[str, None] = {}
        """Deleted here by hand: others may still tell of it."""
        self._channels: dict[str, dict[int, Send]] = {}
        self._numbers = 0
        self._full = False
        """It was said that no more are made."""
        self._running = False
        self._heard_at: Position | None = None
        for name, cursor in log.ledger.cursors.items():
            if is_replicated(name, cursor.properties):
                try:
                    state = SubscriptionState.load(log.state.origin[0], cursor.properties[PROPERTY], self._settings)
                    self._subscriptions[name] = self._new(name, state)
                except CorruptData as error:  # as if it were switched on now: messages may come again, none is left out
                    events.warning(
                        "subscription.state_bad", extra={"topic": log.topic, "subscription": name, "error": str(error)}
                    )
                    self.enable(name)

    # -- switching -----------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return bool(self._subscriptions)

    def enabled(self, name: str) -> bool:
        found = self._subscriptions.get(name)
        return found is not None and (found.seen is None or found.current() is not None)

    def enable(self, name: str) -> None:
        """From now on its acknowledgements are those of all regions. Idempotent; the cursor must be there. One of
        another region would refuse a name of `INTERNAL`: it stays here.
        """
        if name.startswith(INTERNAL):
            return
        self._gone.pop(name, None)
        cursor, found = self._cursor(name), self._subscriptions.get(name)
        if cursor is None:
            return
        if found is None or found.current() is not cursor:
            if found is not None:  # it was deleted, and made again
                found.end()
            found = self._subscriptions[name] = self._new(name)
        if found.state.start is None and found.state.base is None:  # others told of it before it was made here
            found.see(cursor)
            found.state.start = self._began(cursor)
            found.store(cursor)

    def moved(self, name: str) -> None:
        """To be called right after a client or an operator moved it: what is read again at once hides that from a look
        at the cursor.
        """
        found = self._subscriptions.get(name)
        if found is not None and (cursor := found.current()) is not None:
            found.observe(cursor)

    def _began(self, cursor: SyncCursor) -> Position:
        """Where it was made: what lies behind that and is acknowledged was acknowledged here, also before it was
        replicated.

        Its mark-delete position where that is not known (it was made in one region, or by an earlier version), or lies
        before it (it was moved back). Of what is trimmed nothing is said.
        """
        first = self._log.ledger.first_position()
        try:
            at = read_began(cursor.properties[BEGAN])
        except (KeyError, CorruptData):
            return cursor.mark_delete
        return min(max(at, (first[0], first[1] - 1)), cursor.mark_delete)

    def enable_all(self) -> None:
        """By policy. One that was switched off by hand stays off."""
        for name, cursor in list(self._log.ledger.cursors.items()):
            if PROPERTY not in cursor.properties and cursor.durable and not self.enabled(name):
                self.enable(name)

    def disable(self, name: str) -> None:
        """This region neither tells nor listens any more; the others go on among themselves."""
        if (found := self._subscriptions.pop(name, None)) is not None:
            found.end()
        if (cursor := self._cursor(name)) is not None:
            cursor.set_properties({**cursor.properties, PROPERTY: OFF})

    def status(self, name: str, now_ms: int) -> dict[str, object]:
        """For people: when it was last in step, and with whom."""
        found = self._subscriptions.get(name)
        if found is None or not self.enabled(name):
            return {"replicated": False}
        state = found.state
        return {
            "replicated": True,
            "epoch": list(state.epoch),
            "age_s": (now_ms - found.synced_ms) / 1000 if found.synced_ms else None,
            "in_step": not (self._running or self._due(found)),
            "applied": not (self._running or found.unfinished or found.inbox),
            "claims": state.mine.summary(),
            "parts": state.mine.parts(),
            "told": {
                region: found.told.get(region) == state.version
                for region, channels in self._channels.items()
                if channels
            },
            "heard": {region: claims.summary() for region, claims in sorted(state.others.items())},
            "heard_parts": {region: claims.parts() for region, claims in sorted(state.others.items())},
            "waiting_ranges": state.waiting(self._log.vector.prefix),
        }

    # -- other regions -------------------------------------------------------------------------------------------------

    def channel(self, region: str, send: Send) -> Callable[[], None]:
        """A stream to or from `region` is open, and is used from now on. Returns "closed".

        With each the region is told everything again: what went into the one before may be lost, and that one is not
        always known to be dead.
        """
        self._numbers += 1
        number, channels = self._numbers, self._channels.setdefault(region, {})
        channels[number] = send
        self._tell_again(region)

        def closed() -> None:
            channels.pop(number, None)
            self._tell_again(region)

        return closed

    def _tell_again(self, region: str) -> None:
        for found in self._subscriptions.values():
            found.told.pop(region, None)

    def heard(self, region: str, name: str, claims: Claims) -> None:
        """What `region` says; it counts from the next round on. Nothing does that it says of a cursor that is no
        subscription: a client may have given its own such a name there, and the links of others go on.
        """
        if name.startswith(INTERNAL) or len(name.encode()) > _NAME_BYTES_MAX:
            self._ignore(region, name)
            return
        if name in self._gone:
            return
        found = self._subscriptions.get(name)
        if found is None:
            cursor = self._cursor(name)
            if cursor is None and len(self._subscriptions) >= self._settings.told_max:
                self._say_full(region, name)
                return
            if cursor is not None and cursor.properties.get(PROPERTY) == OFF:
                return
            found = self._subscriptions[name] = self._new(name)
        known = found.inbox.get(region)
        if known is None or known.epoch < claims.epoch:
            found.inbox[region] = claims
        elif known.epoch == claims.epoch:
            claims.merge(known)
            claims.bound(self._settings)
            found.inbox[region] = claims

    def _ignore(self, region: str, name: str) -> None:
        events.info(
            "subscription.not_replicated",
            extra={"topic": self._log.topic, "subscription": name[:100], "region": region},
        )

    def _say_full(self, region: str, name: str) -> None:
        if not self._full:
            events.warning(
                "subscription.too_many",
                extra={
                    "topic": self._log.topic,
                    "subscription": name[:100],
                    "region": region,
                    "most": self._settings.told_max,
                },
            )
        self._full = True

    # -- rounds --------------------------------------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether a round would find something to do."""
        if self._running:
            return False
        if self._heard_at != self._log.ledger.last_confirmed:
            return True
        return any(self._due(found) for found in self._subscriptions.values())

    def _due(self, found: SyncedCursor) -> bool:
        cursor = found.current()
        if (
            cursor is None
            or found.inbox
            or found.unfinished
            or found.state.base is None
            or cursor.changes != found.seen_changes
        ):
            return True
        if self._redelivered(found) != (0 if found.redeliveries is None else found.redeliveries.seen):
            return True
        return any(
            channels and found.told.get(region) != found.state.version for region, channels in self._channels.items()
        )

    def _redelivered(self, found: SyncedCursor) -> int:
        return 0 if self.host is None else self.host.redelivered(self._log.topic, found.name)

    async def round(self, now_ms: int) -> None:
        """Brings everything in step, as far as it can."""
        if self._running:
            return
        self._running = True
        self._heard_at = self._log.ledger.last_confirmed
        try:
            for found in list(self._subscriptions.values()):
                try:
                    await self._bring_in_step(found, now_ms)
                except Exception as error:  # the others of the topic go on
                    found.unfinished = True
                    report_error(error, f"subscription {found.name} of {self._log.topic} is not brought in step")
        finally:
            self._running = False

    async def _bring_in_step(self, found: SyncedCursor, now_ms: int) -> None:
        try:
            if await self._step(found):
                found.synced_ms = now_ms
        except HeliographError as error:
            found.unfinished = True
            events.info(
                "subscription.sync_failed",
                extra={"topic": self._log.topic, "subscription": found.name, "error": str(error)},
            )
        self._tell(found)

    async def _step(self, found: SyncedCursor) -> bool:
        """Returns whether nothing is left to do here. Raises what storage raises."""
        if found.over:
            return True
        state, cursor = found.state, found.current()
        if cursor is None:
            if found.seen is not None or not found.inbox:  # deleted here
                found.end()
                del self._subscriptions[found.name]
                self._gone[found.name] = None
                return True
            cursor = await self._make(found)
            state = found.state
        found.observe(cursor)
        if PROPERTY not in cursor.properties:  # whoever set new ones did not know of it
            found.store(cursor)
        if state.start is None:
            await self._find_start(found, cursor)
        if state.base is None:
            assert state.start is not None
            epoch, base = state.epoch, await vector_at(self._log, state.start)
            found.observe(cursor)
            if state.epoch != epoch:
                return self._later(found)
            state.begin(base)
            found.store(cursor)
        inbox, found.inbox = found.inbox, {}
        version = state.version
        for region, claims in inbox.items():
            if not state.heard(region, claims):
                found.told.pop(region, None)
        if state.rebase and not await self._go_to_base(found, cursor):
            return self._later(found)
        if version != state.version:
            found.store(cursor)
        applied = await found.apply_all(cursor)
        if not await self._counted(found, cursor) or not applied:  # what others have said holds up nothing of our own
            return self._later(found)
        found.unfinished = False
        return True

    async def _counted(self, found: SyncedCursor, cursor: SyncCursor) -> bool:
        """Claims what is acknowledged and what is counted here, and hands on what others count."""
        host, topic, seen = self.host, self._log.topic, self._redelivered(found)
        counts = host.redeliveries(topic, found.name, COUNTS_MAX) if host is not None and seen else None
        if not await found.claim(cursor, counts):
            return False
        if seen:
            found.counting().seen = seen
        others = found.state.others
        if host is None or (found.redeliveries is None and not any(claims.counts for claims in others.values())):
            return True
        counting, epoch = found.counting(), found.state.epoch
        elsewhere, whole = await counting.here(others, cursor)
        if found.state.epoch == epoch and found.current() is cursor and elsewhere != counting.counted:
            counting.counted = elsewhere
            host.count(topic, found.name, elsewhere)
        return whole

    def _later(self, found: SyncedCursor) -> bool:
        found.unfinished = True
        return False

    async def _make(self, found: SyncedCursor) -> SyncCursor:
        """Another region tells of a subscription that is not here: it is made where that one begins."""
        claims = max(found.inbox.values(), key=lambda claims: claims.epoch)
        mark = await found.before_first(claims.base)
        if self.host is not None:
            await self.host.ensure(self._log.topic, found.name, mark)
        else:
            await self._log.ledger.open_cursor(found.name, mark)
        cursor = self._cursor(found.name)
        if cursor is None:
            raise CorruptData(f"subscription {found.name} of {self._log.topic} could not be made")
        if found.state.start is None and cursor.mark_delete == mark:
            found.state = SubscriptionState(
                self._log.state.origin[0], claims.epoch, dict(claims.base), mark, self._settings
            )
        elif found.state.start is None:  # a client made it meanwhile, somewhere else
            found.state.start = self._began(cursor)
        found.store(cursor)
        return cursor

    async def _find_start(self, found: SyncedCursor, cursor: SyncCursor) -> None:
        """Finds where a subscription begins here that an earlier version stored, or that others told of when a client
        made it here.
        """
        state, start = found.state, self._began(cursor)
        if state.base is not None:
            start = await found.before_first(state.base)
        if state.start is None:
            state.start = min(start, cursor.mark_delete)
            found.store(cursor)

    async def _go_to_base(self, found: SyncedCursor, cursor: SyncCursor) -> bool:
        """This region goes where another says: a higher epoch, or an earlier beginning. False: somebody here moved it
        meanwhile.
        """
        state, host, topic, name = found.state, self.host, self._log.topic, found.name
        assert state.base is not None
        epoch, mark, start = state.epoch, await found.before_first(state.base), state.start
        never: list[tuple[int, int, int]] = []
        if start is not None and state.kept:
            never = await found.never_given(start)
            await self._log.ledger.read_back_to(
                min(mark, start)[0]
            )  # the cursor's move below asks how many entries its ledgers have
        found.observe(cursor)
        if state.epoch != epoch or state.base is None or found.current() is not cursor:
            return False
        if state.kept and start is not None and start <= mark:
            if not never:  # nothing is here that the earlier beginning would add
                state.begun_at(start)
                found.store(cursor)
                return True
            mark = start
        events.info(
            "subscription.moved",
            extra={"topic": topic, "subscription": name, "epoch": epoch, "mark": mark, "kept": state.kept},
        )
        state.begun_at(mark)  # first: the move below is reported back, and is no reset by a client
        found.start_over()
        found.seen_mark, found.seen_ranges = BEFORE_ALL, []
        if state.kept and start is not None:
            if host is None or not host.begin_earlier(topic, name, mark, start, never):
                cursor.begin_earlier(mark, start, never)
        elif host is None or not host.reset(topic, name, mark):
            cursor.reset(mark)
        found.see(cursor)
        if not state.kept:
            found.nothing_given_up(cursor)
        found.store(cursor)
        return True

    # -- telling, storing ----------------------------------------------------------------------------------------------

    def _tell(self, found: SyncedCursor) -> None:
        state = found.state
        if state.base is None or found.over:
            return
        for region, channels in self._channels.items():
            if channels and found.told.get(region) != state.version and channels[max(channels)](found.name, state.mine):
                found.told[region] = state.version

    def _new(self, name: str, state: SubscriptionState | None = None) -> SyncedCursor:
        state = state or SubscriptionState(self._log.state.origin[0], settings=self._settings)
        if self._log.sync_by is not None:
            self._log.sync_by.keep_in_step(self._log)
        return SyncedCursor(self._log, name, state, lambda region: self.region_number(region))

    @property
    def _settings(self) -> ClaimSettings:
        return USUAL if self._log.sync_by is None else self._log.sync_by.claims

    def _cursor(self, name: str) -> SyncCursor | None:
        found: SyncCursor | None = self._log.ledger.cursors.get(name)
        return found if found is not None and found.durable else None
