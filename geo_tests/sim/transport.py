"""Transport: the two ends of a connection of the simulated network, with asyncio's Transport semantics.

Is: write buffers, what is in flight, reads that are cut at random, ends of files, resets, and what a killed process or
a machine without power leaves.
Isn't: hosts, latencies, cuts, or listeners (`geo_tests.sim.network`, which says the rules).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from geo_tests.sim.loop import Life

if TYPE_CHECKING:
    from geo_tests.sim.network import Network, SimServer

Buffer = bytes | bytearray | memoryview

_BUFFERS = (bytes, bytearray, memoryview)
WINDOW_BYTES = 256 * 1024
SPLIT_CHANCE = 0.1


class Socket:
    """What `get_extra_info("socket")` gives: enough for setsockopt and getsockname."""

    family, type, proto = 2, 1, 6

    def __init__(self, name: tuple[str, int], peer: tuple[str, int] | None) -> None:
        self._name, self._peer = name, peer

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def getpeername(self) -> tuple[str, int] | None:
        return self._peer

    def setsockopt(self, *_: Any) -> None:
        pass

    def getsockopt(self, *_: Any) -> int:
        return 0

    def fileno(self) -> int:
        return -1


class Connection:
    """Two transports that are each other's peers."""

    def __init__(
        self, network: Network, host: str, port: int, life: Life | None, context: contextvars.Context, server: SimServer
    ) -> None:
        client_name, server_name = (host, port), (server.own, server.port)
        client = SimTransport(network, self, host, life, context, client_name, server_name)
        accepted = SimTransport(network, self, server.own, server.life, server.context.copy(), server_name, client_name)
        client.peer, accepted.peer = accepted, client
        self.ends = (client, accepted)
        self.network = network

    def accept(self, accepted: SimTransport, server: SimServer) -> None:
        if not server.is_serving():
            accepted.abort()
            return
        accepted.begin(server.factory())

    def reset_both(self) -> None:
        for end in self.ends:
            end.schedule_lost(ConnectionResetError(104, "connection reset by the network"), 0.0)

    def healed(self, *, reset: bool) -> None:
        stalled = [end for end in self.ends if end.is_stalled()]
        if stalled and reset:
            self.reset_both()
            return
        for end in stalled:
            end.unstall()


class SimTransport(asyncio.Transport):
    """One end of a connection: its write buffer, what is in flight to the peer, and what it received and has not
    read.
    """

    peer: SimTransport

    def __init__(
        self,
        network: Network,
        connection: Connection,
        host: str,
        life: Life | None,
        context: contextvars.Context,
        name: tuple[str, int],
        peer_name: tuple[str, int],
    ) -> None:
        super().__init__()
        self.network, self.connection, self.host, self.life, self.context = network, connection, host, life, context
        self._loop = network.loop
        self._extra_info = {
            "sockname": name,
            "peername": peer_name,
            "socket": Socket(name, peer_name),
            "peer_host": peer_name[0],
        }
        self._protocol: asyncio.BaseProtocol | None = None
        self._closing = False  # close() or abort() was called, or the connection is lost
        self._lost = False  # connection_lost is scheduled or done
        self._eof_wanted = False  # write_eof() or close(): a FIN follows the write buffer
        self._eof_sent = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writing_paused = False
        self._reading_paused = False
        self._buffer: deque[bytes] = deque()  # not yet sent: the window is full
        self._buffer_bytes = 0
        self._in_flight: deque[tuple[float, bytes | None]] = (
            deque()
        )  # (arrival time, data or None for FIN) on the way to the peer
        self._window_used = 0  # in flight, or arrived and unread by the peer
        self._last_arrival = 0.0
        self._flight_timer: asyncio.TimerHandle | None = None
        self._stalled = False  # a cut holds what is in flight
        self._received: deque[bytes | None] = deque()  # arrived here, not yet given to the protocol
        self._reading_soon = False

    # -- asyncio.Transport ----------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra_info.get(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low
        self._pause_if_full()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._buffer_bytes

    def write(self, data: Buffer) -> None:
        if not isinstance(data, _BUFFERS):
            raise TypeError(f"data argument must be bytes-like, not {type(data).__name__}")
        if self._eof_wanted and not self._closing:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not len(data):
            return
        self._push(bytes(data))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._closing or self._eof_wanted:
            return
        self._eof_wanted = True
        self._send_eof()

    def close(self) -> None:
        """Sends what is buffered, then ends; nothing is read any more."""
        if self._closing:
            return
        self._closing = self._eof_wanted = True
        self._received.clear()
        self._send_eof()
        if not self._buffer:
            self.schedule_lost(None, 0.0)

    def abort(self) -> None:
        """Ends at once; the peer may or may not read what is on the way."""
        if self._lost:
            return
        self._hang_up()
        self.schedule_lost(None, 0.0)

    # -- life of a connection -------------------------------------------------------------------------------------

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Called in this end's context."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._read_soon()

    def schedule_lost(self, error: Exception | None, after_s: float) -> None:
        """connection_lost(error) after a while, once."""
        if self._lost:
            return
        if after_s:
            self._loop.call_later(after_s, self.schedule_lost, error, 0.0, context=self.context)
            return
        self._lost = self._closing = True
        self._buffer.clear()
        self._buffer_bytes = 0
        self._received.clear()
        self._loop.call_soon(self._connection_lost, error, context=self.context)
        if self.peer._lost or self.peer.is_dead():
            self.network.forget(self.connection)

    def is_dead(self) -> bool:
        return self.life is not None and not self.life.alive

    def died(self, *, silent: bool) -> None:
        """The process of this end is gone."""
        if self._lost:
            return
        self._lost = self._closing = True
        if not silent:
            self._hang_up()
        else:
            self._in_flight.clear()
        if self.peer._lost:
            self.network.forget(self.connection)

    def is_waiting(self) -> bool:
        """Whether the peer has not yet taken all that was sent."""
        return self._window_used > 0 or bool(self._in_flight)

    def is_stalled(self) -> bool:
        return self._stalled

    def unstall(self) -> None:
        """The cut ended: what is in flight is sent again."""
        if self._stalled and not self.network.is_cut(self.host, self.peer.host):
            self._stalled = False
            again = self._loop.now + self.network.rng.uniform(0.0, 0.4) + self.network.delay(self.host, self.peer.host)
            self._in_flight = deque((max(at, again), data) for at, data in self._in_flight)
            self._last_arrival = max(self._last_arrival, again)
            self._start_flight()

    def _connection_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _hang_up(self) -> None:
        """This end's kernel closes: the peer gets what is in flight and an end of file, or a reset that overtakes
        it.
        """
        self._buffer.clear()
        self._buffer_bytes = 0
        delay = self.network.delay(self.host, self.peer.host)
        if self.network.is_cut(self.host, self.peer.host) or (self.network.rng.random() < 0.5 and not self._eof_sent):
            self._fly(None)
        else:
            self._in_flight.clear()
            self.peer.schedule_lost(ConnectionResetError(104, "connection reset by peer"), delay)

    # -- sending --------------------------------------------------------------------------------------------------

    def _push(self, data: bytes) -> None:
        if not self._buffer and len(data) <= WINDOW_BYTES - self._window_used:  # nearly always: all of it leaves now
            self._window_used += len(data)
            self._fly(data)
            return
        self._buffer.append(data)
        self._buffer_bytes += len(data)
        self._fill_window()
        self.network.worst_write_buffer = max(self.network.worst_write_buffer, self._buffer_bytes)
        self._pause_if_full()

    def _fill_window(self) -> None:
        """Called by the writer, and, as its kernel, when the peer has read."""
        while self._buffer and self._window_used < WINDOW_BYTES:
            data = self._buffer.popleft()
            room = WINDOW_BYTES - self._window_used
            if len(data) > room:
                self._buffer.appendleft(data[room:])
                data = data[:room]
            self._buffer_bytes -= len(data)
            self._window_used += len(data)
            self._fly(data)

    def _pause_if_full(self) -> None:
        if self._buffer_bytes > self._high and not self._writing_paused and self._protocol is not None:
            self._writing_paused = True
            self._protocol.pause_writing()

    def _send_eof(self) -> None:
        if not self._buffer and not self._eof_sent:
            self._eof_sent = True
            self._fly(None)

    def _fly(self, data: bytes | None) -> None:
        arrival = self._loop.now + self.network.delay(self.host, self.peer.host)
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        self._in_flight.append((arrival, data))
        if self._flight_timer is None:
            self._start_flight()

    def _start_flight(self) -> None:
        if self._flight_timer is None and self._in_flight and not self._stalled:
            self._flight_timer = self._loop.call_at(self._in_flight[0][0], self._arrive, context=self.network.neutral)

    def _arrive(self) -> None:
        """At the peer's kernel."""
        self._flight_timer = None
        if self.network.is_cut(self.host, self.peer.host):
            self._stalled = True
            return
        now, peer = self._loop.now, self.peer
        while self._in_flight and self._in_flight[0][0] <= now:
            data = self._in_flight.popleft()[1]
            if peer._lost:
                if self.network.is_down(peer.host):  # nobody answers
                    continue
                self._window_used -= len(data or b"")
                if data is not None and not self._lost:  # bytes for a closed socket are answered by a reset
                    delay = self.network.delay(peer.host, self.host)
                    self.schedule_lost(ConnectionResetError(104, "connection reset by peer"), delay)
                continue
            if peer._closing:  # closed here, but still sending: what arrives is not read
                self._window_used -= len(data or b"")
                continue
            peer._received.append(data)
        if self._in_flight:
            self._start_flight()
        if peer._lost:
            return
        if peer.life is not None and peer.life.held is not None:  # it is stopped: its kernel keeps what arrived
            peer._read_soon()
        else:
            peer.context.run(peer._read)

    # -- receiving ------------------------------------------------------------------------------------------------

    def _read_soon(self) -> None:
        if self._received and not self._reading_soon and not self._lost:
            self._reading_soon = True
            self._loop.call_soon(self._read_again, context=self.context)

    def _read_again(self) -> None:
        self._reading_soon = False
        self._read()

    def _read(self) -> None:
        """Gives the protocol what has arrived, in pieces cut at random."""
        if not self._received or self._reading_paused or self._closing or self._protocol is None:
            return
        pieces: list[bytes] = []
        while self._received and self._received[0] is not None:
            pieces.append(self._received.popleft() or b"")
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        rng = self.network.rng
        if data and rng.random() < SPLIT_CHANCE:
            at = rng.randrange(len(data)) if rng.random() < 0.5 else min(len(data), rng.randrange(8))
            if 0 < at < len(data):
                self._received.appendleft(data[at:])
                data = data[:at]
        if data:
            self.network.bytes_carried += len(data)
            self._give(data)
            self.peer._was_read(len(data))
            if self._received:
                self._read_soon()
        elif self._received:
            self._received.popleft()
            self._end_of_file()

    def _give(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
        else:
            assert isinstance(protocol, asyncio.BufferedProtocol)
            view = memoryview(data)
            while view and not self._lost:
                target = memoryview(protocol.get_buffer(len(view)))
                size = min(len(target), len(view))
                if not size:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                target[:size] = view[:size]
                protocol.buffer_updated(size)
                view = view[size:]

    def _was_read(self, size: int) -> None:
        """The peer read `size` bytes: the window opens. Runs in the peer's context; the protocol hears of it in its
        own.
        """
        self._window_used -= size
        if not (self._buffer or self._writing_paused) or self.is_dead():  # nearly always
            return
        if self._buffer:
            self._fill_window()
            if self._eof_wanted and not self._buffer:
                self._send_eof()
                if self._closing:
                    self.schedule_lost(None, 0.0)
        if self._writing_paused and self._buffer_bytes <= self._low:
            self._writing_paused = False
            self._loop.call_soon(self._resume_writing, context=self.context)

    def _resume_writing(self) -> None:
        if self._protocol is not None and not self._lost:
            self._protocol.resume_writing()

    def _end_of_file(self) -> None:
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not protocol.eof_received():
            self.close()
