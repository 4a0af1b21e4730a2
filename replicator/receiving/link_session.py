"""LinkSession: the connection that links come in on, as their receiver knows it.

Is: who is at the other end, and what may be asked of the connection. Isn't: a frame, or a stream (`link_receiver`).
Invariants: it is whole when the receiver is made; nothing is given to a receiver later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heliograph.wire.run import Buffer

Write = Callable[[Sequence[Buffer]], None]


def _ends_nothing(reason: str) -> None:
    """A connection that cannot be ended from here goes on."""


@dataclass(frozen=True, slots=True)
class LinkSession:
    """`peer`: the region that the sender has proven to be; "": nothing is proven (no TLS), and its word counts.
    `hold`: stops and continues reading; None: nothing is ever held. `refuse`: ends the connection with a sentence,
    where a frame that was kept is none.
    """

    write: Write
    peer: str = ""
    hold: Callable[[bool], None] | None = None
    refuse: Callable[[str], None] = _ends_nothing
