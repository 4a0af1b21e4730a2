"""One answer to what would be lost, for every plan and status; what is not known is never 0."""

from __future__ import annotations

from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from region_node.dr.operations import namespace_facts
from region_node.dr.operations.messages_at_risk import at_risk
from tests.region_node.dr.operations.world import NS, TOPIC, World, alone, lack, link


def told(links: Any = None, lacks: Any = None, missing: Any = (), **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What us says of itself, and eu of us."""
    us = {"missing": list(missing), "topics": {TOPIC: {"links": {} if links is None else {"eu": links}}}}
    unopened = more.pop("unopened", alone("us"))
    eu = {
        "namespace": NS,
        "missing": list(missing),
        "topics": {TOPIC: {"lacks": {} if lacks is None else {"us": lacks}, **more}},
        "unopened": unopened,
    }
    return namespace_facts.not_in(us, "eu"), namespace_facts.lacking(eu, "us")


def test_the_source_knows_best() -> None:
    published, lacks = told(link(entries=105, messages=105, bytes=9, age_s=3.0), lack(silent_s=40.0, connected=False))
    found = at_risk("us", "eu", published, lacks)
    assert (found["messages"], found["said_by"], found["age_s"]) == (105, "us", 3.0)
    assert found["text"] == "105 messages (9 bytes) of us are missing in eu, the oldest 3.0 s old"


@pytest.mark.parametrize("messages", (0, 105))
def test_a_silent_source_is_told_by_its_last_number_and_how_old_that_is(messages: int) -> None:
    _, lacks = told(lacks=lack(messages=messages, silent_s=40.0, age_s_max=41.0, connected=False))
    found = at_risk("us", "eu", None, lacks)
    assert found["messages"] is None and found["bytes"] is None and found["age_s"] == 41.0
    assert found["last"] == {"messages": messages, "bytes": 0, "ago_s": 40.0}
    assert (
        "not known" in found["text"]
        and f"{messages} messages (0 bytes) when it was heard last, 40.0 s" in found["text"]
    )


@pytest.mark.parametrize(
    "side",
    (
        (None, told(lacks=None, loaded_s=7.0)[1]),
        (None, told(lacks=lack(), missing=["a"])[1]),
        (told(links=None)[0], None),
        (told(links=link(), missing=["a"])[0], None),
    ),
    ids=("never heard", "not loaded in the target", "no link", "not loaded in the source"),
)
def test_what_is_not_counted_is_not_nothing(side: tuple[Any, Any]) -> None:
    found = at_risk("us", "eu", *side)
    assert found["messages"] is None and found["last"]["messages"] == 0 and "not known" in found["text"]


def test_where_nobody_answers_nothing_is_known() -> None:
    found = at_risk("us", "eu", None, None)
    assert found["messages"] is found["last"] is found["age_s"] is None and "not known" in found["text"]


def test_a_target_that_hears_its_source_has_a_number() -> None:
    """It may be asked although the source's admin port does not answer."""
    found = at_risk("us", "eu", None, told(lacks=lack(messages=3, bytes=30, age_s_max=1.0))[1])
    assert found["messages"] == 3 and found["said_by"] == "eu"


def test_a_plan_and_the_report_of_a_failover_say_the_same() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        world.topic("eu")["lacks"]["us"] = lack(connected=False, silent_s=40.0, age_s_max=40.0)
        world.down = {"us"}
        _, cost = await world.conductor.plan("failover", NS, "eu")
        assert cost["at_risk"]["messages"] is None and cost["at_risk"]["last"]["ago_s"] == 40.0
        await world.conductor.begin("failover", NS, "eu", "op")
        assert (await world.conductor.advance(NS)).steps[-1][2] == cost["at_risk"]["text"]

    run_alone(main())


def test_a_target_without_a_topic_of_the_namespace_does_not_say_that_nothing_is_missing() -> None:
    lacks = namespace_facts.lacking({"topics": {}, "missing": []}, "us")
    found = at_risk("us", "eu", None, lacks)
    assert found["messages"] is None and "eu has no topic of the namespace in common with us" in found["text"]


def test_topics_that_never_come_from_the_source_say_nothing_of_its_others() -> None:
    _, lacks = told(only=["eu"])
    assert at_risk("us", "eu", None, lacks)["messages"] is None


def test_topics_that_the_source_alone_has_count() -> None:
    there = alone("us", topics=2, messages=40, bytes=400, age_s=9.0)
    found = at_risk("us", "eu", None, told(lacks=lack(messages=3, bytes=30, age_s_max=1.0), unopened=there)[1])
    assert (found["messages"], found["bytes"], found["age_s"]) == (43, 430, 9.0)


def test_topics_that_the_source_alone_had_count_among_what_was_known_when_it_fell_silent() -> None:
    there = alone("us", ago_s=50.0, messages=40, age_s=70.0)
    silent = lack(messages=3, silent_s=40.0, age_s_max=41.0, connected=False)
    found = at_risk("us", "eu", None, told(lacks=silent, unopened=there)[1])
    assert found["messages"] is None and found["age_s"] == 70.0
    assert found["last"]["messages"] == 43 and found["last"]["ago_s"] == 50.0


@pytest.mark.parametrize(
    ("unopened", "why"),
    (
        (None, "us did not say which topics it alone has"),
        ({}, "us did not say which topics it alone has"),
        (alone("ap"), "us did not say which topics it alone has"),
        (alone("us", whole=False, messages=40), "us has more topics that it alone has than it says"),
    ),
    ids=("a broker here of an earlier version", "nobody told", "an earlier version there", "more than is counted"),
)
def test_what_a_source_alone_has_and_does_not_say_is_not_nothing(unopened: Any, why: str) -> None:
    found = at_risk("us", "eu", None, told(lacks=lack(messages=3), unopened=unopened)[1])
    assert found["messages"] is None and found["last"]["messages"] >= 3 and why in found["text"]


def test_a_target_of_an_earlier_version_does_not_know_what_its_source_alone_has() -> None:
    _, lacks = told(lacks=lack(messages=3))
    del lacks["untold"], lacks["unopened_topics"]
    found = at_risk("us", "eu", None, lacks)
    assert found["messages"] is None and "eu does not say which topics us alone has" in found["text"]


def test_of_what_several_brokers_heard_of_one_the_last_word_counts() -> None:
    """A broker of the source speaks on each of its connections; one that is gone is not counted for ever."""
    parts: list[dict[str, Any]] = [
        {"topics": {}, "unopened": alone("us", ago_s=9.0, messages=40)},
        {"topics": {}, "unopened": alone("us", ago_s=1.0, messages=7)},
        {"topics": {}, "unopened": {"us": {"other": {**alone("us", messages=2)["us"]["us-b"], "ago_s": 3.0}}}},
        {"topics": {}, "unopened": {"us": {"gone": {**alone("us", messages=90)["us"]["us-b"], "ago_s": 32.0}}}},
    ]
    assert namespace_facts.lacking(namespace_facts.merged("eu", parts, [], NS), "us")["messages"] == 9
