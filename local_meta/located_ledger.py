"""LocatedLedger: where the entries of a ledger lie that was written anew under another data key.

Is: the value at `/located/{ledger}` of a region's local metadata, and its encoding. Isn't: who writes it
(`storage.managed_ledger.resealing`), or who reads by it (`storage.ledger.located_ledgers`).
Invariants: a topic, its cursors, coordinates, and message ids name a ledger by its own number for ever. Bookies know
the number under which its entries lie, and so do their seals.
Source: docs/protocols/ledger.md, "Ledgers that were sealed anew".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import pack, unpack

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class LocatedLedger:
    """Speaks of a closed ledger of `topic`. Where its own record is there, it is read by that, whatever `at` says."""

    ledger: int
    topic: str
    at: int = NOWHERE
    """The ledger under whose number its entries lie; NOWHERE: its own."""
    data_key: int = 0
    """Number of a data key; no older one sealed any of them. 0: not known."""
    next: int = NOWHERE
    """The ledger that is, or was, written to take that place."""
    next_key: int = 0
    """The same of that one."""
    copied_ms: int = 0
    """Wall time when `next` was whole, verified, and closed; 0: it is not."""

    @property
    def moved(self) -> Self:
        """As it is once its entries lie in `next`."""
        return type(self)(self.ledger, self.topic, self.next, self.next_key)

    def encode(self) -> bytes:
        places = [self.at, self.data_key, self.next, self.next_key, self.copied_ms]
        return pack([self.ledger, self.topic, *places])

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Reads what was stored of a place. Raises CorruptData."""
        fields = unpack("located ledger", blob)
        try:
            ledger, topic, at, data_key, following, next_key, copied_ms = fields
        except ValueError as error:
            raise CorruptData(f"located ledger: {error}") from error
        return cls(ledger, topic, at, data_key, following, next_key, copied_ms)
