"""TopicState: everything that a topic keeps beside its entries, as the managed ledger stores and replays it.

Is: own origin (and those of earlier epochs), vector, producers, outbox, what each link has delivered, where coordinates
lie. Isn't: anything that waits.
Invariants: `snapshot` is the state as of every confirmed entry, and replaying the entries behind it gives the same
state again, in any cut;
the incarnation is minted once, and stands in the first snapshot, before the first entry.
Source: docs/protocols/links.md; docs/protocols/ledger.md, "Managed ledgers".
"""

from __future__ import annotations

from typing import Any, Protocol

from heliograph.kv.metadata_store import VALUE_BYTES_MAX
from heliograph.model.coordinates import Origin, Vector
from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.runtime.clock import Rng
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.coordinates.late_entries import LateMap
from replicator.coordinates.position_map import PositionMap
from replicator.coordinates.published_totals import PublishedTotals
from replicator.coordinates.skip_reasons import HERE, Reasons
from replicator.dedup.producer_dedup import DedupSettings, Producers
from replicator.dedup.version_vector import Intake
from replicator.log.affected_ranges import AffectedList
from replicator.log.routing_trees import Tree, TreeBook, is_skip, is_tree
from replicator.log.transaction_buffer import TransactionBuffer, is_marker

VERSION = 1
STATE_BYTES_MAX = VALUE_BYTES_MAX - (128 << 10)
"""It is stored in one value with the newest ledgers of the topic."""
_PRODUCERS = 4


class TransactionHost(Protocol):
    """Whoever reads the topic for clients."""

    def first_transaction(self) -> None:
        """From now on the topic has a buffer."""
        ...


class TopicState:
    """Implements the managed ledger's LogState."""

    __slots__ = (
        "_epoch",
        "_region",
        "_rng",
        "affected",
        "dead",
        "deduplication",
        "delivered",
        "host",
        "intake",
        "late",
        "origin",
        "outbox",
        "past",
        "positions",
        "producers",
        "reasons",
        "relayed",
        "removed",
        "transactions",
        "trees",
        "vector",
    )

    def __init__(
        self,
        *,
        region: int,
        epoch: int,
        rng: Rng,
        deduplication: bool,
        settings: DedupSettings,
        positions: PositionMap | None = None,
    ) -> None:
        """positions: an empty one; None: it is made."""
        self.deduplication = deduplication
        self._region, self._epoch, self._rng = region, epoch, rng
        self.origin: Origin = (region, epoch, 0)
        self.past: list[tuple[Origin, Position]] = []
        """Own origins of earlier epochs, each with its last possible position: what was published under it behind that,
        and was lost here, other regions bring back.
        """
        self.vector = Vector()
        self.intake = Intake(self.vector)
        self.producers = Producers(settings)
        self.outbox = PublishedTotals()
        self.positions = positions or PositionMap()
        self.late = LateMap()
        self.delivered: dict[str, tuple[Origin, Position]] = NOTHING
        """Target region -> the newest own coordinate that its vector covers."""
        self.trees = TreeBook()
        self.relayed: dict[str, dict[Origin, Position]] = NOTHING
        """Target region -> of other regions' origins that have trees, what its vector covered once."""
        self.transactions: TransactionBuffer | None = None
        """Made with the first transaction of the topic, None before; `host` hears when that comes while it is
        loaded.
        """
        self.host: TransactionHost | None = None
        self.affected: AffectedList | None = None
        """What was confirmed with fewer regions than asked for; None: the topic was never degraded."""
        self.removed: tuple[tuple[Position, Position], ...] = ()
        """First and last local positions of what an admin has given up before every link had it
        (`replicator.log.deletion`).
        """
        self.dead: tuple[tuple[Origin, Position], ...] = ()
        """Incarnations of this topic that were deleted here, each with its last position."""
        self.reasons = Reasons()

    # -- LogState ------------------------------------------------------------------------------------------------------

    def restore(self, blob: bytes) -> None:
        """b"": a new topic, which mints its incarnation. Raises CorruptData."""
        if not blob:
            self.origin = (self._region, self._epoch, 1 + self._rng.getrandbits(62))
            return
        version, *fields = unpack("replicated log", blob)
        if version != VERSION or len(fields) < 6:
            raise CorruptData(
                f"replicated log: state version {version} is not known here (this version reads {VERSION})"
            )
        origin, past, vector, producers, outbox, delivered = fields[:6]
        self.origin = _origin(origin)
        self.past = [(_origin(o), (p[0], p[1])) for o, p in past]
        self.vector = Vector.decode(vector)
        self.intake = Intake(self.vector)
        self.producers.load(producers)
        self.outbox.load(outbox)
        self.delivered = {region: (_origin(o), (p[0], p[1])) for region, o, p in delivered} if delivered else NOTHING
        if len(fields) > 6:
            self.positions.load(fields[6])
        if len(fields) > 7 and fields[7] is not None:
            self.transactions = TransactionBuffer()
            self.transactions.load(fields[7])
        if len(fields) > 8 and fields[8] is not None:
            self.affected = AffectedList.read(fields[8])
        if len(fields) > 9:
            self.trees = TreeBook.load(fields[9])
            for region, *rest in fields[10]:
                self.relayed = own(self.relayed)
                self.relayed.setdefault(region, {})[_origin(rest)] = (rest[3], rest[4])
        if len(fields) > 11:
            self.late.load(fields[11])
        if len(fields) > 12:
            removed, dead, reasons = fields[12][:3]
            self.removed = tuple(((a, b), (c, d)) for a, b, c, d in removed)
            self.dead = tuple((_origin(row), (row[3], row[4])) for row in dead)
            self.reasons.load(reasons)
        if self.transactions is not None:  # a version that did not know what follows from that SKIP may have stored it
            for over in self._over():
                self.transactions.give_up(over)

    def snapshot(self, bytes_max: int = STATE_BYTES_MAX) -> bytes:
        """What `restore` reads. bytes_max: where it would be larger, producers are left out, until it is not or none is
        left.
        """
        fields: list[Any] = [
            VERSION,
            self.origin,
            self.past,
            self.vector.encode(),
            self.producers.dump(),
            self.outbox.dump(),
            [[region, *coordinate] for region, coordinate in sorted(self.delivered.items())],
            self.positions.dump(),
        ]
        if self.transactions is not None:
            self.transactions.trimmed(self.positions.first(), frozenset(self._over()))
            fields.append(self.transactions.dump())
        self.late.prune(self.positions.first())
        gone = bool(self.removed or self.dead or self.reasons)
        if self.affected is not None or self.trees or self.late or gone:
            fields += [None] * (9 - len(fields)) + [None if self.affected is None else self.affected.dump()]
        if self.trees or self.late or gone:
            fields.append(self.trees.dump())
            fields.append(
                [
                    [region, *origin, *at]
                    for region, found in sorted(self.relayed.items())
                    for origin, at in sorted(found.items())
                ]
            )
        if self.late or gone:
            fields.append(self.late.dump())
        if gone:
            dead = [[*origin, *end] for origin, end in self.dead]
            fields.append([[[*first, *last] for first, last in self.removed], dead, self.reasons.dump()])
        blob = pack(fields)
        if (
            over := len(blob) - bytes_max
        ) > 0:  # several parts are at their bounds at once: producers give way, who are heard of again
            fields[_PRODUCERS] = self.producers.dump(max(0, len(pack([fields[_PRODUCERS]])) - over))
            blob = pack(fields)
        return blob

    def replay(self, ledger: int, first: int, run: Run) -> None:
        if run.flags is not None and any(flag & FLAG_HIDDEN for flag in run.flags) and run.count > 1:
            for index in range(run.count):
                self.replay(ledger, first + index, run.cut(index, index + 1))
        elif run.origin is None:
            self.confirm_local(ledger, first, run)
        elif run.transaction is not None:  # its marker is hidden too, and no SKIP
            self.confirm_replicated(ledger, first, run)
        elif is_skip(run):
            self.confirm_skip(SkipRecord.decode(run.parts[0]))
        else:
            self.confirm_replicated(ledger, first, run)

    # -- what became durable -------------------------------------------------------------------------------------------

    def confirm_local(self, ledger: int, first: int, run: Run) -> None:
        """A run that was first published here lies at (ledger, first)."""
        last = (ledger, first + run.count - 1)
        if last <= self.vector.prefix(self.origin):
            return  # replayed again
        if run.transaction is not None:
            self._confirm_transactional(ledger, first, run)
        if is_tree(run):
            self.trees.note(self.origin, last, Tree.decode(run.parts[0]))
        self.vector.advance(self.origin, last)
        if self.trees:
            self.trees.stored(*last)
        self.positions.add_own(run.size_bytes)
        self.outbox.add(ledger, first, run.count, run.messages, run.size_bytes, run.time_ms)
        if self.deduplication:
            self.producers.confirm(run)

    def confirm_replicated(self, ledger: int, first: int, run: Run) -> None:
        """A run of another region lies at (ledger, first)."""
        assert run.origin is not None
        if run.transaction is not None:
            self._confirm_transactional(ledger, first, run)
        if is_tree(run):
            self.trees.note(run.origin, run.coordinate(0), Tree.decode(run.parts[0]))
        if self.trees:
            self.trees.stored(ledger, first + run.count - 1)
        if self.positions.add(run, ledger, first):
            self.late.add(run, ledger, first)
        self.intake.confirm(run.origin, run.coordinate(run.count - 1))
        if self.deduplication:
            self.producers.confirm_replicated(run, own=run.origin[0] == self.origin[0])

    def _confirm_transactional(self, ledger: int, first: int, run: Run) -> None:
        if self.transactions is None:
            self.transactions = TransactionBuffer()
            if self.host is not None:
                self.host.first_transaction()
        self.transactions.confirm(ledger, first, run)
        if run.origin is not None and is_marker(run):
            self.transactions.end_own(run, self.local_end(run.origin))
        if (
            run.origin is not None and self.reasons and self._is_over(run.origin, run.coordinate(0))
        ):  # late, and of its end nothing is known any more
            self.transactions.give_up(run.origin)

    def _over(self) -> list[Origin]:
        """Incarnations of which transactions are known, and that were deleted at their source."""
        assert self.transactions is not None
        return [origin for origin in self.transactions.origins() if self.is_over(origin)] if self.reasons else []

    def is_over(self, origin: Origin) -> bool:
        """Whether the last that was told of another region's incarnation is that it was deleted there."""
        return self._is_over(origin, self.vector.prefix(origin))

    def _is_over(self, origin: Origin, at: Position) -> bool:
        """Whether nothing comes of that incarnation any more, at `at` or behind it: a SKIP(deleted) is the last that
        was told of it.
        """
        end = self.vector.prefix(origin)
        return at <= end and self.reasons.of(HERE, origin, end) is SkipReason.DELETED

    def confirm_skip(self, record: SkipRecord) -> None:
        """At the source its own origin stands in it, which no SKIP moves, but behind what lies here."""
        if record.through <= self.local_end(record.origin):
            if record.loss:
                self.reasons.note(record.route, record.origin, record.after, record.through, record.reason)
            return
        if record.loss:
            after = max(record.after, self.vector.prefix(record.origin))
            self.reasons.note(HERE, record.origin, after, record.through, record.reason)
            if (
                record.reason is SkipReason.DELETED and self.transactions is not None and after < record.through
            ):  # else it is replayed again
                # Truncation names nothing of a topic that ever held a transaction: behind one that is open here it is
                # the end of its incarnation.
                self.transactions.give_up(record.origin)
        self.intake.confirm_skip(record)

    def rollback(self) -> None:
        """What was submitted and not confirmed has failed."""
        self.intake.rollback()
        self.producers.rollback()

    def submit_again(self, run: Run) -> None:
        """After a rollback: `run` is still on its way."""
        if run.origin is None:
            if self.deduplication:
                self.producers.submit_again(run)
        elif (last := run.coordinate(run.count - 1)) > self.local_end(run.origin):
            self.intake.submit_again(run.origin, last)

    def find_affected(self) -> None:
        """The topic is loaded, and replayed: what may have been confirmed with too few regions while nobody wrote it
        down.
        """
        if self.affected is not None and self.affected.since is not None:
            behind = self.outbox.totals[1] - self.outbox.at(self.affected.since[0])[1]
            self.affected.loaded(self.own_end(), behind)

    def own_end(self) -> Position:
        """The last entry that was first published here, under any epoch."""
        return max(map(self.local_prefix, self.own_origins()))

    # -- own origins ---------------------------------------------------------------------------------------------------

    def begin_epoch(self, end: Position) -> None:
        """The topic is loaded, and its last entry is `end`: where the region's epoch has risen, an origin of its own
        begins behind it.
        """
        if self._epoch > self.origin[1]:
            self.past.append((self.origin, end))
            self.origin = (self._region, self._epoch, self.origin[2])

    def origin_at(self, position: Position) -> Origin:
        """The own origin that a local entry at `position` belongs to."""
        for origin, end in self.past:
            if position <= end:
                return origin
        return self.origin

    def own_origins(self) -> list[Origin]:
        """Those of earlier epochs, and the present one."""
        return [*(past for past, _ in self.past), self.origin]

    def is_own(self, origin: Origin) -> bool:
        return origin == self.origin or any(origin == past for past, _ in self.past)

    def local_end(self, origin: Origin) -> Position:
        """A coordinate of `origin` up to here is its position, if it is here at all: it was published to this very log.
        Behind it, of an own origin of an earlier epoch, lies what other regions have brought back, as theirs does.
        BEFORE_ALL: it is another region's.
        """
        if origin == self.origin:
            return AFTER_ALL
        return next((end for past, end in self.past if past == origin), BEFORE_ALL)

    def local_prefix(self, origin: Origin) -> Position:
        """The last entry of the own `origin` whose coordinate is its position."""
        return min(self.vector.prefix(origin), self.local_end(origin))

    def between(self, origin: Origin, after: Position, through: Position) -> tuple[Position, Position | None]:
        """(low, high): what is here of (after, through] of `origin` lies in [low, high]. high: None where nothing of it
        is known.
        """
        end = self.local_end(origin)
        before = min(after, end)
        low = before[0], before[1] + 1
        if after >= end:
            low = max(low, self.positions.behind(origin, after))
        if through <= end:
            return low, through
        return low, self.positions.around(origin, through)[1] or (end if end > BEFORE_ALL else None)


def _origin(fields: Any) -> Origin:
    return (fields[0], fields[1], fields[2])
