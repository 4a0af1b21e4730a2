"""LedgerRecovery: where an open ledger ends whose writer is gone.

Is: what fencing and reading have shown so far, and what follows from it. Isn't: I/O, or the metadata.
Invariants: nothing is decided before so many bookies are fenced that no ack quorum can do without them; only a fenced
bookie is asked, because one that is not may get the entry after it said no; an entry is absent only after Qw - Qa + 1
explicit "no such entry": a time-out is not absence, and neither is the word of a bookie without a trace of the ledger
while another one of the same entry has not been asked and may come soon. Where all of them have been asked, and those
that do not know never will, it is absent, too. Entries are decided in order, so the end is the first absent one.
Of a striped ledger each write set is fenced so, and of each entry only its own write set is asked.
Source: the BookKeeper protocol, "ledger recovery"; docs/protocols/ledger.md.
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph.model.ledger_metadata import LedgerMetadata


class LedgerRecovery:
    """The core of one recovery, of the ledger as its metadata stood when it was marked IN_RECOVERY."""

    def __init__(self, metadata: LedgerMetadata, comes: Callable[[str], bool] = lambda bookie: False) -> None:
        """comes: whether a bookie that did not answer may do so soon."""
        first, self.ensemble = metadata.fragments[-1]
        self.next = first
        """The next entry to be decided: everything below is confirmed, or found. (An ensemble changes at LAC + 1, so
        all before it is confirmed.)
        """
        self._quorum = metadata.write_quorum - metadata.ack_quorum + 1
        self._striping = metadata.striping
        self._fenced: dict[str, None] = {}
        self._absent: dict[str, None] = {}
        self._traced: dict[str, None] = {}
        self._forgot: dict[str, None] = {}
        self._found = False
        self._comes = comes

    @property
    def fenced(self) -> bool:
        """Whether the writer can confirm nothing any more."""
        return all(
            sum(self.ensemble[p] in self._fenced for p in places) >= self._quorum for places in self._striping.sets
        )

    @property
    def ended(self) -> bool:
        """Whether `next` is known to be absent from every ack quorum that there could be."""
        if not self.fenced:
            return False
        holders = self._holders()
        unasked = [b for b in holders if b not in self._absent and b not in self._forgot]
        if not unasked:
            return True
        waits = any(b in self._fenced or self._comes(b) for b in unasked)
        return sum(b in self._traced or not waits for b in self._absent) >= self._quorum

    def _holders(self) -> list[str]:
        """The bookies that should have `next`."""
        return [self.ensemble[place] for place in self._striping.places(self.next)]

    def unfenced(self) -> list[str]:
        return [b for b in self.ensemble if b not in self._fenced]

    def to_ask(self) -> list[str]:
        """The bookies that may be asked for `next`."""
        if not self.fenced:
            return []
        return [b for b in self._holders() if b in self._fenced and b not in self._absent and b not in self._forgot]

    def on_fenced(self, bookie: str, lac: int, last: int = -1) -> None:
        """`bookie` will take no more adds of the writer; it knew of this LAC, and has entries up to this last one."""
        assert bookie in self.ensemble
        self._fenced[bookie] = None
        if max(lac, last) >= 0:
            self._traced[bookie] = None
        if not self._found:
            if lac >= self.next:
                self._absent.clear()
            self.next = max(self.next, lac + 1)

    def on_absent(self, bookie: str) -> None:
        """A fenced bookie said explicitly that it has not got `next`."""
        assert bookie in self._fenced and bookie in self.to_ask()
        self._absent[bookie] = None

    def on_forgotten(self, bookie: str) -> None:
        """A fenced bookie said that it has lost whatever it had of the ledger."""
        assert bookie in self._fenced
        self._forgot[bookie] = None

    @property
    def forgotten(self) -> bool:
        """Whether a bookie that should have `next` has lost whatever it had."""
        return bool(self._forgot)

    def on_confirmed(self, through: int) -> None:
        """Something else than its bookies shows that this entry was confirmed."""
        if through >= self.next:
            self.next = through + 1
            self._absent.clear()
            self._forgot.clear()

    def on_found(self, through: int) -> None:
        """One bookie has the entries from `next` to `through`."""
        assert through >= self.next
        self._found = True
        self.next = through + 1
        self._absent.clear()
        self._forgot.clear()
