"""Names of topics, and the bundles they fall into."""

from __future__ import annotations

import itertools

import pytest

from heliograph.model.errors import NotAllowed
from heliograph.model.topic_names import TopicName, bundle_of, bundle_range, check_name


def test_short_and_full_names_are_the_same() -> None:
    assert str(TopicName.parse("x")) == "persistent://public/default/x"
    assert TopicName.parse("a/b/c") == TopicName.parse("persistent://a/b/c")
    assert TopicName.parse("persistent://a/b/c/d").local == "c/d"


def test_partitions_know_their_topic() -> None:
    name = TopicName.parse("persistent://a/b/c").with_partition(3)
    assert str(name) == "persistent://a/b/c-partition-3"
    assert name.partition == 3
    assert str(name.partitioned) == "persistent://a/b/c"
    for none in ("x", "\u00b2", "\u0663", "9" * 11, "", "-1", "1 "):
        assert TopicName.parse(f"persistent://a/b/c-partition-{none}").partition == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "http://a/b/c",
        "persistent://a/b",
        "persistent://a b/c/d",
        "persistent://a/b/\x01",
        "persistent://a/b/",
        "persistent://./b/c",
        "persistent://a/../c",
        "persistent://a/b/..",
        "persistent://a/b/../../c/d/e",
        "persistent://a/b/c/..",
        "persistent://a/b/./c",
        "persistent://a/b/.",
    ],
)
def test_wrong_names_are_refused_with_a_reason(text: str) -> None:
    with pytest.raises(NotAllowed, match="topic"):
        TopicName.parse(text)


def test_the_full_name_is_bounded_however_it_is_given_and_an_error_repeats_little_of_it() -> None:
    longest = str(TopicName.parse("x" * (4096 - len("persistent://public/default/"))))
    assert len(longest) == 4096 and str(TopicName.parse(longest)) == longest
    assert str(TopicName.parse(longest.removeprefix("persistent://"))) == longest
    for text in (
        longest.removeprefix("persistent://public/default/") + "x",
        longest.removeprefix("persistent://") + "x",
        longest + "x",
        "x" * 5_000_000,
        "x/" * 2_500_000,
    ):
        with pytest.raises(NotAllowed, match="4096 characters") as error:
            TopicName.parse(text)
        assert len(str(error.value)) < 400
    with pytest.raises(NotAllowed) as error:
        check_name("tenant", "/" * 5_000_000)
    assert len(str(error.value)) < 400


def test_dots_within_a_name_are_no_path() -> None:
    for name in ("...", "a.b", "..a", ".a"):
        assert check_name("tenant", name) == TopicName.parse(f"persistent://{name}/{name}/{name}").local == name
    for name in (".", ".."):
        with pytest.raises(NotAllowed, match="neither"):
            check_name("tenant", name)


@pytest.mark.parametrize("bundles", [1, 3, 4, 64])
def test_bundles_cover_all_and_ranges_meet(bundles: int) -> None:
    assert {bundle_of(f"persistent://a/b/{i}", bundles) for i in range(2000)} == set(range(bundles))
    ranges = [bundle_range(i, bundles) for i in range(bundles)]
    assert ranges[0].startswith("0x00000000_") and ranges[-1].endswith("_0xffffffff")
    assert all(a.split("_")[1] == b.split("_")[0] for a, b in itertools.pairwise(ranges))
