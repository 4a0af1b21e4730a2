"""A transaction that a record may name is not forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from region_node.transactions.coordinators.named_transactions import NamedTransactions


def test_until_the_records_of_a_coordinator_were_read_each_of_its_transactions_is_asked_for() -> None:
    named, old, new = NamedTransactions(), *[SimpleNamespace(number=1) for _ in range(2)]
    loaded: dict[int, Any] = {1: old}
    assert named.fresh(loaded) == {1} and named.asked_for(loaded[1], 7)
    named.by_txn[1, 7] = "id"
    named.read(loaded)
    assert not named.fresh(loaded) and named.asked_for(loaded[1], 7) and not named.asked_for(loaded[1], 8)
    loaded[1] = new  # it went to another broker, and came back
    assert named.fresh(loaded) == {1} and named.asked_for(loaded[1], 8)
    named.read(loaded)
    del named.by_txn[1, 7]
    assert not named.asked_for(loaded[1], 7)
