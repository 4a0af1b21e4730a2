"""Which runs of one bookie's answer are what was sealed there, and what is said of the others."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.model.errors import BookieUnavailable, CorruptData, KeyMissing, NoSuchEntry
from storage.ledger.sealed_copies import NotJudged, may_open, verified

GOOD, FORGED, UNKNOWN = "good", "forged", "unknown"


class Sealing:
    """Opens runs by what they are."""

    async def opened(self, ledger: int, runs: list[tuple[int, Any]], *, looking: bool) -> list[tuple[int, Any]]:
        for _, run in runs:
            if run.is_ == FORGED:
                raise CorruptData("not what was sealed")
            if run.is_ == UNKNOWN:
                raise KeyMissing("of another key")
        return [(first, "open") for first, _ in runs]


def looked_at(*kinds: str, opening: bool) -> list[tuple[int, Any]]:
    runs = [
        (first, SimpleNamespace(is_=kind, seal=SimpleNamespace(header=b"h", key=1))) for first, kind in enumerate(kinds)
    ]
    context = cast(Any, SimpleNamespace(sealing=Sealing()))
    metadata = cast(Any, SimpleNamespace(ledger=7, seal_form=2))
    return asyncio.run(verified(context, metadata, "b1", cast(Any, runs), opening=opening))


@pytest.mark.parametrize("opening", [False, True])
def test_what_lies_before_a_forged_run_is_taken_and_the_forged_one_is_named(
    opening: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    assert [first for first, _ in looked_at(GOOD, GOOD, FORGED, GOOD, opening=opening)] == [0, 1]
    told = [(each.msg, each.__dict__["bookie"], each.__dict__["entry"]) for each in caplog.records]
    assert told == [("ledger.copy_refused", "b1", 2)]
    with pytest.raises(CorruptData):
        looked_at(FORGED, GOOD, opening=opening)


def test_what_cannot_be_judged_is_no_copy_to_read_and_the_last_one_to_copy() -> None:
    with pytest.raises(KeyMissing):
        looked_at(UNKNOWN, GOOD, opening=True)
    with pytest.raises(NotJudged) as found:
        looked_at(UNKNOWN, UNKNOWN, FORGED, opening=False)
    assert [first for first, _ in found.value.runs] == [0, 1]
    assert [first for first, _ in looked_at(GOOD, UNKNOWN, opening=False)] == [0]


def test_only_a_bookie_that_is_there_and_silent_may_have_a_copy_that_opens() -> None:
    context = cast(Any, SimpleNamespace(pool=SimpleNamespace(registered=lambda bookie: bookie == "there")))
    assert may_open(context, "there", BookieUnavailable("silent"))
    assert not may_open(context, "gone", BookieUnavailable("silent"))
    assert not may_open(context, "there", NoSuchEntry("it has none"))
