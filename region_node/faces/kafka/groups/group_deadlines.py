"""GroupDeadlines: which group's time comes next, of all that one broker coordinates.

Is: the nearest deadline that was told of each group, in order. Isn't: a timer (`group_coordinator`), or what a deadline
means (`consumer_group`).
Invariants: a deadline that has moved back is told when it comes, so that a heartbeat costs nothing here; one that comes
nearer counts at once.
Cost: the logarithm of the number of groups, however many there are.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

_SPARE = 64
"""Entries that count no more may be as many as those that do, and so many beyond."""


class GroupDeadlines:
    """Group -> its nearest deadline, in the loop's seconds."""

    __slots__ = ("_heap", "_of")

    def __init__(self) -> None:
        self._of: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def tell(self, group: str, at: float | None) -> None:
        """Its deadline is then; None: it has none."""
        known = self._of.get(group)
        if at is None or (known is not None and known <= at):
            return
        self._of[group] = at
        heappush(self._heap, (at, group))
        if len(self._heap) > 2 * len(self._of) + _SPARE:
            self._heap = [(at, group) for group, at in self._of.items()]
            heapify(self._heap)

    def forget(self, group: str) -> None:
        self._of.pop(group, None)

    def nearest(self) -> float | None:
        while self._heap and self._of.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[str]:
        """Takes out the groups whose time has come: whoever has another one is to be told of again."""
        found = list[str]()
        while (at := self.nearest()) is not None and at <= now:
            group = heappop(self._heap)[1]
            del self._of[group]
            found.append(group)
        return found

    def __len__(self) -> int:
        return len(self._heap)
