"""Topic: one loaded topic of this broker: its log, its producers, its subscriptions.

Is: publishing, making and finding subscriptions, positions by time, statistics. Isn't: loading and unloading (`service`), storage, or frames.
Invariants: after `close` nothing is accepted; a subscription that is durable has a cursor of its name, and the other way round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from heliograph.model.errors import ConsumerBusy, CorruptData, HeliographError, NotAllowed, SubscriptionNotFound, TopicClosed, TopicTerminated
from heliograph.model.names import TopicName
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.raft.store import MetadataStore
from heliograph.runtime.clock import Clock
from heliograph.wire.entry_metadata import entry_metadata, last_batch_index
from heliograph.wire.run import Buffer, Run
from region_node.subscriptions.delayed import DelayWheel
from region_node.subscriptions.meter import Meter, iso_time
from region_node.subscriptions.ready import BoundedReads, ReadyQueue, Tasks
from region_node.subscriptions.subscription import Subscription
from region_node.topics.epochs import TopicEpoch
from region_node.topics.port import LogPort, Segments
from region_node.topics.producers import Producer, ProducerRegistry

log = logging.getLogger("region_node.topics")

INTERNAL_CURSORS = "pulsar."
"""Cursors of this prefix are no subscriptions (links, deduplication)."""
_LOOK_BACK = 64
_READER_IDLE_S = 60.0


class Topic:
    """`terminated`: nothing is appended any more."""

    def __init__(
        self,
        name: TopicName,
        log: LogPort,
        *,
        ready: ReadyQueue,
        reads: BoundedReads,
        tasks: Tasks,
        clock: Clock,
        wheel: DelayWheel | None = None,
        meta: MetadataStore | None = None,
    ) -> None:
        self._wheel = wheel
        self.name, self.text, self.log, self.ledger = name, str(name), log, log.ledger
        self.producers = ProducerRegistry()
        self.epoch = TopicEpoch(meta, name, self.producers) if meta is not None and name.persistent else None
        self.subscriptions: dict[str, Subscription] = {}
        self.volatile = not name.persistent
        self.idle_since: float | None = None
        """Of a non-persistent one: when the tick first found nobody connected."""
        self.terminated = getattr(self.ledger, "terminated_at", None) is not None
        self.closed = False
        self.created_ms = clock.wall_ms()
        self.last_publish_ms = 0
        self.messages_in = self.bytes_in = self.entries_in = 0
        self.on_fatal: Callable[[Topic, HeliographError], None] | None = None
        self.meter = Meter(2)
        self._ready, self._reads, self._tasks, self._clock = ready, reads, tasks, clock
        self._offered = 0
        self._stop_wake = self.ledger.wake_on_append(self._appended)
        for cursor in list(self.ledger.cursors.values()):
            if not cursor.name.startswith(INTERNAL_CURSORS):
                self.subscriptions[cursor.name] = self._subscription(cursor.name, cursor, durable=True)

    # -- publishing

    def publish(self, run: Run, done: Callable[[Segments], None], failed: Callable[[HeliographError], None]) -> None:
        """`done` or `failed` is called once, in the order of the calls."""
        if self.closed:
            failed(TopicClosed(f"{self.text} is being unloaded"))
            return
        if self.terminated:
            failed(TopicTerminated(f"{self.text} is terminated"))
            return
        self.entries_in += run.count
        self.messages_in += run.messages
        self.bytes_in += run.size_bytes
        self._offered = run.messages
        self.log.publish(run, done, failed)

    def fatal(self, error: HeliographError) -> None:
        """The log cannot go on here (fenced, closed): whoever loaded the topic unloads it."""
        if not self.closed and self.on_fatal is not None:
            self.on_fatal(self, error)

    def remove_producer(self, producer: Producer) -> None:
        chosen = self.producers.remove(producer)
        if chosen is not None:
            self._tasks.spawn(self._ready_when_saved(chosen))

    async def _ready_when_saved(self, chosen: Producer) -> None:
        """It waited for exclusive access, and hears that it has it once its epoch is durable."""
        try:
            if self.epoch is not None:
                await self.epoch.save()
        except HeliographError as error:
            log.warning("producer.epoch_not_saved", extra={"topic": self.text, "error": str(error)})
            chosen.sink.producer_closed(chosen)
            self.remove_producer(chosen)
            return
        if not self.closed:
            chosen.sink.producer_ready(chosen)

    def _appended(self) -> None:
        for subscription in list(self.subscriptions.values()):
            dispatcher = subscription.dispatcher
            if self.volatile:
                subscription.offer(self._offered)
            elif dispatcher is not None and not dispatcher.queued:
                dispatcher.run_ready()

    # -- subscriptions

    def _subscription(self, name: str, cursor: Any, *, durable: bool, properties: Mapping[str, str] | None = None) -> Subscription:
        return Subscription(
            name,
            self.ledger,
            cursor,
            self._ready,
            self._reads,
            durable=durable,
            partition=self.name.partition,
            on_end=lambda: self.terminated,
            properties=cursor.properties if properties is None else properties,
            wheel=None if self.volatile else self._wheel,
            volatile=self.volatile,
        )

    async def subscription(
        self, name: str, *, initial: Position, durable: bool = True, create: bool = True, properties: dict[str, str] | None = None
    ) -> Subscription:
        """The subscription of that name, made where it is not there. `initial`: its mark-delete position then.

        Raises NotFound (not there and not `create`), NotAllowed (a name that is not available).
        """
        if not name or name.startswith(INTERNAL_CURSORS) or "/" in name:
            raise NotAllowed(f"subscription name {name!r} is not available")
        found = self.subscriptions.get(name)
        if found is not None and not found.closed:
            if found.durable != durable:
                raise NotAllowed(f"subscription {name!r} is {'durable' if found.durable else 'a reader'} already")
            return found
        if not create:
            raise SubscriptionNotFound(f"subscription {name!r} of {self.text} does not exist")
        if initial == AFTER_ALL:
            initial = self.ledger.last_confirmed
        cursor = await self.ledger.open_cursor(name, initial, durable=durable, properties=properties)
        if self.closed:
            raise TopicClosed(f"{self.text} is being unloaded")
        found = self.subscriptions.get(name)
        if found is None or found.closed:  # two may have asked at once: the ledger gave both the same cursor
            found = self.subscriptions[name] = self._subscription(name, cursor, durable=durable, properties=properties)
        return found

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Raises SubscriptionNotFound; ConsumerBusy while consumers are connected, unless `force`."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"subscription {name!r} of {self.text} does not exist")
        if found.consumers and not force:
            raise ConsumerBusy(f"subscription {name!r} has {len(found.consumers)} consumer(s)")
        found.closed = True
        found.disconnect()
        del self.subscriptions[name]
        await self.ledger.delete_cursor(name)

    def drop_reader(self, subscription: Subscription) -> None:
        """A non-durable subscription without consumers is gone, at once; its cursor goes in the background."""
        if subscription.durable or subscription.consumers or subscription.closed:
            return
        subscription.closed = True
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        if not self.closed:
            self._tasks.spawn(self.ledger.delete_cursor(subscription.name))

    # -- positions

    async def last_message(self) -> tuple[Position, int]:
        """(position of the last entry that clients see, its last batch index or -1); entry -1: nothing is there."""
        if self.volatile:
            return (0, -1), -1
        position, span = self.ledger.last_confirmed, 1
        while position[1] >= 0:
            start = max(0, position[1] + 1 - span)
            found = await self._last_visible(position[0], start, position[1])
            if found is not None:
                return found
            span = min(8 * span, _LOOK_BACK)
            if start == 0:
                earlier = [info for info in self.ledger.ledgers() if info.ledger < position[0] and info.entries]
                position = (earlier[-1].ledger, earlier[-1].entries - 1) if earlier else (position[0], -1)
            else:
                position = (position[0], start - 1)
        return position, -1

    async def _last_visible(self, ledger: int, first: int, last: int) -> tuple[Position, int] | None:
        """(position, last batch index) of the last entry of [first, last] that clients see."""
        seen: tuple[int, Buffer] | None = None
        at = first
        while at <= last:  # a read may end early: at a change of the ensemble, or at its bound of bytes
            pieces = [p for p in await self.ledger.read((ledger, at), last + 1 - at, 1 << 22) if p[0] == ledger]
            if not pieces:
                break
            for _, start, run in pieces:
                visible = [i for i in range(run.count) if run.flags is None or not run.flags[i]]
                if visible:
                    seen = start + visible[-1], run.parts[visible[-1]]
            at = pieces[-1][1] + pieces[-1][2].count
        if seen is None:
            return None
        try:
            return (ledger, seen[0]), last_batch_index(seen[1])
        except CorruptData:
            return (ledger, seen[0]), -1

    async def before_time(self, publish_ms: int) -> Position:
        """The position before the first entry published at or after `publish_ms`, by halving: times that go back and forth may mislead it."""
        last = self.ledger.last_confirmed
        for info in self.ledger.ledgers():
            high = last[1] if info.ledger == last[0] else info.entries - 1
            if high < 0 or info.ledger > last[0] or await self._publish_ms((info.ledger, high)) < publish_ms:
                continue
            low = 0
            while low < high:
                middle = (low + high) // 2
                if await self._publish_ms((info.ledger, middle)) >= publish_ms:
                    high = middle
                else:
                    low = middle + 1
            return info.ledger, low - 1
        return last

    async def _publish_ms(self, position: Position) -> int:
        pieces = await self.ledger.read(position, 1, 1 << 20)
        if not pieces or pieces[0][:2] != position:
            return 0
        run = pieces[0][2]
        if run.flags is not None and run.flags[0]:
            return run.time_ms
        return entry_metadata(run.parts[0])[0].publish_time

    async def seek(self, subscription: Subscription, mark_delete: Position) -> None:
        """The consumers are closed, then the cursor moves."""
        if mark_delete == AFTER_ALL:
            mark_delete = self.ledger.last_confirmed
        subscription.reset(max(mark_delete, BEFORE_ALL))
        await subscription.cursor.flushed()

    async def skip_all(self, name: str) -> None:
        """Clears the backlog of a subscription. Raises NotFound."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"subscription {name!r} of {self.text} does not exist")
        await self.seek(found, self.ledger.last_confirmed)

    async def terminate(self) -> Position:
        """Nothing is appended any more; returns the last position."""
        self.terminated = True
        position = await self.ledger.terminate()
        self._appended()
        return position

    # -- closing and statistics

    def disconnect(self) -> None:
        """Tells all clients to look the topic up again."""
        self.closed = True
        self._stop_wake()
        for producer in [*self.producers.producers.values(), *self.producers.waiting]:
            self.producers.remove(producer)
            producer.sink.producer_closed(producer)
        for subscription in self.subscriptions.values():
            subscription.disconnect()
            subscription.closed = True

    def tick(self, now: float) -> None:
        """Rates, and another try where a read of backlog failed."""
        self.meter.tick(now, self.messages_in, self.bytes_in)
        for producer in self.producers.producers.values():
            producer.meter.tick(now, producer.messages_in, producer.bytes_in)
        for subscription in list(self.subscriptions.values()):
            subscription.tick(now)
            if subscription.durable or subscription.consumers:
                subscription.idle_since = None
            elif subscription.idle_since is None:
                subscription.idle_since = now
            elif now - subscription.idle_since > _READER_IDLE_S:  # closed from here (a seek, a move), and its client never came back
                self.drop_reader(subscription)

    def forgotten(self, now: float) -> bool:
        """A non-persistent topic that nobody has been connected to for a while."""
        if not self.volatile or self.producers.producers or self.producers.waiting or any(s.consumers for s in self.subscriptions.values()):
            self.idle_since = None
            return False
        if self.idle_since is None:
            self.idle_since = now
        return now - self.idle_since > _READER_IDLE_S

    def stats(self, links: list[Any]) -> dict[str, Any]:
        """Pulsar's TopicStats. `links`: what the link manager says of this topic."""
        end = self.ledger.last_confirmed
        subscriptions = {
            name: s.stats(s.cursor.backlog_entries, self.ledger.bytes_between(s.cursor.mark_delete, end)) for name, s in self.subscriptions.items()
        }
        rate_in, throughput_in = self.meter.rates
        return {
            "msgRateIn": rate_in,
            "msgThroughputIn": throughput_in,
            "msgRateOut": sum(s["msgRateOut"] for s in subscriptions.values()),
            "msgThroughputOut": sum(s["msgThroughputOut"] for s in subscriptions.values()),
            "msgInCounter": self.messages_in,
            "bytesInCounter": self.bytes_in,
            "msgOutCounter": sum(s["msgOutCounter"] for s in subscriptions.values()),
            "bytesOutCounter": sum(s["bytesOutCounter"] for s in subscriptions.values()),
            "averageMsgSize": throughput_in / rate_in if rate_in else 0.0,
            "storageSize": self.ledger.size_bytes,
            "backlogSize": max([0, *(s["backlogSize"] for s in subscriptions.values())]),
            "publishers": [producer_stats(p) for p in self.producers.producers.values()],
            "waitingPublishers": len(self.producers.waiting),
            "subscriptions": subscriptions,
            "replication": {link.target: link_stats(link) for link in links},
            "deduplicationStatus": "Enabled" if self.log.deduplication else "Disabled",
            "topicCreationTimeStamp": self.created_ms,
            "lastPublishTimestamp": self.last_publish_ms,
        }


def producer_stats(producer: Producer) -> dict[str, Any]:
    """Pulsar's PublisherStats."""
    rate, throughput = producer.meter.rates
    return {
        "accessMode": producer.mode.label,
        "producerId": producer.id,
        "producerName": producer.name,
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "averageMsgSize": throughput / rate if rate else 0.0,
        "chunkedMessageRate": 0.0,
        "supportsPartialProducer": False,
        "address": producer.address,
        "connectedSince": iso_time(producer.connected_ms),
        "clientVersion": producer.client_version,
        "metadata": producer.metadata,
    }


def link_stats(link: Any) -> dict[str, Any]:
    """Pulsar's ReplicatorStats, and what we know besides: state, cause, bytes."""
    return {
        "connected": link.connected,
        "msgRateIn": 0.0,
        "msgThroughputIn": 0.0,
        "msgRateOut": link.rate_out,
        "msgThroughputOut": 0.0,
        "msgRateExpired": 0.0,
        "replicationBacklog": link.backlog_entries,
        "replicationBacklogBytes": link.backlog_bytes,
        "replicationDelayInSeconds": link.age_s,
        "state": link.state,
        "cause": link.cause,
    }
