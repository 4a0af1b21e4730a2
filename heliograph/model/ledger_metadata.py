"""Metadata of ledgers and managed ledgers, as it lies in a region's local metadata.

Is: the values, and their encoding (msgpack behind a version byte). Isn't: who changes them, and when.
Keys are ordered so that a bundle loads with one range read: /ml/{namespace}/{hash:08x}/{topic}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Any, Self

import msgpack

from heliograph.model.errors import CorruptData
from heliograph.model.striping import Striping

FORMAT = 1
PLACED = 2
"""The format of the metadata of a ledger that is striped, or kept to some bookies: a version that knows of neither
refuses it, and so never looks for an entry where it is not, or puts a copy where none may be.
"""
SEALED = 3
"""The format of the metadata of a ledger of which nothing may be read that is not sealed. A version that does not know
of that refuses it.
"""


IN_COLUMNS = 2
"""The format of a topic's metadata with very many offloaded ledgers: the same in less than half the bytes."""
_COLUMNS_FROM = 1000
PAGED = 3
"""The format of a topic's metadata that names pages of ledgers, each a value of its own. A version that does not know
of pages refuses it.
"""

TRIMMED_MS = "heliograph.trimmed_ms"
"""Property of a topic's metadata: wall time of the closing of the newest ledger that was trimmed, so that the first one
left was begun no earlier.
A version that does not know of it keeps it as it is, or leaves it out: then that ledger counts as older than it is.
"""


class LedgerState(IntEnum):
    OPEN = 0
    IN_RECOVERY = 1
    CLOSED = 2


def pack(fields: list[Any], version: int = FORMAT) -> bytes:
    """A version byte, then the fields."""
    packed: bytes = msgpack.packb(fields)
    return bytes([version]) + packed


def unpack(kind: str, blob: bytes, newest: int = FORMAT) -> list[Any]:
    """Raises CorruptData where the bytes are no `kind` of a format that this version reads."""
    if not blob or not FORMAT <= blob[0] <= newest:
        raise CorruptData(
            f"{kind}: format {blob[0] if blob else 'none'} is not known here (this version reads formats up to "
            f"{newest})"
        )
    try:
        fields = msgpack.unpackb(memoryview(blob)[1:], strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"{kind}: {error}") from error
    if not isinstance(fields, list):
        raise CorruptData(f"{kind}: expected a list of fields")
    return fields


@dataclass(frozen=True, slots=True)
class Affinity:
    """Groups of bookies (`bookie.group`) that a ledger is kept to; of the secondary ones where the primary ones have
    too few. No primary: all bookies.
    """

    primary: tuple[str, ...] = ()
    secondary: tuple[str, ...] = ()

    def allows(self, group: str) -> bool:
        return not self.primary or group in self.primary or group in self.secondary


ANYWHERE = Affinity()


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One ledger. `fragments`: (first entry, bookie ids), the first at entry 0; a later fragment replaces from its
    first entry on.
    """

    ledger: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[tuple[int, tuple[str, ...]], ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    """Where a closed ledger ends; -1 where it is empty or not closed."""
    size_bytes: int = 0
    topic: str = ""
    """Whose it is; "" where it is no topic's."""
    owner: int = 0
    """`ManagedLedgerMetadata.owner` of the opening that made it: once the topic has another one, nobody will name this
    ledger who has not done so.
    """
    stride: int = 0
    """Entries of a stripe, where the ensemble is wider than the write quorum; else 0."""
    affinity: Affinity = ANYWHERE
    seal_form: int = 0
    """The form (`storage.sealing.cipher`) that each run has at the least; 0: a run may be open, or of any form."""

    @property
    def striping(self) -> Striping:
        return Striping(len(self.fragments[0][1]), self.write_quorum, self.stride or 1)

    def write_set(self, entry: int) -> tuple[str, ...]:
        """The bookies that hold `entry`."""
        ensemble = self.ensemble_at(entry)
        return tuple(ensemble[place] for place in self.striping.places(entry))

    def ensemble_at(self, entry: int) -> tuple[str, ...]:
        """The bookies of the fragment of `entry`: those that hold it are among them (`write_set`)."""
        chosen = self.fragments[0][1]
        for first, bookies in self.fragments:
            if first > entry:
                break
            chosen = bookies
        return chosen

    def with_fragment(self, first: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        kept = tuple(f for f in self.fragments if f[0] < first)
        return replace(self, fragments=(*kept, (first, bookies)))

    def encode(self) -> bytes:
        places = [self.write_quorum, self.ack_quorum, self.fragments]
        fields = [self.ledger, *places, int(self.state), self.last_entry, self.size_bytes, self.topic, self.owner]
        if self.seal_form:
            affinity = self.affinity
            return pack([*fields, self.stride, affinity.primary, affinity.secondary, self.seal_form], SEALED)
        if not self.stride and self.affinity == ANYWHERE:
            return pack(fields)
        return pack([*fields, self.stride, self.affinity.primary, self.affinity.secondary], PLACED)

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        fields = unpack("ledger metadata", blob, SEALED)
        try:
            ledger, write_quorum, ack_quorum, fragments, state, last, size, topic, owner, *more = fields
            stride, primary, secondary, *forms = more or (0, (), ())
            (seal_form,) = forms or (0,)
            affinity = Affinity(tuple(primary), tuple(secondary)) if primary or secondary else ANYWHERE
            places = tuple((first, tuple(bookies)) for first, bookies in fragments)
            told = LedgerState(state), last, size, topic, owner, stride, affinity, seal_form
            return cls(ledger, write_quorum, ack_quorum, places, *told)
        except (ValueError, TypeError) as error:
            raise CorruptData(f"ledger metadata: {error}") from error


class OffloadState(IntEnum):
    BEGUN = 0
    """An upload was begun; its object may be there, in part, or not at all, and nothing reads it."""
    STORED = 1
    """The object is whole and was verified; the local copy is there too."""
    LOCAL_GONE = 2
    """Only the object is left."""


@dataclass(frozen=True, slots=True)
class OffloadRecord:
    """Where the object of an offloaded ledger lies; the numbers are 0 while it is BEGUN."""

    attempt: str
    """Hexadecimal, of one upload: no two objects ever have the same name."""
    holder: str
    """The region's metadata that made the object: its folder in the store. Another holder's objects are read, and never
    deleted.
    """
    state: OffloadState = OffloadState.BEGUN
    store: str = ""
    """URL of the store; "" is the one that brokers are set to."""
    size_bytes: int = 0
    index_bytes: int = 0
    stored_ms: int = 0
    """Wall time of the commit."""
    seal_form: int = 0
    """As `LedgerMetadata.seal_form`, of what was uploaded."""
    data_key: int = 0
    """Number of a data key; no older one sealed any of it. 0: not known: those of the ledger's time did."""
    also: str = ""
    """Attempt of a second object that is kept: one that is uploaded to take this one's place, or the one whose place
    this one took, as long as a manifest may name it.
    """

    def fields(self) -> list[Any]:
        sizes = self.size_bytes, self.index_bytes, self.stored_ms
        return [self.attempt, self.holder, int(self.state), self.store, *sizes, *_if_any(self)]

    @classmethod
    def of(cls, fields: list[Any]) -> Self:
        attempt, holder, state, *rest = fields
        return cls(attempt, holder, OffloadState(state), *rest)


def _if_any(record: OffloadRecord) -> list[Any]:
    """What is said of its seals, and of a second object. Stands at the end only as far as it is set: earlier versions
    would not read it, and need not while it is not.
    """
    if record.also:
        return [record.seal_form, record.data_key, record.also]
    if record.data_key:
        return [record.seal_form, record.data_key]
    return [record.seal_form] if record.seal_form else []


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """One ledger of a managed ledger. Stored for the open one (`closed_ms` 0): its numbers as of `state_through`."""

    ledger: int
    entries: int = 0
    size_bytes: int = 0
    closed_ms: int = 0
    """Wall time of its closing; 0 where it is open."""
    first_index: int = 0
    """Message index before its first message."""
    offload: OffloadRecord | None = None
    """Says that this closed ledger was, or is being, copied to an object store."""

    def fields(self) -> list[Any]:
        plain = [self.ledger, self.entries, self.size_bytes, self.closed_ms, self.first_index]
        return plain if self.offload is None else [*plain, self.offload.fields()]

    @classmethod
    def of(cls, fields: list[Any]) -> Self:
        ledger, entries, size, closed_ms, first_index, *more = fields
        return cls(ledger, entries, size, closed_ms, first_index, OffloadRecord.of(more[0]) if more else None)


def local_gone(info: LedgerInfo) -> bool:
    """Whether only the object store has it."""
    return info.offload is not None and info.offload.state == OffloadState.LOCAL_GONE


def stored(info: LedgerInfo) -> bool:
    """Whether an object store has it whole."""
    return info.offload is not None and info.offload.state != OffloadState.BEGUN


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """What a topic's metadata says of a page: closed ledgers that follow each other, which lie in a value of their own.

    A page is written once; later only what is said of its ledgers' objects changes. Trimming takes from its front
    without writing it.
    Every number but `key` and `trimmed` is of the ledgers that are left, at least one.
    """

    key: int
    """The first ledger that it was made with: it names the page's value."""
    trimmed: int
    """How many ledgers at its front are gone."""
    count: int
    entries: int
    size_bytes: int
    stored_bytes: int
    """What those ledgers have together that an object store has whole."""
    settled: bool
    """Only an object store has them: of none is anything left to do."""
    first: LedgerInfo
    """Without what is said of its object; so is `last`."""
    last: LedgerInfo

    @classmethod
    def of(cls, key: int, trimmed: int, infos: Sequence[LedgerInfo]) -> Self:
        """infos: those that are left, each closed and with entries."""
        in_store = sum(info.size_bytes for info in infos if stored(info))
        first, last = (replace(info, offload=None) for info in (infos[0], infos[-1]))
        entries, size = sum(info.entries for info in infos), sum(info.size_bytes for info in infos)
        return cls(key, trimmed, len(infos), entries, size, in_store, all(map(local_gone, infos)), first, last)

    def fields(self) -> list[Any]:
        numbers = [
            self.key,
            self.trimmed,
            self.count,
            self.entries,
            self.size_bytes,
            self.stored_bytes,
            int(self.settled),
        ]
        return [*numbers, self.first.fields(), self.last.fields()]

    @classmethod
    def from_fields(cls, fields: list[Any]) -> Self:
        *numbers, settled, first, last = fields
        key, trimmed, count, entries, size, in_store = numbers
        return cls(
            key, trimmed, count, entries, size, in_store, bool(settled), LedgerInfo.of(first), LedgerInfo.of(last)
        )


def encode_page(infos: Sequence[LedgerInfo]) -> bytes:
    """The value of a page: all the ledgers that it was made with."""
    return pack([_columns(infos)])


def page_ledgers(blob: bytes) -> tuple[LedgerInfo, ...]:
    """All the ledgers that a page was made with. Raises CorruptData."""
    return _of_columns(unpack("page of ledgers", blob)[0])


def decode_page(page: LedgerPage, blob: bytes) -> tuple[LedgerInfo, ...]:
    """The same, where they are those that the topic's metadata speaks of. Raises CorruptData."""
    infos = page_ledgers(blob)
    left = infos[page.trimmed :]
    if len(left) != page.count or left[0].ledger != page.first.ledger or left[-1].ledger != page.last.ledger:
        raise CorruptData(f"page of ledgers {page.key}: it holds other ledgers than its topic's metadata says")
    return infos


UNOPENED = -1
"""Is the owner of a topic that was made and never opened."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerMetadata:
    """One topic's storage. `state_blob`: what the layer above keeps (vector, producers, incarnation), as of
    `state_through`.

    next_index: index of the first message behind `state_through`. owner: minted at each opening, so that an owner knows
    its own writes from others'.
    pages: of the ledgers before `ledgers`, where there are very many.
    """

    ledgers: tuple[LedgerInfo, ...] = ()
    state_blob: bytes = b""
    state_through: tuple[int, int] = (-1, -1)
    terminated_at: tuple[int, int] | None = None
    properties: dict[str, str] = field(default_factory=dict)
    next_index: int = 0
    owner: int = 0
    pages: tuple[LedgerPage, ...] = ()

    def spans(self) -> list[tuple[int, int]]:
        """(no earlier than which it was begun, when it was closed) of each ledger, in wall ms, oldest first; a page
        counts as one ledger.

        0 for the first: not known. 0 for the second: it is open.
        """
        text = self.properties.get(TRIMMED_MS, "")
        first = int(text) if text.isascii() and text.isdigit() else 0
        return list(
            pairwise([first, *(page.last.closed_ms for page in self.pages), *(info.closed_ms for info in self.ledgers)])
        )

    def encode(self) -> bytes:
        rest = [self.state_blob, self.state_through, self.terminated_at, self.properties, self.next_index, self.owner]
        if self.pages:
            return pack([_columns(self.ledgers), *rest, [page.fields() for page in self.pages]], PAGED)
        if sum(info.offload is not None for info in self.ledgers) >= _COLUMNS_FROM:
            return pack([_columns(self.ledgers), *rest], IN_COLUMNS)
        return pack([[info.fields() for info in self.ledgers], *rest])

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        ledgers, state_blob, through, terminated, properties, next_index, owner, *more = unpack(
            "managed ledger metadata", blob, PAGED
        )
        return cls(
            _of_columns(ledgers) if blob[0] >= IN_COLUMNS else tuple(LedgerInfo.of(info) for info in ledgers),
            state_blob,
            (through[0], through[1]),
            (terminated[0], terminated[1]) if terminated else None,
            properties,
            next_index,
            owner,
            tuple(LedgerPage.from_fields(page) for page in more[0]) if more else (),
        )


def _columns(infos: Sequence[LedgerInfo]) -> list[Any]:
    """[names, ledgers, entries, bytes, closed ms, first indexes, offloads]: ledgers, times, and indexes as differences
    to the one before.

    names: each holder and store once. offloads: [] or [attempt, holder, store, state, bytes, index bytes, ms after the
    closing, form of its seals where they have one, data key where it was sealed anew, attempt of a second object] of
    each.
    """
    names = list(
        dict.fromkeys(
            name for info in infos if info.offload is not None for name in (info.offload.holder, info.offload.store)
        )
    )
    at = {name: index for index, name in enumerate(names)}
    offloads: list[Any] = []
    for info in infos:
        record = info.offload
        if record is None:
            offloads.append([])
        else:
            sizes = record.size_bytes, record.index_bytes, record.stored_ms - info.closed_ms
            names_at = _short(record.attempt), at[record.holder], at[record.store]
            offloads.append([*names_at, int(record.state), *sizes, *_if_any(record)])
    plain = [[info.ledger for info in infos], [info.closed_ms for info in infos], [info.first_index for info in infos]]
    ledgers, closed, indexes = ([value - before for before, value in pairwise([0, *column])] for column in plain)
    return [
        names,
        ledgers,
        [info.entries for info in infos],
        [info.size_bytes for info in infos],
        closed,
        indexes,
        offloads,
    ]


def _of_columns(columns: Any) -> tuple[LedgerInfo, ...]:
    try:
        names, ledgers, entries, sizes, closed, indexes, offloads = columns
        infos: list[LedgerInfo] = []
        rows = zip(accumulate(ledgers), entries, sizes, accumulate(closed), accumulate(indexes), offloads, strict=True)
        for ledger, count, size_bytes, closed_ms, first_index, offload in rows:
            record: OffloadRecord | None = None
            if offload:
                attempt, holder, store, state, size, index, after_ms, *form = offload
                text = attempt.hex() if isinstance(attempt, bytes) else attempt
                record = OffloadRecord(
                    text, names[holder], OffloadState(state), names[store], size, index, after_ms + closed_ms, *form
                )
            infos.append(LedgerInfo(ledger, count, size_bytes, closed_ms, first_index, record))
        return tuple(infos)
    except (ValueError, TypeError, IndexError) as error:
        raise CorruptData(f"managed ledger metadata: {error}") from error


def _short(attempt: str) -> bytes | str:
    """Half as long, where it is plain hexadecimal."""
    try:
        short = bytes.fromhex(attempt)
    except ValueError:
        return attempt
    return short if short.hex() == attempt else attempt
