"""Skips: what a link says of entries that this region does not have any more, and that its target lacks.

Is: the part of `replicator.sending.link_sender` that names ranges which are trimmed, expired, given up, or deleted.
Isn't: what is sent of what is there, or what was not meant for the target.
Invariants: of each origin a range is named once on an attempt, behind everything that goes before it; records of trees
are never lost, they are sent in their place; where another region is the parent, that one names it.
Source: docs/protocols/links.md, "SKIP", "What an admin deletes".
"""

from __future__ import annotations

from heliograph.model.coordinates import Origin
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Run
from replicator.coordinates.published_totals import Totals
from replicator.log.routing_trees import is_skip
from replicator.log.topic_state import TopicState
from replicator.sending.delivery_routes import DeliveryRoute
from replicator.sending.in_flight_steps import Steps
from replicator.sending.outgoing_runs import OutgoingRun, Send, just_before


class Skips(DeliveryRoute):
    """Names what one link's target will not get. `read_at`: where the link goes on reading."""

    def __init__(self, target: str, state: TopicState, mark: Position, region: str) -> None:
        super().__init__(target, state, mark, region)
        self.connected = False
        self.passes = True
        """The target understands trees; to one that does not goes only what was first published here."""
        self.read_at: Position = BEFORE_ALL
        self.done: Totals = state.outbox.at(mark)
        """Totals of what was first published here, up to `mark`."""
        self._read_totals: Totals = self.done
        self._steps = Steps()
        self._held: dict[Origin, None] = {}
        """Origins of which something was read that goes out once the target is so far."""
        self._unsure: dict[Origin, Position | None] = {}
        """Origins of other regions of which something may be trimmed here that the target lacks -> through where that
        was named; None: not yet.
        """
        self._skipping = False
        """A SKIP is being stored."""

    def of_the_dead(self) -> list[Send]:
        """Names, of incarnations that were deleted here, what the target was not told of. Nothing of it can change any
        more, so it is not stored first.
        """
        sends: list[Send] = []
        for origin, end in self.state.dead if self.connected else ():
            if (after := self.previous(origin)) < end:
                self._sent[origin] = end
                self.state.reasons.note(self.target, origin, after, end, SkipReason.DELETED)
                sends.append(SkipRecord(origin, after, end, SkipReason.DELETED, self.target))
        return sends

    def trimmed(self, first: Position, reason: SkipReason = SkipReason.TRIMMED) -> Send | None:
        """`first`: the first position that the topic still has, or that the link begins at, beyond `read_at`. Returns
        what must go out first: a SKIP to be stored, or a tree's record.
        """
        end = just_before(first)
        newest = self.state.outbox.last_at(end)
        for origin in self.state.own_origins():
            through = min(newest, self.state.local_prefix(origin))
            if through <= self.mark or self.state.origin_at(through) != origin:
                continue  # what lies at or below the mark was delivered, or not meant for it
            after = self.previous(origin)
            if after < through and self.state.trees and not self.ready(origin):  # who delivers it names it
                self._held[origin] = None
                self._steps.held(through, origin, through, self._read_totals)
            elif after < through:
                return self._lost(origin, after, through, reason)
        if self.state.trees:
            self._unsure.update(dict.fromkeys(self._gone(first)))
        self.read_at = first
        return None

    def lacks(self, run: Run | None) -> Send | None:
        """Names what of other regions' origins may have been trimmed before `run` (None: of all, to the end of the
        log). Returns what must go out first, as `trimmed` does.
        """
        if not self._unsure or not self.passes:
            return None
        for origin, named in list(self._unsure.items()):
            if named is not None or (run is not None and run.origin != origin):
                continue
            through = self.state.vector.prefix(origin)
            if run is not None:
                if run.transaction is None and is_skip(run):
                    ledger, entry = SkipRecord.decode(run.parts[0]).after
                    through = (ledger, entry)
                else:
                    ledger, entry = run.spans[0][:2]
                    through = just_before((ledger, entry))
            after = self.previous(origin)
            if through <= after or self._begins_behind(origin, after, through):
                self._unsure[origin] = (
                    through  # nothing is missing; the mark waits until the target has what was sent before
                )
            elif self.ready(origin):
                return self._lost(origin, after, through, SkipReason.TRIMMED)
        return None

    def _begins_behind(self, origin: Origin, after: Position, through: Position) -> bool:
        """Whether `origin` published nothing up to `through`, because the record behind it is a whole one. A target
        that knows nothing of it refuses a SKIP.
        """
        book, record = self.state.trees, self.state.trees.next_record(origin, after)
        return (
            record is not None
            and through == just_before(record)
            and book.governing(origin, record) is book.following(origin, record)
        )

    def _lost(self, origin: Origin, after: Position, through: Position, reason: SkipReason) -> Send:
        """(after, through] is not here any more, but for the records of trees: those are known, and behind one another
        region may be the parent.
        """
        record = self.state.trees.next_record(origin, after)
        if record is not None and record <= through:
            through = just_before(record)
            whole = self.state.trees.governing(origin, record) is self.state.trees.following(origin, record)
            if whole or through <= after:
                self._sent[origin] = record
                self._steps.sent(BEFORE_ALL, origin, record, self._read_totals, 0)
                return OutgoingRun(after, self.state.trees.record(origin, record))
        elif origin in self._unsure:
            self._unsure[origin] = through
        self._skipping = True
        return SkipRecord(origin, after, through, reason, self.target)
