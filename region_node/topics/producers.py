"""ProducerRegistry: which producers a topic has, by name and access mode. A core.

Is: names, epochs, access modes, the topic epoch. Isn't: who has the right to publish
(`region_node.security.authorization`), deduplication, or connections.
Invariants: a name is there once; with an exclusive producer there is no other; the topic epoch grows at each change of
the exclusive owner.
Source: docs/protocols/pulsar.md, "Producers".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

from heliograph.model.errors import NotAllowed, ProducerBusy, ProducerFenced
from region_node.runtime.rate_meter import Meter

EPOCH_GIVEN_MAX = 1 << 53
"""A topic epoch that a client may bring although the topic knows none so high: enough for any number of owners, and far
below what can be stored.
"""


class AccessMode(IntEnum):
    """The access modes with Pulsar's numbers on the wire (ProducerAccessMode)."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3

    @property
    def label(self) -> str:
        return ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")[self]


class ProducerSink(Protocol):
    """The connection behind a producer. No call blocks or raises."""

    def producer_closed(self, producer: Producer) -> None:
        """The producer was closed from this side: the client makes it again."""
        ...

    def producer_ready(self, producer: Producer) -> None:
        """It waited for exclusive access, and has it now."""
        ...

    async def alive(self) -> bool:
        """Whether the peer still answers; closes the connection where it does not."""
        ...

    def hold_reading(self, hold: bool, reason: object = None) -> None:
        """Stops reading from the peer while any reason holds it."""
        ...


class Producer:
    """One producer. `epoch`: rises when the client connects it again. `topic_epoch`: of exclusive ones, else None."""

    __slots__ = (
        "address",
        "bytes_in",
        "chunks_in",
        "client_version",
        "connected_ms",
        "epoch",
        "id",
        "messages_in",
        "metadata",
        "meter",
        "mode",
        "name",
        "named_by_user",
        "sink",
        "topic_epoch",
    )

    def __init__(
        self,
        producer_id: int,
        name: str,
        sink: ProducerSink,
        *,
        epoch: int = 0,
        named_by_user: bool = True,
        mode: AccessMode = AccessMode.SHARED,
        topic_epoch: int | None = None,
        metadata: Mapping[str, str] | None = None,
        address: str = "",
        client_version: str = "",
        connected_ms: int = 0,
    ) -> None:
        self.id, self.name, self.sink, self.epoch, self.named_by_user = producer_id, name, sink, epoch, named_by_user
        self.mode, self.topic_epoch = mode, topic_epoch
        self.metadata, self.address, self.client_version, self.connected_ms = (
            dict(metadata or {}),
            address,
            client_version,
            connected_ms,
        )
        self.messages_in = self.bytes_in = self.chunks_in = 0
        self.meter = Meter(3)


class ProducerRegistry:
    """`topic_epoch`: -1 while no exclusive producer was ever here."""

    __slots__ = ("_exclusive", "producers", "topic_epoch", "waiting")

    def __init__(self) -> None:
        self.producers: dict[str, Producer] = {}
        self.waiting: list[Producer] = []
        self.topic_epoch = -1
        self._exclusive: Producer | None = None

    def check_shared(self) -> None:
        """Raises ProducerBusy where one producer has the topic for itself, or waits for it."""
        if self.waiting or self._exclusive is not None:
            raise ProducerBusy("an exclusive producer holds the topic")

    def rival(self, producer: Producer) -> Producer | None:
        """A producer of the same name that may only be replaced where its connection is dead."""
        old = self.producers.get(producer.name)
        if old is None or self._replaces(producer, old):
            return None
        return old

    @staticmethod
    def _replaces(producer: Producer, old: Producer) -> bool:
        return producer.epoch > old.epoch and (not producer.named_by_user or producer.sink is old.sink)

    def add(self, producer: Producer) -> tuple[bool, list[Producer]]:
        """(it has access now, producers to close). False: it waits for exclusive access.

        Raises ProducerBusy, or ProducerFenced where another one owns the topic or has owned it since; NotAllowed where
        no topic has given such an epoch.
        """
        old = self.producers.get(producer.name)
        if old is not None and not self._replaces(producer, old):
            raise ProducerBusy(f"a producer named {producer.name!r} is connected already")
        if producer.topic_epoch is not None and producer.topic_epoch < self.topic_epoch:
            raise ProducerFenced(
                f"another producer has owned the topic since (epoch {self.topic_epoch}, not {producer.topic_epoch})"
            )
        if producer.topic_epoch is not None and producer.topic_epoch > max(self.topic_epoch, EPOCH_GIVEN_MAX):
            raise NotAllowed(f"no topic has given the epoch {producer.topic_epoch}: leave it out to get the next one")
        others = [other for other in self.producers.values() if other is not old]
        if producer.mode is AccessMode.SHARED and (
            self.waiting or (self._exclusive is not None and self._exclusive is not old)
        ):
            raise ProducerBusy("an exclusive producer holds the topic")
        if producer.mode is AccessMode.EXCLUSIVE and others:
            raise ProducerFenced("the topic has another producer")
        closing = self._drop(old, producer) if old is not None else []
        if producer.mode is AccessMode.SHARED:
            self.producers[producer.name] = producer
            return True, closing
        if others and producer.mode is AccessMode.WAIT_FOR_EXCLUSIVE:
            self.waiting.append(producer)
            return False, closing
        if producer.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            closing += [*others, *self.waiting]
            self.producers, self.waiting = {}, []
        self._own(producer)
        return True, closing

    def _drop(self, old: Producer, successor: Producer) -> list[Producer]:
        """Makes room for the same producer connected again; returns it where its connection must hear of it."""
        del self.producers[old.name]
        if self._exclusive is old:
            self._exclusive = None
        return [old] if old.sink is not successor.sink or old.id != successor.id else []

    def _own(self, producer: Producer) -> None:
        self.producers[producer.name] = self._exclusive = producer
        if producer.topic_epoch is None or producer.topic_epoch < self.topic_epoch:
            self.topic_epoch += 1
        else:  # the owner so far, connected again; its epoch may be one that a lost metadata forgot
            self.topic_epoch = producer.topic_epoch
        producer.topic_epoch = self.topic_epoch

    def remove(self, producer: Producer) -> Producer | None:
        """Returns a producer that waited and has access now."""
        if producer in self.waiting:
            self.waiting.remove(producer)
            return None
        if self.producers.get(producer.name) is not producer:
            return None
        del self.producers[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        if self.waiting and not self.producers:
            chosen = self.waiting.pop(0)
            self._own(chosen)
            return chosen
        return None
