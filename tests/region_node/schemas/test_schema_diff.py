"""What parts two versions of a schema, and how much of it is looked at."""

from __future__ import annotations

import difflib
import json
from typing import Any

import pytest

from heliograph.model.ledger_metadata import pack
from region_node.schemas import schema_diff
from region_node.schemas.schema_diff import differences


def stored(definition: Any) -> bytes:
    data = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
    return pack([4, "t", data, {}, 1])


def diff(here: Any, there: Any) -> str:
    (row,) = differences({7: stored(here)}, {7: stored(there)}, ("us", "eu"))
    assert row["number"] == 7
    return str(row["diff"])


@pytest.mark.parametrize("changed", [(0,), (5,), (0, 9), (3, 4, 8), (9,)])
def test_a_diff_is_as_of_the_whole(changed: tuple[int, ...]) -> None:
    here = [f"field {number}" for number in range(10)]
    there = [f"other {number}" if number in changed else name for number, name in enumerate(here)]
    ours, theirs = (
        json.dumps({"type": "AVRO", "name": "t", "data": each, "properties": {}}, indent=2, sort_keys=True).splitlines()
        for each in (here, there)
    )
    assert diff(here, there) == "\n".join(difflib.unified_diff(theirs, ours, "eu/7", "us/7", lineterm=""))


def test_schemas_that_are_very_different_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[int]()
    matcher = difflib.SequenceMatcher.__init__

    def noted(self: Any, isjunk: Any = None, a: Any = "", b: Any = "", autojunk: bool = True) -> None:
        compared.append(max(len(a), len(b)))
        matcher(self, isjunk, a, b, autojunk)

    monkeypatch.setattr(difflib.SequenceMatcher, "__init__", noted)
    one, other = ([f"{side}{number % 37}" for number in range(600)] for side in "ab")
    assert "compare both sides" in diff(one, other) and not compared
    assert "+  " in diff([*one, "here"], one) and max(compared) < 20, "only what differs is compared"


@pytest.mark.parametrize("data", [b"[" * 900 + b"0," * 20_000 + b"0" + b"]" * 900, b"[" * 5000, b"1" * 300_000])
def test_a_definition_that_would_be_very_large_is_not_laid_out(data: bytes) -> None:
    lines = schema_diff._lines({"data": data.decode()})
    assert lines is None or sum(map(len, lines)) <= schema_diff.TEXT_MAX
    assert isinstance(diff(data, {"type": "int"}), str)
