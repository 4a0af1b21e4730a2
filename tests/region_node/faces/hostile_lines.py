"""Hostile cases over sockets: many connections side by side, and on each as many cases as the broker lets it carry.

Is: `Attack`, which sends each case of a grammar, again where one before it closed their connection, and counts how each
ended; what a grammar has to offer for that (`Case`, `Cases`).
Isn't: a grammar, a region, or what is a finding (`tests.region_node.faces.socket_fuzzing`).
Invariants: a case is counted once: when the broker has answered what follows it, and itself where it is to be answered,
or has closed the connection while it was the first that was not; what was behind that one was not looked at, and is
sent again.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

SILENCE_S = 3.0
"""A case that is not answered by then is sent again, alone, and is silent when it is not answered then either: what
waits rightly, such as a Fetch, is one of them.
"""
LOOK_S = 0.5
MARK = 1 << 64
"""What answers the request behind a hostile one, which says that the hostile one has been looked at."""
OPENED = MARK + 1
"""What answers the sign-in itself."""
DEPTH = 4
"""Cases on their way at once on one connection."""
POOL = 2000
"""Cases that are ready to be sent, over all openings: those of an opening share connections."""
_TOGETHER_BYTES = 16 << 10
"""So much goes out with a sign-in; brokers take 64 KiB from whom they do not know yet."""
_CARRIED_MAX = 64
_ALONE_FROM = 3
"""What was sent so often goes with nothing before and behind it."""
_TRIES_MAX = 20
_PAUSE_S = 0.05
_RECEIVED_BYTES = 256 << 10
_ABORTED = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Step:
    """What is sent, and which answers are waited for before the next one. together: cases need not wait for them."""

    data: bytes
    wanted: frozenset[int] = frozenset()
    together: bool = False


@dataclass(frozen=True, slots=True)
class Opening:
    """What comes before a case, and is the same for others of this name. aborts: its connections end without a word."""

    name: str
    steps: tuple[Step, ...] = ()
    aborts: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """about: the field that is hostile. letter: whose connection it is (`guarded_region`). data: with the mark behind.
    request: what its answer names; 0: it has none. asks: that answer is waited for beside the mark's, which may come
    before it. last: nothing more may come on its connection, as it changes what the others rely on, or surely closes
    it. pauses: nothing may come in one write behind it. marked: no length of a frame is hostile, so that the mark is
    one.
    """

    about: str
    letter: str
    opening: Opening
    data: bytes
    request: int = 0
    asks: bool = False
    last: bool = False
    pauses: bool = False
    marked: bool = True


class Cases(Protocol):
    """A grammar. Each case is a function of the seed and its number alone, and so can be sent again alone."""

    face: str
    module: str

    def case(self, seed: int, number: int) -> Case: ...

    def request(self, body: bytes) -> int:
        """Which request a frame, without its size, answers: MARK, OPENED, a number; 0: none."""

    def refuses(self, case: Case, body: bytes) -> bool:
        """Whether the answer to the case's request says no. Raises ValueError: nobody can read it."""


@dataclass(slots=True)
class Outcome:
    """What a run came to. ends: of each case. again: how many were sent once more, as often as they were. turned_away:
    connections on which nothing was looked at. findings: each a sentence; none is wanted. costliest: CPU of the busiest
    process a case.
    """

    sent: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    again: int = 0
    turned_away: int = 0
    silent: list[tuple[int, str]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    highest_rss: int = 0
    costliest: tuple[float, str] = (0.0, "")
    moments: list[tuple[float, int]] = field(default_factory=list)


class Flight:
    """A case that is to be sent, or is on its way."""

    __slots__ = ("answered", "case", "marked", "number", "refused", "tries")

    def __init__(self, number: int, case: Case) -> None:
        self.number, self.case, self.tries = number, case, 0
        self.marked = self.answered = self.refused = False

    @property
    def over(self) -> bool:
        return self.marked and (self.answered or not self.case.asks)


class Pool:
    """Cases of one opening that are to be sent: those that leave the connection as it is, and those that do not."""

    __slots__ = ("calm", "last", "opening")

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.calm: deque[Flight] = deque()
        self.last: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self.calm) + len(self.last)


class Line:
    """One connection. waits: answers that the opening lacks. held: cases that wait for them. flights: what has been
    chosen for it and has not ended. over: nothing more may be chosen.
    """

    __slots__ = ("carried", "deadline", "flights", "held", "over", "pool", "read", "socket", "steps", "unsent", "waits")

    def __init__(self, sock: socket.socket, pool: Pool) -> None:
        self.socket, self.pool = sock, pool
        self.steps = deque(pool.opening.steps)
        self.waits: set[int] = set()
        self.flights: deque[Flight] = deque()
        self.read, self.held, self.unsent = bytearray(), b"", b""
        self.carried, self.over, self.deadline = 0, False, 0.0


class Attack:
    """Sends cases on `connections` at a time, and at most `rate` a second, 0: as many as are answered."""

    def __init__(
        self,
        cases: Cases,
        port: int,
        seed: int,
        connections: int = 32,
        rate: float = 0.0,
        *,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cases, self.port, self.seed, self.connections, self.rate = cases, port, seed, connections, rate
        self.look_s, self._clock = look_s, clock
        self.outcome = Outcome()
        self.lowest = self.latest = 0
        """Of the numbers of the cases that were on their way since the last look."""
        self._pools: dict[str, Pool] = {}
        self._turns: deque[Pool] = deque()
        self._ready = 0
        self._lines: dict[int, Line] = {}
        self._poll = select.epoll()

    def run(self, numbers: Iterator[int], look: Callable[[], bool] = lambda: True) -> None:
        """Until each case has ended, or `look`, which is called each half second, says False. Raises what escaped the
        fuzzer itself.
        """
        begun, before = self._clock(), self.outcome.seconds
        taken, more = 0, True
        looked = begun
        try:
            while more or self._ready or self._lines:
                now = self._clock()
                while more and self._ready < POOL and (not self.rate or taken < (now - begun) * self.rate):
                    number = next(numbers, -1)
                    more = number >= 0
                    if more:
                        taken += 1
                        self._offer(Flight(number, self.cases.case(self.seed, number)))
                while self._ready and len(self._lines) < self.connections and self._connect():
                    pass
                wait_s = min(self.look_s, 1 / self.rate) if self.rate else self.look_s
                for handle, event in self._poll.poll(wait_s if self._lines else min(wait_s, _PAUSE_S)):
                    self._ready_now(self._lines[handle], event)
                now = self._clock()
                if now - looked >= self.look_s:
                    looked, self.outcome.seconds = now, before + now - begun
                    self._give_up(now)
                    self.lowest = min((one.number for line in self._lines.values() for one in line.flights), default=0)
                    if not look():
                        return
        finally:
            self.outcome.seconds = before + self._clock() - begun
            for line in list(self._lines.values()):
                self._end(line)

    # -- what is to be sent --------------------------------------------------------------------------------------------

    def _offer(self, flight: Flight, first: bool = False) -> None:
        opening = flight.case.opening
        pool = self._pools.get(opening.name)
        if pool is None:
            pool = self._pools[opening.name] = Pool(opening)
        if not len(pool):
            self._turns.append(pool)
        queue = pool.last if flight.case.last else pool.calm
        queue.appendleft(flight) if first else queue.append(flight)
        self._ready += 1

    def _again(self, flights: list[Flight], tries: int = 1) -> None:
        """tries: so many are counted."""
        for flight in reversed(flights):
            flight.tries += tries
            flight.marked = flight.answered = flight.refused = False
            if flight.tries > _TRIES_MAX:
                self._ended(flight, "not let in")
            else:
                self.outcome.again += 1
                self._offer(flight, first=True)

    def _connect(self) -> bool:
        """Begins a connection for the opening whose turn it is; False: none can be made now."""
        pool = self._turns[0]
        sock = socket.socket()
        try:
            sock.settimeout(SILENCE_S)
            sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            self.outcome.turned_away += 1
            return False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.outcome.connections += 1
        line = self._lines[sock.fileno()] = Line(sock, pool)
        self._poll.register(sock.fileno(), select.EPOLLIN)
        self._begin(line)
        return True

    def _begin(self, line: Line) -> None:
        """Sends the opening, and its first cases with it where they need not wait for what it is answered."""
        data, steps = self._chosen(line), line.steps
        whole = line.flights[-1].case.marked and len(data) <= _TOGETHER_BYTES
        if len(steps) == 1 and steps[0].together and whole:
            step = steps.popleft()
            line.waits = set(step.wanted)
            self._send(line, step.data + data)
            return
        line.held = data
        self._go_on(line)

    def _go_on(self, line: Line) -> None:
        """What is waited for has come: sends what is next, or ends the line where nothing is."""
        data = b""
        while line.steps and not line.waits:
            step = line.steps.popleft()
            data += step.data
            line.waits = set(step.wanted)
        if not line.waits:
            data, line.held = data + line.held, b""
            data += b"" if line.flights else self._chosen(line)
        if line.flights:
            self._send(line, data)
        else:
            self._end(line)

    def _chosen(self, line: Line) -> bytes:
        """Takes the cases that go out together; none is on its way now."""
        pool, flights = line.pool, line.flights
        if line.over:
            return b""
        if self._turns and pool is self._turns[0]:
            self._turns.rotate(-1)
        if pool.calm and line.carried < _CARRIED_MAX:
            while pool.calm and len(flights) < DEPTH:
                if flights and (flights[-1].case.pauses or max(flights[0].tries, pool.calm[0].tries) >= _ALONE_FROM):
                    break
                flights.append(pool.calm.popleft())
        elif pool.last:
            line.over = True
            flights.append(pool.last.popleft())
        if flights and not len(pool):
            self._turns.remove(pool)
        self._ready -= len(flights)
        line.carried += len(flights)
        self.latest = max(self.latest, *(flight.number for flight in flights)) if flights else self.latest
        return b"".join([flight.case.data for flight in flights])

    # -- a connection --------------------------------------------------------------------------------------------------

    def _send(self, line: Line, data: bytes) -> None:
        line.deadline = self._clock() + SILENCE_S
        data = line.unsent + data
        try:
            sent = line.socket.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(data)  # it is closed: what it said before that is read first
        if bool(line.unsent) != (sent < len(data)):
            self._poll.modify(line.socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if sent < len(data) else 0))
        line.unsent = data[sent:]
        if not line.unsent and not line.held and line.flights and not line.flights[-1].case.marked:
            try:
                line.socket.shutdown(socket.SHUT_WR)  # the broker need not wait for what the length has promised
            except OSError:
                pass

    def _ready_now(self, line: Line, event: int) -> None:
        if event & select.EPOLLOUT:
            self._send(line, b"")
        if not event & ~select.EPOLLOUT:
            return
        try:
            data = line.socket.recv(_RECEIVED_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._closed(line)
            return
        read, at = line.read, 0
        read += data
        progress = False
        while len(read) - at >= 4:
            size = int.from_bytes(read[at : at + 4], "big")
            if len(read) - at - 4 < size:
                break
            progress |= self._answer(line, bytes(read[at + 4 : at + 4 + size]))
            at += 4 + size
        del read[:at]
        if not progress:
            return
        for flight in [one for one in line.flights if one.over]:
            line.flights.remove(flight)
            self._ended(flight, "refused" if flight.refused else "answered")
        line.deadline = self._clock() + SILENCE_S
        if not line.waits and (line.steps or line.held or not line.flights):
            self._go_on(line)

    def _answer(self, line: Line, body: bytes) -> bool:
        """Whether that was waited for."""
        request = self.cases.request(body)
        if request in line.waits:
            line.waits.discard(request)
            return not line.waits
        for flight in line.flights if request else ():
            if request == MARK and not flight.marked:
                flight.marked = True
                return True
            if request == flight.case.request and not flight.answered and (flight.case.asks or not flight.marked):
                flight.answered = True
                try:
                    flight.refused = self.cases.refuses(flight.case, body)
                except ValueError as error:
                    self.outcome.findings.append(f"the answer to case {flight.number} cannot be read: {error}")
                return True
        return False

    def _closed(self, line: Line) -> None:
        flights = list(line.flights)
        self._end(line)
        if line.steps or line.waits:
            self.outcome.turned_away += 1
            self._again(flights)
            return
        late = [one for one in flights if one.marked]
        closers = [one for one in flights if not one.marked][:1] or (late if len(late) == 1 else [])
        for one in closers:
            self._ended(one, "closed")
        self._again([one for one in flights if one not in closers])

    def _give_up(self, now: float) -> None:
        for line in [one for one in self._lines.values() if now >= one.deadline]:
            flights = list(line.flights)
            self._end(line)
            if line.steps or line.waits:
                self.outcome.turned_away += 1
            elif len(flights) == 1 and flights[0].tries >= _ALONE_FROM:
                self.outcome.silent.append((flights[0].number, flights[0].case.about))
                self._ended(flights.pop(), "silent")
            self._again(flights, _ALONE_FROM)

    def _end(self, line: Line) -> None:
        handle = line.socket.fileno()
        self._poll.unregister(handle)
        del self._lines[handle]
        if line.pool.opening.aborts:
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORTED)
        line.socket.close()

    def _ended(self, flight: Flight, end: str) -> None:
        self.outcome.sent += 1
        self.outcome.ends[end] += 1
