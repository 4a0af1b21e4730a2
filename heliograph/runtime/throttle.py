"""Throttle: a `Rate` that its users wait at.

Is: the wait, in the order of the calls. Isn't: fairness among users, or what is spent after the fact (`Rate` alone).
"""

from __future__ import annotations

import asyncio

from heliograph.runtime.rate import Rate


class Throttle:
    """So much a second, for all that share it."""

    def __init__(self, per_s: float) -> None:
        self._rate = Rate(per_s)

    async def take(self, amount: float) -> None:
        """Returns when so much more fits in. Who is cancelled while it waits has spent it all the same."""
        now = asyncio.get_running_loop().time()
        wait_s = self._rate.wait_s(now)
        self._rate.spend(amount, now)
        if wait_s:
            await asyncio.sleep(wait_s)
