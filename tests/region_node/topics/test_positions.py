"""Positions that are asked for, of a topic with very many ledgers too: the last visible message, the first of a time,
the one in front.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import replace
from typing import cast

import pytest

from heliograph.model.errors import MetadataUnavailable
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.wire.run import FLAG_HIDDEN, Run
from region_node.topics.nonpersistent_log import MemoryLedger
from region_node.topics.positions import before_publish_time, last_visible
from region_node.transactions.participants.committed_view import before
from tests.region_node.faces.pulsar.harness import Broker, with_broker
from tests.region_node.topics.fake_storage import FakeLedger

DAY_MS = 24 * 3600 * 1000


class Days(FakeLedger):
    """Ledger n has two entries of the days 2n and 2n + 1, and is closed then; the last one is open. `flags`:
    FLAG_HIDDEN, where clients see none.
    """

    def __init__(self, count: int, flags: int = 0) -> None:
        super().__init__("persistent://t/n/days")
        self.count, self.unread = count, True
        for number in range(count):
            for entry in range(2):
                run = Run(
                    [b"x"], [1], flags=[flags], time_ms=(2 * number + entry) * DAY_MS, first_index=2 * number + entry
                )
                self.runs.append((number, entry, run))

    def _infos(self) -> list[LedgerInfo]:
        last = self.count - 1
        return [
            replace(info, closed_ms=(2 * info.ledger + 1) * DAY_MS + 1 if info.ledger < last else 0)
            for info in super()._infos()
        ]


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_the_first_entry_of_a_time_is_found_however_many_ledgers_there_are(count: int) -> None:
    async def run() -> None:
        times = [at * DAY_MS for at in range(2 * count)]
        for publish_ms in sorted({0, *times, *(time + 1 for time in times), 99 * DAY_MS}):
            ledger = Days(count, FLAG_HIDDEN)
            following = bisect_left(times, publish_ms)
            wanted = ledger.positions()[following] if following < len(times) else None
            found = await before_publish_time(ledger, publish_ms)  # type: ignore[arg-type]
            assert found == (ledger.last_confirmed if wanted is None else (wanted[0], wanted[1] - 1))
            assert ledger.reads <= 4, "not every ledger is read"

    asyncio.run(run())


def test_what_was_published_a_little_after_its_ledger_was_closed_is_found() -> None:
    """By the clock of a client that is ahead of the broker's."""

    async def run() -> None:
        ledger = Days(3, FLAG_HIDDEN)
        ledger.runs[1][2].time_ms += 30 * 60_000
        assert await before_publish_time(ledger, DAY_MS + 20 * 60_000) == (0, 0)  # type: ignore[arg-type]

    asyncio.run(run())


def test_the_last_visible_entry_may_lie_some_ledgers_back() -> None:
    async def run() -> None:
        ledger = Days(40, FLAG_HIDDEN)
        assert (await last_visible(ledger))[0][1] == -1  # type: ignore[arg-type]
        ledger.runs[5] = (2, 1, Run([b"x"], [1], time_ms=1, first_index=5))
        assert (await last_visible(ledger))[0] == (2, 1)  # type: ignore[arg-type]
        assert (await last_visible(MemoryLedger()))[0] == (0, -1)  # type: ignore[arg-type]

    asyncio.run(run())


def test_whether_a_topic_is_unused_is_known_at_once() -> None:
    async def run(broker: Broker) -> None:
        topic = await broker.topics.get("persistent://public/default/x", create=True)
        ledger = cast(FakeLedger, topic.ledger)
        ledger.unread = True
        assert topic.unused
        ledger.append_run(Run([b"x"], [1], time_ms=1), lambda *_: None, None)
        await asyncio.sleep(0)
        assert not topic.unused and ledger.unread

    with_broker(run)


def test_the_position_in_front_of_another() -> None:
    ledger = Days(3)
    found = [before(ledger, position) for position in ((0, 0), (0, 1), (1, 0), (2, 0), (9, 0))]  # type: ignore[arg-type]
    assert found == [(-1, -1), (0, 0), (0, 1), (1, 1), (2, 1)]
    with pytest.raises(MetadataUnavailable):
        cast(FakeLedger, ledger).ledgers()
