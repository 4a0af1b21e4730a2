"""Regions that publish, and links that carry each origin in its order, as far as a query that moves sees them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from heliograph.client.block_reader import CoordinatePlace, TopicSnapshot
from heliograph.model.coordinates import Coordinate, Origin
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.spark.scan.offsets import TopicPlace
from heliograph.spark.scan.region_moves import plan
from heliograph.wire.run import Run

TOPIC = "persistent://a/b/t"
NAMES = {1: "us", 2: "eu", 3: "ap"}


@dataclass
class Region:
    """One region's copy: ledgers of (coordinate, or None of a hidden entry), and what it got of each other one."""

    number: int
    ledgers: dict[int, list[Coordinate]] = field(default_factory=dict)
    trimmed: bool = False
    past: list[tuple[Origin, Position]] = field(default_factory=list)
    held: dict[Origin, Position] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own: Origin = (self.number, 1, 40 + self.number)
        self.ledgers[self.number * 3] = []

    def roll(self, rng: random.Random) -> None:
        self.ledgers[max(self.ledgers) + rng.randrange(1, 3)] = []

    def new_epoch(self, rng: random.Random) -> None:
        self.past.append((self.own, self.last))
        self.own = (self.number, self.own[1] + 1, self.own[2])
        self.roll(rng)

    @property
    def last(self) -> Position:
        found = [(ledger, len(rows) - 1) for ledger, rows in self.ledgers.items() if rows]
        return max(found, default=(min(self.ledgers), -1))

    def publish(self) -> None:
        at = (max(self.ledgers), len(self.ledgers[max(self.ledgers)]))
        self.store((self.own, at))

    def store(self, coordinate: Coordinate) -> None:
        self.ledgers[max(self.ledgers)].append(coordinate)
        self.held[coordinate[0]] = coordinate[1]

    def rows(self) -> list[tuple[Position, Coordinate]]:
        return [((ledger, n), row) for ledger, rows in sorted(self.ledgers.items()) for n, row in enumerate(rows)]

    def snapshot(self) -> TopicSnapshot:
        ledgers = tuple((ledger, len(rows), 100 * len(rows)) for ledger, rows in sorted(self.ledgers.items()) if rows)
        return TopicSnapshot(TOPIC, ledgers, self.last, self.own, NAMES, tuple(self.past), self.trimmed)

    # -- what a reader may ask: as docs/protocols/links.md says it -----------------------------------------------------

    def vector(self, topic: str, at: Position | None = None) -> dict[Origin, Position]:
        if at is None:
            return dict(self.held)
        found = {row[0]: row[1] for position, row in self.rows() if position <= at}
        if self.own in self.held and at > max((through for _, through in self.past), default=BEFORE_ALL):
            found[self.own] = min(at, self.held[self.own])  # an own coordinate is a position, and needs no entry there
        return found

    def find(self, topic: str, origin: Origin, at: Position) -> CoordinatePlace:
        if at > self.held.get(origin, BEFORE_ALL):
            return CoordinatePlace("awaited", None, None)
        if origin == self.own or origin in dict(self.past):
            rows = self.rows()
            own = next((position for position, row in rows if position >= at and row[1] == position), None)
            status = "trimmed" if rows and at < rows[0][0] else "here" if own == at else "unknown"
            return CoordinatePlace(status, at if status == "here" else None, own)
        following = next((position for position, row in self.rows() if row[0] == origin and row[1] >= at), None)
        here = following if following is not None and (origin, at) in (row for _, row in self.rows()) else None
        return CoordinatePlace("here" if here else "trimmed" if self.trimmed else "filtered", here, following)

    # -- what a batch reads --------------------------------------------------------------------------------------------

    def read(
        self, start: TopicPlace | None, stop: TopicPlace, rng: random.Random, *, lossy: bool = False
    ) -> list[Coordinate]:
        snapshot, out = self.snapshot(), []
        ranges, kept = plan(self, snapshot, start, stop, self.vector(TOPIC), may_lose=False, moved_may_lose=lossy)
        for part in ranges:
            entry = part.first
            while entry <= part.last:
                run = self._run(part.ledger, entry, min(part.last, entry + rng.randrange(6)))
                left = kept.of(snapshot, part.ledger, entry, run)
                if left is not None:
                    first, piece = left
                    out += [self.ledgers[part.ledger][first + n] for n in range(piece.count)]
                entry += run.count
        return out

    def _run(self, ledger: int, first: int, last: int) -> Run:
        rows = self.ledgers[ledger][first : last + 1]
        count = next((n for n, row in enumerate(rows) if row[0] != rows[0][0]), len(rows))
        if self.is_own(rows[0][0]) and rows[0][1] == (ledger, first):  # else it came back from another region
            return Run([b"x"] * count, [1] * count)
        return Run([b"x"] * count, [1] * count, origin=rows[0][0], spans=tuple((*row[1], 1) for row in rows[:count]))

    def is_own(self, origin: Origin) -> bool:
        return origin[0] == self.number


class World:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.regions = rng, [Region(n) for n in (1, 2, 3)]

    def step(self, *, carry: bool = False) -> None:
        """Something is published, or arrives somewhere, each origin in its order."""
        region = self.rng.choice(self.regions)
        what = 9 if carry else self.rng.randrange(10)
        if what < 4:
            for _ in range(self.rng.randrange(1, 8)):
                region.publish()
        elif what == 4:
            region.roll(self.rng)
        elif what == 5 and self.rng.random() < 0.1 and region.ledgers[max(region.ledgers)]:
            region.new_epoch(self.rng)
        else:
            self.carry(region, self.rng.choice(self.regions), self.rng.randrange(1, 20))

    def carry(self, source: Region, target: Region, count: int) -> None:
        own = [
            row for _, row in source.rows() if source.is_own(row[0]) and row[1] > target.held.get(row[0], BEFORE_ALL)
        ]
        for row in own[:count] if source is not target else ():
            target.store(row)

    def settle(self) -> None:
        for source in self.regions:
            for target in self.regions:
                self.carry(source, target, 1 << 30)
