"""Network: TCP in memory, for `SimLoop`: hosts, zones, latency, cuts, resets.

Is: `create_server` and `create_connection` of the loop, with asyncio's Transport semantics, and the faults of a
network. Isn't: TLS (`ssl` is ignored; `get_extra_info("peer_host")` says who called), names, datagrams.

    network = sim.network
    network.latency("us", "eu", 0.040, 0.044)    # seconds one way, between two zones or hosts, both directions
    network.cut("us", "eu")                      # silence both ways: bytes wait, connects hang
    network.cut("us", "eu", one_way=True)        # only what us sends to eu is lost
    network.heal("us", "eu")                     # what waited arrives, or the connection is reset: the seed decides
    network.reset("us", "eu")                    # every open connection between them dies now, both ends are told

A server belongs to the host of the process that listens; "127.0.0.1", "localhost", "0.0.0.0", "" and None are that
host's own names, and because port 0 gives a number that is used once in the whole network, an address with a loopback
host also finds another machine's listener.

Rules. The bytes of a connection arrive in order, whatever the latency; where they are cut into reads is random. A
sender has a window of WINDOW_BYTES in flight or unread by the peer; what exceeds it is its write buffer, with asyncio's
pause_writing and resume_writing. A process that is killed has its connections closed by its kernel: the peer sees end
of file or a reset after the latency. A machine that loses power says nothing: peers learn of it by their own time-outs,
or, once it is up again, by a reset that answers their next bytes.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Iterable

from geo_tests.sim.loop import LIFE, Life, SimLoop
from geo_tests.sim.transport import Connection, SimTransport, Socket

Buffer = bytes | bytearray | memoryview

CONNECT_TIMEOUT_S = 127.0
_LOOPBACK = ("127.0.0.1", "localhost", "0.0.0.0", "::1", "::", "", None)


class Network:
    """All hosts and what lies between them."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        loop.network = self
        self.bytes_carried = 0
        self.neutral = contextvars.copy_context()  # of the wires themselves, which never die
        self.neutral.run(LIFE.set, None)
        self.worst_write_buffer = 0
        """Bytes that the worst of all connections has taken from its writer and could not send, ever."""
        self._zones: dict[str, str] = {}
        self._named: dict[str, tuple[str, str]] = {}
        """Of `_names`, as they were asked for."""
        self._down: dict[str, bool] = {}
        self._latency: dict[tuple[str, str], tuple[float, float]] = {}
        self._bounds: dict[tuple[str, str], tuple[float, float]] = {}
        """Those of pairs of hosts, as they were found."""
        self._cuts: dict[tuple[str, str], float] = {}
        """(source, target) -> since when."""
        self._listeners: dict[tuple[str, int], list[SimServer]] = {}
        self._connections: dict[Connection, None] = {}
        self._next_port = 20_000
        self._next_client_port = 100_000

    # -- for tests ------------------------------------------------------------------------------------------------

    def add_host(self, host: str, zone: str) -> None:
        self._zones[host] = zone
        self._named.clear()
        self._bounds.clear()
        self._down[host] = False

    def latency(self, a: str, b: str, low_s: float, high_s: float) -> None:
        """One way, both directions, between hosts or zones; a pair of hosts beats a pair of zones."""
        self._latency[(a, b)] = self._latency[(b, a)] = (low_s, high_s)
        self._bounds.clear()

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """What `a` sends to `b` is lost from now on; the other way too unless `one_way`. Hosts or zones. Connections
        stay open and silent.
        """
        self._cuts.setdefault((a, b), self.loop.now)
        if not one_way:
            self._cuts.setdefault((b, a), self.loop.now)

    def heal(self, a: str, b: str) -> None:
        """Ends `cut`, both ways. What waited is sent again and arrives; one connection in four is reset instead."""
        self.heal_all([(a, b)])

    def heal_all(self, pairs: Iterable[tuple[str, str]]) -> None:
        """As `heal`, of all of these at once."""
        for a, b in pairs:
            self._cuts.pop((a, b), None)
            self._cuts.pop((b, a), None)
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

    def cut_s(self, source: str, target: str) -> float:
        """For how long nothing of host or zone `source` has arrived at `target`, because of cuts; 0.0: there is
        none.
        """
        if not self._cuts or source == target:
            return 0.0
        since = [
            at for a in self._names(source) for b in self._names(target) if (at := self._cuts.get((a, b))) is not None
        ]
        return self.loop.now - min(since) if since else 0.0

    def end_of_life(self, life: Life, *, silent: bool) -> None:
        """The process is dead: its listeners and connections go. `silent`: its machine lost power, and peers hear
        nothing.
        """
        for key, servers in list(self._listeners.items()):
            self._listeners[key] = [s for s in servers if s.life is not life]
        for connection in list(self._connections):
            for end in connection.ends:
                if end.life is life:
                    end.died(silent=silent)

    def power(self, host: str, *, on: bool) -> None:
        """A machine goes dark or comes back; coming back, it answers what peers of its earlier life send again with
        resets.
        """
        self._down[host] = not on
        for connection in list(self._connections) if on else ():
            for end in connection.ends:
                if end.is_dead() and end.host == host and not end.peer.is_dead() and end.peer.is_waiting():
                    end.peer.schedule_lost(
                        ConnectionResetError(104, "connection reset by peer"), self.rng.uniform(0.02, 1.5)
                    )

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

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        life = LIFE.get()
        own = life.host if life else "test"
        target = self._resolve(own, host, int(port))
        waited = 0.0
        while self._down.get(target, False) or self.is_cut(own, target) or self.is_cut(target, own):
            step = max(1.0, waited)  # SYNs are sent again after 1, 2, 4, ... seconds
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
        connection = Connection(self, own, self._next_client_port, life, contextvars.copy_context(), server)
        self._connections[connection] = None
        client, accepted = connection.ends
        protocol = factory()
        client.begin(protocol)
        self.loop.call_soon(connection.accept, accepted, server, context=accepted.context)
        return client, protocol

    def delay(self, source: str, target: str) -> float:
        """A sample of the latency one way, in seconds."""
        low, high = self._bounds.get((source, target)) or self._find_bounds(source, target)
        return low + (high - low) * self.rng.random()

    def _find_bounds(self, source: str, target: str) -> tuple[float, float]:
        zones = self._zones.get(source, source), self._zones.get(target, target)
        found = self._latency.get((source, target)) or self._latency.get(zones) or (0.0001, 0.0004)
        found = self._bounds[source, target] = (0.00002, 0.00006) if source == target else found
        return found

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    def is_down(self, host: str) -> bool:
        return self._down.get(host, False)

    def _names(self, host: str) -> tuple[str, str]:
        found = self._named.get(host)
        if found is None:
            found = self._named[host] = host, self._zones.get(host, host)
        return found

    def _resolve(self, own: str, host: str | None, port: int) -> str:
        if host not in _LOOPBACK:
            return str(host)
        if self._listeners.get((own, port)):
            return own
        return next((h for (h, p), servers in self._listeners.items() if p == port and servers), own)


class SimServer(asyncio.AbstractServer):
    """One listener."""

    def __init__(
        self,
        network: Network,
        factory: Callable[[], asyncio.BaseProtocol],
        own: str,
        host: str,
        port: int,
        life: Life | None,
    ) -> None:
        self.network, self.factory, self.own, self.host, self.port, self.life = network, factory, own, host, port, life
        self.context = contextvars.copy_context()
        self._serving = True

    @property
    def sockets(self) -> tuple[Socket, ...]:
        return (Socket((self.host, self.port), None),) if self._serving else ()

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
