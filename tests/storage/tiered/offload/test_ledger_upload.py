"""An object that an upload returned is whole, and is that of its ledger; anything else is told, and never stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.metadata_store import Put
from heliograph.model.errors import CorruptData, NoSuchLedger, NoSuchObject
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata, LedgerState, OffloadRecord, OffloadState
from heliograph.runtime.throttle import Throttle
from heliograph.wire.run import Run
from local_meta import keys
from storage.tiered.objects.object_format import FOOTER_BYTES, HEAD_BYTES, IndexWriter, cut_blocks
from storage.tiered.objects.object_names import ledger_key
from storage.tiered.offload.ledger_upload import _body, _verify_blocks, check, upload
from tests.storage.managed_ledger.world import TOPIC, Region, names_of, run_of
from tests.storage.tiered.ledger_infos import ATTEMPT
from tests.storage.tiered.world import SETTINGS, FakeStore, TierBroker, filled, simulated

OTHER = "ff" * 16
BEGUN = OffloadRecord(ATTEMPT, "us-1")
WANTED = [f"e{number}" for number in range(10)]
Change = Callable[[bytes], bytes]


class Changing(FakeStore):
    """What arrives is what `change` makes of it."""

    change: Change = staticmethod(lambda blob: blob)

    async def put(self, key: str, body: AsyncIterator[bytes]) -> None:
        await super().put(key, body)
        self.objects[key] = self.change(self.objects[key])


class World:
    """A closed ledger of ten entries, and one attempt to copy it."""

    def __init__(self, region: Region, broker: TierBroker, info: LedgerInfo, clock: Any) -> None:
        self.region, self.broker, self.info, self.store = region, broker, info, Changing({})
        self.context, self.clock = broker.factory.context, clock
        self.throttle = Throttle(1e9)
        self.took: list[float] = []
        self.key = ledger_key("us-1", TOPIC, info.ledger, ATTEMPT)

    async def upload(self, info: LedgerInfo | None = None, topic: str = TOPIC) -> OffloadRecord:
        return await upload(
            self.context,
            self.store,
            topic,
            info or self.info,
            BEGUN,
            SETTINGS,
            self.throttle,
            self.took.append,
            self.clock,
        )

    async def check(self, record: OffloadRecord, *, topic: str = TOPIC, **info: Any) -> None:
        await check(self.store, topic, replace(self.info, **info), record)


def play(work: Callable[[World], Awaitable[None]]) -> None:
    async def begin(sim: Simulation, region: Region) -> None:
        broker = TierBroker(region, FakeStore({}))
        ledger = await filled(broker, 12)
        info = ledger.ledgers()[0]
        assert info.entries == 10 and info.closed_ms
        await work(World(region, broker, info, sim.clock()))

    simulated(begin)


def test_what_is_returned_says_where_the_object_ends_and_reads_back() -> None:
    async def work(world: World) -> None:
        record = await world.upload()
        blob = world.store.objects[world.key]
        assert list(world.store.objects) == [world.key] and record.size_bytes == len(blob)
        assert record == replace(
            BEGUN, state=OffloadState.STORED, size_bytes=len(blob), index_bytes=record.index_bytes, stored_ms=0
        )
        index = await check(world.store, TOPIC, world.info, record)
        assert (index.ledger, index.entries, index.topic) == (world.info.ledger, 10, TOPIC)
        blocks = cut_blocks(blob[HEAD_BYTES : len(blob) - record.index_bytes], world.info.ledger, 0)
        assert [name for _, run in blocks for name in names_of(run)] == WANTED
        assert world.took and 0.1 < sum(world.took) < 1000, "in milliseconds"

    play(work)


@pytest.mark.parametrize("place", ("head", "block", "last block", "index", "footer", "short", "long"))
def test_what_did_not_arrive_as_it_was_sent_is_told(place: str) -> None:
    async def work(world: World) -> None:
        await world.upload()
        blob = world.store.objects[world.key]
        size = (await world.upload()).index_bytes
        at = {"head": 3, "block": HEAD_BYTES + 60, "last block": len(blob) - size - 1, "index": len(blob) - size + 2}

        def change(sent: bytes) -> bytes:
            if place in ("short", "long"):
                return sent[:-1] if place == "short" else sent + b"x"
            where = at.get(place, len(sent) - 2)
            return sent[:where] + bytes([sent[where] ^ 1]) + sent[where + 1 :]

        world.store.change = change  # type: ignore[method-assign]
        with pytest.raises(CorruptData, match=f"object {world.key} in {world.store.url}"):
            await world.upload()

    play(work)


def test_an_object_of_another_ledger_topic_or_attempt_is_not_this_one() -> None:
    async def work(world: World) -> None:
        record = await world.upload()
        await world.check(record)
        blob = world.store.objects[world.key]
        for other in ({"ledger": 99}, {"entries": 9}, {"entries": 11}):
            here = replace(world.info, **other)
            world.store.objects[ledger_key("us-1", TOPIC, here.ledger, ATTEMPT)] = blob
            with pytest.raises(CorruptData, match="head"):
                await world.check(record, **other)
        world.store.objects[ledger_key("us-1", TOPIC, world.info.ledger, OTHER)] = blob
        with pytest.raises(CorruptData, match="head"):
            await world.check(replace(record, attempt=OTHER))
        world.store.objects[ledger_key("us-1", f"{TOPIC}x", world.info.ledger, ATTEMPT)] = blob
        with pytest.raises(CorruptData, match="its index is of 10 entries"):
            await world.check(record, topic=f"{TOPIC}x")
        with pytest.raises(NoSuchObject):
            await world.check(replace(record, holder="eu-2"))

    play(work)


def test_an_object_has_the_size_that_is_recorded_and_its_index_is_more_than_a_footer_and_less_than_all() -> None:
    async def work(world: World) -> None:
        record = await world.upload()
        size = record.size_bytes
        await world.check(replace(record, index_bytes=size - 1))
        for wrong in (size - 1, size + 1):
            with pytest.raises(CorruptData, match=f"it has {size} bytes, and not {wrong}"):
                await world.check(replace(record, size_bytes=wrong))
        for index in (0, FOOTER_BYTES, size, size + 1):
            with pytest.raises(CorruptData, match="and not"):
                await world.check(replace(record, index_bytes=index))

    play(work)


def test_only_a_closed_ledger_that_ends_where_the_topic_says_is_copied() -> None:
    async def work(world: World) -> None:
        for entries in (9, 11):
            with pytest.raises(CorruptData, match=f"is to hold {entries} entries"):
                await world.upload(replace(world.info, entries=entries))
        with pytest.raises(NoSuchLedger):
            await world.upload(replace(world.info, ledger=999))
        key = keys.ledger(world.info.ledger)
        found = await world.context.meta.get(key)
        assert found is not None
        for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
            changed = replace(LedgerMetadata.decode(found[0]), state=state)
            await world.context.meta.txn([Put(key, changed.encode())])
            with pytest.raises(CorruptData, match=state.name):
                await world.upload()
        assert not world.store.objects and not world.took, "nothing was begun"

    play(work)


def test_what_goes_to_the_store_goes_at_the_pace_that_was_set() -> None:
    async def work(world: World) -> None:
        record = await world.upload()
        blocks = record.size_bytes - record.index_bytes - HEAD_BYTES
        loop = asyncio.get_running_loop()
        taken: list[float] = []

        async def take(amount: float) -> None:
            taken.append(amount)
            await asyncio.sleep(5.0)

        world.throttle = SimpleNamespace(take=take)  # type: ignore[assignment]
        began = loop.time()
        await world.upload()
        assert sum(taken) == blocks and loop.time() - began >= 5.0 * len(taken)

    play(work)


@pytest.mark.parametrize("wanted", (True, False))
def test_what_lies_in_the_clear_is_sealed_on_its_way_where_the_topic_is_to_be(wanted: bool) -> None:
    async def work(world: World) -> None:
        asked: list[tuple[Any, ...]] = []

        async def sealed(topic: str, ledger: int, closed_ms: int, first: int, run: Run, form: int) -> Run:
            asked.append((topic, ledger, closed_ms, first, form))
            return run_of(*("sealed" for _ in range(run.count)))

        found: Any = SimpleNamespace(sealed=sealed) if wanted else None
        world.context = replace(world.context, sealing=found)
        record = await world.upload()
        assert record.seal_form == 0, "what is in it is open"
        blob = world.store.objects[world.key]
        blocks = cut_blocks(blob[HEAD_BYTES : len(blob) - record.index_bytes], world.info.ledger, 0)
        assert [name for _, run in blocks for name in names_of(run)] == (["sealed"] * 10 if wanted else WANTED)
        info = world.info
        assert asked == ([(TOPIC, info.ledger, info.closed_ms, first, 0) for first, _ in blocks] if wanted else [])

    play(work)


async def sent(*answers: Sequence[tuple[int, Run]], entries: int = 4) -> tuple[list[int], int]:
    """Of a body that gets these answers in turn: (from which entries on was read, pieces that came)."""
    asked: list[int] = []
    left = list(answers)

    async def read(first: int) -> list[tuple[int, Run]]:
        asked.append(first)
        return list(left.pop(0))

    pieces = 0
    info, writer = LedgerInfo(7, entries, closed_ms=1), IndexWriter(256)
    async for _ in _body(read, TOPIC, info, BEGUN, writer, Throttle(1e9), []):
        pieces += 1
    return asked, pieces


def test_entries_are_asked_for_until_all_have_come_each_in_its_place() -> None:
    two = run_of("a", "b")
    assert asyncio.run(sent([(0, two)], [(2, two)])) == ([0, 2], 4), "head, two answers, and index"
    assert asyncio.run(sent([(0, two), (2, two)])) == ([0], 3)
    for answers in ([[(1, two)]], [[(0, two), (3, two)]], [[(0, two)], [(0, two)]], [[(0, two), (0, two)]]):
        with pytest.raises(CorruptData, match="was asked for, and"):
            asyncio.run(sent(*answers))


def test_every_block_is_read_back_and_all_entries_must_be_there() -> None:
    async def work(world: World) -> None:
        record = await world.upload()
        index = await check(world.store, TOPIC, world.info, record)
        for read_bytes in (1, 300, 1 << 20):
            world.store.reads.clear()
            await _verify_blocks(world.store, world.key, index, read_bytes)
            ranges = [(start, stop) for _, start, stop in world.store.reads]
            assert ranges[0][0] == HEAD_BYTES and ranges[-1][1] == index.end
            assert all(one[1] == other[0] for one, other in pairwise(ranges))
            assert len(ranges) == {1: len(index.rows()), 1 << 20: 2}.get(read_bytes, len(ranges))
        index.entries = 11
        with pytest.raises(CorruptData):
            await _verify_blocks(world.store, world.key, index, 1 << 20)
        index.entries = 8
        with pytest.raises(CorruptData, match="holds 9 entries, and not 8"):
            await _verify_blocks(world.store, world.key, index, 1 << 20)

    play(work)
