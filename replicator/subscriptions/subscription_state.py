"""SubscriptionState: one replicated subscription of one topic in one region, as a pure core.

Is: the reset epoch, where the subscription begins, what this region claims, what others claim, and what of that is
still to be acknowledged here.
Isn't: a cursor, a read, or a frame (`replicator.subscriptions.subscription_sync`).
The rule: the higher epoch wins as a whole. Within an epoch nothing is ever taken back: what counts as acknowledged is
the union of what all regions claim. Making a subscription is no reset: regions that make it on their own all have epoch
0, and it begins, for each origin, at the lowest of their beginnings. So what states say is joined the same in whatever
order, and however often, it is heard.
Invariants: only what somebody acknowledged, or what lies before the beginning, is acknowledged here; a claim for a
coordinate that has not arrived waits until it has; a claim is applied once, and again after the cursor went back; what
lies at or below `start` is claimed by nobody here.
Source: docs/protocols/links.md, "Replicated subscriptions".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from heliograph.model.coordinates import Coordinate, Origin, Range
from heliograph.model.errors import CorruptData
from heliograph.model.positions import BEFORE_ALL, Position
from replicator.subscriptions.ack_claims import CREATED, USUAL, Base, Claims, ClaimSettings, Epoch, insert, subtract

PROPERTY = "heliograph.replicated"
"""A property of the cursor: epoch and beginning, stored in one piece with what is acknowledged. OFF: it was switched
off here by hand.
"""
BEGAN = "heliograph.began"
"""A property of the cursor: where it stood when it was made, so that what was acknowledged before it was replicated is
known apart from what lies before it.
"""
OFF = "off"
INTERNAL = ("pulsar.", "__")
"""Cursors of these prefixes are links', and others' that are no subscriptions, and of one region each. A client may
give its subscription such a name too, as `__x`: it is not replicated.
"""
_BELOW = 1 << 63
"""All numbers of a state are."""
HERE = ""
"""The claimer of what this region itself says, and of what lies before the beginning: meant for it, whoever else it was
meant for.
"""


def is_replicated(name: str, properties: Mapping[str, str]) -> bool:
    """Whether a cursor of that name and with these properties is a replicated subscription's."""
    return properties.get(PROPERTY, OFF) != OFF and not name.startswith(INTERNAL)


def began(at: Position) -> str:
    """Writes a position as the value of the property `BEGAN`."""
    return f"{at[0]}:{at[1]}"


def read_began(text: str) -> Position:
    """Reads the value of the property `BEGAN`. Raises CorruptData."""
    try:
        ledger, entry = map(int, text.split(":"))
    except ValueError as error:
        raise CorruptData(f"where a subscription began: {text!r:.40} is no position") from error
    return ledger, entry


class Todo(NamedTuple):
    """Acknowledge what of (after, through] of `origin` is here and was meant for `claimer`."""

    claimer: str
    origin: Origin
    after: Position
    through: Position


class SubscriptionState:
    """`base` None: to be read off the cursor first, where `start` says."""

    def __init__(
        self,
        number: int,
        epoch: Epoch = CREATED,
        base: Base | None = None,
        start: Position | None = None,
        settings: ClaimSettings = USUAL,
    ) -> None:
        self.number, self.epoch, self.base = number, epoch, base
        self.settings = settings
        self.start = start
        """The local mark-delete position at which it began here: what the cursor has at or below, nobody here was ever
        given as part of it.
        None: an earlier version stored none, or it is to be made here.
        """
        self.mine = Claims(epoch, base or {})
        self.others: dict[str, Claims] = {}
        self.rebase = False
        """The cursor must go to where `base` says, before anything is applied; whoever moved it calls `begun_at`."""
        self.kept = False
        """Says of that move: what was acknowledged behind `start` stays acknowledged, but for what only `before`
        says.
        """
        self.before: Base = {}
        """With `kept`: the beginning until that move is done."""
        self.version = 1
        """Grows with everything that others should hear of."""
        self._applied: dict[str, dict[Origin, list[Range]]] = {}
        self._applied_partly: dict[tuple[str, Coordinate], int] = {}

    # -- storing -------------------------------------------------------------------------------------------------------

    def stored(self) -> str:
        begins = self.before if self.rebase and self.kept else self.base
        base = None if begins is None else [[*origin, *at] for origin, at in sorted(begins.items())]
        return json.dumps({"version": 1, "epoch": self.epoch, "base": base, "start": self.start}, separators=(",", ":"))

    @classmethod
    def load(cls, number: int, text: str, settings: ClaimSettings = USUAL) -> SubscriptionState:
        """Reads what `stored` made. number: of this region. Raises CorruptData, also for a version that is not
        known.
        """
        try:
            found = json.loads(text)
            if found["version"] != 1:
                raise CorruptData(
                    f"replicated subscription: version {found['version']} is not known here (this version reads 1)"
                )
            base = None if found["base"] is None else {(r, e, i): (a, b) for r, e, i, a, b in found["base"]}
            start = found.get("start")
            epoch = (int(found["epoch"][0]), int(found["epoch"][1]))
            named = [number for origin, at in (base or {}).items() for number in (*origin, *at)]
            if min(epoch) < 0 or not all(isinstance(one, int) and -1 <= one < _BELOW for one in (*epoch, *named)):
                raise CorruptData("replicated subscription: an epoch or a beginning that no region can say")
            return cls(number, epoch, base, None if start is None else (int(start[0]), int(start[1])), settings)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptData(f"replicated subscription: {error}") from error

    # -- what happens --------------------------------------------------------------------------------------------------

    def reset(self, start: Position) -> None:
        """The cursor went back, or acknowledgements were taken away, by somebody here: from now on this is the truth
        everywhere.
        """
        self._begin_epoch((self.epoch[0] + 1, self.number), None)
        self.start = start

    def begin(self, base: Base) -> None:
        """What lies at or below `start`."""
        assert self.base is None
        self._begin_epoch(self.epoch, base)

    def begun_at(self, start: Position) -> None:
        """The cursor is where `rebase` wanted it."""
        self.rebase, self.start = False, start

    def heard(self, region: str, claims: Claims) -> bool:
        """Returns False where the other region is behind: it should be told again. Only with a base of its own."""
        assert self.base is not None
        if claims.epoch < self.epoch:
            return False
        if claims.epoch > self.epoch:
            self._begin_epoch(claims.epoch, dict(claims.base))
            self.rebase, self.kept = True, False
        elif claims.base != self.base and self.epoch[0] == 0:
            lower = {origin: min(at, claims.base[origin]) for origin, at in self.base.items() if origin in claims.base}
            if lower != self.base:
                if not (self.rebase and self.kept):
                    self.before = self.base
                self.base = self.mine.base = lower
                self._again()
                self.rebase = self.kept = True
                self.version += 1
        known = self.others.get(region)
        if known is None:
            self.others[region] = known = Claims(self.epoch, {})
        known.merge(claims)
        known.forget_whole()
        known.bound(self.settings)
        return True

    def claim(self, claims: Claims) -> bool:
        """What this region's cursor says, in coordinates. Returns whether there was no room for some of it."""
        assert claims.epoch == self.epoch
        before = (self.mine.ranges, self.mine.partly, self.mine.counts)
        mine = Claims(self.epoch, self.mine.base)
        mine.merge(self.mine)
        mine.merge(claims)
        mine.forget_whole()
        left_out = mine.bound(self.settings)
        for coordinate, left in claims.partly.items():
            if mine.partly.get(coordinate) == left:  # as the cursor has it, which said so
                self._applied_partly[HERE, coordinate] = left
        if (mine.ranges, mine.partly, mine.counts) != before:
            self.mine = mine
            self.version += 1
        return left_out

    def _begin_epoch(self, epoch: Epoch, base: Base | None) -> None:
        self.epoch, self.base = epoch, base
        self.mine = Claims(epoch, base or {})
        self.others = {region: claims for region, claims in self.others.items() if claims.epoch == epoch}
        self.rebase = False
        self._again()
        self.version += 1

    def _again(self) -> None:
        self._applied.clear()
        self._applied_partly.clear()

    # -- what is to be done here ---------------------------------------------------------------------------------------

    def todo(self, prefix: Callable[[Origin], Position]) -> list[Todo]:
        """prefix: how far this region holds an origin; what is claimed beyond waits."""
        out: list[Todo] = []
        for claimer, ranges in self._sources():
            applied = self._applied.setdefault(claimer, {})
            for origin, claimed in ranges.items():
                held = prefix(origin)
                here = [(after, min(through, held)) for after, through in claimed if after < held]
                out += [Todo(claimer, origin, *left) for left in subtract(here, applied.get(origin, ()))]
        return out

    def todo_partly(self) -> list[tuple[str, Coordinate, int]]:
        """(claimer, coordinate of a batch, bits of the messages that are not acknowledged)."""
        claimed = {
            (region, coordinate): left
            for region, claims in ((HERE, self.mine), *self.others.items())
            for coordinate, left in claims.partly.items()
        }
        self._applied_partly = {key: left for key, left in self._applied_partly.items() if key in claimed}
        return [(*key, left) for key, left in claimed.items() if self._applied_partly.get(key) != left]

    def applied(self, done: Todo) -> None:
        insert(self._applied.setdefault(done.claimer, {}).setdefault(done.origin, []), done.after, done.through)

    def applied_partly(self, region: str, coordinate: Coordinate, left: int) -> None:
        self._applied_partly[region, coordinate] = left

    def waiting(self, prefix: Callable[[Origin], Position]) -> int:
        """How many claimed ranges wait for entries that have not arrived."""
        return sum(
            1
            for _, ranges in self._sources()
            for origin, claimed in ranges.items()
            for _, through in claimed
            if through > prefix(origin)
        )

    def _sources(self) -> list[tuple[str, dict[Origin, list[Range]]]]:
        own = {origin: [(BEFORE_ALL, at)] for origin, at in (self.base or {}).items()}
        for origin, ranges in self.mine.ranges.items():
            merged = own.setdefault(origin, [])
            for after, through in ranges:
                insert(merged, after, through)
        return [(HERE, own), *((region, claims.ranges) for region, claims in self.others.items())]
