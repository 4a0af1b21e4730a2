"""An idle topic costs memory and nothing else: no task, timer, future, or open ledger, and few objects."""

from __future__ import annotations

import os
import random
import subprocess
import sys

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Delete, prefix_end
from local_meta import keys
from region_node.topics.serving.bulk_creation import create_topics
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.topic_state import TopicState
from tests.region_node.topics.serving.idle_topics import INFO, names
from tests.storage.managed_ledger.world import Broker, Region


def test_an_idle_topic_has_no_task_timer_future_or_open_ledger() -> None:
    command = [sys.executable, "-m", "tests.region_node.topics.serving.idle_topics"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    assert done.returncode == 0, done.stderr


def test_topics_made_in_bulk_are_those_that_were_not_there() -> None:
    async def main(sim: Simulation) -> None:
        region = Region(sim)
        await region.start()
        meta = EmbeddedStore(region.machine)
        broker = Broker(region, meta)
        made = await broker.open(names(7, 1)[0])
        await made.close()
        first = names(1250, 1)[0]
        left = await broker.open(first)
        await left.open_cursor("c", (-1, -1))
        await left.close()
        await meta.txn([Delete(keys.managed_ledger(first))])  # as a deletion that was cut off
        assert await meta.range(keys.cursors(first), prefix_end(keys.cursors(first)))
        metadata = await meta.range("/ml/", "/mm")
        assert await create_topics(meta, names(0, 1200), INFO, random.Random(2)) == 1199
        assert len(await broker.factory.names("public/default")) == 1200
        assert [row for row in await meta.range("/ml/", "/mm") if row in metadata] == metadata  # it was left alone
        assert await create_topics(meta, names(1000, 300), INFO, random.Random(3)) == 100
        state = TopicState(region=1, epoch=1, rng=random.Random(4), deduplication=False, settings=DedupSettings())
        opened = await broker.factory.open(first, state, (2, 2, 2), create=False)
        assert opened.last_confirmed == (-1, -1) and state.origin[:2] == (1, 1) and state.origin[2] > 0
        assert not opened.cursors, "what is left of an earlier one is none of its own"
        await opened.open_cursor("d", (-1, -1))
        await opened.close()
        opened = await broker.factory.open(first, state, (2, 2, 2), create=False)
        assert list(opened.cursors) == ["d"]
        await opened.close()

    with Simulation(1) as sim:
        sim.run(main(sim), limit_s=600)
