"""What is known of balancing before a broker's balancer is there."""

from __future__ import annotations

import random

from heliograph.runtime.clock import Clock
from region_node.placement.balance.balance_book import BalanceBook
from region_node.placement.balance.load_report import LoadReport, Pause
from region_node.placement.balance.load_shedding import BrokerLoad


class At(Clock):
    ms = 1_000

    def wall_ms(self) -> int:
        return self.ms


def test_before_anybody_has_reported_a_bundle_finds_a_broker_and_later_one_that_has_room() -> None:
    book = BalanceBook(At(), random.Random(1))
    assert {book.place("ab", ("t/n", index)) for index in range(50)} == {"a", "b"}
    book.reports["a"] = LoadReport(BrokerLoad(0.9, ()), 1_000, 1, {"cpu": 0.9})
    assert {book.place("ab", ("t/n", index)) for index in range(50)} == {"b"} and book.placed == 100


def test_a_pause_ends_by_itself() -> None:
    book = BalanceBook(At(), random.Random(1))
    assert not book.paused
    book.pause = Pause("root", 2_000)
    assert book.paused
    book.pause = Pause("root", 1_000)
    assert not book.paused and book.pause.by == "root"
