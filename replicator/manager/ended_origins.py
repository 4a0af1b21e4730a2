"""EndedOrigins: what survivors of a region's loss hold of an origin that has ended, and this region does not, is
fetched from all of them at once.

Is: which origins have ended, what is lacking, and the merge of what the other regions tell. Isn't: the questions
(`replicator.audit.auditor` asks them), or the end of an origin, which the global configuration says: a higher epoch of
its region, or no region of that number any more.
No prefix of one helper is trusted: it passed over what was meant for others only. So every other region of the topic is
asked for the same range, what they tell is merged by coordinate, what is not meant for this region is left out, and
only then the prefix moves over the range, once and in order. Where one of them cannot be asked, nothing is concluded,
and nothing moves. What goes by a tree is taken for the regions behind this one as well, hidden here, with the records
of trees: so whatever a region's prefix covers it can pass on, as before. Of transactions the ends come with the
entries.
Invariants: who appends is the topic's owner alone, by the rule of every link (`replicator.dedup.version_vector`), so
nothing is stored twice whoever delivers meanwhile; an entry is stored only with the bytes of its first publish; what
each helper has trimmed or misses is named as missing.
This region's own past is fetched as well, once its epoch has risen: what it published behind the end of what its
restored metadata knows. All of it is meant for this region, and what lies before that end is where it was published.
Source: docs/protocols/links.md, "When a region is lost for good".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.configuration.replication_routes import Routes, delivers
from heliograph.model.coordinates import Origin, Range
from heliograph.model.errors import CorruptData, HeliographError, LinkError, PeerError
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.runtime.backoff import Backoff
from heliograph.wire.links.audit_commands import Ask, AuditAnswer, What
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Run
from replicator.audit.audit_scan import NOTHING_HELD
from replicator.dedup.version_vector import RunVerdict
from replicator.health.link_causes import Cause
from replicator.log.replicated_entries import addressed_to, fetched
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.routing_trees import Tree, TreeBook, is_tree
from replicator.log.transaction_buffer import is_marker
from replicator.manager.audit_channels import LinkChannels
from replicator.sending.outgoing_runs import OutgoingRun, Send, joined, just_before, last_of
from replicator.subscriptions.ack_claims import insert

if TYPE_CHECKING:
    from replicator.manager.link_manager import LinkManager

events = logging.getLogger("replicator")

_LOOKS, _LOOKS_AT_ONCE = 20, 500
"""Topics a second: always, and for a while after a region came, went, or got another epoch, or after something was
lacking somewhere.
"""
_AT_ONCE_S = 120.0
_AGAIN_S = 5.0
"""So often it is said whom a topic waits for."""
_PAUSES = Backoff(5.0, 60.0)
"""A topic whose tail could not be fetched is looked at again then; the others go on."""
_QUESTIONS_MAX = 64
"""So often all are asked for more of one origin, 2 MiB each time where they have it; then other topics go on."""


class EndedOrigins:
    """Fetches the tails of ended origins for the topics of one broker, one topic at a time."""

    def __init__(self, manager: LinkManager, questions_max: int = _QUESTIONS_MAX) -> None:
        self._questions_max = questions_max
        self._manager, self._channels = manager, LinkChannels(manager)
        self._epochs: dict[int, int] = {}
        """Number of a region of the configuration -> its epoch; empty while they are not known."""
        self.used: Mapping[int, str] = {}
        """Numbers that regions have, or had -> their names."""
        self._round: list[str] = []
        self._routes: dict[str, Routes] = {}
        """Topics whose policy says which region sends to which."""
        self._pulling = ""
        self._failed: dict[str, tuple[int, float]] = {}
        """Topic -> attempts in a row that did not come to their end, and when the next one may begin."""
        self._at_once_until = self._said_after = 0.0
        self.entries = 0
        """Fetched since the broker's start."""

    def regions_changed(self, regions: Sequence[RegionInfo], used: Mapping[int, str]) -> None:
        """regions: all of the configuration; none: they are not known, or not all of them. used: every number that it
        has given to one -> its name.
        """
        self.used = used
        epochs = {region.number: region.epoch for region in regions}
        if epochs != self._epochs:
            self._epochs, self._round = epochs, []
            self._at_once_until = self._manager.clock.monotonic() + _AT_ONCE_S

    def obey(self, log: ReplicatedLog, routes: Routes | None) -> None:
        """routes: the policy `replicationRoutes`; None: everyone sends to everyone."""
        if routes is None:
            self._routes.pop(log.topic, None)
        else:
            self._routes[log.topic] = routes

    def forget(self, log: ReplicatedLog) -> None:
        """Forgets the routes of a topic that is unloaded here."""
        self._routes.pop(log.topic, None)
        self._failed.pop(log.topic, None)

    def sources(self, log: ReplicatedLog) -> list[str]:
        """The regions that send the topic here: those that the routes name, connected or not; without routes those that
        have a stream open here, because each of the others is a target as well, or has left the topic.
        """
        if (routes := self._routes.get(log.topic)) is not None:
            return [source for source in routes if delivers(routes, source, self._manager.region)]
        return [source for source, link in log.incoming.items() if link.open]

    def ended(self, origin: Origin) -> bool:
        """Nothing is first published under it any more, wherever it is held. Of a region that the copy of the
        configuration here never heard of it is not known: it may be younger than the copy.
        """
        number, epoch, _ = origin
        return bool(self._epochs) and (self._epochs[number] > epoch if number in self._epochs else number in self.used)

    def tick(self) -> None:
        """Once a second: a few topics are looked at, one is seen to at a time."""
        now = self._manager.clock.monotonic()
        if self._pulling:
            return
        if not self._round:
            self._round = list(self._manager.logs)
        for _ in range(min(_LOOKS_AT_ONCE if now < self._at_once_until else _LOOKS, len(self._round))):
            log = self._manager.logs.get(self._round.pop())
            if log is None or now < self._failed.get(log.topic, (0, 0.0))[1] or not (lacking := self.lacking(log)):
                continue
            self._at_once_until = now + _AT_ONCE_S
            if away := sorted({*self._manager.peers(log)} - self._channels.regions(log).keys()):
                self._waits(log, f"there is no link with {', '.join(away)} now", now)
                continue
            self._pulling = log.topic
            self._manager.spawn(self._see_to(log, lacking))
            return

    def _waits(self, log: ReplicatedLog, why: str, now: float) -> None:
        if now >= self._said_after:
            self._said_after = now + _AGAIN_S
            events.info("link.tail_waits", extra={"topic": log.topic, "error": why})

    def lacking(self, log: ReplicatedLog) -> dict[Origin, Position]:
        """Origin that has ended -> the furthest of it that some region holds, where this one holds less."""
        found: dict[Origin, Position] = {}
        for region in self._manager.peers(log):
            if region not in log.known:
                continue
            for origin in (vector := log.known[region][0]):
                through = vector.prefix(origin)
                if (
                    through > log.state.intake.submitted(origin)
                    and through > found.get(origin, BEFORE_ALL)
                    and self._fetched(log, origin, through)
                ):
                    found[origin] = through
        return found

    def _fetched(self, log: ReplicatedLog, origin: Origin, through: Position) -> bool:
        state = log.state
        routed = (
            origin not in state.vector and log.topic in self._routes and origin[0] != log.origin[0]
        )  # whether it may come here at all is not known then
        return self.ended(origin) and through > state.local_end(origin) and not routed

    def gone(self, log: ReplicatedLog, origin: Origin, at: Position) -> bool:
        """Whether a coordinate beyond what this region holds will never come: its origin has ended, and every region
        has told that it holds less.
        """
        return self.ended(origin) and all(
            region in log.known and log.known[region][0].prefix(origin) < at for region in self._manager.peers(log)
        )

    # -- one topic -----------------------------------------------------------------------------------------------------

    async def _see_to(self, log: ReplicatedLog, lacking: Mapping[Origin, Position]) -> None:
        failed: HeliographError | None = None
        try:
            for origin, through in sorted(lacking.items()):
                try:
                    count = await self._pull(log, origin, through)
                except HeliographError as error:
                    failed = failed or error  # what is behind it is fetched nevertheless
                    continue
                through = min(through, log.state.intake.submitted(origin))
                events.warning(
                    "link.tail_fetched",
                    extra={"topic": log.topic, "origin": origin, "through": through, "entries": count},
                )
            if failed is None:
                self._failed.pop(log.topic, None)
            else:
                now, failures = self._manager.clock.monotonic(), self._failed.get(log.topic, (0, 0.0))[0] + 1
                if log.topic in self._manager.logs:
                    self._failed[log.topic] = failures, now + _PAUSES.pause_s(failures, None)
                self._waits(log, str(failed), now)
        finally:
            self._pulling = ""
        self.tick()  # the next one, without a wait

    async def _pull(self, log: ReplicatedLog, origin: Origin, through: Position) -> int:
        """Returns how many entries are here now that were not: all, or as many as come by `_QUESTIONS_MAX`
        questions. Raises LinkError where somebody cannot be asked now; PeerError where all of these brought nothing;
        what storage raises.
        """
        regions, name, count, barren = self._manager.peers(log), await self._name(log, origin), 0, 0
        for _ in range(self._questions_max):
            if (have := log.state.intake.submitted(origin)) >= through:
                return count
            after = max(have, log.state.local_end(origin))
            told = await self._told(log, regions, origin, after, through)
            if log.closed is not None:
                raise log.closed
            if log.state.intake.submitted(origin) != have or regions != self._manager.peers(log):
                regions = self._manager.peers(log)
                continue  # something has come meanwhile, or somebody else is to be asked, too
            upto = min(answer.upto for answer in told.values())
            if upto >= never_from(log, origin):
                raise PeerError(
                    f"{', '.join(told)}: told of {origin} up to {upto}, which was given out after it had ended"
                )
            entries, plain = merged(
                told.values(),
                origin,
                upto,
                self._manager.region if name != self._manager.region else "",
                log.state.trees,
            )
            plain = (
                plain and log.state.transactions is None
            )  # else an end of one may be what an old version keeps to itself
            if not plain and (old := [region for region, answer in told.items() if not answer.whole]):
                raise LinkError(
                    Cause.REFUSED,
                    f"{', '.join(old)}: of a version that does not tell of trees, or how transactions ended: upgrade "
                    "it",
                )
            named = _named(told.values(), upto)
            lost = may_be_lost(
                [self._lost(log, region, answer, origin, after, upto) for region, answer in told.items()], named
            )
            first, *others = in_order(origin, after, upto, entries, lost, self._manager.region)
            await _append(log, [_behind(have, first), *others], name, self._manager.region)
            count, barren = count + len(entries), barren + (not named)
            self.entries += len(entries)
        if barren == self._questions_max:
            raise PeerError(
                f"{', '.join(regions)}: told of no entry of {origin} in {barren} answers up to {upto}, of what was "
                f"told to be held up to {through}: look at its vector in each (`heliograph topics vector`)"
            )
        return count

    async def _told(
        self, log: ReplicatedLog, regions: Iterable[str], origin: Origin, after: Position, through: Position
    ) -> dict[str, AuditAnswer]:
        """Region -> what it has of (after, through], of those that have more than `after`. Raises LinkError where one
        cannot say, or none has more.
        """
        told: dict[str, AuditAnswer] = {}
        for region in regions:
            answer = await self._manager.auditor.ask(log, region, Ask(What.ENTRIES, origin, after, through, whole=True))
            if answer.refusal and answer.refusal != NOTHING_HELD:
                raise LinkError(Cause.REFUSED, f"{region} does not tell what it holds of {origin}: {answer.refusal}")
            if answer.holes:
                raise LinkError(
                    Cause.STORAGE,
                    f"{region} cannot read {answer.holes} entries that it holds of {origin}: its audit repairs them",
                )
            if not answer.refusal and answer.upto > after:
                told[region] = answer
        if not told:
            raise LinkError(
                Cause.MOVED, f"nobody tells any more of what was told to be held of {origin} up to {through}"
            )
        return told

    def _lost(
        self, log: ReplicatedLog, region: str, told: AuditAnswer, origin: Origin, after: Position, upto: Position
    ) -> list[Range]:
        """What of (after, upto] this region may have lost, or trimmed."""
        out = [(after, min(told.low, upto))] if told.low > after else []
        known = log.known.get(region)
        missing = () if known is None else known[0].missing(origin)
        return out + [
            (max(low, after), min(high, upto)) for low, high in missing if low < upto and high > max(after, told.low)
        ]

    async def _name(self, log: ReplicatedLog, origin: Origin) -> str:
        """The name of the origin's region, also where that is gone: the configuration keeps whose the number was; where
        it does not know (it went back), what came from it before says so.
        """
        known = self._manager.region_name(origin[0]) or self.used.get(origin[0])
        low, _ = log.state.positions.around(origin, log.vector.prefix(origin))
        at = max(low, log.ledger.first_position())
        if known is None and at <= log.ledger.last_confirmed:
            for _, _, run in await log.ledger.read(at, 64, 1 << 20):
                if run.origin == origin and not run.flags:
                    try:
                        known = entry_metadata(run.parts[0])[0].replicated_from
                    except CorruptData:
                        continue
                    break
        return known or f"region-{origin[0]}"


def never_from(log: ReplicatedLog, origin: Origin) -> Position:
    """Nothing was published under an own origin of an earlier epoch from here on: what this region wrote first since
    lies in that ledger, or in one behind it, and ledger ids only rise.
    """
    end = log.state.local_end(origin)
    first = log.ledger.next_position(end)
    own = log.state.is_own(origin) and end[0] < first[0] and first <= log.ledger.last_confirmed
    return (first[0], 0) if own else AFTER_ALL


def merged(
    told: Iterable[AuditAnswer], origin: Origin, upto: Position, region: str, trees: TreeBook
) -> tuple[dict[Position, Run], bool]:
    """By coordinate, each entry of `told` up to `upto` that was published for `region` ("": for whomever), or goes by
    it to regions behind; whether all go without a tree or a transaction.

    trees: those that are known here. Raises PeerError, also where two of them tell different entries under one
    coordinate: which was published nobody here can say.
    """
    runs = [run for answer in told for run in answer.runs]
    if any(run.origin != origin for run in runs):
        raise PeerError(f"tail: asked for entries of region {origin[0]}, got others")
    book = trees.with_records(origin, [run for run in runs if is_tree(run)])
    plain = origin not in book
    found: dict[Position, Run] = {}
    checksums: dict[Position, int | None] = {}
    for run in runs:
        plain = plain and run.transaction is None
        for index in range(run.count):
            at = run.coordinate(index)
            if at > upto:
                continue
            checksum = None if run.checksums is None else run.checksums[index]
            if checksums.setdefault(at, checksum) != checksum:
                raise PeerError(f"tail: regions tell different entries of {origin} at {at}: look at their copies")
            if at not in found and _wanted(entry := run.cut(index, index + 1), book.governing(origin, at), region):
                found[at] = entry
    return found, plain


def _wanted(entry: Run, tree: Tree | None, region: str) -> bool:
    return (
        not region
        or is_tree(entry)
        or is_marker(entry)
        or addressed_to(entry, frozenset((region,)) if tree is None else tree.reach(region)) is None
    )


def _named(told: Iterable[AuditAnswer], upto: Position) -> list[Position]:
    """Every coordinate up to `upto` that somebody tells of, whomever it was meant for."""
    return sorted(
        {
            at
            for answer in told
            for run in answer.runs
            for at in (run.coordinate(index) for index in range(run.count))
            if at <= upto
        }
    )


def may_be_lost(ranges: Sequence[Sequence[Range]], named: Sequence[Position]) -> list[Range]:
    """ranges: what each region may have had of it, and has not. named: coordinates that are told of, ascending.

    Where none of them has it all, everything that they may have had. Where one of them does, only what lies between the
    entries that are told of: something was published there, not for that region; whether it was for this one nobody can
    say any more.
    """
    out: list[Range] = []
    for low, high in common(ranges):
        insert(out, low, high)
    before, index, either = BEFORE_ALL, 0, _joined(one for each in ranges for one in each)
    for at in named:
        low, high = before if before[0] == at[0] else (at[0], -1), just_before(at)
        if low < high:
            index = _first_behind(either, index, low)
            for a, b in _until(either, index, high):
                insert(out, max(a, low), min(b, high))
        before = at
    return out


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """What lies in one of them, ascending, apart."""
    out: list[Range] = []
    for low, high in sorted(ranges):
        insert(out, low, high)
    return out


def _first_behind(ranges: Sequence[Range], index: int, at: Position) -> int:
    """From `index` on, the first that ends behind `at`."""
    while index < len(ranges) and ranges[index][1] <= at:
        index += 1
    return index


def _until(ranges: Sequence[Range], index: int, high: Position) -> Iterator[Range]:
    """Yields those from `index` on that begin before `high`."""
    while index < len(ranges) and ranges[index][0] < high:
        yield ranges[index]
        index += 1


def common(ranges: Sequence[Sequence[Range]]) -> list[Range]:
    """What lies in one range at least of each, ascending, apart."""
    out = _joined(ranges[0]) if ranges else []
    for each in ranges[1:]:
        others, index, both = _joined(each), 0, list[Range]()
        for low, high in out:
            index = _first_behind(others, index, low)
            inside = _until(others, index, high)
            both += [(max(low, c), min(high, d)) for c, d in inside]
        out = both
    return out


def in_order(
    origin: Origin, after: Position, upto: Position, entries: Mapping[Position, Run], lost: Sequence[Range], region: str
) -> list[Send]:
    """What moves the prefix from `after` to `upto`: entries, what is lost between them, and what is not meant for this
    region. lost: ascending, apart.
    """
    out: list[Send] = []
    at, index = after, 0
    for coordinate in (*sorted(entries), None):
        end = upto if coordinate is None else just_before(coordinate)
        index = _first_behind(lost, index, at)
        for low, high in _until(lost, index, end):
            if high <= at:
                continue
            if at < low:
                out.append(SkipRecord(origin, at, low, SkipReason.FILTERED, region))
            out.append(SkipRecord(origin, max(at, low), min(high, end), SkipReason.LOST, region))
            at = min(high, end)
        if coordinate is not None:
            out.append(OutgoingRun(at, entries[coordinate]))
            at = coordinate
    if at < upto:
        out.append(SkipRecord(origin, at, upto, SkipReason.FILTERED, region))
    return out


def _behind(previous: Position, send: Send) -> Send:
    """The same of all above `previous`, where what lies between was published here and never comes: it follows the last
    that did.
    """
    if isinstance(send, SkipRecord):
        return replace(send, after=previous)
    return OutgoingRun(previous, send.run)


def _pieces(sends: list[Send], name: str, region: str) -> list[Send]:
    """As they are stored here: what goes on to regions behind this one is hidden."""
    out: list[Send] = []
    for send in joined(sends):
        if isinstance(send, SkipRecord):
            out.append(send)
            continue
        previous = send.previous
        for piece in fetched(send.run, name, region):
            out.append(OutgoingRun(previous, piece))
            previous = last_of(piece)
    return out


async def _append(log: ReplicatedLog, sends: list[Send], name: str, region: str) -> None:
    """All at once, in order; returns once it is durable. Raises what the append raises, PeerError where bytes are not
    those of the first publish.
    """
    stored = _pieces(sends, name, region)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(stored)

    def done(_: Any) -> None:
        nonlocal left
        left -= 1
        if not left and not ended.done():
            ended.set_result(None)

    def failed(error: HeliographError) -> None:
        if not ended.done():
            ended.set_exception(error)

    for send in stored:
        append = (
            partial(log.append_skip, send)
            if isinstance(send, SkipRecord)
            else partial(log.append_replicated, send.previous, send.run)
        )
        if append(done, failed) is not RunVerdict.ACCEPT:
            raise LinkError(Cause.GAPS, "what came meanwhile is judged first")
    await ended
