"""A case counts when it was looked at: what was behind one that closed its connection is sent again."""

from __future__ import annotations

import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from tests.region_node.faces.hostile_lines import MARK, OPENED, Attack, Case, Opening, Step

CASES = 40


def framed(kind: bytes, number: int = 0, text: bytes = b"") -> bytes:
    return (5 + len(text)).to_bytes(4, "big") + kind + number.to_bytes(4, "big") + text


OPENING = Opening("o", (Step(framed(b"o"), frozenset({OPENED}), together=True),))


class Broker(socketserver.ThreadingTCPServer):
    """Looks at one frame after the other, and closes where one is an `x`. What is `l` it answers when it has looked at
    all that has come; `s` never, nor what follows. away: so many connections it closes at their first word.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, away: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.accepted, self.stuck = 0, -1
        self.away, self.looked_at, self.answered, self.opened = away, Counter[int](), set[int](), 0
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that ends without a word is none."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        broker: Any = self.server
        with broker.lock:
            broker.accepted += 1
            own = broker.accepted
            broker.away -= 1
            if broker.away >= 0:
                return
        data = b""
        while True:
            new = self.request.recv(1 << 16)
            if not new:
                return
            data, late = data + new, []
            while len(data) >= 4 + (size := int.from_bytes(data[:4], "big")) >= 9:
                kind, number, data = data[4:5], int.from_bytes(data[5:9], "big"), data[4 + size :]
                with broker.lock:
                    broker.looked_at[number] += kind not in b"mo"
                    broker.opened += kind == b"o"
                if kind == b"x":
                    return
                if kind == b"s":
                    broker.stuck = own
                    self.request.recv(1 << 16)
                    return
                late += [number] if kind == b"l" else []
                if kind in b"mor":
                    self.request.sendall(framed(kind, number))
            broker.answered.update(late)
            for number in late:
                self.request.sendall(framed(b"l", number))


class Toy:
    """A grammar: case N is of the kind N of `kinds`."""

    face = module = "toy"

    def __init__(self, kinds: str, opening: Opening = OPENING) -> None:
        self.kinds, self.opening = kinds, opening

    def case(self, seed: int, number: int) -> Case:
        kind = self.kinds[number % len(self.kinds)]
        data = framed(kind.encode(), number) + framed(b"m")
        if kind == "u":
            data = (99).to_bytes(4, "big") + framed(b"m")[4:]
        asks = kind in "lr"
        return Case(
            kind, "t", self.opening, data, number + 1 if asks else 0, asks=asks, marked=kind != "u", last=kind == "u"
        )

    def request(self, body: bytes) -> int:
        return {b"m": MARK, b"o": OPENED}.get(body[:1], int.from_bytes(body[1:], "big") + 1)

    def refuses(self, case: Case, body: bytes) -> bool:
        if case.about == "r" and body[1:] == (7).to_bytes(4, "big"):
            raise ValueError("seven")
        return body[:1] == b"r"


@contextmanager
def served(broker: Broker) -> Iterator[Broker]:
    with broker:
        threading.Thread(target=broker.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield broker
        broker.shutdown()


def attacked(toy: Toy, away: int = 0, cases: int = CASES) -> tuple[Attack, Broker]:
    with served(Broker(away)) as broker:
        attack = Attack(toy, broker.port, 1, connections=3)
        attack.run(iter(range(cases)))
    return attack, broker


def test_a_case_behind_one_that_closed_its_connection_is_sent_again() -> None:
    attack, broker = attacked(Toy("aaax"))
    outcome = attack.outcome
    assert outcome.ends == {"answered": 30, "closed": 10} and outcome.sent == CASES
    assert set(broker.looked_at) == set(range(CASES)), "each was looked at"
    assert all(broker.looked_at[number] == 1 for number in range(3, CASES, 4))
    assert 10 <= outcome.connections <= 14 and broker.opened == outcome.connections, "the others share connections"


def test_what_is_to_be_answered_is_not_over_before_it_is() -> None:
    attack, broker = attacked(Toy("lx"))
    assert attack.outcome.ends == {"answered": 20, "closed": 20}
    assert broker.answered == set(range(0, CASES, 2))
    assert attack.outcome.again >= 20, "the mark came, and the answer did not"


def test_a_refusal_is_told_from_an_answer_and_one_that_nobody_can_read_is_found() -> None:
    attack, _ = attacked(Toy("ar"))
    assert attack.outcome.ends == {"answered": 21, "refused": 19}
    assert attack.outcome.findings == ["the answer to case 7 cannot be read: seven"]


def test_a_length_without_what_it_promises_ends_its_connection() -> None:
    attack, _ = attacked(Toy("au"))
    assert attack.outcome.ends == {"answered": 20, "closed": 20}


def test_who_is_not_let_in_comes_again() -> None:
    attack, broker = attacked(Toy("a"), away=5)
    assert attack.outcome.ends == {"answered": CASES} and attack.outcome.turned_away == 5
    assert attack.outcome.connections == broker.opened + 5


def test_who_is_never_let_in_is_counted_apart() -> None:
    attack, broker = attacked(Toy("a"), away=1 << 20, cases=4)
    assert attack.outcome.ends == {"not let in": 4} and not broker.looked_at


def test_silence_is_that_of_a_case_that_was_sent_alone() -> None:
    """Time passes on the connection that has one, and on no other."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += broker.stuck == attack.outcome.connections
        return now

    with served(Broker(0)) as broker:
        attack = Attack(Toy("aaas"), broker.port, 1, connections=1, look_s=0.01, clock=clock)
        attack.run(iter(range(8)))
    assert attack.outcome.ends == {"answered": 6, "silent": 2}
    assert sorted(attack.outcome.silent) == [(3, "s"), (7, "s")]


def test_a_case_of_many_megabytes_goes_out_as_it_is_taken() -> None:
    class Large(Toy):
        def case(self, seed: int, number: int) -> Case:
            return Case("a", "t", self.opening, framed(b"a", number, bytes(8 << 20)) + framed(b"m"))

    attack, broker = attacked(Large("a"), cases=1)
    assert attack.outcome.ends == {"answered": 1} and broker.looked_at[0] == 1


def test_a_look_that_says_so_ends_it() -> None:
    with served(Broker(0)) as broker:
        attack = Attack(Toy("a"), broker.port, 1, look_s=0.0)
        attack.run(count(), lambda: attack.outcome.sent < 10)
    assert attack.outcome.sent >= 10
