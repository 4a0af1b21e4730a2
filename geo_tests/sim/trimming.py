"""Trimming: what must hold of a topic that keeps nothing: retention is 0, regions leave it for longer than anything is
kept for them, and admins empty it.

Is: a history whose readers need not find everything, and why not. Isn't: the faults (`life_faults`).

Of each acknowledged message, in each region, exactly one holds:
- a reader finds it, or it lies before the first position that the topic has, and the subscription delivered it;
- the region's vector names it as missing, with a reason, and a lookup of its coordinate says the same;
- an admin emptied the topic there when the region had it, before the subscription got it.
Nothing else is missing: where nobody left and nothing was emptied, nothing is. The rest is as in any topic: nothing
twice, nothing strange, in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import History, Message, Violation
from geo_tests.sim.pulsar_client import Delivered
from heliograph.model.coordinates import Origin, Vector
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import SkipReason
from replicator.coordinates.skip_reasons import HERE
from replicator.log.coordinate_lookup import LookupStatus, position_of

if TYPE_CHECKING:
    from geo_tests.sim.world import World

SAID = {SkipReason.TRIMMED: LookupStatus.TRIMMED, SkipReason.DELETED: LookupStatus.DELETED}
"""The reasons that these worlds know, and what a lookup says of each."""
_LOOKUPS = 4
"""So many coordinates of each region's missing ones are looked up."""


class _Emptied:
    """One command of an admin, as far as it is known. log: that of the broker that was asked."""

    __slots__ = ("ended", "log", "region", "through", "vector")

    def __init__(self, region: str, log: Any) -> None:
        self.region, self.log, self.ended = region, log, False
        self.vector, self.through = log.vector.copy(), log.ledger.last_confirmed

    def look(self, log: Any) -> None:
        """It may have taken away all that the region has now. Where another broker has the topic, it is over."""
        self.vector, self.through = log.vector.copy(), log.ledger.last_confirmed
        self.ended = self.ended or log is not self.log


class TrimmedHistory(History):
    """Of a topic that keeps nothing."""

    def __init__(self, topic: str, world: World) -> None:
        super().__init__(topic)
        self._world = world
        self._emptied: list[_Emptied] = []
        self._places: dict[str, dict[Message, Position]] = {}
        """Region -> where what was consumed there lies, or lay."""
        self._named = 0

    def consume(self, region: str, delivered: Delivered) -> None:
        super().consume(region, delivered)
        message = (delivered.producer, delivered.sequence)
        self._places.setdefault(region, {})[message] = (delivered.ledger, delivered.entry)

    async def empty(self, region: str, loaded: Any) -> None:
        """An admin's command. What it may have taken away is known although its broker dies in the middle."""
        emptied = _Emptied(region, loaded.log)
        self._emptied.append(emptied)
        try:
            await loaded.truncate()
        finally:
            emptied.look(loaded.log)
            emptied.ended = True

    def look(self, region: str, log: Any) -> None:
        """Of the topic's owner there, again and again."""
        for emptied in self._emptied:
            if emptied.region == region and not emptied.ended:
                emptied.look(log)

    def emptied(self, region: str) -> Position:
        """Cursors there may stand here, though nobody acknowledged anything."""
        return max((one.through for one in self._emptied if one.region == region), default=BEFORE_ALL)

    # -- where messages are --------------------------------------------------------------------------------------------

    def lacking(self, region: str) -> list[Message]:
        """What was acknowledged, and was neither delivered there nor is accounted for."""
        logs, consumed = self._logs(), self.consumed.get(region, set())
        return [
            message
            for message in self.acknowledged
            if message not in consumed and not self._accounted(logs, region, message)
        ]

    def _logs(self) -> dict[str, Any]:
        return {region: log for region, name, _, log in self._world.probes.owners() if name == self.topic}

    def _coordinate(self, logs: Mapping[str, Any], message: Message) -> tuple[Origin, Position] | None:
        """None: it is not known; the receipt said that it was stored before, and nobody got it where it was
        published.
        """
        region = self.submitted[message][0]
        at = self.acknowledged.get(message, BEFORE_ALL)
        if at == BEFORE_ALL:
            at = self._places.get(region, {}).get(message, BEFORE_ALL)
        return None if at == BEFORE_ALL or region not in logs else (logs[region].origin, at)

    def _accounted(self, logs: Mapping[str, Any], region: str, message: Message) -> bool:
        coordinate = self._coordinate(logs, message)
        if coordinate is None:
            return self.submitted[message][0] in logs and bool(self._emptied)
        if region in logs and _missing(logs[region].vector, *coordinate):
            return True
        own = self.submitted[message][0] == region
        return any(
            coordinate[1] <= one.through if own else one.vector.holds(*coordinate)
            for one in self._emptied
            if one.region == region
        )

    # -- checks --------------------------------------------------------------------------------------------------------

    def check(self, regions: Mapping[str, Sequence[Delivered]]) -> None:
        logs = self._logs()
        for region, found in regions.items():
            self._check_region(region, found)
            there = {(d.producer, d.sequence) for d in found}
            self._check_trimmed(logs[region], region, there)
            self._check_named(logs, region, there | self.consumed.get(region, set()))
            if lost := [m for m in self.lacking(region) if m not in there]:
                raise Violation(f"{self.topic} in {region} lacks {len(lost)} messages, and does not say so: {lost[:5]}")
        self._check_origin_order(regions)

    def _check_trimmed(self, log: Any, region: str, there: set[Message]) -> None:
        """What readers do not find lies before everything that is there."""
        first = log.ledger.first_position()
        for message, position in self._places.get(region, {}).items():
            if position >= first and message not in there:
                raise Violation(
                    f"{self.topic} in {region}: {message} was delivered at {position}, the topic begins at {first}, "
                    "and no reader finds it"
                )

    def _check_named(self, logs: Mapping[str, Any], region: str, got: set[Message]) -> None:
        log = logs[region]
        ranges = [(origin, low, high) for origin in log.vector for low, high in log.vector.missing(origin)]
        self._world.verdict.reports["missing, by name"] += len(log.vector)
        if ranges and not self._emptied and "leave" not in self._world.verdict.kinds:
            raise Violation(f"{self.topic}: {region} says that it lacks {ranges}, and nobody took anything away")
        for origin, low, high in ranges:
            for after, through, why in log.state.reasons.explain(HERE, origin, [(low, high)]):
                if why not in SAID:
                    raise Violation(f"{self.topic}: {region} lacks ({after}, {through}] of {origin} because of {why}")
        for message in got:
            coordinate = self._coordinate(logs, message)
            if coordinate is not None and _missing(log.vector, *coordinate):
                raise Violation(f"{self.topic}: {region} has {message}, and says that {coordinate} is missing")

    async def check_lookups(self) -> None:
        """A few of what is missing: asked by coordinate, the region says that, and why."""
        for region, name, node, log in list(self._world.probes.owners()):
            if name != self.topic:
                continue
            logs = self._logs()
            known = [self._coordinate(logs, message) for message in sorted(self.acknowledged)]
            gone = [at for at in known if at is not None and _missing(log.vector, *at)]
            self._named += len(gone)
            for origin, at in self._world.sim.rng(f"missing {region}").sample(gone, min(_LOOKUPS, len(gone))):
                found = await node.machine.ask(position_of, log, origin, at)
                if found.status not in SAID.values() or SAID.get(found.reason) != found.status:
                    raise Violation(f"{self.topic}: {region} lacks {origin} {at}, and says {found}")
        if self._named:
            self._world.verdict.kinds.append("missing, and named")

    def _check_origin_order(self, regions: Mapping[str, Sequence[Delivered]]) -> None:
        """What is trimmed differs: what two regions have of one origin is in one order."""
        self.check_common_order(regions)


def _missing(vector: Vector, origin: Origin, at: Position) -> bool:
    return any(after < at <= through for after, through in vector.missing(origin))
