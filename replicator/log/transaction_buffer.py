"""TransactionBuffer: which transactions one topic's log holds, and which of their entries readers may see.

Is: open and aborted transactions as the log's entries tell them, the last position that is decided, runs as a reader of
committed data sees them.
Isn't: I/O, the coordinator's decision (`region_node.transactions`), or a copy of any entry: they lie in the log in
place.
Invariants: what is told here in the order of the log gives the same state however it is cut and wherever a snapshot was
taken; nothing of a transaction is shown before its marker is confirmed; an entry behind the marker of its own
transaction is never shown, unless a verdict committed it; per run one comparison, per entry nothing.
A topic without transactions has no buffer.

A marker, as it lies in a hidden entry (FLAG_HIDDEN | FLAG_MARKER, the run's `transaction` says whose), big endian:

    u8 version (1), u8 action (0 commit, 1 abort), u64 low watermark: every transaction of that coordinator below it has
    ended of a commit over several topics, behind that: u8 version (1), msgpack list of their names. Who knows of none
    passes over it.

In other regions a commit over several topics is *held* when its marker is stored: readers, not links, stop before it
until the marker of every other topic is stored in that region too
(`region_node.transactions.coordinators.replicated_transactions` asks), or is waited for no longer.

A transaction of another region whose end was deleted with its topic is aborted where the SKIP that names it deleted is
stored: `give_up`.

A verdict is a marker that an operator had written here over a transaction of another region, which is lost: it names
the origin, holds in this region only, and the first end of a transaction is the one that counts, so that what its own
region may say afterwards changes nothing here:

    u8 version (2), u8 action, u64 region number, u64 region epoch, u64 incarnation

A snapshot is a msgpack list: [[open ...], [aborted ...], [watermark ...], committed count, aborted count, [committed
...], [held ...], [held since ...],
                               [forgotten ...]]
    open: origin (list or nil), coordinator, number, first ledger, first entry, last ledger, last entry, entries,
    messages
    aborted: origin or nil, coordinator, last ledger, last entry, [number, difference to the one before ...]
    watermark, committed, forgotten: origin or nil, coordinator, number
    held: origin, coordinator, number, first ledger, first entry, [topic ...]; the oldest, at most HELD_BYTES_MAX: the
    others are shown alone after a crash held since: of each of them, when its marker was stored here, ms

A transaction is named by the origin of its entries too (None: first published here): two regions' coordinators know
nothing of each other.
Source: docs/protocols/transactions.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.positions import Position
from heliograph.wire.run import FLAG_HIDDEN, FLAG_MARKER, Origin, Run, TxnId

VERSION = 1
COMMIT, ABORT = 0, 1
OPEN_MAX = 4000
ABORTED_MAX = 100_000
"""In one topic, so that its snapshot stays below half of what the metadata takes in one value."""
ENDED_MAX = 2000
"""Committed transactions that are remembered above the watermark, so that nothing is published into them afterwards. Of
those that are forgotten before they are below it, the highest number stays.
"""
PARTICIPANTS_MAX = 200
"""A commit over more topics names none of them: each shows its part when it is there."""
HELD_MAX = 4000
HELD_BYTES_MAX = 192 << 10
"""How much of a snapshot held commits may take: names of topics are long."""
_MARKER = struct.Struct(">BBQ")
_VERDICT = struct.Struct(">BBQQQ")
_VERDICT_VERSION = 2
_MARKED = FLAG_HIDDEN | FLAG_MARKER
_ROW = 512
Key = tuple[Origin | None, int, int]
Piece = tuple[int, int, Run]


class Open:
    """A transaction whose end is not in the log yet."""

    __slots__ = ("entries", "first", "last", "messages")

    def __init__(self, first: Position, last: Position, entries: int, messages: int) -> None:
        self.first, self.last, self.entries, self.messages = first, last, entries, messages


class UnseenCommit:
    """A committed transaction of another region that readers do not see yet. waits: topics whose part may not be here;
    at_ms: when its marker was stored here, 0: not known; since: from when on they are waited for, in monotonic seconds,
    None: they were not asked for yet.
    """

    __slots__ = ("at_ms", "first", "since", "waits")

    def __init__(self, first: Position, waits: Iterable[str], at_ms: int = 0) -> None:
        self.first, self.waits, self.at_ms = first, dict.fromkeys(waits), at_ms
        self.since: float | None = None


def marker_run(txn: TxnId, action: int, low_watermark: int, others: Sequence[str] = ()) -> Run:
    """The hidden entry that ends a transaction in a topic: of no message. others: topics that it commits in as well."""
    blob = _MARKER.pack(VERSION, action, low_watermark)
    if others and action == COMMIT and len(others) <= PARTICIPANTS_MAX:
        blob += pack(list(others))
    return Run([blob], [len(blob)], counts=(0,), flags=(_MARKED,), transaction=txn)


def read_marker(blob: Any) -> tuple[int, int]:
    """(action, low watermark). Raises CorruptData."""
    try:
        version, action, low = _MARKER.unpack_from(blob)
    except struct.error as error:
        raise CorruptData(f"transaction marker: {error}") from error
    if version != VERSION or action not in (COMMIT, ABORT):
        raise CorruptData(
            f"transaction marker: version {version}, action {action}; this version reads version {VERSION}"
        )
    return action, low


def read_participants(blob: Any) -> list[str]:
    """The other topics that a marker names, each as `only_to` writes it, or by its name alone. Raises CorruptData."""
    more = bytes(blob[_MARKER.size :])
    found = unpack("transaction marker", more) if more else []
    if len(found) > PARTICIPANTS_MAX or not all(isinstance(name, str) for name in found):
        raise CorruptData("transaction marker: what is behind it is no list of topics")
    return found


def only_to(topic: str, regions: Sequence[str]) -> str:
    """As a marker names a topic that its region sends to these alone: `REGION,REGION|TOPIC`. Earlier versions take that
    for no name, and wait for nothing.
    """
    return f"{','.join(regions)}|{topic}"


def destination(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Takes a name in a marker apart: (the topic, the regions that it is sent to alone; None: to those of its
    namespace).
    """
    regions, bar, topic = text.partition("|")
    return (topic, tuple(regions.split(","))) if bar and "/" not in regions else (text, None)


def verdict_run(origin: Origin, txn: TxnId, action: int) -> Run:
    """The hidden entry that ends a transaction of another region in this region's log: of no message."""
    blob = _VERDICT.pack(_VERDICT_VERSION, action, *origin)
    return Run([blob], [len(blob)], counts=(0,), flags=(_MARKED,), transaction=txn)


def read_verdict(blob: Any) -> tuple[Origin, int] | None:
    """(whose transaction, action); None: it is another marker."""
    if len(blob) != _VERDICT.size:
        return None
    version, action, number, epoch, incarnation = _VERDICT.unpack(blob)
    return ((number, epoch, incarnation), action) if version == _VERDICT_VERSION and action in (COMMIT, ABORT) else None


def is_commit(run: Run) -> bool:
    """Says whether a marker commits in other regions too. Raises CorruptData."""
    return read_verdict(run.parts[0]) is None and read_marker(run.parts[0])[0] == COMMIT


def is_marker(run: Run) -> bool:
    """Whether a run is the end of a transaction; markers are runs of their own."""
    return run.transaction is not None and run.flags is not None and run.flags[0] & _MARKED == _MARKED


def below(pieces: list[Piece], end: Position) -> list[Piece]:
    """The part of `pieces` that lies before `end`."""
    if not pieces or (pieces[-1][0], pieces[-1][1] + pieces[-1][2].count - 1) < end:
        return pieces
    kept: list[Piece] = []
    for ledger, first, run in pieces:
        if (ledger, first + run.count - 1) < end:
            kept.append((ledger, first, run))
            continue
        if (ledger, first) < end:
            kept.append((ledger, first, run.cut(0, end[1] - first)))
        break
    return kept


class TransactionBuffer:
    """The transactions in the log of one topic in one region. Told of entries in the order of the log."""

    __slots__ = (
        "_committed",
        "_forgotten",
        "_held_from",
        "_low",
        "aborted",
        "aborts",
        "commits",
        "held",
        "on_held",
        "open",
    )

    def __init__(self) -> None:
        self.open: dict[Key, Open] = {}
        """In the order of their first entries."""
        self.aborted: dict[Key, Position] = {}
        """Aborted transactions -> the last of their entries."""
        self.held: dict[Key, UnseenCommit] = {}
        """In the order of their ends."""
        self._held_from: Position | None = None
        """The first entry of those; None: to be looked for."""
        self.on_held: Callable[[], None] | None = None
        """Called when one is added."""
        self.commits = self.aborts = 0
        """How many ended in this topic."""
        self._committed: dict[Key, None] = {}
        self._forgotten: dict[tuple[Origin | None, int], int] = {}
        self._low: dict[tuple[Origin | None, int], int] = {}

    # -- what the log tells, in its order ------------------------------------------------------------------------------

    def confirm(self, ledger: int, first: int, run: Run) -> None:
        """A run with a transaction lies at (ledger, first): entries, or a marker."""
        assert run.transaction is not None
        key = (run.origin, *run.transaction)
        if is_marker(run):
            if (verdict := read_verdict(run.parts[0])) is not None and run.origin is None:
                self._end((verdict[0], *run.transaction), verdict[1], 0)
            else:
                found, (action, low) = self.open.get(key), read_marker(run.parts[0])
                self._end(key, action, low)
                if action == COMMIT and run.origin is not None and (found is not None or key in self.held):
                    others = read_participants(run.parts[0])
                    if found is None:
                        self._wait_for_less(key, others)
                    elif others:
                        self._hold(key, UnseenCommit(found.first, others, run.time_ms))
            return
        last = (ledger, first + run.count - 1)
        if key in self.aborted:
            self.aborted[key] = max(last, self.aborted[key])
        elif (
            key in self._committed
        ):  # the rest of one that was committed here by a verdict; of our own it cannot be: `refuses` stands before it
            return
        elif (found := self.open.get(key)) is None:
            if run.origin is not None and key[2] < self._low.get(key[:2], 0):
                return  # an audit has appended it late: its transaction has ended, and was not aborted
            self.open[key] = Open((ledger, first), last, run.count, run.messages)
        elif last > found.last:  # not replayed again
            found.last = last
            found.entries += run.count
            found.messages += run.messages

    def end_own(self, run: Run, through: Position) -> None:
        """The commit of a transaction of this region that another one brought back: what was published of it up to
        `through` lies here as what is first published here. An abort is told to nobody, and so by nobody.
        """
        assert run.transaction is not None
        key = (None, *run.transaction)
        if (found := self.open.get(key)) is not None and found.first <= through and is_commit(run):
            self._end(key, COMMIT, 0)

    def _hold(self, key: Key, held: UnseenCommit) -> None:
        if not self.held:
            self._held_from = held.first
        elif self._held_from is not None:
            self._held_from = min(self._held_from, held.first)
        self.held[key] = held
        if len(self.held) > HELD_MAX:
            del self.held[next(iter(self.held))]
            self._held_from = None
        if self.on_held is not None:
            self.on_held()

    def _wait_for_less(self, key: Key, others: Sequence[str]) -> None:
        """Its region says once more what else it commits in: of the other topics that it named nothing will come."""
        held, named = self.held[key], {destination(other)[0] for other in others}
        held.waits = {other: None for other in held.waits if destination(other)[0] in named}
        if self.on_held is not None:
            self.on_held()

    def release(self, key: Key) -> None:
        """Readers see it from now on."""
        if (gone := self.held.pop(key, None)) is not None and gone.first == self._held_from:
            self._held_from = None

    def has_ended_abroad(self, region: int, epoch: int, coordinator: int, number: int) -> bool:
        """Whether the end of that transaction of another region is stored here, whichever incarnation of the topic it
        was published in.

        Of those below the watermark the log may no longer tell: they have ended, and their ends came before whatever
        told the watermark.
        """
        origins = [
            origin
            for origin, by in self._low
            if by == coordinator and origin is not None and origin[:2] == (region, epoch)
        ]
        keys: list[Key] = [(origin, coordinator, number) for origin in origins]
        return any(
            key in self._committed or key in self.held or key in self.aborted or number < self._low[key[:2]]
            for key in keys
        )

    def _end(self, key: Key, action: int, low: int) -> None:
        coordinator = key[:2]
        self._low[coordinator] = max(low, self._low.get(coordinator, 0))
        found = self.open.pop(key, None)
        if action == COMMIT:
            if key not in self._committed and key not in self.aborted:
                self.commits += 1
                self._committed[key] = None
        elif key not in self.aborted and key not in self._committed:
            self.aborts += 1
            if found is not None:
                self.aborted[key] = found.last
            else:  # nothing of it is here; and nothing may come
                self.aborted[key] = (-1, -1)
        if len(self._committed) > ENDED_MAX:
            self._forget_committed()

    def give_up(self, origin: Origin) -> None:
        """Nothing can come of that incarnation any more: what is open of it has no end, and is aborted here."""
        for key in [key for key in self.open if key[0] == origin]:
            self._end(key, ABORT, 0)

    def _forget_committed(self) -> None:
        """Forgets those below the watermark, of which nothing can come any more; beyond the bound the oldest go
        first.
        """
        self._committed = {key: None for key in self._committed if key[2] >= self._low.get(key[:2], 0)}
        self._forgotten = {by: number for by, number in self._forgotten.items() if number >= self._low.get(by, 0)}
        while len(self._committed) > ENDED_MAX:
            origin, coordinator, number = next(iter(self._committed))
            del self._committed[origin, coordinator, number]
            self._forgotten[origin, coordinator] = max(number, self._forgotten.get((origin, coordinator), 0))

    def trimmed(self, first: Position, over: Container[Origin | None] = ()) -> None:
        """Nothing before `first` is in the log any more. over: of these incarnations nothing comes any more, and no
        watermark.
        """
        gone = [
            key
            for key, last in self.aborted.items()
            if last < first and (key[2] < self._low.get(key[:2], 0) or key[0] in over)
        ]
        for key in gone:
            del self.aborted[key]

    def origins(self) -> list[Origin]:
        """The other regions' incarnations that have open or aborted transactions."""
        return list(dict.fromkeys(key[0] for key in (*self.open, *self.aborted) if key[0] is not None))

    @property
    def low_watermarks(self) -> Mapping[tuple[Origin | None, int], int]:
        """(origin, coordinator) -> every transaction below that has ended."""
        return self._low

    # -- questions -----------------------------------------------------------------------------------------------------

    def refuses(self, txn: TxnId, open_max: int = OPEN_MAX, aborted_max: int = ABORTED_MAX) -> str:
        """Why nothing may be published in this transaction here; "": it may."""
        key = (None, *txn)
        if (
            key in self.aborted
            or key in self._committed
            or (txn[1] < self._low.get((None, txn[0]), 0) and key not in self.open)
        ):
            return f"transaction {txn[0]}:{txn[1]} has ended in this topic: begin another one"
        if key not in self.open and len(self.open) >= open_max:
            return (
                f"{len(self.open)} transactions are open in this topic, and no more are allowed: wait until some have "
                "ended"
            )
        if len(self.aborted) >= aborted_max:
            return (
                f"{len(self.aborted)} aborted transactions are still retained in this topic: shorten its retention, "
                "or truncate it"
            )
        return ""

    def ended(self, txn: TxnId) -> int | None:
        """COMMIT or ABORT, where the log holds the transaction's end; None where it is not known, or still open."""
        key = (None, *txn)
        return COMMIT if key in self._committed else ABORT if key in self.aborted else None

    def may_have_committed(self, txn: TxnId) -> bool:
        """For a transaction whose end is not known here: says whether that may be because it was forgotten."""
        return txn[1] <= self._forgotten.get((None, txn[0]), -1)

    def undecided_from(self) -> Position | None:
        """The first entry of an open transaction; None: there is none."""
        return next((found.first for found in self.open.values()), None)

    def first_open_here(self) -> tuple[TxnId, Open] | None:
        """The transaction of this region that has been open the longest; None: there is none. What comes from another
        region was decided there, and only its end is still on its way.
        """
        return next((((key[1], key[2]), found) for key, found in self.open.items() if key[0] is None), None)

    def unseen_from(self) -> Position | None:
        """The first entry that readers do not see yet: of an open transaction, or of one that is held; None: there is
        none.
        """
        undecided = self.undecided_from()
        if not self.held:
            return undecided
        if self._held_from is None:
            self._held_from = min(held.first for held in self.held.values())
        return self._held_from if undecided is None else min(self._held_from, undecided)

    def is_aborted(self, run: Run) -> bool:
        """Says whether the run's transaction was aborted. It is decided only for a run before `undecided_from`."""
        return run.transaction is not None and (run.origin, *run.transaction) in self.aborted

    def committed_view(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What a reader of committed data gets for `pieces`, all before `unseen_from`: aborted entries hidden,
        committed ones as any other.
        """
        shown: list[Piece] = []
        for piece in pieces:
            ledger, first, run = piece
            if run.transaction is None or is_marker(run):
                shown.append(piece)
            elif self.is_aborted(run):
                shown.append((ledger, first, run.flagged(bytes([FLAG_HIDDEN]) * run.count)))
            else:
                shown.append((ledger, first, run.flagged(run.flags)))
        return shown

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        held = self._dump_held()
        return [
            [
                [_listed(k[0]), k[1], k[2], *found.first, *found.last, found.entries, found.messages]
                for k, found in self.open.items()
            ],
            self._dump_aborted(),
            [[_listed(k[0]), k[1], low] for k, low in self._low.items()],
            self.commits,
            self.aborts,
            [[_listed(k[0]), k[1], k[2]] for k in self._committed],
            [row for row, _ in held],
            [at_ms for _, at_ms in held],
            [[_listed(origin), coordinator, number] for (origin, coordinator), number in self._forgotten.items()],
        ]

    def _dump_held(self) -> list[tuple[list[Any], int]]:
        rows: list[tuple[list[Any], int]] = []
        left = HELD_BYTES_MAX
        for (origin, coordinator, number), held in self.held.items():
            row = [_listed(origin), coordinator, number, *held.first, list(held.waits)]
            left -= len(pack(row))
            if left < 0:
                break
            rows.append((row, held.at_ms))
        return rows

    def _dump_aborted(self) -> list[list[Any]]:
        """Some three bytes each; what shares a row is forgotten together."""
        of: dict[tuple[Origin | None, int], list[tuple[Position, int]]] = {}
        for (origin, coordinator, number), last in self.aborted.items():
            of.setdefault((origin, coordinator), []).append((last, number))
        rows: list[list[Any]] = []
        for (origin, coordinator), found in of.items():
            found.sort()
            for start in range(0, len(found), _ROW):
                row = found[start : start + _ROW]
                numbers = sorted(number for _, number in row)
                deltas = [number - before for before, number in zip([0, *numbers], numbers, strict=False)]
                rows.append([_listed(origin), coordinator, *row[-1][0], deltas])
        return rows

    def load(self, dumped: list[Any]) -> None:
        opened, aborted, low, self.commits, self.aborts, committed = dumped[:6]
        self.open = {
            (_origin(o), tc, n): Open((a, b), (c, d), entries, messages)
            for o, tc, n, a, b, c, d, entries, messages in opened
        }
        self.aborted = {(_origin(o), tc, n): (a, b) for o, tc, a, b, deltas in aborted for n in accumulate(deltas)}
        self._low = {(_origin(o), tc): number for o, tc, number in low}
        self._committed = {(_origin(o), tc, n): None for o, tc, n in committed}
        held = dumped[6] if len(dumped) > 6 else []
        times = dumped[7] if len(dumped) > 7 else [0] * len(held)
        self.held = {
            (_origin(o), tc, n): UnseenCommit((a, b), waits, at_ms)
            for (o, tc, n, a, b, waits), at_ms in zip(held, times, strict=True)
        }
        self._held_from = None
        self._forgotten = {(_origin(o), tc): number for o, tc, number in (dumped[8] if len(dumped) > 8 else ())}


def _listed(origin: Origin | None) -> list[int] | None:
    return None if origin is None else list(origin)


def _origin(fields: Any) -> Origin | None:
    return None if fields is None else (fields[0], fields[1], fields[2])
