"""Tombstones: what was deleted in two steps, as the global configuration says it.

Is: the value and its key. Isn't: what a broker makes of it (`region_node.topics.serving.deferred_deletion`).
Key: /tombstones/{topic's full name, without a partition, or tenant/namespace} (Tombstone).
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.configuration_records import _Value

TOMBSTONES = "/tombstones/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone(_Value):
    """`topic`: its full name without a partition; of a whole namespace `tenant/namespace`.

    `regions`: where there may be copies. `purging`: where the data is being deleted: it is too late to bring it back.
    `purged`: where there is none.
    """

    topic: str
    regions: tuple[str, ...]
    since_ms: int
    until_ms: int
    by: str = ""
    partitions: int = 0
    purging: tuple[str, ...] = ()
    purged: tuple[str, ...] = ()
    asks: str = ""
    """Why it does nothing, neither hides nor purges, until somebody deletes the topic again, or takes the tombstone
    away; "": it is obeyed.
    """
    sure: bool = False
    """Somebody has deleted it again: whatever has the name is meant, whenever it was made."""

    @property
    def whole(self) -> bool:
        """Whether a whole namespace was deleted, with every topic in it."""
        return "://" not in self.topic

    @property
    def reason(self) -> str:
        """Why nobody can use it, and how it comes back."""
        if not self.purging:
            return f"{self._deleted}; until its data goes, `heliograph dr undelete {self.topic}` brings it back"
        left = ", ".join(region for region in self.regions if region not in self.purged)
        return f"{self._deleted}, and its data goes" + (f" now: {left} still has it" if left else " now")

    @property
    def taken(self) -> str:
        """The same for whoever makes something under its name: what frees that."""
        if not self.purging:
            return (
                f"{self.reason}, and `heliograph dr delete {self.topic} --grace 0` frees its name once every region "
                "has purged it"
            )
        return f"{self.reason}. Its name is free once that is done: try again"

    @property
    def _deleted(self) -> str:
        return f"{self.topic} was deleted by {self.by or 'somebody'}"


def tombstone(topic: str) -> str:
    """topic: its full name, without a partition; or `tenant/namespace`."""
    return TOMBSTONES + topic
