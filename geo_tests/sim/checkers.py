"""Checkers: what was published, what was acknowledged, what every region holds, and whether that fits.

Is: plain data and pure checks; each raises `Violation` with the messages concerned. Isn't: a way to get at the data
(`world`).

The rules, for one topic, after everything has healed:
- each acknowledged message is in every region, exactly once; what was submitted but never acknowledged is in all
  regions or in none;
- nothing is there that nobody submitted, and each payload is the one submitted, marked with the region it was first
  published in;
- the messages of one origin are in the same order in every region, and those of one producer in the order of their
  sequences;
- a receipt named the position at which the message lies in its own region;
- each durable subscription delivered every message at least once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from geo_tests.sim.pulsar_client import Delivered

Message = tuple[str, int]
"""(producer, sequence)."""


class Violation(AssertionError):
    """A rule does not hold."""


@dataclass
class History:
    """What the clients of one topic did and saw."""

    topic: str
    submitted: dict[Message, tuple[str, bytes]] = field(default_factory=dict)
    """Message -> (region, payload)."""
    acknowledged: dict[Message, tuple[int, int]] = field(default_factory=dict)
    """Message -> position in its own region; (-1, -1) where the receipt said that it was a duplicate."""
    consumed: dict[str, set[Message]] = field(default_factory=dict)
    """Region -> what its durable subscription delivered."""
    former: dict[str, set[Message]] = field(default_factory=dict)
    """Region -> what it published in a life that is over, and has from the others since."""
    back: str = ""
    """A region that was put back to a backup: it has a part of `former` itself."""

    _placed: dict[str, set[tuple[int, int]]] | None = None
    """What `placed` returned, where nothing has changed since."""

    def placed(self) -> Mapping[str, set[tuple[int, int]]]:
        """Region -> the positions of what was acknowledged there."""
        if self._placed is None:
            self._placed = {}
            for message, position in self.acknowledged.items():
                if position[0] >= 0:
                    self._placed.setdefault(self.submitted[message][0], set()).add(position)
        return self._placed

    def begin_life(self, region: str) -> None:
        """It has lost everything, and comes again."""
        self._placed = None
        mine = {message for message, (origin, _) in self.submitted.items() if origin == region}
        self.former[region] = mine
        self.acknowledged.update(dict.fromkeys(mine & self.acknowledged.keys(), (-1, -1)))
        self.consumed.pop(region, None)

    def go_back(self, region: str, ledgers: Collection[int]) -> int:
        """It knows of these ledgers, and nothing of what it published since. Returns how many messages that is at
        least: its subscription has to deliver them again.
        """
        lost = {
            message
            for message, (ledger, _) in self.acknowledged.items()
            if self.submitted[message][0] == region and ledger >= 0 and ledger not in ledgers
        }
        consumed = self.consumed.get(region, set())
        self.begin_life(region)
        self.back, self.consumed[region] = region, consumed - lost
        return len(lost)

    def submit(self, region: str, producer: str, sequence: int, payload: bytes) -> None:
        self.submitted[(producer, sequence)] = (region, payload)
        self._placed = None

    def acknowledge(self, producer: str, sequence: int, ledger: int, entry: int) -> None:
        """Raises Violation where the same position was given to another message."""
        self.acknowledged[(producer, sequence)] = (ledger, entry)
        self._placed = None

    def consume(self, region: str, delivered: Delivered) -> None:
        self.check_known(region, delivered)
        self.consumed.setdefault(region, set()).add((delivered.producer, delivered.sequence))

    def lacking(self, region: str) -> list[Message]:
        """What was acknowledged anywhere, and not delivered there."""
        return [message for message in self.acknowledged if message not in self.consumed.get(region, ())]

    # -- checks ---------------------------------------------------------------------------------------------------

    def check_known(self, region: str, found: Delivered) -> None:
        """Somebody submitted it, with this payload, and it carries the right origin. Holds at any time."""
        origin, payload = self.submitted.get((found.producer, found.sequence), ("", b""))
        if not origin:
            raise Violation(f"{region}: {found} was never submitted")
        if payload != found.payload:
            raise Violation(f"{region}: {found} was submitted as {payload!r}")
        former = (found.producer, found.sequence) in self.former.get(region, ())
        if former and region == self.back and not found.replicated_from:
            return
        if found.replicated_from != ("" if origin == region and not former else origin):
            raise Violation(f"{region}: {found} comes from {origin}")

    def check(self, regions: Mapping[str, Sequence[Delivered]]) -> None:
        """All rules but the last. `regions`: what a reader found in each region, from the earliest message on."""
        for region, found in regions.items():
            self._check_region(region, found)
        sets = {region: {(d.producer, d.sequence) for d in found} for region, found in regions.items()}
        everywhere = set.union(*sets.values())
        for region, held in sets.items():
            lacking = sorted(everywhere - held)
            if lacking:
                acknowledged = [m for m in lacking if m in self.acknowledged]
                kind = "acknowledged" if acknowledged else "submitted"
                others = [r for r in sets if lacking[0] in sets[r]]
                raise Violation(
                    f"{self.topic} in {region} lacks {len(lacking)} {kind} messages that {others} have: {lacking[:5]}"
                )
        lost = sorted(m for m in self.acknowledged if m not in everywhere)
        if lost:
            raise Violation(f"{self.topic}: {len(lost)} acknowledged messages are nowhere: {lost[:5]}")
        self._check_origin_order(regions)

    def check_consumed(self, regions: Mapping[str, Sequence[Delivered]]) -> None:
        """The last rule, once the subscriptions had time."""
        for region, found in regions.items():
            missing = [
                (d.producer, d.sequence)
                for d in found
                if (d.producer, d.sequence) not in self.consumed.get(region, set())
            ]
            if missing:
                raise Violation(
                    f"{self.topic} in {region}: the subscription never delivered {len(missing)} messages: {missing[:5]}"
                )

    def _check_region(self, region: str, found: Sequence[Delivered]) -> None:
        places: dict[Message, Delivered] = {}
        last: dict[str, int] = {}
        for item in found:
            self.check_known(region, item)
            message = (item.producer, item.sequence)
            if message in places:
                raise Violation(f"{self.topic} in {region}: stored twice: {places[message]} and {item}")
            if last.get(item.producer, -1) >= item.sequence:
                raise Violation(
                    f"{self.topic} in {region}: {item} behind sequence {last[item.producer]} of the same producer"
                )
            last[item.producer] = item.sequence
            places[message] = item
        for message, position in self.acknowledged.items():
            if self.submitted[message][0] == region and position[0] >= 0 and message in places:
                item = places[message]
                if (item.ledger, item.entry) != position:
                    raise Violation(
                        f"{self.topic} in {region}: the receipt of {message} said {position}, it lies at "
                        f"{(item.ledger, item.entry)}"
                    )

    def _check_origin_order(self, regions: Mapping[str, Sequence[Delivered]]) -> None:
        for origin, life in ((one, life) for one in regions for life in self._lives(one)):
            orders = {
                region: [
                    message
                    for d in found
                    if (d.replicated_from or region) == origin and (message := (d.producer, d.sequence)) in life
                ]
                for region, found in regions.items()
            }
            expected = orders[origin]
            for region, order in orders.items():
                if order != expected:
                    at = next(i for i, (a, b) in enumerate(zip(order, expected, strict=False)) if a != b)
                    raise Violation(
                        f"{self.topic}: messages of {origin} are in another order in {region}, from the {at}th on: "
                        f"{order[at : at + 3]} instead of {expected[at : at + 3]}"
                    )

    def _lives(self, region: str) -> list[set[Message]]:
        """What it submitted in each."""
        former = self.former.get(region, set())
        mine = {message for message, (origin, _) in self.submitted.items() if origin == region}
        return [mine - former, former] if former else [mine]

    def check_common_order(self, regions: Mapping[str, Sequence[Delivered]]) -> None:
        """The order of each origin where not every region has all: of what its own region and another one both have."""
        for origin in regions:
            orders = {
                region: [(d.producer, d.sequence) for d in found if (d.replicated_from or region) == origin]
                for region, found in regions.items()
            }
            for region, order in orders.items():
                both = set(order) & set(orders[origin])
                if [m for m in order if m in both] != [m for m in orders[origin] if m in both]:
                    raise Violation(f"{self.topic}: messages of {origin} are in another order in {region}")
