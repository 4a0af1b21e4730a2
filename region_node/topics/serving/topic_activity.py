"""Activity: which topics of a broker the tick has to visit.

Is: a set of topics that something has happened on, or that wait for a time; what was visited since the last load
report. Isn't: what a visit does (`Topic.tick`), or a timer.
Invariants: a topic on which nothing happens is not in it, and costs nothing, however many there are; whatever changes a
counter, a cursor, or who is connected touches its topic, so that no rate stands still and no time passes unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from region_node.topics.topic import Topic


class Activity:
    """`busy`: topics of the next tick; they put themselves in. Order is that in which they came."""

    __slots__ = ("_reported", "_ticked_at", "busy")

    def __init__(self, now: float) -> None:
        self.busy: dict[Topic, None] = {}
        self._reported: dict[Topic, None] | None = None
        """None: nobody asks."""
        self._ticked_at = now

    def tick(self, now: float) -> list[Topic]:
        """Visits those that are busy, and returns them; a rate is over the time since the last tick, however long a
        topic was idle before.
        """
        elapsed_s, self._ticked_at = now - self._ticked_at, now
        visited = list(self.busy)
        self.busy.clear()
        for topic in visited:
            if not topic.closed and topic.tick(now, elapsed_s):
                self.busy[topic] = None
        if self._reported is not None:
            self._reported.update(dict.fromkeys(visited))
        return visited

    def since_report(self) -> Mapping[Topic, None]:
        """Topics that anything happened on since the last call, also those that are closed by now; at the first call
        since a while.
        """
        found, self._reported = {**(self._reported or {}), **self.busy}, {}
        return found
