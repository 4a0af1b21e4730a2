"""Cursor against a plain set of acknowledged positions."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.metadata_store import VALUE_BYTES_MAX
from heliograph.model.errors import NotAllowed
from heliograph.model.ledger_metadata import LedgerInfo, pack
from heliograph.model.positions import BEFORE_ALL, Position
from storage.managed_ledger.cursors import cursor as cursors
from storage.managed_ledger.cursors.ack_intervals import Intervals
from storage.managed_ledger.cursors.cursor import CURSOR_SETTINGS, Cursor, CursorSettings
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from tests.storage.managed_ledger.cursors.made_cursors import cursor_of
from tests.storage.managed_ledger.cursors.small_intervals import small_intervals
from tests.storage.managed_ledger.world import Broker, Region, names_of, run_of, until


@pytest.mark.parametrize("seed", range(150))
def test_the_mark_delete_position_never_passes_what_is_not_acknowledged(seed: int) -> None:
    rng = random.Random(seed)
    settings = CursorSettings(intervals=small_intervals(seed % 3, 8)) if seed % 2 else CURSOR_SETTINGS  # as bits
    catalog = Catalog([LedgerInfo(1)])
    cursor = cursor_of(catalog, settings=settings)
    positions: list[Position] = []
    acked: set[Position] = set()
    for step in range(80):
        ledger = catalog.ids[-1]
        match rng.randrange(8):
            case 0 | 1:
                count, before = rng.randrange(1, 6), catalog.entries_of(ledger)
                catalog.grow(count, count)
                positions += [(ledger, before + i) for i in range(count)]
            case 2 if rng.random() < 0.4:
                catalog.close_last(1)
                catalog.append(LedgerInfo(ledger + rng.randrange(1, 3)))
            case 3 if positions and rng.random() < 0.4:
                at = rng.choice([*positions, (ledger, 10**6), (10**6, 0)])
                cursor.ack_cumulative(at)
                acked |= {p for p in positions if p <= at}
            case 4 if positions and rng.random() < 0.2:
                at = rng.choice([(-1, -1), *positions])
                cursor.reset(at)
                acked = {p for p in positions if p <= at}
            case 5 if rng.random() < 0.3:
                keep = [
                    i
                    for i, n in enumerate(catalog.ids)
                    if (n, catalog.entries_of(n) - 1) > cursor.mark_delete or i == len(catalog.ids) - 1
                ]
                gone = catalog.ids[: keep[0]]
                catalog.drop_first(len(gone))
                cursor.on_trimmed()
                positions = [p for p in positions if p[0] not in gone]
            case 6 if step % 5 == 0:
                again = cursor_of(catalog, settings=settings)
                again.restore(cursor.encode())
                assert (again.mark_delete, again.acked_ranges, again.backlog_entries) == (
                    cursor.mark_delete,
                    cursor.acked_ranges,
                    cursor.backlog_entries,
                )
                cursor = again
            case _ if positions:
                chosen = [*rng.sample(positions, min(len(positions), 4)), (ledger, 10**6), (0, 0), (7777, 1)]
                cursor.ack(chosen)
                acked |= set(chosen) & set(positions)
            case _:
                pass
        left = [p for p in positions if p not in acked]
        assert cursor.backlog_entries == len(left)
        assert not left or cursor.mark_delete < left[0]
        assert all(cursor.is_acked(p) == (p in acked) for p in positions)
        assert cursor.read_position == (left[0] if left else catalog.next(catalog.last))


def test_a_million_holes_are_stored_in_a_bit_each_and_none_is_forgotten() -> None:
    catalog = Catalog([LedgerInfo(i, 50_000, 1, 1) for i in range(1, 41)], (40, 49_999))
    cursor = cursor_of(catalog, (1, -1))
    for ledger in range(1, 41):
        cursor.ack_ranges([(ledger, entry, entry) for entry in range(1, 50_000, 2)])
    blob = cursor.encode()
    assert len(blob) == cursor.stored_bytes < 260_000 and blob[0] == 2
    again = cursor_of(catalog)
    again.restore(blob)
    assert again.mark_delete == (1, -1) and again.backlog_entries == cursor.backlog_entries == 1_000_000
    for ledger, entry in ((1, 1), (17, 4_711), (40, 49_999)):
        assert again.is_acked((ledger, entry)) and not again.is_acked((ledger, entry - 1))
    again.ack_cumulative((39, 49_999))
    assert again.backlog_entries == 25_000 and again.encode()[0] == 2
    again.ack_cumulative((40, 49_999))
    assert again.backlog_entries == 0 and len(again.encode()) < 50 and again.encode()[0] == 1


def test_many_ids_move_all_bits_of_a_chunk_once() -> None:
    moved = 0

    class Counted(Intervals):
        __slots__ = ()

        def _add_bits(self, start: int, stop: int) -> int:
            nonlocal moved
            moved += 1
            return super()._add_bits(start, stop)

        def set_chunk(self, number: int, bits: int) -> None:
            nonlocal moved
            moved += 1
            super().set_chunk(number, bits)

    catalog = Catalog([LedgerInfo(1)])
    catalog.grow(200_000, 200_000)
    cursor = cursor_of(catalog, settings=CursorSettings(intervals=Counted))
    cursor.ack([(1, entry) for entry in range(1, 1000, 2)])
    moved = 0
    many = [(1, entry) for entry in range(1001, 150_000, 50)] * 2
    cursor.ack(many)
    assert moved == 3 and cursor.backlog_entries == 200_000 - 500 - len(many) // 2
    assert cursor.is_acked((1, 1001)) and cursor.is_acked((1, 149_951)) and not cursor.is_acked((1, 1002))


def test_what_is_beyond_the_bound_is_the_newest() -> None:
    catalog = Catalog([LedgerInfo(i, 1 << 20, 1, 1) for i in range(1, 11)], (10, (1 << 20) - 1))
    cursor = cursor_of(catalog, (1, -1))
    for ledger in range(1, 11):
        chunks = {number: int("5" * (65_536 // 4), 16) << 1 for number in range(16)}
        for number, bits in chunks.items():
            cursor._add_chunk(ledger, number, bits)
    blob = cursor.encode()
    assert len(blob) <= VALUE_BYTES_MAX
    again = cursor_of(catalog)
    again.restore(blob)
    kept = [ledger for ledger in range(1, 11) if again.is_acked((ledger, 1))]
    assert kept == list(range(1, len(kept) + 1)) and 6 < len(kept) < 10, (
        "what is nearest to the mark-delete position is kept"
    )


@pytest.mark.parametrize("ledgers", [200, 60_000])
def test_whatever_is_acknowledged_fits_in_one_value_of_the_metadata(ledgers: int) -> None:
    """Every other entry, batches of which a part is, and as many properties as there may be; and one entry in each of
    very many ledgers.
    """
    entries, start = (40_000, 1) if ledgers == 200 else (70_000, 69_001)
    catalog = Catalog(
        [LedgerInfo(10**9 + i, entries, 1, 1) for i in range(ledgers)], (10**9 + ledgers - 1, entries - 1)
    )
    cursor = cursor_of(catalog, (10**9, -1))
    for ledger in range(10**9, 10**9 + ledgers):
        cursor.ack_ranges([(ledger, entry, entry) for entry in range(start, start + (600 if ledgers == 200 else 2), 2)])
        for number in range(entries // 65_536 + 1 if ledgers == 200 else 0):
            cursor._add_chunk(ledger, number, int("5" * (entries // 4), 16) << 1)
    for entry in range(0, 6000, 2):
        cursor.ack_batch((10**9 + entry % ledgers, entry % entries // 2 * 2), (1 << 100) - 2)
    cursor.set_properties({"given": "x" * (cursors.CURSOR_PROPERTIES_BYTES_MAX - 100)})
    blob = cursor.encode()
    assert len(blob) <= VALUE_BYTES_MAX and not cursor.fits
    again = cursor_of(catalog)
    again.restore(blob)
    assert again.is_acked((10**9, start)) and again.properties == cursor.properties


def test_what_no_write_would_take_is_refused_before_it_is_taken() -> None:
    cursor = cursor_of(Catalog([LedgerInfo(1, 20, 1, 1)], (1, 19)))
    with pytest.raises(NotAllowed, match="at most"):
        cursor.set_properties({"given": "x" * cursors.CURSOR_PROPERTIES_BYTES_MAX})
    assert not cursor.properties


def test_what_goes_with_the_mark_is_asked_for_at_each_write() -> None:
    cursor = cursor_of(Catalog([LedgerInfo(1, 20, 1, 1)], (1, 19)))
    cursor.properties["given"] = "x"
    cursor.also = lambda: {"mark": str(cursor.mark_delete)}
    cursor.ack_cumulative((1, 3))
    assert Cursor.properties_in(cursor.encode()) == {"given": "x", "mark": "(1, 3)"}
    cursor.ack_cumulative((1, 5))
    assert Cursor.properties_in(cursor.encode()) == {"given": "x", "mark": "(1, 5)"}
    assert cursor.properties == {"given": "x"}

    with Simulation(seed=1) as sim:

        async def main() -> None:
            region = Region(sim)
            await region.start()
            broker = Broker(region)
            log = await broker.open()
            for name, properties in (("n" * 4090, {}), ("sub", {"given": "x" * cursors.GIVEN_BYTES_MAX})):
                with pytest.raises(NotAllowed):
                    await log.open_cursor(name, BEFORE_ALL, properties=properties)
            broker.append(log, "a")
            await log.open_cursor("sub", BEFORE_ALL)
            await until(lambda: len(broker.done) == 1)
            assert log.failed is None and list(log.cursors) == ["sub"]
            await log.close()

        sim.run(main(), limit_s=60)


@pytest.mark.parametrize(
    "asked, kept",
    [
        ((1, -(1 << 63) - 1), (1, -1)),
        ((1, 10**30), (1, (1 << 63) - 1)),
        ((-(10**30), 5), BEFORE_ALL),
        ((10**30, 0), (2, 2)),
    ],
)
def test_a_position_that_no_entry_can_have_is_one_that_is_stored(asked: Position, kept: Position) -> None:
    catalog = Catalog([LedgerInfo(1, 4, 4, closed_ms=1), LedgerInfo(2)])
    catalog.grow(3, 3)
    cursor = cursor_of(catalog)
    cursor.reset(asked)
    assert cursor.mark_delete == kept
    again = cursor_of(catalog)
    again.restore(cursor.encode())
    assert again.mark_delete == kept
    assert cursor_of(catalog, min(asked, catalog.last)).mark_delete == kept, "as a subscription begins"


def test_what_is_acknowledged_is_cut_out_of_runs() -> None:
    catalog = Catalog([LedgerInfo(1), LedgerInfo(2)])
    catalog.drop_first(1)
    catalog.grow(10, 10)
    cursor = cursor_of(catalog)
    runs = [(2, 0, run_of("0", "1", "2", "3", "4")), (2, 5, run_of("5", "6", "7", "8", "9"))]
    assert [r[2] is s[2] for r, s in zip(cursor.unacked_runs(runs), runs, strict=True)] == [True, True]
    cursor.ack_ranges([(2, 0, 1), (2, 4, 5), (2, 9, 9)])
    assert [(first, names_of(run)) for _, first, run in cursor.unacked_runs(runs)] == [
        (2, ["2", "3"]),
        (6, ["6", "7", "8"]),
    ]
    assert cursor.acked_ranges == [(2, 4, 5), (2, 9, 9)]


@pytest.mark.parametrize("seed", range(60))
def test_a_batch_is_acknowledged_once_every_message_of_it_was(seed: int) -> None:
    rng = random.Random(seed)
    catalog = Catalog([LedgerInfo(1)])
    catalog.grow(6, 6)
    cursor = cursor_of(catalog)
    left = {(1, e): set(range(rng.randrange(1, 140))) for e in range(6)}
    for _ in range(60):
        position = rng.choice(list(left))
        match rng.randrange(8):
            case 0 if rng.random() < 0.3:
                cursor.ack([position])
                left[position].clear()
            case 1 if rng.random() < 0.2:
                cursor.ack_cumulative(position)
                for other in left:
                    if other <= position:
                        left[other].clear()
            case 2 | 3:
                again = cursor_of(catalog)
                again.restore(cursor.encode())
                cursor = again
            case _:
                keep = {i for i in range(140) if rng.random() < 0.7}
                left[position] &= keep
                bits = cursor.ack_batch(
                    position, sum(1 << i for i in keep) if rng.random() < 0.9 or left[position] else 0
                )
                if not cursor.is_acked(position):
                    assert left[position] <= {i for i in range(140) if bits >> i & 1}
        for at, messages in left.items():
            assert cursor.is_acked(at) or messages or at in cursor.partly_acked
            if messages:
                assert not cursor.is_acked(at)
                held = cursor.partly_acked.get(at)
                assert held is None or messages <= {i for i in range(140) if held >> i & 1}


def test_parts_of_batches_survive_and_go_with_a_reset_and_are_bounded() -> None:
    catalog = Catalog([LedgerInfo(1)])
    catalog.grow(100, 100)
    cursor = cursor_of(catalog)
    assert cursor.ack_batch((1, 3), 0b1011) == 0b1011
    assert cursor.ack_batch((1, 3), 0b0110) == 0b0010
    assert cursor.ack_batch((1, 300), 1) == cursor.ack_batch((9, 0), 1) == 0 and cursor.backlog_entries == 100
    again = cursor_of(catalog)
    again.restore(cursor.encode())
    assert again.partly_acked == {(1, 3): 2}
    assert again.ack_batch((1, 3), 0b1101) == 0 and again.is_acked((1, 3)) and again.backlog_entries == 99
    cursor.reset((-1, -1))
    assert cursor.partly_acked == {}
    for bytes_max, stored in ((64 << 10, 5), (100, 2)):
        small = cursor_of(catalog, settings=CursorSettings(partly_max=5, partly_bytes_max=bytes_max))
        for entry in range(20):
            small.ack_batch((1, entry), 1 << 200)
        assert list(small.partly_acked) == [(1, e) for e in range(15, 20)]
        again = cursor_of(catalog)
        again.restore(small.encode())
        assert len(again.partly_acked) == stored


def test_parts_of_small_batches_count_as_what_they_are_in_memory() -> None:
    number = 1 << 33
    catalog = Catalog([LedgerInfo(number)])
    catalog.grow(5000, 5000)
    cursor = cursor_of(catalog)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for entry in range(5000):  # as from a frame: each number is an object of its own
            cursor.ack_batch((int(str(number)), entry), int(str((1 << 64) - 2)))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken * 0.7 < cursor.ack_set_bytes < taken * 1.4


def test_parts_of_large_batches_are_bounded_by_what_they_take_and_the_oldest_go_out_whole_again() -> None:
    catalog = Catalog([LedgerInfo(1)])
    catalog.grow(400, 400)
    cursor = cursor_of(catalog, settings=CursorSettings(partly_memory_bytes_max=100_000))
    for entry in range(100):
        cursor.ack_batch((1, entry), 1 << 8 * 10_000 - 1)
        taken = sum(left.bit_length() // 8 + 208 for left in cursor.partly_acked.values())
        assert taken <= 100_000
    assert list(cursor.partly_acked) == [(1, entry) for entry in range(91, 100)]
    for entry in range(91, 100):
        assert cursor.ack_batch((1, entry), 0b11) == 0, "messages of one that is there add up"
    for entry in range(100, 400):
        cursor.ack_batch((1, entry), 1 << 800)
        cursor.ack_batch((1, entry), 1 << 800 | 1)
    assert list(cursor.partly_acked) == [(1, entry) for entry in range(100, 400)], "what has gone takes no room"
    for forget in (
        lambda: cursor.reset((-1, -1)),
        lambda: cursor.restore(cursor.encode()),
        lambda: cursor.ack_cumulative((1, 399)),
    ):
        forget()
        cursor.encode()
        assert cursor._partly_bytes == sum(left.bit_length() // 8 + 209 for left in cursor.partly_acked.values())
        for entry in range(10):
            cursor.ack_batch((1, entry), 1 << 800)


def test_many_parts_of_batches_do_not_look_through_all_others_for_each() -> None:
    catalog, looks, most = Catalog([LedgerInfo(1)]), 0, 800
    catalog.grow(5 * most, 5 * most)
    cursor = cursor_of(catalog, settings=CursorSettings(partly_max=most))
    is_acked = cursor.is_acked

    def counted(position: Position) -> bool:
        nonlocal looks
        looks += 1
        return is_acked(position)

    cursor.is_acked = counted  # type: ignore[method-assign]
    for entry in range(4 * most):
        cursor.ack_batch((1, entry), 0b10)
    assert looks < 3 * 4 * most and list(cursor.partly_acked) == [(1, e) for e in range(3 * most, 4 * most)]
    cursor.ack([(1, entry) for entry in range(3 * most, 4 * most - 8)])
    for entry in range(4 * most, 5 * most):
        cursor.ack_batch((1, entry), 0b10)
    assert [at for at in cursor.partly_acked if not is_acked(at)][-most:] == [(1, e) for e in range(4 * most, 5 * most)]


@pytest.mark.parametrize("cumulative", (False, True))
def test_parts_of_batches_that_are_whole_meanwhile_make_room_before_any_other(cumulative: bool) -> None:
    catalog, most = Catalog([LedgerInfo(1)]), 800
    catalog.grow(3 * most, 3 * most)
    cursor = cursor_of(catalog, settings=CursorSettings(partly_max=most))
    whole, living = range(most - 100), range(most - 100, most)
    for entry in [*living, *whole, most, most + 1]:
        cursor.ack_batch((1, entry), 0b10)
    assert next(iter(cursor.partly_acked)) == (1, living[2]), "there is room for no more"
    cursor.ack_cumulative((1, whole[-1])) if cumulative else cursor.ack([(1, entry) for entry in whole])
    following = range(most, 2 * most - 100)
    for entry in following[2:]:
        cursor.ack_batch((1, entry), 0b10)
    left = [at for at in cursor.partly_acked if not cursor.is_acked(at)]
    assert left == [(1, entry) for entry in [*living[2:], *following]]


def test_bits_below_the_mark_delete_position_or_beyond_the_ledger_count_for_nothing() -> None:
    cursor = cursor_of(Catalog([LedgerInfo(1, 20, 1, 1)], (1, 19)))
    bits = sum(1 << entry for entry in (3, 5, 7, 19, 20, 25))
    cursor.restore(pack([1, 5, [], {}, [], [[1, 0, bits.to_bytes(4, "little")], [9, 0, b"\x01"]]], 2))
    assert cursor.acked_ranges == [(1, 7, 7), (1, 19, 19)] and cursor.backlog_entries == 12


@pytest.mark.parametrize("seed", range(40))
def test_what_begins_earlier_keeps_what_was_acknowledged_behind_its_start(seed: int) -> None:
    rng = random.Random(seed)
    catalog = Catalog([LedgerInfo(1)])
    for ledger in range(1, 5):
        catalog.grow(count := rng.randrange(1, 12), count)
        if ledger < 4:
            catalog.close_last(1)
            catalog.append(LedgerInfo(ledger + 1))
    positions = [(ledger, entry) for ledger in catalog.ids for entry in range(catalog.entries_of(ledger))]
    low, start = sorted((rng.randrange(len(positions)), rng.randrange(len(positions))))
    cursor = cursor_of(catalog, positions[start])
    acked = set(rng.sample(positions[start + 1 :], rng.randrange(len(positions) - start)))
    cursor.ack(sorted(acked))
    never = rng.sample(positions, 2)
    changes = cursor.changes
    cursor.begin_earlier(positions[low], positions[start], [(ledger, entry, entry) for ledger, entry in never])
    kept = set(positions[: low + 1]) | (acked - set(never))
    assert {position for position in positions if cursor.is_acked(position)} == kept
    assert cursor.backlog_entries == len(positions) - len(kept) and cursor.changes == changes + 1
