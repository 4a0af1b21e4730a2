"""When a topic was made and last published to: durable, right after every way to end, and told apart from what a
version that dates nothing left.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.ledger_metadata import TRIMMED_MS, LedgerInfo, ManagedLedgerMetadata
from heliograph.wire.run import FLAG_HIDDEN, Run
from local_meta import keys
from storage.managed_ledger.metadata.ledger_pages import stored_topic
from storage.managed_ledger.metadata.topic_times import CREATED_MS, PUBLISHED, created_ms, dated, published_ms
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, scenario, until


async def stored_of(region: Region) -> ManagedLedgerMetadata:
    found = await stored_topic(EmbeddedStore(region.machine), TOPIC)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("ending", ["closed", "killed", "killed after a checkpoint"])
def test_the_next_owner_knows_both(ending: str) -> None:
    async def work(region: Region) -> None:
        made = region.sim.clock().wall_ms()
        broker = Broker(region)
        ledger = await broker.open()
        assert made <= ledger.created_ms <= region.sim.clock().wall_ms() and ledger.published_ms == 0
        created = ledger.created_ms
        await asyncio.sleep(20)
        broker.append(ledger, "a")
        await until(lambda: len(broker.done) == 1)
        if ending == "killed after a checkpoint":
            await ledger.store_state()
        await asyncio.sleep(20)
        broker.append(ledger, "b")
        await until(lambda: len(broker.done) == 2)
        published = ledger.published_ms
        assert published - created >= 40_000
        hidden: list[int] = []
        await asyncio.sleep(20)
        ledger.append_run(
            Run([b"m"], [1], counts=(0,), flags=(FLAG_HIDDEN,)), lambda *_: hidden.append(1), lambda _: None
        )
        await until(lambda: bool(hidden))
        assert ledger.published_ms == published, "a marker is no message"
        if ending == "closed":
            await ledger.close()
        await asyncio.sleep(100)
        for _ in range(2):
            again = await Broker(region).open()
            assert (again.created_ms, again.published_ms) == (created, published) and again.properties == {}
        await again.store_state()
        assert dict((await stored_of(region)).properties) == {
            CREATED_MS: str(created),
            PUBLISHED: f"{again.next_index} {published}",
        }

    scenario(work)


def test_a_topic_of_an_older_version_is_dated_once_and_what_that_version_publishes_is_no_riddle() -> None:
    async def work(region: Region) -> None:
        broker, meta = Broker(region), EmbeddedStore(region.machine)
        ledger = await broker.open()
        for name in ("a", "b"):
            broker.append(ledger, name)
            await until(lambda: broker.done[-1:] and broker.done[-1][2] == name)  # noqa: B023
            await ledger.roll_over()
            await asyncio.sleep(50)
        first, second = (info.closed_ms for info in ledger.ledgers() if info.closed_ms)
        await ledger.close()
        await meta.put(keys.managed_ledger(TOPIC), replace(await stored_of(region), properties={}).encode())
        await asyncio.sleep(100)
        again = await Broker(region).open()
        assert (again.created_ms, again.published_ms) == (first, second), "the first and the last that is known of it"
        await again.close()
        stored = await stored_of(region)
        assert stored.properties[CREATED_MS] == str(first)
        known = replace(stored, properties=dated(stored.properties, first, second, stored.next_index))
        assert published_ms(known, [LedgerInfo(7, 1, 1, 99)]) == second
        grown = replace(
            known, next_index=known.next_index + 1
        )  # the older version had it for a while, and kept what it does not know as it was
        assert published_ms(grown, [LedgerInfo(7, 1, 1, 99)]) == 99

    scenario(work)


def test_what_is_known_where_little_is() -> None:
    nothing = ManagedLedgerMetadata()
    assert (created_ms(nothing, 5), published_ms(nothing)) == (5, 0)
    trimmed = ManagedLedgerMetadata(properties={TRIMMED_MS: "70"})
    assert (created_ms(trimmed, 500), published_ms(trimmed)) == (70, 70)
    open_one = ManagedLedgerMetadata((LedgerInfo(1, 5, 9, 0),))
    assert (created_ms(open_one, 500), published_ms(open_one, open_one.ledgers)) == (500, 0)
    for wrong in ({CREATED_MS: "x", PUBLISHED: "0 x"}, {CREATED_MS: "", PUBLISHED: "0"}, {PUBLISHED: ""}):
        assert (
            created_ms(replace(nothing, properties=wrong), 5),
            published_ms(replace(nothing, properties=wrong)),
        ) == (5, 0)
    assert dated({"a": "b", CREATED_MS: "1", PUBLISHED: "1 1"}, 0) == {"a": "b"}
