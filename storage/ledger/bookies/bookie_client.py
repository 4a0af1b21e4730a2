"""BookieClient: one pipelined connection to one bookie, shared by every ledger that lies there.

Is: the shell that sends frames, and hands each answer to whoever waits for it. Isn't: quorums, placement, or retries;
it decides nothing.
Invariants: frames leave in the order of the calls, one gathered write a loop pass, but for an add that is alone, which
is written at once; where one could not be sent, as without memory, the connection goes; when the connection goes, every
writer hears `on_lost` once and every request fails, so nothing waits for an answer that cannot come; an ack counts only
for a writer that is open.
The connection is made by the first call, and made again by the first call after the backoff; calls in between fail at
once.
Source: `heliograph.wire.bookie_frames`.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from heliograph.model.errors import BookieUnavailable, HeliographError, PeerError, reason_of
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import Rng
from heliograph.runtime.standstill import stood_still_s
from heliograph.wire.bookie_frames import (
    HEAD,
    RANGE,
    VERSION,
    BookieCode,
    FrameBuffer,
    Kind,
    SlabPool,
    decode_acks,
    decode_ranges,
    encode,
    error_of,
    split_blocks,
)
from heliograph.wire.run import Buffer

_PINS_MAX = 3
"""Two long parts of an answer share a slab mostly. One that would pin more than so many times its size is copied out of
its slab.
"""
_BODY_BYTES = HEAD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieClientSettings:
    connect_timeout_s: float = 3.0
    answer_timeout_s: float = 5.0
    """With something outstanding and nothing heard for so long, the connection counts as lost."""
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0
    unsent_bytes_max: int = 8 << 20
    """With more that the bookie has not read yet, no further writer begins."""

    def __post_init__(self) -> None:
        assert 0 < self.backoff_min_s <= self.backoff_max_s and self.connect_timeout_s > 0 and self.answer_timeout_s > 0


class _Writer:
    """One ledger's adds on this connection that are not acknowledged."""

    __slots__ = ("number", "on_ack", "on_lost", "waiting")

    def __init__(self, number: int, on_ack: Callable[[int], None], on_lost: Callable[[Exception], None]) -> None:
        self.number, self.on_ack, self.on_lost = number, on_ack, on_lost
        self.waiting: deque[tuple[int, int]] = deque()  # (last entry, bytes) of each frame


class _Request:
    """What is asked, until it is answered. parts: takes the bodies of the answers before the last; None: there is
    one.
    """

    __slots__ = ("asked_at", "future", "on_end", "parts")

    def __init__(
        self,
        future: asyncio.Future[_Answer],
        asked_at: float,
        parts: list[memoryview] | None,
        on_end: Callable[[int], None] | None,
    ) -> None:
        self.future, self.asked_at, self.parts, self.on_end = future, asked_at, parts, on_end


@dataclass(frozen=True, slots=True)
class _Answer:
    entry: int
    value: int
    body: memoryview


class BookieClient:
    """Everything is to be called on the event loop."""

    def __init__(
        self,
        bookie_id: str,
        host: str,
        port: int,
        *,
        rng: Rng,
        ssl: tls.SSLContext | None = None,
        settings: BookieClientSettings | None = None,
    ) -> None:
        self.bookie_id, self.host, self.port = bookie_id, host, port
        self.backlog_bytes = 0
        """Bytes added and not yet acknowledged."""
        self.slabs = SlabPool()
        """What answers are read into: long ones come in parts, which are copied out, so that the same memory is used
        again and again.
        """
        self._ssl, self._rng, self._settings = ssl, rng, settings or BookieClientSettings()
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._backoff = Backoff(self._settings.backoff_min_s, self._settings.backoff_max_s)
        self._failures, self._not_before = 0, 0.0
        self._reason = "never connected"
        self._writers: dict[int, _Writer] = {}
        self._last_writer = 0
        self._requests: dict[int, _Request] = {}
        self._next_request = 1
        self._out: list[Buffer] = []
        self._flushing = False
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        self._closed = False

    # -- writing ------------------------------------------------------------------------------------------------------

    def open_writer(self, ledger: int, on_ack: Callable[[int], None], on_lost: Callable[[Exception], None]) -> None:
        """From now on `add` sends to `ledger`; a writer that was open there is forgotten.

        on_ack(through): every entry added here up to `through` is durable on this bookie.
        on_lost(error): called once, never from within this call; no ack follows. LedgerFenced is final; otherwise the
        bookie failed.
        """
        self.close_writer(ledger)
        self._last_writer += 1
        self._writers[ledger] = writer = _Writer(self._last_writer, on_ack, on_lost)
        if not self._ready():
            error = self._unavailable()
        elif (unsent := self._unsent_bytes()) > self._settings.unsent_bytes_max:
            # what writers before this one have left there: each would leave as much again, for as long as the bookie
            # reads so slowly
            error = BookieUnavailable(
                f"bookie {self.bookie_id}: {unsent} bytes are not sent yet; it takes no more until it has read them"
            )
        else:
            return
        asyncio.get_running_loop().call_soon(self._lose_writer, ledger, writer, error)

    def add(self, ledger: int, first: int, count: int, block: Sequence[Buffer], lac: int) -> None:
        """Sends one run. Does nothing where the ledger has no open writer: its `on_lost` was called or is about to
        be.
        """
        writer = self._writers.get(ledger)
        if writer is None:
            return
        try:
            size = sum(map(len, block)) if len(block) > 1 else len(block[0])
            head = HEAD.pack(HEAD.size + size, VERSION, Kind.ADD, count, ledger, first, lac, writer.number)
            alone = not (self.backlog_bytes or self._out)
            writer.waiting.append((first + count - 1, size))
            self.backlog_bytes += size
            if (
                alone and self._connection is not None
            ):  # nothing to gather: what follows in this pass goes together at its end
                self._connection.transport.writelines([head, *block])
                self._heed()
                return
            self._out.append(head)
            self._send(block)
        except Exception as error:  # an ack of what follows would count for this one too
            self._lost(_not_sent(error))

    def close_writer(self, ledger: int) -> None:
        """No callback of this writer comes any more. What it sent may still become durable."""
        writer = self._writers.pop(ledger, None)
        if writer is not None:
            self.backlog_bytes -= sum(size for _, size in writer.waiting)

    async def add_recovery(self, ledger: int, first: int, count: int, block: Sequence[Buffer], lac: int) -> None:
        """One run of a recovery or a repair, taken also where the ledger is fenced; returns once it is durable."""
        await self._ask(Kind.ADD_RECOVERY, block, number=count, ledger=ledger, entry=first, value=lac)

    def write_lac(self, ledger: int, lac: int) -> None:
        """Tells readers of this bookie how far the ledger is confirmed. Never answered; lost with the connection."""
        if self._ready():
            self._send([encode(Kind.WRITE_LAC, ledger=ledger, value=lac)])

    # -- asking -------------------------------------------------------------------------------------------------------

    async def read(
        self, ledger: int, first: int, last: int, max_bytes: int, on_end: Callable[[int], None] | None = None
    ) -> list[memoryview]:
        """Blocks in order that cover from `first` on; they stop at `last`, a hole, or `max_bytes` (never before the
        first one).

        The first may begin before `first` and the last may end behind `last`; neighbours may overlap. Raises
        NoSuchEntry or NoSuchLedger (explicit: this bookie does not hold `first`), BookieUnavailable (says nothing).
        on_end: called with the entry behind them as soon as that is known, of an answer in parts; fewer may come, where
        a block is bad.
        """
        parts: list[memoryview] = []
        answer = await self._ask(
            Kind.READ,
            [max_bytes.to_bytes(4, "big")],
            number=1,
            ledger=ledger,
            entry=first,
            value=last,
            parts=parts,
            on_end=on_end,
        )
        return [block for part in (*parts, answer.body) for block in split_blocks(part)]

    async def fence(self, ledger: int) -> tuple[int, int]:
        """From its return on, this bookie takes no `add` to the ledger any more. Returns (LAC known there, last entry
        held there), -1: none.
        """
        answer = await self._ask(Kind.FENCE, ledger=ledger)
        return answer.value, answer.entry

    async def read_lac(self, ledger: int) -> int:
        return (await self._ask(Kind.READ_LAC, ledger=ledger)).value

    async def wait_lac(self, ledger: int, known: int, wait_s: float) -> int:
        """The LAC as this bookie knows it, once it is above `known`, or after about so long; at most half of what an
        answer may take.
        """
        wait_ms = int(1000 * min(wait_s, self._settings.answer_timeout_s / 2, 60.0))
        return (await self._ask(Kind.READ_LAC, number=max(wait_ms, 1), ledger=ledger, entry=known)).value

    async def held(self, ledger: int, first: int, last: int) -> list[tuple[int, int]] | None:
        """[first, last] of what this bookie has of these entries, ascending; None from one of a version that can't say.
        Raises NoSuchLedger (explicit).
        """
        ranges: list[tuple[int, int]] = []
        while first <= last:
            answer = await self._ask(Kind.READ_LAC, [RANGE.pack(first, last)], ledger=ledger)
            if answer.entry <= first:  # an older one has not looked at the body, and tells its LAC
                return None
            for begin, end in decode_ranges(answer.body):
                begin = ranges.pop()[0] if ranges and ranges[-1][1] == begin - 1 else begin
                ranges.append((begin, end))
            first = answer.entry
        return ranges

    async def delete(self, ledger: int) -> None:
        """Returns once it is durable; deleting what is not there is fine."""
        await self._ask(Kind.DELETE, ledger=ledger)

    async def ledgers(self) -> list[int]:
        """Ids of the ledgers held there, ascending."""
        found: list[int] = []
        more = 1
        while more:
            answer = await self._ask(Kind.LEDGERS, entry=found[-1] if found else -1)
            found += [int.from_bytes(answer.body[at : at + 8], "big") for at in range(0, len(answer.body), 8)]
            more = answer.value
        return found

    def close(self) -> None:
        """Ends the connection: requests fail, writers hear `on_lost`."""
        self._closed = True
        self._lost("the client was closed")
        if self._connecting is not None:
            self._connecting.cancel()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    # -- the connection -----------------------------------------------------------------------------------------------

    async def _ask(
        self,
        kind: Kind,
        body: Sequence[Buffer] = (),
        *,
        number: int = 0,
        ledger: int = 0,
        entry: int = 0,
        value: int = 0,
        parts: list[memoryview] | None = None,
        on_end: Callable[[int], None] | None = None,
    ) -> _Answer:
        if not self._ready():
            raise self._unavailable()
        loop = asyncio.get_running_loop()
        request = self._next_request
        self._next_request = request + 1 & 0xFFFFFFFF or 1
        future: asyncio.Future[_Answer] = loop.create_future()
        self._requests[request] = _Request(future, loop.time(), parts, on_end)
        size = sum(map(len, body))
        self._send(
            [
                encode(kind, body_bytes=size, number=number, ledger=ledger, entry=entry, value=value, request=request),
                *body,
            ]
        )
        try:
            return await future
        finally:
            self._requests.pop(request, None)

    def _ready(self) -> bool:
        """Connected, or on the way. Starts to connect where nothing forbids it."""
        if self._closed:
            return False
        if self._connection is not None or self._connecting is not None:
            return True
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            return False
        self._connecting = loop.create_task(self._connect(loop))
        return True

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        deadline = loop.time() + self._settings.connect_timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self), self.host, self.port, ssl=self._ssl
                )
        except Exception as error:  # also ValueError: a host that nobody can look up
            if isinstance(error, TimeoutError) and stood_still_s(deadline, loop.time()) and not self._closed:
                self._connecting = loop.create_task(self._connect(loop))  # it had no time to connect
                return
            self._connecting = None
            late = (
                f"no connection within {self._settings.connect_timeout_s} s" if isinstance(error, TimeoutError) else ""
            )
            self._lost(reason_of(error, late))
            return
        self._connecting, self._connection = None, connection
        if connection.transport.is_closing():
            self._lost("the connection was closed at once")
            return
        self._heard_at = loop.time()
        self._arm(loop)
        self._flush()

    def _send(self, buffers: Sequence[Buffer]) -> None:
        self._out += buffers
        if self._connection is None or self._flushing:
            return
        self._flushing = True
        asyncio.get_running_loop().call_soon(self._flush)
        self._heed()

    def _heed(self) -> None:
        """Something is outstanding: an answer is expected in time."""
        if self._watch is None:
            loop = asyncio.get_running_loop()
            self._heard_at = loop.time()
            self._arm(loop)

    def _flush(self) -> None:
        self._flushing = False
        if self._connection is not None and self._out:
            out, self._out = self._out, []
            try:
                self._connection.transport.writelines(out)
            except Exception as error:
                self._lost(_not_sent(error))

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look_at = loop.time() + self._settings.answer_timeout_s / 4
        self._watch = loop.call_at(self._look_at, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """A timer only while something is outstanding."""
        self._watch = None
        self.slabs.trim()
        if not self._requests and not self.backlog_bytes and not self._unsent_bytes():
            self.slabs.trim()  # nothing is taken meanwhile: what is free goes
            return
        now, limit = loop.time(), self._settings.answer_timeout_s
        if stood_s := stood_still_s(self._look_at, now):  # answers may lie unread
            self._heard_at = min(now, self._heard_at + stood_s)
            for waiting in self._requests.values():
                waiting.asked_at = min(now, waiting.asked_at + stood_s)
        oldest = min((waiting.asked_at for waiting in self._requests.values()), default=now)
        if now - self._heard_at >= limit or now - oldest >= 4 * limit:
            self._lost(f"no answer within {limit} s")
        else:
            self._arm(loop)

    def _unsent_bytes(self) -> int:
        return self._connection.transport.get_write_buffer_size() if self._connection is not None else 0

    def _unavailable(self) -> BookieUnavailable:
        return BookieUnavailable(f"bookie {self.bookie_id} at {self.host}:{self.port}: {self._reason}")

    def _lose_writer(self, ledger: int, writer: _Writer, error: Exception) -> None:
        if self._writers.get(ledger) is writer:
            self.close_writer(ledger)
            writer.on_lost(error)

    def _lost(self, reason: str) -> None:
        """The connection is gone, or never came."""
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._reason = reason
        self._failures += 1
        if not self._closed:
            self._not_before = asyncio.get_running_loop().time() + self._backoff.pause_s(self._failures, self._rng)
        self._out = []
        requests, self._requests = self._requests, {}
        for waiting in requests.values():
            if not waiting.future.done():
                waiting.future.set_exception(self._unavailable())
        for ledger, writer in list(self._writers.items()):
            self._lose_writer(ledger, writer, self._unavailable())

    # -- what comes back ----------------------------------------------------------------------------------------------

    def on_frames(self, view: memoryview, ends: list[int]) -> None:
        """Whole frames, from the connection. Raises PeerError."""
        self._failures = 0
        self._heard_at = asyncio.get_running_loop().time()
        start = 0
        for end in ends:
            frame = view[start:end]
            start = end
            _, _, kind, number, ledger, entry, value, request = HEAD.unpack_from(frame)
            if kind == Kind.ACKS:
                for acked, number, through in decode_acks(frame):
                    self._on_ack(acked, number, through)
            elif kind == Kind.ANSWER:
                self._on_answer(request, number, entry, value, frame[_BODY_BYTES:])
            elif kind == Kind.LOST:
                writer = self._writers.get(ledger)
                if writer is not None and writer.number == request:
                    self._lose_writer(ledger, writer, self._refusal(number, frame))
            else:
                raise PeerError(f"bookie {self.bookie_id}: a frame of kind {kind} is no answer")

    def _on_ack(self, ledger: int, number: int, through: int) -> None:
        writer = self._writers.get(ledger)
        if writer is None or writer.number != number:  # one before it: what that one sent says nothing of this one's
            return
        waiting = writer.waiting
        acked = False
        while waiting and waiting[0][0] <= through:
            self.backlog_bytes -= waiting.popleft()[1]
            acked = True
        if acked:
            writer.on_ack(through)

    def _on_answer(self, request: int, code: int, entry: int, value: int, body: memoryview) -> None:
        waiting = self._requests.get(request)
        if waiting is None or waiting.future.done():
            return  # whoever asked was cancelled
        if len(body.obj) > _PINS_MAX * len(body):  # type: ignore[arg-type]
            body = memoryview(bytes(body))
        if code == BookieCode.OK and waiting.parts is not None and value:
            waiting.parts.append(body)
            if entry and waiting.on_end is not None:
                on_end, waiting.on_end = waiting.on_end, None
                on_end(entry)
            return
        del self._requests[request]
        if code == BookieCode.OK:
            waiting.future.set_result(_Answer(entry, value, body))
        else:
            waiting.future.set_exception(error_of(code, f"bookie {self.bookie_id}: {str(body, 'utf-8', 'replace')}"))

    def _refusal(self, code: int, frame: memoryview) -> HeliographError:
        return error_of(code, f"bookie {self.bookie_id}: {str(frame[_BODY_BYTES:], 'utf-8', 'replace')}")

    def on_connection_lost(self, connection: _Connection, error: Exception | None) -> None:
        if connection is self._connection:
            self._connection = None
            self._lost(str(error) if error else "the connection was closed")


def _not_sent(error: Exception) -> str:
    return f"what was to be sent was not: {reason_of(error)}"


class _Connection(asyncio.BufferedProtocol):
    """The protocol of one connection: it cuts received bytes into frames for its client, and ends with its socket."""

    def __init__(self, client: BookieClient) -> None:
        self._client = client
        self._frames = FrameBuffer(pool=client.slabs)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            view, ends = self._frames.received(nbytes)
            if ends:
                self._client.on_frames(view, ends)
        except PeerError as error:
            self._client.on_connection_lost(self, error)
            self.transport.abort()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.on_connection_lost(self, exc)
