"""The index of decisions: every record stands in it once, nothing else does, and each line has a sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Set
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
INDEX = "README.md"
LINE = re.compile(r"- \[(?P<number>\d+)\]\((?P<file>[^)]+)\) \*\*(?P<title>.+?)\*\* (?P<said>.*)")
OVERTAKEN = re.compile(r" ?\*Overtaken(?: in part)? by .+\.\*$")
SENTENCE = re.compile(r"[A-Z`](?:\S*\s+){3,}\S*\.")
LINK = re.compile(r"\]\((?P<to>[^)#]+)\)")


def faults(index: str, there: Set[str]) -> list[str]:
    """What is wrong with the text of an index, in sentences. there: the files beside it."""
    found, named = [], Counter[str]()
    for line in index.splitlines():
        if not line.startswith("- ["):
            continue
        parts = LINE.fullmatch(line)
        if parts is None:
            found.append(f"not `- [NUMBER](FILE) **Title.** Sentence.`: {line}")
            continue
        named[parts["file"]] += 1
        if not parts["file"].startswith(f"{int(parts['number']):04}-"):
            found.append(f"{parts['file']} has another number than {parts['number']}")
        if not SENTENCE.fullmatch(OVERTAKEN.sub("", parts["said"])):
            found.append(f"{parts['file']} has no sentence")
    linked = {to["to"] for to in LINK.finditer(index) if "/" not in to["to"]}
    found += [f"{name} is not there" for name in sorted((linked | set(named)) - there)]
    found += [f"{name} is in the index {named[name]} times" for name in sorted(there - {INDEX}) if named[name] != 1]
    return found


def test_every_record_is_in_the_index_once_with_a_sentence() -> None:
    found = faults((FOLDER / INDEX).read_text(), {path.name for path in FOLDER.glob("*.md")})
    assert not found, "\n".join(found)


def test_what_the_index_names_elsewhere_is_there() -> None:
    assert not [to["to"] for to in LINK.finditer((FOLDER / INDEX).read_text()) if not (FOLDER / to["to"]).exists()]


ONE = "- [1](0001-runs.md) **Runs.** A read of many entries is one value."
TWO = "- [2](0002-raft.md) **Raft.** The group writes a log of its own. *Overtaken in part by [1](0001-runs.md).*"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([ONE, TWO], []),
        ([ONE], ["0002-raft.md is in the index 0 times"]),
        ([ONE, TWO, ONE], ["0001-runs.md is in the index 2 times"]),
        ([ONE, TWO, ONE.replace("1", "3")], ["0003-runs.md is not there"]),
        ([ONE, TWO.replace("0001-runs", "0004-runs")], ["0004-runs.md is not there"]),
        ([ONE, TWO.replace("The group writes a log of its own. ", "")], ["0002-raft.md has no sentence"]),
        ([ONE.replace(" one value.", ""), TWO], ["0001-runs.md has no sentence"]),
        ([ONE.replace("[1]", "[7]"), TWO], ["0001-runs.md has another number than 7"]),
    ],
)
def test_what_is_wrong_with_an_index_is_found(lines: list[str], said: list[str]) -> None:
    assert faults("\n".join(["# Index", "", *lines]), {INDEX, "0001-runs.md", "0002-raft.md"}) == said
