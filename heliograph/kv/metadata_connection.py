"""MetaConnection: one connection of a metadata client to one server.

Is: the handshake, frames cut from what comes, and the end of a server that is silent. Isn't: what a frame means, or
another try.
Invariants: nothing is handed on before the handshake is through; whatever comes that makes no sense ends this
connection and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from heliograph.model.errors import PeerError
from heliograph.runtime.standstill import stood_still_s
from heliograph.wire.metadata_frames import (
    FEATURES,
    FRAME_BYTES_MAX,
    MAGIC,
    Frame,
    MetadataFrameCutter,
    body,
    fields,
    frame,
)


class FrameTaker(Protocol):
    """The client behind a connection."""

    def on_frame(self, kind: int, number: int, payload: bytes) -> None:
        """A frame behind the handshake. Raises PeerError."""
        ...

    def on_leader_heard(self, hears: bool) -> None:
        """Whether the server hears its group's leader."""
        ...


class MetaConnection(asyncio.Protocol):
    """`ready`: the handshake is through; `lost`: why it ended."""

    def __init__(self, taker: FrameTaker, name: str, silence_s: float) -> None:
        """name: of the client, for the server's log. silence_s: a server that says nothing for so long is given up."""
        loop = asyncio.get_running_loop()
        self._taker, self._name, self._silence_s = taker, name, silence_s
        self._cutter = MetadataFrameCutter(FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._heard_at = loop.time()
        self._silence: asyncio.TimerHandle | None = None
        self._listen_at = self._heard_at
        self._reason: Exception | None = None
        self._greeted = False
        self.ready: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Exception | None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # no isinstance: uvloop's are not of that class
        self._transport.write(frame(Frame.HELLO, 0, body(MAGIC, FEATURES, self._name)))
        self._listen_at = asyncio.get_running_loop().time()
        self._listen()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._silence is not None:
            self._silence.cancel()
        reason = self._reason or exc
        if not self.ready.done():
            self.ready.set_exception(
                reason
                if isinstance(reason, OSError | PeerError)
                else PeerError("the connection was closed in the handshake")
            )
            self.ready.exception()
        if not self.lost.done():
            self.lost.set_result(reason)

    def close(self, reason: Exception | None = None) -> None:
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._cutter.feed(data)
        try:
            while self._transport is not None and not self._transport.is_closing():
                found = self._cutter.next()
                if found is None:
                    break
                if self._greeted:
                    self._taker.on_frame(*found)
                else:
                    self._on_hello(*found)
        except PeerError as error:
            self.close(error)

    def _on_hello(self, kind: int, _request: int, payload: bytes) -> None:
        if kind != Frame.HELLO:
            raise PeerError("the other side is not a metadata server")
        magic, _features, _node, hears, _index = fields(payload, str, int, str, bool, int)
        if magic != MAGIC:
            raise PeerError("the other side is not a metadata server")
        self._greeted = True
        self._taker.on_leader_heard(hears)
        if not self.ready.done():
            self.ready.set_result(None)

    def _listen(self) -> None:
        """Gives a silent server up."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if stood_still_s(self._listen_at, now):  # since when is not known, and what it has said meanwhile lies unread
            self._heard_at = now
        if now - self._heard_at >= self._silence_s:
            self.close(OSError("the server has been silent"))
        else:
            self._listen_at = max(self._heard_at + self._silence_s, now) + 0.01
            self._silence = loop.call_at(self._listen_at, self._listen)
