"""ReceiverBudget: how many bytes of links' runs one broker holds that are not durable yet, whatever the number of topics.

Is: a sum, and who reads no further above the bound. Isn't: the window of one link (the sender keeps that).
Invariants: the sum is at most the bound and one read of each connection; whoever was held reads on once it has halved.
Source: docs/protocols/links.md, "Bounds of the target".
"""

from __future__ import annotations

from collections.abc import Callable

Hold = Callable[[bool], None]
"""True: read no further. False: read on."""


class ReceiverBudget:
    """One for all links that come in at a broker."""

    def __init__(self, bytes_max: int = 64 << 20) -> None:
        assert bytes_max > 0
        self.used = 0
        self._max = bytes_max
        self._held: dict[int, Hold] = {}
        self._numbers = 0

    def number(self) -> int:
        """For one connection."""
        self._numbers += 1
        return self._numbers

    def take(self, connection: int, hold: Hold, size_bytes: int) -> None:
        self.used += size_bytes
        if self.used > self._max and connection not in self._held:
            self._held[connection] = hold
            hold(True)

    def give(self, size_bytes: int) -> None:
        self.used -= size_bytes
        if self._held and self.used * 2 <= self._max:
            held, self._held = self._held, {}
            for hold in held.values():
                hold(False)

    def forget(self, connection: int) -> None:
        """It is closed; what it brought still counts until it is stored, or has failed."""
        self._held.pop(connection, None)
