"""Encryption at rest on the way of a topic: through rollovers, rotations, takeovers, repairs, offloads, and without the
right keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from geo_tests.sim.simulation import Simulation
from global_config import keys
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import (
    BookieUnavailable,
    ConfigError,
    CorruptData,
    HeliographError,
    KeyMissing,
    MetadataUnavailable,
    NotAllowed,
    NotFound,
)
from heliograph.model.ledger_metadata import FORMAT, SEALED, ManagedLedgerMetadata, local_gone
from heliograph.runtime.clock import CautiousClock, Clock
from heliograph.wire.block import AUTHENTICATED, VERSION, decode_block, encode_block, peek_block
from heliograph.wire.run import Buffer, Run
from local_meta.keys import bookie as bookie_key
from local_meta.keys import ledger as ledger_key
from region_node.tiering.sealed_topics import may_hold
from storage.bookie.entry_log.block_cutting import cut_block
from storage.ledger.reading.ledger_reader import ledger_metadata, read_entries, read_open
from storage.ledger.recovery.ledger_recovery import recover_ledger
from storage.ledger.repair.in_place_repair import Runs
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.sealing.cipher import BYTES_ALONE, UNSEALED, WITH_HEADER
from storage.sealing.keyring import DataKey, TenantKeys
from storage.sealing.sealing import Sealing
from storage.tiered.objects.object_format import HEAD_BYTES as OBJECT_HEAD_BYTES
from storage.tiered.offload.offload_plan import OffloadPolicy
from tests.storage.ledger.fake_bookies import Held
from tests.storage.managed_ledger.world import Broker, Region, names_of, read_all, run_of
from tests.storage.sealing.world import HEAD_BYTES, ONE, TWO, Config, Masters, forged, leaks, summed
from tests.storage.tiered.world import AT_ONCE, FakeStore, TierBroker, more, settled, simulated, until

ROLLING = ManagedLedgerSettings(ledger_entries_max=10, checkpoint_entries=16)


async def publish(broker: Broker, ledger: ManagedLedger, *names: str) -> None:
    count = len(broker.done)
    broker.append(ledger, *names)
    await until(lambda: len(broker.done) == count + len(names))


async def names(ledger: ManagedLedger) -> list[str]:
    return [name for _, _, name in await read_all(ledger)]


def keys_used(region: Region) -> set[int]:
    blocks = [
        block
        for bookie in region.bookies.values()
        for held in bookie.ledgers.values()
        for _, block in held.blocks.values()
    ]
    return {run.seal.key if run.seal else 0 for _, _, run in map(decode_block, blocks)}


def stored(config: Config, place: str) -> tuple[DataKey, ...]:
    found = config.machine.get(place)
    return () if found is None else TenantKeys.decode(found[0]).keys


def run(work: Callable[[Region, Config], Awaitable[None]], *, seed: int = 1) -> None:
    async def main(sim: Simulation, region: Region) -> None:
        await work(region, Config())

    simulated(main, seed=seed)


def test_bookies_hold_nothing_in_the_clear_and_the_next_owner_reads_all() -> None:
    async def work(region: Region, config: Config) -> None:
        first = Broker(region, settings=ROLLING, sealing=await config.sealing(region))
        ledger = await first.open()
        for i in range(25):
            await publish(first, ledger, f"secret{i}", f"word{i}")
        wanted = [name for i in range(25) for name in (f"secret{i}", f"word{i}")]
        assert await names(ledger) == wanted and len(ledger.ledgers()) > 2
        assert not leaks(region, "secret")
        first.factory.abandon()  # as a crash
        second = Broker(region, settings=ROLLING, sealing=await config.sealing(region))
        again = await second.open()
        assert await names(again) == wanted and second.state.seen == wanted
        assert len(keys_used(region)) == 1 and 0 not in keys_used(region)

    run(work)


@pytest.mark.parametrize("seed", range(12))
def test_a_rotation_under_way_and_an_owner_that_dies_lose_nothing(seed: int) -> None:
    async def work(region: Region, config: Config) -> None:
        rng = region.rng
        wanted: list[str] = []
        broker = Broker(region, settings=ROLLING, sealing=await config.sealing(region))
        ledger = await broker.open()
        for at in range(60):
            match rng.randrange(6):
                case 0:
                    await broker.factory.context.sealing.rotate("public")  # type: ignore[union-attr]
                case 1:
                    broker.factory.abandon()
                    broker = Broker(region, settings=ROLLING, sealing=await config.sealing(region))
                    ledger = await broker.open()
                    assert await names(ledger) == wanted
                case _:
                    some = [f"secret{at}.{i}x" for i in range(rng.randrange(1, 4))]
                    await publish(broker, ledger, *some)
                    wanted += some
        assert await names(ledger) == wanted and not leaks(region, "secret")

    run(work, seed=seed)


def test_old_keys_read_what_they_sealed_until_they_are_removed() -> None:
    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, sealing=(sealing := await config.sealing(region)))
        ledger = await broker.open()
        await publish(broker, ledger, "old")
        await sealing.rotate("public")
        await publish(broker, ledger, "new")
        assert len(keys_used(region)) == 2
        old, new = sealing.listing()["public"]
        with pytest.raises(NotAllowed, match="is the one with which tenant public seals: rotate first"):
            await sealing.remove("public", new.number)
        with pytest.raises(NotFound, match="has no data key"):
            await sealing.remove("public", 17)
        broker.factory.abandon()
        await sealing.remove("public", old.number)
        other = Broker(region, sealing=await config.sealing(region))
        with pytest.raises(
            KeyMissing, match=f"data key {old.number:016x}, and it is not among the data keys of region us"
        ):
            await other.open()

    run(work)


def test_a_broker_without_the_right_master_keys_does_not_start_and_loses_nothing() -> None:
    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, sealing=await config.sealing(region))
        await publish(broker, await broker.open(), "kept")
        broker.factory.abandon()
        for text, says in (
            ("", "no master key is set"),
            (TWO, "the master keys given are two"),
            (TWO.replace("two", "one"), "is not the one that wrapped"),
        ):
            with pytest.raises(ConfigError, match=says):
                await config.sealing(region, Masters(text))
        unaware = Broker(region)
        with pytest.raises(KeyMissing, match="no master key is set here"):
            await unaware.open()
        unaware.factory.abandon()
        whole = Broker(region, sealing=await config.sealing(region, Masters(TWO + ONE)))
        assert await names(await whole.open()) == ["kept"]

    run(work)


def test_without_a_master_key_a_topic_that_is_to_be_sealed_is_not_written() -> None:
    async def work(region: Region, config: Config) -> None:
        sealing = await config.sealing(region, Masters(""), wanted=False)
        broker = Broker(region, sealing=sealing)
        ledger = await broker.open()
        await publish(broker, ledger, "open")
        sealing.wanted = lambda topic: True
        ledger.follow_sealing()
        broker.append(ledger, "refused")
        await until(lambda: bool(broker.failed) or len(broker.done) > 1)
        await until(lambda: ledger.ledgers()[-1].closed_ms > 0)
        broker.append(ledger, "refused")
        await until(lambda: len(broker.failed) + len(broker.done) == 3)
        name, error = broker.failed[-1]
        assert name == "refused" and isinstance(error, KeyMissing) and "has no master key" in str(error)
        assert ledger.failed is None and (await names(ledger))[0] == "open"

    run(work)


def test_a_policy_that_changes_holds_from_the_next_ledger_on() -> None:
    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, sealing=(sealing := await config.sealing(region, wanted=False)))
        ledger = await broker.open()
        wanted = []
        for at, on in enumerate([False, True, True, False]):
            sealing.wanted = lambda topic, on=on: on  # type: ignore[misc]
            ledger.follow_sealing()
            before = len(ledger.ledgers())
            await until(lambda: at in (0, 2) or len(ledger.ledgers()) == before + 1)  # noqa: B023
            word = f"{'secret' if on else 'plain'}{at}"
            await publish(broker, ledger, word)
            wanted.append(word)
        assert await names(ledger) == wanted
        assert not leaks(region, "secret") and leaks(region, "plain0") and leaks(region, "plain3")

    run(work)


def test_a_policy_that_changes_while_the_next_ledger_is_being_made_holds_from_the_one_after_it_on() -> None:
    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, sealing=(sealing := await config.sealing(region, wanted=False)))
        ledger = await broker.open()
        await publish(broker, ledger, "plain")
        asked: list[bool] = []

        def switch_on() -> None:
            sealing.wanted = lambda topic: True
            ledger.follow_sealing()

        def wanted(topic: str) -> bool:
            asked.append(False)
            if len(asked) == 2:  # the next ledger is made, and is to be written in the clear
                asyncio.get_running_loop().call_soon(switch_on)
            return False

        sealing.wanted = wanted
        await ledger.roll_over()
        await until(lambda: sealing.wanted is not wanted)
        for i in range(20):
            await publish(broker, ledger, f"plain{i}")
        await publish(broker, ledger, "secret")
        assert keys_used(region) - {0} and not leaks(region, "secret")

    run(work)


def test_lost_entries_that_come_from_elsewhere_are_sealed_too() -> None:
    class Elsewhere:
        async def read(
            self, topic: str, ledger: int, first: int, last: int, max_bytes: int
        ) -> Sequence[tuple[int, Run]]:
            out = run_of(*(f"secret{entry}" for entry in range(first, last + 1)))
            out.first_index, out.time_ms = first, 7
            return [(first, out)]

    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, settings=ROLLING, sealing=(sealing := await config.sealing(region)))
        ledger = await broker.open()
        for i in range(10):
            await publish(broker, ledger, f"secret{i}")
        await until(lambda: ledger.ledgers()[0].closed_ms > 0)
        number = ledger.ledgers()[0].ledger
        await asyncio.sleep(1)
        await sealing.rotate("public")
        for bookie in region.bookies.values():
            if number in bookie.ledgers:
                for entry in (3, 4):
                    bookie.ledgers[number].blocks.pop(entry, None)
        ledger.forget_cached(number)
        done = await ledger.refill(number, Elsewhere())
        assert done.fetched_entries >= 2 and not done.missing
        assert await names(ledger) == [f"secret{i}" for i in range(10)] and not leaks(region, "secret")
        first, _ = sealing.listing()["public"]
        assert keys_used(region) == {first.number}, (
            "a key that is younger than all ledgers may be removed: nothing is sealed with it that stands in one"
        )

    run(work)


def moved(blocks: list[Buffer], older: Buffer = b"") -> list[Buffer]:
    return [blocks[0], forged(blocks[0], first=2), *blocks[2:]]


def swapped(blocks: list[Buffer], older: Buffer = b"") -> list[Buffer]:
    return [blocks[0], forged(blocks[2], first=2), forged(blocks[1], first=4), blocks[3]]


def headed_anew(blocks: list[Buffer], older: Buffer = b"") -> list[Buffer]:
    return [blocks[0], forged(blocks[1], time_ms=1), *blocks[2:]]


def piece_elsewhere(blocks: list[Buffer], older: Buffer = b"") -> list[Buffer]:
    piece = forged(cut_block(blocks[0], 0, 1), first=2)
    return [blocks[0], piece, cut_block(blocks[1], 3, 4), *blocks[2:]]


def opened_up(blocks: list[Buffer], older: Buffer = b"") -> list[Buffer]:
    ledger, _, _ = decode_block(blocks[1])
    return [blocks[0], b"".join(encode_block(run_of("forged", "forged"), ledger, 2)), *blocks[2:]]


def lowered(blocks: list[Buffer], older: Buffer = b"") -> list[Buffer]:
    """What is sealed, as if it were in the form without a header."""
    ledger, _, run = decode_block(blocks[1])
    assert run.seal is not None and run.body is not None
    older = run.with_body(run.body, run.seal._replace(header=None))
    return [blocks[0], b"".join(encode_block(older, ledger, 2)), *blocks[2:]]


def in_the_older_form(blocks: list[Buffer], older: Buffer) -> list[Buffer]:
    """With a block that was sealed for this very place, in the form without a header."""
    return [blocks[0], older, *blocks[2:]]


def keyed_anew(blocks: list[Buffer], older: Buffer = b"") -> list[Buffer]:
    """With the number of a data key that nobody has."""
    block = bytes(blocks[1])
    return [blocks[0], summed(block[:HEAD_BYTES] + b"unknown." + block[HEAD_BYTES + 8 :]), *blocks[2:]]


def refused(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, int]]:
    """(bookie, ledger, entry) of the copies of which the log says so."""
    fields = [vars(record) for record in caplog.records if record.message == "ledger.copy_refused"]
    return [(told["bookie"], told["ledger"], told["entry"]) for told in fields]


def blocks_of(held: Held) -> list[Buffer]:
    return [block for _, block in sorted(set(held.blocks.values()))]


def put_blocks(held: Held, blocks: list[Buffer]) -> None:
    held.blocks.clear()
    for block in blocks:
        _, first, count = peek_block(block)
        held.blocks.update(dict.fromkeys(range(first, first + count), (first, bytes(block))))


ATTACKS = [moved, swapped, headed_anew, piece_elsewhere, opened_up, lowered, in_the_older_form, keyed_anew]


@pytest.mark.parametrize("attack", ATTACKS)
def test_who_writes_a_bookies_disk_is_a_spoilt_copy(
    attack: Callable[[list[Buffer], Buffer], list[Buffer]], caplog: pytest.LogCaptureFixture
) -> None:
    """Other copies are read, also to be copied, and the log says which is so; where all are so, the error says which
    ledger and entry.
    """

    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, sealing=(sealing := await config.sealing(region)))
        ledger = await broker.open()
        wanted = [f"entry{i}" for i in range(8)]
        for i in range(0, 8, 2):
            await publish(broker, ledger, *wanted[i : i + 2])
        await ledger.roll_over()
        context, number = broker.factory.context, ledger.ledgers()[0].ledger
        metadata = await ledger_metadata(context, number)
        copies = [region.bookies[name].ledgers[number] for name in metadata.write_set(0)]
        good = blocks_of(copies[0])
        assert good == blocks_of(copies[1]) and len(good) == 4
        other = await sealing.sealed(ledger.topic, number, 0, 2, run_of("forged", "forged"), BYTES_ALONE)
        older = b"".join(encode_block(other, number, 2))

        async def read(first: int, *, how: Callable[..., Awaitable[list[tuple[int, Run]]]]) -> list[tuple[int, Run]]:
            runs: list[tuple[int, Run]] = []
            while first < 8:
                runs += await how(context, metadata, first, 7, 1 << 20)
                first = runs[-1][0] + runs[-1][1].count
            return runs

        for held in copies:
            put_blocks(held, attack(good, older))
            assert [name for _, run in await read(0, how=read_open) for name in names_of(run)] == wanted
            copied = [b"".join(encode_block(run, number, at)) for at, run in await read(0, how=read_entries)]
            assert copied == good
            put_blocks(held, good)
        assert refused(caplog).count((metadata.write_set(0)[0], number, 2)) >= 2, "once for each way to read"
        for held in copies:
            put_blocks(held, attack(good, older))
        assert (await read_open(context, metadata, 0, 7, 1 << 20))[-1][0] == 0, "what is before it is read"
        if attack is keyed_anew:
            with pytest.raises(KeyMissing, match=f"ledger {number}: entry 2 "):
                await read_open(context, metadata, 2, 7, 1 << 20)
            copied = [b"".join(encode_block(run, number, at)) for at, run in await read(0, how=read_entries)]
            assert copied == attack(good, older), "it may be a key that is to come back"
            return
        for how in (read_open, read_entries):
            with pytest.raises(CorruptData, match=f"ledger {number}: .*entry 2 ") as error:
                await how(context, metadata, 2, 7, 1 << 20)
            assert "sealed" in str(error.value)
        assert {(bookie, number, 2) for bookie in metadata.write_set(0)} <= {*refused(caplog)}

    run(work)


@pytest.mark.parametrize("attack", [moved, opened_up, keyed_anew])
def test_a_recovery_takes_no_tail_that_a_bookies_disk_was_given(
    attack: Callable[[list[Buffer]], list[Buffer]], caplog: pytest.LogCaptureFixture
) -> None:
    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, sealing=await config.sealing(region))
        ledger = await broker.open()
        for i in range(0, 8, 2):
            await publish(broker, ledger, f"entry{i}", f"entry{i + 1}")
        number = ledger.ledgers()[0].ledger
        broker.factory.abandon()
        first, *_ = (await ledger_metadata(broker.factory.context, number)).write_set(0)
        copies = [bookie.ledgers[number] for bookie in region.bookies.values() if bookie.holds(number)]
        for held in copies:
            held.lac = -1  # so that the recovery reads all of it
        good = blocks_of(copies[0])
        put_blocks(region.bookies[first].ledgers[number], attack(good))
        other = Broker(region, sealing=await config.sealing(region))
        assert await names(await other.open()) == [f"entry{i}" for i in range(8)]
        assert [blocks_of(held) for held in copies] == [good] * len(copies), "it writes what it found to all copies"
        assert (first, number, 2) in refused(caplog)

    run(work)


def test_what_is_copied_asks_the_configuration_for_no_key_and_bookies_are_not_blamed_for_it() -> None:
    async def work(region: Region, config: Config) -> None:
        store = config.store()
        late = Sealing(store, "us", Masters(), CautiousClock(region.sim.clock()), region.rng)
        await late.start()
        await late.close()  # it hears of no key any more
        broker = Broker(region, sealing=await config.sealing(region))
        ledger = await broker.open()
        await publish(broker, ledger, "one", "two")
        number = ledger.ledgers()[0].ledger
        broker.factory.abandon()
        for bookie in region.bookies.values():
            if bookie.holds(number):
                bookie.ledgers[number].lac = -1
        store.unavailable = "nobody answers"
        context = Broker(region, sealing=late).factory.context
        metadata = await recover_ledger(context, number)
        assert metadata.last_entry == 1
        assert [run.count for _, run in await read_entries(context, metadata, 0, 1, 1 << 20)] == [2]
        with pytest.raises(MetadataUnavailable):
            await read_open(context, metadata, 0, 1, 1 << 20)
        assert not any(context.pool.suspected(bookie) for bookie in metadata.write_set(0))

    run(work)


def test_a_copy_with_an_unknown_key_is_not_copied_while_a_bookie_that_is_there_is_silent() -> None:
    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, sealing=await config.sealing(region))
        ledger = await broker.open()
        for i in range(0, 8, 2):
            await publish(broker, ledger, f"entry{i}", f"entry{i + 1}")
        await ledger.roll_over()
        context, number = broker.factory.context, ledger.ledgers()[0].ledger
        metadata = await ledger_metadata(context, number)
        one, other = metadata.write_set(0)
        changed = keyed_anew(blocks_of(region.bookies[one].ledgers[number]))
        put_blocks(region.bookies[one].ledgers[number], changed)
        region.bookies[other].crash()
        with pytest.raises(BookieUnavailable):
            await read_entries(context, metadata, 2, 7, 1 << 20)
        await context.meta.delete(bookie_key(other))
        await until(lambda: not context.pool.registered(other))
        ((_, run),) = await read_entries(context, metadata, 2, 7, 1 << 20)
        assert b"".join(encode_block(run, number, 2)) == changed[1], "it is gone, and there may be no other copy"

    run(work)


def test_a_ledger_has_one_form_and_an_older_region_the_older_one() -> None:
    async def work(region: Region, config: Config) -> None:
        sealing = await config.sealing(region)
        sealing.form = lambda: BYTES_ALONE
        broker = Broker(region, sealing=sealing)
        ledger = await broker.open()
        await publish(broker, ledger, "one")
        sealing.form = lambda: WITH_HEADER
        await publish(broker, ledger, "two")
        await ledger.roll_over()
        await publish(broker, ledger, "three")
        (old, new) = (info.ledger for info in ledger.ledgers())
        stored = [region.machine.get(ledger_key(number)) for number in (old, new)]
        assert [found and found[0][0] for found in stored] == [FORMAT, SEALED]
        versions = {
            number: {block[0] for bookie in region.bookies.values() for block in blocks_of(bookie.ledger(number))}
            for number in (old, new)
        }
        assert versions == {old: {VERSION}, new: {AUTHENTICATED}}
        broker.factory.abandon()
        other = Broker(region, sealing=await config.sealing(region))
        assert await names(await other.open()) == ["one", "two", "three"]

    run(work)


def test_what_is_put_back_into_a_sealed_ledger_is_sealed_whatever_the_policy_is_today() -> None:
    class Elsewhere:
        async def read(
            self, topic: str, ledger: int, first: int, last: int, max_bytes: int
        ) -> Sequence[tuple[int, Run]]:
            out = run_of(*(f"secret{entry}" for entry in range(first, last + 1)))
            out.first_index, out.time_ms = first, 7
            return [(first, out)]

    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, settings=ROLLING, sealing=(sealing := await config.sealing(region)))
        ledger = await broker.open()
        for i in range(10):
            await publish(broker, ledger, f"secret{i}")
        await until(lambda: ledger.ledgers()[0].closed_ms > 0)
        number = ledger.ledgers()[0].ledger
        sealing.wanted = lambda topic: False
        for bookie in region.bookies.values():
            if number in bookie.ledgers:
                put_blocks(bookie.ledgers[number], headed_anew(blocks_of(bookie.ledgers[number])[:4]))
        ledger.forget_cached(number)
        assert not (await ledger.refill(number, Elsewhere())).missing
        assert await names(ledger) == [f"secret{i}" for i in range(10)] and not leaks(region, "secret")

    run(work)


def test_what_was_judged_damaged_takes_the_place_of_copies_with_an_unknown_key_and_nothing_else_does() -> None:
    async def work(region: Region, config: Config) -> None:
        broker = Broker(region, sealing=await config.sealing(region))
        ledger = await broker.open()
        wanted = [f"entry{i}" for i in range(8)]
        for i in range(0, 8, 2):
            await publish(broker, ledger, *wanted[i : i + 2])
        await ledger.roll_over()
        number = ledger.ledgers()[0].ledger
        for held in (bookie.ledgers[number] for bookie in region.bookies.values() if bookie.holds(number)):
            put_blocks(held, keyed_anew(blocks_of(held)))
        ledger.forget_cached(number)

        def brought(first: int) -> Runs:
            out = run_of(f"entry{first}", f"entry{first + 1}")
            out.first_index, out.time_ms = -1, 7
            return Runs([(first, out)])

        assert (await ledger.refill(number, brought(4))).fetched_entries == 0
        with pytest.raises(KeyMissing):
            await names(ledger)
        assert (await ledger.refill(number, brought(2))).fetched_entries == 2
        assert await names(ledger) == wanted

    run(work)


@pytest.mark.parametrize("what", ["swapped", "headed anew", "opened up"])
def test_who_writes_an_object_store_is_found_out(what: str) -> None:
    async def work(region: Region, config: Config) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, AT_ONCE, sealing=await config.sealing(region))
        ledger = await broker.open()
        await more(broker, ledger, 0, 15)
        await settled(broker, ledger)
        await until(lambda: local_gone(ledger.ledgers()[0]))
        info = ledger.ledgers()[0]
        assert info.offload is not None and info.offload.seal_form == WITH_HEADER
        (key,) = (key for key in store.objects if info.offload.attempt in key)
        blob = store.objects[key]
        size = int.from_bytes(blob[OBJECT_HEAD_BYTES + 4 :][:4], "big")
        one, two = (blob[OBJECT_HEAD_BYTES + at * size :][:size] for at in (0, 1))
        assert [peek_block(block)[1:] for block in (one, two)] == [(0, 1), (1, 1)] and len(one) == len(two)
        match what:
            case "swapped":
                false = forged(two, first=0) + forged(one, first=1)
            case "headed anew":
                false = forged(one, time_ms=1) + two
            case _:
                plain = b"".join(encode_block(run_of("forged", pad=size - HEAD_BYTES - 4), info.ledger, 0))
                false = plain + two
        store.objects[key] = blob.replace(one + two, false)
        assert len(store.objects[key]) == len(blob) and store.objects[key] != blob
        broker.factory.abandon()
        other = TierBroker(region, store, AT_ONCE, sealing=await config.sealing(region))
        again = await other.open()
        with pytest.raises(CorruptData, match=f"ledger {info.ledger}: .*entry 0 .*sealed"):
            await again.read((info.ledger, 0), 1, 1 << 20)
        assert await other.cold.place(again.topic, info.ledger, info.offload, 0, 5) == ("", 0, 0, 0), (
            "nobody is sent to read it without a broker, whatever the object says of itself"
        )

    run(work)


def test_where_no_copy_on_bookies_names_a_known_key_the_object_is_read() -> None:
    async def work(region: Region, config: Config) -> None:
        broker = TierBroker(
            region, FakeStore({}), OffloadPolicy(threshold_bytes=0), sealing=await config.sealing(region)
        )
        ledger = await broker.open()
        await more(broker, ledger, 0, 15)
        await settled(broker, ledger)
        info = ledger.ledgers()[0]
        assert info.offload is not None and not local_gone(info)
        for held in (bookie.ledgers[info.ledger] for bookie in region.bookies.values() if bookie.holds(info.ledger)):
            put_blocks(held, keyed_anew(blocks_of(held)))
        ledger.forget_cached(info.ledger)
        assert await names(ledger) == [f"e{i}" for i in range(15)] and broker.cold.reads > 0

    run(work)


def test_offloaded_entries_stay_sealed_and_only_brokers_read_them() -> None:
    async def work(region: Region, config: Config) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, AT_ONCE, sealing=await config.sealing(region))
        ledger = await broker.open()
        await more(broker, ledger, 0, 25)
        await settled(broker, ledger)
        assert store.objects and not any(b"e1." in blob or b"e12." in blob for blob in store.objects.values())
        info = ledger.ledgers()[0]
        assert info.offload is not None
        assert await broker.cold.place(ledger.topic, info.ledger, info.offload, 0, 5) == ("", 0, 0, 0)
        await until(lambda: local_gone(ledger.ledgers()[0]))
        ledger.forget_cached(info.ledger)
        assert await names(ledger) == [f"e{i}" for i in range(25)]
        assert broker.cold.reads > 0

    run(work)


def test_what_was_written_in_the_clear_goes_to_no_store_so_once_the_policy_is_set() -> None:
    async def work(region: Region, config: Config) -> None:
        store = FakeStore({})
        masters = Masters("")
        sealing = await config.sealing(region, masters, wanted=False)
        broker = TierBroker(region, store, sealing=sealing)
        ledger = await broker.open()
        await more(broker, ledger, 0, 25)
        assert leaks(region, "e1.")
        sealing.wanted = lambda topic: True
        broker.policy = AT_ONCE
        broker.tiering.tick()
        await until(lambda: broker.tiering.status(ledger.topic).state == "ERROR")
        assert "has no master key" in broker.tiering.status(ledger.topic).error and not any(
            b"e1." in blob for blob in store.objects.values()
        )
        masters.text = ONE
        await asyncio.sleep(600)  # its next attempt is due
        await settled(broker, ledger)
        assert store.objects and not any(word in blob for blob in store.objects.values() for word in (b"e1.", b"e12."))
        assert {local_gone(info) for info in ledger.ledgers()[:2]} == {True}
        for info in ledger.ledgers()[:2]:
            ledger.forget_cached(info.ledger)
        assert await names(ledger) == [f"e{i}" for i in range(25)] and broker.cold.reads > 0
        (key,) = sealing.listing()["public"]
        await sealing.rotate("public")
        other = TierBroker(region, store, sealing=await config.sealing(region, masters))
        broker.factory.abandon()
        assert await names(await other.open()) == [f"e{i}" for i in range(25)], (
            "the key of the ledger's time reads it, also when another one seals"
        )
        assert may_hold(ManagedLedgerMetadata(tuple(ledger.ledgers())).spans(), 0, key.created_ms), (
            "and counts as needed"
        )

    run(work)


def test_two_brokers_that_make_the_first_key_at_once_make_one() -> None:
    async def work(region: Region, config: Config) -> None:
        one, two = await config.sealing(region), await config.sealing(region)
        await one.ensure("persistent://shop/a/t")
        await two.ensure("persistent://shop/a/t")
        assert one.listing() == two.listing() and len(one.listing()["shop"]) == 1

    run(work)


def test_what_another_broker_has_just_sealed_is_read_before_the_watch_tells_of_the_key() -> None:
    async def work(region: Region, config: Config) -> None:
        ahead, behind = await config.sealing(region), await config.sealing(region)
        await behind.close()  # its watch tells nothing any more
        await ahead.ensure("persistent://shop/a/t")
        sealer = ahead.sealer("persistent://shop/a/t", 3, UNSEALED)
        assert sealer is not None
        sealed = sealer(run_of("word"), 0)
        assert [names_of(found) for _, found in await behind.opened(3, [(0, sealed)])] == [["word"]]

    run(work)


def test_rewrapped_keys_want_the_new_master_alone() -> None:
    async def work(region: Region, config: Config) -> None:
        masters = Masters()
        sealing = await config.sealing(region, masters)
        await sealing.ensure("persistent://shop/a/t")
        assert await sealing.rewrap() == 0
        masters.text = TWO + ONE
        assert (await sealing.rewrap(), sealing.master) == (1, "two")
        later = await config.sealing(region, Masters(TWO))
        assert later.listing()["shop"][0].master == "two"

    run(work)


def test_many_brokers_that_rotate_at_once_all_get_their_key() -> None:
    async def work(region: Region, config: Config) -> None:
        brokers = [await config.sealing(region) for _ in range(30)]
        made = await asyncio.gather(*(sealing.rotate("shop") for sealing in brokers))
        await brokers[0].look()
        stored = brokers[0].listing()["shop"]
        assert len(stored) == 30 and {key.number for key in stored} == {key.number for key in made}

    run(work)


def test_a_rewrap_that_others_are_always_ahead_of_says_so() -> None:
    class Contended(EmbeddedStore):
        """Somebody writes the same key between each read and the write behind it."""

        contended = True

        async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
            if expected is not None and self.contended and (found := self.machine.get(key)) is not None:
                await super().put(key, found[0])
            return await super().put(key, value, expected=expected, lease=lease)

    async def work(region: Region, config: Config) -> None:
        masters = Masters()
        sealing = await config.sealing(region, masters)
        await sealing.ensure("persistent://shop/a/t")
        masters.text = TWO + ONE
        store = Contended(config.machine)
        other = Sealing(store, "us", masters, CautiousClock(region.sim.clock()), region.rng)
        await other.start()
        with pytest.raises(MetadataUnavailable, match="others change"):
            await other.rewrap()
        store.contended = False
        assert await other.rewrap() == 1

    run(work)


def test_no_key_is_made_while_a_process_would_not_understand_what_it_seals() -> None:
    async def work(region: Region, config: Config) -> None:
        sealing = await config.sealing(region)

        async def refuse() -> None:
            raise NotAllowed("eu-bookie-1 runs an older version")

        sealing._permit = refuse
        with pytest.raises(HeliographError, match="older version"):
            await sealing.ensure("persistent://shop/a/t")
        assert not sealing.listing()

    run(work)


def test_a_configuration_that_went_back_gets_its_keys_from_brokers_that_run() -> None:
    """Before the first key, or before a rotation; whoever comes new meanwhile adds one of its own."""

    async def work(region: Region, config: Config) -> None:
        brokers = [await config.sealing(region) for _ in range(3)]
        broker = Broker(region, settings=ROLLING, sealing=brokers[0])
        ledger = await broker.open()
        await publish(broker, ledger, "one")
        tenant = next(iter(brokers[0].listing()))
        place, first = keys.data_key("us", tenant), brokers[0].listing()[tenant]
        await config.store().delete(place)
        await until(lambda: stored(config, place) == first)
        older = TenantKeys(first).encode()
        second = await brokers[1].rotate(tenant)
        await publish(broker, ledger, "two")
        await config.store().put(place, older)
        await until(lambda: stored(config, place) == (*first, second))
        foreign = Config()
        third = await (await foreign.sealing(region)).rotate(tenant)
        await config.store().put(place, TenantKeys((third,), ()).encode())
        await until(lambda: all(len(sealing.listing()[tenant]) == 3 for sealing in brokers))
        assert stored(config, place) == (*first, second, third)
        broker.factory.abandon()
        again = Broker(region, settings=ROLLING, sealing=await config.sealing(region))
        assert await names(await again.open()) == ["one", "two"]
        await brokers[0].remove(tenant, first[0].number)
        await until(lambda: all(len(sealing.listing()[tenant]) == 2 for sealing in brokers))
        for sealing in brokers:
            await sealing.close()
        assert stored(config, place) == (second, third)

    run(work)


def test_no_ledger_is_made_before_lost_keys_are_put_back() -> None:
    async def work(region: Region, config: Config) -> None:
        store, topic, place = config.store(), "persistent://shop/a/t", keys.data_key("us", "shop")
        sealing = Sealing(store, "us", Masters(), CautiousClock(region.sim.clock()), region.rng)
        sealing.wanted = lambda topic: True
        await sealing.start()
        await sealing.ensure(topic)
        made = stored(config, place)
        store.unavailable = "nobody answers"
        await config.store().delete(place)
        await asyncio.sleep(1.0)
        assert sealing.listing()["shop"] == made and stored(config, place) == ()
        with pytest.raises(MetadataUnavailable):
            await sealing.ensure(topic)
        store.unavailable = None
        await sealing.ensure(topic)
        assert stored(config, place) == made
        await config.store().delete(place)
        assert (*made, await sealing.rotate("shop")) == stored(config, place)
        await sealing.close()

    run(work)


class _SetClock:
    def __init__(self, clock: Clock, ahead_ms: int) -> None:
        self._clock, self._ahead_ms = clock, ahead_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self._ahead_ms


def test_a_wrong_clock_dates_no_key_so_that_it_or_the_one_before_it_is_let_go_too_early() -> None:
    async def main() -> None:
        config, right, made = Config(), region.sim.clock(), list[tuple[DataKey, int]]()

        def others() -> list[float]:
            return [right.wall_ms() - right.monotonic() * 1000]

        for ahead_days in (0, -10, 10, 0, -10, 0):
            clock = _SetClock(right, ahead_days * 86_400_000)
            broker = await config.sealing(region, clock=clock, heard=others)
            made.append((await broker.rotate("shop"), right.wall_ms()))
            await broker.close()
            await asyncio.sleep(3600)
        assert all(key.earliest_ms <= at <= key.created_ms for key, at in made), "it sealed from then on"
        times = [key.created_ms for key, _ in made]
        assert times == sorted(set(times)), "what is newer is later"
        stored = (await config.sealing(region)).listing()["shop"]
        assert [key for key, _ in made] == list(stored)

    with Simulation(seed="dates") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=100_000)
