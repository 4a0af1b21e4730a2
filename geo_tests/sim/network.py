"""Network: TCP in memory, for `SimLoop`: hosts, zones, latency, cuts, resets.

Is: `create_server` and `create_connection` of the loop, with asyncio's Transport semantics, and the faults of a network. Isn't: TLS (`ssl` is
ignored; `get_extra_info("peer_host")` says who called), names, datagrams.

    network = sim.network
    network.latency("us", "eu", 0.040, 0.044)    # seconds one way, between two zones or hosts, both directions
    network.cut("us", "eu")                      # silence both ways: bytes wait, connects hang
    network.cut("us", "eu", one_way=True)        # only what us sends to eu is lost
    network.heal("us", "eu")                     # what waited arrives, or the connection is reset: the seed decides
    network.reset("us", "eu")                    # every open connection between them dies now, both ends are told

A server belongs to the host of the process that listens; "127.0.0.1", "localhost", "0.0.0.0", "" and None are that host's own names, and because
port 0 gives a number that is used once in the whole network, an address with a loopback host also finds another machine's listener.

Rules. The bytes of a connection arrive in order, whatever the latency; where they are cut into reads is random. A sender has a window of
WINDOW_BYTES in flight or unread by the peer; what exceeds it is its write buffer, with asyncio's pause_writing and resume_writing. A process that is
killed has its connections closed by its kernel: the peer sees end of file or a reset after the latency. A machine that loses power says nothing:
peers learn of it by their own time-outs, or, once it is up again, by a reset that answers their next bytes.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from geo_tests.sim.loop import LIFE, Life, SimLoop

Buffer = bytes | bytearray | memoryview

WINDOW_BYTES = 256 * 1024
CONNECT_TIMEOUT_S = 127.0
SPLIT_CHANCE = 0.1
_LOOPBACK = ("127.0.0.1", "localhost", "0.0.0.0", "::1", "::", "", None)


class Network:
    """All hosts and what lies between them."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        loop.network = self
        self.bytes_carried = 0
        self.neutral = contextvars.copy_context()    # of the wires themselves, which never die
        self.neutral.run(LIFE.set, None)
        self._zones: dict[str, str] = {}
        self._down: dict[str, bool] = {}
        self._latency: dict[tuple[str, str], tuple[float, float]] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._listeners: dict[tuple[str, int], list[SimServer]] = {}
        self._connections: dict[_Connection, None] = {}
        self._next_port = 20_000
        self._next_client_port = 100_000

    # -- for tests ------------------------------------------------------------------------------------------------

    def add_host(self, host: str, zone: str) -> None:
        self._zones[host] = zone
        self._down[host] = False

    def latency(self, a: str, b: str, low_s: float, high_s: float) -> None:
        """One way, both directions, between hosts or zones; a pair of hosts beats a pair of zones."""
        self._latency[(a, b)] = self._latency[(b, a)] = (low_s, high_s)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """What `a` sends to `b` is lost from now on; the other way too unless `one_way`. Hosts or zones. Connections stay open and silent."""
        self._cuts.add((a, b))
        if not one_way:
            self._cuts.add((b, a))

    def heal(self, a: str, b: str) -> None:
        """Ends `cut`, both ways. What waited is sent again and arrives; one connection in four is reset instead."""
        self._cuts -= {(a, b), (b, a)}
        for connection in list(self._connections):
            connection.healed(reset=self.rng.random() < 0.25)

    def reset(self, a: str, b: str) -> None:
        """Every connection between hosts or zones `a` and `b` ends with ConnectionResetError at both ends."""
        for connection in list(self._connections):
            x, y = (self._names(t.host) for t in connection.ends)
            if (a in x and b in y) or (a in y and b in x):
                connection.reset_both()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether what host `source` sends does not arrive at host `target`."""
        if not self._cuts or source == target:
            return False
        return any((a, b) in self._cuts for a in self._names(source) for b in self._names(target))

    def largest_write_buffer(self) -> int:
        """Bytes that the worst of all connections has taken from its writer and could not send."""
        return max((end.get_write_buffer_size() for connection in self._connections for end in connection.ends), default=0)

    def end_of_life(self, life: Life, *, silent: bool) -> None:
        """The process is dead: its listeners and connections go. `silent`: its machine lost power, and peers hear nothing."""
        for key, servers in list(self._listeners.items()):
            self._listeners[key] = [s for s in servers if s.life is not life]
        for connection in list(self._connections):
            for end in connection.ends:
                if end.life is life:
                    end.died(silent=silent)

    def power(self, host: str, *, on: bool) -> None:
        """A machine goes dark or comes back; coming back, it answers what peers of its earlier life send again with resets."""
        self._down[host] = not on
        for connection in list(self._connections) if on else ():
            for end in connection.ends:
                if end.is_dead() and end.host == host and not end.peer.is_dead() and end.peer.is_waiting():
                    end.peer.schedule_lost(ConnectionResetError(104, "connection reset by peer"), self.rng.uniform(0.02, 1.5))

    # -- for the loop ---------------------------------------------------------------------------------------------

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int) -> SimServer:
        life = LIFE.get()
        own = life.host if life else "test"
        if port == 0:
            self._next_port += 1
            port = self._next_port
        bound = self._listeners.setdefault((own, port), [])
        if any(server.life is not life for server in bound):
            raise OSError(98, f"address {own}:{port} is in use")
        server = SimServer(self, factory, own, host or own, port, life)
        bound.append(server)
        return server

    def stop_listening(self, server: SimServer) -> None:
        bound = self._listeners.get((server.own, server.port), [])
        if server in bound:
            bound.remove(server)

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int) -> tuple[SimTransport, asyncio.BaseProtocol]:
        life = LIFE.get()
        own = life.host if life else "test"
        target = self._resolve(own, host, int(port))
        waited = 0.0
        while self._down.get(target, False) or self.is_cut(own, target) or self.is_cut(target, own):
            step = max(1.0, waited)                # SYNs are sent again after 1, 2, 4, ... seconds
            if waited + step >= CONNECT_TIMEOUT_S:
                raise TimeoutError(f"connect to {host}:{port} timed out")
            await asyncio.sleep(step)
            waited += step
        await asyncio.sleep(self.delay(own, target) + self.delay(target, own))
        servers = self._listeners.get((target, int(port)))
        if self._down.get(target, False):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise TimeoutError(f"connect to {host}:{port} timed out")
        if not servers:
            raise ConnectionRefusedError(111, f"connect to {host}:{port} ({target}): refused")
        server = servers[0] if len(servers) == 1 else self.rng.choice(servers)
        self._next_client_port += 1
        connection = _Connection(self, own, self._next_client_port, life, contextvars.copy_context(), server)
        self._connections[connection] = None
        client, accepted = connection.ends
        protocol = factory()
        client.begin(protocol)
        self.loop.call_soon(connection.accept, accepted, server, context=accepted.context)
        return client, protocol

    def delay(self, source: str, target: str) -> float:
        """A sample of the latency one way, in seconds."""
        if source == target:
            low, high = 0.00002, 0.00006
        else:
            zone_a, zone_b = self._zones.get(source, source), self._zones.get(target, target)
            low, high = self._latency.get((source, target)) or self._latency.get((zone_a, zone_b)) or (0.0001, 0.0004)
        return self.rng.uniform(low, high)

    def forget(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    def is_down(self, host: str) -> bool:
        return self._down.get(host, False)

    def _names(self, host: str) -> tuple[str, str]:
        return host, self._zones.get(host, host)

    def _resolve(self, own: str, host: str | None, port: int) -> str:
        if host not in _LOOPBACK:
            return str(host)
        if self._listeners.get((own, port)):
            return own
        return next((h for (h, p), servers in self._listeners.items() if p == port and servers), own)


class SimServer(asyncio.AbstractServer):
    """One listener."""

    def __init__(
        self, network: Network, factory: Callable[[], asyncio.BaseProtocol], own: str, host: str, port: int, life: Life | None
    ) -> None:
        self.network, self.factory, self.own, self.host, self.port, self.life = network, factory, own, host, port, life
        self.context = contextvars.copy_context()
        self._serving = True

    @property
    def sockets(self) -> tuple[_Socket, ...]:
        return (_Socket((self.host, self.port), None),) if self._serving else ()

    def close(self) -> None:
        self._serving = False
        self.network.stop_listening(self)

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        await self.network.loop.create_future()

    async def wait_closed(self) -> None:
        pass

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.network.loop


class _Socket:
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


class _Connection:
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
    """One end of a connection: its write buffer, what is in flight to the peer, and what it received and has not read."""

    peer: SimTransport

    def __init__(
        self,
        network: Network,
        connection: _Connection,
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
            "socket": _Socket(name, peer_name),
            "peer_host": peer_name[0],
        }
        self._protocol: asyncio.BaseProtocol | None = None
        self._closing = False       # close() or abort() was called, or the connection is lost
        self._lost = False          # connection_lost is scheduled or done
        self._eof_wanted = False    # write_eof() or close(): a FIN follows the write buffer
        self._eof_sent = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writing_paused = False
        self._reading_paused = False
        self._buffer: deque[bytes] = deque()            # not yet sent: the window is full
        self._buffer_bytes = 0
        self._in_flight: deque[tuple[float, bytes | None]] = deque()   # (arrival time, data or None for FIN) on the way to the peer
        self._window_used = 0                           # in flight, or arrived and unread by the peer
        self._last_arrival = 0.0
        self._flight_timer: asyncio.TimerHandle | None = None
        self._stalled = False                           # a cut holds what is in flight
        self._received: deque[bytes | None] = deque()   # arrived here, not yet given to the protocol
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
        if not isinstance(data, bytes | bytearray | memoryview):
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
            again = self._loop.time() + self.network.rng.uniform(0.0, 0.4) + self.network.delay(self.host, self.peer.host)
            self._in_flight = deque((max(at, again), data) for at, data in self._in_flight)
            self._last_arrival = max(self._last_arrival, again)
            self._start_flight()

    def _connection_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _hang_up(self) -> None:
        """This end's kernel closes: the peer gets what is in flight and an end of file, or a reset that overtakes it."""
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
        self._buffer.append(data)
        self._buffer_bytes += len(data)
        self._fill_window()
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
        arrival = max(self._last_arrival, self._loop.time() + self.network.delay(self.host, self.peer.host))
        self._last_arrival = arrival
        self._in_flight.append((arrival, data))
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
        now, peer = self._loop.time(), self.peer
        while self._in_flight and self._in_flight[0][0] <= now:
            data = self._in_flight.popleft()[1]
            if peer._lost:
                if self.network.is_down(peer.host):        # nobody answers
                    continue
                self._window_used -= len(data or b"")
                if data is not None and not self._lost:    # bytes for a closed socket are answered by a reset
                    delay = self.network.delay(peer.host, self.host)
                    self.schedule_lost(ConnectionResetError(104, "connection reset by peer"), delay)
                continue
            if peer._closing:                              # closed here, but still sending: what arrives is not read
                self._window_used -= len(data or b"")
                continue
            peer._received.append(data)
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
            self._read_soon()
        elif self._received:
            self._received.popleft()
            self._end_of_file()

    def _give(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view and not self._lost:
                target = memoryview(protocol.get_buffer(len(view)))
                size = min(len(target), len(view))
                if not size:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                target[:size] = view[:size]
                protocol.buffer_updated(size)
                view = view[size:]
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    def _was_read(self, size: int) -> None:
        """The peer read `size` bytes: the window opens. Runs in the peer's context; the protocol hears of it in its own."""
        self._window_used -= size
        if self.is_dead():
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
