"""What a real Pulsar cluster sends here: producers of its replicators, entry by entry, and its markers.

Is: who may be such a producer, gathering its entries into runs, the receipts in the form that it expects, markers in
their order. Isn't: the way to the cluster (`replicator.pulsar`), or ordinary producers (`publishing`).
Invariants: only the gateway region of a registered cluster takes its entries, and only from the role that the cluster
has; where the cluster says the positions of its entries, deduplication goes by them, whoever published; a marker is
handled once everything before it is durable, and is not stored.
Source: docs/protocols/interop.md.
"""

from __future__ import annotations

import logging

from heliograph.model.errors import CorruptData, HeliographError, Unauthorized
from heliograph.model.positions import Position
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.pulsar.frame_cutter import BadSend, ReplicatedSend, SendRun, StraySend, producer_segment
from heliograph.wire.pulsar.geo_replication import MARKER_RECEIPT, source_of, source_position
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata
from heliograph.wire.pulsar.server_frames import receipts
from heliograph.wire.run import BYTES_MAX, COUNT_MAX, Buffer, ProducerSegment, Run
from region_node.faces.pulsar.session.publishing import ConnectionProducers, ProducerHandle
from region_node.faces.pulsar.session.pulsar_broker import ClusterPort, PulsarBroker
from region_node.security.authentication.principal import Principal

log = logging.getLogger("region_node.pulsar")

_SMALL_ENTRY_BITS, _SMALL_LEDGER_MAX = 28, (1 << 34) - 1
"""Of ledgers that are counted from 0, as a Pulsar cluster does."""
_ENTRY_BITS, _LEDGER_MAX = 20, (1 << 42) - 1
"""Of ledgers whose ids begin at the wall clock, as those of another Heliograph: until the year 2109."""


def _number_of(ledger: int, entry: int) -> int:
    """A number for the position, below 1 << 63; they are in the order of the positions. Raises CorruptData."""
    if ledger <= _SMALL_LEDGER_MAX and not entry >> _SMALL_ENTRY_BITS:
        return ledger << _SMALL_ENTRY_BITS | entry
    if not _SMALL_LEDGER_MAX < ledger <= _LEDGER_MAX or entry >> _ENTRY_BITS:
        raise CorruptData(f"position {ledger}:{entry} is beyond what can be told apart here")
    return 1 << 62 | ledger << _ENTRY_BITS | entry


def cluster_of(broker: PulsarBroker, principal: Principal | None, producer: str) -> str:
    """The cluster whose replicator has this name; "": it is an ordinary producer. Raises Unauthorized where it proves
    to be somebody else.
    """
    clusters, name = broker.clusters, source_of(producer)
    cluster = clusters.cluster(name) if clusters is not None and name else None
    if cluster is None:
        return ""
    security = broker.security
    if not security.authentication.open:
        assert principal is not None
        if principal.role != cluster.role and (cluster.role or not security.rights.is_super(principal)):
            raise Unauthorized(
                f"role {principal.role!r} is not the replicator of cluster {name}: set it with `heliograph clusters "
                f"update {name} --role`"
            )
    return name


class _Gathered:
    """Consecutive entries of one producer, of one read."""

    __slots__ = ("counts", "handle", "highest", "lengths", "parts", "segments", "sequences", "size_bytes")

    def __init__(self, handle: ProducerHandle) -> None:
        self.handle = handle
        self.parts: list[Buffer] = []
        self.lengths: list[int] = []
        self.counts: list[int] = []
        self.sequences: list[int] = []
        self.highest: list[int] = []
        """What receipts say of each entry."""
        self.segments: list[tuple[str, int, int]] = []
        """(producer, first, last sequence) of each entry: what deduplication goes by."""
        self.size_bytes = 0

    def run(self) -> Run:
        return Run(self.parts, self.lengths, counts=self.counts, producers=_producers(self.segments))


def _producers(entries: list[tuple[str, int, int]]) -> tuple[ProducerSegment, ...]:
    out: list[ProducerSegment] = []
    start = 0
    for stop in range(1, len(entries) + 1):
        if stop == len(entries) or entries[stop][0] != entries[start][0]:
            part = entries[start:stop]
            alone = all(first == last for _, first, last in part)
            out.append(
                producer_segment(
                    part[0][0], [first for _, first, _ in part], None if alone else [last for _, _, last in part], None
                )
            )
            start = stop
    return tuple(out)


class Replicated:
    """The replicators of one connection."""

    def __init__(self, producing: ConnectionProducers, *, by_position: bool) -> None:
        """by_position: the other side's receipts are to name positions of its entries."""
        self._producing, self._by_position = producing, by_position
        self._gathered: _Gathered | None = None

    def take(self, event: ReplicatedSend) -> BadSend | StraySend | None:
        """Anything but None: what the event is instead."""
        handle = self._producing.handles.get(event.producer_id)
        if handle is None or handle.topic is None or not handle.ready or handle.closed:
            return StraySend(event.producer_id, event.sequence)
        if event.metadata.HasField("marker_type"):
            self.flush()
            handle.when_answered(lambda: self._begin_marker(handle, event))
            return None
        try:
            position = source_position(event.metadata) if self._by_position else None
            answer, key = self._named(handle.name, event, position)
        except CorruptData as error:
            self.flush()
            return BadSend(event.producer_id, event.sequence, False, str(error))
        gathered = self._gathered
        if (
            gathered is None
            or gathered.handle is not handle
            or len(gathered.parts) >= COUNT_MAX
            or gathered.size_bytes + len(event.part) > BYTES_MAX
        ):
            self.flush()
            gathered = self._gathered = _Gathered(handle)
        gathered.parts.append(bytes(event.part))
        gathered.lengths.append(len(event.part))
        gathered.counts.append(event.messages)
        gathered.sequences.append(answer[0])
        gathered.highest.append(answer[1])
        gathered.segments.append(key)
        gathered.size_bytes += len(event.part)
        return None

    def _named(
        self, producer: str, event: ReplicatedSend, position: Position | None
    ) -> tuple[Position, tuple[str, int, int]]:
        """(what its receipt names, what deduplication goes by). Raises CorruptData."""
        if position is not None:
            number = _number_of(*position)
            return position, (producer, number, number)
        metadata: MessageMetadata = event.metadata
        first = metadata.sequence_id
        last = max(
            first,
            metadata.highest_sequence_id,
            first + event.messages - 1 if metadata.HasField("num_messages_in_batch") else first,
        )
        return (event.sequence, 0), (metadata.producer_name, first, last)

    def flush(self) -> None:
        """What was gathered goes to the topic. Called behind the last event of a read."""
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            return
        handle = gathered.handle
        highest = gathered.highest if any(gathered.highest) else None
        event = SendRun(handle.topic, gathered.run(), [(handle.id, gathered.sequences, highest)])
        self._producing.take(event)

    # -- markers -------------------------------------------------------------------------------------------------------

    def _begin_marker(self, handle: ProducerHandle, event: ReplicatedSend) -> None:
        """Everything before it is answered: its receipt goes out now, before any later one; a sender that misses one of
        them never goes on.
        """
        port, broker, topic = self._producing.port, self._producing.broker, handle.topic
        assert topic is not None
        if port.closed or handle.closed:
            return
        last = topic.ledger.last_confirmed
        port.write(
            receipts(
                handle.id,
                [event.sequence],
                [MARKER_RECEIPT] if self._by_position else None,
                max(0, last[0]),
                max(0, last[1]),
            )
        )
        if broker.clusters is not None:
            broker.tasks.spawn(self._marker(broker.clusters, topic.text, event))

    async def _marker(self, clusters: ClusterPort, topic: str, event: ReplicatedSend) -> None:
        cluster = event.metadata.replicated_from
        try:
            await clusters.marker(topic, cluster, event.metadata.marker_type, entry_metadata(event.part)[1])
        except HeliographError as error:  # the next one makes it good
            log.warning("cluster.marker", extra={"topic": topic, "cluster": cluster, "error": str(error)})
