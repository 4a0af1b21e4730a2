"""The body of an answer over HTTP, as far as a bound.

Is: reading what another server answers, of whom nobody knows how much it sends. Isn't: a request, or what the answer
means.
"""

from __future__ import annotations

from aiohttp import ClientResponse


async def read_at_most(answer: ClientResponse, most: int) -> bytes | None:
    """The body of an answer; None where it has more than so many bytes, of which no more are read."""
    found = bytearray()
    async for piece in answer.content.iter_chunked(1 << 16):
        found += piece
        if len(found) > most:
            return None
    return bytes(found)
