"""HoldingTopics: topics of a broker that hold a transaction of another region until its other topics have it.

Is: the way from topics, which exist first, to who asks for the others. Isn't: asking
(`region_node.transactions.coordinators.replicated_transactions`).
Invariants: a topic that was told of before anybody followed is told of then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Topic = TypeVar("Topic")


class HoldingTopics(Generic[Topic]):
    """One broker has one, where it takes part in transactions."""

    def __init__(self) -> None:
        self._early: list[Topic] = []
        self._tell: Callable[[Topic], None] = self._early.append

    def add(self, topic: Topic) -> None:
        """Tells of a topic that holds a transaction, or was loaded with one."""
        self._tell(topic)

    def follow(self, follower: Callable[[Topic], None]) -> None:
        """From now on `follower` hears of them."""
        self._tell = follower
        while self._early:
            follower(self._early.pop(0))
