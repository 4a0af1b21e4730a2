"""A topic's storage in memory, and the rest of what a TopicService is given: only as much as its contracts say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heliograph.model.configuration.configuration_records import (
    ClusterMigration,
    NamespacePolicies,
    RegionInfo,
    ResourceGroup,
    TenantInfo,
    TenantQuota,
    TopicPolicies,
)
from heliograph.model.errors import (
    EntriesLost,
    HeliographError,
    LedgerFenced,
    MetadataUnavailable,
    NotAllowed,
    NotFound,
)
from heliograph.model.ledger_metadata import ANYWHERE, Affinity, LedgerInfo
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.model.topic_names import topic_hash
from heliograph.wire.run import Run
from region_node.runtime.cursor_ports import Piece
from replicator.log.replicated_log import ReplicatedLog
from storage.ledger.known_losses import KnownLosses
from storage.managed_ledger.cursors import cursor_expiry
from storage.managed_ledger.log.managed_ledger import LogState
from storage.managed_ledger.retention.trim_rule import Retention
from tests.storage.managed_ledger.memory_log import Extent, MemoryCursor, MemoryLog, closed

FIRST_LEDGER = 10
CLOSE_TURNS = 200


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.ahead_ms = 0
        """Of the wall clock: a test sets it anew."""

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000) + self.ahead_ms


class FakeLedger(MemoryLog):
    """A topic's managed ledger: what is confirmed is durable, and so is the object: the next owner has the same one.

    `cache`: whether `cached` answers. `read_turns`: how long a read takes. `hold`: appends wait for `release`.
    `fail_with`: what the next appends fail with. `unread`: there are very many ledgers: which is said after `whole`.
    It frees nothing, and of settings it keeps only what they were set to.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.named: dict[str, MemoryCursor] = {}
        self.runs: list[Piece] = []
        self.cache = True
        self.owner = 0
        self.hold = self.unread = False
        self.fail_with: HeliographError | None = None
        self.refusal: HeliographError | None = None
        self.on_failed: Any = None
        self.terminated_at: Position | None = None
        self.ledger, self.next = FIRST_LEDGER, 0
        self.reads = 0
        self.read_turns = 1
        self.lost: EntriesLost | None = None
        """What no read finds any more."""
        self.next_index = self.created_ms = self.published_ms = 0
        self.waiting: list[tuple[int, int, Run, Callable[[int, int, Run], None], Any]] = []
        self.retention: Retention | None = None
        self.affinity = ANYWHERE
        self.mark_delete_rate = 0.0
        self.checkpoints = 0
        self.snapshot = b""
        """Of the state that its first owner gave it."""

    @property
    def cursors(self) -> dict[str, MemoryCursor]:
        return self.named

    @property
    def closed(self) -> bool:
        return self.failed is not None

    def positions(self) -> list[Position]:
        return [(ledger, first + i) for ledger, first, run in self.runs for i in range(run.count)]

    def extents(self) -> list[Extent]:
        return [((ledger, first), run.count, run) for ledger, first, run in self.runs]

    def run_in(self, extent: Extent) -> Run:
        run: Run = extent[2]
        return run

    @property
    def last_confirmed(self) -> Position:
        if not self.runs:
            return BEFORE_ALL
        ledger, first, run = self.runs[-1]
        return ledger, first + run.count - 1

    @property
    def open_bytes(self) -> int:
        return sum(run.size_bytes for ledger, _, run in self.runs if ledger == self.ledger)

    @property
    def size_bytes(self) -> int:
        return sum(run.size_bytes for _, _, run in self.runs)

    @property
    def confirmed_index(self) -> int:
        return self.waiting[0][2].first_index if self.waiting else self.next_index

    # -- appending -----------------------------------------------------------------------------------------------------

    def rollover(self) -> None:
        self.ledger, self.next = self.ledger + 1, 0

    def append_run(self, run: Run, done: Callable[[int, int, Run], None], failed: Any) -> None:
        if self.refusal is not None:
            failed(self.refusal)
            return
        if self.fail_with is not None:
            error = self.fail_with
            asyncio.get_running_loop().call_soon(failed, error)
            return
        run.time_ms = run.time_ms or 1
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
            self.wake()

    # -- reading -------------------------------------------------------------------------------------------------------

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        pieces = self.found(position, max_entries, max_bytes) if self.cache else []
        return self._readable(pieces) if pieces and not self._is_lost(pieces[0]) else []

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        self.reads += 1
        found = self.found(position, max_entries, max_bytes)
        for _ in range(self.read_turns):
            await asyncio.sleep(0)
        if self.lost is not None and found and self._is_lost(found[0]):
            raise self.lost
        return self._readable(found)

    def _is_lost(self, piece: Piece) -> bool:
        lost = self.lost
        return lost is not None and piece[0] == lost.ledger and lost.first <= piece[1] <= lost.last

    def _readable(self, pieces: list[Piece]) -> list[Piece]:
        """Those before what is lost, where the first of them is."""
        if self.lost is None:
            return pieces
        out: list[Piece] = []
        for ledger, first, run in pieces:
            stop = run.count
            if ledger == self.lost.ledger and first <= self.lost.last:
                stop = min(stop, self.lost.first - first)
            if stop > 0:
                out.append((ledger, first, run.cut(0, stop)))
            if stop < run.count:
                break
        return out

    async def ledger_info(self, ledger: int) -> LedgerInfo:
        return next(info for info in self._infos() if info.ledger == ledger)

    # -- ledgers -------------------------------------------------------------------------------------------------------

    def ledgers(self) -> list[LedgerInfo]:
        if self.unread:
            raise MetadataUnavailable("some are only being read")
        return self._infos()

    def ledgers_from(self, ledger: int) -> list[LedgerInfo]:
        """Those that a cursor is before are known."""
        return self._infos()

    def _infos(self) -> list[LedgerInfo]:
        infos: dict[int, LedgerInfo] = {}
        for ledger, _, run in self.runs:
            info = infos.get(ledger) or LedgerInfo(ledger, first_index=run.first_index)
            infos[ledger] = replace(
                info,
                entries=info.entries + run.count,
                size_bytes=info.size_bytes + run.size_bytes,
                closed_ms=run.time_ms if ledger < self.ledger else 0,
            )
        return list(infos.values())

    async def whole(self) -> None:
        self.unread = False

    @property
    def entries(self) -> int:
        return sum(run.count for _, _, run in self.runs)

    @property
    def first_index(self) -> int | None:
        return self.runs[0][2].first_index if self.runs else None

    # -- settings ------------------------------------------------------------------------------------------------------

    def set_retention(self, minutes: int, mb: int) -> None:
        self.retention = Retention(minutes, mb)

    def set_quorums(self, ensemble: int, write_quorum: int, ack_quorum: int) -> None:
        if not 1 <= ack_quorum <= write_quorum <= ensemble:
            raise NotAllowed(f"{self.topic}: {ensemble}, {write_quorum}, {ack_quorum}")
        self.quorums = (ensemble, write_quorum, ack_quorum)

    def follow_sealing(self) -> None: ...

    def set_mark_delete_rate(self, per_s: float) -> None:
        self.mark_delete_rate = per_s

    def checkpoint(self) -> None:
        self.checkpoints += 1

    def set_affinity(self, primary: Collection[str], secondary: Collection[str]) -> None:
        self.affinity = Affinity(tuple(primary), tuple(secondary)) if primary else ANYWHERE

    # -- keeping -------------------------------------------------------------------------------------------------------

    async def oldest_unacked_ms(self, name: str) -> int:
        return await cursor_expiry.oldest_unacked_ms(self, name)

    async def expire_before(self, time_ms: int, names: Sequence[str]) -> dict[str, int]:
        return await cursor_expiry.expire_before(self, time_ms, names)

    async def drop_to(self, size_bytes: int, names: Sequence[str]) -> dict[str, int]:
        return await cursor_expiry.drop_to(self, size_bytes, names)

    async def truncate(self) -> dict[str, int]:
        return await cursor_expiry.move(self, self.last_confirmed, self.cursors)

    # -- ending --------------------------------------------------------------------------------------------------------

    async def terminate(self) -> Position:
        self.check_open()
        if self.terminated_at is None:
            self.release()
            self.terminated_at = self.last_confirmed
            self.refusal = NotAllowed(f"{self.topic} is terminated")
        return self.last_confirmed

    async def close(self) -> None:
        """Waits for what is on its way; what is held for CLOSE_TURNS of the loop fails."""
        if self.failed is None:
            self.refusal = closed(self.topic)
            for _ in range(CLOSE_TURNS):
                if not self.waiting:
                    break
                await asyncio.sleep(0)
            self.failed = self.refusal
            waiting, self.waiting = self.waiting, []
            for *_, failed in waiting:
                failed(self.failed)

    def load(self, state: LogState | None = None) -> FakeLedger:
        """As its next owner finds it. `state` is restored to what a new topic has, and hears of all that is there."""
        if state is not None:
            if not self.snapshot:
                state.restore(b"")
                self.snapshot = state.snapshot()
            else:
                state.restore(self.snapshot)
            for ledger, first, run in self.runs:
                state.replay(ledger, first, run)
        if self.failed is not None:
            self.failed, self.next_index, self.wakers = None, self.confirmed_index, []
            self.refusal = None if self.terminated_at is None else NotAllowed(f"{self.topic} is terminated")
            self.rollover()
            for name in [name for name, cursor in self.named.items() if not cursor.durable]:
                del self.named[name]
        return self


class FakeFactory:
    """The factory of managed ledgers, with each topic's in memory. `open_error`: what the next openings raise."""

    def __init__(self) -> None:
        self.listings = 0
        """So often a namespace was listed."""
        self.ledgers: dict[str, FakeLedger] = {}
        self.owners: dict[str, int] = {}
        """Of the last opening of each, by whichever broker."""
        self.beside: list[int] = []
        """Ledgers that went with topics, though those did not name them."""
        self.opened = 0
        self.losses, self.cold = KnownLosses(), None
        self.open_error: HeliographError | None = None

    def made(self, topic: str) -> FakeLedger:
        return FakeLedger(topic)

    async def open(self, topic: str, state: LogState, persistence: tuple[int, int, int], *, create: bool) -> FakeLedger:
        await asyncio.sleep(0)
        self.opened += 1
        if self.open_error is not None:
            raise self.open_error
        if topic not in self.ledgers:
            if not create:
                raise NotFound(f"topic {topic} does not exist")
            self.ledgers[topic] = self.made(topic)
        self.ledgers[topic].owner = self.owners[topic] = self.opened
        return self.ledgers[topic].load(state)

    async def delete(
        self,
        topic: str,
        claimed: Callable[[], Awaitable[Sequence[int]]] | None = None,
        *,
        owner: int | None = None,
    ) -> None:
        """Raises NotFound where it does not exist; LedgerFenced where another opening has it."""
        if topic not in self.ledgers:
            raise NotFound(f"topic {topic} does not exist")
        if owner not in (None, self.owners[topic]):
            raise LedgerFenced(f"{topic} was opened again")
        self.beside += await claimed() if claimed is not None else ()
        del self.ledgers[topic]

    async def exists(self, topic: str) -> bool:
        return topic in self.ledgers

    async def created_ms(self, topic: str) -> int:
        return self.ledgers[topic].created_ms if topic in self.ledgers else 0

    async def names(self, namespace: str) -> list[str]:
        self.listings += 1
        return sorted(t for t in self.ledgers if t.startswith(f"persistent://{namespace}/"))

    async def names_between(self, namespace: str, low: int, high: int) -> AsyncIterator[list[str]]:
        for name in sorted(await self.names(namespace), key=topic_hash):
            if low <= topic_hash(name) < high:
                yield [name]

    async def count(self, namespace: str) -> int:
        return len(await self.names(namespace))


class FakeView:
    """The configuration's view, of tables that a test fills; only `set` tells those who follow it."""

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
        self.restored = b""

    def namespace(self, namespace: str) -> NamespacePolicies | None:
        return self.known.get(namespace)

    def tenant(self, name: str) -> TenantInfo | None:
        return self.tenants.get(name)

    def partitions(self, topic: str) -> int:
        return self.counts.get(topic, 0)

    def partitioned(self, namespace: str) -> list[str]:
        return sorted(topic for topic in self.counts if topic.partition("://")[2].startswith(f"{namespace}/"))

    def partitions_in(self, namespace: str) -> int:
        return sum(self.counts[topic] for topic in self.partitioned(namespace))

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

        def stop() -> None:
            if callback in self.callbacks:
                self.callbacks.remove(callback)

        return stop

    def set(self, namespace: str, policies: NamespacePolicies) -> None:
        self.known[namespace] = policies
        for callback in list(self.callbacks):
            callback(f"/namespaces/{namespace}")


class FakeRegion:
    """Implements `region_node.runtime.topic_ports.OwnRegion`. lost: the configuration has it no more."""

    def __init__(self, info: RegionInfo) -> None:
        self.name, self._info, self.lost = info.name, info, False

    def info(self) -> RegionInfo:
        if self.lost:
            raise MetadataUnavailable(f"region {self.name} is not in the global configuration yet")
        return self._info


class NotedLinks:
    """Who was attached to links, and what they were told. There are no links."""

    yielding = None

    def __init__(self) -> None:
        self.attached: dict[str, list[str]] = {}
        self.obeyed: dict[str, Mapping[str, Any]] = {}

    def attach(self, log: ReplicatedLog, targets: Sequence[str]) -> None:
        self.attached[log.ledger.topic] = list(targets)

    def schemas_changed(self, topic: str) -> None:
        pass

    def obey(self, log: ReplicatedLog, values: Mapping[str, Any]) -> None:
        self.obeyed[log.ledger.topic] = values

    async def detach(self, log: ReplicatedLog) -> None:
        self.attached.pop(log.ledger.topic, None)

    def stats(self, topic: str | None = None) -> list[Any]:
        return []
