"""Copies on their way to one bookie: many at once, and all of them ended before anything is said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from heliograph.model.errors import BookieUnavailable
from heliograph.wire.run import Buffer
from storage.ledger.bookies.added_copies import COPIES_AT_ONCE, COPIES_BYTES, add_copies
from storage.ledger.bookies.bookie_port import BookiePort

RUNS = [(first, 1, [b"x"]) for first in range(3 * COPIES_AT_ONCE + 5)]


class SlowBookie:
    """What is added is durable a loop pass later, but for `bad`."""

    def __init__(self, bad: int = -1) -> None:
        self.bad, self.waiting, self.most, self.durable = bad, 0, 0, list[int]()

    async def add_recovery(self, ledger: int, first: int, count: int, block: Sequence[Buffer], lac: int) -> None:
        assert (ledger, lac) == (7, 3)
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1
        if first == self.bad:
            raise BookieUnavailable("no")
        self.durable.append(first)


def test_so_many_wait_for_one_fsync_and_no_more() -> None:
    bookie = SlowBookie()
    asyncio.run(add_copies(cast(BookiePort, bookie), 7, RUNS, 3))
    assert bookie.most == COPIES_AT_ONCE and bookie.durable == [first for first, _, _ in RUNS]


def test_where_one_fails_nothing_is_under_way_any_more_and_nothing_follows() -> None:
    bookie = SlowBookie(COPIES_AT_ONCE + 2)
    with pytest.raises(BookieUnavailable):
        asyncio.run(add_copies(cast(BookiePort, bookie), 7, RUNS, 3))
    assert not bookie.waiting and max(bookie.durable) == 2 * COPIES_AT_ONCE - 1


def test_large_runs_go_few_at_a_time() -> None:
    bookie, block = SlowBookie(), [bytes(COPIES_BYTES // 2)]
    asyncio.run(add_copies(cast(BookiePort, bookie), 7, [(first, 1, block) for first in range(7)], 3))
    assert bookie.most == 2 and bookie.durable == list(range(7))
