"""A topic's storage in memory, and the rest of what a TopicService is given: only as much as its contracts say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

from heliograph.model.configuration.configuration_records import (
    ClusterMigration,
    NamespacePolicies,
    ResourceGroup,
    TenantInfo,
    TenantQuota,
    TopicPolicies,
)
from heliograph.model.configuration.policy_table import Applied
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotFound, TopicClosed
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.model.topic_names import topic_hash
from heliograph.wire.run import Run
from region_node.runtime.cursor_ports import Piece

FIRST_LEDGER = 10


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class FakeCursor:
    fits = True

    def __init__(
        self, ledger: FakeLedger, name: str, mark_delete: Position, durable: bool, properties: dict[str, str]
    ) -> None:
        self.ledger, self.name, self.mark_delete, self.durable, self.properties = (
            ledger,
            name,
            mark_delete,
            durable,
            properties,
        )
        self.acked: set[Position] = set()
        self.partly_acked: dict[Position, int] = {}
        self.flushes = 0
        self.on_moved: Callable[[], None] | None = None

    def ack_batch(self, position: Position, given: int) -> int:
        if self.is_acked(position):
            return 0
        left = self.partly_acked[position] = self.partly_acked.get(position, given) & given
        if not left:
            del self.partly_acked[position]
            self.ack([position])
        return left

    def is_acked(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.acked

    def ack(self, positions: Sequence[Position]) -> None:
        before = self.mark_delete
        self.acked |= set(positions)
        for position in self.ledger.positions():
            if position > self.mark_delete:
                if position not in self.acked:
                    break
                self.mark_delete = position
                self.acked.discard(position)
        self._moved(before)

    def _moved(self, before: Position) -> None:
        if self.mark_delete != before and self.on_moved is not None:
            self.on_moved()

    def ack_ranges(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        self.ack([(ledger, e) for ledger, first, last in ranges for e in range(first, last + 1)])

    def ack_cumulative(self, position: Position) -> None:
        before, self.mark_delete = self.mark_delete, max(self.mark_delete, position)
        self._moved(before)
        self.ack([])

    def unacked_runs(self, runs: list[Piece]) -> list[Piece]:
        if not self.acked and runs and runs[0][:2] > self.mark_delete:
            return runs
        return [
            (ledger, first + i, run.cut(i, i + 1))
            for ledger, first, run in runs
            for i in range(run.count)
            if not self.is_acked((ledger, first + i))
        ]

    def set_properties(self, properties: dict[str, str]) -> None:
        self.properties = properties

    def reset(self, mark_delete: Position) -> None:
        self.mark_delete, self.acked, self.partly_acked = mark_delete, set(), {}

    def begin_earlier(self, mark_delete: Position, start: Position, never: Sequence[tuple[int, int, int]]) -> None:
        kept = [position for position in self.ledger.positions() if position > start and self.is_acked(position)]
        kept = [p for p in kept if not any(ledger == p[0] and first <= p[1] <= last for ledger, first, last in never)]
        self.mark_delete = mark_delete
        self.ack(kept)

    @property
    def backlog_entries(self) -> int:
        return sum(1 for p in self.ledger.positions() if not self.is_acked(p))

    @property
    def backlog_bytes(self) -> int:
        return self.ledger.bytes_between(self.mark_delete, self.ledger.last_confirmed)

    async def flushed(self) -> None:
        await asyncio.sleep(0)
        self.flushes += 1


class FakeLedger:
    """`cache`: whether `cached` answers. `read_turns`: how long a read takes. `hold`: appends wait for `release`.

    `fail_with`: what the next appends fail with.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.cursors: dict[str, FakeCursor] = {}
        self.runs: list[Piece] = []
        self.cache = True
        self.hold = False
        self.fail_with: HeliographError | None = None
        self.on_failed: Any = None
        self.ledger, self.next = FIRST_LEDGER, 0
        self.reads = 0
        self.read_turns = 1
        self.next_index = self.created_ms = self.published_ms = 0
        self.waiting: list[tuple[int, int, Run, Callable[[int, int, Run], None], Any]] = []
        self.wakers: list[Callable[[], None]] = []
        self.retention = (0, 0)
        self.mark_delete_rate = 0.0
        self.checkpoints = 0
        self.closed = False
        self.unread = False
        """There are very many ledgers: which is said after `whole`."""

    def positions(self) -> list[Position]:
        return [(ledger, first + i) for ledger, first, run in self.runs for i in range(run.count)]

    @property
    def last_confirmed(self) -> Position:
        if not self.runs:
            return (-1, -1)
        ledger, first, run = self.runs[-1]
        return ledger, first + run.count - 1

    @property
    def open_bytes(self) -> int:
        return self.size_bytes

    @property
    def size_bytes(self) -> int:
        return sum(run.size_bytes for _, _, run in self.runs)

    @property
    def confirmed_index(self) -> int:
        return self.waiting[0][2].first_index if self.waiting else self.next_index

    def rollover(self) -> None:
        self.ledger, self.next = self.ledger + 1, 0

    def append_run(self, run: Run, done: Callable[[int, int, Run], None], failed: Any) -> None:
        if self.fail_with is not None:
            error = self.fail_with
            asyncio.get_running_loop().call_soon(failed, error)
            return
        run.first_index = self.next_index
        self.next_index += run.messages
        self.waiting.append((self.ledger, self.next, run, done, failed))
        self.next += run.count
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.release)

    def release(self, count: int = 1 << 30) -> None:
        waiting, self.waiting = self.waiting[:count], self.waiting[count:]
        for ledger, first, run, done, _ in waiting:
            self.runs.append((ledger, first, run))
            done(ledger, first, run)
        if waiting:
            for waker in list(self.wakers):
                waker()

    def _find(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        out: list[Piece] = []
        for ledger, first, run in self.runs:
            if max_entries <= 0 or (ledger, first + run.count - 1) < position:
                continue
            start = position[1] - first if ledger == position[0] and position[1] > first else 0
            stop = min(run.count, start + max_entries)
            out.append((ledger, first + start, run.cut(start, stop)))
            max_entries -= stop - start
        return out

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        return self._find(position, max_entries, max_bytes) if self.cache else []

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        self.reads += 1
        found = self._find(position, max_entries, max_bytes)
        for _ in range(self.read_turns):
            await asyncio.sleep(0)
        return found

    def wake_on_append(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.wakers.append(callback)
        return lambda: self.wakers.remove(callback)

    def ledgers(self) -> list[LedgerInfo]:
        if self.unread:
            raise MetadataUnavailable("some are only being read")
        return self._infos()

    def ledgers_from(self, ledger: int) -> list[LedgerInfo]:
        """Those that a cursor is before are known."""
        return self._infos()

    def _infos(self) -> list[LedgerInfo]:
        counts: dict[int, int] = {}
        for ledger, _, run in self.runs:
            counts[ledger] = counts.get(ledger, 0) + run.count
        return [LedgerInfo(ledger, count) for ledger, count in counts.items()]

    async def whole(self) -> None:
        self.unread = False

    @property
    def entries(self) -> int:
        return sum(info.entries for info in self._infos())

    @property
    def first_index(self) -> int | None:
        return self.runs[0][2].first_index if self.runs else None

    def position_before(self, position: Position) -> Position:
        return max((found for found in self.positions() if found < position), default=BEFORE_ALL)

    def first_position(self) -> Position:
        return self.positions()[0] if self.runs else BEFORE_ALL

    def bytes_between(self, after: Position, upto: Position) -> int:
        return sum(
            n
            for ledger, first, run in self.runs
            for i, n in enumerate(run.lengths)
            if after < (ledger, first + i) <= upto
        )

    async def open_cursor(
        self, name: str, initial: Position, *, durable: bool = True, properties: dict[str, str] | None = None
    ) -> FakeCursor:
        await asyncio.sleep(0)
        if name not in self.cursors:
            self.cursors[name] = FakeCursor(self, name, initial, durable, properties or {})
        return self.cursors[name]

    async def delete_cursor(self, name: str) -> None:
        await asyncio.sleep(0)
        del self.cursors[name]

    def set_retention(self, minutes: int, mb: int) -> None:
        self.retention = (minutes, mb)

    def set_quorums(self, ensemble: int, write_quorum: int, ack_quorum: int) -> None:
        self.quorums = (ensemble, write_quorum, ack_quorum)

    def follow_sealing(self) -> None: ...

    def set_mark_delete_rate(self, per_s: float) -> None:
        self.mark_delete_rate = per_s

    def checkpoint(self) -> None:
        self.checkpoints += 1

    def set_affinity(self, primary: Collection[str], secondary: Collection[str]) -> None:
        self.affinity = (tuple(primary), tuple(secondary))

    async def oldest_unacked_ms(self, name: str) -> int:
        await asyncio.sleep(0)
        return next((self.stored_ms(p) for p in self.positions() if not self.cursors[name].is_acked(p)), 0)

    def stored_ms(self, position: Position) -> int:
        return next(
            run.time_ms
            for ledger, first, run in self.runs
            if ledger == position[0] and first <= position[1] < first + run.count
        )

    async def expire_before(self, time_ms: int, names: Sequence[str]) -> dict[str, int]:
        return await self._drop([p for p in self.positions() if self.stored_ms(p) <= time_ms], names)

    async def drop_to(self, size_bytes: int, names: Sequence[str]) -> dict[str, int]:
        found = self.positions()
        return await self._drop(
            [p for p in found if self.bytes_between((p[0], p[1] - 1), found[-1]) > size_bytes], names
        )

    async def truncate(self) -> dict[str, int]:
        return await self._drop(self.positions(), list(self.cursors))

    async def _drop(self, positions: list[Position], names: Sequence[str]) -> dict[str, int]:
        await asyncio.sleep(0)
        dropped = {}
        for name in names:
            before = self.cursors[name].backlog_entries
            if positions:
                self.cursors[name].ack_cumulative(positions[-1])
            dropped[name] = before - self.cursors[name].backlog_entries
        return {name: count for name, count in dropped.items() if count}

    async def terminate(self) -> Position:
        return self.last_confirmed


class FakeLog:
    """`replicator.log.replicated_log.ReplicatedLog` without links: deduplication by the highest sequence."""

    def __init__(self, ledger: FakeLedger) -> None:
        self.ledger = ledger
        self.deduplication = self.aliases = False
        self.highest: dict[str, int] = {}
        self.closed = False

    def publish(
        self, run: Run, done: Callable[[list[tuple[int, int, int]]], None], failed: Callable[[HeliographError], None]
    ) -> None:
        if self.closed:
            failed(TopicClosed("closed"))
            return
        if self.deduplication and run.producers:
            name, count, first, pairs = run.producers[0]
            last = first + count - 1 if pairs is None else pairs[-1][1]
            if last <= self.highest.get(name, -1):
                done([(run.count, -1, -1)])
                return
            self.highest[name] = last
        self.ledger.append_run(run, lambda ledger, first, run: done([(run.count, ledger, first)]), failed)

    def last_sequence(self, producer: str) -> int:
        return self.highest.get(producer, -1) if self.deduplication else -1

    async def close(self) -> None:
        self.closed = True
        for _ in range(5):
            await asyncio.sleep(0)
        self.ledger.closed = True


class FakeFactory:
    def __init__(self) -> None:
        self.ledgers: dict[str, FakeLedger] = {}
        self.opened = 0
        self.open_error: HeliographError | None = None

    async def open_log(self, topic: str, policies: Applied, create: bool) -> FakeLog:
        await asyncio.sleep(0)
        self.opened += 1
        if self.open_error is not None:
            raise self.open_error
        if topic not in self.ledgers:
            if not create:
                raise NotFound(f"topic {topic} does not exist")
            self.ledgers[topic] = FakeLedger(topic)
        return FakeLog(self.ledgers[topic])

    async def delete(self, topic: str) -> None:
        del self.ledgers[topic]

    async def exists(self, topic: str) -> bool:
        return topic in self.ledgers

    async def names(self, namespace: str) -> list[str]:
        return [t for t in self.ledgers if t.startswith(f"persistent://{namespace}/")]

    async def names_between(self, namespace: str, low: int, high: int) -> AsyncIterator[list[str]]:
        for name in await self.names(namespace):
            if low <= topic_hash(name) < high:
                yield [name]

    async def count(self, namespace: str) -> int:
        return len(await self.names(namespace))


class FakeView:
    def __init__(self) -> None:
        self.known = {"public/default": NamespacePolicies(regions=("us",))}
        self.tenants: dict[str, TenantInfo] = {}
        self.counts: dict[str, int] = {}
        self.topics: dict[str, TopicPolicies] = {}
        self.groups: dict[str, ResourceGroup] = {}
        self.quotas: dict[str, TenantQuota] = {}
        self.migrations: dict[str, ClusterMigration] = {}
        self.migrated: dict[str, tuple[str, ...]] = {}
        self.callbacks: list[Callable[[str], None]] = []

    def namespace(self, namespace: str) -> NamespacePolicies | None:
        return self.known.get(namespace)

    def tenant(self, name: str) -> TenantInfo | None:
        return self.tenants.get(name)

    def partitions(self, topic: str) -> int:
        return self.counts.get(topic, 0)

    def partitioned(self, namespace: str) -> list[str]:
        return sorted(topic for topic in self.counts if topic.partition("://")[2].startswith(f"{namespace}/"))

    def namespaces(self, tenant: str) -> list[str]:
        return sorted(name for name in self.known if name.startswith(f"{tenant}/"))

    def tenant_quota(self, tenant: str) -> TenantQuota | None:
        return self.quotas.get(tenant)

    def resource_group(self, name: str) -> ResourceGroup | None:
        return self.groups.get(name)

    def migration(self, name: str) -> ClusterMigration | None:
        return self.migrations.get(name)

    def migrated_in(self, namespace: str) -> tuple[str, ...]:
        return self.migrated.get(namespace, ())

    def cluster(self, name: str) -> None:
        return None

    def topic_policies(self, topic: str) -> TopicPolicies | None:
        return self.topics.get(topic)

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def set(self, namespace: str, policies: NamespacePolicies) -> None:
        self.known[namespace] = policies
        for callback in list(self.callbacks):
            callback(f"/namespaces/{namespace}")


class FakeLinks:
    def __init__(self) -> None:
        self.attached: dict[str, list[str]] = {}
        self.obeyed: dict[str, Mapping[str, Any]] = {}

    def attach(self, log: FakeLog, targets: Sequence[str]) -> None:
        self.attached[log.ledger.topic] = list(targets)

    def schemas_changed(self, topic: str) -> None:
        pass

    def obey(self, log: FakeLog, values: Mapping[str, Any]) -> None:
        self.obeyed[log.ledger.topic] = values

    async def detach(self, log: FakeLog) -> None:
        self.attached.pop(log.ledger.topic, None)

    def stats(self, topic: str | None = None) -> list[Any]:
        return []
