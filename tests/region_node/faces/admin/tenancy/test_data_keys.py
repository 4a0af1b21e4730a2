"""Data keys: which ledgers may hold something that an older key sealed."""

from __future__ import annotations

from heliograph.model.ledger_metadata import TRIMMED_MS, LedgerInfo, LedgerPage, ManagedLedgerMetadata
from region_node.faces.admin.tenancy.data_keys import SETTLED_MS, may_hold

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
