"""A topic on a small region of fake bookies, for brokers that compact it, die, and go on as zombies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from geo_tests.sim.simulation import Simulation
from heliograph.kv.metadata_store import MetadataStore, prefix_end
from heliograph.model.empty_dict import NOTHING
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Run
from local_meta import keys
from region_node.compaction.compactor import Compactor
from region_node.compaction.settings import CompactorSettings
from region_node.runtime.cursor_ports import LedgerPort
from region_node.runtime.logged_tasks import logged_tasks
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.topics.topic import Topic, TopicBroker
from replicator.log.transaction_buffer import TransactionBuffer
from storage.managed_ledger.cache.entry_cache import EntryCache
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.sealing.sealing import Sealing
from tests.region_node.faces.pulsar.codec import entry
from tests.storage.managed_ledger.world import Broker, Region, until

TOPIC = "persistent://public/default/t"
Row = tuple[str, str]
"""(key, value)."""


class Blank:
    """A LogState that keeps nothing."""

    def restore(self, blob: bytes) -> None: ...

    def replay(self, ledger: int, first: int, run: Run) -> None: ...

    def snapshot(self) -> bytes:
        return b""


class Log:
    """What a topic wants below it, beside the ledger."""

    deduplication = linked = False
    incoming = NOTHING

    def __init__(self, ledger: ManagedLedger) -> None:
        self.ledger = ledger
        self.state: Any = None
        self.transactional: Any = None


class Owner:
    """One broker that has opened the topic."""

    def __init__(
        self,
        region: Region,
        sim: Simulation,
        meta: MetadataStore | None = None,
        keys_max: int = 1000,
        cache_bytes: int = 1 << 20,
        sealing: Sealing | None = None,
    ) -> None:
        self.sim = sim
        settings = ManagedLedgerSettings(ledger_entries_max=30, pending_timeout_s=5.0, close_timeout_s=2.0, sweep_s=1.0)
        self.broker = Broker(region, meta, settings, cache=EntryCache(cache_bytes), sealing=sealing)
        self.tasks = logged_tasks()
        self.transactions: TransactionBuffer | None = None
        """Set before it is opened: the topic takes part in transactions."""
        self.settings = CompactorSettings(keys_max=keys_max)
        self.topic: Topic

    async def open(self) -> Topic:
        await self.broker.pool.ready()
        factory = self.broker.factory
        ledger = await factory.open(TOPIC, Blank(), (2, 2, 2), create=True)
        compactor = Compactor(factory.context, self.broker.meta, self.sim.clock(), self.tasks, self.settings)
        loop = asyncio.get_running_loop()
        log: Any = Log(ledger)
        log.state = SimpleNamespace(transactions=self.transactions)
        log.transactional = SimpleNamespace(transactions=self.transactions, await_transaction=lambda topic: None)
        self.topic = Topic(
            TopicName.parse(TOPIC),
            log,
            TopicBroker(
                ready=ReadyQueue(loop.call_soon),
                reads=BoundedReads(self.tasks),
                tasks=self.tasks,
                clock=self.sim.clock(),
            ),
            compactor,
        )
        return self.topic

    async def publish(self, rows: Sequence[tuple[str | None, str]]) -> bool:
        """Whether it is confirmed. A row without a key: None."""
        parts = [entry(value.encode(), partition_key=key) for key, value in rows]
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        run = Run(parts, [len(part) for part in parts])
        self.topic.log.ledger.append_run(run, lambda *_: done.set_result(True), lambda _: done.set_result(False))  # type: ignore[attr-defined]
        return await done

    async def transact(self, made: Run) -> None:
        """Part of a transaction, or its end."""
        done: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
        self.topic.log.ledger.append_run(
            made, lambda *where: done.set_result(where), lambda error: done.set_exception(error)
        )  # type: ignore[attr-defined]
        ledger, first, run = await done
        assert self.transactions is not None
        self.transactions.confirm(ledger, first, run)

    async def compact(self) -> str:
        """How it ended."""
        self.topic.compact()
        state = self.topic.compaction()
        await until(lambda: state.status != "RUNNING", 120.0)
        return state.status


async def rows_of(source: LedgerPort, max_entries: int = 5) -> list[tuple[tuple[int, int], str, str]]:
    """(position, key, value) of all that is there."""

    out: list[tuple[tuple[int, int], str, str]] = []
    position = (-1, -1)
    while pieces := await source.read(position, max_entries, 1 << 20):
        for ledger, first, run in pieces:
            for index, part in enumerate(run.parts):
                metadata, payload = entry_metadata(part)
                out.append(((ledger, first + index), metadata.partition_key, bytes(payload).decode()))
        position = (out[-1][0][0], out[-1][0][1] + 1)
    return out


def latest(rows: list[Row]) -> set[Row]:
    found: dict[str, str] = {}
    for key, value in rows:
        if value:
            found[key] = value
        else:
            found.pop(key, None)
    return set(found.items())


async def ledgers_without_topic(meta: MetadataStore) -> set[int]:
    """Compacted ledgers, or what is left of some, in the metadata."""

    rows = await meta.range(keys.LEDGERS, prefix_end(keys.LEDGERS))
    return {keys.ledger_of(key) for key, blob, _ in rows if not LedgerMetadata.decode(blob).topic}


async def settled(owner: Owner) -> None:
    """Until background work has ended."""
    await until(lambda: not len(owner.tasks))


def made_up(rng: random.Random, count: int, at: int) -> list[Row]:
    return [(f"k{rng.randrange(12)}", "" if rng.random() < 0.15 else f"v{at + index}") for index in range(count)]
