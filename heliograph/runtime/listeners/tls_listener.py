"""TlsListener: accepts connections and has them speak TLS, no more at a time than are bounded.

Is: the sockets that listen, and the handshakes that are under way. Isn't: a certificate, or what is said behind the
handshake: the protocol is made as `loop.create_server` makes it, and told of a connection once that speaks TLS.
Invariants: before its handshake a connection costs one of `HANDSHAKES_MAX` places, and of those of its address (an IPv6
/64 is one) at most `PER_ADDRESS_MAX`; above the latter it is closed at once. Where all places are taken the rest waits
in the kernel, unaccepted, until one is free, or the oldest has been there for `GIVES_WAY_S`, which then is ended: very
many silent ones, from however many addresses, make others wait, and do not keep them out. A handshake that does not
finish in time is ended.
Source: docs/security.md, "Before authentication".
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl as tls
from collections.abc import Callable

from heliograph.runtime.listeners.address_counts import AddressCounts
from heliograph.runtime.task_set import cancel_all

log = logging.getLogger("heliograph.tls")

HANDSHAKES_MAX = 1000
PER_ADDRESS_MAX = 250
HANDSHAKE_S = 10.0
GIVES_WAY_S = 1.0
_BACKLOG = 1024
_ACCEPTS_MAX = 64
"""So many at a time, then others go first."""
_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_FULL_PAUSE_S = 1.0


class TlsListener:
    """Made by `listen`. It has what callers use of an `asyncio.Server`."""

    def __init__(
        self,
        made: Callable[[], asyncio.BaseProtocol],
        sockets: list[socket.socket],
        ssl: tls.SSLContext,
        timeout_s: float,
        *,
        most: int,
        per_address: int,
        gives_way_s: float,
    ) -> None:
        self.sockets = tuple(sockets)
        self._made, self._ssl, self._timeout_s = made, ssl, timeout_s
        self._most, self._addresses, self._gives_way_s = most, AddressCounts(per_address), gives_way_s
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[asyncio.Task[None], tuple[str, float]] = {}
        """Handshake -> its address, and when it began; the oldest first."""
        self._again: asyncio.TimerHandle | None = None
        self._accepting = self._closed = False
        self.refused = 0
        """Connections that were closed since the start because their address had too many handshakes under way."""
        self.displaced = 0
        """Handshakes that were ended since the start because all places were taken."""
        self._accept_again()

    def close(self) -> None:
        """Nobody connects any more, and handshakes end; whoever is connected stays."""
        self._closed = True
        self._pause()
        if self._again is not None:
            self._again.cancel()
        for one in self.sockets:
            one.close()
        for handshake in self._under_way:
            handshake.cancel()

    async def wait_closed(self) -> None:
        await cancel_all(list(self._under_way))

    def _accept_again(self) -> None:
        if not self._closed and not self._accepting and self._has_room():
            self._accepting = True
            for one in self.sockets:
                self._loop.add_reader(one.fileno(), self._accept, one)

    def _has_room(self) -> bool:
        """Or whether the oldest handshake has to give way; else somebody looks again when it has."""
        if len(self._under_way) < self._most:
            return True
        _, began = next(iter(self._under_way.values()))
        left_s = began + self._gives_way_s - self._loop.time()
        if left_s > 0:
            self._look_again(left_s)
        return left_s <= 0

    def _make_room(self) -> None:
        if len(self._under_way) < self._most:
            return
        oldest = next(iter(self._under_way))
        if not self.displaced:
            log.warning("tls.handshakes_displaced", extra={"max": self._most})
        self.displaced += 1
        self._end(oldest)
        oldest.cancel()

    def _look_again(self, after_s: float) -> None:
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.call_later(after_s, self._accept_again)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            for one in self.sockets:
                self._loop.remove_reader(one.fileno())

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_MAX):
            if not self._has_room():
                self._pause()
                return
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                log.warning("tls.accept_waits", extra={"error": error.strerror})
                self._pause()
                self._look_again(_FULL_PAUSE_S)
                return
            self._begin(accepted, address[0])

    def _begin(self, accepted: socket.socket, address: str) -> None:
        if not self._addresses.take(address):
            accepted.close()
            if not self.refused:
                log.warning("tls.handshakes_refused", extra={"address": address, "max": self._addresses.most})
            self.refused += 1
            return
        self._make_room()
        accepted.setblocking(False)
        handshake = self._loop.create_task(self._shake_hands(accepted))
        self._under_way[handshake] = address, self._loop.time()
        handshake.add_done_callback(self._ended)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        """The loop owns the socket from here on, and closes it."""
        try:
            await self._loop.connect_accepted_socket(
                self._made, accepted, ssl=self._ssl, ssl_handshake_timeout=self._timeout_s
            )
        except OSError:  # a peer that is no good, or that was silent: of these are ssl.SSLError and TimeoutError
            pass

    def _end(self, handshake: asyncio.Task[None]) -> None:
        if (found := self._under_way.pop(handshake, None)) is not None:
            self._addresses.give(found[0])

    def _ended(self, handshake: asyncio.Task[None]) -> None:
        self._end(handshake)
        self._accept_again()
        if not handshake.cancelled() and (error := handshake.exception()) is not None:
            self._loop.call_exception_handler({"message": "a TLS handshake failed", "exception": error})


async def listen(
    made: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    *,
    ssl: tls.SSLContext | None,
    timeout_s: float = HANDSHAKE_S,
    reuse_port: bool = False,
    most: int = HANDSHAKES_MAX,
    per_address: int = PER_ADDRESS_MAX,
    gives_way_s: float = GIVES_WAY_S,
) -> Listening:
    """As `loop.create_server`, without families that this machine has not. ssl: None: plain, and nothing is bounded
    here. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    if ssl is None:
        return await loop.create_server(made, host, port, reuse_port=reuse_port or None)
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                one = socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:
                    raise
                continue
            sockets.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(_BACKLOG)
        if not sockets:
            raise OSError(errno.EAFNOSUPPORT, f"no socket for {host} can be made on this machine")
    except OSError:
        for one in sockets:
            one.close()
        raise
    return TlsListener(made, sockets, ssl, timeout_s, most=most, per_address=per_address, gives_way_s=gives_way_s)


Listening = asyncio.Server | TlsListener
