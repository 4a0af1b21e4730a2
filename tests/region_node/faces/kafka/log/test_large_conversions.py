"""What takes long to convert is made off the event loop, and sent as it would have been."""

from __future__ import annotations

import asyncio
import threading

import pytest

from heliograph.model.errors import CorruptData
from heliograph.runtime.compute_thread import Offload
from heliograph.wire.kafka.entry_conversion import as_batch, entry_of
from heliograph.wire.kafka.record_batches import build_batch
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, Run
from region_node.faces.kafka.log import large_conversions
from region_node.faces.kafka.log.large_conversions import LARGE_BYTES, LARGE_COUNT, Ahead, made_ahead, size_of
from tests.region_node.faces.kafka.pulsar_batches import batch

SMALL, MANY, LONG, BOMB = (
    batch(3, 10),
    batch(LARGE_COUNT + 1, 1),
    batch(1, LARGE_BYTES),
    batch(2, LARGE_BYTES, packed=True),
)
BROKEN = MANY[:-1]
KAFKA = entry_of(build_batch([(1, b"k", b"v", ())]), 1, 1)


def run_of(*entries: tuple[bytes, int, int], first: int = 0) -> tuple[int, int, Run]:
    parts = [part for part, _, _ in entries]
    run = Run(
        parts,
        [len(part) for part in parts],
        counts=[count for _, count, _ in entries],
        flags=bytes(flag for _, _, flag in entries),
        first_index=first,
    )
    return 1, 0, run


def never() -> bool:
    return False


def test_an_entry_is_large_by_what_it_says_of_itself() -> None:
    assert len(BOMB) < LARGE_BYTES / 100 < 2 * LARGE_BYTES < size_of(BOMB, 2)[0]
    assert [size_of(part, 1)[1] for part in (SMALL, MANY, LONG, BOMB, b"\0" * 20)] == [False, True, True, True, False]
    assert size_of(SMALL, LARGE_COUNT + 1) == (len(SMALL), True)


def test_what_has_waited_too_long_for_its_turn_or_whose_client_has_gone_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    monkeypatch.setattr(large_conversions, "as_batch", lambda part, count: made.append(part))

    async def main() -> None:
        thread, go_on = Offload(), threading.Event()
        busy = asyncio.ensure_future(thread.run(lambda: go_on.wait(60)))
        await asyncio.sleep(0)
        late = await made_ahead([run_of((BOMB, 2, 0))], 0, 1 << 30, thread, never, within_s=0)
        assert late == Ahead({}, 0, full=True)
        ahead = made_ahead([run_of((BOMB, 2, 0))], 0, 1 << 30, thread, never, wanted=never, within_s=60)
        gone = asyncio.ensure_future(ahead)
        await asyncio.sleep(0)
        go_on.set()
        assert await busy and await gone == Ahead({}, 0, full=True) and not made
        thread.close()

    asyncio.run(main())


def test_large_entries_are_made_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def convert(part: bytes, count: int) -> bytes:
        threads.append(threading.current_thread())
        return as_batch(part, count)

    monkeypatch.setattr(large_conversions, "as_batch", convert)
    many = LARGE_COUNT + 1
    entries = ((SMALL, 3, 0), (MANY, many, 0), (KAFKA, 1, FLAG_KAFKA), (MANY, many, FLAG_HIDDEN), (BROKEN, many, 0))
    pieces = [run_of(*entries), run_of((KAFKA, 1, FLAG_KAFKA), first=5000), run_of((BOMB, 2, 0), first=5001)]

    async def main() -> None:
        thread = Offload()
        ahead = await made_ahead(pieces, 0, 1 << 30, thread, never)
        (broken,) = (found for found in ahead.made.values() if isinstance(found, CorruptData))
        assert ahead == Ahead({3: as_batch(MANY, many), 4 + 2 * many: broken, 5001: as_batch(BOMB, 2)})
        behind = await made_ahead(pieces, 4 + 3 * many, 1 << 30, thread, never)
        assert list(behind.made) == [5001], "the others hold none that is asked for"
        for offset, first in ((3, 3), (5001, 5001)):
            one = await made_ahead(pieces, offset, 1, thread, never)
            assert list(one.made) == [first], "at least one, then what fits"
        assert await made_ahead(pieces, 0, 1, thread, never) == Ahead({}, 3), "a small one went before"
        assert await made_ahead(pieces, 3, LARGE_BYTES, Offload(waiting_max=0), never) == Ahead({}, 3, full=True)
        late = iter((False, True))
        two = await made_ahead(pieces, 0, 1 << 30, thread, lambda: next(late))
        assert (list(two.made), two.stop, two.full) == ([3], 4 + 2 * many, False)
        made = len(threads)
        twice = [run_of((BOMB, 2, 0), (BOMB, 2, 0))]
        one = await made_ahead(twice, 0, 3 * LARGE_BYTES, thread, never)
        assert (list(one.made), one.stop, len(threads) - made) == ([0], 2, 1), "it says that it does not fit"
        kafka = [run_of((KAFKA, 1, FLAG_KAFKA)), run_of((BOMB, 2, 0), first=1)]
        assert await made_ahead(kafka, 0, LARGE_BYTES, thread, never) == Ahead({}, 1), "what is sent as it came counts"
        thread.close()

    asyncio.run(main())
    assert threads and threading.main_thread() not in threads
