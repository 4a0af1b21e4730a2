"""RaftNetwork: the port `heliograph.raft.member.raft_node.RaftTransport` on virtual time: delay, loss, repetition,
reordering, cuts of each direction.

Is: messages between named members of one Raft group in one simulation. Isn't: connections (members over sockets use the
simulated network).
A message is delivered in the life of the receiver that last asked for messages; a dead one gets nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable


class RaftNetwork:
    """delay_s: low and high, drawn for each message by itself, so messages overtake each other."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, *, delay_s: tuple[float, float] = (0.0005, 0.002)
    ) -> None:
        self.loop, self.rng, self.delay_s = loop, rng, delay_s
        self.loss, self.repetition = 0.0, 0.0
        self.cut: set[tuple[str, str]] = set()
        self.sent = 0
        self._receivers: dict[str, tuple[Callable[[str, bytes], None], contextvars.Context]] = {}

    def transport(self, name: str) -> MemoryTransport:
        return MemoryTransport(self, name)

    def isolate(self, name: str, others: list[str]) -> None:
        """Cuts one member off from the others, both ways."""
        for other in others:
            if other != name:
                self.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        self.cut.clear()

    def register(self, name: str, callback: Callable[[str, bytes], None]) -> None:
        self._receivers[name] = (callback, contextvars.copy_context())

    def carry(self, sender: str, to: str, message: bytes) -> None:
        self.sent += 1
        for _ in range(2 if self.rng.random() < self.repetition else 1):
            if self.rng.random() >= self.loss and to in self._receivers:
                context = self._receivers[to][1]
                self.loop.call_later(
                    self.rng.uniform(*self.delay_s), self._deliver, sender, to, message, context=context
                )

    def _deliver(self, sender: str, to: str, message: bytes) -> None:
        if (sender, to) not in self.cut:
            self._receivers[to][0](sender, message)


class MemoryTransport:
    """Implements `heliograph.raft.member.raft_node.RaftTransport` for one member."""

    def __init__(self, network: RaftNetwork, name: str) -> None:
        self._network, self._name = network, name

    def send(self, to: str, message: bytes) -> None:
        self._network.carry(self._name, to, message)

    def on_receive(self, callback: Callable[[str, bytes], None]) -> None:
        self._network.register(self._name, callback)
