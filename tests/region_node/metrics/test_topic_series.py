"""Which topics /metrics names: the choice, and the ranking of the heaviest."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from region_node.metrics.topic_series import RANK_S, TopicSeries, TopTopics
from region_node.process.settings import BrokerSettings


@dataclass
class Loaded:
    """A topic, as a ranking uses it."""

    text: str
    total: int = 0
    backlog: int = 0
    closed: bool = False


def rank(top: TopTopics, topics: list[Any], now: float) -> list[str]:
    ranking = top.begin(now)
    for topic in topics:
        if ranking is not None:
            ranking.show(topic, topic.total, topic.backlog)
    return [topic.text for topic in top.end(ranking, now)]


def test_which_rows_there_are() -> None:
    for chosen, wanted in (("auto", [True, True, False]), ("all", [True] * 3), ("namespaces", [False] * 3)):
        series = BrokerSettings(metrics_topics=chosen, metrics_topics_max=5).topic_series()
        assert [series.by_topic(loaded) for loaded in (0, 5, 6)] == wanted
    assert (
        BrokerSettings().topic_series() == TopicSeries() and TopicSeries().by_topic(10_000) and TopicSeries().top == 100
    )
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"metrics_topics": "top"}, "metrics_topics must be one of auto, all, namespaces"),
        ({"metrics_top_topics": 1001}, "0 .none. to 1000"),
        ({"metrics_topics_max": -1}, "0 or more"),
    )
    for wrong, told in refused:
        with pytest.raises(ConfigError, match=told):
            BrokerSettings(**wrong)


def test_bytes_since_the_last_ranking_come_first_then_backlog() -> None:
    topics = [
        Loaded("was", 1000),
        Loaded("some", 10),
        Loaded("little", 9),
        Loaded("late", 0, 50),
        Loaded("later", 0, 60),
        Loaded("quiet"),
    ]
    assert rank(TopTopics(9), topics, 0) == ["was", "some", "little", "later", "late"]
    top = TopTopics(1)
    assert rank(top, topics, 0) == ["was"]
    topics[1].total, topics[2].total = 20, 29
    assert rank(top, topics, RANK_S) == ["little"], "what was before does not count"
    topics[1].total = 0  # it was loaded again
    assert rank(top, topics, 2 * RANK_S) == ["later"], "nobody had traffic"
    topics[1].total = 5
    assert rank(top, topics, 3 * RANK_S)[0] == "some"
    topics[0].total = 900  # the same, and clients have published since
    assert rank(top, topics, 4 * RANK_S)[0] == "was"
    assert rank(TopTopics(0), topics, 0) == []


def test_between_rankings_the_list_stays_and_bytes_add_up() -> None:
    top, topics = TopTopics(1), [Loaded("a", 10), Loaded("b", 5), Loaded("c", 5)]
    assert rank(top, topics, 100) == ["a"]
    topics[1].total = 105
    assert rank(top, topics, 100 + 0.9 * RANK_S) == ["a"]
    topics[2].total = 100
    assert rank(top, topics, 100 + RANK_S) == ["b"], "and c has moved less over the whole time"
    topics[1].closed = True
    assert rank(top, topics, 101 + RANK_S) == [], "who is unloaded is not shown"


def test_a_place_is_kept_as_long_as_it_is_a_good_one() -> None:
    top, topics = TopTopics(2), [Loaded(name) for name in "abcdef"]

    times = (RANK_S * number for number in range(20))

    def moved(**more: int) -> list[str]:
        for topic in topics:
            topic.total += more.get(topic.text, 0)
        return rank(top, topics, next(times))

    assert moved(a=9, b=8, c=7) == ["a", "b"]
    assert moved(a=5, b=6, c=7) == ["c", "b", "a"], "a is the third of four places"
    assert moved(a=6, b=1, c=7, d=6, e=5) == ["c", "a"], "b was the fifth; of equals who is listed comes first"
    assert moved() == ["c", "a"], "nobody moves: nobody goes"
    assert moved(e=1) == ["e", "c", "a"]
    assert moved(e=2, f=1) == ["e", "f", "c", "a"]
    assert moved(e=3, f=2, d=1) == ["e", "f", "c"], "four places, and d has one of them"


@pytest.mark.parametrize("seed", range(50))
def test_the_list_against_its_definition(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(1, 6)
    top, topics = TopTopics(count), [Loaded(f"t{number}") for number in range(rng.randrange(30))]
    listed: set[str] = set()
    before: dict[str, int] = {}
    for now in range(12):
        for topic in rng.sample(topics, rng.randrange(len(topics) + 1)):
            topic.total += rng.randrange(5)
            topic.backlog = rng.randrange(3)
        rng.shuffle(topics)
        key = {
            topic.text: (topic.total - before.get(topic.text, 0), topic.backlog, topic.text in listed, topic.text)
            for topic in topics
        }
        order = sorted((text for text in key if any(key[text][:3])), key=lambda text: key[text], reverse=True)
        wanted = [text for at, text in enumerate(order[: 2 * count]) if at < count or text in listed]
        assert rank(top, list(topics), now * RANK_S) == wanted
        listed, before = set(wanted), {topic.text: topic.total for topic in topics}
        assert top._totals == {text: total for text, total in before.items() if total}, "nothing of who had no traffic"
