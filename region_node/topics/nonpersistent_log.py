"""MemoryLog: a topic without storage. Non-persistent topics have one in place of a replicated log.

Is: the run that is published just now, handed to whoever has room for it in this very pass. Isn't: kept, acknowledged,
or replicated:
what nobody takes is dropped, and counted by its subscription; what other regions of its namespace do not get is counted
by region.
Invariants: entry ids only grow while the topic is loaded; nothing of a run is held once `publish` has returned.
Receipts say (0, 0), as Pulsar's do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from heliograph.model.empty_dict import NOTHING
from heliograph.model.errors import HeliographError, TopicClosed
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.task_set import report_error
from heliograph.wire.run import Run
from region_node.runtime.cursor_ports import Piece
from region_node.runtime.topic_ports import Counted, LeadershipGatePort, Segments


class MemoryCursor:
    """Everything that was published counts as acknowledged."""

    fits = True

    def __init__(self, ledger: MemoryLedger, name: str, properties: dict[str, str]) -> None:
        self._ledger, self.name, self.properties = ledger, name, properties
        self.partly_acked: dict[Position, int] = {}
        self.backlog_entries = self.backlog_bytes = 0
        self.reading: Callable[[], Position] | None = None
        self.on_moved: Callable[[], None] | None = None

    @property
    def mark_delete(self) -> Position:
        return self._ledger.last_confirmed

    def ack(self, positions: Sequence[Position]) -> None: ...

    def ack_ranges(self, ranges: Sequence[tuple[int, int, int]]) -> None: ...

    def ack_cumulative(self, position: Position) -> None: ...

    def ack_batch(self, position: Position, given: int) -> int:
        return given

    def is_acked(self, position: Position) -> bool:
        return True

    def unacked_runs(self, runs: list[Piece]) -> list[Piece]:
        return runs

    def reset(self, mark_delete: Position) -> None: ...

    def begin_earlier(self, mark_delete: Position, start: Position, never: Sequence[tuple[int, int, int]]) -> None: ...

    def set_properties(self, properties: dict[str, str]) -> None:
        self.properties = properties

    def read_at(self, now: float) -> None: ...

    async def flushed(self) -> None: ...


class MemoryLedger:
    """`last_confirmed`: (0, entries published - 1)."""

    def __init__(self) -> None:
        self.cursors: dict[str, MemoryCursor] = {}
        self.owner = 0
        self.last_confirmed: Position = (0, -1)
        self.open_bytes = self.size_bytes = self.entries = self.next_index = self.confirmed_index = self.created_ms = (
            self.published_ms
        ) = 0
        self._now: Piece | None = None
        self._wakers: list[Callable[[], None]] = []

    def offer(self, run: Run) -> None:
        """To all who listen; when this returns, the run is gone."""
        first = self.last_confirmed[1] + 1
        self.last_confirmed = (0, first + run.count - 1)
        self._now = (0, first, run)
        for waker in list(self._wakers):
            try:
                waker()
            except Exception as error:  # the others get it, and nobody is offered it again
                report_error(error, "who waits for a topic's messages failed")
        self._now = None

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        if self._now is None or max_entries < 1:
            return []
        _, first, run = self._now
        start = max(position[1], first) - first
        stop = min(run.count, start + max_entries)
        return [(0, first + start, run.cut(start, stop))] if start < stop else []

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        return []

    def ledgers(self) -> list[LedgerInfo]:
        return []

    def ledgers_from(self, ledger: int) -> list[LedgerInfo]:
        return []

    async def whole(self) -> None: ...

    def position_before(self, position: Position) -> Position:
        return BEFORE_ALL

    def first_position(self) -> Position:
        return 0, self.last_confirmed[1] + 1

    async def first_from(self, position: Position) -> Position | None:
        return None

    def bytes_between(self, after: Position, upto: Position) -> int:
        return 0

    def wake_on_append(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._wakers.append(callback)
        return lambda: self._wakers.remove(callback)

    async def open_cursor(
        self, name: str, initial: Position, *, durable: bool = True, properties: dict[str, str] | None = None
    ) -> MemoryCursor:
        return self.cursors.setdefault(name, MemoryCursor(self, name, properties or {}))

    async def delete_cursor(self, name: str) -> None:
        self.cursors.pop(name, None)

    def set_retention(self, minutes: int, mb: int) -> None: ...

    def set_quorums(self, ensemble: int, write_quorum: int, ack_quorum: int) -> None: ...

    def set_mark_delete_rate(self, per_s: float) -> None: ...

    def checkpoint(self) -> None: ...

    def set_affinity(self, primary: Collection[str], secondary: Collection[str]) -> None: ...

    def follow_sealing(self) -> None: ...

    async def oldest_unacked_ms(self, name: str) -> int:
        return 0

    async def expire_before(self, time_ms: int, names: Sequence[str]) -> dict[str, int]:
        return {}

    async def drop_to(self, size_bytes: int, names: Sequence[str]) -> dict[str, int]:
        return {}

    async def truncate(self) -> dict[str, int]:
        return {}

    async def terminate(self) -> Position:
        return self.last_confirmed


class MemoryLog:
    """of_broker: messages that no other region got, by region, of all such topics of a broker, also those that were
    unloaded.
    """

    linked, syncing, transactional = False, None, None
    incoming: Mapping[str, Counted] = NOTHING
    """Nothing of it goes to, or comes from, elsewhere."""

    def __init__(self, of_broker: Counter[str] | None = None) -> None:
        self.ledger = MemoryLedger()
        self.unsent: Counter[str] = Counter()
        """By each other region of the namespace: messages of this topic that it did not get."""
        self._of_broker: Counter[str] = Counter() if of_broker is None else of_broker
        self._elsewhere: tuple[str, ...] = ()
        self.deduplication = False
        self._closed = False

    def publish(self, run: Run, done: Callable[[Segments], None], failed: Callable[[HeliographError], None]) -> None:
        if self._closed:
            failed(TopicClosed("the topic is being unloaded"))
            return
        for region in self._elsewhere:
            self.unsent[region] += run.messages
            self._of_broker[region] += run.messages
        self.ledger.offer(run)
        done([(1, 0, 0)] * run.count)

    def not_sent_to(self, regions: Collection[str]) -> None:
        """The other regions that a persistent topic in its place would go to. From now on; what was counted before
        stays.
        """
        self._elsewhere = tuple(regions)
        for region in self._elsewhere:
            self.unsent[region] += 0

    def last_sequence(self, producer: str) -> int:
        return -1

    def stand_behind(self, gate: LeadershipGatePort | None) -> None:
        """Nothing is stored, and so nothing is a duplicate of it."""

    async def close(self) -> None:
        self._closed = True
