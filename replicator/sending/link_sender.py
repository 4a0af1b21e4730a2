"""LinkSender: decides what one link (a topic, to one region) sends, repeats, and skips, and how far its cursor moves.

Is: the sender's half of the link as a pure core. Isn't: reading, connections, the receiver's half
(`replicator.dedup.version_vector`), or whose business an entry is (`replicator.sending.delivery_routes`).
In: handshakes, runs read from the topic, receipts, gaps, time. Out: the frames to send, the cursor's position.
Invariants: of each origin only that goes out which this region is the target's parent for
(`replicator.log.routing_trees`; without trees: what was first published here), by origin in order, each run with the
coordinate before it on this route, and only once the target holds what it gets by earlier trees; the cursor moves over
an entry only when everything before it is durable at the target (whoever delivers it), was not meant for it, or is no
business of this region; a SKIP of this region's goes out on the attempt it was decided on, and only once it is stored
here, which only the owner of the topic can do.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.coordinates import Coordinate, Origin, Vector
from heliograph.model.empty_dict import own
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run
from replicator.coordinates.published_totals import Totals
from replicator.log.deletion import untold_from
from replicator.log.replicated_entries import as_published, checked_and_addressed
from replicator.log.routing_trees import is_skip, is_tree, tree_checksum
from replicator.log.topic_state import TopicState
from replicator.log.transaction_buffer import is_marker
from replicator.sending.in_flight_steps import added
from replicator.sending.outgoing_runs import OutgoingRun, Send, above, last_of
from replicator.sending.skips import Skips


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    window_bytes: int = 16 << 20
    """In flight per link, at most; the receiver may ask for less."""
    filtered_after_s: float = 1.0
    """A range that is not meant for the target is sent as SKIP(filtered) when no run followed within this time."""
    stalled_after_s: float = 30.0
    """Behind, and nothing new confirmed at the target for so long: the link is made anew, with the cause."""


class LinkSender(Skips):
    """One link's decisions. `mark`: everything at or below it needs no sending any more. region: this one's name; "":
    there are no trees. delivered: up to where the target had confirmed what was first published here when `mark` was
    stored; the topic's state is stored less often.
    """

    def __init__(
        self,
        target: str,
        state: TopicState,
        mark: Position,
        settings: SenderSettings,
        region: str = "",
        delivered: Coordinate | None = None,
    ) -> None:
        super().__init__(target, state, mark, region)
        if delivered is not None:
            self._note_delivered(*delivered)
        self.settings = settings
        self.attempt = 0
        self.transactional = True
        """The target understands transactions; to one that does not, committed entries go as any others."""
        self.rewinds = self.receipts = self.entries_sent = self.bytes_sent = 0
        self._only = frozenset((target,))
        self._window = 0
        """As the target offered it."""
        self._fitting: int | None = None
        self._filtered: dict[Origin, tuple[Position, float]] = {}
        self._passed: tuple[Position, Totals] | None = None
        """How far the mark could be, but for what is unsure."""
        self._oldest = 0, 0
        """(entries done with, time in ms of the oldest one behind them), as they were told last."""

    @property
    def delivered(self) -> Coordinate | None:
        """What is to be stored with `mark`."""
        return self.state.delivered.get(self.target)

    @property
    def in_flight_bytes(self) -> int:
        return self._steps.in_flight_bytes

    @property
    def unread_bytes(self) -> int:
        """The bytes of what was first published here and is not sent yet, on this attempt."""
        return self.state.outbox.totals[2] - self._read_totals[2]

    # -- connection ----------------------------------------------------------------------------------------------------

    def opened(self, vector: Vector, window_bytes: int) -> bool:
        """The handshake. Returns True where the target holds less than it once confirmed: `mark` went back, the cursor
        must follow.
        """
        self.connected = True
        self._window = min(window_bytes, self.settings.window_bytes)
        return self._rewind(vector)

    def disconnected(self) -> None:
        self.connected = False
        self._clear()

    def gap(self, attempt: int, vector: Vector) -> bool | None:
        """The target lacks something before what was sent: start again at its vector. None: of an earlier attempt; else
        as `opened`.
        """
        if attempt != self.attempt or not self.connected:
            return None
        self.rewinds += 1
        return self._rewind(vector)

    def _rewind(self, vector: Vector) -> bool:
        self._clear()
        self.attempt += 1
        self.remote = vector
        went_back = False
        if (confirmed := self.state.delivered.get(self.target)) is not None and vector.prefix(confirmed[0]) < confirmed[
            1
        ]:
            self.state.delivered = own(self.state.delivered)
            self.state.delivered[self.target] = (confirmed[0], vector.prefix(confirmed[0]))
            went_back = vector.prefix(confirmed[0]) < self.mark
            if went_back:
                self.mark = vector.prefix(confirmed[0])
                self.done = self.state.outbox.at(self.mark)
        for origin in self.state.own_origins():
            self._note_delivered(origin, vector.prefix(origin))
        if (mark := untold_from(self.state, vector, self.mark)) < self.mark:
            self.mark, self.done = mark, self.state.outbox.at(mark)
        if not self._relays():
            self._jump(vector)
        self.read_at = (self.mark[0], self.mark[1] + 1)
        self._read_totals = self.done
        if self.state.trees:
            self._begin_at_trees(vector)
        return went_back

    def _jump(self, vector: Vector) -> None:
        """Everything of this region's that the target holds is done with, whoever delivered it."""
        past = [origin for origin, _ in self.state.past]
        ahead = min(vector.prefix(self.state.origin), self.state.vector.prefix(self.state.origin))
        if ahead > self.mark and all(vector.prefix(origin) >= self.state.local_prefix(origin) for origin in past):
            self.mark, self.done = ahead, self.state.outbox.at(ahead)  # receipts were lost, or the cursor is new

    def _begin_at_trees(self, vector: Vector) -> None:
        """What came from elsewhere and the target lacks may lie before the mark (another region delivered it until
        now).
        """
        first = self.state.positions.first()
        confirmed = self.state.relayed.get(self.target, {})
        gone = self._gone(first)
        for origin in self._foreign():
            prefix = vector.prefix(origin)
            if prefix >= self.state.vector.prefix(origin):
                continue
            low, _ = self.state.positions.around(origin, prefix)
            if origin in gone or (low < first and prefix < confirmed.get(origin, BEFORE_ALL)):
                self._unsure[origin] = None
            if max(low, first) < self.read_at and self.ready(origin):
                self.read_at = max(low, first)
        for origin in self.state.own_origins():
            prefix = vector.prefix(origin)
            if prefix >= self.state.local_prefix(origin) or prefix >= self.mark:
                continue
            if first <= prefix:
                self.read_at = min(
                    self.read_at, (prefix[0], prefix[1] + 1)
                )  # what was not meant for the target is told again
            elif prefix < (
                through := min(self.state.outbox.last_at(self.mark), self.state.local_prefix(origin))
            ) and self.ready(origin):
                self._filtered[origin] = (through, 0.0)
        if self.read_at <= self.mark:
            self._read_totals = self.state.outbox.at((self.read_at[0], self.read_at[1] - 1))

    def learned(self, vector: Vector) -> None:
        """Moves the mark by what others say that a target without a connection holds. What this region is the parent
        for waits nevertheless.
        """
        if not self.connected and self.state.trees and not self._relays():
            tree = self.state.trees.newest(self.state.origin)
            if tree is not None and tree.parent(self.target) != self.region:
                self._jump(vector)

    def _clear(self) -> None:
        self._steps.clear()
        self._sent = {}
        self._filtered = {}
        self._held = {}
        self._unsure = {}
        self._passed = None
        self._skipping = False

    def _note_delivered(self, origin: Origin, through: Position) -> None:
        known, through = self.state.delivered.get(self.target), min(through, self.state.local_end(origin))
        if through > BEFORE_ALL and (known is None or known[1] < through):
            self.state.delivered = own(self.state.delivered)
            self.state.delivered[self.target] = (origin, through)

    def take_over(self, yes: bool) -> bool | None:
        """As `gap`; None: nothing changes."""
        upto = self.state.trees.newest_at(self.state.origin) if yes else None
        if upto == self.takes_over:
            return None
        self.takes_over = upto
        return self._rewind(self.remote) if self.connected else None

    # -- sending -------------------------------------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """How much may be sent now; one run at least may go out while nothing is in flight."""
        window = self._window if self._fitting is None else min(self._window, self._fitting)
        return window - self._steps.in_flight_bytes if self.connected and not self._skipping else 0

    def fit(self, window_bytes: int | None) -> None:
        """No more than so much is to be in flight; None: as much as the target offers."""
        self._fitting = window_bytes

    def take(self, ledger: int, first: int, run: Run, now: float) -> list[Send]:
        """The next run of the topic, at or behind `read_at`. Returns what to send of it. Raises CorruptData where it is
        damaged here.
        """
        last = (ledger, first + run.count - 1)
        buffer = self.state.transactions
        aborted = buffer is not None and buffer.is_aborted(run)
        if run.origin is None:
            entries, messages, size = self._read_totals
            totals = (entries + run.count, messages + run.messages, size + run.size_bytes)
            origin = self.state.origin_at(last)
            sends = self._send(origin, run.as_replicated(origin, ledger, first, ()), last, totals, now, aborted)
            self._read_totals = totals
        elif not self.state.trees or not self.passes:
            sends = self._nothing(last)
        elif is_skip(run) and run.transaction is None:
            sends = self._pass_skip(SkipRecord.decode(run.parts[0]), last, now)
        else:
            assert run.origin is not None
            sends = (
                self._nothing(last)
                if self.state.is_own(run.origin)
                else self._send(run.origin, run, last, self._read_totals, now, aborted)
            )
        self.read_at = (ledger, first + run.count)
        return sends

    def _nothing(self, last: Position) -> list[Send]:
        self._steps.passed_over(last, self._read_totals)
        self._advance()
        return []

    def _send(self, origin: Origin, run: Run, last: Position, totals: Totals, now: float, aborted: bool) -> list[Send]:
        """run: with its coordinates; of an own origin still without checksums."""
        book = self.state.trees
        through, previous = last_of(run), self.previous(origin)
        if through <= previous:
            self._steps.passed_over(last, totals)
            self._advance()
            return []
        tree = book.governing(origin, through) if book else None
        parent = self._is_parent(origin, tree, through)
        if not parent or (book and not self.ready(origin)):
            if parent:
                self._held[origin] = None
            if parent or self.state.is_own(origin):
                self._steps.held(last, origin, through, totals)
            else:
                self._steps.passed_over(last, totals)
            self._advance()
            return []
        run = above(run, previous)
        sent = self._addressed(origin, run, self._only if tree is None else tree.reach(self.target), now, aborted)
        if sent is None:
            self._steps.passed_over(last, totals)
            self._advance()
            return []
        through = last_of(sent)
        self._sent[origin] = through
        self.entries_sent += sent.count
        self.bytes_sent += sent.size_bytes
        self._steps.sent(last, origin, through, totals, sent.size_bytes)
        return [OutgoingRun(previous, sent)]

    def _addressed(self, origin: Origin, run: Run, reach: frozenset[str], now: float, aborted: bool) -> Run | None:
        """The part of it that is meant for the target, or for regions behind it, as its origin published it; None:
        nothing.
        """
        checksums: list[int] = []
        keep: list[int] | None = []
        if is_tree(run):
            keep = None if self.passes else []
        elif not aborted:
            if run.checksums:
                run = run if is_marker(run) else as_published(run)
            checksums, keep = checked_and_addressed(run, reach)
        if keep is not None and (not keep or keep[-1] < run.count - 1):
            self._filter(origin, last_of(run), now)
        else:
            self._filtered.pop(origin, None)
        if keep is not None and not keep:
            return None
        if not run.checksums:
            run.checksums = checksums or [tree_checksum(run)]  # it was made here, by `as_replicated`
        if run.transaction is not None and not self.transactional:
            run = run.flagged(run.flags)
        return run if keep is None else run.select(keep)

    def _filter(self, origin: Origin, through: Position, now: float) -> None:
        self._filtered[origin] = (through, self._filtered[origin][1] if origin in self._filtered else now)

    def _pass_skip(self, record: SkipRecord, last: Position, now: float) -> list[Send]:
        """A SKIP that lies here. What was lost on the way here is lost for those behind; what this region issued itself
        is not meant for them.
        """
        origin = record.origin
        tree = self.state.trees.governing(origin, record.through)
        if (
            record.route != self.region
            or self.state.is_own(origin)
            or not self._is_parent(origin, tree, record.through)
        ):
            return self._nothing(last)
        previous = self.previous(origin)
        if record.through <= previous:
            return self._nothing(last)
        if not self.ready(origin):
            self._held[origin] = None
            self._steps.held(last, origin, record.through, self._read_totals)
            return []
        if not record.loss:  # nobody here or behind was meant
            self._filter(origin, record.through, now)
            return self._nothing(last)
        sends: list[Send] = []
        if previous < record.after:
            sends.append(SkipRecord(origin, previous, record.after, SkipReason.FILTERED, self.target))
        sends.append(SkipRecord(origin, max(previous, record.after), record.through, record.reason, self.target))
        self._sent[origin] = record.through
        self._steps.sent(last, origin, record.through, self._read_totals, 0)
        return sends

    def at_the_end(self) -> None:
        """Everything confirmed was taken: what the totals say is exact again."""
        now, read = self.state.outbox.totals, self._read_totals
        if now != read:
            drift = (now[0] - read[0], now[1] - read[1], now[2] - read[2])
            self._read_totals = now
            self._steps.shift(drift)
            self.done = added(self.done, drift)
            if self._passed is not None:
                self._passed = self._passed[0], added(self._passed[1], drift)
        if self._unsure:
            self._advance()

    # -- what must not be waited for -----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `filtered` wants to be called."""
        if not self._filtered or not self.connected or self._skipping:
            return None
        return min(since for _, since in self._filtered.values()) + self.settings.filtered_after_s

    def filtered(self, now: float) -> SkipRecord | None:
        """No run followed what was not meant for the target: the SKIP to store and send."""
        for origin, (through, since) in list(self._filtered.items()):
            if not self.connected or self._skipping or now < since + self.settings.filtered_after_s:
                continue
            del self._filtered[origin]
            if (after := self.previous(origin)) < through and (not self.state.trees or self.ready(origin)):
                self._skipping = True
                return SkipRecord(origin, after, through, SkipReason.FILTERED, self.target)
        return None

    def skip_stored(self, attempt: int, record: SkipRecord) -> SkipRecord | None:
        """`record`, decided on `attempt`, is durable here. Returns it where it may go out: the connection and the route
        are still as they were.
        """
        if attempt != self.attempt or not self.connected:
            return None
        self._skipping = False
        origin = record.origin
        if self.previous(origin) != record.after:
            return None
        self._sent[origin] = record.through
        self._filtered.pop(origin, None)
        end = (self.read_at[0], self.read_at[1] - 1) if self.read_at[1] else BEFORE_ALL
        if self.state.is_own(origin):
            end = record.through
            if record.loss:
                self._read_totals = max(self._read_totals, self.state.outbox.at(record.through))
        self._steps.sent(end, origin, record.through, self._read_totals, 0)
        return record

    # -- receipts ------------------------------------------------------------------------------------------------------

    def receipt(self, origin: Origin, through: Position) -> None:
        """The target holds `origin` durably up to `through`."""
        if through <= self.remote.prefix(origin):
            return
        self.remote.advance(origin, through)
        self.receipts += 1
        self._note_delivered(origin, through)
        if origin in self.state.trees and not self.state.is_own(origin):
            self.state.relayed = own(self.state.relayed)
            self.state.relayed.setdefault(self.target, {})[origin] = through
        self._advance()

    def heard(self, vector: Vector) -> bool | None:
        """The target itself says what it holds, whoever delivered it. As `gap`; None: nothing goes back."""
        if not self.connected:
            return None
        for origin in vector:
            if self.state.trees:
                self.receipt(origin, vector.prefix(origin))
            elif not self.state.is_own(
                origin
            ):  # told once: the record of a tree by which this region passes it on may come later
                self.remote.advance(origin, vector.prefix(origin))
        return self.go_back()

    def go_back(self) -> bool | None:
        """Begins again where the target is now so far that what was read before is this region's to send. As `gap`;
        None: it is not.
        """
        return (
            self._rewind(self.remote) if self.connected and any(self.ready(origin) for origin in self._held) else None
        )

    def _advance(self) -> None:
        passed = self._steps.advance(self.remote.prefix)
        if self._unsure:
            passed = self._waits_for_names(passed)
        if passed is not None and passed[0] > self.mark:
            self.mark, self.done = passed

    def _waits_for_names(self, passed: tuple[Position, Totals] | None) -> tuple[Position, Totals] | None:
        """The mark stays before what is trimmed until the target knows: else a new owner would not."""
        if passed is not None and (self._passed is None or passed[0] > self._passed[0]):
            self._passed = passed
        for origin, named in list(self._unsure.items()):
            if self.remote.prefix(origin) >= (self.state.vector.prefix(origin) if named is None else named):
                del self._unsure[origin]
        return None if self._unsure else self._passed

    @property
    def in_flight(self) -> bool:
        return self._steps.in_flight

    @property
    def skipping(self) -> bool:
        """A SKIP is on its way to this region's disks, and nothing is sent meanwhile."""
        return self._skipping

    def behind(self, last_confirmed: Position) -> bool:
        """Whether there is something to do here: sent and not confirmed, or not read yet. What another region delivers
        does not count.
        """
        return self._steps.in_flight or self._skipping or self.read_at <= last_confirmed

    def backlog(self) -> tuple[Totals, int]:
        """((entries, messages, bytes) first published here and not done with, broker time in ms of the oldest; 0:
        none).
        """
        done = self.done
        left, oldest_ms = self.state.outbox.beyond(done)
        if not left[0]:
            return left, 0
        # Points of what was published are joined as they grow old; what was known of this very beginning stays true.
        if self._oldest[0] == done[0]:
            oldest_ms = max(oldest_ms, self._oldest[1])
        self._oldest = done[0], oldest_ms
        return left, oldest_ms
