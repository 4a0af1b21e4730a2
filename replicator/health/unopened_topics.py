"""Unopened topics: messages in topics that another region may never have heard of, as their source counts them and as
the other region was told.

Is: the links of one broker that were never opened, summed up by namespace for each heartbeat; and what a broker heard
of that from each broker of a region. Isn't: a topic whose link was opened: its target has it, and knows its risk, or
says that it does not.
Invariants: bounded on both sides; what is cut off is told as not `whole`; a topic counts from before its link has a
cursor until its target has answered an OPEN.
Source: docs/protocols/links.md, "Risk".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from heliograph.model.topic_names import TopicName
from heliograph.wire.links.unopened_topics import ROWS_MAX, UnopenedRow, UnopenedTopics

LINKS_MAX = 2000
"""So many links to one region are counted for one heartbeat."""
BROKERS_MAX = 1000
"""So many brokers of one region are known by what they told."""
FORGET_S = 30.0
"""A broker that said nothing for so long, while others of its region did, is gone: others have its topics."""


class Unopened(Protocol):
    """A link that its target has not answered yet."""

    @property
    def target(self) -> str: ...

    def backlog(self) -> tuple[tuple[int, int, int], int]: ...


class UnopenedLinks:
    """The links of one broker that no target has answered yet, by target."""

    def __init__(self, region: str, broker: str, behind_ms: Callable[[], int]) -> None:
        """region, broker: their names. behind_ms: by how much this clock is behind the one that stamps."""
        self._region, self._broker, self._behind_ms = region, broker, behind_ms
        self._links: defaultdict[str, dict[Unopened, str]] = defaultdict(dict)
        """Target -> link -> its topic's namespace."""

    def add(self, link: Unopened, topic: str) -> None:
        """The link is new here."""
        self._links[link.target][link] = TopicName.parse(topic).namespace

    def remove(self, link: Unopened) -> None:
        """Its target has the topic, or it has ended."""
        self._links[link.target].pop(link, None)

    def told(self, target: str) -> UnopenedTopics:
        """What the next heartbeats to the target say."""
        links, rows = self._links[target], dict[str, UnopenedRow]()
        for link, namespace in islice(links.items(), LINKS_MAX):
            (entries, messages, size), oldest_ms = link.backlog()
            if not entries:
                continue
            at_ms = max(0, oldest_ms - self._behind_ms())
            row = rows.get(namespace)
            rows[namespace] = (
                UnopenedRow(1, messages, size, at_ms)
                if row is None
                else UnopenedRow(
                    row.topics + 1, row.messages + messages, row.size_bytes + size, min(row.oldest_ms, at_ms)
                )
            )
        whole = len(links) <= LINKS_MAX and len(rows) <= ROWS_MAX
        if len(rows) > ROWS_MAX:
            rows = dict(sorted(rows.items(), key=lambda row: -row[1].messages)[:ROWS_MAX])
        return UnopenedTopics(self._region, self._broker, whole, rows)


class UnopenedThere:
    """What the brokers of one region told this one last. Times are seconds of the monotonic clock here."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told: dict[str, tuple[float, UnopenedTopics]] = {}
        """Broker -> when it said so, and what; who spoke last is last."""

    def take(self, told: UnopenedTopics, now: float) -> None:
        """Notes what a heartbeat brought at `now`."""
        self.told.pop(told.broker, None)
        self.told[told.broker] = now, told
        while (first := next(iter(self.told))) != told.broker and (
            len(self.told) > BROKERS_MAX or self.told[first][0] < now - FORGET_S
        ):
            del self.told[first]
