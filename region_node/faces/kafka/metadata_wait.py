"""Waiting for what a watched table will say.

Is: one bounded wait. Isn't: polling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from heliograph.model.errors import MetadataUnavailable

WAIT_S = 10.0


async def until(
    there: Callable[[], bool], on_change: Callable[[Callable[[str], None]], Callable[[], None]], wait_s: float = WAIT_S
) -> None:
    """Returns once `there` holds; asked again after each change. Raises MetadataUnavailable where it takes too long."""
    if there():
        return
    changed = asyncio.Event()
    stop = on_change(lambda _: changed.set())
    try:
        async with asyncio.timeout(wait_s):
            while not there():
                await changed.wait()
                changed.clear()
    except TimeoutError as error:
        raise MetadataUnavailable(f"what was written is not seen here after {wait_s} s") from error
    finally:
        stop()
