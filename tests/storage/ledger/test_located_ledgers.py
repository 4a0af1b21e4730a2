"""The way from a topic's number of a ledger to the record by which it is read."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import NoSuchLedger
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from local_meta.located_ledger import LocatedLedger
from storage.ledger.located_ledgers import data_key_of, forget_copy, place_of, record_of


class Moving(EmbeddedStore):
    """Moves ledger 7 to the next number whenever its place was read."""

    def __init__(self, moves: int) -> None:
        super().__init__()
        self.moves = moves

    async def get(self, key: str) -> tuple[bytes, int] | None:
        found = await super().get(key)
        if key == keys.located(7) and found is not None and self.moves:
            self.moves -= 1
            place = LocatedLedger.decode(found[0])
            await self.delete(keys.ledger(place.at))
            await put(self, place.at + 1)
            await self.put(keys.located(7), LocatedLedger(7, "t", place.at + 1).encode())
        return found


async def put(meta: EmbeddedStore, number: int) -> None:
    await meta.put(keys.ledger(number), LedgerMetadata(number, 1, 1, ((0, ("b",)),)).encode())


def test_its_own_record_comes_first_and_then_its_place() -> None:
    async def main() -> None:
        meta = EmbeddedStore()
        with pytest.raises(NoSuchLedger):
            await record_of(meta, 7)
        assert await place_of(meta, 7) is None and await data_key_of(meta, 7) == 0
        await meta.put(keys.located(7), LocatedLedger(7, "t", 70, 5).encode())
        with pytest.raises(NoSuchLedger):
            await record_of(meta, 7)
        await put(meta, 70)
        assert (await record_of(meta, 7))[0].ledger == 70 and await data_key_of(meta, 7) == 5
        await put(meta, 7)
        assert (await record_of(meta, 7))[0].ledger == 7

    asyncio.run(main())


def test_one_that_moves_meanwhile_is_found() -> None:
    async def main() -> None:
        meta = Moving(1)
        await put(meta, 70)
        await meta.put(keys.located(7), LocatedLedger(7, "t", 70).encode())
        assert (await record_of(meta, 7))[0].ledger == 71

    asyncio.run(main())


def test_a_copy_of_what_was_put_right_since_is_made_anew() -> None:
    async def main() -> None:
        meta = EmbeddedStore()
        await forget_copy(meta, 7)
        assert await place_of(meta, 7) is None
        kept = LocatedLedger(7, "t", 70, 5)
        await meta.put(keys.located(7), replace(kept, next=71, next_key=6, copied_ms=9).encode())
        await forget_copy(meta, 7)
        assert await place_of(meta, 7) == kept, "it is read where it was"

    asyncio.run(main())
