"""Requests that name very many things: whatever else waits goes on between slices of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import TypeVar

SLICE = 100

T = TypeVar("T")


async def sliced(rows: Collection[T]) -> AsyncIterator[T]:
    """Gives the same in their order, and the loop back after each SLICE; rows that may change meanwhile are copied by
    the caller.
    """
    for n, row in enumerate(rows):
        if n and not n % SLICE:
            await asyncio.sleep(0)
        yield row
