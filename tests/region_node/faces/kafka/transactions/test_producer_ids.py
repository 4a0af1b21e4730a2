"""Ids of producers: none comes twice in a region."""

from __future__ import annotations

import asyncio

from heliograph.kv.in_process_store import EmbeddedStore
from region_node.faces.kafka.transactions.producer_ids import ProducerIds
from tests.region_node.topics.fake_storage import FakeClock


def test_no_id_comes_twice_also_where_the_metadata_is_an_older_copy_or_was_made_anew() -> None:
    async def body() -> None:
        clock, given = FakeClock(), list[int]()
        for _ in range(3):  # each metadata knows nothing of the one before
            meta = EmbeddedStore()
            for _ in range(2):  # brokers
                ids = ProducerIds(meta, lambda: 3, clock)
                given += [await ids.next() for _ in range(2)]
            clock.now += 3600.0
        assert len(set(given)) == len(given) and {number >> 44 for number in given} == {3}

    asyncio.run(body())


def test_an_id_says_which_region_has_given_it() -> None:
    async def body() -> None:
        us, eu = (ProducerIds(EmbeddedStore(), lambda region=region: region, FakeClock()) for region in (1, 2))
        given = await eu.next()
        assert eu.given_here(given) and not us.given_here(given)

    asyncio.run(body())
