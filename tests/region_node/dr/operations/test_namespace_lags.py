"""Lags of many namespaces, of one broker and of several: as one namespace's facts say them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from region_node.dr.operations import messages_at_risk, namespace_facts, namespace_lags
from region_node.dr.operations.namespace_lags import LACKING, NOT_IN
from tests.region_node.dr.operations.world import alone, lack, link


def topic(behind: int, **lacks: Any) -> dict[str, Any]:
    late = link(entries=behind, messages=behind, bytes=10 * behind, age_s=float(behind))
    return {"links": {"eu": late}, "lacks": {"eu": lack(**lacks)}, "shadow": None, "loaded_s": 3.0, "only": None}


def parts_of(asked: Any, topics: dict[str, Any], brokers: int) -> Any:
    """Each broker has loaded every so many-th topic of t/n."""

    async def main() -> Any:
        shares = [{name: topics[name] for name in list(topics)[index::brokers]} for index in range(brokers)]
        unopened = alone("eu", topics=2, messages=40, bytes=400, age_s=9.0)
        return [await namespace_lags.of_broker(asked, {"t/n": share}, 1000, unopened=unopened) for share in shares]

    return json.loads(json.dumps(asyncio.run(main())))


def without(counts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in counts.items() if key not in ("counts", "unlisted")}


def test_brokers_together_say_what_one_would_that_has_all_topics() -> None:
    topics = {"a": topic(2), "b": topic(5, messages=4, silent_s=9.0, connected=False), "c": topic(0)}
    asked = {NOT_IN: {"t/n": "eu"}, LACKING: {"t/n": "eu", "t/empty": "eu", "t/unknown": "eu"}}
    names = {"t/n": ["a", "b", "c", "d"], "t/empty": []}
    found = asyncio.run(namespace_lags.merged(parts_of(asked, topics, 3), names, asked[LACKING]))
    assert found[NOT_IN]["t/n"]["counts"]["missing"] == 1
    for what in (NOT_IN, LACKING):
        found[what] = {name: without(lag) for name, lag in found[what].items()}
    unopened = alone("eu", topics=2, messages=40, bytes=400, age_s=9.0)
    facts = {"namespace": "t/n", "topics": topics, "missing": ["d"], "unopened": unopened}
    assert found[NOT_IN] == {"t/n": namespace_facts.not_in(facts, "eu")}
    assert found[LACKING]["t/n"]["messages"] == 44, "each broker here heard of the same topics"
    empty = namespace_facts.lacking({"topics": {}, "missing": [], "unopened": unopened}, "eu")
    assert found[LACKING] == {"t/n": namespace_facts.lacking(facts, "eu"), "t/empty": empty}
    assert found["topics"] == {"t/n": 4, "t/empty": 0}
    assert (found[NOT_IN]["t/n"]["messages"], found[NOT_IN]["t/n"]["age_s"]) == (7, 5.0)


def test_a_namespace_of_very_many_topics_is_a_short_answer_that_says_how_many() -> None:
    topics = {f"persistent://t/n/{number:05}": topic(1, messages=None) for number in range(3000)}
    asked = {NOT_IN: {"t/n": "ap"}, LACKING: {"t/n": "eu"}}
    parts = parts_of(asked, topics, 2)
    names = [*topics, *(f"persistent://t/n/new-{number}" for number in range(9000))]
    found = asyncio.run(namespace_lags.merged(parts, {"t/n": names}, asked[LACKING]))
    assert len(json.dumps([parts, found])) < 16_000 and found["topics"] == {"t/n": 12_000}
    assert found[NOT_IN]["t/n"]["counts"] == {"down": 3000, "stays": 0, "uncounted": 3000, "missing": 9000}
    risk = messages_at_risk.at_risk("eu", "us", None, found[LACKING]["t/n"])
    assert "no broker has loaded 9000 topics" in risk["text"] and "eu told nothing of 3000 topics" in risk["text"]
    few = asyncio.run(
        namespace_lags.merged(parts_of(asked, dict(list(topics.items())[:9]), 2), {"t/n": names}, asked[LACKING])
    )
    assert len(few[LACKING]["t/n"]["missing"]) == namespace_lags.NAMED
    assert "and 11988 more" in messages_at_risk.at_risk("eu", "us", None, few[LACKING]["t/n"])["text"]


def test_where_topics_could_not_be_listed_nothing_is_said_to_be_all() -> None:
    asked = {NOT_IN: {"t/n": "eu"}, LACKING: {"t/n": "eu"}}
    found = asyncio.run(
        namespace_lags.merged(parts_of(asked, {"a": topic(2)}, 1), {"t/n": "not within 1 s"}, asked[LACKING])
    )
    assert found["topics"] == {"t/n": 1}
    risk = messages_at_risk.at_risk("us", "eu", found[NOT_IN]["t/n"], None)
    assert risk["messages"] is None and risk["last"]["messages"] == 2 and "not within 1 s" in risk["text"]
