"""What a topics pattern may cost, and what of Java's regular expressions it may have."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import NotAllowed
from region_node.topics.serving.topic_listing import (
    HASHED_AT_ONCE,
    PATTERN_STATES_MAX,
    TopicLists,
    matching,
    paced_hash,
    topic_pattern,
    topics_hash,
)

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


@pytest.mark.parametrize("count", [0, 1, HASHED_AT_ONCE, HASHED_AT_ONCE + 1, 3 * HASHED_AT_ONCE + 7])
def test_the_hash_of_a_long_list_is_made_in_slices(count: int) -> None:
    names, passes = [f"t{number}" for number in range(count)], list[int]()

    async def others() -> None:
        while True:
            passes.append(1)
            await asyncio.sleep(0)

    async def test() -> None:
        other = asyncio.ensure_future(others())
        assert await paced_hash(names) == topics_hash(names)
        other.cancel()

    asyncio.run(test())
    assert len(passes) >= count // HASHED_AT_ONCE


def test_who_watches_the_same_shares_a_list_and_each_that_follows() -> None:
    async def test() -> None:
        lists = TopicLists(EmbeddedStore(), asyncio.get_running_loop().call_soon)
        names = [f"persistent://public/default/{name}" for name in "abcd"]
        first, second = [await lists.matched("public/default", "public/default/[a-c]", names[:2]) for _ in range(2)]
        other = await lists.matched("public/default", ".*", names[:2])
        assert first is second is not other and list(first.names) == names[:2]
        came, gone = names[2:], names[:1]
        new, old, following = first.after(came, gone)
        assert (new, old, list(following.names)) == (names[2:3], gone, names[1:3])
        assert following.hash == topics_hash(names[1:3]) and second.after(came, gone)[2] is following
        assert await lists.matched("public/default", "public/default/[a-c]", names[1:]) is following
        assert list(other.after(came, gone)[2].names) == names[1:]
        assert following.after(["persistent://public/default/x"], gone) == ([], [], following)
        back = following.after(gone, names[2:3])
        assert back[:2] == (gone, names[2:3]) and back[2] is first

    asyncio.run(test())
