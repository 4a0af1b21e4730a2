"""OpenConnections: the connections of one listener, and what they share of the machine.

Is: who is connected, their numbers, their places by address, the staging buffer, one write per connection per loop
pass. Isn't: a socket (`kafka_listener`), or a frame (`kafka_connection`).
Invariants: numbers are never given twice; a place by address is given back by whoever has taken it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from heliograph.runtime.listeners.address_counts import AddressCounts
from region_node.faces.flow_control import BufferedWriter, Outbox
from region_node.faces.kafka.session.kafka_broker import KafkaBroker

STAGING_BYTES = 256 << 10
C = TypeVar("C", bound=BufferedWriter)


class OpenConnections(Generic[C]):
    """`staging`: what is read lies there until it is cut, in the same step of the loop."""

    def __init__(self, broker: KafkaBroker, call_soon: Callable[..., object]) -> None:
        """call_soon: runs something at the end of the loop pass."""
        self.broker = broker
        self.all: dict[C, None] = {}
        self.addresses = AddressCounts(broker.settings.connections_per_address)
        self.staging = bytearray(STAGING_BYTES)
        self.outbox: Outbox[C] = Outbox(call_soon)
        self._accepted = 0

    def next_number(self) -> int:
        """Returns the newest connection's number: how many came since the start."""
        self._accepted += 1
        return self._accepted
