"""Consumer: one consumer of a subscription, and the port through which it gets its messages.

Is: permits, what it holds unacknowledged, counters. Isn't: a connection, or the choice of what it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from heliograph.model.positions import Position
from heliograph.wire.run import Run
from region_node.runtime.cursor_ports import CompactedPort
from region_node.runtime.rate_meter import Meter

Traced = Callable[[int, int, Run], None]
"""Hears of what a consumer was given: (ledger, first entry, run)."""


class SubscriptionType(IntEnum):
    """The types with Pulsar's numbers on the wire (CommandSubscribe.SubType)."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def label(self) -> str:
        return ("Exclusive", "Shared", "Failover", "Key_Shared")[self]


class ConsumerSink(Protocol):
    """The connection behind a consumer, as subscriptions see it. No call blocks or raises."""

    @property
    def writable(self) -> bool:
        """False above the high-water mark of what waits to be written; the consumer's `wake` is called when it is True
        again.
        """
        ...

    def deliver(
        self,
        consumer: Consumer,
        ledger: int,
        first: int,
        run: Run,
        redeliveries: Sequence[int] | None,
        ack_sets: Mapping[int, int] | None = None,
    ) -> None:
        """Sends all entries of `run`, which lies at (ledger, first). `ack_sets`: index in the run -> bits of a batch's
        unacknowledged messages.
        """
        ...

    def consumer_closed(self, consumer: Consumer) -> None:
        """The consumer was closed from this side: the client subscribes again."""
        ...

    def consumer_active(self, consumer: Consumer, active: bool) -> None: ...

    def reached_end(self, consumer: Consumer) -> None: ...


class Consumer:
    """`pending`: positions that it holds unacknowledged, with their message counts (shared subscriptions only).

    Key_Shared only: `hash_ranges`, (first, last) each, of a sticky consumer, None of others; `out_of_order`: keys need
    no order.
    Exclusive and failover only: `compacted`: what it reads of the topic in place of its log.
    """

    __slots__ = (
        "address",
        "blocked",
        "busy",
        "bytes_out",
        "client_version",
        "compacted",
        "connected_ms",
        "entries_out",
        "epoch",
        "flow_ms",
        "hash_ranges",
        "id",
        "last_acked_ms",
        "last_consumed_ms",
        "messages_acked",
        "messages_out",
        "messages_redelivered",
        "metadata",
        "meter",
        "name",
        "out_of_order",
        "pending",
        "permits",
        "priority",
        "sink",
        "traced",
        "unacked",
    )

    def __init__(
        self,
        consumer_id: int,
        name: str,
        sink: ConsumerSink,
        *,
        priority: int = 0,
        epoch: int = 0,
        metadata: Mapping[str, str] | None = None,
        address: str = "",
        client_version: str = "",
        connected_ms: int = 0,
        hash_ranges: Sequence[tuple[int, int]] | None = None,
        out_of_order: bool = False,
        compacted: CompactedPort | None = None,
    ) -> None:
        self.compacted = compacted
        self.hash_ranges, self.out_of_order = hash_ranges, out_of_order
        self.id, self.name, self.sink, self.priority, self.epoch = consumer_id, name, sink, priority, epoch
        self.metadata, self.address, self.client_version, self.connected_ms = (
            dict(metadata or {}),
            address,
            client_version,
            connected_ms,
        )
        self.traced: Traced | None = None
        """Called with what went out; None: nothing is traced."""
        self.permits = self.unacked = 0
        self.pending: dict[Position, int] = {}
        self.blocked = False
        self.busy = False
        """Its sink makes ready what it was given, which takes time: it is given nothing else meanwhile."""
        self.meter = Meter(4)
        self.entries_out = self.messages_out = self.bytes_out = self.messages_acked = self.messages_redelivered = 0
        self.last_acked_ms = self.last_consumed_ms = self.flow_ms = 0

    def send(
        self,
        ledger: int,
        first: int,
        run: Run,
        redeliveries: Sequence[int] | None = None,
        ack_sets: Mapping[int, int] | None = None,
    ) -> int:
        """Delivers `run`, spends permits, and returns the messages in it that are not acknowledged."""
        messages = run.messages
        if ack_sets is not None:
            messages -= sum((run.counts[i] if run.counts else 1) - left.bit_count() for i, left in ack_sets.items())
        self.permits -= messages
        self.messages_out += messages
        self.entries_out += run.count
        self.bytes_out += run.size_bytes
        if ack_sets is None:
            self.sink.deliver(self, ledger, first, run, redeliveries)
        else:
            self.sink.deliver(self, ledger, first, run, redeliveries, ack_sets)
        if self.traced is not None:
            self.traced(ledger, first, run)
        return messages
