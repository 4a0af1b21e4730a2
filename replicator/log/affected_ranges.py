"""AffectedList: what was confirmed with fewer regions than asked for, as it is kept with the topic.

Is: ranges of own coordinates, their bound, and their stored form. Isn't: a decision
(`replicator.log.region_durability`).
Invariants: what is stored and read back names at least what the list named: while `since` is set, everything that was
published behind it counts as affected when the topic is loaded again, because nobody knows which receipts had gone out.
Source: docs/protocols/links.md, "Durability classes".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position

AFFECTED_MAX = 1000
DUMPED_MAX = 128


@dataclass(slots=True)
class Affected:
    """(after, through]: own coordinates that were confirmed with fewer regions than asked for, from `at_ms` on."""

    after: Position
    through: Position
    messages: int
    at_ms: int
    needed: int
    """Other regions that were asked for."""


class AffectedList:
    """forgotten: messages of ranges that there was no room for; the log has them. since: (after, wall ms, other
    regions) while the topic is degraded.
    """

    __slots__ = ("forgotten", "ranges", "since")

    def __init__(self) -> None:
        self.ranges: list[Affected] = []
        self.forgotten = 0
        self.since: tuple[Position, int, int] | None = None

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.ranges) + self.forgotten

    def note(self, after: Position, through: Position, messages: int, at_ms: int, needed: int) -> None:
        last = self.ranges[-1] if self.ranges else None
        if last is not None and (last.through, last.needed) == (after, needed):
            last.through, last.messages = through, last.messages + messages
            return
        self.ranges.append(Affected(after, through, messages, at_ms, needed))
        if len(self.ranges) > AFFECTED_MAX:
            self.forgotten += self.ranges.pop(0).messages

    def loaded(self, through: Position, messages: int) -> None:
        """The topic was loaded again. through: the last own coordinate; messages: how many were published here behind
        `since`.
        """
        if self.since is None:
            return
        (after, at_ms, needed), self.since = self.since, None
        self.ranges = [one for one in self.ranges if one.after < after]
        if through > after:
            self.note(after, through, max(1, messages), at_ms, needed)

    def dump(self) -> list[Any]:
        """For msgpack: the newest DUMPED_MAX ranges."""
        left = self.ranges[:-DUMPED_MAX]
        rows = [[*one.after, *one.through, one.messages, one.at_ms, one.needed] for one in self.ranges[-DUMPED_MAX:]]
        return [
            self.forgotten + sum(one.messages for one in left),
            None if self.since is None else [*self.since[0], *self.since[1:]],
            rows,
        ]

    @classmethod
    def read(cls, fields: Sequence[Any]) -> AffectedList:
        """Reads the stored form. Raises CorruptData."""
        found = cls()
        try:
            found.forgotten, since, rows = fields[:3]
            found.ranges = [
                Affected((a, b), (c, d), messages, at_ms, needed) for a, b, c, d, messages, at_ms, needed in rows
            ]
            found.since = None if since is None else ((since[0], since[1]), since[2], since[3])
        except (ValueError, TypeError, IndexError) as error:
            raise CorruptData(f"replicated log: the list of affected messages: {error}") from error
        return found
