"""Ensembles wider than the write quorum: where entries lie, what is confirmed, what is told, and how it is placed."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import CorruptData, NotAllowed, NotEnoughBookies
from heliograph.model.ledger_metadata import PLACED, SEALED, LedgerMetadata, LedgerState
from local_meta import keys
from storage.ledger.bookies.placement import Candidate, choose
from storage.ledger.ledger_context import LedgerSettings
from storage.ledger.reading.ledger_reader import ledger_metadata, read_entries
from storage.ledger.recovery.ledger_recovery import recover_ledger
from storage.ledger.repair.ledger_repair import LedgerRepair
from storage.ledger.underreplicated_marks import Mark
from tests.storage.ledger.fake_bookies import FakeBookie
from tests.storage.ledger.striped_world import StripedWorld
from tests.storage.ledger.writers import Writer, scenario
from tests.storage.managed_ledger.world import Broker, Region, names_of, read_all, run_of, until

STRIDE = LedgerSettings(stride=4)


def named(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


def test_a_run_is_cut_where_a_stripe_ends_and_each_piece_lies_on_its_write_set() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2), width=3)
        assert [handle.append_run(run_of(*named(3))), handle.append_run(run_of(*named(12)[3:]))] == [0, 3]
        await writer.reach(11)
        ensemble = handle.metadata.fragments[0][1]
        for place, bookie in enumerate(ensemble):
            held = sorted(region.bookies[bookie].ledgers[handle.ledger].blocks)
            assert held == [entry for entry in range(12) if entry // 4 in (place, (place - 1) % 3)]
        closed = await handle.close()
        assert (closed.last_entry, closed.stride, closed.size_bytes) == (11, 4, sum(len(n) for n in named(12)))
        found, at = [], 0
        while at < 12:
            for first, run in await read_entries(writer.context, closed, at, 11, 1 << 20):
                assert first == at
                found += names_of(run)
                at += run.count
        assert found == named(12)

    scenario(work, settings=STRIDE)


def test_a_run_in_two_stripes_is_confirmed_and_closed_at_whole_or_not_at_all() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2), width=3)
        handle.append_run(run_of("a", "b"))
        await writer.reach(1)
        first, second, third = handle.metadata.fragments[0][1]
        region.bookies[third].silent = True  # holds the second stripe and the third, not the first
        handle.append_run(run_of(*named(6)))
        await until(lambda: handle._core.lac == 3)
        assert handle.lac == 1 and handle.pending_bytes == sum(len(n) for n in named(6))
        closed = await handle.close()
        assert closed.last_entry == 1 and closed.size_bytes == 2
        assert max(region.bookies[b].ledgers[handle.ledger].lac for b in (first, second)) == 1, (
            "no reader of bookies was told of a part of a run"
        )

    scenario(work, settings=STRIDE)


def test_a_copy_of_a_fragment_that_ends_within_a_run_tells_no_reader_of_the_part() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2), width=3)
        handle.append_run(run_of("a", "b"))
        await writer.reach(1)
        first, _, third = handle.metadata.fragments[0][1]
        region.bookies[third].silent = True  # the second stripe waits for it
        handle.append_run(run_of(*named(6)))
        await until(lambda: handle._core.lac == 3)
        region.bookies[first].crash()
        await region.bookies[first].unregister(EmbeddedStore(region.machine))
        await until(lambda: len(handle.metadata.fragments) == 2)
        assert handle.metadata.fragments[1][0] == 4 and handle.lac == 1
        mark = await writer.context.meta.put(keys.underreplicated(handle.ledger), Mark((first,)).encode())
        await LedgerRepair(writer.context, 1 << 20).run(handle.ledger, mark, Mark((first,)))
        copied = await ledger_metadata(writer.context, handle.ledger)
        assert first not in copied.fragments[0][1], "the earlier fragment was copied"
        assert max(b.ledgers[handle.ledger].lac for b in region.bookies.values() if b.holds(handle.ledger)) == 1
        closed = await handle.close()
        assert closed.last_entry == 1, "nobody was told of more than this"

    scenario(work, bookies=6, settings=STRIDE)


def test_recovery_fences_every_write_set_and_writes_each_entry_of_the_tail_to_its_own() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2), width=4)
        handle.append_run(run_of(*named(14)))
        await writer.reach(13)
        ensemble = handle.metadata.fragments[0][1]
        for bookie in (
            ensemble[0],
            ensemble[1],
        ):  # both copies of the first stripe: no recovery may say that it is not there
            region.bookies[bookie].crash()
        with pytest.raises(Exception, match="too few of the bookies"):
            await recover_ledger(
                dataclasses.replace(writer.context, settings=dataclasses.replace(STRIDE, recovery_timeout_s=1.0)),
                handle.ledger,
            )
        region.bookies[ensemble[0]].start()
        closed = await recover_ledger(writer.context, handle.ledger)
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 13)
        for entry in range(closed.fragments[-1][0], 14):
            assert sum(entry in region.bookies[b].ledgers[handle.ledger].blocks for b in closed.write_set(entry)) == 2

    scenario(work, bookies=6, settings=STRIDE)


def test_a_spare_is_sent_what_waits_of_its_own_stripes() -> None:
    async def work(region: Region, writer: Writer) -> None:
        for lost in range(4):
            handle = await writer.open((2, 2), width=4)
            handle.append_run(run_of("first"))
            await writer.reach(0)
            bookie = handle.metadata.fragments[0][1][lost]
            region.bookies[bookie].crash()
            for name in named(30):  # in every stripe, and waiting for the one that is lost
                handle.append_run(run_of(name))
            await writer.reach(30)
            for entry in range(31):
                for holder in handle.metadata.write_set(entry):
                    assert entry in region.bookies[holder].ledgers[handle.ledger].blocks, (
                        f"{entry} was confirmed, and {holder} has not got it"
                    )
            spare = handle.metadata.fragments[-1][1][lost]
            assert all(
                handle.metadata.striping.holds(lost, entry)
                for entry in region.bookies[spare].ledgers[handle.ledger].blocks
            )
            region.bookies[bookie].start()
            await asyncio.sleep(61)  # until it may be chosen again

    scenario(work, bookies=7, settings=STRIDE)


def test_recovery_writes_every_entry_of_the_tail_to_its_own_write_set() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 1), width=4)
        handle.append_run(run_of(*named(4)))
        await writer.reach(3)
        handle.append_run(run_of(*named(12)))
        await writer.reach(15)
        ensemble = handle.metadata.fragments[0][1]
        for entry in range(4, 16):  # one of the two copies never came
            del (
                region.bookies[ensemble[handle.metadata.striping.places(entry)[entry % 2]]]
                .ledgers[handle.ledger]
                .blocks[entry]
            )
        closed = await recover_ledger(writer.context, handle.ledger)
        assert closed.last_entry == 15
        for entry in range(16):
            for holder in closed.write_set(entry):
                assert entry in region.bookies[holder].ledgers[handle.ledger].blocks

    scenario(work, bookies=4, settings=STRIDE)


def test_with_fewer_bookies_it_is_narrower_and_never_has_fewer_copies() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2), width=9)
        assert len(handle.metadata.fragments[0][1]) == 3 and handle.metadata.stride == 4
        meta = EmbeddedStore(region.machine)
        await region.bookies["b2"].unregister(meta)
        await asyncio.sleep(0.1)
        narrow = await writer.open((2, 2), width=9)
        assert len(narrow.metadata.fragments[0][1]) == 2 and narrow.metadata.stride == 0
        await region.bookies["b1"].unregister(meta)
        await asyncio.sleep(0.1)
        with pytest.raises(NotEnoughBookies):
            await writer.open((2, 2), width=9)

    scenario(work, settings=STRIDE)


def test_quorums_of_a_topic_count_from_its_next_ledger_on() -> None:
    with Simulation(seed=4) as sim:

        async def main() -> None:
            region = Region(sim, 5)
            await region.start()
            broker = Broker(region, ledger_settings=STRIDE)
            log = await broker.open()
            broker.append(log, "a")
            await until(lambda: len(broker.done) == 1)
            log.set_quorums(5, 3, 2)
            for wrong in ((2, 3, 2), (3, 2, 3), (3, 2, 0)):
                with pytest.raises(NotAllowed):
                    log.set_quorums(*wrong)
            broker.append(log, "b")
            await until(lambda: len(broker.done) == 2)
            await log._end().roll()
            for number in range(30):
                broker.append(log, f"c{number}")
            await until(lambda: len(broker.done) == 32)
            blobs = [
                LedgerMetadata.decode((await broker.meta.get(keys.ledger(info.ledger)) or (b"", 0))[0])
                for info in log.ledgers()
            ]
            assert [(len(m.fragments[0][1]), m.write_quorum, m.ack_quorum, m.stride) for m in blobs] == [
                (2, 2, 2, 0),
                (5, 3, 2, 4),
            ]
            assert [entry[2] for entry in await read_all(log)] == ["a", "b", *(f"c{i}" for i in range(30))]

        sim.run(main(), limit_s=60)


def test_without_a_spare_a_narrower_ledger_goes_on_at_once() -> None:
    with Simulation(seed=5) as sim:

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            broker = Broker(region, ledger_settings=STRIDE)
            log = await broker.open(quorums=(3, 2, 2))
            for number in range(10):
                broker.append(log, f"n{number}")
            await until(lambda: len(broker.done) == 10)
            region.bookies["b1"].crash()  # still registered
            for number in range(10, 40):
                broker.append(log, f"n{number}")
            await until(lambda: len(broker.done) == 40, limit_s=1.0)
            assert [entry[2] for entry in await read_all(log)] == [f"n{i}" for i in range(40)] and len(
                log.ledgers()
            ) == 2
            made = LedgerMetadata.decode((await broker.meta.get(keys.ledger(log.ledgers()[-1].ledger)) or (b"", 0))[0])
            assert sorted(made.fragments[0][1]) == ["b0", "b2"] and made.stride == 0

        sim.run(main(), limit_s=60)


@pytest.mark.parametrize("seed", range(6))
def test_one_of_three_that_stands_still_stops_publishing_for_about_a_second(seed: int) -> None:
    """Ensemble 3, write quorum 2, ack quorum 2, no spare: what fails by silence, at any moment, costs one short pause
    and no message.
    """
    with Simulation(seed=f"still-{seed}") as sim:
        rng = sim.rng("test")

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            broker = Broker(region, ledger_settings=LedgerSettings(stride=4))
            log = await broker.open(quorums=(3, 2, 2))
            count, longest, since = 0, 0.0, 0.0
            loop = asyncio.get_running_loop()
            stops = {rng.randrange(50, 150): "still", rng.randrange(400, 500): "again"}
            still = None
            while count < 900:
                if count in stops:
                    still = region.bookies[rng.choice(sorted(region.bookies))]
                    still.silent = True
                if still is not None and count == 300:
                    still.silent = False
                confirmed = len(broker.done)
                broker.append(log, f"n{count}")
                count += 1
                await asyncio.sleep(0.01)
                if len(broker.done) > confirmed or not since:
                    since = loop.time()
                longest = max(longest, loop.time() - since)
            await until(lambda: len(broker.done) == count, limit_s=3.0)
            assert longest < 1.5, longest
            assert [name for *_, name in broker.done] == [f"n{i}" for i in range(900)] and not broker.failed

        sim.run(main(), limit_s=120)


def test_a_ledger_that_has_its_ack_quorums_is_kept() -> None:
    with Simulation(seed=6) as sim:

        async def main() -> None:
            region = Region(sim, 4)
            await region.start()
            broker = Broker(region, ledger_settings=STRIDE)
            log = await broker.open(quorums=(4, 3, 2))
            for number in range(40):
                broker.append(log, f"n{number}")
                if number == 10:
                    region.bookies["b1"].crash()
                await asyncio.sleep(0.05)
            await until(lambda: len(broker.done) == 40, limit_s=1.0)
            assert len(log.ledgers()) == 1 and len(await read_all(log)) == 40

        sim.run(main(), limit_s=60)


def test_its_metadata_says_so_in_its_version() -> None:
    striped = LedgerMetadata(7, 2, 2, ((0, ("a", "b", "c")),), stride=64)
    plain = LedgerMetadata(7, 2, 2, ((0, ("a", "b")),))
    assert LedgerMetadata.decode(striped.encode()) == striped and striped.encode()[0] == PLACED
    assert LedgerMetadata.decode(plain.encode()) == plain and plain.encode()[0] == 1
    assert (
        striped.write_set(63) == ("a", "b")
        and striped.write_set(64) == ("b", "c")
        and striped.write_set(128) == ("c", "a")
    )
    sealed = replace(striped, seal_form=2)
    assert LedgerMetadata.decode(sealed.encode()) == sealed and sealed.encode()[0] == SEALED
    assert LedgerMetadata.decode(replace(plain, seal_form=2).encode()) == replace(plain, seal_form=2)
    with pytest.raises(CorruptData, match="format 4"):
        LedgerMetadata.decode(b"\x04" + striped.encode()[1:])


@pytest.mark.parametrize("seed", range(30))
def test_neighbours_lie_on_different_racks_as_far_as_there_are_enough(seed: int) -> None:
    rng = random.Random(seed)
    candidates = [Candidate(f"b{i}", rack) for i, rack in enumerate("xxyy" if seed % 2 else "xxyyzz")]
    rack = {c.bookie: c.rack for c in candidates}
    chosen = choose(candidates, len(candidates), (), rng, 2)
    assert len(set(chosen)) == len(candidates)
    for place in range(len(chosen)):
        assert rack[chosen[place]] != rack[chosen[(place + 1) % len(chosen)]], [rack[b] for b in chosen]


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_by_crashes_and_cuts(seed: int) -> None:
    StripedWorld(seed).run()


def test_a_stripe_is_read_from_its_own_write_set_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    read: Callable[..., list[bytes]] = FakeBookie.read

    def count(self: FakeBookie, ledger: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        asked.append((self.name, first))
        return read(self, ledger, first, last, max_bytes)

    monkeypatch.setattr(FakeBookie, "read", count)

    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2), width=5)
        handle.append_run(run_of(*named(40)))
        await writer.reach(39)
        closed = await handle.close()
        for entry in range(40):
            await read_entries(writer.context, closed, entry, 39, 1)
        assert (
            all(bookie in closed.write_set(entry) for bookie, entry in asked)
            and len({bookie for bookie, _ in asked}) >= 3
        )

    scenario(work, bookies=5, settings=STRIDE)
