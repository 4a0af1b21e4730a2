"""OpenConnections: the connections of one listener, whichever protocol it speaks, and what they share of the machine.

Is: who is connected, how many came and went, their places by address, one write per connection per loop pass. Isn't: a
socket, or a frame.
Invariants: numbers are never given twice; a place by address is given back by whoever has taken it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from heliograph.runtime.listeners.address_counts import AddressCounts
from region_node.faces.flow_control import BufferedWriter, Outbox

C = TypeVar("C", bound=BufferedWriter)


class OpenConnections(Generic[C]):
    """`created`, `refused`, `ended`: since the start: all, those that never came to be known, those that are gone."""

    def __init__(self, per_address: int, call_soon: Callable[..., object]) -> None:
        """per_address: so many from one address are allowed; 0: no limit. call_soon: runs something at the end of the
        loop pass.
        """
        self.all: dict[C, None] = {}
        self.addresses = AddressCounts(per_address)
        self.outbox: Outbox[C] = Outbox(call_soon)
        self.created = self.refused = self.ended = 0

    def next_number(self) -> int:
        """Counts a new connection, and returns its number."""
        self.created += 1
        return self.created

    def lost(self, connection: C, *, known: bool) -> None:
        """A connection is gone. known: its client had been let in."""
        self.ended += 1
        self.refused += not known
        self.all.pop(connection, None)
