"""Ranges straight from bookies that stop, lie, lack, and refuse: every entry once, in order, from whichever copies are
good; else a BookiesUnread.

Real HTTP servers stand for the bookies of an ensemble; what goes wrong is drawn from a seed.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from heliograph.client import bookie_reader
from heliograph.client.bookie_reader import BookieRange, BookiesUnread, read_bookies
from heliograph.model.striping import Striping
from heliograph.wire.block import encode_block, peek_block
from heliograph.wire.run import Run, Seal
from tests.heliograph.client.serving import Handler, Servers

LEDGER, STRIDE, LAST = 7, 8, 199
FAULTS = ("torn", "bad", "lacks", "other", "early", "403", "503")


def entry(number: int) -> bytes:
    return b"%d" % number * (number % 90 + 1)


def block(first: int, last: int, ledger: int = LEDGER) -> bytes:
    parts = [entry(number + ledger - LEDGER) for number in range(first, last + 1)]
    return b"".join(encode_block(Run(parts, [len(p) for p in parts]), ledger, first))


class Bookies:
    """striping: of their one ledger. faults: how many answers still go wrong, and at which of them."""

    def __init__(self, seed: int, width: int, write_quorum: int) -> None:
        self.striping, self.rng = Striping(width, write_quorum, STRIDE), random.Random(seed)
        self.faults, self.asked = dict.fromkeys(range(width), 0), [0] * width
        self.kinds: tuple[str, ...] = FAULTS
        self.wrong: list[str] = []
        everyone = self

        class Bookie(Handler):
            protocol_version = "HTTP/1.0"  # an answer ends with its connection

            def do_GET(self) -> None:
                me = everyone.servers.number(self.server)
                everyone.asked[me] += 1
                given = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
                fault = ""
                if everyone.faults[me]:
                    everyone.faults[me] -= 1
                    fault = everyone.rng.choice(everyone.kinds)
                if fault.isdigit():
                    self.send_error(int(fault))
                    return
                self.send_response(200)
                self.end_headers()
                pieces = everyone.pieces(me, given)
                at = everyone.rng.randrange(len(pieces))
                for number, piece in enumerate(pieces):
                    if number != at or not fault:
                        self.wfile.write(piece)
                    elif fault == "torn":
                        self.wfile.write(piece[: everyone.rng.randrange(len(piece))])
                        return
                    elif fault == "bad":
                        self.wfile.write(piece[:-1] + bytes([piece[-1] ^ 1]))
                    elif fault == "other":
                        _, first, count = peek_block(piece)
                        self.wfile.write(block(first, first + count - 1, LEDGER + 1))
                    elif fault == "early":
                        break
                self.wfile.write(b"\0" * 8)

        self.servers = Servers(Bookie, width)

    def pieces(self, me: int, given: dict[str, str]) -> list[bytes]:
        if given["permit"] != "p":
            self.wrong.append(f"the permit is {given['permit']}")
        sets = [int(one) for one in given["sets"].split(",")] if "sets" in given else []
        found, at, through = [], int(given["at"]), int(given["through"])
        while at <= through:
            stop = min(through, at + self.rng.randrange(12), self.striping.last(at))
            if not sets or at // STRIDE % self.striping.width in sets:
                if not self.striping.holds(me, at):
                    self.wrong.append(f"bookie {me} is asked for entry {at}, which lies elsewhere")
                begin = (
                    max(at - at % STRIDE, at - 2) if at == int(given["at"]) else at
                )  # the block that holds it may begin earlier
                found.append(block(begin, stop))
                at = stop + 1
            else:
                at += 1
        return found

    def where(self, **changed: Any) -> BookieRange:
        addresses = self.servers.addresses
        stride = STRIDE if len(addresses) > self.striping.write_quorum else 0
        return BookieRange(
            LEDGER, LAST, "permit=p", "us", "", stride, self.striping.write_quorum, ((0, addresses),)
        )._replace(**changed)


@pytest.fixture
def make() -> Iterator[Any]:
    made: list[Bookies] = []

    def one(seed: int, width: int, write_quorum: int) -> Bookies:
        made.append(Bookies(seed, width, write_quorum))
        return made[-1]

    yield one
    for some in made:
        some.servers.close()
        assert not some.wrong
    bookie_reader.forget()


def read(where: BookieRange, first: int, last: int, turn: int = 0) -> list[bytes]:
    found, at = [], first
    for start, run in read_bookies(where, first, last, turn):
        assert start == at, "a hole, or an entry twice"
        found += [bytes(part) for part in run.parts]
        at += run.count
    return found


@pytest.mark.parametrize(("width", "quorum"), [(1, 1), (3, 3), (3, 2), (5, 3)])
def test_copies_are_merged_from_their_stripes(make: Any, width: int, quorum: int) -> None:
    some = make(width, width, quorum)
    for turn, (first, last) in enumerate([(0, LAST), (3, 3), (5, 90), (64, 71), (LAST, LAST)]):
        assert read(some.where(), first, last, turn) == [entry(n) for n in range(first, last + 1)]


@pytest.mark.parametrize(("width", "quorum"), [(3, 3), (4, 2)])
def test_ranges_begin_at_different_copies(make: Any, width: int, quorum: int) -> None:
    some = make(1, width, quorum)
    for turn in range(12):
        read(some.where(), 0, 7, turn)
    assert sorted(some.asked) == ([4, 4, 4] if width == 3 else [0, 0, 6, 6]), "the stripe's places in turn"


@pytest.mark.parametrize("seed", range(24))
def test_what_one_copy_does_wrong_another_one_makes_up_for(make: Any, seed: int) -> None:
    """All bookies but one for each stripe fail, in any way, again and again."""
    width, quorum = ((3, 3), (3, 2), (5, 3))[seed % 3]
    some = make(seed, width, quorum)
    for me in random.Random(seed).sample(range(width), quorum - 1):
        some.faults[me] = 100
    assert read(some.where(), 2, 197, seed) == [entry(n) for n in range(2, 198)]


def test_where_no_copy_is_good_what_came_was_right_and_the_rest_is_left(make: Any) -> None:
    some = make(5, 3, 2)
    some.kinds, some.faults = ("bad",), dict.fromkeys(range(3), 100)
    found: list[bytes] = []
    with pytest.raises(BookiesUnread, match="no copy can be read from here: block: checksum mismatch"):
        for start, run in read_bookies(some.where(), 0, LAST):
            assert start == len(found)
            found += [bytes(part) for part in run.parts]
    assert found == [entry(n) for n in range(len(found))]


def test_fragments_follow_each_other_and_end_where_the_broker_said(make: Any) -> None:
    first, second = make(1, 3, 3), make(2, 3, 3)
    (before,), (behind,) = first.where().fragments, second.where().fragments
    where = first.where(fragments=((0, before[1]), (90, behind[1])))
    assert read(where, 80, 120) == [entry(n) for n in range(80, 121)] and sum(first.asked) == sum(second.asked) == 1
    with pytest.raises(BookiesUnread, match="entries from 90 on are named nowhere"):
        read(where._replace(fragments=where.fragments[:1], last=89), 80, 120)


def test_a_bookie_that_cannot_be_reached_is_tried_once_and_left_alone_for_a_while(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = make(1, 2, 2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    here = some.where().fragments[0][1][0]
    tried: list[str] = []
    genuine = bookie_reader.HTTPConnection.connect
    monkeypatch.setattr(
        bookie_reader.HTTPConnection,
        "connect",
        lambda self: (tried.append(f"{self.host}:{self.port}"), genuine(self))[1],
    )
    where = some.where(fragments=((0, (nobody, here)),))
    for _ in range(3):
        assert read(where, 0, 9) == [entry(n) for n in range(10)]
    assert tried == [nobody, here, here, here]
    with pytest.raises(BookiesUnread, match="no bookie can be reached"):
        read(some.where(fragments=((0, (nobody, "")),)), 0, 9)
    assert tried == [nobody, here, here, here], "nor is one without an address"


def test_in_another_network_two_bookies_are_waited_for_and_not_each_one(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    some, now = make(1, 2, 2), 1000.0
    tried: list[str] = []

    def connect(connection: Any) -> None:
        tried.append(connection.host)
        raise ConnectionRefusedError if connection.host == "down" else TimeoutError

    def asked(*names: str) -> list[str]:
        tried.clear()
        for number in range(0, len(names), 2):
            with pytest.raises(BookiesUnread):
                read(some.where(fragments=((0, names[number : number + 2]),)), 0, 9)
        return list(tried)

    monkeypatch.setattr(bookie_reader.time, "monotonic", lambda: now)
    with monkeypatch.context() as patch:
        patch.setattr(bookie_reader.HTTPConnection, "connect", connect)
        assert asked("a", "b", "c", "d") == ["a", "b"]
        now += 31
        assert asked("c", "d", "e", "f") == ["c", "d"] and asked("e", "f") == []
        now += 31
        assert asked("e", "f") == [], "it is left alone for longer each time"
        now += 100
        assert asked("e", "down", "f", "down") == ["e", "down", "f"], "who refuses is there"
    assert read(some.where(), 0, 9) and not bookie_reader._silent, "as does who answers"


def test_sealed_entries_are_left_to_brokers(make: Any) -> None:
    some = make(1, 2, 2)
    run = Run(None, (3,), body=memoryview(b"x" * 19), seal=Seal(1, 2, 0, 0))
    some.pieces = lambda me, given: [b"".join(encode_block(run, LEDGER, 0))]
    with pytest.raises(BookiesUnread, match="only a broker can open them"):
        read(some.where(), 0, 0)
    assert sum(some.asked) == 1, "another copy would be sealed, too"
