"""An entry is lost only where every bookie that should have it says so: who is away, hung, or in limbo may have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from storage.ledger.reading.lost_entries import lost_entries
from tests.storage.ledger.fake_bookies import FakeBookie
from tests.storage.ledger.writers import Writer, scenario
from tests.storage.managed_ledger.world import Region, run_of


async def written(region: Region, writer: Writer) -> list[FakeBookie]:
    """A closed ledger of ten entries; its bookies."""
    handle = await writer.open()
    for number in range(10):
        handle.append_run(run_of(f"n{number}"))
    await writer.reach(9)
    await handle.close()
    return [region.bookies[name] for name in handle.metadata.fragments[0][1]]


async def lost(writer: Writer, entry: int, last: int = 9) -> tuple[int, int] | None:
    found = await lost_entries(writer.context, writer.handle.ledger, entry, last)
    return None if found is None else (found.first, found.last)


def forget(bookie: FakeBookie, writer: Writer, *entries: int) -> None:
    for entry in entries:
        del bookie.ledgers[writer.handle.ledger].blocks[entry]


def test_the_range_that_nobody_has_is_told_whole_from_wherever_it_is_read() -> None:
    async def work(region: Region, writer: Writer) -> None:
        one, other = await written(region, writer)
        assert await lost(writer, 4) is None
        forget(one, writer, 2, 3, 4, 5, 6, 9)
        assert await lost(writer, 4) is None
        forget(other, writer, 3, 4, 5, 8, 9)
        assert [await lost(writer, entry) for entry in range(10)] == [
            *[None] * 3,
            *[(3, 5)] * 3,
            *[None] * 3,
            (9, 9),
        ]
        one.begin_anew(writer.handle.ledger + 1)
        assert await lost(writer, 4) == (3, 5) and await lost(writer, 8) == (8, 9) and await lost(writer, 2) is None
        other.begin_anew(writer.handle.ledger + 1)
        assert await lost(writer, 4) == (0, 9) and await lost(writer, 4, 7) == (0, 7)

    scenario(work)


def test_who_does_not_answer_may_have_it() -> None:
    def unregistered(bookie: FakeBookie) -> None:
        bookie.crash()

    def hung(bookie: FakeBookie) -> None:
        bookie.silent = True

    def limbo(bookie: FakeBookie) -> None:
        bookie.limbo = True
        bookie.ledgers.clear()

    def run(away: Callable[[FakeBookie], None]) -> None:
        async def work(region: Region, writer: Writer) -> None:
            one, other = await written(region, writer)
            one.begin_anew(writer.handle.ledger + 1)
            away(other)
            assert await lost(writer, 4) is None
            await other.unregister(EmbeddedStore(region.machine))
            await writer.context.pool.ready()
            assert await lost(writer, 4) is None

        scenario(work)

    for away in (unregistered, hung, limbo):
        run(away)


def test_copies_that_move_meanwhile_are_not_lost() -> None:
    async def work(region: Region, writer: Writer) -> None:
        one, other = await written(region, writer)
        one.begin_anew(writer.handle.ledger + 1)
        other.begin_anew(writer.handle.ledger + 1)
        meta, key = EmbeddedStore(region.machine), keys.ledger(writer.handle.ledger)
        found = await meta.get(key)
        assert found is not None
        stored = LedgerMetadata.decode(found[0])
        (third,) = [b for b in region.bookies.values() if b not in (one, other)]
        whole = other.held

        def moves(ledger: int, first: int, last: int) -> list[tuple[int, int]]:
            moved = replace(stored, fragments=((0, (one.name, third.name)),))
            writer.context.tasks.spawn(put(moved.encode()))
            return whole(ledger, first, last)

        async def put(blob: bytes) -> None:
            await meta.put(key, blob)

        other.held = moves  # type: ignore[method-assign]
        assert await lost(writer, 4) is None

    scenario(work)
