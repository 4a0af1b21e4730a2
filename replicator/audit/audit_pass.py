"""AuditPass: one look at everything that a topic holds here, compared with where it was first published.

Is: the walk over this region's copy, the comparison by ranges of coordinates, the descent to the entries that differ,
and what follows for each.
Isn't: a schedule (`replicator.audit.auditor`), a repair (`replicator.audit.audit_repair`), or reading
(`replicator.audit.audit_scan`).
Invariants: an entry is called lost, different, or extra only against an answer of its origin's region that covers it,
without a hole there; what this region names as missing (SKIPs that count as loss) is not compared; nothing is concluded
from an answer that did not come. Where the origin's region does not say, only one thing is concluded: what another
region holds of it, that was meant for this one and is not here, is lost here. What is held here only for regions behind
this one (`passes`) is compared where the origin tells of it, and is never called extra or twice: which regions were
behind it when it was published is not known for ever, and nobody sees it here.
Source: docs/protocols/links.md, "Audit".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from heliograph.model.coordinates import Origin
from heliograph.model.errors import CorruptData, HeliographError, LinkError, PeerError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.throttle import RowPace
from heliograph.wire.links.audit_commands import Ask, AuditAnswer, Row, What, digest
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.run import Run
from replicator.audit.audit_findings import Fault, Finding, Report
from replicator.audit.audit_holes import Holes
from replicator.audit.audit_scan import AuditStorage, Piece, Take, coordinates, hidden, walk
from replicator.audit.audit_settings import AUDIT_LIMITS, AuditLimits
from replicator.health.link_causes import Cause
from replicator.log.coordinate_lookup import LookupStatus, position_of
from replicator.log.replicated_entries import is_passing, published_checksums

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog

_RANGE_ENTRIES = 1024
_LEAF_ENTRIES = 32
HIDDEN_BY_AUDIT = "audit"
"""Route of the SKIP that stands in the place of an entry that was stored twice: it says nothing about the other
copy.
"""

_SILENT_MAX = 10
"""Each such question takes `answer_timeout_s`, and a topic has thousands."""

AskRegion = Callable[[str, Ask], Awaitable[AuditAnswer]]
"""(region, what). Raises HeliographError where no answer comes."""


_Entry = tuple[Position, int, Position, "Header", bool]
"""(coordinate, checksum of its first publish, position here, what its run said, whether it passes)."""


class Header(NamedTuple):
    """What a run said of an entry that is to be put right: broker time and first message index here."""

    time_ms: int
    first_index: int


class AuditPass:
    """After `run`: `findings`, `holes`, and what a repair needs."""

    def __init__(
        self,
        log: ReplicatedLog,
        storage: AuditStorage,
        region: str,
        ask: AskRegion,
        regions: Mapping[str, int],
        names: Mapping[int, str],
        take: Take,
        report: Report,
        ended: Callable[[Origin], str] = lambda _: "",
        limits: AuditLimits = AUDIT_LIMITS,
    ) -> None:
        """region: this one's name. regions: name -> number, of those that can be asked now. names: number -> name, of
        all others.

        ended: the name of the region whose origin it was, where that has ended for good; else "".
        """
        self.log, self.storage, self.region, self._ask, self.regions, self.report = (
            log,
            storage,
            region,
            ask,
            regions,
            report,
        )
        self._silent = Counter[str]()
        """Region -> questions in a row that it left without an answer."""
        self._take, self.ended = take, ended
        self.names = names
        self.findings: list[Finding] = []
        self.holes = Holes(limits.holes_max)
        self.lost: dict[Origin, dict[Position, None]] = {}
        """Coordinates of other regions' origins that must be somewhere here, and were not read: see
        `AuditLimits.lost_max`. What lies in a hole is put there only once all of it is known.
        """
        self.headers: dict[Position, Header] = {}
        """Position -> of an entry that is damaged, different, twice, or extra."""
        self.wanted: dict[tuple[Origin, Position], int] = {}
        """Coordinate of an entry that is different here, or lost -> the checksum that its origin tells."""
        self._bad: dict[tuple[Origin, Position], Position] = {}
        self._lost_max = self._lost_left = limits.lost_max
        self._late: dict[tuple[Origin, Position], Position] = {}
        self._late_passing: dict[tuple[Origin, Position], None] = {}
        self._rows: dict[Origin, list[_Entry]] = {}
        self._count = 0
        self._skipped: dict[Origin, list[tuple[Position, Position]]] = {}
        self._compared: dict[Origin, Position] = {}
        self._seen: dict[Origin, Position] = {}
        self._trimmed = False
        """Something that was here is gone, as it may: an origin's first entry here need not be the first that was
        published.
        """
        self._read_to = BEFORE_ALL
        self._time_ms, self._index = 0, -1

    async def ask(self, region: str, ask: Ask) -> AuditAnswer:
        """Raises LinkError where no answer comes, PeerError where it makes no sense. A region that says nothing, though
        its link is open, is not asked for ever: the pass is the only one of its broker.
        """
        if self._silent[region] >= _SILENT_MAX:
            raise LinkError(Cause.TIMEOUT, f"{region} has left {_SILENT_MAX} questions of this pass without an answer")
        try:
            told = await self._ask(region, ask)
        except LinkError as error:
            self._silent[region] += error.cause == Cause.TIMEOUT
            raise
        del self._silent[region]
        return told

    async def run(self) -> None:
        """Raises what storage raises: then nothing was concluded that would be wrong."""
        log, end = self.log, self.log.ledger.last_confirmed
        ends = {origin: at for origin in log.vector if (at := log.vector.prefix(origin)) > log.state.local_end(origin)}
        self._trimmed = end > BEFORE_ALL and log.ledger.first_index != 0
        self._read_to = log.ledger.first_position()
        async for piece in walk(self.storage, log, self._read_to, end, self._take):
            await self._check_overtaken()
            self._read_to = (piece.ledger, piece.last + 1)
            if piece.run is None:
                self._note_hole(piece)
                continue
            self._note_run(piece, piece.run)
            if self._count >= _RANGE_ENTRIES:
                await self._compare_all()
        await self._check_overtaken()
        for origin, through in ends.items():
            self._rows.setdefault(origin, [])
            if not self._trimmed:
                self._compared.setdefault(origin, log.state.local_end(origin))
            await self._compare_until(origin, max(through, self._seen.get(origin, BEFORE_ALL)))
        await self._settle_late()
        await self._settle()

    def check_whole(self) -> None:
        """Raises PeerError where there are more holes than one pass looks at."""
        if self.holes.more:
            raise PeerError(
                f"audit: more than {len(self.holes.all) - 1} ranges cannot be read here: the next pass goes on; "
                "`heliograph bookies list` says which bookies are away"
            )

    async def _check_overtaken(self) -> None:
        """Where trimming has passed the reader, nothing can be said of what lay between: each origin is compared anew
        from where it is seen next.
        """
        if self.log.ledger.first_position() > self._read_to:
            await self._compare_all()
            self._compared.clear()
            self._trimmed = True

    # -- what is here --------------------------------------------------------------------------------------------------

    def _note_hole(self, piece: Piece) -> None:
        self.holes.note(piece.ledger, piece.first, self._seen, self._time_ms, self._index)
        self._lost_left += piece.last - piece.first + 1
        self._index = -1

    def _note_run(self, piece: Piece, run: Run) -> None:
        state = self.log.state
        self.report.entries += run.count
        self.report.size_bytes += run.size_bytes
        own = run.origin is None
        origin = state.origin_at((piece.ledger, piece.first)) if run.origin is None else run.origin
        self._time_ms, self._index = run.time_ms, run.first_index + run.messages
        passes = is_passing(run)
        if hidden(run) and not passes:
            self._note_skip(run)
            return
        checksums = published_checksums(run)
        for i, at in enumerate(coordinates(run, piece.ledger, piece.first)):
            position = (piece.ledger, piece.first + i)
            if checksums[i] < 0:
                self.headers[position] = Header(run.time_ms, run.first_index + run.messages_before(i))
                self._bad[origin, at] = position
                if own:
                    self.findings.append(Finding(Fault.DAMAGED, origin, at, position))
            if own:
                continue
            if at <= self._seen.get(origin, BEFORE_ALL):
                self._note_late(
                    origin, at, position, Header(run.time_ms, run.first_index + run.messages_before(i)), passes
                )
                continue
            if origin not in self._compared:
                self._compared[origin] = (at[0], at[1] - 1) if self._trimmed else state.local_end(origin)
            self.holes.note_behind(origin, at)
            self._seen[origin] = at
            if checksums[i] >= 0:
                self._rows.setdefault(origin, []).append(
                    (at, checksums[i], position, Header(run.time_ms, run.first_index + run.messages_before(i)), passes)
                )
                self._count += 1

    def _note_skip(self, run: Run) -> None:
        """A range that is here under other coordinates, or not meant for here, is not missing. (Losses stand in the
        vector.)
        """
        if run.origin is None or run.transaction is not None:
            return
        try:
            record = SkipRecord.decode(run.parts[0])
        except CorruptData:
            return
        if not record.loss and record.route != HIDDEN_BY_AUDIT:
            self._skipped.setdefault(record.origin, []).append((record.after, record.through))

    def _note_late(self, origin: Origin, at: Position, position: Position, header: Header, passes: bool) -> None:
        """Behind higher ones of its origin: the audit appended it once, where it was lost; or it is stored twice."""
        if passes:
            self._late_passing[origin, at] = None
        elif (origin, at) in self._late:
            self._twice(origin, at, position, header)
        else:
            self._late[origin, at] = position
            self.headers[position] = header

    def _twice(self, origin: Origin, at: Position, position: Position, header: Header) -> None:
        self.headers[position] = header
        self.findings.append(Finding(Fault.TWICE, origin, at, position))

    async def _settle_late(self) -> None:
        """Once everything was compared, it is known which late ones stand for one that was lost."""
        for origin, at in self._late_passing:
            self.lost.get(origin, {}).pop(at, None)
        for (origin, at), position in self._late.items():
            lost = self.lost.get(origin, {})
            if at in lost:
                del lost[at]
                continue
            found = await position_of(self.log, origin, at, late=False)
            if found.status is LookupStatus.HERE and found.position != position:
                self.findings.append(Finding(Fault.TWICE, origin, at, position))
            elif found.status in (LookupStatus.FILTERED, LookupStatus.TRIMMED) and await self._is_extra(origin, at):
                self.findings.append(Finding(Fault.EXTRA, origin, at, position))

    async def _is_extra(self, origin: Origin, at: Position) -> bool:
        """Whether its origin tells of nothing there: asked for the one coordinate, because a range that a SKIP here
        covers was compared with nobody, and one whose beginning the origin has trimmed only above that.
        """
        region = self.names.get(origin[0])
        if region is None:
            return False
        try:
            told = await self.ask(
                region, Ask(What.ROWS, origin, (at[0], at[1] - 1), at, origin in self.log.state.trees)
            )
        except HeliographError:
            return False
        return not (told.refusal or told.holes or told.rows) and told.low < at <= told.upto

    async def _settle(self) -> None:
        """And which lost ones lie in a hole."""
        pace = RowPace()
        for origin, lost in self.lost.items():
            for at in lost:
                await pace.row()
                if not self.holes.around(origin, at):
                    self.findings.append(Finding(Fault.LOST, origin, at, None))
        known = {finding.position for finding in self.findings}
        self.findings += [
            Finding(Fault.DAMAGED, origin, at, where) for (origin, at), where in self._bad.items() if where not in known
        ]
        kept = self.log.ledger.first_position()  # what was trimmed while it was read is no hole
        for hole in self.holes.all:
            await pace.rows(hole.last - hole.first + 1)
            self.findings += [Finding(Fault.UNREADABLE, None, None, at) for at in hole.positions() if at >= kept]

    # -- what is there -------------------------------------------------------------------------------------------------

    async def _compare_all(self) -> None:
        for origin in list(self._rows):
            if self._rows[origin]:
                await self._compare_until(origin, self._seen[origin])
        self._count = 0

    async def _compare_until(self, origin: Origin, through: Position) -> None:
        rows, self._rows[origin] = self._rows[origin], []
        after = self._compared.get(origin)
        if after is None or after >= through:
            return
        self._compared[origin] = through
        region = self.names.get(origin[0])
        for low, high in _without(
            after, through, sorted((*self.log.vector.missing(origin), *self._skipped.get(origin, ())))
        ):
            part = [row for row in rows if low < row[0] <= high]
            self.report.ranges += 1
            try:
                compared = region is not None and await self._compare(region, origin, low, high, part)
            except HeliographError:
                compared = False
            if compared:
                continue
            if await self._look_elsewhere(origin, low, high, part) and (name := self.ended(origin)):
                self.report.gone[name] += 1
            else:
                self.report.unchecked += 1
                self.report.waiting[region or f"region {origin[0]}"] += 1

    async def _look_elsewhere(self, origin: Origin, after: Position, through: Position, rows: list[_Entry]) -> bool:
        """What other regions hold of (after, through] that is not here. Whether all that can be asked have told."""
        whole = all(name in self.regions for number, name in self.names.items() if number != origin[0])
        known_of = {row[0] for row in rows}.union(self.lost.get(origin, ()))
        for region, number in sorted(self.regions.items()):
            known = self.log.known.get(region)
            if number == origin[0] or (known is not None and known[0].prefix(origin) <= after):
                continue
            if known is None:
                whole = False
                continue
            at = after
            while at < through:
                try:
                    told = await self.ask(region, Ask(What.ROWS, origin, at, through, True))
                    for where, _ in told.rows if told.passing else ():
                        if where not in known_of and (origin, where) not in self._bad:
                            self._note_lost(origin, where)
                            known_of.add(where)
                except HeliographError:
                    whole = False
                    break
                if told.refusal or not told.passing:  # an earlier version does not say for whom they were
                    whole = False
                    break
                whole = whole and not told.holes
                if told.upto <= at or not told.rows:
                    break
                at = told.upto
        return whole

    async def _compare(
        self, region: str, origin: Origin, after: Position, through: Position, rows: list[_Entry]
    ) -> bool:
        """False: nothing can be said of the range now."""
        passing = origin in self.log.state.trees
        while len(rows) > _LEAF_ENTRIES:
            told = await self.ask(region, Ask(What.DIGEST, origin, after, through, passing))
            if told.refusal or told.holes:
                return False
            mine: list[Row] = [
                (row[0], row[1]) for row in rows if told.low < row[0] <= told.upto and (told.passing or not row[4])
            ]
            if digest(mine) == (told.count, told.checksum):
                if told.upto >= through or not mine:
                    return told.upto >= through
                after, rows = told.upto, [row for row in rows if row[0] > told.upto]  # the answer ended there
                continue
            middle = rows[len(rows) // 2][0]
            below = await self._compare(region, origin, after, middle, [row for row in rows if row[0] <= middle])
            return (
                await self._compare(region, origin, middle, through, [row for row in rows if row[0] > middle]) and below
            )
        while after < through:
            told = await self.ask(region, Ask(What.ROWS, origin, after, through, passing))
            if told.refusal or told.holes or told.upto <= after:
                return False
            self._differ(origin, told, max(after, told.low), rows)
            if told.upto < through and not told.rows:
                return False
            after = told.upto
        return True

    def _differ(self, origin: Origin, told: AuditAnswer, after: Position, rows: list[_Entry]) -> None:
        """(after, told.upto] entry by entry."""
        theirs = dict(told.rows)
        for at, checksum, position, header, passes in rows:
            if not after < at <= told.upto:
                continue
            wanted = theirs.pop(at, None)
            if wanted == checksum or (passes and wanted is None):
                continue
            self.headers[position] = header
            if wanted is not None:
                self.wanted[origin, at] = wanted
            self.findings.append(Finding(Fault.EXTRA if wanted is None else Fault.DIFFERENT, origin, at, position))
        for at, checksum in theirs.items():
            if (origin, at) in self._bad:
                self.findings.append(Finding(Fault.DAMAGED, origin, at, self._bad[origin, at]))
            elif at > after:
                self.wanted[origin, at] = checksum
                self._note_lost(origin, at)

    def _note_lost(self, origin: Origin, at: Position) -> None:
        """Raises PeerError where there are too many for one pass."""
        self._lost_left -= 1
        if self._lost_left < 0:
            raise PeerError(
                f"audit: more than {self._lost_max} entries are lost outside of holes: the next pass goes on"
            )
        self.lost.setdefault(origin, {})[at] = None


def _without(
    after: Position, through: Position, missing: Sequence[tuple[Position, Position]]
) -> list[tuple[Position, Position]]:
    """What is left of (after, through] without the ranges that are missing."""
    out = []
    for low, high in missing:
        if high <= after or low >= through:
            continue
        if after < low:
            out.append((after, low))
        after = max(after, high)
    if after < through:
        out.append((after, through))
    return out
