"""Entries of a ledger straight from the bookies that hold them: the ranges of which a broker told the places, with a
permit for them.

Is: HTTP to one bookie for each part of a range, blocks merged from the stripes of an ensemble, and the next copy where
one fails. Isn't: who may read what (the broker decides, and the bookies verify its permit), or what is confirmed
(nothing is asked beyond what the broker named).
Invariants: nothing is given that was not verified against its checksum, its ledger, and its place, and each entry once,
in order; what no copy gives is a BookiesUnread, and says nothing about the entries: a broker can be asked for the rest.
A bookie that cannot be reached is not tried again by this process for a while, and where two in a row could not none
is, so an executor in another network waits for two. Memory is a block a stripe's bookie, and what the system's sockets
hold.
Source: docs/protocols/storage.md, "Reads without a broker".
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Generator, Iterator
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple

from heliograph.client.object_reader import fill
from heliograph.model.errors import CorruptData, StorageError, reason_of
from heliograph.model.roles.certificate_role import peer_identity
from heliograph.model.striping import Striping
from heliograph.wire.run import Run

_CONNECT_S = 1.0
_READ_S = 10.0
"""A bookie that gives nothing for so long is left for another copy. It also waits for its own disk, behind what is
being written.
"""
_AWAY_S, _AWAY_MAX_S = 30.0, 600.0
"""How long one that could not be reached is not tried again; four times as long each further time."""
_SILENT_MAX = 2
"""So many in a row of which nothing was heard, not even a refusal: this process is in another network, and would wait
for each bookie of the region.
"""
_BLOCK_BYTES_MAX = 64 << 20

_ALL = ""
_away: dict[str, tuple[float, float]] = {}
"""Address, or _ALL -> (until when it is not tried, for how long that was): of this process, as tasks come and go."""
_silent: set[str] = set()
"""Holds the bookies of which nothing was heard since anything was heard of one."""


class BookiesUnread(StorageError):
    """No copy of the range could be read from here to the end of what was asked for."""


class BookieRange(NamedTuple):
    """Where entries of `ledger` lie, through `last`.

    fragments: (first entry, addresses of the ensemble; "" where one has none). stride: 0 where every bookie has every
    entry. authority: PEM of who signs the bookies' certificates; "": they speak plainly.
    """

    ledger: int
    last: int
    permit: str
    region: str
    authority: str
    stride: int
    write_quorum: int
    fragments: tuple[tuple[int, tuple[str, ...]], ...]

    @classmethod
    def of(cls, ledger: int, place: dict[str, Any], region: str, authority: str) -> BookieRange:
        fragments = tuple((first, tuple(addresses)) for first, addresses in place["fragments"])
        return cls(
            ledger, place["last"], place["permit"], region, authority, place["stride"], place["write_quorum"], fragments
        )


def read_bookies(
    where: BookieRange, first: int, last: int, first_copy: int = 0
) -> Generator[tuple[int, Run], None, None]:
    """(first entry, run) from `first` to `last`, both included, in order. Raises BookiesUnread, as early as at the
    first run.

    first_copy: which of the copies is asked first: readers of several ranges take another one each time.
    """
    at = first
    try:
        for number, (start, addresses) in enumerate(where.fragments):
            behind = where.fragments[number + 1][0] if number + 1 < len(where.fragments) else where.last + 1
            if start <= at < behind and at <= last:
                ensemble = _Ensemble(where, addresses, first_copy)
                try:
                    for found, run in ensemble.read(at, min(last, behind - 1)):
                        yield found, run
                        at = found + run.count
                finally:
                    ensemble.close()
    except (OSError, EOFError, HTTPException, ValueError, CorruptData) as error:
        raise BookiesUnread(f"ledger {where.ledger} from entry {at}: {reason_of(error)}") from error
    if at <= last:
        raise BookiesUnread(f"ledger {where.ledger}: entries from {at} on are named nowhere")


class _Ensemble:
    """The bookies of one fragment. Each write set of its striping is read from one of its places, by an answer that may
    serve several sets.
    """

    def __init__(self, where: BookieRange, addresses: tuple[str, ...], first_copy: int) -> None:
        self._where, self._addresses, self._stride = where, addresses, where.stride
        self._striping = Striping(len(addresses), where.write_quorum, where.stride or 1)
        firsts = [first_copy % where.write_quorum for _ in self._striping.sets]
        self._left = [[*places[n:], *places[:n]] for n, places in zip(firsts, self._striping.sets, strict=True)]
        """By set, the places that are still to be asked, the next one first."""
        self._answers: dict[int, _Answer] = {}
        """By set, who gives its entries."""
        self._why = "no bookie can be reached"

    def read(self, at: int, last: int) -> Iterator[tuple[int, Run]]:
        while at <= last:
            one = at // self._stride % len(self._left) if len(self._left) > 1 else 0
            answer = self._answers.get(one)
            try:
                if answer is None:
                    answer = self._open(one, at, last)
                start, run = answer.block(at)
            except (OSError, EOFError, HTTPException, ValueError, CorruptData) as error:
                self._why = reason_of(error)
                self._leave(one, answer)
                continue
            if run.seal is not None:
                raise CorruptData("its entries are encrypted at rest: only a broker can open them")
            stop = min(run.count, min(last, self._striping.last(at)) - start + 1)
            yield at, run.cut(at - start, stop)
            at = start + stop

    def _open(self, one: int, at: int, last: int) -> _Answer:
        """An answer for that set, and for all others that nobody serves and that would ask the same bookie. Raises
        BookiesUnread where no place is left.
        """
        for left in self._left:
            while left and not _reachable(self._addresses[left[0]]):
                left.pop(0)
        if not self._left[one]:
            raise BookiesUnread(
                f"entry {at} of ledger {self._where.ledger}: no copy can be read from here: {self._why}"
            )
        place = self._left[one][0]
        sets = [n for n, left in enumerate(self._left) if n not in self._answers and left and left[0] == place]
        stripes = (
            f"&stride={self._stride}&width={len(self._left)}&sets={','.join(map(str, sets))}"
            if len(self._left) > 1
            else ""
        )
        answer = _Answer(self._where, self._addresses[place], f"{self._where.permit}&at={at}&through={last}{stripes}")
        self._answers |= dict.fromkeys(sets, answer)
        return answer

    def _leave(self, one: int, answer: _Answer | None) -> None:
        """What was asked last for that set is not asked again, for this fragment."""
        if answer is None:
            self._left[one].pop(0)
            return
        answer.close()
        for served in [n for n, other in self._answers.items() if other is answer]:
            del self._answers[served]
            self._left[served].pop(0)

    def close(self) -> None:
        for answer in self._answers.values():
            answer.close()


class _Answer:
    """A bookie's blocks of some sets, ascending. Raises OSError, HTTPException."""

    def __init__(self, where: BookieRange, address: str, query: str) -> None:
        from heliograph.wire.block import decode_block  # not before entries are read: a planner only names places

        self._ledger, self._decode = where.ledger, decode_block
        self._connection = _connected(where, address)
        try:
            self._connection.request("GET", f"/entries?{query}")
            self._answer: HTTPResponse = self._connection.getresponse()
            if self._answer.status != 200:
                raise OSError(
                    f"the bookie at {address} answers {self._answer.status}: "
                    f"{self._answer.read(500).decode(errors='replace').strip()}"
                )
        except (OSError, UnicodeError, HTTPException):
            self._connection.close()
            raise

    def block(self, at: int) -> tuple[int, Run]:
        """(first entry, run) of the next one, which must hold `at`. Raises EOFError, CorruptData too."""
        readinto = self._answer.readinto
        head = fill(readinto, bytearray(8))
        size = int.from_bytes(head[4:8], "big")
        if not 48 <= size <= _BLOCK_BYTES_MAX:
            raise CorruptData("it has no more entries here" if size == 0 else f"a block of {size} bytes")
        block = bytearray(size)
        block[:8] = head
        ledger, first, run = self._decode(fill(readinto, block, 8))
        if ledger != self._ledger or not first <= at < first + run.count:
            raise CorruptData(f"entry {ledger}:{first} lies where {self._ledger}:{at} is looked for")
        return first, run

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def _connected(where: BookieRange, address: str) -> HTTPConnection:
    """Raises OSError: then this process does not try it again for a while."""
    connection: HTTPConnection
    if where.authority:
        connection = HTTPSConnection(address, timeout=_CONNECT_S, context=_trusting(where.authority))
    else:
        connection = HTTPConnection(address, timeout=_CONNECT_S)
    try:
        connection.connect()
        if isinstance(connection.sock, ssl.SSLSocket) and peer_identity(connection.sock.getpeercert()) != (
            "bookie",
            where.region,
        ):
            raise ssl.SSLCertVerificationError(f"{address} is no bookie of {where.region}")
    except (OSError, UnicodeError) as error:
        connection.close()
        _leave(address)
        if isinstance(error, ConnectionError | ssl.SSLError):  # its host is there
            _silent.clear()
        else:
            _silent.add(address)
            if len(_silent) >= _SILENT_MAX:
                _silent.clear()
                _leave(_ALL)
        raise
    for heard in (address, _ALL):
        _away.pop(heard, None)
    _silent.clear()
    connection.sock.settimeout(_READ_S)
    return connection


def _leave(address: str) -> None:
    pause_s = min(4 * _away[address][1] if address in _away else _AWAY_S, _AWAY_MAX_S)
    _away[address] = time.monotonic() + pause_s, pause_s


def _reachable(address: str) -> bool:
    return bool(address) and all(one not in _away or time.monotonic() >= _away[one][0] for one in (address, _ALL))


def forget() -> None:
    """Which bookies could not be reached."""
    _away.clear()
    _silent.clear()


@lru_cache(8)
def _trusting(authority: str) -> ssl.SSLContext:
    """As inside an instance, the certificate's role and region count, not the host's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=authority)
    return context
