"""BackgroundBounds: how much of the ledgers' background work runs at once in one broker.

Is: the bounds of what very many ledgers may have at the same moment. Isn't: the tasks themselves (`TaskSet`).
"""

from __future__ import annotations

import asyncio

_FEW = 16


class BackgroundBounds:
    """Of one broker's storage."""

    __slots__ = ("closing", "few")

    def __init__(self) -> None:
        self.few = asyncio.Semaphore(_FEW)
        """For work that very many ledgers may have at the same moment, as when a bookie goes: so much of it runs at
        once.
        """
        self.closing = 0
        """Ledgers that are closed just now because nothing was appended for a while."""
