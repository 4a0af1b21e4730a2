"""Shares: how much of what a broker has for all groups each role has.

Is: a sum, and parts of it. Isn't: what is counted (`group_coordinator`).
Invariants: a role has no more than it leaves free, so that there is room for every other one, however many there are.
What is of no role is bounded by the whole alone.
"""

from __future__ import annotations


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
