"""RegionWaits: receipts of one topic that wait until so many regions have the entries durably.

Is: the order of the receipts, the count of regions, and what happens when they do not answer in time: the topic
degrades by policy, lists what was confirmed with fewer regions than asked for, and goes back by itself once they have
it. Isn't: a timer (`LinkManager` keeps it), or storage.
Invariants: receipts go out in the order of the publishes; while the topic is not degraded, a receipt goes out only when
regions - 1 other regions have told that their durable vector covers the entry; what goes out earlier is in `affected`,
message by message, and nothing else is. A region for which an entry was not published does not count, though its vector
passes it; of an entry for fewer regions all of those are waited for. A message that repeats one of another region is
elsewhere where a vector covers what is here of that one.
Source: docs/protocols/links.md, "Durability classes".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from heliograph.model.errors import CorruptData, HeliographError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Buffer
from replicator.log.affected_ranges import Affected, AffectedList
from replicator.log.replicated_entries import meant_for

if TYPE_CHECKING:
    from heliograph.wire.run import Run
    from replicator.log.replicated_log import ReplicatedLog
    from replicator.log.write_order import Done, Failed, Segments

Held = Callable[[str], bool]
"""Whether a region has what a message repeats."""

ALL = 0
PROPERTY = "heliograph.durability"
"""A property of a message outside of a batch: how many regions its receipt means, a number, or `all`; where the topic's
policy lets messages say so.
"""
PROPERTY_BYTES = PROPERTY.encode()
REGIONS_MAX = 64


def asked_class(entry: Buffer) -> int | None:
    """What an entry asks for by that property; None: nothing, or nothing that makes sense."""
    try:
        metadata, _ = entry_metadata(entry)
    except CorruptData:
        return None
    text = next((pair.value for pair in metadata.properties if pair.key == PROPERTY), "")
    if text == "all":
        return ALL
    return int(text) if text.isdecimal() and 1 <= int(text) <= REGIONS_MAX else None


class _Receipt(NamedTuple):
    """through: the own coordinate that must be elsewhere; None: nothing is waited for, but the order. regions: of its
    own class; None: of the topic's.

    at: when it was published. only: for which regions; None: for all. held: where it repeats what another region
    published.
    """

    through: Position | None
    regions: int | None
    messages: int
    at: float
    answer: Callable[[], None]
    fail: Failed
    only: frozenset[str] | None = None
    held: Held | None = None


class RegionWaits:
    """changed(): the next deadline may be another one. End it with `release` or `close` before it is dropped.

    listed: what was affected before. store(then): writes down that the topic degrades from `listed.since` on, and calls
    `then` once that is durable.
    """

    __slots__ = (
        "_after",
        "_changed",
        "_closed",
        "_degrading",
        "_held",
        "_held_newest",
        "_newest",
        "_now",
        "_owed",
        "_reached",
        "_store",
        "_wall_ms",
        "degrade_after_s",
        "degraded",
        "listed",
        "per_message",
        "regions",
        "targets",
    )

    def __init__(
        self,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        changed: Callable[[], None],
        listed: AffectedList | None = None,
        store: Callable[[Callable[[], None]], None] = lambda then: then(),
        begin: Position = BEFORE_ALL,
    ) -> None:
        """begin: the last own coordinate that nothing is promised of."""
        self._now, self._wall_ms, self._changed, self._store = now, wall_ms, changed, store
        self.listed = listed or AffectedList()
        self._degrading = False
        """It is being written down; receipts wait for that."""
        self.regions, self.degrade_after_s = 1, 0.0
        self.per_message = False
        """A message may ask for a class of its own."""
        self.targets: tuple[str, ...] = ()
        self.degraded = False
        self._closed: HeliographError | None = None
        self._reached: dict[str, Position] = {}
        self._held: deque[_Receipt] = deque()
        self._after = begin
        self._newest = BEFORE_ALL
        """The own coordinates that the last receipt, and the last degraded one, went out for."""
        self._held_newest: Held | None = None
        """Of the last degraded one that repeats what another region published."""
        self._owed = 0
        """Other regions that must have the latter before nothing is degraded any more."""

    def obey(self, policy: Mapping[str, Any], targets: Sequence[str]) -> None:
        self.regions, self.degrade_after_s = policy["regions"], policy["degradeAfterMs"] / 1000
        self.per_message = bool(policy.get("perMessage"))
        self.targets = tuple(targets)
        if self.degraded:  # a region that has left, or is not asked for any more, is not waited for
            meant = len(self.targets)
            self._owed = min(self._owed, meant if self.per_message else min(meant, self.needed()))
        self._settle()
        self._changed()

    def needed(self, regions: int | None = None) -> int:
        """Other regions, for a message of that class; None: of the topic's."""
        regions = self.regions if regions is None else regions
        return len(self.targets) if regions == ALL else regions - 1

    # -- publishing ----------------------------------------------------------------------------------------------------

    def wrap(
        self,
        run: Run,
        done: Done,
        failed: Failed,
        last_own: Callable[[], Position],
        repeated: Callable[[Run], Held | None] = lambda _: None,
    ) -> tuple[Done, Failed]:
        """`done` and `failed` of one run, as the log is to call them. last_own: the last own coordinate that is durable
        here. repeated: which regions have what a duplicate repeats; None: it is of this region.
        """
        at = self._now()
        regions = self._class_of(run) if self.per_message else None
        only = meant_for(run)

        def stored(segments: Segments) -> None:
            new = [(ledger, first + count - 1) for count, ledger, first in segments if ledger >= 0]
            through = max(new) if new else last_own()  # of a duplicate: what it repeats is at or below
            held = repeated(run) if len(new) < len(segments) else None
            messages = run.messages if new else 0
            self._hold(_Receipt(through, regions, messages, at, lambda: done(segments), failed, only, held))

        def refused(error: HeliographError) -> None:
            self._hold(_Receipt(None, None, 0, at, lambda: failed(error), failed))

        return stored, refused

    @property
    def waiting(self) -> bool:
        """Whether a receipt waits for another region, or behind one that does."""
        return bool(self._held)

    def behind(self, then: Callable[[], None]) -> None:
        """`then` is called once all receipts that wait now have gone out, or failed."""
        self._hold(_Receipt(None, None, 0, self._now(), then, lambda _: then()))

    def _class_of(self, run: Run) -> int | None:
        """The strictest that an entry of the run asks for; None: none of them asks for one."""
        asked = [one for part in run.parts if PROPERTY_BYTES in bytes(part) and (one := asked_class(part)) is not None]
        if not asked:
            return None
        strictest = max(asked, key=self.needed)
        return strictest if len(asked) == run.count else max(strictest, self.regions, key=self.needed)

    def _hold(self, receipt: _Receipt) -> None:
        if self._closed is not None:
            receipt.fail(self._closed)
            return
        self._held.append(receipt)
        self._settle()
        if len(self._held) == 1:
            self._changed()

    # -- what other regions say ----------------------------------------------------------------------------------------

    def heard(self, region: str, through: Position) -> None:
        """`region` has the own origin durably up to `through`. Never back: what was told once was durable there."""
        if through > self._reached.get(region, BEFORE_ALL):
            self._reached[region] = through
        elif self._held_newest is None and not (self._held and self._held[0].held is not None):
            return
        self._settle()

    def _needed_of(self, receipt: _Receipt) -> int:
        needed = self.needed(receipt.regions)
        return needed if receipt.only is None else min(needed, sum(region in receipt.only for region in self.targets))

    def covered(self, needed: int, only: frozenset[str] | None = None) -> Position:
        """What so many other regions have, of those in `only`."""
        if needed <= 0:
            return (1 << 63, 0)
        reached = sorted(
            (self._reached.get(region, BEFORE_ALL) for region in self.targets if only is None or region in only),
            reverse=True,
        )
        return reached[needed - 1] if needed <= len(reached) else BEFORE_ALL

    def _have(self, needed: int, through: Position, held: Held | None, only: frozenset[str] | None = None) -> bool:
        """Whether so many other regions, of those in `only`, have all of it."""
        if held is None:
            return self.covered(needed, only) >= through
        among = self.targets if only is None else [region for region in self.targets if region in only]
        return sum(self._reached.get(region, BEFORE_ALL) >= through and held(region) for region in among) >= needed

    def _settle(self) -> None:
        if self.degraded and self._have(self._owed, self._newest, self._held_newest):
            self.degraded, self.listed.since, self._held_newest = False, None, None
            self._store(lambda: None)
        held = self._held
        while held:
            head = held[0]
            if head.through is not None and not self._have(self._needed_of(head), head.through, head.held, head.only):
                if not self.degraded:
                    return
                self._note(head)
            held.popleft()
            if head.through is not None and head.messages:
                self._after = max(self._after, head.through)
            head.answer()

    # -- degrading -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `expire` wants to be called; None: never."""
        if not self._held or not self.degrade_after_s or self._degrading:
            return None
        return self._held[0].at + self.degrade_after_s

    def expire(self) -> None:
        """The oldest receipt has waited for its time: once that is written down nothing waits until the regions are
        back.
        """
        due = self.next_deadline()
        if due is None or self._now() < due or self.degraded:
            return
        self._degrading = True
        needed = len(self.targets) if self.per_message else self._needed_of(self._held[0])
        self.listed.since = (self._after, self._wall_ms(), needed)
        self._store(self._degrade)

    def _degrade(self) -> None:
        """Called once it is stored since when receipts may go out early. Degrades, unless the regions answered
        meanwhile.
        """
        if self._closed is not None or not self._degrading:
            return
        self._degrading = False
        due = self.next_deadline()
        if due is None or self._now() < due:  # the regions answered meanwhile
            self.listed.since = None
            self._store(lambda: None)
        else:
            self.degraded = True
            head = self._held[0]  # it is not covered, or it would not be held
            self._newest, self._held_newest = head.through or BEFORE_ALL, head.held
            self._owed = self._needed_of(head)
            self._settle()
        self._changed()

    def release(self) -> None:
        """Nothing is waited for any more: the policy has changed."""
        self.regions, self.targets, self._degrading = 1, (), False
        self._held = deque(receipt._replace(regions=None) for receipt in self._held)
        if self.listed.since is not None:
            self.degraded, self.listed.since, self._held_newest = False, None, None
            self._store(lambda: None)
        self._settle()

    def close(self, error: HeliographError) -> None:
        """The topic is being unloaded: who waits hears that it does not know, and tries again."""
        self._closed = error
        self.listed.since = None  # no receipt goes out any more: the list is exact
        held, self._held = self._held, deque()
        for receipt in held:
            receipt.fail(error)

    def _note(self, receipt: _Receipt) -> None:
        through = receipt.through
        assert through is not None
        needed = self._needed_of(receipt)
        self._newest, self._owed = max(self._newest, through), max(self._owed, needed)
        self._held_newest = receipt.held or self._held_newest
        if not receipt.messages:
            return
        self.listed.note(self._after, through, receipt.messages, self._wall_ms(), needed)

    @property
    def affected(self) -> list[Affected]:
        return self.listed.ranges

    @property
    def affected_messages(self) -> int:
        """How many messages were affected, of all ranges, those beyond the bound of the list included."""
        return self.listed.messages

    @classmethod
    def past(cls, log: ReplicatedLog) -> RegionWaits:
        """Makes one to show of a topic that waits for nobody (any more): what was affected, and whether it has
        arrived.
        """
        found = cls(lambda: 0.0, lambda: 0, lambda: None, log.state.affected)
        found.targets = tuple(log.known)
        for region, (vector, _) in log.known.items():
            found.heard(region, vector.prefix(log.origin))
        return found

    def shown(self) -> dict[str, Any]:
        return {
            "regions": "all" if self.regions == ALL else self.regions,
            "degrade_after_s": self.degrade_after_s,
            "degraded": self.degraded,
            "waiting": len(self._held),
            "reached": {region: list(self._reached.get(region, BEFORE_ALL)) for region in self.targets},
            "affected": [self._shown(affected) for affected in self.affected],
            "affected_messages": self.affected_messages,
        }

    def _shown(self, one: Affected) -> dict[str, Any]:
        return {
            "after": list(one.after),
            "through": list(one.through),
            "messages": one.messages,
            "regions": one.needed + 1,
            "at_ms": one.at_ms,
            "arrived_since": one.through <= self.covered(one.needed),
        }
