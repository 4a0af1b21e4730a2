"""Reading a topic's copy for the audit: every entry from the bookies, verified; and what another region is told of a
range.

Is: the walk over positions with holes where nothing can be read, and the answer to one ASK. Isn't: a comparison
(`replicator.audit.audit_pass`), or a frame.
Invariants: an entry is told of only if its bytes were read and agree with its own checksum and the one in its run's
header; what cannot be read is a hole, never absent; storage that does not answer now is an error, and nothing is said
at all.
Source: docs/protocols/links.md, "Audit".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import crc32c

from heliograph.model.errors import CorruptData, NoSuchEntry, NoSuchLedger
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.audit_commands import ROWS_MAX, Ask, AuditAnswer, Row, What, digest
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.audit.audit_settings import AUDIT_LIMITS, AuditLimits
from replicator.coordinates.late_entries import LateMap
from replicator.log.replicated_entries import addressed_to, as_published, is_passing, published_checksums
from replicator.log.transaction_buffer import is_commit, is_marker
from replicator.sending.outgoing_runs import just_before, last_of

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog

READ_BYTES = 1 << 20
_HEAD_BYTES = 256
"""About what lies around each run on the wire."""
NOTHING_HELD = "nothing of that origin is held here"
"""A refusal that is an answer."""
_ROWS_MAX = {What.DIGEST: 2 * ROWS_MAX, What.ROWS: ROWS_MAX, What.ENTRIES: 1 << 62}
"""An answer ends behind so many entries: who asks goes on from there."""
_DAMAGE = (CorruptData, NoSuchEntry, NoSuchLedger)

Take = Callable[[int, int], Awaitable[None]]
"""(entries, bytes) are about to be handled: returns when the rate allows it."""


class AuditStorage(Protocol):
    """A topic's entries as they lie on disks, past every cache."""

    async def extents(self, log: ReplicatedLog) -> Sequence[tuple[int, int, int]]:
        """(ledger, first entry, entries up to the last confirmed one) of every ledger that the topic retains,
        ascending. Raises what the metadata raises.
        """
        ...

    async def read(
        self, log: ReplicatedLog, ledger: int, first: int, last: int, max_bytes: int
    ) -> Sequence[tuple[int, Run]]:
        """(first entry, run) from entry `first` on, at least one entry. CorruptData, NoSuchEntry, NoSuchLedger: no copy
        has it.
        """
        ...

    async def refill(self, log: ReplicatedLog, ledger: int, runs: Sequence[tuple[int, Run]]) -> int:
        """Stores entries that no copy had, under their ids; returns how many there are now."""
        ...

    async def replace(self, log: ReplicatedLog, ledger: int, runs: Sequence[tuple[int, Run]]) -> int:
        """The same, of entries that can be read and are wrong."""
        ...


class Piece(NamedTuple):
    """(ledger, first) up to `last`: a run, or None where nothing can be read."""

    ledger: int
    first: int
    last: int
    run: Run | None


async def walk(
    storage: AuditStorage, log: ReplicatedLog, low: Position, high: Position, take: Take
) -> AsyncIterator[Piece]:
    """What lies in [low, high], in order. What is trimmed meanwhile is left out. Raises what storage raises."""
    for ledger, first, count in await storage.extents(log):
        if ledger < low[0] or ledger > high[0]:
            continue
        at = max(first, low[1]) if ledger == low[0] else first
        last = min(count - 1, high[1]) if ledger == high[0] else count - 1
        while at <= last:
            try:
                runs = await storage.read(log, ledger, at, last, READ_BYTES)
            except _DAMAGE:
                if (ledger, at) >= log.ledger.first_position():
                    yield Piece(ledger, at, at, None)
                at += 1
                continue
            for start, run in runs:
                await take(run.count, run.size_bytes)
                yield Piece(ledger, start, start + run.count - 1, run)
                at = start + run.count


def hidden(run: Run) -> bool:
    """A SKIP is a run of its own."""
    return run.flags is not None and bool(run.flags[0] & FLAG_HIDDEN)


def coordinates(run: Run, ledger: int, first: int) -> Iterator[Position]:
    """Yields the coordinate of each entry of a run that lies at (ledger, first)."""
    for start_ledger, start, count in run.spans or ((ledger, first, run.count),):
        for entry in range(start, start + count):
            yield start_ledger, entry


class _Part(NamedTuple):
    """What one run has of a range. run: None: it cannot be read. good: indexes of the entries that are asked for and
    can be used; rows: of those.
    """

    position: Position
    run: Run | None
    good: Sequence[int] = ()
    rows: Sequence[Row] = ()
    checksums: Sequence[int] = ()
    holes: int = 0


class Teller:
    """Makes one answer to what another region asks of this one's copies."""

    def __init__(self, storage: AuditStorage, take: Take, limits: AuditLimits = AUDIT_LIMITS) -> None:
        self._storage, self._rate, self._limits = storage, take, limits
        self._read_bytes = 0

    async def _take(self, entries: int, size_bytes: int) -> None:
        self._read_bytes += size_bytes
        await self._rate(entries, size_bytes)

    async def tell(self, log: ReplicatedLog, ask: Ask, to: str) -> AuditAnswer:
        """`to`: the region that asks. Of an own origin only what was published for it is told; with `passing`, of any,
        that and what is for regions behind it.

        Raises what storage raises.
        """
        own = log.state.is_own(ask.origin)
        if not own and ask.origin not in log.vector:
            return AuditAnswer(refusal=NOTHING_HELD)
        if own and ask.whole and (began := _undecided(log)) is not None and began <= ask.through:
            return AuditAnswer(refusal=f"the transaction that began at {began[0]}:{began[1]} has not ended there")
        known = log.state.late.only(ask.origin)
        late, holes = await self._late(log, ask, to, known)
        upto = min(ask.through, log.vector.prefix(ask.origin))
        if late and sum(run.size_bytes for _, run in late.values()) >= self._limits.told_bytes:
            upto = min(upto, max(late))  # those above it were left out
        rows: list[Row] = []
        runs: list[Run] = []
        size = 0
        low, high = log.state.between(ask.origin, ask.after, upto)
        async for part in self._parts(log, ask, to, low, high or log.ledger.last_confirmed, known, late=False):
            holes += part.holes
            if not part.rows:
                if self._read_bytes >= self._limits.read_bytes and (end := _reached(log, ask, rows, part)) is not None:
                    upto = min(upto, end)
                    break
                continue
            rows += part.rows
            if ask.what is What.ENTRIES:
                runs.append(_as_sent(part, ask))
                size += runs[-1].size_bytes
            if (
                size >= self._limits.told_bytes
                or self._read_bytes >= self._limits.read_bytes
                or len(rows) >= _ROWS_MAX[ask.what]
            ):
                upto = min(upto, rows[-1][0])
                break
        low = _retained(log, rows, ask)
        rows += [(at, checksum) for at, (checksum, _) in late.items()]
        rows = sorted(dict(row for row in rows if row[0] <= upto).items())
        if ask.what is What.ROWS and len(rows) > ROWS_MAX:
            rows, upto = rows[:ROWS_MAX], rows[ROWS_MAX - 1][0]
        if ask.what is What.ENTRIES:
            runs, upto = _fitting(
                [*runs, *(run for at, (_, run) in late.items() if at <= upto)], upto, self._limits.answer_bytes
            )
        if ask.whole:
            runs += log.state.trees.records(ask.origin, ask.after, upto)
        count, checksum = digest([row for row in rows if row[0] > low]) if ask.what is What.DIGEST else (0, 0)
        told_rows = tuple(rows) if ask.what is What.ROWS else ()
        taken = await self._taken(log, ask, to) if ask.taken and own and not rows else 0
        return AuditAnswer("", low, upto, holes, count, checksum, told_rows, tuple(runs), ask.passing, ask.whole, taken)

    async def _taken(self, log: ReplicatedLog, ask: Ask, to: str) -> int:
        """Counts under how many coordinates of an own origin something lies here that was never published in it for who
        asks.

        A coordinate is a position here: where another entry is read, none was published under it. Whose end an operator
        may decide is left out.
        """
        found = 0
        async for piece in walk(self._storage, log, (ask.after[0], ask.after[1] + 1), ask.through, self._take):
            run = piece.run
            if run is None or run.transaction is not None:
                continue
            origin = log.state.origin_at((piece.ledger, piece.first)) if run.origin is None else run.origin
            if origin != ask.origin or hidden(run):
                found += run.count if hidden(run) else sum(checksum >= 0 for checksum in _checksums(run))
            elif (meant := addressed_to(run, _reach(log, piece, ask, to))) is not None:
                found += run.count - len(meant)
        return found

    async def _late(
        self, log: ReplicatedLog, ask: Ask, to: str, known: LateMap
    ) -> tuple[dict[Position, tuple[int, Run]], int]:
        """(coordinate -> (checksum, entry) of what audits have appended late, holes). Of more than an answer takes the
        lowest are left.
        """
        found: dict[Position, tuple[int, Run]] = {}
        holes = size = 0
        for low, high in known.between(ask.origin, ask.after, ask.through):
            async for part in self._parts(log, ask, to, low, high, known, late=True):
                holes += part.holes
                if not part.rows:
                    continue
                run = _as_sent(part, ask)
                for index, (at, checksum) in enumerate(part.rows):
                    found[at] = (checksum, run.cut(index, index + 1))
                size += run.size_bytes
                if size >= 2 * self._limits.told_bytes:
                    found, size = _lowest(found, self._limits.told_bytes)
        return _lowest(found, self._limits.told_bytes)[0] if size >= self._limits.told_bytes else found, holes

    async def _parts(
        self, log: ReplicatedLog, ask: Ask, to: str, low: Position, high: Position, known: LateMap, *, late: bool
    ) -> AsyncIterator[_Part]:
        """What of the range lies in the local positions [low, high], and a part without rows for each run that has
        nothing of it. late: of it what `known` leads to; else the rest.

        That is said of each entry, because two readers do not cut a run in the same places.
        """
        filtered = log.state.is_own(ask.origin) or (
            ask.passing and ask.what is not What.ENTRIES
        )  # entries are asked for that somebody knows of
        async for piece in walk(self._storage, log, low, high, self._take):
            position = (piece.ledger, piece.first)
            if piece.run is None:
                yield _Part(position, None, holes=1)
                continue
            origin = log.state.origin_at(position) if piece.run.origin is None else piece.run.origin
            chosen: Sequence[int] = ()
            if origin == ask.origin and not _stays(log, piece.run, ask.whole):
                chosen = _chosen(piece, ask, _reach(log, piece, ask, to) if filtered else None)
            if not chosen:
                yield _Part((piece.ledger, piece.last), piece.run)
                continue
            checksums = _checksums(piece.run)
            at = list(coordinates(piece.run, piece.ledger, piece.first))
            readable = [i for i in chosen if checksums[i] >= 0]
            good = (
                [i for i in readable if known.covers(origin, (piece.ledger, piece.first + i), at[i]) == late]
                if known
                else readable
            )
            yield _Part(
                position, piece.run, good, [(at[i], checksums[i]) for i in good], checksums, len(chosen) - len(readable)
            )


def _reached(log: ReplicatedLog, ask: Ask, rows: Sequence[Row], part: _Part) -> Position | None:
    """Up to which coordinate everything was read, where the last part has nothing of the range. None: not known. (Of an
    own origin positions are coordinates; who asks for something else than entries takes rows as a sign of progress.)
    """
    if rows:
        return rows[-1][0]
    own = part.run is not None and ask.what is What.ENTRIES and part.position <= log.state.local_end(ask.origin)
    return part.position if own else None


def _undecided(log: ReplicatedLog) -> Position | None:
    """The first entry of a transaction of this region that is open."""
    found = None if log.state.transactions is None else log.state.transactions.first_open_here()
    return None if found is None else found[1].first


def _stays(log: ReplicatedLog, run: Run, whole: bool) -> bool:
    """What no other region gets: SKIPs, and what a transaction published that was aborted. whole: the ends of those
    that were committed are told.
    """
    if is_marker(run):
        return not whole or not is_commit(run)
    return (hidden(run) and not is_passing(run)) or (
        log.state.transactions is not None and log.state.transactions.is_aborted(run)
    )


def _checksums(run: Run) -> list[int]:
    """As `published_checksums`, also of the end of a transaction, which goes as it is."""
    if not is_marker(run):
        return published_checksums(run)
    checksum = int(crc32c.crc32c(run.parts[0]))
    return [checksum if run.checksums is None or run.checksums[0] == checksum else -1]


def _as_sent(part: _Part, ask: Ask) -> Run:
    """Its good entries as a link would send them."""
    run = part.run
    assert run is not None
    if run.origin is None:
        return run.as_replicated(ask.origin, *part.position, part.checksums).select(part.good)
    return (run if is_marker(run) else _published(run, part.good)).select(part.good)


def _lowest(found: Mapping[Position, tuple[int, Run]], told_bytes: int) -> tuple[dict[Position, tuple[int, Run]], int]:
    """(as many as one answer takes, their bytes)."""
    kept: dict[Position, tuple[int, Run]] = {}
    size = 0
    for at in sorted(found):
        kept[at] = found[at]
        size += found[at][1].size_bytes
        if size >= told_bytes:
            break
    return kept, size


def _fitting(runs: Sequence[Run], upto: Position, answer_bytes: int) -> tuple[list[Run], Position]:
    """(as many as one answer takes, the lowest first; up to where that is all of them)."""
    kept: list[Run] = []
    size = 0
    for run in sorted(runs, key=lambda run: run.coordinate(0)):
        size += run.size_bytes + _HEAD_BYTES
        if kept and size > answer_bytes and kept[0].coordinate(0) < (at := run.coordinate(0)):
            end = last_of(kept[-1])
            return kept, min(upto, end if end < at else just_before(at))
        kept.append(run)
    return kept, upto


def _retained(log: ReplicatedLog, rows: Sequence[Row], ask: Ask) -> Position:
    """At or below it the teller may have trimmed what it had."""
    first = log.ledger.first_position()
    if first <= log.state.local_end(ask.origin):
        return (first[0], first[1] - 1) if first > (0, 0) else BEFORE_ALL
    if not log.ledger.first_index:
        return BEFORE_ALL
    return (rows[0][0][0], rows[0][0][1] - 1) if rows else ask.through


def _reach(log: ReplicatedLog, piece: Piece, ask: Ask, to: str) -> frozenset[str]:
    """The regions for which the asker holds what the run has: itself, and those behind it by the tree that governs
    it.
    """
    assert piece.run is not None
    at = next(coordinates(piece.run, piece.ledger, piece.first))
    tree = log.state.trees.governing(ask.origin, at) if ask.passing else None
    return frozenset((to,)) if tree is None else tree.reach(to)


def _chosen(piece: Piece, ask: Ask, reach: frozenset[str] | None) -> list[int]:
    """Indexes of the entries whose coordinates are asked for. reach: only what was published for one of these regions;
    None: for whomever.
    """
    assert piece.run is not None
    inside = [
        i for i, at in enumerate(coordinates(piece.run, piece.ledger, piece.first)) if ask.after < at <= ask.through
    ]
    if reach is None or not inside or is_marker(piece.run) or (meant := addressed_to(piece.run, reach)) is None:
        return inside
    kept = frozenset(meant)
    return [i for i in inside if i in kept]


def _published(run: Run, good: Sequence[int]) -> Run:
    """A run of which only the entries `good` are used, as its origin sent it."""
    return as_published(run) if len(good) == run.count else _padded(run, good)


def _padded(run: Run, good: Sequence[int]) -> Run:
    """The same where others of its entries are damaged: those stay as they are, and are not used."""
    kept = frozenset(good)
    pieces = [as_published(run.cut(i, i + 1)) if i in kept else run.cut(i, i + 1) for i in range(run.count)]
    parts = [piece.parts[0] for piece in pieces]
    return run.with_parts(parts, flags=None if is_passing(run) else run.flags)
