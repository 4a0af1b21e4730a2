"""SingleActive: the dispatcher of exclusive and failover subscriptions: one consumer gets everything, in order.

Is: the choice of the active consumer, rewinding, and who of them hears that it is the active one: nobody, while it is
another region's lead. Isn't: a record of what is unacknowledged; the cursor has that.
Invariants: only the active consumer is given entries; a new active one starts behind the mark-delete position.
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph.model.positions import Position
from region_node.runtime.cursor_ports import CursorPort, LedgerPort, Piece, entries_for
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.dispatcher import Dispatcher


class SingleActive(Dispatcher):
    """`partition`: index of the partition, which spreads the active consumers of a partitioned topic; -1 for none."""

    def __init__(
        self,
        kind: SubscriptionType,
        ledger: LedgerPort,
        cursor: CursorPort,
        ready: ReadyQueue,
        reads: BoundedReads,
        *,
        partition: int,
        on_end: Callable[[], bool],
    ) -> None:
        super().__init__(ledger, cursor, ready, reads, on_end=on_end)
        self._whole = ledger
        self.kind = kind
        self.active: Consumer | None = None
        self._partition = partition
        self._told_leads = True
        """Whether consumers were last told as one of them being active: not while another region leads."""

    def read_through(self, ledger: LedgerPort) -> None:
        self._whole = ledger
        if self.active is None or self.active.compacted is None:
            self.ledger = ledger

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self._end_told = False
        self.consumers.sort(key=lambda c: (c.priority, c.name))
        self._elect(consumer)

    def remove(self, *consumers: Consumer) -> None:
        gone = set(consumers)
        self.consumers = [consumer for consumer in self.consumers if consumer not in gone]
        self._elect(None)

    def _elect(self, joined: Consumer | None) -> None:
        chosen: Consumer | None = None
        if self.consumers:
            best = [c for c in self.consumers if c.priority == self.consumers[0].priority]
            chosen = best[self._partition % len(best)] if self._partition >= 0 else best[0]
        if chosen is self.active:
            if joined is not None and chosen is not None:
                joined.sink.consumer_active(joined, joined is chosen and self._leads())
            return
        self.active = chosen
        self.ledger = self._whole if chosen is None or chosen.compacted is None else chosen.compacted
        self.rewind()
        self._tell(self._leads())
        self.wake()

    def _leads(self) -> bool:
        return self.leadership is None or self.leadership.open

    def _tell(self, leads: bool) -> None:
        self._told_leads = leads
        for consumer in self.consumers:
            consumer.sink.consumer_active(consumer, leads and consumer is self.active)

    def tell_leadership(self) -> None:
        """The leadership may have come, or gone to another region."""
        if (leads := self._leads()) != self._told_leads:
            self._tell(leads)

    def redeliver(self, consumer: Consumer, positions: list[Position] | None) -> None:
        if consumer is self.active:
            self.rewind()
            self.wake()

    def _found_nothing(self) -> None:
        compacted = self.active.compacted if self.active is not None else None
        if compacted is not None and (beyond := compacted.beyond(self.position)) > self.position:
            self.position = beyond
            self.wake()

    def _limit(self) -> int:
        active = self.active
        return min(active.permits, self._let()) if active is not None and _takes(active) else 0

    def _give(self, piece: Piece) -> int:
        active = self.active
        assert active is not None
        ledger, first, run = piece
        count = entries_for(run, min(active.permits, self._let())) if _takes(active) else 0
        if count > 0:
            part = run.cut(0, count)
            self._spend(active.send(ledger, first, part, ack_sets=self._ack_sets(ledger, first, part)), part)
        return max(count, 0)


def _takes(active: Consumer) -> bool:
    return active.sink.writable and not active.busy
