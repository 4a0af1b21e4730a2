"""What of a topic a broker lets readers have from bookies themselves: what is confirmed, is at bookies, and does not
lie in its memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import msgpack

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from region_node.security.read_permits import ReadKeys
from region_node.topics.serving.entry_locations import BookiePlaces
from storage.managed_ledger.cache.entry_cache import EntryCache
from tests.storage.managed_ledger.world import Broker, Region, names_of, scenario, until


def test_what_lies_in_memory_is_to_be_read_from_the_broker() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region)
        ledger = await broker.open()

        async def append(count: int) -> int:
            """The ledger that has them."""
            before = len(broker.done)
            broker.append(ledger, *(f"{before + n}" for n in range(count)))
            await until(lambda: len(broker.done) == before + count)
            return broker.done[-1][0]

        first = await append(10)
        await ledger.roll_over()
        last = await append(5)
        assert first != last
        assert await ledger.at_bookies(first, 0, 9) is None and await ledger.at_bookies(last, 0, 4) is None, (
            "the broker has it all"
        )
        broker.cache.sweep(1e9)
        for number, entries in ((first, 10), (last, 5)):
            found = await ledger.at_bookies(number, 2, 99)
            assert found is not None and (found[0].ledger, found[1]) == (number, entries - 1), (
                "as far as it is confirmed, also of the open one"
            )
        assert await ledger.at_bookies(last, 5, 9) is None and await ledger.at_bookies(last + 1, 0, 5) is None
        assert await append(3) == last
        found = await ledger.at_bookies(last, 0, 99)
        assert found is not None and found[1] == 4, "what lies in memory is not among it"
        assert await ledger.at_bookies(last, 5, 99) is None and await ledger.at_bookies(first, 2, 5) is not None

    scenario(work)


def test_a_place_names_the_bookies_of_each_fragment_that_give_entries() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, cache=EntryCache(1 << 20))
        ledger = await broker.open(quorums=(3, 2, 2))
        for number in range(40):
            broker.append(ledger, f"{number}", pad=1 << 16)
        await until(lambda: len(broker.done) == 40)
        broker.cache.sweep(1e9)
        (info,) = ledger.ledgers()
        places = BookiePlaces(ReadKeys(EmbeddedStore(region.machine), region.sim.clock()), broker.pool, None)
        assert await places.place(ledger, info, 0, 39) is None, "none of them says that it gives entries"
        meta = EmbeddedStore(region.machine)
        for name in region.bookies:
            found = await meta.get(keys.bookie(name))
            assert found is not None
            await meta.put(
                keys.bookie(name),
                msgpack.packb(
                    {**msgpack.unpackb(found[0]), "host": name, "http_port": 8000, "gives_entries": name != "b1"}
                ),
            )
        await until(lambda: broker.pool.http_address("b0"))
        place = await places.place(ledger, info, 0, 39)
        assert place is not None and place["last"] == 39 and (place["stride"], place["write_quorum"]) == (64, 2)
        ((start, addresses),) = place["fragments"]
        assert start == 0 and sorted(addresses) == ["", "b0:8000", "b2:8000"]
        assert dict(part.split("=") for part in place["permit"].split("&"))["last"] == "39"
        assert await places.place(ledger, info, 0, 3) is None, "a small range is sooner read than asked for"
        gone = dataclasses.replace(info, ledger=info.ledger + 1)
        assert await places.place(ledger, gone, 0, 39) is None
        found_here = await ledger.at_bookies(info.ledger, 0, 39)
        assert found_here is not None
        metadata = dataclasses.replace(found_here[0], seal_form=2)

        async def at_bookies(*_: int) -> tuple[LedgerMetadata, int]:
            return metadata, 39

        sealed: Any = SimpleNamespace(at_bookies=at_bookies)
        assert await places.place(sealed, info, 0, 39) is None, (
            "what a bookie would send of it in the clear is no entry"
        )

    scenario(work)


def test_what_comes_behind_a_cursor_that_was_read_for_stays_in_memory_for_a_while() -> None:
    """A query's subscription has no consumer: it says where it stands, again and again, and reads what came since."""

    async def work(region: Region) -> None:
        broker = Broker(region)
        ledger = await broker.open()
        broker.append(ledger, "a", "b", "c")
        await until(lambda: len(broker.done) == 3)
        number, now, kept_s = broker.done[0][0], asyncio.get_running_loop().time(), broker.cache.settings.time_ms / 1000
        cursor = await ledger.open_cursor("query", (number, 2))
        broker.cache.sweep(now)
        assert not broker.cache.entries, "nobody has said that he reads"
        cursor.read_at(now)
        broker.append(ledger, "d", "e")
        await until(lambda: len(broker.done) == 5)
        broker.cache.sweep(now + kept_s / 2)
        assert broker.cache.entries == 2 and [names_of(run) for *_, run in ledger.cached((number, 3), 10, 1 << 20)] == [
            ["d", "e"]
        ]
        broker.cache.sweep(now + kept_s + 1)
        assert not broker.cache.entries

    scenario(work)
