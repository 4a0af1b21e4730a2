"""Scrubbing: every flipped bit of what is wanted is found and named, at a bounded rate; what is whole never is."""

from __future__ import annotations

import pytest

from heliograph.wire.bookie_frames import Kind
from tests.storage.bookie.boxes import Box, scenario
from tests.storage.bookie.entry_log.scrubbed import QUICK, fill, rounds, ticks
from tests.storage.bookie.history import block


def test_what_is_whole_is_read_completely_and_never_named() -> None:
    async def body(box: Box) -> None:
        logs = await fill(box)
        await rounds(box, 2)
        blocks = sum(len(block(ledger, first, 5)) for ledger in (1, 2, 3) for first in (0, 5, 10))
        assert len(logs) == 3 and box.bookie.dirs[0].scrubber.checked_bytes == 2 * blocks
        assert not box.bookie.dirs[0].scrubber.bad and not box.bookie.dirs[0].scrubber.bad_blocks

    scenario(body)


@pytest.mark.parametrize("ledger", [1, 2, 3])
def test_a_flipped_bit_is_found_and_named_and_forgotten_when_its_ledger_goes(ledger: int) -> None:
    async def body(box: Box) -> None:
        logs = await fill(box)
        content = box.ledgers.content(logs[1])
        at = content.index(block(ledger, 5, 5)) + 200
        box.ledgers.flip_bit(logs[1], at)
        await rounds(box, 2)
        scrubber = box.bookie.dirs[0].scrubber
        assert list(scrubber.bad) == [(1, ledger, 5)] and scrubber.bad_blocks == 2
        box.ledgers.flip_bit(logs[1], at)
        await rounds(box, 1)
        assert not scrubber.bad, "it reads well again"
        box.ledgers.flip_bit(logs[1], at)
        await rounds(box, 1)
        assert scrubber.bad
        await box.ask(Kind.DELETE, ledger)
        await rounds(box, 1)
        assert not scrubber.bad and scrubber.bad_blocks == 3

    scenario(body)


def test_a_footer_that_rots_is_found_before_the_next_start_needs_it() -> None:
    async def body(box: Box) -> None:
        logs = await fill(box)
        box.ledgers.flip_bit(logs[2], len(box.ledgers.content(logs[2])) - 60)
        await rounds(box, 1)
        assert list(box.bookie.dirs[0].scrubber.bad) == [(2, -1, -1)]

    scenario(body)


def test_it_is_slow_on_purpose_and_can_be_suspended() -> None:
    async def body(box: Box) -> None:
        await fill(box)
        scrubber = box.bookie.dirs[0].scrubber
        scrubber.run()
        await ticks(box, 1)
        longest = max(len(block(ledger, first, 5)) for ledger in (1, 2, 3) for first in (0, 5, 10))
        assert 0 < scrubber.checked_bytes <= QUICK.scrub_bytes_per_s + longest and scrubber.running
        scrubber.suspended = True
        before = scrubber.checked_bytes
        await ticks(box, 50)
        assert scrubber.checked_bytes == before
        scrubber.suspended = False
        await rounds(box, 1)

    scenario(body)


def test_logs_that_compaction_takes_away_meanwhile_are_no_finding() -> None:
    async def body(box: Box) -> None:
        await fill(box)
        await box.ask(Kind.DELETE, 2)
        await box.ask(Kind.DELETE, 3)
        box.bookie.dirs[0].scrubber.run()
        await ticks(box, 1)
        box.bookie.dirs[0].compactor.run(major=True)
        await rounds(box, 3)
        assert box.bookie.dirs[0].compactor.compacted_logs == 3
        assert not box.bookie.dirs[0].scrubber.bad and not box.bookie.dirs[0].scrubber.bad_blocks

    scenario(body)
