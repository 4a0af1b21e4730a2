"""What a topics pattern may cost, and what of Java's regular expressions it may have."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.errors import NotAllowed
from region_node.topics.serving.topic_listing import PATTERN_STATES_MAX, matching, topic_pattern

NAME = "persistent://public/default/" + "a" * 120


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", [".*" + ".?" * 21 + "X", "(a+)+X", "(a|a)*X", "a*a*a*a*X", "((.*)*)*X"])
def test_no_pattern_backtracks(pattern: str) -> None:
    """With a matcher that backtracks this ends after hours, if ever."""
    assert not topic_pattern(".*/" + pattern)(NAME)
    assert topic_pattern(".*/" + pattern)(NAME + "X")


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        (r"persistent://public/default/\Qa.b\E", {"a.b"}),
        (r"public/default/(?i)A[.X]B", {"a.b", "axb"}),
        (r"public/default/(?:a|b)\w\w?", {"axb"}),
        (r"^public/default/a[^.]b$", {"axb", "aüb"}),
        (r"public/default/a.{1,2}b", {"a.b", "axb", "aüb"}),
        (r"public/default/[[:alpha:]]+", {"axb"}),
    ],
)
def test_regular_expressions_of_clients(pattern: str, matching: set[str]) -> None:
    matches = topic_pattern(pattern)
    assert {name for name in ("a.b", "axb", "aüb") if matches("persistent://public/default/" + name)} == matching


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", "invalid escape sequence.*may not look around or back"),
        ("(?!a)b", "may not look around or back"),
        ("a++", "bad repetition operator"),
        ("[a-z&&[^b]]", "a class within a class"),
        ("[a[bc]]", "a class within a class"),
        ("[ab&&b]", "a class within a class"),
        (".{400}", f"states, more than {PATTERN_STATES_MAX}: counted repetitions"),
        (r"a\pLb", f"states, more than {PATTERN_STATES_MAX}: .* classes of Unicode have many"),
        ("((a{99}){99}){99}", "repetition"),
        (r"a\Z", "invalid escape"),
    ],
)
def test_what_is_refused_is_told(pattern: str, why: str) -> None:
    with pytest.raises(NotAllowed, match=why):
        topic_pattern(pattern)


def test_a_long_list_lets_others_go_on() -> None:
    done: list[int | str] = []

    def matches(name: str) -> bool:
        done.append(int(name))
        return name.endswith("7")

    async def test() -> None:
        asyncio.get_running_loop().call_soon(done.append, "another")
        found = await matching(matches, [str(n) for n in range(1000)])
        assert found == [str(n) for n in range(7, 1000, 10)]

    asyncio.run(test())
    assert [n for n in done if n != "another"] == list(range(1000)) and done.index("another") < 500
