"""What consumers are given, as frames of their connection: entries of Kafka's clients in Pulsar's form, large ones made
off the event loop.

Is: one connection's deliveries, and those that wait for the thread. Isn't: the conversion
(`heliograph.wire.kafka.entry_conversion`), who gets what (dispatchers), or the choice of who is converted for next
(`heliograph.runtime.compute_thread`).
Why: a batch of some KiB may unpack to 64 MiB, which takes seconds: others, and leases, would wait so long.
Cost: for entries of Pulsar's clients none; of Kafka's, small ones are converted at once, without a wait.
Bounds: on the event loop ROOM a run, which is some 20 ms; one run a consumer waits, and one more of it for its turn.
Invariants: a consumer gets its entries in the order in which they were given to it: while one is being made, it is busy
and is given nothing. For everybody else what waits has been sent already, on a slow connection: its permits are spent,
it is held unacknowledged, and it has the consumer's epoch of that time. With the consumer it goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.runtime.compute_thread import Overloaded
from heliograph.runtime.task_set import report_error
from heliograph.wire.kafka.entry_conversion import for_pulsar
from heliograph.wire.kafka.record_batches import ReadRoom
from heliograph.wire.pulsar.server_frames import messages, with_broker_metadata
from heliograph.wire.run import FLAG_KAFKA, Run
from region_node.faces.pulsar.session.origin_property import POLICY, with_origin
from region_node.faces.pulsar.session.pulsar_broker import ClientPort, PulsarBroker
from region_node.subscriptions.consumer import Consumer
from region_node.subscriptions.subscription import Subscription
from region_node.topics.topic import Topic

log = logging.getLogger("region_node.pulsar")

ROOM = 512 << 10, 2048
"""Bytes, unpacked, and records with their headers."""


class HandlePort(Protocol):
    """`region_node.faces.pulsar.session.consuming.ConsumerHandle`: a consumer of the connection."""

    topic: Topic | None
    subscription: Subscription | None
    consumer: Consumer | None
    partition: int
    closed: bool


class Delivery(NamedTuple):
    """A run that a consumer was given; it lies at (ledger, first). ack_sets: index in the run -> bits of the messages
    that are not acknowledged.
    """

    consumer: Consumer
    ledger: int
    first: int
    run: Run
    redeliveries: Sequence[int] | None
    ack_sets: Mapping[int, int] | None
    epoch: int

    def cut(self, start: int, stop: int) -> Delivery:
        sets, counts = self.ack_sets, self.redeliveries
        return self._replace(
            first=self.first + start,
            run=self.run.cut(start, stop),
            redeliveries=None if counts is None else counts[start:stop],
            ack_sets=None if sets is None else {i - start: sets[i] for i in sets if start <= i < stop},
        )

    @property
    def unacked(self) -> int:
        """The permits that it has taken."""
        counts, sets = self.run.counts, self.ack_sets or {}
        return self.run.messages - sum((counts[i] if counts else 1) - left.bit_count() for i, left in sets.items())


class Deliveries:
    """`again_s`: after so long it is tried again where too many wait for the thread."""

    __slots__ = ("_again_s", "_broker", "_port", "_waiting")

    def __init__(self, port: ClientPort, broker: PulsarBroker, again_s: float) -> None:
        self._port, self._broker, self._again_s = port, broker, again_s
        self._waiting: dict[HandlePort, tuple[Delivery, asyncio.Task[None]]] = {}
        """Consumer -> what of its entries is still to be sent, and who makes it ready."""

    def send(self, handle: HandlePort, given: Delivery) -> None:
        """Sends it, as far as it can be made ready at once."""
        run = given.run
        if run.flags is None or FLAG_KAFKA not in run.flags:
            self._show(handle, given)
            return
        sent = self._converted(handle, given, *for_pulsar(run, ReadRoom(*ROOM)))
        if sent < run.count:
            given.consumer.busy = True
            rest = given.cut(sent, run.count)
            task = self._broker.tasks.spawn(self._make_ready(handle, rest))
            self._waiting[handle] = rest, task

    def forget(self, handle: HandlePort) -> int:
        """What waits for this consumer is not sent any more; returns the permits that it had taken."""
        waiting = self._waiting.pop(handle, None)
        if waiting is None:
            return 0
        rest, task = waiting
        task.cancel()
        rest.consumer.busy = False
        return rest.unacked

    async def _make_ready(self, handle: HandlePort, rest: Delivery) -> None:
        assert handle.topic is not None and handle.subscription is not None
        tenant = handle.topic.name.tenant
        while rest.run.count:
            try:
                work = partial(for_pulsar, rest.run, ReadRoom(*ROOM), whole_first=True)
                sent = self._converted(handle, rest, *await self._broker.converting.run(work, who=tenant))
            except Overloaded:
                await asyncio.sleep(self._again_s)
                continue
            except Exception as error:  # it stays unacknowledged, and the consumer gets what lies behind it
                report_error(error, "entries of Kafka's clients could not be made ready")
                handle.subscription.flow(rest.consumer, rest.unacked)
                break
            if sent == rest.run.count:
                break
            rest = rest.cut(sent, rest.run.count)
            self._waiting[handle] = rest, self._waiting[handle][1]
        del self._waiting[handle]
        rest.consumer.busy = False
        handle.subscription.wake()

    def _converted(
        self, handle: HandlePort, given: Delivery, made: Run | None, unreadable: dict[int, CorruptData]
    ) -> int:
        """Sends the first entries of what was given, in Pulsar's form; returns how many these are."""
        if made is None:
            return 0
        if handle.topic is not None:
            handle.topic.converted_out += made.messages
        whole = given if made.count == given.run.count else given.cut(0, made.count)
        shown = whole._replace(run=made)
        if unreadable:
            self._pass_over(handle, given.ledger, given.first, made, unreadable, whole.ack_sets)
            for start, stop in _between(unreadable, made.count):
                self._show(handle, shown.cut(start, stop))
        else:
            self._show(handle, shown)
        return made.count

    def _pass_over(
        self,
        handle: HandlePort,
        ledger: int,
        first: int,
        run: Run,
        unreadable: Mapping[int, CorruptData],
        ack_sets: Mapping[int, int] | None,
    ) -> None:
        """Entries of a run, given to a consumer, that no client of Pulsar's can read: they count as acknowledged.
        Whoever waited for them would wait for ever, with all that lies behind them.
        """
        assert handle.topic is not None and handle.subscription is not None
        positions = [(ledger, first + index) for index in unreadable]
        handle.topic.unreadable_out += len(positions)
        extra = {
            "topic": handle.topic.text,
            "subscription": handle.subscription.name,
            "position": positions[0],
            "entries": len(positions),
            "error": str(next(iter(unreadable.values()))),
        }
        log.warning("dispatch.unreadable_skipped", extra=extra)
        messages = sum(
            ack_sets[i].bit_count() if ack_sets and i in ack_sets else run.counts[i] if run.counts else 1
            for i in unreadable
        )
        asyncio.get_running_loop().call_soon(self._passed_over, handle, positions, messages)

    def _passed_over(self, handle: HandlePort, positions: list[Position], messages: int) -> None:
        """Once whoever gave them has noted it: as if the client had acknowledged them, and asked for others."""
        if not handle.closed and handle.consumer is not None and handle.subscription is not None:
            handle.subscription.ack(handle.consumer, positions)
            handle.subscription.flow(handle.consumer, messages)

    def _show(self, handle: HandlePort, given: Delivery) -> None:
        topic, consumer, run = handle.topic, given.consumer, given.run
        if (
            topic is not None
            and topic.policies.values.get(POLICY)
            and not topic.volatile
            and consumer.compacted is None
        ):
            run = with_origin(run, given.ledger, given.first, topic.origin_at)
        if self._port.broker_metadata:
            run = with_broker_metadata(run)
        for buffer in messages(
            consumer.id,
            given.ledger,
            given.first,
            run,
            partition=handle.partition,
            epoch=given.epoch,
            redeliveries=given.redeliveries,
            ack_sets=given.ack_sets,
        ):
            self._port.write(buffer)


def _between(left_out: Iterable[int], count: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of what lies between the indexes that are left out, ascending, of `count`."""
    start = 0
    for index in [*left_out, count]:
        if index > start:
            yield start, index
        start = index + 1
