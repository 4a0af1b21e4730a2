"""What takes long to convert is made off the event loop, and sent as it would have been."""

from __future__ import annotations

import asyncio
import threading

import pytest

from heliograph.runtime.compute_thread import Offload
from heliograph.wire.kafka.entry_conversion import as_batch, entry_of
from heliograph.wire.kafka.record_batches import build_batch
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, Run
from region_node.faces.kafka.log import large_conversions
from region_node.faces.kafka.log.large_conversions import LARGE_BYTES, LARGE_COUNT, is_large, made_ahead
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


def test_an_entry_is_large_by_what_it_says_of_itself() -> None:
    assert len(BOMB) < LARGE_BYTES / 100
    assert [is_large(part, 1) for part in (SMALL, MANY, LONG, BOMB, b"\0" * 20)] == [False, True, True, True, False]
    assert is_large(SMALL, LARGE_COUNT + 1)


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
        found = await made_ahead(pieces, 0, 1 << 30, thread)
        assert found == {3: as_batch(MANY, many), 5001: as_batch(BOMB, 2)}
        assert list(await made_ahead(pieces, 3 + many, 1 << 30, thread)) == [5001], "it holds none that is asked for"
        assert list(await made_ahead(pieces, 0, 1, thread)) == [3], "at least one, then what fits"
        assert list(await made_ahead(pieces, 0, 1 << 30, Offload(waiting_max=0))) == []
        thread.close()

    asyncio.run(main())
    assert threads and threading.main_thread() not in threads
