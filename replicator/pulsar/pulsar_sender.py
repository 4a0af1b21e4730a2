"""PulsarSender: decides what one topic sends to a real Pulsar cluster, and how far its cursor moves. A core.

Is: which entries go, as what, and what a receipt confirms. Isn't: reading, connections, schemas, or frames
(`replicator.pulsar.pulsar_link`).
In: runs read from the topic, receipts. Out: entries to send, the cursor's position.
Invariants: entries go in the order of the topic, whichever region first published them; what came from the target, what
is not addressed to it, hidden entries, and what an aborted transaction published never go; the cursor moves over an
entry only when everything before it is confirmed or never goes. After a lost connection everything that is neither
confirmed nor found in the cluster's topic (`replicator.pulsar.arrived_entries`) goes again.
Source: docs/protocols/interop.md.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.model.errors import CorruptData
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.kafka.entry_conversion import as_pulsar
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.pulsar.geo_replication import MARKER_RECEIPT, SOURCE_POSITION, sources_of
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, FLAG_MARKER, Buffer, Run
from replicator.log.transaction_buffer import TransactionBuffer

log = logging.getLogger("replicator.pulsar")

_NEVER = FLAG_HIDDEN | FLAG_MARKER
"""Ends of transactions among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSenderSettings:
    """What may be sent and not confirmed."""

    entries_max: int = 1000
    bytes_max: int = 8 << 20


class Outgoing(NamedTuple):
    """One entry to send. `number`: the sequence of its SEND, ascending on a connection."""

    number: int
    messages: int
    metadata: MessageMetadata
    payload: Buffer


class _Step(NamedTuple):
    """One entry sent, and how far the topic is done with once it is confirmed."""

    end: Position
    position: Position
    number: int
    size_bytes: int
    messages: int


class PulsarSender:
    """`mark`: everything at or below it needs no sending any more."""

    __slots__ = (
        "_steps",
        "by_position",
        "bytes_in_flight",
        "mark",
        "messages_out",
        "numbers",
        "read_at",
        "receipts",
        "settings",
        "size_out",
        "source",
        "target",
    )

    def __init__(self, source: str, target: str, mark: Position, settings: PulsarSenderSettings | None = None) -> None:
        """source: what the target knows this region as."""
        self.source, self.target, self.mark = source, target, mark
        self.settings = settings or PulsarSenderSettings()
        self.read_at: Position = BEFORE_ALL
        self.by_position = False
        """Receipts name the position of their entry here."""
        self.numbers = self.bytes_in_flight = self.receipts = 0
        self.messages_out = self.size_out = 0
        """What the cluster has confirmed since this core was made, in messages and in bytes."""
        self._steps: deque[_Step] = deque()

    def opened(self, by_position: bool, there: Position = BEFORE_ALL) -> None:
        """A connection with a producer stands: everything behind `mark` goes again, but for what the cluster was found
        to have, up to `there`.
        """
        self.mark = max(self.mark, there)
        self._steps.clear()
        self.by_position, self.bytes_in_flight, self.numbers = by_position, 0, 0
        self.read_at = (self.mark[0], self.mark[1] + 1)

    @property
    def in_flight(self) -> int:
        return len(self._steps)

    @property
    def room(self) -> bool:
        """Whether more may be sent; one entry at least may, while nothing is in flight."""
        return not self._steps or (
            len(self._steps) < self.settings.entries_max and self.bytes_in_flight < self.settings.bytes_max
        )

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def take(self, ledger: int, first: int, run: Run, transactions: TransactionBuffer | None) -> list[Outgoing]:
        """The next run of the topic, at `read_at`. Returns what to send of it. Raises CorruptData where an entry cannot
        be read.
        """
        self.read_at = (ledger, first + run.count)
        if transactions is not None and transactions.is_aborted(run):
            self._pass_by((ledger, first + run.count - 1))
            return []
        out: list[Outgoing] = []
        for index, part in enumerate(run.parts):
            position = (ledger, first + index)
            flags = 0 if run.flags is None else run.flags[index]
            outgoing = (
                None
                if flags & _NEVER
                else self._outgoing(position, part, flags, 1 if run.counts is None else run.counts[index])
            )
            if outgoing is None:
                self._pass_by(position)
                continue
            size = len(part)
            self._steps.append(_Step(position, position, outgoing.number, size, outgoing.messages))
            self.bytes_in_flight += size
            out.append(outgoing)
        return out

    def _outgoing(self, position: Position, part: Buffer, flags: int, messages: int) -> Outgoing | None:
        shown = part
        if flags & FLAG_KAFKA:
            try:
                shown = as_pulsar(part)
            except CorruptData as error:  # the cluster's clients could not be given it either
                extra = {"target": self.target, "position": position, "error": str(error)}
                log.warning("cluster.unreadable_skipped", extra=extra)
                return None
        metadata, payload = entry_metadata(shown)
        if metadata.replicate_to and self.target not in metadata.replicate_to:
            return None
        if metadata.replicated_from and self.target in sources_of(part):
            return None
        metadata.replicated_from = self.source  # whichever region published: the target knows this one alone
        metadata.ClearField("marker_type")  # a client's, taken by an earlier version: the target would obey it
        if metadata.HasField("txnid_least_bits"):
            metadata.ClearField("txnid_least_bits")
            metadata.ClearField("txnid_most_bits")
        kept = [pair for pair in metadata.properties if pair.key != SOURCE_POSITION]
        if len(kept) < len(metadata.properties):  # of another cluster's copy
            del metadata.properties[:]
            metadata.properties.extend(kept)
        metadata.properties.add(key=SOURCE_POSITION, value=f"{position[0]}:{position[1]}")
        return Outgoing(self.next_number(), messages, metadata, payload)

    def _pass_by(self, end: Position) -> None:
        """What does not go waits for nothing but what is before it."""
        if self._steps:
            self._steps[-1] = self._steps[-1]._replace(end=end)
        else:
            self.mark = max(self.mark, end)

    def skip_to(self, first: Position) -> None:
        """What lay before `first` is not there any more."""
        self.read_at = first
        if not self._steps:
            self.mark = max(self.mark, (first[0], first[1] - 1))

    def receipt(self, sequence: int, highest: int) -> bool:
        """The target has stored, or had before, everything up to this one. Returns whether `mark` moved.

        A marker's receipt names its number, which is no position: where entries are known by position, it confirms
        none.
        """
        steps, moved = self._steps, False
        if self.by_position and highest == MARKER_RECEIPT:
            return False
        while steps and (steps[0].position <= (sequence, highest) if self.by_position else steps[0].number <= sequence):
            step = steps.popleft()
            self.mark, moved = step.end, True
            self.bytes_in_flight -= step.size_bytes
            self.messages_out += step.messages
            self.size_out += step.size_bytes
            self.receipts += 1
        return moved

    def behind(self, last_confirmed: Position) -> bool:
        return bool(self._steps) or self.read_at <= last_confirmed
