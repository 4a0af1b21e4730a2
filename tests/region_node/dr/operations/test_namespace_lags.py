"""Lags of many namespaces, of one broker and of several: as one namespace's facts say them."""

from __future__ import annotations

import json
from typing import Any

from region_node.dr.operations import namespace_facts, namespace_lags
from region_node.dr.operations.namespace_lags import LACKING, NOT_IN
from tests.region_node.dr.operations.world import lack, link


def topic(behind: int, **lacks: Any) -> dict[str, Any]:
    late = link(entries=behind, messages=behind, bytes=10 * behind, age_s=float(behind))
    return {"links": {"eu": late}, "lacks": {"eu": lack(**lacks)}, "shadow": None, "loaded_s": 3.0, "only": None}


def test_brokers_together_say_what_one_would_that_has_all_topics() -> None:
    topics = {"a": topic(2), "b": topic(5, messages=4, silent_s=9.0, connected=False), "c": topic(0)}
    asked = {NOT_IN: {"t/n": "eu"}, LACKING: {"t/n": "eu", "t/empty": "eu", "t/unknown": "eu"}}
    parts = [namespace_lags.of_broker(asked, {"t/n": {name: topics[name]}}) for name in topics]
    names = {"t/n": ["a", "b", "c", "d"], "t/empty": []}
    found = namespace_lags.merged(json.loads(json.dumps(parts)), names)
    facts = {"topics": topics, "missing": ["d"]}
    assert found[NOT_IN] == {"t/n": namespace_facts.not_in(facts, "eu")}
    empty = namespace_facts.lacking({"topics": {}, "missing": []}, "eu")
    assert found[LACKING] == {"t/n": namespace_facts.lacking(facts, "eu"), "t/empty": empty}
    assert found["topics"] == {"t/n": 4, "t/empty": 0}
    assert (found[NOT_IN]["t/n"]["messages"], found[NOT_IN]["t/n"]["age_s"]) == (7, 5.0)
