"""Loaded: the topics that a broker has loaded, by name, and by hash within each namespace.

Is: what answers "which of them lie in this bundle" without a look at the others. Isn't: loading, or who owns a bundle.
Invariants: both indexes hold the same topics; 12 bytes a topic besides the dictionary.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heliograph.model.topic_names import topic_hash

if TYPE_CHECKING:
    from region_node.runtime.topic_ports import ViewPort
    from region_node.topics.policies.policy_book import PolicyBook
    from region_node.topics.topic import Topic


class Loaded(dict[str, "Topic"]):
    """Full name -> topic. It is changed by `[name] = topic` and `pop` alone."""

    __slots__ = ("_spaces",)

    def __init__(self) -> None:
        super().__init__()
        self._spaces: dict[str, tuple[array[int], list[Topic]]] = {}
        """Namespace -> hashes, rising, and the topic of each."""

    def __setitem__(self, text: str, topic: Topic) -> None:
        self.pop(text, None)
        super().__setitem__(text, topic)
        hashes, topics = self._spaces.setdefault(topic.name.namespace, (array("I"), []))
        at = bisect_left(hashes, value := topic_hash(text))
        hashes.insert(at, value)
        topics.insert(at, topic)

    def pop(self, text: str, default: Any = None) -> Any:
        found = super().pop(text, None)
        if found is None:
            return default
        hashes, topics = self._spaces[found.name.namespace]
        at = bisect_left(hashes, topic_hash(text))
        while topics[at] is not found:  # others of the same hash
            at += 1
        del hashes[at], topics[at]
        if not topics:
            del self._spaces[found.name.namespace]
        return found

    def of(self, namespace: str) -> list[Topic]:
        """Returns the loaded topics of a namespace, by rising hash."""
        return list(self._spaces[namespace][1]) if namespace in self._spaces else []

    def between(self, namespace: str, low: int, high: int) -> list[Topic]:
        """Those of a namespace whose hashes are in [low, high)."""
        if namespace not in self._spaces:
            return []
        hashes, topics = self._spaces[namespace]
        return topics[bisect_left(hashes, low) : bisect_left(hashes, high)]


@dataclass(frozen=True, slots=True)
class TopicsHere:
    """What is known of a broker's topics without loading any: those that are, and what holds for each."""

    loaded: Loaded
    policies: PolicyBook
    view: ViewPort
