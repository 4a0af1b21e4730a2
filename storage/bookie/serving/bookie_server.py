"""BookieServer: the listener of a bookie.

Is: the shell that cuts frames from connections, gives them to the `Bookie`, and coalesces what goes back. Isn't: a
decision about a ledger.
Invariants: one record a loop pass, whatever connections it came from (a lone frame of the only connection is one at
once); one frame of acks a connection and sync batch; a bad frame closes its connection and nothing else; a connection
is not read while the bookie is full, or while its own answers are not taken; what it has asked by then waits, too.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls
from collections.abc import Callable, Sequence
from typing import cast

from heliograph.model.errors import PeerError
from heliograph.runtime.disk import Buffer
from heliograph.runtime.listeners.tls_listener import Listening, listen
from heliograph.runtime.task_set import report_unexpected
from heliograph.wire.bookie_frames import HEAD, BookieCode, FrameBuffer, Kind, SlabPool, encode, encode_acks
from storage.bookie.serving.bookie import Bookie
from storage.bookie.serving.bookie_calls import CALLS

log = logging.getLogger("storage.bookie")

_TICK_S = 1.0
_ALONE_BYTES = 1 << 16
"""A read that is smaller is the only one of its pass."""


class BookieServer:
    """Listens for brokers. The bookie must have been started."""

    def __init__(
        self,
        bookie: Bookie,
        *,
        on_bad_peer: Callable[[str], None] | None = None,
        distrusted: Callable[[object], bool] = lambda ssl_object: False,
    ) -> None:
        """distrusted: whether a connection's peer is believed no more: asked once a second, since it may say nothing
        for long.
        """
        self.bookie = bookie
        self.slabs = SlabPool()
        self._on_bad_peer = on_bad_peer
        self._distrusted = distrusted
        self._server: Listening | None = None
        self._connections: dict[BookieConnection, None] = {}
        self._tick: asyncio.TimerHandle | None = None
        self._committing = False
        self._loop: asyncio.AbstractEventLoop

    async def start(self, host: str, port: int, *, ssl: tls.SSLContext | None = None) -> int:
        """Returns the port; 0 asks for any. Raises OSError where it is taken."""
        self._loop = asyncio.get_running_loop()
        self._server = await listen(lambda: BookieConnection(self), host, port, ssl=ssl)
        self._tick = self._loop.call_later(_TICK_S, self._on_tick)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Ends connections; what was received is still journalled by `Bookie.close`."""
        if self._server is not None:
            self._server.close()
        if self._tick is not None:
            self._tick.cancel()
        for connection in list(self._connections):
            connection.transport.abort()

    def _on_tick(self) -> None:
        self.bookie.tick()
        self.slabs.trim()
        for connection in list(self._connections):
            if self._distrusted(connection.transport.get_extra_info("ssl_object")):
                connection.transport.abort()
        self._tick = self._loop.call_later(_TICK_S, self._on_tick)

    # -- called by connections ----------------------------------------------------------------------------------------

    def joined(self, connection: BookieConnection) -> None:
        self._connections[connection] = None

    def left(self, connection: BookieConnection, bad: str = "") -> None:
        self._connections.pop(connection, None)
        if bad and self._on_bad_peer is not None:
            self._on_bad_peer(bad)

    def only(self, connection: BookieConnection) -> bool:
        """Whether nobody else is connected, and nothing waits for the end of this pass."""
        return not self._committing and len(self._connections) == 1 and connection in self._connections

    def commit_soon(self) -> None:
        """At the end of this loop pass."""
        if not self._committing:
            self._committing = True
            self._loop.call_soon(self._commit)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def _commit(self) -> None:
        self._committing = False
        self.bookie.commit()


class BookieConnection(asyncio.BufferedProtocol):
    """One broker's connection: a `Peer` of the bookie."""

    def __init__(self, server: BookieServer) -> None:
        self._server, self._bookie = server, server.bookie
        self._frames = FrameBuffer(server.bookie.settings.frame_bytes_max, server.slabs)
        self.refused: dict[int, int] = {}
        self._acks: dict[tuple[int, int], int] = {}  # (ledger, writer) -> through
        self._out: list[Buffer] = []
        self._out_bytes, self._out_bytes_max = 0, server.bookie.settings.unsent_bytes
        self._rest: list[tuple[memoryview, list[int]]] = []
        """Frames that came, and wait until what they ask for can go out."""
        self._flushing = False
        self._blocked = self._slow = self._gone = False
        self._calls = CALLS.every
        self.transport: asyncio.Transport

    # -- from the socket ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(self._out_bytes_max)
        certificate = transport.get_extra_info("peercert")
        self._calls = CALLS.of(certificate, tls=transport.get_extra_info("ssl_object") is not None)
        self._server.joined(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            view, ends = self._frames.received(nbytes)
            if ends and not self._rest:
                self._handle(view, ends)
            elif ends:
                self._rest.append((view, ends))
        except PeerError as error:
            ends = self._refuse(error)
        if len(ends) == 1 and nbytes < _ALONE_BYTES and self._server.only(self):
            self._bookie.commit()  # nothing else can have come in this pass
        else:
            self._server.commit_soon()
        self._hold()

    def _handle(self, view: memoryview, ends: list[int]) -> None:
        done = self._bookie.on_frames(view, ends, self, self._calls, self._behind)
        if done < ends[-1]:
            self._rest.insert(0, (view[done:], [end - done for end in ends if end > done]))

    def _behind(self) -> bool:
        return self._out_bytes > self._out_bytes_max or self._slow or self._bookie.reads_enough

    def _go_on(self) -> None:
        """Frames that wait are handled, as many as there is room for."""
        if not self._rest or self._blocked or self._slow or self._gone:
            return
        try:
            self._handle(*self._rest.pop(0))
        except Exception as error:  # whatever it is, the connection ends, as where it is read
            report_unexpected(error, "frames that waited could not be handled")
            self._refuse(error)
        self._server.commit_soon()
        self._hold()
        if not self._rest:
            self._set_reading()
        elif not self._blocked:
            self._flush_soon()

    def _refuse(self, error: Exception) -> list[int]:
        log.warning("bookie.bad_peer", extra={"error": str(error), "bookie": self._bookie.bookie_id})
        self._server.left(self, str(error))
        self.transport.abort()
        self._gone = True
        self._rest.clear()
        return []

    def _hold(self) -> None:
        if self._gone:
            return
        if self._bookie.full and not self._blocked:
            self._blocked = True
            self._bookie.wait_for_room(self)
            self._set_reading()
        elif self._rest:
            self._set_reading()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._rest.clear()
        self._server.left(self)

    def pause_writing(self) -> None:
        self._slow = True
        self._set_reading()

    def resume_writing(self) -> None:
        self._slow = False
        self._set_reading()
        self._go_on()

    def _set_reading(self) -> None:
        if self._gone or self.transport.is_closing():
            return
        if self._blocked or self._slow or self._rest:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # -- from the bookie ----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        self._blocked = False
        self._set_reading()
        if self._rest:
            self._flush_soon()

    def acked(self, ledger: int, writer: int, through: int) -> None:
        self._acks[ledger, writer] = through
        self._flush_soon()

    def lost(self, ledger: int, writer: int, code: BookieCode, text: str) -> None:
        self._put_acks()
        body = text.encode()
        self._out += [encode(Kind.LOST, body_bytes=len(body), number=code, ledger=ledger, request=writer), body]
        self._flush_soon()

    def answer(self, request: int, code: BookieCode, entry: int, value: int, body: Sequence[Buffer]) -> None:
        size = sum(map(len, body))
        self._out += [
            encode(Kind.ANSWER, body_bytes=size, number=code, entry=entry, value=value, request=request),
            *body,
        ]
        self._out_bytes += HEAD.size + size
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._server.call_soon(self._flush_late)

    def _flush_late(self) -> None:
        self._flushing = False
        self.flush()
        self._go_on()

    def _put_acks(self) -> None:
        if self._acks:
            acks, self._acks = self._acks, {}
            self._out.append(encode_acks(acks.items()))

    def flush(self) -> None:
        self._put_acks()
        out, self._out, self._out_bytes = self._out, [], 0
        if not out or self._gone:
            return
        if len(out) == 1:
            self.transport.write(out[0])
        else:
            self.transport.writelines(out)
