"""GroupShares: how much each role has of what a broker has for all groups: places, and memory for their offsets.

Is: sums, and parts of them. Isn't: which groups are kept (`group_coordinator`).
Invariants: a role has no more than it leaves free, so that there is room for every other one, however many there are.
What is of no role is bounded by the whole alone.
"""

from __future__ import annotations

from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.committed_offsets import Key, Row
from region_node.faces.kafka.groups.coordinated_group import CoordinatedGroup


class Shares:
    """So much at `most`, of all roles together. "" is no role: of nobody known, or where nothing is authorized."""

    __slots__ = ("_most", "_of_role", "total")

    def __init__(self, most: int) -> None:
        self._most, self.total = most, 0
        self._of_role: dict[str, int] = {}

    def has_room(self, role: str, more: int) -> bool:
        """Whether the role may have so much more."""
        left = self._most - self.total - more
        return left >= (self._of_role.get(role, 0) + more if role else 0)

    def add(self, role: str, more: int) -> None:
        """It has so much more, or less."""
        self.total += more
        has = self._of_role.pop(role, 0) + more
        if has:
            self._of_role[role] = has


class GroupShares:
    """Counts what roles take of one broker."""

    def __init__(self, groups_max: int, offsets_bytes_max: int) -> None:
        self._places, self._bytes = Shares(groups_max), Shares(offsets_bytes_max)

    def has_place(self, held: CoordinatedGroup) -> bool:
        """Whether the group may be kept, too."""
        return self._places.has_room(held.payer, 1)

    def enter(self, held: CoordinatedGroup) -> None:
        """It is kept from now on."""
        self._places.add(held.payer, 1)

    def leave(self, held: CoordinatedGroup) -> None:
        """It is kept no more."""
        self.count(held, 0)
        self._places.add(held.payer, -1)

    def count(self, held: CoordinatedGroup, size_bytes: int) -> None:
        """Its offsets take so much."""
        self._bytes.add(held.payer, held.count(size_bytes))

    def take_room(self, held: CoordinatedGroup, rows: dict[Key, Row]) -> None:
        """Comes before these are committed; the coordinator's `keep` comes behind that, whatever became of it. Raises
        Refused: what was committed takes too much memory by then.
        """
        more = held.offsets.growth(rows)
        if more > 0 and not self._bytes.has_room(held.payer, more):
            raise Refused(
                Code.POLICY_VIOLATION,
                f"the role {held.payer!r}, or all together, have committed as much to this broker's groups as they may "
                "(broker.kafka.group_offsets_bytes_max): delete groups that nobody uses, or say less of each offset",
            )
        self.count(held, held.counted_bytes + more)

    @property
    def taken(self) -> tuple[int, int]:
        """(places, bytes) of all roles."""
        return self._places.total, self._bytes.total
