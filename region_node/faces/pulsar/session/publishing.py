"""Producers of one connection: from a run that was cut to the receipts for it.

Is: the order of answers to one producer, what waits for a producer that is still being made, what happens to a failed
append.
Isn't: who may produce (`region_node.topics.producers`), or deduplication.
Invariants: answers to one producer's SENDs go out in their order; after a failed append nothing later of that producer
is stored; what is refused of one message (its size, its delay, that it is plain) concerns that message alone, unless
the producer asked for order (`IN_ORDER`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from heliograph.model.errors import HeliographError, LedgerFenced, NotAllowed
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.frame_cutter import BadSend, SendRun
from heliograph.wire.pulsar.server_frames import receipts
from heliograph.wire.run import TxnId
from region_node.faces.pulsar.server_errors import MOVED, code_of
from region_node.faces.pulsar.session.client_identity import Identity
from region_node.faces.pulsar.session.pulsar_broker import ClientPort, PulsarBroker
from region_node.faces.pulsar.session.sent_on import SentOn
from region_node.runtime.topic_ports import Segments
from region_node.topics.limits.topic_limits import metadata_bytes
from region_node.topics.producers import Producer
from region_node.topics.topic import Topic

NO_REQUEST = (1 << 64) - 1
PARTS_MAX = 1000
"""Of one connection: transactions of topics that are remembered; what is forgotten is asked for again."""
HELD_BYTES_MAX = 1 << 20
"""Of one connection: SENDs of producers that are still being made. Clients send none before PRODUCER_SUCCESS."""
_HELD_RUN_BYTES = 1 << 10
"""What a run takes that is held, beside its entries."""
NO_TRANSACTIONS = "transactions are off here: set broker.transaction_coordinator_enabled and start the brokers again"


class ProducerHandle:
    """One producer id of a connection. `topic` is None while it is being made; `closed`: nothing more is taken from
    it.
    """

    __slots__ = (
        "_after",
        "answered",
        "closed",
        "held",
        "id",
        "in_order",
        "name",
        "producer",
        "ready",
        "request_id",
        "schema_version",
        "sent",
        "topic",
        "waits",
    )

    def __init__(self, producer_id: int, name: str, request_id: int, *, in_order: bool = False) -> None:
        """in_order: nothing is stored behind a message that is refused."""
        self.id, self.name, self.request_id, self.in_order = producer_id, name, request_id, in_order
        self.topic: Topic | None = None
        self.producer: Producer | None = None
        self.schema_version = b""
        self.ready = False
        self.waits = False
        """It is made, and another producer has the topic for itself."""
        self.closed = False
        self.held: list[SendRun] = []
        self.sent = self.answered = 0
        self._after: deque[tuple[int, Callable[[], None]]] = deque()

    def when_answered(self, action: Callable[[], None]) -> None:
        """Runs `action` once everything sent so far is answered."""
        if self.answered >= self.sent:
            action()
        else:
            self._after.append((self.sent, action))

    def answer(self, count: int) -> None:
        self.answered += count
        while self._after and self._after[0][0] <= self.answered:
            self._after.popleft()[1]()


def check_metadata(metadata: Mapping[str, str], others_bytes: int, bytes_max: int) -> None:
    """Raises NotAllowed where a connection's producers, or consumers, say more of themselves than `bytes_max`.
    others_bytes: what those say that are there.
    """
    if others_bytes + metadata_bytes(metadata) > bytes_max:
        raise NotAllowed(
            "what producers, or consumers, of this connection say of themselves takes more than "
            f"{bytes_max} bytes: say less, or use another connection"
        )


def name_next_owner(close: pb.CommandCloseProducer | pb.CommandCloseConsumer, topic: Topic | None) -> None:
    """Tells a client that is sent away where the topic goes, where that is known: it reconnects there without a
    look-up.
    """
    if topic is not None and topic.next_owner is not None:
        plain, tls = topic.next_owner
        if plain:
            close.assignedBrokerServiceUrl = plain
        if tls:
            close.assignedBrokerServiceUrlTls = tls


class PublishedRun:
    """One run on its way to the bookies."""

    __slots__ = ("event", "handles", "producers", "topic")

    def __init__(
        self, producers: ConnectionProducers, topic: Topic, event: SendRun, handles: list[ProducerHandle]
    ) -> None:
        self.producers, self.topic, self.event, self.handles = producers, topic, event, handles

    def done(self, answered: Segments) -> None:
        port, budget, segments = self.producers.port, self.producers.broker.budget, self.event.segments
        budget.give(self.event.run.size_bytes)
        if not port.closed:
            if len(answered) == 1 and len(segments) == 1:
                producer_id, sequences, highest = segments[0]
                port.write(receipts(producer_id, sequences, highest, answered[0][1], answered[0][2]))
            else:
                self._write_pieces(answered)
        for handle, segment in zip(self.handles, segments, strict=True):
            handle.answer(len(segment[1]))
        if port.writable and not budget.used:  # nothing else is on its way, whose receipt could go with it
            port.flush()

    def _write_pieces(self, answered: Segments) -> None:
        """Receipts where the run's producers and the ledger's answer cut it at different places."""
        pieces = iter(answered)
        left, ledger, first = next(pieces)
        for producer_id, sequences, highest in self.event.segments:
            at = 0
            while at < len(sequences):
                if not left:
                    left, ledger, first = next(pieces)
                count = min(left, len(sequences) - at)
                part = None if highest is None else highest[at : at + count]
                self.producers.port.write(receipts(producer_id, sequences[at : at + count], part, ledger, first))
                at, left, first = at + count, left - count, first + count

    def failed(self, error: HeliographError) -> None:
        self.producers.broker.budget.give(self.event.run.size_bytes)
        for handle, (_, sequences, _) in zip(self.handles, self.event.segments, strict=True):
            if not handle.closed:
                self.producers.refuse(handle, sequences[0], error)
            handle.answer(len(sequences))
        if isinstance(error, LedgerFenced):
            self.topic.fatal(error)


class ConnectionProducers:
    """All producers of one connection."""

    __slots__ = (
        "_held_bytes",
        "_identity",
        "_parts",
        "_sent_on",
        "_waiting",
        "broker",
        "handles",
        "metadata_bytes",
        "port",
    )

    def __init__(self, port: ClientPort, broker: PulsarBroker, identity: Identity, sent_on: SentOn) -> None:
        self.port, self.broker, self._identity, self._sent_on = port, broker, identity, sent_on
        self.handles: dict[int, ProducerHandle] = {}
        self.metadata_bytes = 0
        """Of what they say of themselves."""
        self._parts: dict[tuple[Topic, TxnId], None] = {}
        """Transactions of this client that topics are known to take part in."""
        self._waiting: dict[Topic, deque[SendRun]] = {}
        """What was cut for a topic since one of its runs began to wait until that is known."""
        self._held_bytes = 0

    def begin(self, handle: ProducerHandle) -> None:
        """From here on SENDs with this id are this producer's; they wait until it is ready."""
        self.handles[handle.id] = handle
        self.port.cutter.producers[handle.id] = (handle, handle.name)

    def made(self, handle: ProducerHandle, topic: Topic, producer: Producer) -> None:
        """The topic has the producer."""
        handle.topic, handle.producer = topic, producer
        self.metadata_bytes += metadata_bytes(producer.metadata)

    def replicates(self, handle: ProducerHandle, cluster: str) -> None:
        """What it sends comes entry by entry: it is the replicator of a Pulsar cluster."""
        del self.port.cutter.producers[handle.id]
        self.port.cutter.replicators[handle.id] = cluster

    def is_replicator(self, handle: ProducerHandle) -> bool:
        return handle.id in self.port.cutter.replicators

    def ready(self, handle: ProducerHandle) -> None:
        """What waited goes to the topic, and everything later directly."""
        assert handle.topic is not None
        handle.ready = True
        self.port.cutter.producers[handle.id] = (handle.topic, handle.name)
        handle.waits = False
        for event in self._release(handle):
            self._take(handle.topic, event)

    def wait(self, handle: ProducerHandle) -> None:
        """It is made, and has no access yet: nothing is taken from it before `ready`."""
        handle.waits = True
        self._check_held(handle)

    def take(self, event: SendRun) -> None:
        """A run that was cut."""
        group = event.group
        if isinstance(group, ProducerHandle):
            group.held.append(event)
            self._held_bytes += event.run.size_bytes + _HELD_RUN_BYTES
            self._check_held(group)
        else:
            assert isinstance(group, Topic)
            self._take(group, event)

    def _take(self, topic: Topic, event: SendRun) -> None:
        self.broker.budget.take(self.port, event.run.size_bytes)
        self._publish(topic, event)

    def _check_held(self, handle: ProducerHandle) -> None:
        """Ends the connection of who sends to a topic that another producer has, or too much before an answer."""
        if (handle.waits and handle.held) or self._held_bytes > HELD_BYTES_MAX:
            self.port.close(f"producer {handle.id} sends before it may: wait for PRODUCER_SUCCESS with producer_ready")

    def _release(self, handle: ProducerHandle) -> list[SendRun]:
        """Returns what was held of it, which is held no more."""
        held, handle.held = handle.held, []
        self._held_bytes -= sum(event.run.size_bytes + _HELD_RUN_BYTES for event in held)
        return held

    def _publish(self, topic: Topic, event: SendRun) -> None:
        """At once, unless it is not known yet whether the topic takes part in the run's transaction."""
        if (waiting := self._waiting.get(topic)) is not None:
            waiting.append(event)
        elif self._is_part(topic, event):
            self._publish_now(topic, event)
        else:
            self._waiting[topic] = deque([event])
            self.broker.tasks.spawn(self._publish_waiting(topic))

    def _is_part(self, topic: Topic, event: SendRun) -> bool:
        txn = event.run.transaction
        if txn is None or self.broker.transactions is None:
            return True
        return (topic, txn) in self._parts and not topic.transactions.may_have_ended(txn)

    async def _publish_waiting(self, topic: Topic) -> None:
        """In their order, each transaction asked for once; what is in none that the client may use is refused."""
        waiting, port = self._waiting[topic], self.port
        try:
            while waiting:
                error: HeliographError | None = None
                event, transactions = waiting[0], self.broker.transactions
                txn = event.run.transaction
                if txn is not None and transactions is not None and not self._is_part(topic, event):
                    try:
                        await transactions.check_part(txn, self._identity.role, topic.text)
                        if len(self._parts) >= PARTS_MAX:
                            self._parts.clear()
                        self._parts[topic, txn] = None
                    except HeliographError as found:
                        error = found
                waiting.popleft()
                if port.closed:
                    self.broker.budget.give(event.run.size_bytes)
                elif error is None:
                    self._publish_now(topic, event)
                else:
                    for index in range(event.run.count):
                        self._refuse_one(event.cut(index, index + 1), error)
        finally:
            del self._waiting[topic]

    def _publish_now(self, topic: Topic, event: SendRun) -> None:
        at = 0
        for index, error in topic.refused(event.run):
            if index > at:
                self._append_living(topic, event.cut(at, index))
            self._refuse_one(event.cut(index, index + 1), error)
            at = index + 1
        if at < event.run.count:
            self._append_living(topic, event.cut(at, event.run.count) if at else event)

    def _append_living(self, topic: Topic, event: SendRun) -> None:
        """Without those of producers that what came before has ended: their clients send them again."""
        gone = [
            segment[0]
            for segment in event.segments
            if (handle := self.handles.get(segment[0])) is None or handle.closed
        ]
        if not gone:
            self._append(topic, event)
            return
        at = 0
        for producer_id, sequences, _ in event.segments:
            part, at = event.cut(at, at + len(sequences)), at + len(sequences)
            if producer_id in gone:
                self.broker.budget.give(part.run.size_bytes)
            else:
                self._append_living(topic, part)

    def _refuse_one(self, event: SendRun, error: HeliographError) -> None:
        """A message that the topic does not take, behind the answers to what came before it. The producer goes on, but
        for one in order, and so do others.
        """
        ((producer_id, (sequence,), _),) = event.segments
        self.broker.budget.give(event.run.size_bytes)
        handle = self.handles.get(producer_id)
        if handle is not None and not handle.closed:
            if handle.in_order:
                self._stop_taking(handle)
            handle.when_answered(lambda: self._send_error(producer_id, sequence, code_of(error), str(error)))

    def _append(self, topic: Topic, event: SendRun) -> None:
        handles = []
        run, at = event.run, 0
        for producer_id, sequences, _ in event.segments:
            handle, count = self.handles[producer_id], len(sequences)
            handle.sent += count
            handles.append(handle)
            if handle.producer is not None:
                whole = count == run.count
                handle.producer.messages_in += (
                    run.messages if whole else count if run.counts is None else sum(run.counts[at : at + count])
                )
                handle.producer.bytes_in += run.size_bytes if whole else sum(run.lengths[at : at + count])
                if event.chunks:
                    handle.producer.chunks_in += sum(at <= index < at + count for index in event.chunks)
            at += count
        broker = self.broker
        topic.last_publish_ms = broker.clock.wall_ms()
        usage = broker.usage.of(topic.name.tenant)
        usage.messages_in += run.messages
        usage.bytes_in += run.size_bytes
        publishing = PublishedRun(self, topic, event, handles)
        if run.transaction is not None and broker.transactions is None:
            publishing.failed(NotAllowed(NO_TRANSACTIONS))
            return
        topic.publish(run, publishing.done, publishing.failed, judged=True)

    def bad_send(self, event: BadSend) -> None:
        """Answers behind what came before. What concerns more than one message ends the producer."""
        handle = self.handles.get(event.producer_id)
        if handle is None or handle.closed:
            return
        code = pb.ChecksumError if event.checksum else pb.NotAllowedError
        if not event.goes_on or handle.in_order:
            self._stop_taking(handle)
        handle.when_answered(lambda: self._send_error(handle.id, event.sequence, code, event.reason))

    def refuse(self, handle: ProducerHandle, sequence: int, error: HeliographError) -> None:
        """An append failed: the client must send it, and all behind it, again."""
        self._stop_taking(handle)
        if isinstance(error, MOVED):
            self.close_from_here(handle)
        else:
            self._send_error(handle.id, sequence, code_of(error), str(error))

    def _send_error(self, producer_id: int, sequence: int, code: pb.ServerError.ValueType, text: str) -> None:
        self.port.refused(NO_REQUEST, code, text, producer=producer_id, sequence=sequence)
        error = pb.CommandSendError(producer_id=producer_id, sequence_id=sequence, error=code, message=text)
        self.port.send(pb.BaseCommand(type=pb.BaseCommand.SEND_ERROR, send_error=error))

    def close_from_here(self, handle: ProducerHandle) -> None:
        """Tells the client to make the producer again, wherever the topic is then; where it has made one of the same id
        already, there is nothing to tell.
        """
        is_known = self.handles.get(handle.id) is handle
        self.forget(handle)
        if not is_known:
            return
        if handle.topic is not None and handle.topic.migration is not None:
            why = handle.topic.migration.refusal()
            self._sent_on.tell(pb.CommandTopicMigrated.Producer, handle.id, handle.topic.text, why)
        close = pb.CommandCloseProducer(producer_id=handle.id, request_id=NO_REQUEST)
        name_next_owner(close, handle.topic)
        self.port.send(pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=close))

    def close_when_answered(self, handle: ProducerHandle) -> None:
        """The same behind the receipts of what is under way: so a client sends nothing again that is stored."""
        self._stop_taking(handle)
        handle.when_answered(lambda: self.close_from_here(handle))

    def _stop_taking(self, handle: ProducerHandle) -> None:
        handle.closed = True
        if self.handles.get(handle.id) is handle:  # else it is another one's id by now
            self.port.cutter.producers.pop(handle.id, None)
            self.port.cutter.replicators.pop(handle.id, None)
        self._release(handle)

    def forget(self, handle: ProducerHandle) -> None:
        """The producer is gone, here and in its topic."""
        self._stop_taking(handle)
        if self.handles.get(handle.id) is handle:
            del self.handles[handle.id]
            if handle.producer is not None:
                self.metadata_bytes -= metadata_bytes(handle.producer.metadata)
        if handle.topic is not None and handle.producer is not None:
            handle.topic.remove_producer(handle.producer)

    def close(self) -> None:
        for handle in list(self.handles.values()):
            self.forget(handle)
