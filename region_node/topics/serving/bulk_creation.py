"""Many topics at once: their metadata is written many to a transaction, and none of them is loaded.

Is: the first metadata of each topic, as loading it for the first time would make it. Isn't: policies, limits, or who
may do it.
Invariants: a topic that is there already is left as it is; a crash leaves some of them made and the others not, and
repeating the call makes the rest.
Bounds: TOPICS_A_WRITE topics a transaction, WRITES_AT_ONCE of them under way.
Source: docs/protocols/metadata.md, "Limits".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

from heliograph.kv.metadata_store import ABSENT, MetadataStore, Op, Put
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.errors import VersionConflict
from heliograph.model.ledger_metadata import UNOPENED, ManagedLedgerMetadata
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Rng
from local_meta import keys
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.topic_state import TopicState

TOPICS_A_WRITE = 250
WRITES_AT_ONCE = 2
"""A read waits for all writes before it. With four of 500 the slowest hundredth of reads took two to three times as
long, and no more topics were made.
"""


async def create_topics(meta: MetadataStore, names: Iterable[str], region: RegionInfo, rng: Rng) -> int:
    """names: full names of persistent topics, each once. Returns how many were not there before. Raises NotAllowed (a
    name), what the metadata raises.
    """
    rest, made = iter(names), 0
    lock = asyncio.Lock()

    async def work() -> None:
        nonlocal made
        while True:
            async with lock:
                batch = list(islice(rest, TOPICS_A_WRITE))
            if not batch:
                return
            count = await _create(meta, list(_puts(batch, region, rng)))
            made += count

    async with asyncio.TaskGroup() as group:
        for _ in range(WRITES_AT_ONCE):
            group.create_task(work())
    return made


def _puts(names: Iterable[str], region: RegionInfo, rng: Rng) -> Iterator[Put]:
    for name in names:
        state = TopicState(
            region=region.number, epoch=region.epoch, rng=rng, deduplication=False, settings=DedupSettings()
        )
        state.restore(b"")
        metadata = ManagedLedgerMetadata(state_blob=state.snapshot(), owner=UNOPENED)
        yield Put(keys.managed_ledger(str(TopicName.parse(name))), metadata.encode(), ABSENT)


async def _create(meta: MetadataStore, puts: list[Put]) -> int:
    """Those that are there already, or were written by a try whose answer was lost, are left out one after the
    other.
    """
    while puts:
        try:
            ops: list[Op] = list(puts)
            await meta.txn(ops)
            break
        except VersionConflict as conflict:
            there = {conflict.key}
            for put in puts:
                if put.key != conflict.key and await meta.get(put.key) is not None:
                    there.add(put.key)
            puts = [put for put in puts if put.key not in there]
    return len(puts)
