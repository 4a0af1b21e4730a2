"""Producers of one connection: from a run that was cut to the receipts for it.

Is: the order of answers to one producer, what waits for a producer that is still being made, what happens to a failed append.
Isn't: who may produce (`region_node.topics.producers`), or deduplication.
Invariants: answers to one producer's SENDs go out in their order; after an error nothing later of that producer is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.model.errors import HeliographError, LedgerFenced, NotAllowed
from heliograph.wire import pulsar_pb2 as pb
from heliograph.wire.pulsar_answers import receipts
from heliograph.wire.pulsar_frames import BadSend, SendRun
from region_node.pulsar.errors import MOVED, code_of
from region_node.topics.port import Segments
from region_node.topics.producers import Producer
from region_node.topics.topic import Topic

if TYPE_CHECKING:
    from region_node.pulsar.connection import PulsarConnection

NO_REQUEST = (1 << 64) - 1
NO_TRANSACTIONS = "transactions are off here: set broker.transaction_coordinator_enabled and start the brokers again"


class ProducerHandle:
    """One producer id of a connection. `topic` is None while it is being made; `closed`: nothing more is taken from it."""

    __slots__ = ("_after", "answered", "closed", "held", "id", "name", "producer", "ready", "request_id", "schema_version", "sent", "topic")

    def __init__(self, producer_id: int, name: str, request_id: int) -> None:
        self.id, self.name, self.request_id = producer_id, name, request_id
        self.topic: Topic | None = None
        self.producer: Producer | None = None
        self.schema_version = b""
        self.ready = False
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


def name_next_owner(close: pb.CommandCloseProducer | pb.CommandCloseConsumer, topic: Topic | None) -> None:
    """Tells a client that is sent away where the topic goes, where that is known: it reconnects there without a look-up."""
    if topic is not None and topic.next_owner is not None:
        plain, tls = topic.next_owner
        if plain:
            close.assignedBrokerServiceUrl = plain
        if tls:
            close.assignedBrokerServiceUrlTls = tls


class Publishing:
    """One run on its way to the bookies."""

    __slots__ = ("connection", "event", "handles", "topic")

    def __init__(self, connection: PulsarConnection, topic: Topic, event: SendRun, handles: list[ProducerHandle]) -> None:
        self.connection, self.topic, self.event, self.handles = connection, topic, event, handles

    def done(self, answered: Segments) -> None:
        connection, segments = self.connection, self.event.segments
        connection.listener.budget.give(self.event.run.size_bytes)
        if not connection.closed:
            if len(answered) == 1 and len(segments) == 1:
                producer_id, sequences, highest = segments[0]
                connection.write(receipts(producer_id, sequences, highest, answered[0][1], answered[0][2]))
            else:
                self._write_pieces(answered)
        for handle, segment in zip(self.handles, segments, strict=True):
            handle.answer(len(segment[1]))
        if connection.writable and not connection.listener.budget.used:  # nothing else is on its way, whose receipt could go with it
            connection.flush()

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
                self.connection.write(receipts(producer_id, sequences[at : at + count], part, ledger, first))
                at, left, first = at + count, left - count, first + count

    def failed(self, error: HeliographError) -> None:
        connection = self.connection
        connection.listener.budget.give(self.event.run.size_bytes)
        for handle, (_, sequences, _) in zip(self.handles, self.event.segments, strict=True):
            if not handle.closed:
                connection.producing.refuse(handle, sequences[0], error)
            handle.answer(len(sequences))
        if isinstance(error, LedgerFenced):
            self.topic.fatal(error)


class Producing:
    """All producers of one connection."""

    def __init__(self, connection: PulsarConnection) -> None:
        self._connection = connection
        self.handles: dict[int, ProducerHandle] = {}

    def begin(self, handle: ProducerHandle) -> None:
        """From here on SENDs with this id are this producer's; they wait until it is ready."""
        self.handles[handle.id] = handle
        self._connection.cutter.producers[handle.id] = (handle, handle.name)

    def ready(self, handle: ProducerHandle) -> None:
        """What waited goes to the topic, and everything later directly."""
        assert handle.topic is not None
        handle.ready = True
        self._connection.cutter.producers[handle.id] = (handle.topic, handle.name)
        held, handle.held = handle.held, []
        for event in held:
            self._publish(handle.topic, event)

    def take(self, event: SendRun) -> None:
        """A run that was cut."""
        self._connection.listener.budget.take(self._connection, event.run.size_bytes)
        group = event.group
        if isinstance(group, ProducerHandle):
            group.held.append(event)
        else:
            assert isinstance(group, Topic)
            self._publish(group, event)

    def _publish(self, topic: Topic, event: SendRun) -> None:
        handles = []
        run, several = event.run, len(event.segments)
        messages, size_bytes = run.messages, run.size_bytes
        for producer_id, sequences, _ in event.segments:
            handle = self.handles[producer_id]
            handle.sent += len(sequences)
            handles.append(handle)
            if handle.producer is not None:
                handle.producer.messages_in += messages if several == 1 else len(sequences)
                handle.producer.bytes_in += size_bytes if several == 1 else size_bytes // several
        listener = self._connection.listener
        topic.last_publish_ms = listener.clock.wall_ms()
        usage = listener.usage.of(topic.name.tenant)
        usage.messages_in += messages
        usage.bytes_in += size_bytes
        publishing = Publishing(self._connection, topic, event, handles)
        if run.transaction is not None and listener.transactions is None:
            publishing.failed(NotAllowed(NO_TRANSACTIONS))
            return
        topic.publish(event.run, publishing.done, publishing.failed)

    def bad_send(self, event: BadSend) -> None:
        """Answers behind what came before. A wrong checksum concerns one message; anything else ends the producer."""
        handle = self.handles.get(event.producer_id)
        if handle is None or handle.closed:
            return
        code = pb.ChecksumError if event.checksum else pb.NotAllowedError
        if not event.checksum:
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
        self._connection.refused(NO_REQUEST, code, text, producer=producer_id, sequence=sequence)
        error = pb.CommandSendError(producer_id=producer_id, sequence_id=sequence, error=code, message=text)
        self._connection.send(pb.BaseCommand(type=pb.BaseCommand.SEND_ERROR, send_error=error))

    def close_from_here(self, handle: ProducerHandle) -> None:
        """Tells the client to make the producer again, wherever the topic is then."""
        self.forget(handle)
        close = pb.CommandCloseProducer(producer_id=handle.id, request_id=NO_REQUEST)
        name_next_owner(close, handle.topic)
        self._connection.send(pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=close))

    def close_when_answered(self, handle: ProducerHandle) -> None:
        """The same behind the receipts of what is under way: so a client sends nothing again that is stored."""
        self._stop_taking(handle)
        handle.when_answered(lambda: self.close_from_here(handle))

    def _stop_taking(self, handle: ProducerHandle) -> None:
        handle.closed = True
        self._connection.cutter.producers.pop(handle.id, None)
        self._connection.cutter.replicators.pop(handle.id, None)
        for event in handle.held:
            self._connection.listener.budget.give(event.run.size_bytes)
        handle.held = []

    def forget(self, handle: ProducerHandle) -> None:
        """The producer is gone, here and in its topic."""
        self._stop_taking(handle)
        if self.handles.get(handle.id) is handle:
            del self.handles[handle.id]
        if handle.topic is not None and handle.producer is not None:
            handle.topic.remove_producer(handle.producer)

    def close(self) -> None:
        for handle in list(self.handles.values()):
            self.forget(handle)
