"""BookiePort: what the ledger layer needs of one bookie's client.

Is: the protocol that `storage.ledger.bookies.bookie_client` (a connection) and the simulations (in memory) implement.
Isn't: placement, quorums, or any decision about failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from heliograph.wire.run import Buffer

END = (1 << 63) - 1
"""As the last entry of a read: to the end of what the bookie holds."""
COPIES_AT_ONCE = 64
"""Runs of a copy that are on their way to one bookie: each waits for its fsync, which many share."""
COPIES_BYTES = 2 << 20
"""Or so much, as they share their way with what others write there."""


class BookiePort(Protocol):
    """One bookie. Calls that await raise BookieUnavailable where nothing is known, also from a bookie in limbo."""

    backlog_bytes: int
    """Bytes added and not yet acknowledged."""

    def open_writer(self, ledger: int, on_ack: Callable[[int], None], on_lost: Callable[[Exception], None]) -> None:
        """on_ack(through): the adds of this writer are durable through that entry, cumulatively. on_lost: this writer
        gets no more acks.
        """
        ...

    def add(self, ledger: int, first: int, count: int, block: Sequence[Buffer], lac: int) -> None: ...

    def close_writer(self, ledger: int) -> None: ...

    async def add_recovery(self, ledger: int, first: int, count: int, block: Sequence[Buffer], lac: int) -> None:
        """Returns once it is durable; allowed on a fenced ledger."""
        ...

    async def read(
        self, ledger: int, first: int, last: int, max_bytes: int, on_end: Callable[[int], None] | None = None
    ) -> Sequence[Buffer]:
        """Blocks in order that cover from `first` on, at least one, up to a hole or `max_bytes`. Raises NoSuchEntry,
        NoSuchLedger (explicit).

        on_end: may be called before, with the entry behind those that are on their way: who reads on can ask for the
        next ones already.
        """
        ...

    async def fence(self, ledger: int) -> tuple[int, int]:
        """Refuses adds from now on, also after a restart. Returns (the LAC known there, the last entry held there or
        -1).
        """
        ...

    def write_lac(self, ledger: int, lac: int) -> None: ...

    async def read_lac(self, ledger: int) -> int: ...

    async def wait_lac(self, ledger: int, known: int, wait_s: float) -> int:
        """The same, once it is above `known`, or after about so long. An older bookie answers at once."""
        ...

    async def held(self, ledger: int, first: int, last: int) -> Sequence[tuple[int, int]] | None:
        """[first, last] of what it has of these entries, ascending; None where it can't say. Raises NoSuchLedger
        (explicit).
        """
        ...

    async def delete(self, ledger: int) -> None: ...

    def close(self) -> None: ...


async def add_copies(
    bookie: BookiePort, ledger: int, runs: Sequence[tuple[int, int, Sequence[Buffer]]], lac: int
) -> None:
    """Adds runs of a recovery or a repair, COPIES_AT_ONCE of them, or about COPIES_BYTES, at a time, and returns once
    all are durable. Raises what the first of them failed by, once those that were sent with it have ended.

    runs: (first entry, count, block).
    """
    adds: list[Coroutine[Any, Any, None]] = []
    size = 0
    for at, (first, count, block) in enumerate(runs, 1):
        adds.append(bookie.add_recovery(ledger, first, count, block, lac))
        size += sum(len(part) for part in block)
        if len(adds) >= COPIES_AT_ONCE or size >= COPIES_BYTES or at == len(runs):
            for failed in await asyncio.gather(*adds, return_exceptions=True):
                if failed is not None:
                    raise failed
            adds, size = [], 0
