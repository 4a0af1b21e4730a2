"""What lies on bookies and the metadata does not know is found, and read from whichever copies there are, up to the
first entry that nobody has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import BookieUnavailable, CorruptData, NoSuchEntry, NoSuchLedger
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.reading.unknown_ledgers import Unknown, read_unknown, unknown_ledgers


def run_of(first: int, count: int) -> Run:
    parts = [b"entry %d" % entry for entry in range(first, first + count)]
    made = Run(parts, [len(part) for part in parts])
    made.time_ms = 1000 + first
    return made


class Bookie:
    """Holds blocks of one or more ledgers."""

    def __init__(self, *held: tuple[int, int, int], answers: bool = True) -> None:
        """held: (ledger, first entry, count) of each block."""
        self.blocks = {
            (ledger, first): b"".join(map(bytes, encode_block(run_of(first, count), ledger, first)))
            for ledger, first, count in held
        }
        self.counts = {(ledger, first): count for ledger, first, count in held}
        self.answers = answers
        self.fenced: list[int] = []

    async def ledgers(self) -> list[int]:
        return sorted({ledger for ledger, _ in self.blocks})

    async def fence(self, ledger: int) -> tuple[int, int]:
        if not self.answers:
            raise BookieUnavailable("silent")
        self.fenced.append(ledger)
        return -1, max((first + count - 1 for (of, first), count in self.counts.items() if of == ledger), default=-1)

    async def read(self, ledger: int, first: int, last: int, max_bytes: int) -> Sequence[bytes]:
        if all(of != ledger for of, _ in self.blocks):
            raise NoSuchLedger("no")
        for (of, begin), count in self.counts.items():
            if of == ledger and begin <= first < begin + count:
                return [self.blocks[of, begin]]
        raise NoSuchEntry("no")

    def spoil(self, ledger: int, first: int) -> None:
        block = bytearray(self.blocks[ledger, first])
        block[-1] ^= 1
        self.blocks[ledger, first] = bytes(block)


def read(ledger: int, *bookies: Bookie) -> tuple[list[bytes], Unknown]:
    found = Unknown(ledger, [])

    async def main() -> list[bytes]:
        entries: list[bytes] = []
        async for first, run in read_unknown(ledger, bookies, found):  # type: ignore[arg-type]
            assert first == len(entries)
            entries += [bytes(part) for part in run.parts]
        return entries

    return asyncio.run(main()), found


def entries(count: int) -> list[bytes]:
    return [b"entry %d" % entry for entry in range(count)]


def test_only_what_the_metadata_does_not_know_is_found() -> None:
    async def main() -> None:
        meta = EmbeddedStore()
        await meta.put(keys.ledger(7), LedgerMetadata(7, 2, 2, ((0, ("a", "b")),)).encode())
        bookies = {"b": Bookie((7, 0, 1), (9, 0, 1)), "a": Bookie((7, 0, 1), (8, 0, 1), (9, 0, 1))}
        assert await unknown_ledgers(meta, bookies) == {8: ["a"], 9: ["a", "b"]}  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_beginning_is_put_together_from_all_copies() -> None:
    """Blocks that overlap, an ensemble that changed, and an entry that each bookie has in another block."""
    first, second = Bookie((5, 0, 10), (5, 20, 10)), Bookie((5, 5, 10), (5, 12, 8), (5, 30, 1))
    found, about = read(5, first, second)
    assert found == entries(31) and about.entries == about.messages == 31 and not about.beyond_a_gap
    assert (about.first_ms, about.last_ms) == (1000, 1030) and first.fenced == second.fenced == [5]


def test_what_lies_behind_a_gap_is_told() -> None:
    found, about = read(5, Bookie((5, 0, 3)), Bookie((5, 7, 2)))
    assert found == entries(3) and about.beyond_a_gap
    assert read(5, Bookie((5, 1, 3)))[0] == []


def test_a_damaged_copy_is_passed_over_and_damage_of_all_is_told() -> None:
    good, bad = Bookie((5, 0, 4)), Bookie((5, 0, 4))
    bad.spoil(5, 0)
    assert read(5, bad, good)[0] == entries(4)
    with pytest.raises(CorruptData):
        read(5, bad, bad)


def test_a_bookie_that_does_not_answer_is_no_end() -> None:
    with pytest.raises(BookieUnavailable):
        read(5, Bookie((5, 0, 4)), Bookie(answers=False))
