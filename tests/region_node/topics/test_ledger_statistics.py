"""What lies in a topic's storage is shown in Pulsar's fields."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from heliograph.model.ledger_metadata import LedgerInfo, OffloadRecord, OffloadState
from region_node.topics.ledger_statistics import internal_stats_of, ledger_info, offline_stats

CURSOR = SimpleNamespace(
    name="s",
    durable=True,
    mark_delete=(2, 0),
    read_position=(2, 3),
    backlog_entries=3,
    acked_ranges=[(2, 2, 3)],
    reading=None,
    properties=None,
)
GONE = OffloadRecord("a", "h", OffloadState.LOCAL_GONE)
LOG: Any = SimpleNamespace(
    ledgers=lambda: [LedgerInfo(1, 5, 50, 1_000, 0, offload=GONE), LedgerInfo(2, 4, 44, 0, 5)],
    cursors={"s": CURSOR},
    size_bytes=94,
    entries=9,
    last_confirmed=(2, 3),
    first_position=lambda: (1, 0),
    entries_between=lambda after, through: through[1] - after[1],
    failed=None,
    terminated_at=(2, 3),
)


def test_sums_and_positions_are_of_all_ledgers_and_where_each_lies_is_told() -> None:
    found = internal_stats_of(LOG)
    assert (found["numberOfEntries"], found["totalSize"], found["currentLedgerEntries"]) == (9, 94, 4)
    assert (found["firstPosition"], found["lastConfirmedEntry"], found["state"]) == ("1:0", "2:3", "LedgerOpened")
    assert [(row["offloaded"], row["onBookies"]) for row in found["ledgers"]] == [(True, False), (False, True)]
    cursor = found["cursors"]["s"]
    assert (cursor["markDeletePosition"], cursor["individuallyDeletedMessages"]) == ("2:0", "[(2:1..2:3]]")
    assert (cursor["messagesConsumedCounter"], cursor["numberOfEntriesSinceFirstNotAckedMessage"]) == (6, 3)


def test_an_end_and_what_is_acknowledged_behind_a_gap_are_positions() -> None:
    found = ledger_info(LOG, 1_000)
    assert found["terminatedPosition"] == {"ledgerId": 2, "entryId": 3} and found["creationDate"].startswith(
        "1970-01-01"
    )
    gap = {"from": {"ledgerId": 2, "entryId": 1}, "to": {"ledgerId": 2, "entryId": 3}}
    assert found["cursors"]["s"]["individualDeletedMessages"] == [gap]


def test_a_backlog_is_that_of_the_cursors_that_last() -> None:
    log = SimpleNamespace(**{**vars(LOG), "cursors": {"s": CURSOR, "r": SimpleNamespace(name="r", durable=False)}})
    found = offline_stats(log, "b1", "persistent://t/n/x", 2_000)
    assert (found["messageBacklog"], list(found["cursorDetails"]), found["brokerName"]) == (3, ["s"], "b1")
    assert [row["ledgerId"] for row in found["dataLedgerDetails"]] == [1, 2]
