"""A report says what was done and what was broken; nothing that is in it is missing in its JSON."""

from __future__ import annotations

import json

from region_node.chaos.judge import BrokenPromise
from region_node.chaos.report import lines
from tests.region_node.chaos.example_report import report


def test_a_terminal_is_told_what_was_kept() -> None:
    said = lines(report())
    assert "2 faults in 30 s; 200 messages sent, 199 acknowledged, 3 redelivered" in said
    assert "slowest recovery 2.5 s, after cut at us-eu" in said and "at risk 40" in said
    assert "not compared: what was said during stop" in said and said.endswith("every promise was kept")


def test_a_terminal_is_told_each_promise_that_was_broken() -> None:
    said = lines(report(BrokenPromise("kept", "the copy in eu", "1 acknowledged messages of us are lost (3)")))
    assert "BROKEN (kept): the copy in eu: 1 acknowledged messages of us are lost (3)" in said
    assert "every promise was kept" not in said


def test_json_has_all_of_it_and_a_verdict() -> None:
    told = json.loads(json.dumps(report(BrokenPromise("kept", "eu", "3 lost")).as_json()))
    assert told["kept"] is False and told["broken"] == [{"promise": "kept", "where": "eu", "text": "3 lost"}]
    assert told["faults"][0]["whole_s"] == 2.5 and told["series"]["sent"]["us"] == [[0, 5], [1, 6]]
    assert report().as_json()["kept"] is True
