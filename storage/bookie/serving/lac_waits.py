"""LacWaits: readers that wait until a ledger is confirmed beyond what they know.

Is: which requests wait, and when they are answered. Isn't: what is confirmed (the ledgers' table), or a timer.
Invariants: each is answered once; its time-out is an answer like any other, and tells what is known by then; no more
than `waiting_max` wait, the oldest is answered for a new one; a ledger that nobody waits for costs one look-up in an
empty dict.
Source: docs/protocols/storage.md, "Readers of an open ledger".
"""

from __future__ import annotations

from collections.abc import Callable

Answer = Callable[[], None]
"""Answers with what is known when it is called."""


class LacWaits:
    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._of: dict[int, dict[int, tuple[int, float, Answer]]] = {}  # ledger -> number -> (known, left s, answer)
        self._order: dict[int, int] = {}  # number -> ledger
        self._number = 0

    def __len__(self) -> int:
        return len(self._order)

    def wait(self, ledger: int, known: int, wait_s: float, answer: Answer) -> None:
        """answer: called when the LAC is above `known`, when nothing more can come, or after `wait_s`, by the tick."""
        if len(self._order) >= self._waiting_max:
            number = next(iter(self._order))
            self._end(self._order[number], number)
        self._number += 1
        self._order[self._number] = ledger
        self._of.setdefault(ledger, {})[self._number] = known, wait_s, answer

    def moved(self, ledger: int, lac: int) -> None:
        """To be called where `ledger in self`: its LAC may be another."""
        for number, (known, _, _) in list(self._of.get(ledger, {}).items()):
            if lac > known:
                self._end(ledger, number)

    def __contains__(self, ledger: int) -> bool:
        return ledger in self._of

    def ended(self, ledger: int) -> None:
        """It was fenced or deleted: who waits had better look at its metadata."""
        for number in list(self._of.get(ledger, ())):
            self._end(ledger, number)

    def tick(self, elapsed_s: float) -> None:
        for ledger, waiting in list(self._of.items()):
            for number, (known, left_s, answer) in list(waiting.items()):
                if left_s <= 0:  # never early, as a tick that has just begun would be
                    self._end(ledger, number)
                else:
                    waiting[number] = known, left_s - elapsed_s, answer

    def _end(self, ledger: int, number: int) -> None:
        waiting = self._of[ledger]
        _, _, answer = waiting.pop(number)
        del self._order[number]
        if not waiting:
            del self._of[ledger]
        answer()
