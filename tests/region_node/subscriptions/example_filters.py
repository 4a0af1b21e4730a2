"""Entry filters as an operator may write them, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from region_node.subscriptions.filters import ACCEPT, REJECT, RESCHEDULE, Entries, EntryFilter


class ByProperty(EntryFilter):
    """Rejects what says so; what says "later" is accepted from its second time on."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, tuple[int, int]]] = set()

    def decide(self, entries: Entries) -> Sequence[int] | None:
        return [self._one(entries, index) for index in range(len(entries))]

    def _one(self, entries: Entries, index: int) -> int:
        match entries.property(index, "filter"):
            case "no":
                return REJECT
            case "later" if (key := (entries.subscription, entries.position(index))) not in self._seen:
                self._seen.add(key)
                return RESCHEDULE
        return ACCEPT


class Broken(EntryFilter):
    def decide(self, entries: Entries) -> Sequence[int] | None:
        raise ValueError("a fault of the operator's")
