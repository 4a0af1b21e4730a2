"""Answers that are large, or take long to make: few are under way at once, and each is sent piece by piece.

Is: places for them, which roles, and addresses of one role, take in turn, and sending with a pause behind each piece.
Isn't: a limit of what an answer may be.
Why: an answer that is handed over whole lies in memory until its client has taken it, and a client that takes nothing
has many connections.
Invariants: at most `at_once` answers are being made or sent; one that its client does not take within `send_s` is
broken off, and where somebody waits for a place within `hurry_s`, so that who reads slowly keeps nobody out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from heliograph.model.errors import HeliographError
from heliograph.runtime.listeners.address_counts import group_of
from heliograph.runtime.throttle import FairQueue
from heliograph.wire.run import Buffer
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL

log = logging.getLogger("region_node.admin.server")

PIECE_BYTES = 256 << 10


WAITING_MAX = 1_000
"""So many clients wait for a place."""


class LargeAnswers:
    """`place` first, then `send` within it. wait_s: whoever has got no place by then is refused."""

    def __init__(self, at_once: int, *, wait_s: float = 10.0, send_s: float = 60.0, hurry_s: float = 5.0) -> None:
        self._wait_s, self._send_s, self._hurry_s = wait_s, send_s, hurry_s
        self._places = FairQueue(at_once, WAITING_MAX)
        self._sending: dict[asyncio.Timeout, float] = {}
        """Answers that are being sent -> by when they are to be taken where somebody waits."""
        self._waiting = 0

    @asynccontextmanager
    async def place(self, request: web.Request) -> AsyncIterator[None]:
        """Raises HeliographError (503) where no place became free, or too many wait."""
        if not self._places.take_now() and not await self._waited(request):
            raise HeliographError("too many such answers are under way: try again")
        try:
            yield
        finally:
            self._places.give()

    async def _waited(self, request: web.Request) -> bool:
        self._waiting += 1
        try:
            for sending, until in self._sending.items():
                with suppress(RuntimeError):  # its time is over in this pass of the loop
                    sending.reschedule(until)
            async with asyncio.timeout(self._wait_s):
                return await self._places.take(request[PRINCIPAL].role, group_of(request.remote or ""))
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1

    async def send(
        self, request: web.Request, headers: Mapping[str, str], parts: Sequence[Buffer]
    ) -> web.StreamResponse:
        """Nothing of the parts is copied but one piece at a time."""
        answer = web.StreamResponse(headers=headers)
        answer.content_length = sum(len(part) for part in parts)
        now = asyncio.get_running_loop().time()
        sending = asyncio.timeout_at(now + (self._hurry_s if self._waiting else self._send_s))
        self._sending[sending] = now + min(self._hurry_s, self._send_s)
        try:
            async with sending:
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
        finally:
            del self._sending[sending]
        return answer


SCRAPES: web.AppKey[LargeAnswers] = web.AppKey("scrapes", LargeAnswers)
"""Metrics are open to everybody, and have some KB for each topic."""
MESSAGES: web.AppKey[LargeAnswers] = web.AppKey("messages", LargeAnswers)
"""A message of some KB may unpack to 64 MiB."""
