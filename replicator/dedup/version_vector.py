"""Version vector: what a topic has taken over of each origin, and the rule which run or SKIP of another region is new
here.

Is: the two watermarks of each origin, *submitted* and *durable* (the vector), and the rule. Isn't: storage, frames, or
the sender's side.
The rule, by origin, against *submitted*: own coordinate <= prefix: duplicate. Previous coordinate > prefix: gap.
Otherwise accept what is above it.
Invariants: a coordinate is accepted once while an append of it may still succeed; a receipt never goes beyond
*durable*; a failed append takes *submitted* back to *durable*, because everything appended behind it failed too.
Source: docs/protocols/links.md, "The rule".
"""

from __future__ import annotations

from enum import Enum

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.positions import Position
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.run import Run


class RunVerdict(Enum):
    ACCEPT = 1
    DUPLICATE = 2
    GAP = 3


class Intake:
    """What one region has accepted of one topic from elsewhere."""

    __slots__ = ("_submitted", "durable")

    def __init__(self, durable: Vector) -> None:
        self.durable = durable
        self._submitted: dict[Origin, Position] = NOTHING  # only of origins that have something on its way

    def submitted(self, origin: Origin) -> Position:
        return max(self._submitted.get(origin, self.durable.prefix(origin)), self.durable.prefix(origin))

    def judge(self, origin: Origin, previous: Position, last: Position) -> RunVerdict:
        """previous: the coordinate before the first, of this origin on this route. last: of the run, or the end of the
        SKIP.
        """
        have = self.submitted(origin)
        if last <= have:
            return RunVerdict.DUPLICATE
        return RunVerdict.GAP if previous > have else RunVerdict.ACCEPT

    def accept(self, run: Run) -> Run:
        """Takes a run judged ACCEPT. Returns its part above the prefix, which is submitted from now on."""
        assert run.origin is not None
        have, known = self.submitted(run.origin), 0
        for ledger, first, count in run.spans:
            if (ledger, first) > have:
                break
            known += count if (ledger, first + count - 1) <= have else have[1] - first + 1
        self._submitted = own(self._submitted)
        self._submitted[run.origin] = run.coordinate(run.count - 1)
        return run.cut(known, run.count)

    def accept_skip(self, record: SkipRecord) -> SkipRecord:
        """Takes a SKIP judged ACCEPT. Returns its part above the prefix (an entry beats a SKIP), which is submitted
        from now on.
        """
        have = self.submitted(record.origin)
        self._submitted = own(self._submitted)
        self._submitted[record.origin] = record.through
        return (
            record
            if record.after >= have
            else SkipRecord(record.origin, have, record.through, record.reason, record.route)
        )

    def confirm(self, origin: Origin, through: Position) -> None:
        """Entries of `origin` up to `through` are durable."""
        self.durable.advance(origin, through)
        self._settle(origin)

    def confirm_skip(self, record: SkipRecord) -> None:
        if record.loss:
            self.durable.skip(record.origin, record.after, record.through)
        else:
            self.durable.advance(record.origin, record.through)
        self._settle(record.origin)

    def _settle(self, origin: Origin) -> None:
        if self._submitted.get(origin) == self.durable.prefix(origin):
            del self._submitted[origin]

    def rollback(self) -> None:
        """What was submitted and not confirmed has failed."""
        self._submitted.clear()

    def submit_again(self, origin: Origin, through: Position) -> None:
        """After a rollback: an append up to `through` is still on its way."""
        self._submitted = own(self._submitted)
        self._submitted[origin] = max(self.submitted(origin), through)
