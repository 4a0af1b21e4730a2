"""LedgerAppend: says how far one open ledger is durable, and what a bookie that comes in has to be sent.

Is: the ack bookkeeping of a ledger's single writer, by runs. Isn't: I/O, placement, recovery, or the runs themselves.
Invariants: LAC only grows; LAC = n means that ack_quorum bookies of its write set in the *recorded* ensemble hold each
entry 0..n.
A bookie acknowledges, in order, what it was sent, and it was sent all entries of its stripes: so one number says what
it holds of each of its write sets. LAC goes from stripe to stripe, each as far as an ack quorum of its own write set
has come.
Source: the BookKeeper protocol, "ensemble changes"; docs/protocols/ledger.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.model.striping import Striping


class LedgerAppend:
    """The core of an open ledger."""

    def __init__(self, ensemble: Sequence[str], ack_quorum: int, striping: Striping | None = None) -> None:
        self.striping = striping or Striping(len(ensemble), len(ensemble))
        assert len(ensemble) == len(set(ensemble)) == self.striping.width
        assert 1 <= ack_quorum <= self.striping.write_quorum
        self.ensemble = list(ensemble)
        self.lac = -1
        self.changes = 0
        """How many ensemble changes were begun; each is known by the count that it made."""
        self._recorded = 0
        self._ack_quorum = ack_quorum
        self._durable = dict.fromkeys(ensemble, -1)

    @property
    def settled(self) -> bool:
        """Whether the metadata names the ensemble that is written to."""
        return self._recorded == self.changes

    def on_ack(self, bookie: str, through: int) -> bool:
        """`bookie` holds every entry that it was sent, from where it came in up to `through`. Returns whether LAC
        moved.
        """
        durable = self._durable.get(bookie)
        if durable is None or through <= durable:  # replaced meanwhile: its acks are withdrawn
            return False
        self._durable[bookie] = through
        return self._advance()

    def on_bookie_replaced(self, lost: str, spare: str) -> int:
        """Withdraws what `lost` acknowledged above LAC, and holds LAC until the change is recorded. Returns the first
        entry for the spare.
        """
        assert spare not in self._durable
        del self._durable[lost]
        self._durable[spare] = self.lac
        self.ensemble[self.ensemble.index(lost)] = spare
        self.changes += 1
        return self.lac + 1

    def on_bookie_back(self, bookie: str) -> int:
        """A bookie of the ensemble that was away, and not replaced, can be written to again. Returns the first entry
        that it needs.

        What it acknowledged it holds; entries at or below LAC that it missed are left to repair.
        """
        self._durable[bookie] = durable = max(self._durable[bookie], self.lac)
        return durable + 1

    def on_ensemble_recorded(self, change: int) -> bool:
        """The metadata names the ensemble as it was after `change` changes. Returns whether LAC moved."""
        assert self._recorded <= change <= self.changes
        self._recorded = change
        return self._advance()

    def waits_only_for(self, bookie: str) -> bool:
        """Whether LAC would move if this one had acknowledged what is next, and nobody else is missing."""
        entry = self.lac + 1
        places = self.striping.places(entry)
        having = sum(self._durable[self.ensemble[place]] >= entry for place in places)
        mine = any(self.ensemble[place] == bookie for place in places) and self._durable[bookie] < entry
        return mine and having == self._ack_quorum - 1 and self.settled

    def misses(self, bookie: str) -> bool:
        """Whether an entry at or below LAC lies at its place that it has not acknowledged."""
        place, entry = self.ensemble.index(bookie), self._durable[bookie] + 1
        while entry <= self.lac and not self.striping.holds(place, entry):
            entry = self.striping.last(entry) + 1
        return entry <= self.lac

    def durable(self, bookie: str) -> int:
        return self._durable[bookie]

    def _advance(self) -> bool:
        if self._recorded < self.changes:  # one more bookie may have gone meanwhile: then LAC still waits
            return False
        lac = self.lac
        while True:
            last = self.striping.last(lac + 1)
            reached = sorted([self._durable[self.ensemble[place]] for place in self.striping.places(lac + 1)])[
                -self._ack_quorum
            ]
            lac = max(lac, min(reached, last))
            if reached < last:
                break
        if lac == self.lac:
            return False
        self.lac = lac
        return True
