"""BookiePort: what the ledger layer needs of one bookie's client.

Is: the protocol that `storage.ledger.bookies.bookie_client` (a connection) and the simulations (in memory) implement.
Isn't: placement, quorums, or any decision about failures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from heliograph.wire.run import Buffer

END = (1 << 63) - 1
"""As the last entry of a read: to the end of what the bookie holds."""


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
