"""PulsarSession: what the handlers of commands know of one client, and may do to its connection.

Is: who it is, its producers, consumers, and watchers, and the port to its connection. Isn't: a frame, the handshake, or
keep-alive (`region_node.faces.pulsar.connection`).
Invariants: handlers take the session and never the connection; nothing is set on it but by its own methods. What is on
the way of every message (producers, consumers, deliveries) has the port itself: no call is between.
Source: docs/protocols/pulsar.md, "Commands: what to answer".
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.session.client_identity import Identity
from region_node.faces.pulsar.session.consuming import Consuming
from region_node.faces.pulsar.session.deliveries import Deliveries
from region_node.faces.pulsar.session.publishing import ConnectionProducers, ProducerHandle
from region_node.faces.pulsar.session.pulsar_broker import AnsweredCommand, ClientPort, ClientSink, PulsarBroker
from region_node.faces.pulsar.session.replicator_producers import Replicated
from region_node.faces.pulsar.session.sent_on import SentOn
from region_node.faces.pulsar.session.topic_watchers import TopicWatchers


class PulsarSession:
    """`replicated`: made with the first replicator of a Pulsar cluster."""

    __slots__ = (
        "_port",
        "broker",
        "consuming",
        "deliveries",
        "identity",
        "producing",
        "replicated",
        "sent_on",
        "watchers",
    )

    def __init__(self, port: ClientPort, broker: PulsarBroker) -> None:
        self._port, self.broker = port, broker
        self.identity = Identity(port, broker)
        self.sent_on = SentOn(port, broker, self.identity)
        self.producing = ConnectionProducers(port, broker, self.identity, self.sent_on)
        self.deliveries = Deliveries(port, broker, broker.settings.limits.conversion_again_s)
        self.consuming = Consuming(port, broker, self.deliveries, self.sent_on)
        self.watchers = TopicWatchers(port, broker, self.identity)
        self.replicated: Replicated | None = None

    # -- the client ----------------------------------------------------------------------------------------------------

    @property
    def sink(self) -> ClientSink:
        """Where the client's producers and consumers hear from their topics."""
        return self._port

    @property
    def address(self) -> str:
        return self._port.address

    @property
    def client_version(self) -> str:
        return self._port.client_version

    def has_room(self, request_id: int) -> bool:
        """Whether the client may have one producer or consumer more; else it is told."""
        if not self.takes(request_id):
            return False
        most = self.broker.settings.limits.clients_max
        if len(self.producing.handles) + len(self.consuming.handles) < most:
            return True
        self.send_error(
            request_id,
            pb.TooManyRequests,
            f"{most} producers and consumers are on this connection, which is all that it may have: use another one",
        )
        return False

    def replicates(self, handle: ProducerHandle, cluster: str) -> None:
        """The producer is the replicator of a Pulsar cluster: what it sends comes entry by entry."""
        self.producing.replicates(handle, cluster)
        if self.replicated is None:
            self.replicated = Replicated(self.producing, by_position=self._port.by_position)

    def end(self) -> None:
        """The connection is lost: its producers, consumers, and watchers go with it."""
        self.broker.budget.forget(self._port)
        self.producing.close()
        self.consuming.close()
        self.watchers.close()

    # -- its connection ------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._port.closed

    def close(self, reason: str) -> None:
        self._port.close(reason)

    def connect(self, command: pb.CommandConnect) -> None:
        """CONNECT came. Raises PeerError where it came before."""
        self._port.connect(command)

    def pong(self) -> None:
        """The client is there: whoever waits to know is told."""
        self._port.pong()

    async def room(self) -> None:
        """Waits until the client has taken so much of its answers that another may be made."""
        await self._port.room()

    # -- answers -------------------------------------------------------------------------------------------------------

    def takes(self, request_id: int) -> bool:
        """Whether one request more may wait; else the client is told."""
        return self._port.takes(request_id)

    def answer(self, request: AnsweredCommand, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`; what it raises goes to the client as an ERROR of this request."""
        self._port.answer(request, work)

    def send(self, command: pb.BaseCommand) -> None:
        self._port.send(command)

    def send_success(self, request_id: int) -> None:
        self._port.send_success(request_id)

    def send_error(self, request_id: int, code: pb.ServerError.ValueType, text: str) -> None:
        self._port.send_error(request_id, code, text)

    def refused(self, request_id: int, code: pb.ServerError.ValueType, text: str, **more: Any) -> None:
        """One line in the log for each command that is refused, whatever answers it."""
        self._port.refused(request_id, code, text, **more)
