"""What a data key sealed: which ledgers, and which compacted topics, may still hold it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from heliograph.model.ledger_metadata import (
    TRIMMED_MS,
    LedgerInfo,
    LedgerPage,
    ManagedLedgerMetadata,
    OffloadRecord,
    OffloadState,
)
from local_meta.located_ledger import LocatedLedger
from region_node.compaction.compacted_view import OPEN as IN_THE_CLEAR
from region_node.compaction.compacted_view import UNKNOWN, Compacted
from region_node.tiering.sealed_topics import compacted_holds, holds_key, may_hold
from storage.sealing.keyring import SETTLED_MS

DAY = SETTLED_MS
MADE, REPLACED = 100 * DAY, 200 * DAY
OPEN = 0


def holds(*closed_ms: int, trimmed_ms: int = 0) -> bool:
    infos = tuple(LedgerInfo(number, 5, 50, closed, 5 * number) for number, closed in enumerate(closed_ms, 1))
    properties = {TRIMMED_MS: str(trimmed_ms)} if trimmed_ms else {}
    return may_hold(ManagedLedgerMetadata(infos, properties=properties).spans(), MADE, REPLACED)


def test_a_ledger_counts_where_the_key_sealed_while_it_was_open() -> None:
    assert holds(150 * DAY, 300 * DAY, OPEN), "closed between"
    assert holds(50 * DAY, 300 * DAY, OPEN), "open all the time"
    assert holds(50 * DAY, OPEN), "and still"
    assert holds(99 * DAY, OPEN), "a broker that heard late of the older key's end"
    assert not holds(50 * DAY, 98 * DAY), "closed before it"
    assert not holds(), "there is none"


def test_a_topic_that_is_written_to_all_the_time_lets_go_of_a_key_once_its_ledgers_were_trimmed() -> None:
    assert holds(300 * DAY, 301 * DAY, OPEN), (
        "nothing was trimmed, or by an earlier version: the first one is of any age"
    )
    assert holds(300 * DAY, OPEN, trimmed_ms=REPLACED + DAY - 1), (
        "begun while a broker may not have heard of the next key"
    )
    assert not holds(300 * DAY, 301 * DAY, OPEN, trimmed_ms=REPLACED + DAY)
    assert not holds(OPEN, trimmed_ms=REPLACED + DAY)


def test_ledgers_in_pages_count_as_the_others() -> None:
    old = tuple(LedgerInfo(number, 5, 50, (148 + number) * DAY, 5 * number) for number in (1, 2))
    infos, pages = (LedgerInfo(3, 5, 50, 300 * DAY, 15), LedgerInfo(4)), (LedgerPage.of(1, 0, old),)
    paged = ManagedLedgerMetadata(infos, properties={TRIMMED_MS: str(140 * DAY)}, pages=pages)
    assert may_hold(paged.spans(), MADE, REPLACED)
    assert may_hold(paged.spans(), 145 * DAY, 146 * DAY), "of a page"
    assert not may_hold(paged.spans(), 10 * DAY, 139 * DAY) and not may_hold(paged.spans(), 1 * DAY, 20 * DAY)


def test_a_ledger_that_was_sealed_anew_holds_that_key_and_no_older_one() -> None:
    """Of keys 1 to 4, where 2 sealed while the ledger was written."""
    order = {number: number - 1 for number in (1, 2, 3, 4)}
    times = {1: (0, 100 * DAY), 2: (100 * DAY, 200 * DAY), 3: (200 * DAY, 300 * DAY), 4: (300 * DAY, 400 * DAY)}
    span = 150 * DAY, 160 * DAY
    closed = LedgerInfo(7, 5, 50, span[1])

    def holding(place: LocatedLedger | None, info: LedgerInfo = closed) -> list[int]:
        return [number for number in order if holds_key(info, span, place, number, *times[number], order)]

    anew = LocatedLedger(7, "t", 70, 4)
    assert holding(None) == [2]
    assert holding(LocatedLedger(7, "t", next=70, next_key=4)) == [2, 4], "the copy is there, and so is the other one"
    assert holding(anew) == [4], "though it was closed before that key was made"
    assert holding(LocatedLedger(7, "t", 70, 3, 71, 4)) == [3, 4]
    assert holding(LocatedLedger(7, "t", data_key=2)) == [2] and holding(LocatedLedger(7, "t", data_key=3)) == [3]
    stored = OffloadRecord("a", "h", OffloadState.STORED)
    assert holding(anew, replace(closed, offload=stored)) == [2, 4], "the object is of before"
    stored = replace(stored, data_key=3)
    assert holding(anew, replace(closed, offload=stored)) == [3, 4]
    assert holding(anew, replace(closed, offload=replace(stored, also="b"))) == [1, 2, 3, 4], "two objects are there"
    gone = replace(closed, offload=replace(stored, state=OffloadState.LOCAL_GONE))
    assert holding(None, gone) == [3] == holding(anew, gone)
    looked_at = replace(gone, offload=replace(stored, state=OffloadState.LOCAL_GONE, data_key=1))
    assert holding(None, looked_at) == [1, 2] == holding(anew, looked_at), "the newer keys of its time are in it, too"


def test_what_is_compacted_holds_the_key_that_is_written_down_and_any_where_none_is() -> None:
    """Of keys 1 to 3."""
    times = {1: (0, 100 * DAY), 2: (100 * DAY, 200 * DAY), 3: (200 * DAY, 300 * DAY)}

    def holding(data_key: int, ledger: int = 5, now_ms: int = 400 * DAY, **more: Any) -> list[int]:
        one = Compacted(ledger, 3, 30, (1, 2), data_key=data_key, **more)
        return [number for number in times if compacted_holds(one, number, *times[number], now_ms)]

    assert holding(2) == [2] and holding(4) == [] == holding(IN_THE_CLEAR)
    assert holding(UNKNOWN) == [1, 2, 3] == holding(UNKNOWN, -1), "an earlier version wrote it"
    assert holding(4, now_ms=201 * DAY - 1) == [2, 3], "a broker that compacts may not have heard of the third"
    assert holding(IN_THE_CLEAR, -1) == []
    stored = OffloadRecord("ab", "us", OffloadState.STORED)
    assert holding(2, offload=stored) == [2]
    assert holding(IN_THE_CLEAR, offload=stored, made_ms=150 * DAY) == [2], "sealed as it was offloaded"
    assert holding(IN_THE_CLEAR, offload=stored) == [1, 2, 3], "nobody knows when it was made"
