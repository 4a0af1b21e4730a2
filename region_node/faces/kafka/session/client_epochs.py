"""ClientEpochs: whether an offset that a client has from before a leadership moved is an offset of this region.

Is: which earlier leader epochs one connection may go on with, and how long others are told to ask again. Isn't: which
epoch there is (`region_node.faces.kafka.cluster.leading_regions`).
Invariants: an offset of another region's is never taken for one of this region's; who asks with one is told first to
ask again, so that a group's member has time to join its group here, and to be told its own place; then that there is no
such epoch, by which a client sets itself as its auto.offset.reset says.
Bounds: KEYS_MAX partitions of a connection are waited for at a time.
Source: Kafka KIP-320; docs/protocols/kafka.md, "Active-passive namespaces".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from region_node.faces.kafka.error_codes import Code, Refused

JOINS_S = 30.0
"""So long a client that asks with another region's epoch is told to ask again: a group's member is in its group in this
region before, as a rule within seconds.
"""
KEYS_MAX = 10_000


class Epochs(Protocol):
    """`region_node.faces.kafka.cluster.leading_regions.LeadingRegions`, as it is asked here."""

    def led(self, namespace: str, epoch: int) -> bool:
        """Whether this region led under that leader epoch."""
        ...

    def every_region(self, namespace: str, epoch: int) -> bool:
        """Whether every region led under that leader epoch."""
        ...

    def began(self, namespace: str) -> float:
        """When this broker heard that one region leads, in the clock's monotonic seconds; -inf: it began with that."""
        ...

    def since(self, namespace: str) -> float:
        """When this broker heard of the present leader epoch, in the clock's monotonic seconds; -inf: it began with
        it, or there is none.
        """
        ...

    def active_passive(self, namespace: str) -> bool:
        """Whether one region leads at a time."""
        ...

    def check(self, namespace: str, epoch: int = -1) -> None:
        """Raises Refused where another region leads, or under another leader epoch."""
        ...


class Connection(Protocol):
    """`region_node.faces.kafka.connection.kafka_connection.KafkaConnection`, as it is asked here."""

    @property
    def since(self) -> float:
        """When it was opened, in the clock's monotonic seconds."""
        ...


class ClientEpochs:
    """Judges what one connection asks with."""

    __slots__ = ("_connection", "_waiting")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[tuple[str, int], tuple[int, float]] = {}
        """Partition -> (the epoch that was asked with, when first)."""

    def own(self, epochs: Epochs, namespace: str, epoch: int) -> bool:
        """Whether an offset that the client was given under an earlier epoch is one of this region's: this region led
        then, or all did, and the client was connected here.
        """
        if epochs.every_region(namespace, epoch):
            return self._connection.since < epochs.began(namespace)
        return epochs.led(namespace, epoch)

    def check_committed(
        self, epochs: Epochs, namespace: str, part: Mapping[str, Any], *, now: float, joined: bool, end: int = -1
    ) -> None:
        """Whether the offset in a commit is one of this region's, as far as the client says of what leader epoch it is,
        or can have it from here. now: the clock's monotonic seconds. joined: the client is a member of the group here,
        and so was given its offsets here. end: of the log, -1: another broker knows it. Raises Refused.
        """
        epoch = part.get("committed_leader_epoch", -1)
        if epoch >= 0 and self.own(epochs, namespace, epoch):
            return
        epochs.check(namespace, epoch)
        if epoch >= 0 or not epochs.active_passive(namespace):
            return
        if not joined and now - epochs.since(namespace) < JOINS_S:
            raise Refused(
                Code.COORDINATOR_LOAD_IN_PROGRESS,
                f"{namespace} has just been moved here: say the leader epoch, or wait",
            )
        if 0 <= end < part["committed_offset"]:
            raise Refused(Code.OFFSET_OUT_OF_RANGE, f"the log ends at {end}: the offset is another region's")

    def waits(self, partition: tuple[str, int], epoch: int, now: float) -> bool:
        """Whether it is to ask again, as it may join its group meanwhile."""
        asked, first = self._waiting.get(partition, (epoch, now))
        if asked != epoch:
            first = now
        if now - first >= JOINS_S:
            self._waiting.pop(partition, None)
            return False
        if len(self._waiting) >= KEYS_MAX:
            self._waiting.clear()
        self._waiting[partition] = epoch, first
        return True
