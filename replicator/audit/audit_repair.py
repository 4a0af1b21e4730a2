"""Repair: what an audit found is put right from another region's copy, in place where it has a place.

Is: which entries are fetched from whom, where each belongs, and what is written. Isn't: the finding
(`replicator.audit.audit_pass`), or how a bookie stores it (`AuditStorage`).
Invariants: an entry is written only if its bytes match the checksum of its first publish; a position gets the entry
that lay there, or nothing: own entries by their coordinate, others only where exactly as many are lost between the
neighbours as there are places (each region's in their order; those of several regions in one hole in the order in which
they were published); what is lost without a place is appended once, behind everything, after a whole pass has shown
that it is nowhere; nothing valid is taken away on anybody's word that there is nothing: only where the origin reads
another entry under that very coordinate; and none that another region than the origin has the same.
Source: docs/protocols/links.md, "Audit".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from heliograph.model.coordinates import Origin
from heliograph.model.errors import HeliographError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.throttle import RowPace
from heliograph.wire.links.audit_commands import Ask, AuditAnswer, What
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run
from replicator.audit.audit_findings import Fault, Finding
from replicator.audit.audit_holes import Hole
from replicator.audit.audit_pass import HIDDEN_BY_AUDIT, AuditPass, Header
from replicator.audit.audit_scan import NOTHING_HELD
from replicator.log.replicated_entries import as_published, fetched, received

_NOBODY = "no region that can be asked now has it"
_NO_PROOF = (
    "its origin has nothing there, which may be a loss of its own, and then this copy is the last: it stays; read it, "
    "then publish it anew, or leave it to retention"
)
_FETCH_MAX = 64


class _Placed(NamedTuple):
    position: Position
    run: Run
    finding: Finding


class _Group(NamedTuple):
    """holes: that the same lost entries may have lain in. others: which of these entries were fetched."""

    holes: list[Hole]
    others: list[tuple[Origin, Position]]


class Repairer:
    """One pass's. `run` settles every finding, but those that are `appending`; `on_appended` is called once none is."""

    def __init__(self, found: AuditPass) -> None:
        self.appending = 0
        self.on_appended: Callable[[], None] = _nobody_waits
        self._pass, self._log, self._storage = found, found.log, found.storage
        self._names = found.names
        self._fetched: dict[tuple[Origin, Position], Run] = {}

    async def run(self) -> None:
        """Raises what storage raises; what was not reached stays `not tried yet`, and is found again."""
        found = self._pass.findings
        replaced = [
            f
            for f in found
            if f.fault is Fault.DAMAGED or (f.fault is Fault.DIFFERENT and await self._origin_is_right(f))
        ]
        await self._fetch(
            (f.origin, f.coordinate) for f in replaced if f.origin is not None and f.coordinate is not None
        )
        await self._replace(replaced)
        await self._refill([f for f in found if f.fault is Fault.UNREADABLE])
        await self._append([f for f in found if f.fault is Fault.LOST])
        await self._hide([f for f in found if f.fault in (Fault.TWICE, Fault.EXTRA)])

    async def _origin_is_right(self, finding: Finding) -> bool:
        """Both copies agree with their own checksums. Whoever else has the entry decides; where nobody else was to have
        it, the origin does.
        """
        assert finding.origin is not None and finding.coordinate is not None
        origin, at = finding.origin, finding.coordinate
        for number, region in sorted(self._names.items()):
            if number == origin[0]:
                continue
            try:
                told = await self._pass.ask(region, Ask(What.ROWS, origin, (at[0], at[1] - 1), at))
            except HeliographError:
                told = AuditAnswer("it does not answer")
            if told.holes or told.refusal not in ("", NOTHING_HELD):
                finding.left = (
                    f"its origin has something else, and {region}, which may know which is right, cannot say now: the "
                    "next pass asks again"
                )
                return False
            if any(checksum != self._pass.wanted[origin, at] for _, checksum in told.rows):
                finding.left = (
                    f"its origin has something else, which {region} does not have either: the origin's copy may be "
                    "the wrong one; look at all three"
                )
                return False
        return True

    # -- fetching ------------------------------------------------------------------------------------------------------

    async def _fetch(self, wanted: Iterable[tuple[Origin, Position]]) -> None:
        """What is not fetched in the end no region has, or none that answers."""
        for origin, asked in groupby(sorted(set(wanted)), key=lambda coordinate: coordinate[0]):
            left = [at for _, at in asked]
            for region in self._askable(origin):
                for after, through in _ranges(left):
                    await self._fetch_from(region, origin, after, through)
                left = [at for at in left if (origin, at) not in self._fetched]
                if not left:
                    break

    def _askable(self, origin: Origin) -> list[str]:
        """The origin's own region first."""
        own = self._names.get(origin[0])
        return ([own] if own is not None else []) + sorted(name for name in self._pass.regions if name != own)

    async def _fetch_from(self, region: str, origin: Origin, after: Position, through: Position) -> None:
        while after < through:
            try:
                told = await self._pass.ask(
                    region, Ask(What.ENTRIES, origin, after, through, origin in self._log.state.trees)
                )
            except HeliographError:
                return
            for run in told.runs:
                for i in range(run.count):
                    self._take(run.cut(i, i + 1))
            if told.refusal or told.upto <= after:
                return
            after = told.upto

    def _take(self, entry: Run) -> None:
        assert entry.origin is not None and entry.checksums is not None
        try:  # with what a target appends, and without it again: its bytes are what its checksum says
            source = self._names.get(entry.origin[0], "other")
            stored = received(entry, source)
            key = (entry.origin, entry.coordinate(0))
            if as_published(stored).parts[0] == bytes(entry.parts[0]) and (
                self._pass.wanted.get(key, entry.checksums[0]) == entry.checksums[0]
            ):
                self._fetched[key] = entry
        except HeliographError:
            return

    def _local(self, origin: Origin, at: Position, header: Header) -> Run | None:
        """The entry as it is stored here."""
        entry = self._fetched.get((origin, at))
        if entry is None:
            return None
        own = at <= self._log.state.local_end(origin)
        if not own:
            if not (name := self._names.get(origin[0]) or self._pass.ended(origin)):
                return None
            (entry,) = fetched(entry, name, self._pass.region)
        return Run(
            [bytes(entry.parts[0])],
            entry.lengths,
            counts=entry.counts,
            flags=entry.flags,
            time_ms=header.time_ms or entry.origin_time_ms,
            first_index=max(0, header.first_index),
            origin=None if own else entry.origin,
            spans=() if own else entry.spans,
            origin_time_ms=0 if own else entry.origin_time_ms,
            checksums=None if own else entry.checksums,
            producers=entry.producers,
            transaction=entry.transaction,
            leadership=entry.leadership,
        )

    # -- in place ------------------------------------------------------------------------------------------------------

    async def _replace(self, findings: Sequence[Finding]) -> None:
        placed = []
        for finding in findings:
            assert finding.position is not None and finding.origin is not None and finding.coordinate is not None
            entry = self._local(finding.origin, finding.coordinate, self._pass.headers[finding.position])
            if entry is None:
                finding.left = _NOBODY
            else:
                placed.append(_Placed(finding.position, entry, finding))
        await self._store(placed, anew=True)

    async def _refill(self, findings: Sequence[Finding]) -> None:
        by_position = {f.position: f for f in findings}
        for finding in findings:
            finding.left = "what lay here is not known, or " + _NOBODY
        await self._fetch(self._own_in_holes())
        lost = await self._others_in_holes()
        await self._fetch(lost)
        placed: list[_Placed] = []
        pace = RowPace()
        for group in await self._groups(lost):
            await pace.rows(sum(hole.last - hole.first + 1 for hole in group.holes))
            placed += self._place(group, by_position)
        await self._store(placed, anew=False)

    def _own_in_holes(self) -> list[tuple[Origin, Position]]:
        state = self._log.state
        return [(state.origin_at(at), at) for hole in self._pass.holes.all for at in hole.positions()]

    async def _others_in_holes(self) -> list[tuple[Origin, Position]]:
        found, pace = list[tuple[Origin, Position]](), RowPace()
        for origin, lost in self._pass.lost.items():
            for at in lost:
                await pace.row()
                if self._pass.holes.around(origin, at):
                    found.append((origin, at))
        return found

    async def _groups(self, lost: Iterable[tuple[Origin, Position]]) -> list[_Group]:
        """Holes stand in one group where the same lost entry may have lain in two that are neighbours."""
        holes, pace = self._pass.holes, RowPace()
        joins = [0] * (len(holes.all) + 1)  # their sum up to a hole: how many it may share with the one before it
        for origin, at in lost:
            await pace.row()
            around = holes.around(origin, at)
            joins[around.start + 1] += 1
            joins[around.stop] -= 1
        groups, group_of, shared = list[_Group](), list[_Group](), 0
        for hole, more in zip(holes.all, joins, strict=False):
            shared += more
            if not shared:
                groups.append(_Group([], []))
            groups[-1].holes.append(hole)
            group_of.append(groups[-1])
        for origin, at in self._fetched:
            await pace.row()
            if (
                at > self._log.state.local_end(origin)
                and at in self._pass.lost.get(origin, ())
                and (around := holes.around(origin, at))
            ):
                group_of[around.start].others.append((origin, at))
        return groups

    def _place(self, group: _Group, findings: dict[Position | None, Finding]) -> list[_Placed]:
        state = self._log.state
        places = [(at, hole) for hole in group.holes for at in hole.positions()]
        own = {at: (state.origin_at(at), at) for at, _ in places if (state.origin_at(at), at) in self._fetched}
        others = sorted(group.others, key=lambda key: (self._fetched[key].origin_time_ms, key))
        free = [(at, hole) for at, hole in places if at not in own]
        content = dict(own)
        if (
            len(free) == len(others)
            and not group.holes[-1].open
            and all(hole.may_hold(*key) for (_, hole), key in zip(free, others, strict=True))
            and _ascend(others)
        ):
            content |= dict(zip((at for at, _ in free), others, strict=True))
        elif others:
            for at, _ in free:
                findings[at].left = (
                    f"{len(others)} entries of other regions are lost around it, for {len(free)} places: which lay "
                    "where is not certain"
                )
        placed: list[_Placed] = []
        index: dict[int, int] = {}
        for at, hole in places:
            if at not in content:
                continue
            entry = self._local(*content[at], Header(hole.time_ms, index.get(id(hole), hole.index)))
            if entry is not None:
                index[id(hole)] = entry.first_index + entry.messages
                findings[at].origin, findings[at].coordinate = content[at]
                placed.append(_Placed(at, entry, findings[at]))
        return placed

    async def _store(self, placed: Sequence[_Placed], *, anew: bool) -> None:
        for ledger, group in groupby(sorted(placed, key=lambda item: item.position), key=lambda item: item.position[0]):
            items = list(group)
            runs = [(item.position[1], item.run) for item in items]
            try:
                await (self._storage.replace if anew else self._storage.refill)(self._log, ledger, runs)
            except HeliographError as error:
                for item in items:
                    item.finding.left = f"storing it failed: {error}"
                continue
            for item in items:
                item.finding.left = "" if await self._lies(item) else "it was written, and is not read as written yet"

    async def _lies(self, item: _Placed) -> bool:
        ledger, entry = item.position
        try:
            runs = await self._storage.read(self._log, ledger, entry, entry, 1)
        except HeliographError:
            return False
        return bool(runs) and bytes(runs[0][1].parts[0]) == bytes(item.run.parts[0])

    # -- what has no place ---------------------------------------------------------------------------------------------

    async def _append(self, findings: Sequence[Finding]) -> None:
        await self._fetch(
            (f.origin, f.coordinate) for f in findings if f.origin is not None and f.coordinate is not None
        )
        for finding in sorted(findings, key=lambda f: (f.origin or (0, 0, 0), f.coordinate or BEFORE_ALL)):
            assert finding.origin is not None and finding.coordinate is not None
            entry = self._local(finding.origin, finding.coordinate, Header(0, 0))
            if entry is None:
                finding.left = _NOBODY
                continue
            entry.time_ms = 0
            finding.left = "on its way to the end of the topic"
            self.appending += 1
            done = _Done(self, finding)
            self._log.append_late(entry, done.done, done.failed)

    def settled(self, finding: Finding, left: str) -> None:
        """What became of one that was appended."""
        finding.left = left
        self.appending -= 1
        if not self.appending:
            self.on_appended()

    async def _hide(self, findings: Sequence[Finding]) -> None:
        placed = []
        for finding in findings:
            assert finding.origin is not None and finding.coordinate is not None and finding.position is not None
            if finding.fault is Fault.EXTRA and not await self._taken(finding.origin, finding.coordinate):
                finding.left = _NO_PROOF
                continue
            ledger, entry = finding.coordinate
            header = self._pass.headers[finding.position]
            run = SkipRecord(
                finding.origin, (ledger, entry - 1), finding.coordinate, SkipReason.FILTERED, HIDDEN_BY_AUDIT
            ).as_run()
            run.time_ms, run.first_index = header.time_ms, header.first_index
            placed.append(_Placed(finding.position, run, finding))
        await self._store(placed, anew=True)

    async def _taken(self, origin: Origin, at: Position) -> bool:
        """Whether the origin's region has read another entry there, and no region that can be asked has this one.

        That the origin has nothing there is no proof, whoever else has nothing either: an origin that lost its tail
        goes on behind it, and others that had not got the tail by then pass over it as the origin does.
        """
        taken = False
        for region in self._askable(origin):
            own = region == self._names.get(origin[0])
            try:
                told = await self._pass.ask(
                    region,
                    Ask(What.ROWS, origin, (at[0], at[1] - 1), at, own and origin in self._log.state.trees, taken=own),
                )
            except HeliographError:
                continue
            if told.rows:
                return False
            taken = taken or (own and not told.refusal and not told.holes and told.low < at and told.taken > 0)
        return taken


class _Done:
    """What becomes of one finding that is being appended."""

    def __init__(self, repairer: Repairer, finding: Finding) -> None:
        self._repairer, self._finding = repairer, finding

    def done(self, _: object) -> None:
        self._repairer.settled(self._finding, "")

    def failed(self, error: HeliographError) -> None:
        self._repairer.settled(self._finding, f"appending it failed: {error}")


def _nobody_waits() -> None:
    pass


def _ranges(wanted: Sequence[Position]) -> list[tuple[Position, Position]]:
    """(after, through] around coordinates that lie near each other, so that few requests bring them."""
    out: list[tuple[Position, Position]] = []
    for ledger, entry in wanted:
        if out and out[-1][1][0] == ledger and entry - out[-1][1][1] <= _FETCH_MAX:
            out[-1] = (out[-1][0], (ledger, entry))
        else:
            out.append(((ledger, entry - 1), (ledger, entry)))
    return out


def _ascend(keys: Sequence[tuple[Origin, Position]]) -> bool:
    """Says whether the coordinates of each origin strictly ascend."""
    last: dict[Origin, Position] = {}
    for origin, at in keys:
        if at <= last.get(origin, BEFORE_ALL):
            return False
        last[origin] = at
    return True
