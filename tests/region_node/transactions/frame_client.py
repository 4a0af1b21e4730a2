"""A client of transactions that speaks frames over a socket, so that the same script runs here and with a real Pulsar:
Python's official client has none.

Is: requests and their answers, publishing, consuming, acknowledging, each with or without a transaction. Isn't: a
client for a region of several
brokers: every topic is looked up, and then taken to be at the broker that was asked.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from heliograph.wire.pulsar import pulsar_pb2 as pb
from tests.region_node.faces.pulsar.codec import Reader, entry, frame, send
from tests.region_node.live import until

K = pb.BaseCommand
DEADLINE_S = 60.0
Txn = dict[str, int]
"""A transaction's id, as fields of commands."""
EXCLUSIVE, SHARED = 0, 1
COMMIT, ABORT = pb.COMMIT, pb.ABORT


class Refused(Exception):
    """`code`: Pulsar's ServerError."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{pb.ServerError.Name(code)}: {text}")  # type: ignore[arg-type]
        self.code = code


class WireClient:
    """One connection. Requests are answered before the next one is made; messages that come meanwhile wait in `came`,
    by consumer.
    """

    def __init__(self, service_url: str, version: str = "test") -> None:
        host, port = service_url.removeprefix("pulsar://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._reader, self._waiting = Reader(), deque[tuple[pb.BaseCommand, bytes]]()
        self._requests = self._ids = 0
        self._sequences: dict[int, int] = {}
        self.came: dict[int, deque[tuple[pb.CommandMessage, bytes]]] = {}
        self.sent_on: list[tuple[int, int, str, str]] = []
        """(type, id, URL, URL with TLS) of each producer and consumer that was told to go on elsewhere."""
        self._socket.sendall(frame(K.CONNECT, client_version=version, protocol_version=20))
        self._until(lambda command: command.type == K.CONNECTED)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    # -- frames

    def _next(self) -> tuple[pb.BaseCommand, bytes]:
        while not self._waiting:
            data = self._socket.recv(1 << 16)
            assert data, "the server has closed the connection"
            self._waiting.extend(self._reader.feed(data))
        command, payload = self._waiting.popleft()
        if command.type == K.PING:
            self._socket.sendall(frame(K.PONG))
        elif command.type == K.MESSAGE and command.message.consumer_id in self.came:
            self.came[command.message.consumer_id].append((command.message, payload))
        elif command.type == K.TOPIC_MIGRATED:
            moved = command.topicMigrated
            self.sent_on.append(
                (moved.resource_type, moved.resource_id, moved.brokerServiceUrl, moved.brokerServiceUrlTls)
            )
        return command, payload

    def _until(self, wanted: Callable[[pb.BaseCommand], bool]) -> pb.BaseCommand:
        while not wanted(command := self._next()[0]):
            pass
        return command

    def ask(self, kind: int, **fields: Any) -> Any:
        """The answer's part of the command. Raises Refused."""
        self._requests += 1
        wanted = self._requests
        self._socket.sendall(frame(kind, request_id=wanted, **fields))
        found = self._until(lambda command: getattr(command.ListFields()[-1][1], "request_id", None) == wanted)
        part: Any = found.ListFields()[-1][1]
        if "error" in part.DESCRIPTOR.fields_by_name and part.HasField("error"):
            raise Refused(part.error, part.message)
        return part

    def begin_asking(self, kind: int, **fields: Any) -> None:
        """For what may be left without an answer."""
        self._requests += 1
        self._socket.sendall(frame(kind, request_id=self._requests, **fields))

    def moves(self, count: int) -> list[tuple[int, int, str, str]]:
        """`sent_on`, once it has so many."""
        while len(self.sent_on) < count:
            self._next()
        return self.sent_on

    # -- topics

    def look_up(self, topic: str) -> None:
        self.ask(K.LOOKUP, topic=topic, authoritative=True)

    def producer(self, topic: str, **fields: Any) -> int:
        self.look_up(topic)
        self._ids += 1
        self.ask(K.PRODUCER, topic=topic, producer_id=self._ids, **fields)
        self._sequences[self._ids] = 0
        return self._ids

    def publish(self, producer: int, payload: bytes, txn: Txn | None = None, *, batch: int = 0) -> tuple[int, int]:
        """(ledger, entry), once it is stored. batch: so many messages, as one entry that nobody opens here. Raises
        Refused.
        """
        sequence = self._sequences[producer]
        self._sequences[producer] += max(1, batch)
        stored = entry(payload, sequence=sequence, batch=batch, **(txn or {}))  # clients say it in both places
        self._socket.sendall(send(producer, sequence, stored, num_messages=max(1, batch), **(txn or {})))
        found = self._until(lambda command: command.type in (K.SEND_RECEIPT, K.SEND_ERROR))
        if found.type == K.SEND_ERROR:
            raise Refused(found.send_error.error, found.send_error.message)
        return found.send_receipt.message_id.ledgerId, found.send_receipt.message_id.entryId

    def subscribe(self, topic: str, name: str = "s", kind: int = EXCLUSIVE) -> int:
        """From the earliest message on; everything comes at once."""
        self.look_up(topic)
        self._ids += 1
        self.came[self._ids] = deque()
        self.ask(
            K.SUBSCRIBE,
            topic=topic,
            subscription=name,
            subType=kind,
            consumer_id=self._ids,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        self._socket.sendall(frame(K.FLOW, consumer_id=self._ids, messagePermits=1000))
        return self._ids

    def close_consumer(self, consumer: int) -> None:
        self.ask(K.CLOSE_CONSUMER, consumer_id=consumer)
        del self.came[consumer]

    def receive(self, consumer: int, count: int) -> list[tuple[pb.MessageIdData, bytes]]:
        """The next messages: (id, payload) each."""
        came = self.came[consumer]
        while len(came) < count:
            self._next()
        return [(message.message_id, _payload(data)) for message, data in (came.popleft() for _ in range(count))]

    def payloads(self, consumer: int, count: int) -> list[bytes]:
        return [payload for _, payload in self.receive(consumer, count)]

    def nothing(self, consumer: int) -> bool:
        """Whether nothing has come by the time of an answer. It may be that something is still on its way: then it
        shows nothing, and never fails.
        """
        self.last(consumer)
        return not self.came[consumer]

    def last(self, consumer: int) -> tuple[int, int]:
        """(ledger, entry) of the last message that consumers may see."""
        found = self.ask(K.GET_LAST_MESSAGE_ID, consumer_id=consumer).last_message_id
        return found.ledgerId, found.entryId

    # -- transactions

    def connect(self, coordinator: int = 0) -> None:
        """Until the coordinator is there."""
        self.look_up(f"persistent://pulsar/system/transaction_coordinator_assign-partition-{coordinator}")

        def answered() -> bool:
            try:
                self.ask(K.TC_CLIENT_CONNECT_REQUEST, tc_id=coordinator)
            except Refused as error:
                assert error.code in (pb.TransactionCoordinatorNotFound, pb.ServiceNotReady), error
                return False
            return True

        until(answered, DEADLINE_S)

    def begin(
        self,
        *,
        topics: tuple[str, ...] = (),
        subscriptions: tuple[tuple[str, str], ...] = (),
        ttl_ms: int = 60_000,
        coordinator: int = 0,
    ) -> Txn:
        made = self.ask(K.NEW_TXN, tc_id=coordinator, txn_ttl_millis=ttl_ms)
        txn = {"txnid_most_bits": made.txnid_most_bits, "txnid_least_bits": made.txnid_least_bits}
        if topics:
            self.ask(K.ADD_PARTITION_TO_TXN, partitions=topics, **txn)
        if subscriptions:
            self.ask(
                K.ADD_SUBSCRIPTION_TO_TXN,
                subscription=[pb.Subscription(topic=topic, subscription=name) for topic, name in subscriptions],
                **txn,
            )
        return txn

    def end(self, txn: Txn, action: int) -> None:
        """Returns when that is done in every topic and subscription. Raises Refused."""
        self.ask(K.END_TXN, txn_action=action, **txn)

    def acknowledge(
        self, consumer: int, *ids: pb.MessageIdData, txn: Txn | None = None, cumulative: bool = False
    ) -> None:
        """Returns when it is recorded. Raises Refused."""
        self.ask(K.ACK, consumer_id=consumer, ack_type=int(cumulative), message_id=list(ids), **(txn or {}))


def _payload(data: bytes) -> bytes:
    """Behind the checksum and the metadata."""
    at = 6 if data[:2] == b"\x0e\x01" else 0
    return data[at + 4 + struct.unpack_from(">I", data, at)[0] :]


def part_of_batch(entry_id: pb.MessageIdData, left: int, size: int) -> pb.MessageIdData:
    """Acknowledges the messages of a batch whose bits are not in `left`."""
    return pb.MessageIdData(ledgerId=entry_id.ledgerId, entryId=entry_id.entryId, ack_set=[left], batch_size=size)
