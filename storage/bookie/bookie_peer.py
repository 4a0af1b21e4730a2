"""Peer: one connection to a bookie, as the bookie sees it.

Is: the protocol. Isn't: a socket (`storage.bookie.serving.bookie_server` has the one that is).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from heliograph.runtime.disk import Buffer
from heliograph.wire.bookie_frames import BookieCode


class Peer(Protocol):
    """The bookie calls it back on the event loop."""

    refused: dict[int, int]
    """Ledger -> its last writer that was told LOST: what that one and those before it sent is neither taken nor
    acknowledged any more.
    """

    def acked(self, ledger: int, writer: int, through: int) -> None:
        """Everything of that writer up to `through` is durable. Coalesced by the connection until the sync batch is
        done.
        """
        ...

    def flush(self) -> None:
        """Nothing else is on its way to the journal: what was coalesced need not wait for more."""
        ...

    def lost(self, ledger: int, writer: int, code: BookieCode, text: str) -> None: ...

    def answer(self, request: int, code: BookieCode, entry: int, value: int, body: Sequence[Buffer]) -> None: ...

    def resume(self) -> None:
        """There is room again; was told to wait by `Bookie.full`."""
        ...
