"""LedgerRecovery: where an open ledger ends whose writer is gone.

Is: what fencing and reading have shown so far, and what follows from it. Isn't: I/O, or the metadata.
Invariants: nothing is decided before so many bookies are fenced that no ack quorum can do without them; only a fenced bookie is asked, because
one that is not may get the entry after it said no; an entry is absent only after Qw - Qa + 1 explicit "no such entry": a time-out is not
absence. Entries are decided in order, so the end is the first absent one.
E = Qw: there is one write set. A striped ensemble would need the fence for each write set, and ask the write set of each entry.
Source: the BookKeeper protocol, "ledger recovery"; docs/protocols/ledger.md.
"""

from __future__ import annotations

from heliograph.model.ledgers import LedgerMetadata


class LedgerRecovery:
    """The core of one recovery, of the ledger as its metadata stood when it was marked IN_RECOVERY."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        first, self.ensemble = metadata.fragments[-1]
        self.next = first
        """The next entry to be decided: everything below is confirmed, or found. (An ensemble changes at LAC + 1, so all before it is confirmed.)"""
        self._quorum = metadata.write_quorum - metadata.ack_quorum + 1
        self._fenced: dict[str, None] = {}
        self._absent: dict[str, None] = {}
        self._found = False

    @property
    def fenced(self) -> bool:
        """Whether the writer can confirm nothing any more."""
        return len(self._fenced) >= self._quorum

    @property
    def ended(self) -> bool:
        """Whether `next` is known to be absent from every ack quorum that there could be."""
        return self.fenced and len(self._absent) >= self._quorum

    def unfenced(self) -> list[str]:
        return [b for b in self.ensemble if b not in self._fenced]

    def to_ask(self) -> list[str]:
        """The bookies that may be asked for `next`."""
        return [b for b in self._fenced if b not in self._absent] if self.fenced else []

    def on_fenced(self, bookie: str, lac: int) -> None:
        """`bookie` will take no more adds of the writer; it knew of this LAC."""
        assert bookie in self.ensemble
        self._fenced[bookie] = None
        if not self._found:
            if lac >= self.next:
                self._absent.clear()
            self.next = max(self.next, lac + 1)

    def on_absent(self, bookie: str) -> None:
        """A fenced bookie said explicitly that it has not got `next`."""
        assert bookie in self._fenced
        self._absent[bookie] = None

    def on_found(self, through: int) -> None:
        """One bookie has the entries from `next` to `through`."""
        assert through >= self.next
        self._found = True
        self.next = through + 1
        self._absent.clear()
