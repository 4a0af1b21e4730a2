"""Waiters: who waits at a Raft member, for which entry or for which read, and how each of them is answered.

Is: futures by index and by token. Isn't: a rule of Raft (`core`), or when anything is applied (`raft_node`).
Invariants: everybody is answered once: a write by the entry of its own index and term, or not at all where another took
its place; a read once the machine has applied what it must show; what never reached the core did not happen, and of the
rest nobody here knows.
"""

from __future__ import annotations

import asyncio
from collections import deque

from heliograph.model.errors import HeliographError, NotLeader, OutcomeUnknown

Proposal = tuple[bytes, "asyncio.Future[bytes]"]


class Waiters:
    """`proposals` and `barriers` gather until the end of a loop pass."""

    def __init__(self) -> None:
        self.proposals: list[Proposal] = []
        self.barriers: list[asyncio.Future[None]] = []
        self._writes: dict[int, tuple[int, asyncio.Future[bytes]]] = {}  # index -> (term, who waits)
        self._tokens = 0
        self._reads: dict[int, list[asyncio.Future[None]]] = {}
        self._unserved: deque[tuple[int, list[asyncio.Future[None]]]] = deque()  # reads whose index is not applied yet

    @property
    def writes(self) -> int:
        return len(self._writes) + len(self.proposals)

    def take_proposals(self) -> list[Proposal]:
        """Those whose callers are still there."""
        proposals, self.proposals = self.proposals, []
        return [each for each in proposals if not each[1].done()]

    def expect(self, index: int, term: int, future: asyncio.Future[bytes]) -> None:
        """`future` is answered by the entry at `index`."""
        self._writes[index] = (term, future)

    def take_barriers(self) -> int:
        """The token of the reads that came; 0: none did."""
        if not self.barriers:
            return 0
        self._tokens += 1
        self._reads[self._tokens], self.barriers = self.barriers, []
        return self._tokens

    # -- answers -------------------------------------------------------------------------------------------------------

    def applied(self, index: int, term: int, answer: bytes, leader: str | None) -> None:
        """The entry at `index` was applied here."""
        waiter = self._writes.pop(index, None)
        if waiter is not None and not waiter[1].done():
            if waiter[0] == term:
                waiter[1].set_result(answer)
            else:  # another entry took its place: it can never happen
                waiter[1].set_exception(NotLeader(leader))

    def passed(self, index: int) -> None:
        """A snapshot took the place of everything through `index`."""
        for past in [past for past in self._writes if past <= index]:
            _, future = self._writes.pop(past)
            if not future.done():
                future.set_exception(OutcomeUnknown("the leader changed; the write may have happened"))

    def due(self, token: int, index: int) -> None:
        """The reads of `token` may be served once `index` is applied. (They come in the order of their indexes.)"""
        self._unserved.append((index, self._reads.pop(token)))

    def serve(self, applied_index: int) -> None:
        while self._unserved and self._unserved[0][0] <= applied_index:
            for future in self._unserved.popleft()[1]:
                if not future.done():
                    future.set_result(None)

    def lose(self, token: int, leader: str | None) -> None:
        for future in self._reads.pop(token, ()):
            if not future.done():
                future.set_exception(NotLeader(leader))

    def end(self, reason: HeliographError) -> None:
        """Answers everybody, as this member is gone: what is in the log may have happened, the rest gets `reason`."""
        for _, future in self.proposals:
            if not future.done():
                future.set_exception(reason)
        for _, future in self._writes.values():
            if not future.done():
                future.set_exception(OutcomeUnknown("the metadata node stopped; the write may have happened"))
        for reader in [
            *self.barriers,
            *(f for fs in self._reads.values() for f in fs),
            *(f for _, fs in self._unserved for f in fs),
        ]:
            if not reader.done():
                reader.set_exception(reason)
        self.proposals, self.barriers = [], []
        self._writes.clear()
        self._reads.clear()
        self._unserved.clear()
