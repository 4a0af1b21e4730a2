"""TopicSeries: which topics /metrics names one by one, and TopTopics: the heaviest of a broker, which it names however
many are loaded.

Is: the choice between rows by topic and by namespace; a ranking by bytes since the last one, then by backlog. Isn't:
the rows (`topic_metrics`), or any counting.
Invariants: a ranking holds twice `top` places, whatever is loaded; of a topic that had no traffic nothing is kept; the
first `top` are listed, and who is listed stays while it is among the first 2 * `top`, and between rankings, so that
series do not come and go.
Source: docs/decisions/0170-the-heaviest-topics-have-names.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING

from heliograph.model.errors import ConfigError

if TYPE_CHECKING:
    from region_node.topics.topic import Topic

RANK_S = 10.0
"""Bytes are compared over so long at least: several scrapers do not make the list depend on the second between two of
them.
"""
TOP_MAX = 1000


class By(Enum):
    """What rows of topics, and of their links, are of."""

    AUTO = "auto"
    """Topics up to `topics_max` of them, namespaces above."""
    ALL = "all"
    """Topics, however many series that makes."""
    NAMESPACES = "namespaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeries:
    """A broker's settings `metrics_topics`, `metrics_topics_max`, and `metrics_top_topics`. Raises ConfigError."""

    topics: str = By.AUTO.value
    topics_max: int = 10_000
    top: int = 100

    def __post_init__(self) -> None:
        if self.topics not in (names := [by.value for by in By]):
            raise ConfigError(f"broker.metrics_topics must be one of {', '.join(names)}, not {self.topics!r}")
        if self.topics_max < 0:
            raise ConfigError(f"broker.metrics_topics_max must be 0 or more, not {self.topics_max}")
        if not 0 <= self.top <= TOP_MAX:
            raise ConfigError(f"broker.metrics_top_topics must be 0 (none) to {TOP_MAX}, not {self.top}")

    def by_topic(self, loaded: int) -> bool:
        """Whether so many loaded topics have rows of their own."""
        return self.topics == By.ALL.value or (self.topics == By.AUTO.value and loaded <= self.topics_max)


class Ranking:
    """One pass over a broker's topics: each that is not empty is shown once, in any order."""

    __slots__ = ("_before", "_best", "_listed", "_places", "_shown", "totals")

    def __init__(self, top: int, before: dict[str, int], listed: dict[str, Topic]) -> None:
        self._places, self._before, self._listed = 2 * top, before, listed
        self._best: list[tuple[int, int, bool, str, int, Topic]] = []
        """A heap, the least first: bytes, backlog, whether it is listed, then names, so that equals keep their
        order.
        """
        self._shown = 0
        self.totals: dict[str, int] = {}

    def show(self, topic: Topic, total_bytes: int, backlog_entries: int) -> None:
        """total_bytes: in and out since it was loaded; less than before: it was loaded again meanwhile."""
        text = topic.text
        before = self._before.get(text, 0)
        moved = total_bytes - before if total_bytes >= before else total_bytes
        if total_bytes:
            self.totals[text] = total_bytes
        listed = text in self._listed
        if not (moved or backlog_entries or listed):
            return
        self._shown += 1
        place = (moved, backlog_entries, listed, text, self._shown, topic)
        if len(self._best) < self._places:
            heappush(self._best, place)
        else:
            heappushpop(self._best, place)

    def first(self, top: int) -> dict[str, Topic]:
        """The first `top`, and those behind them that were listed and have kept a place."""
        best = sorted(self._best, reverse=True)
        return {text: topic for at, (_, _, listed, text, _, topic) in enumerate(best) if at < top or listed}


class TopTopics:
    """Lists one broker's heaviest topics. top: how many, 0 for none; at most twice as many are listed."""

    __slots__ = ("_listed", "_ranked_at", "_top", "_totals")

    def __init__(self, top: int) -> None:
        self._top = top
        self._listed: dict[str, Topic] = {}
        self._totals: dict[str, int] = {}
        """Bytes as of the last ranking, of loaded topics that have any."""
        self._ranked_at = float("-inf")

    def begin(self, now: float) -> Ranking | None:
        """None: those who are listed stay, this time."""
        return Ranking(self._top, self._totals, self._listed) if self._top and now - self._ranked_at >= RANK_S else None

    def end(self, ranking: Ranking | None, now: float) -> list[Topic]:
        """now: as of its beginning. Returns who is listed and loaded, the heaviest first."""
        if ranking is not None:
            self._listed, self._totals, self._ranked_at = ranking.first(self._top), ranking.totals, now
        self._listed = {text: topic for text, topic in self._listed.items() if not topic.closed}
        return list(self._listed.values())
