"""LinkSender: decides what one link (a topic, to one region) sends, repeats, and skips, and how far its cursor moves.

Is: the sender's half of the link as a pure core. Isn't: reading, connections, or the receiver's half (`replicator.intake`).
In: handshakes, runs read from the topic, receipts, gaps, time. Out: the frames to send, the cursor's position.
Invariants: only what was first published in this region goes out (full mesh: the origin is every region's parent), in order, each run with the
coordinate before it on this route; the cursor moves over an entry only when everything before it is covered by durable receipts of the target,
was not meant for it, or was first published elsewhere; a SKIP goes out on the attempt it was decided on, and only once it is stored here, which
only the owner of the topic can do.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.link import SkipReason, SkipRecord
from heliograph.wire.run import BYTES_MAX, COUNT_MAX, Run, join
from replicator.entries import checked_and_addressed
from replicator.outbox import Totals
from replicator.state import TopicState
from replicator.transactions import is_marker

_JOIN_MS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    window_bytes: int = 16 << 20
    """In flight per link, at most; the receiver may ask for less."""
    filtered_after_s: float = 1.0
    """A range that is not meant for the target is sent as SKIP(filtered) when no run followed within this time."""
    stalled_after_s: float = 30.0
    """Behind, and nothing new confirmed at the target for so long: the link is made anew, with the cause."""


class SendRun(NamedTuple):
    """Send `run`; `previous` is the coordinate of its origin before it on this route."""

    previous: Position
    run: Run


def joined(sends: list[SendRun]) -> list[SendRun]:
    """Neighbours of about the same time as one run: small runs cost the target as much as large ones."""
    out: list[SendRun] = []
    group: list[Run] = []
    count = size = 0
    for send in sends:
        run = send.run
        fits = group and count + run.count <= COUNT_MAX and size + run.size_bytes <= BYTES_MAX
        alike = fits and run.origin == group[0].origin and run.transaction == group[0].transaction and not is_marker(run)
        if alike and not is_marker(group[0]) and run.time_ms - group[0].time_ms <= _JOIN_MS and send.previous == _last(group[-1]):
            group.append(run)
            count, size = count + run.count, size + run.size_bytes
            continue
        if len(group) > 1:
            out[-1] = SendRun(out[-1].previous, join(group))
        out.append(send)
        group, count, size = [run], run.count, run.size_bytes
    if len(group) > 1:
        out[-1] = SendRun(out[-1].previous, join(group))
    return out


def _last(run: Run) -> Position:
    ledger, first, count = run.spans[-1]
    return (ledger, first + count - 1)


class _Step(NamedTuple):
    """Something read from the topic, in order. `origin` and `through`: the receipt that it waits for, None: none of its own."""

    end: Position
    origin: Origin | None
    through: Position
    size_bytes: int
    totals: Totals


class LinkSender:
    """One link's decisions. `mark`: everything at or below it needs no sending any more."""

    def __init__(self, target: str, state: TopicState, mark: Position, settings: SenderSettings) -> None:
        self.target, self.state, self.settings = target, state, settings
        self.mark = mark
        self.done: Totals = state.outbox.at(mark)
        """Totals of what was first published here, up to `mark`."""
        self.connected = False
        self.attempt = 0
        self.in_flight_bytes = 0
        self.transactional = True
        """The target understands transactions; to one that does not, committed entries go as any others."""
        self.read_at: Position = BEFORE_ALL
        self.remote = Vector()
        """Durable at the target, as last heard."""
        self.rewinds = self.receipts = self.entries_sent = self.bytes_sent = 0
        self._window = 0
        self._sent: dict[Origin, Position] = {}
        self._steps: deque[_Step] = deque()
        self._read_totals: Totals = self.done
        self._filtered: tuple[Origin, Position, float] | None = None
        self._skipping = False

    # -- connection ----------------------------------------------------------------------------------------------------

    def opened(self, vector: Vector, window_bytes: int) -> bool:
        """The handshake. Returns True where the target holds less than it once confirmed: `mark` went back, the cursor must follow."""
        self.connected = True
        self._window = min(window_bytes, self.settings.window_bytes)
        return self._rewind(vector)

    def disconnected(self) -> None:
        self.connected = False
        self._clear()

    def gap(self, attempt: int, vector: Vector) -> bool | None:
        """The target lacks something before what was sent: start again at its vector. None: of an earlier attempt; else as `opened`."""
        if attempt != self.attempt or not self.connected:
            return None
        self.rewinds += 1
        return self._rewind(vector)

    def _rewind(self, vector: Vector) -> bool:
        self._clear()
        self.attempt += 1
        self.remote = vector
        went_back = False
        if (confirmed := self.state.delivered.get(self.target)) is not None and vector.prefix(confirmed[0]) < confirmed[1]:
            self.state.delivered[self.target] = (confirmed[0], vector.prefix(confirmed[0]))
            went_back = vector.prefix(confirmed[0]) < self.mark
            if went_back:
                self.mark = vector.prefix(confirmed[0])
                self.done = self.state.outbox.at(self.mark)
        past = [origin for origin, _ in self.state.past]
        for origin in (*past, self.state.origin):
            self._note_delivered(origin, vector.prefix(origin))
        ahead = min(vector.prefix(self.state.origin), self.state.vector.prefix(self.state.origin))
        if ahead > self.mark and all(vector.prefix(origin) >= self.state.vector.prefix(origin) for origin in past):
            self.mark, self.done = ahead, self.state.outbox.at(ahead)  # receipts were lost, or the cursor is new
        self.read_at = (self.mark[0], self.mark[1] + 1)
        self._read_totals = self.done
        return went_back

    def _clear(self) -> None:
        self._steps.clear()
        self._sent = {}
        self._filtered = None
        self._skipping = False
        self.in_flight_bytes = 0

    def _note_delivered(self, origin: Origin, through: Position) -> None:
        known = self.state.delivered.get(self.target)
        if through > BEFORE_ALL and self.state.is_own(origin) and (known is None or known[1] < through):
            self.state.delivered[self.target] = (origin, through)

    # -- sending -------------------------------------------------------------------------------------------------------

    def previous(self, origin: Origin) -> Position:
        """The coordinate of `origin` that was sent last on this attempt, or that the target holds."""
        return max(self._sent.get(origin, BEFORE_ALL), self.remote.prefix(origin))

    @property
    def room_bytes(self) -> int:
        """How much may be sent now; one run at least may go out while nothing is in flight."""
        return self._window - self.in_flight_bytes if self.connected and not self._skipping else 0

    def take(self, ledger: int, first: int, run: Run, now: float) -> SendRun | None:
        """The next run of the topic, at or behind `read_at`. Returns what to send of it."""
        last = (ledger, first + run.count - 1)
        self.read_at = (ledger, first + run.count)
        if run.origin is not None:
            self._step(_Step(last, None, BEFORE_ALL, 0, self._read_totals))
            return None
        entries, messages, size = self._read_totals
        self._read_totals = (entries + run.count, messages + run.messages, size + run.size_bytes)
        origin = self.state.origin_at(last)
        previous = self.previous(origin)
        if last <= previous:
            self._step(_Step(last, None, BEFORE_ALL, 0, self._read_totals))
            return None
        if (ledger, first) <= previous:
            start = previous[1] - first + 1
            run, first = run.cut(start, run.count), first + start
        buffer = self.state.transactions
        checksums: list[int] = []
        keep: list[int] | None = []
        if buffer is None or not buffer.is_aborted(run):
            checksums, keep = checked_and_addressed(run, self.target)
        if keep is not None and (not keep or keep[-1] < run.count - 1):
            since = self._filtered[2] if self._filtered is not None else now
            self._filtered = (origin, last, since)
        if keep is not None and not keep:
            self._step(_Step(last, None, BEFORE_ALL, 0, self._read_totals))
            return None
        replicated = run.as_replicated(origin, ledger, first, checksums)
        if run.transaction is not None and not self.transactional:
            replicated = replicated.flagged(run.flags)
        if keep is None:
            self._filtered = None
        else:
            replicated = replicated.select(keep)
            if keep[-1] == run.count - 1:
                self._filtered = None
        through = _last(replicated)
        self._sent[origin] = through
        self.in_flight_bytes += replicated.size_bytes
        self.entries_sent += replicated.count
        self.bytes_sent += replicated.size_bytes
        self._step(_Step(last, origin, through, replicated.size_bytes, self._read_totals))
        return SendRun(previous, replicated)

    def at_the_end(self) -> None:
        """Everything confirmed was taken: what the totals say is exact again."""
        drift = tuple(now - read for now, read in zip(self.state.outbox.totals, self._read_totals, strict=True))
        if any(drift):
            self._read_totals = self.state.outbox.totals
            self._steps = deque(s._replace(totals=_add(s.totals, drift)) for s in self._steps)
            self.done = _add(self.done, drift)

    def _step(self, step: _Step) -> None:
        steps = self._steps
        if steps and step.origin is None:  # it waits for nothing but the one before it
            steps[-1] = steps[-1]._replace(end=step.end, totals=step.totals)
            return
        steps.append(step)
        if len(steps) == 1:
            self._advance()

    # -- what must not be waited for -----------------------------------------------------------------------------------

    def trimmed(self, first: Position, reason: SkipReason = SkipReason.TRIMMED) -> SkipRecord | None:
        """`first`: the first position that the topic still has, or that the link begins at, beyond `read_at`. Returns the SKIP that must go out first."""
        end = (first[0], first[1] - 1) if first[1] > 0 else (first[0] - 1, 1 << 62)
        newest = self.state.outbox.last_at(end)
        for origin in (*(past for past, _ in self.state.past), self.state.origin):
            through = min(newest, self.state.vector.prefix(origin))
            if through <= self.mark or self.state.origin_at(through) != origin:
                continue  # what lies at or below the mark was delivered, or not meant for it
            if (after := self.previous(origin)) < through:
                self._skipping = True
                return SkipRecord(origin, after, through, reason, self.target)
        self.read_at = first
        return None

    def next_deadline(self) -> float | None:
        """When `filtered` wants to be called."""
        if self._filtered is None or not self.connected or self._skipping:
            return None
        return self._filtered[2] + self.settings.filtered_after_s

    def filtered(self, now: float) -> SkipRecord | None:
        """No run followed what was not meant for the target: the SKIP to store and send."""
        due = self.next_deadline()
        if due is None or now < due:
            return None
        assert self._filtered is not None
        origin, through, _ = self._filtered
        self._filtered = None
        self._skipping = True
        return SkipRecord(origin, self.previous(origin), through, SkipReason.FILTERED, self.target)

    def skip_stored(self, attempt: int, record: SkipRecord) -> SkipRecord | None:
        """`record`, decided on `attempt`, is durable here. Returns it where it may go out: the connection and the route are still as they were."""
        if attempt != self.attempt or not self.connected:
            return None
        self._skipping = False
        if self.previous(record.origin) != record.after:
            return None
        self._sent[record.origin] = record.through
        self._filtered = None
        if record.loss:
            self._read_totals = max(self._read_totals, self.state.outbox.at(record.through))
        self._steps.append(_Step(record.through, record.origin, record.through, 0, self._read_totals))
        return record

    # -- receipts ------------------------------------------------------------------------------------------------------

    def receipt(self, origin: Origin, through: Position) -> None:
        """The target holds `origin` durably up to `through`."""
        if through <= self.remote.prefix(origin):
            return
        self.remote.advance(origin, through)
        self.receipts += 1
        self._note_delivered(origin, through)
        self._advance()

    def _advance(self) -> None:
        steps = self._steps
        while steps:
            head = steps[0]
            if head.origin is not None and self.remote.prefix(head.origin) < head.through:
                return
            steps.popleft()
            self.in_flight_bytes -= head.size_bytes
            if head.end > self.mark:
                self.mark, self.done = head.end, head.totals

    @property
    def skipping(self) -> bool:
        """A SKIP is on its way to this region's disks, and nothing is sent meanwhile."""
        return self._skipping

    def behind(self, last_confirmed: Position) -> bool:
        """Whether there is something that is neither confirmed at the target nor known to be superfluous there."""
        return bool(self._steps) or self._skipping or self.read_at <= last_confirmed

    def backlog(self) -> tuple[Totals, int]:
        """((entries, messages, bytes) first published here and not done with, broker time in ms of the oldest; 0: none)."""
        now, done = self.state.outbox.totals, self.done
        left = (max(0, now[0] - done[0]), max(0, now[1] - done[1]), max(0, now[2] - done[2]))
        return left, self.state.outbox.oldest_ms(done) if left[0] else 0


def _add(totals: Totals, drift: tuple[int, ...]) -> Totals:
    return (totals[0] + drift[0], totals[1] + drift[1], totals[2] + drift[2])
