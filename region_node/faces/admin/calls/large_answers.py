"""Answers that are large, or take long to make: few are under way at once, and each is sent piece by piece.

Is: places for them, of which one address has a part, and sending with a pause behind each piece. Isn't: a limit of what
an answer may be.
Why: an answer that is handed over whole lies in memory until its client has taken it, and a client that takes nothing
has many connections.
Invariants: at most `at_once` answers are being made or sent, of one address at most `of_address`; one that its client
does not take within `send_s` is broken off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from heliograph.model.errors import HeliographError
from heliograph.runtime.listeners.address_counts import AddressCounts
from heliograph.wire.run import Buffer

log = logging.getLogger("region_node.admin.server")

PIECE_BYTES = 256 << 10


class LargeAnswers:
    """`place` first, then `send` within it. wait_s: whoever has got no place by then is refused."""

    def __init__(self, at_once: int, of_address: int, *, wait_s: float = 10.0, send_s: float = 60.0) -> None:
        self._wait_s, self._send_s = wait_s, send_s
        self._places = asyncio.Semaphore(at_once)
        self._addresses = AddressCounts(of_address)

    @asynccontextmanager
    async def place(self, request: web.Request) -> AsyncIterator[None]:
        """Raises HeliographError (503) where the address has as many as it may have, or no place became free."""
        host = request.remote or ""
        if not self._addresses.take(host):
            raise HeliographError(f"{self._addresses.most} such answers to {host} are under way: take them first")
        try:
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._places.acquire()
            except TimeoutError:
                raise HeliographError("too many such answers are under way: try again") from None
            try:
                yield
            finally:
                self._places.release()
        finally:
            self._addresses.give(host)

    async def send(
        self, request: web.Request, headers: Mapping[str, str], parts: Sequence[Buffer]
    ) -> web.StreamResponse:
        """Nothing of the parts is copied but one piece at a time."""
        answer = web.StreamResponse(headers=headers)
        answer.content_length = sum(len(part) for part in parts)
        try:
            async with asyncio.timeout(self._send_s):
                await answer.prepare(request)
                for part in parts:
                    whole = memoryview(part)
                    for at in range(0, len(whole), PIECE_BYTES):
                        await answer.write(whole[at : at + PIECE_BYTES])
                await answer.write_eof()
        except (TimeoutError, ConnectionError) as error:
            log.info("admin.answer_broken_off", extra={"error": type(error).__name__, "address": request.remote or ""})
            if request.transport is not None:
                request.transport.abort()
        return answer


SCRAPES: web.AppKey[LargeAnswers] = web.AppKey("scrapes", LargeAnswers)
"""Metrics are open to everybody, and have some KB for each topic."""
MESSAGES: web.AppKey[LargeAnswers] = web.AppKey("messages", LargeAnswers)
"""A message of some KB may unpack to 64 MiB."""
