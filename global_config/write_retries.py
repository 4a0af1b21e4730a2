"""Tries: how long a write that lost against others is tried again, and how far apart.

Is: the pauses between the tries of one write of the configuration, and its deadline. Isn't: what is read and written
(`global_config.admin`, `deferred_edits`).
Invariants: the first try and the first repeat come at once; pauses then double up to PAUSE_MAX_S, each spread by chance
where there is an rng, so that who collided once does not collide again; after PATIENCE_S no further try begins. Time is
the loop's: the simulator's where it runs.
"""

from __future__ import annotations

import asyncio
from typing import Self

from heliograph.model.errors import MetadataUnavailable
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import Rng

PATIENCE_S = 8.0
"""Less than the 10 s for which regions wait for each other's answers (`region_node.faces.admin.dr.disaster_recovery`):
who asked hears why, and not that nobody answers.
"""
PAUSE_MAX_S = 0.2
_PAUSES = Backoff(0.02, PAUSE_MAX_S, spread=(0.25, 1.0))


class Tries:
    """Iterated over by one write. (No generator: whoever returns out of its middle would leave it to the loop to
    end.)
    """

    def __init__(self, rng: Rng | None = None, patience_s: float = PATIENCE_S) -> None:
        self._loop, self._rng, self._number = asyncio.get_running_loop(), rng, 0
        self._deadline = self._loop.time() + patience_s

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        """0, 1, ... as long as it is worth trying."""
        number = self._number
        if number and self._loop.time() >= self._deadline:
            raise StopAsyncIteration
        self._number += 1
        if number > 1:
            await asyncio.sleep(_PAUSES.pause_s(number - 1, self._rng))
        return number


def busy() -> MetadataUnavailable:
    """Makes the error of a write whose time is up."""
    return MetadataUnavailable("others change the same part of the configuration all the time: try again")
