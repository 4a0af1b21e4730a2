"""Run: the consecutive entries of one topic that travel together.

Is: the value that goes from a socket's read to the bookies, the cache, consumers, and links; cutting it, joining
several.
Isn't: one object an entry. What an entry holds (checksum, metadata, payload as the client sent them) is never looked
into here.
Invariants: every sub-range of a run is itself a valid run; `size_bytes` is the sum of `lengths`; `1 <= count <= 512`.

Its encoding, a block, is `heliograph.wire.block`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from heliograph.model.errors import CorruptData

Buffer = bytes | bytearray | memoryview
Origin = tuple[int, int, int]
"""(region number, region epoch, incarnation)."""
Span = tuple[int, int, int]
"""(ledger, first entry, count): consecutive coordinates."""
TxnId = tuple[int, int]
"""(coordinator, number): Pulsar's most and least bits of a transaction."""
ProducerSegment = tuple[str, int, int, tuple[tuple[int, int], ...] | None]
"""(producer name, count, first sequence, pairs of (sequence, highest sequence) or None where each entry is one message
and sequences are consecutive).
"""


class Seal(NamedTuple):
    """How the bytes of a sealed run are opened. Every piece that is cut of it has the same one, but for `offset`."""

    key: int
    """Number of the data key."""
    salt: int
    """The writer's salt: with the ledger it makes the key that is used once for each `first`."""
    first: int
    """Entry id of the first entry that was sealed."""
    offset: int
    """Where the first entry of this piece begins in the opened bytes."""
    header: bytes | None = None
    """What was authenticated with the bytes: the header of the whole run's block (`heliograph.wire.block`). None: the
    run was sealed without, by a version before there was one.
    """


COUNT_MAX = 512
BYTES_MAX = 1 << 20

FLAG_HIDDEN = 1
FLAG_MARKER = 2
FLAG_TRANSACTIONAL = 4
FLAG_KAFKA = 8
"""Its payload is a Kafka record batch: clients see it, each protocol's in its own form
(`heliograph.wire.kafka.entry_conversion`).
"""
FLAG_TREE = 16
"""With FLAG_HIDDEN: by which ways the entries behind it go to other regions (`replicator.log.routing_trees`)."""
FLAG_PASSING = 32
"""With FLAG_HIDDEN: an entry for regions further down that is not meant for this one."""

_JOIN_BELOW = 8192


class Run:
    """Columns for `count` entries. Immutable once built.

    parts: the entries' bytes, one buffer each (from the checksum magic on, without the client's command); None where
    `body` holds them joined.
    lengths: bytes of each entry.       counts: messages in each entry, or None where each holds one.
    flags: FLAG_* of each entry, or None where all are 0.
    time_ms: broker time.               first_index: index of the first message in the topic.
    origin: of a replicated run; None where it was first published here, and its coordinate is its position.
    spans: coordinates of a replicated run, as runs of consecutive ones.      origin_time_ms: broker time at the origin.
    checksums: crc32c of each entry as it was first published, of a replicated run.
    producers: who published them, as run-length segments; may be empty (hidden entries).
    transaction: that all of them belong to, or that they end (a marker); None: none.
    leadership: of its namespace when it was first published, as the epoch with which that began; 0: every region took
    messages.
    seal: None where the bytes are the entries'. A sealed run can be cut and stored; whoever wants its entries opens it
    first.
    """

    __slots__ = (
        "_parts",
        "body",
        "checksums",
        "count",
        "counts",
        "first_index",
        "flags",
        "leadership",
        "lengths",
        "origin",
        "origin_time_ms",
        "producers",
        "seal",
        "size_bytes",
        "spans",
        "time_ms",
        "transaction",
    )

    def __init__(
        self,
        parts: Sequence[Buffer] | None,
        lengths: Sequence[int],
        *,
        counts: Sequence[int] | None = None,
        flags: Sequence[int] | None = None,
        time_ms: int = 0,
        first_index: int = 0,
        origin: Origin | None = None,
        spans: tuple[Span, ...] = (),
        origin_time_ms: int = 0,
        checksums: Sequence[int] | None = None,
        producers: tuple[ProducerSegment, ...] = (),
        body: Buffer | None = None,
        transaction: TxnId | None = None,
        leadership: int = 0,
        seal: Seal | None = None,
    ) -> None:
        assert parts is not None or body is not None
        self._parts, self.lengths, self.count, self.size_bytes = parts, lengths, len(lengths), sum(lengths)
        self.counts, self.flags = counts, flags
        self.time_ms, self.first_index = time_ms, first_index
        self.origin, self.spans, self.origin_time_ms, self.checksums = origin, spans, origin_time_ms, checksums
        self.producers = producers
        self.transaction, self.leadership = transaction, leadership
        self.body = body
        self.seal = seal

    @property
    def parts(self) -> Sequence[Buffer]:
        """The entries' bytes, one buffer each; views of `body` are cut when they are first asked for."""
        if self._parts is None:
            assert self.body is not None
            if self.seal is not None:
                raise CorruptData(f"the entries are sealed with data key {self.seal.key:016x}, and were not opened")
            view, ends = memoryview(self.body), accumulate(self.lengths)
            self._parts = [view[end - size : end] for end, size in zip(ends, self.lengths, strict=True)]
        return self._parts

    @property
    def messages(self) -> int:
        """How many messages the entries hold together."""
        return self.count if self.counts is None else sum(self.counts)

    def messages_before(self, index: int) -> int:
        return index if self.counts is None else sum(self.counts[:index])

    def buffers(self) -> Sequence[Buffer]:
        """The entries' bytes for a gathered write: one joined buffer where entries are small, else the parts."""
        if self.body is None and self.count > 1 and self.size_bytes < _JOIN_BELOW * self.count:
            self.own_bytes()
        return self.parts if self.body is None else (self.body,)

    def own_bytes(self) -> None:
        """Copies the entries into one buffer of this run's own, so that it keeps no received block alive."""
        self.body, self._parts = b"".join(self.parts) if self.seal is None else bytes(self.body or b""), None

    def coordinate(self, index: int) -> tuple[int, int]:
        """Where entry `index` of a replicated run was first published: (ledger, entry)."""
        for ledger, first, count in self.spans:
            if index < count:
                return ledger, first + index
            index -= count
        raise IndexError("beyond the run")

    def cut(self, start: int, stop: int) -> Run:
        """The entries [start, stop) as a run of their own; this very run where that is all of it."""
        if start == 0 and stop == self.count:
            return self
        assert 0 <= start < stop <= self.count
        seal = self.seal
        return Run(
            self.parts[start:stop] if seal is None else None,
            self.lengths[start:stop],
            counts=None if self.counts is None else self.counts[start:stop],
            flags=None if self.flags is None else self.flags[start:stop],
            time_ms=self.time_ms,
            first_index=self.first_index + self.messages_before(start),
            origin=self.origin,
            spans=_cut_spans(self.spans, start, stop),
            origin_time_ms=self.origin_time_ms,
            checksums=None if self.checksums is None else self.checksums[start:stop],
            producers=_cut_producers(self.producers, start, stop),
            transaction=self.transaction,
            leadership=self.leadership,
            body=None if seal is None else self.body,
            seal=None if seal is None else seal._replace(offset=seal.offset + sum(self.lengths[:start])),
        )

    def select(self, keep: Sequence[int]) -> Run:
        """The entries at the indexes `keep` (ascending, at least one). First index and spans follow; of local runs,
        spans must be set first.
        """
        pieces: list[tuple[int, int]] = []
        for index in keep:
            if pieces and pieces[-1][1] == index:
                pieces[-1] = (pieces[-1][0], index + 1)
            else:
                pieces.append((index, index + 1))
        return join([self.cut(start, stop) for start, stop in pieces])

    def as_replicated(self, origin: Origin, ledger: int, first: int, checksums: Sequence[int]) -> Run:
        """A run that was first published here at (ledger, first), as it goes to another region."""
        assert self.seal is None
        made = self._twin()
        made.origin, made.spans, made.origin_time_ms, made.checksums = (
            origin,
            ((ledger, first, self.count),),
            self.time_ms,
            checksums,
        )
        return made

    def with_parts(self, parts: Sequence[Buffer], *, flags: Sequence[int] | None, body: Buffer | None = None) -> Run:
        """The same entries in other bytes: one part for each of them; everything else is as it was."""
        made = self._twin()
        made.lengths = [len(part) for part in parts]
        made._parts, made.body, made.flags, made.seal, made.size_bytes = parts, body, flags, None, sum(made.lengths)
        return made

    def flagged(self, flags: Sequence[int] | None) -> Run:
        """The same entries with other flags, in no transaction: as they are shown to a reader. Nothing is copied."""
        assert self.seal is None
        made = self._twin()
        made.flags, made.transaction = flags, None
        return made

    def led_by_none(self) -> Run:
        """The same entries, as if every region had taken messages."""
        made = self._twin()
        made.leadership = 0
        return made

    def with_body(self, body: Buffer, seal: Seal | None) -> Run:
        """The same entries, sealed or opened; everything else is as it was."""
        made = self._twin()
        made._parts, made.body, made.seal = None, body, seal
        return made

    def _twin(self) -> Run:
        """All columns of this run; whoever asks changes some before it gives it away."""
        made = Run.__new__(Run)
        made._parts, made.body, made.seal = self._parts, self.body, self.seal
        made.lengths, made.count, made.size_bytes = self.lengths, self.count, self.size_bytes
        made.counts, made.flags, made.time_ms, made.first_index = (
            self.counts,
            self.flags,
            self.time_ms,
            self.first_index,
        )
        made.origin, made.spans, made.origin_time_ms, made.checksums = (
            self.origin,
            self.spans,
            self.origin_time_ms,
            self.checksums,
        )
        made.producers, made.transaction, made.leadership = self.producers, self.transaction, self.leadership
        return made


def join(runs: Sequence[Run]) -> Run:
    """Runs of one origin, transaction, and leadership, one behind another, as one. The caller keeps COUNT_MAX and
    BYTES_MAX. Index and times are the first one's.
    """
    if len(runs) == 1:
        return runs[0]
    head = runs[0]
    parts: list[Buffer] = []
    lengths: list[int] = []
    spans: list[Span] = []
    producers: list[ProducerSegment] = []
    for run in runs:
        parts += run.parts
        lengths += run.lengths
        spans += run.spans
        producers += run.producers
    return Run(
        parts,
        lengths,
        counts=None if all(r.counts is None for r in runs) else [c for r in runs for c in (r.counts or [1] * r.count)],
        flags=None if all(r.flags is None for r in runs) else [f for r in runs for f in (r.flags or [0] * r.count)],
        time_ms=head.time_ms,
        first_index=head.first_index,
        origin=head.origin,
        spans=_merge_spans(spans),
        origin_time_ms=head.origin_time_ms,
        checksums=None if head.checksums is None else [c for r in runs for c in (r.checksums or ())],
        producers=_merge_producers(producers),
        transaction=head.transaction,
        leadership=head.leadership,
    )


def _cut_spans(spans: tuple[Span, ...], start: int, stop: int) -> tuple[Span, ...]:
    out: list[Span] = []
    at = 0
    for ledger, first, count in spans:
        low, high = max(start, at), min(stop, at + count)
        if low < high:
            out.append((ledger, first + low - at, high - low))
        at += count
    return tuple(out)


def _merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    out: list[Span] = []
    for ledger, first, count in spans:
        if out and out[-1][0] == ledger and out[-1][1] + out[-1][2] == first:
            out[-1] = (ledger, out[-1][1], out[-1][2] + count)
        else:
            out.append((ledger, first, count))
    return tuple(out)


def _cut_producers(producers: tuple[ProducerSegment, ...], start: int, stop: int) -> tuple[ProducerSegment, ...]:
    out: list[ProducerSegment] = []
    at = 0
    for name, count, first, pairs in producers:
        low, high = max(start, at), min(stop, at + count)
        if low < high:
            if pairs is None:
                out.append((name, high - low, first + low - at, None))
            else:
                kept = pairs[low - at : high - at]
                out.append((name, high - low, kept[0][0], kept))
        at += count
    return tuple(out)


def _merge_producers(producers: Iterable[ProducerSegment]) -> tuple[ProducerSegment, ...]:
    out: list[ProducerSegment] = []
    for name, count, first, pairs in producers:
        if out and out[-1][0] == name and pairs is None and out[-1][3] is None and out[-1][2] + out[-1][1] == first:
            out[-1] = (name, out[-1][1] + count, out[-1][2], None)
        else:
            out.append((name, count, first, pairs))
    return tuple(out)
