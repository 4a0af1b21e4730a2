"""Ranges of entries that a bookie gives over HTTP to whoever shows a broker's permit: GET /entries.

Is: the verification of one request, and the blocks that answer it, read and sent a megabyte at a time. Isn't: a socket
(`http_face`), or the order in which reads and writes have the disk (`storage.bookie.entry_log.disk_reads`: a reader
from here waits behind records as a broker does).
Invariants: nothing goes out without a permit that covers it, and nothing that is encrypted at rest; blocks go as they
are stored, and are not looked into; what is sent and not taken is bounded, and an answer of which nothing is taken for
a while is broken off. Few answers at a time: a bookie is there for its writers first. The mark at the end says that
this was all; an answer without it was broken off, or met a hole.

    GET /entries?{permit}&at=first[&through=last][&stride=entries&width=bookies&sets=0,2]   200, blocks, 8 bytes 0
    400, 403, 404 (no such ledger, or entry), 503 (too many, or it cannot tell)             JSON, `reason`
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import parse_qsl

from heliograph.runtime.disk import Buffer
from heliograph.wire.block import is_sealed, peek_block
from heliograph.wire.bookie_frames import BookieCode
from region_node.security.read_permits import PermitRefused, ReadKeys, number

if TYPE_CHECKING:
    from storage.bookie.serving.bookie import Bookie

_READ_BYTES = 1 << 20
_STRIPES_A_READ = 256
_WIDTH_MAX = 1000
_STALLED_S = 60.0
REASONS = ("malformed", "forged", "expired", "busy")
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n\r\n"
_END = b"\0" * 8
_STATUS = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 503: "Service Unavailable"}


class Wire(Protocol):
    """The connection, as its answer sees it: asyncio's transport."""

    def writelines(self, list_of_data: Sequence[Buffer]) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Later(Protocol):
    """The part of an event loop that is used."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Cancels: ...


class Cancels(Protocol):
    def cancel(self) -> None: ...


class Wanted(NamedTuple):
    """Entries [at, last] of a ledger; with a stride, of these only the stripes whose numbers modulo `width` are in
    `sets`.
    """

    ledger: int
    at: int
    last: int
    stride: int
    width: int
    sets: frozenset[int]

    def ranges(self, at: int) -> Iterator[tuple[int, int]]:
        while at <= self.last:
            end = min(self.last, at - at % self.stride + self.stride - 1) if self.stride else self.last
            if not self.stride or at // self.stride % self.width in self.sets:
                yield at, end
            at = end + 1


class RangeReads:
    """Begins the answers of one bookie, at most `answers_max` at a time, and counts them. `open`: answers under way;
    `answers`: those that were given whole; `refused`: by one of REASONS.
    """

    def __init__(self, bookie: Bookie, keys: ReadKeys, answers_max: int) -> None:
        self.bookie, self._keys, self._answers_max = bookie, keys, answers_max
        self.open = self.answers = self.sent_bytes = 0
        self.refused: Counter[str] = Counter()

    def begin(self, query: str, wire: Wire, loop: Later) -> RangeAnswer | None:
        """To be started. None: it was refused, and that was said."""
        try:
            wanted = self._wanted(dict(parse_qsl(query)))
        except PermitRefused as error:
            self.refused[error.reason] += 1
            say(wire, 400 if error.reason == "malformed" else 403, str(error))
            return None
        if self.open >= self._answers_max:
            self.refused["busy"] += 1
            say(wire, 503, f"{self._answers_max} readers are being answered; ask another bookie, or a broker")
            return None
        return RangeAnswer(self, wanted, wire, loop)

    def _wanted(self, given: dict[str, str]) -> Wanted:
        permit = self._keys.check(given)
        at = number(given, "at")
        last = number(given, "through") if "through" in given else permit.last
        if not permit.first <= at <= last <= permit.last:
            raise PermitRefused(
                "forged", f"the permit is for entries {permit.first} to {permit.last}, not for {at} to {last}"
            )
        if "stride" not in given:
            return Wanted(permit.ledger, at, last, 0, 1, frozenset())
        stride, width = number(given, "stride"), number(given, "width")
        sets = frozenset(
            int(part)
            for part in given.get("sets", "").split(",")
            if part.isascii() and part.isdigit() and len(part) < 5
        )
        if not stride or not 1 <= width <= _WIDTH_MAX or not sets or max(sets) >= width:
            raise PermitRefused(
                "malformed", "stripes are told as stride, width, and sets: some of the numbers below width"
            )
        return Wanted(permit.ledger, at, last, stride, width, sets)


class RangeAnswer:
    """One answer on its way: the `Peer` of the bookie's reads."""

    def __init__(self, reads: RangeReads, wanted: Wanted, wire: Wire, loop: Later) -> None:
        self.refused: dict[int, int] = {}
        self._reads, self._wanted, self._wire, self._loop, self._at = reads, wanted, wire, loop, wanted.at
        self._begun = self._ended = self._slow = self._reading = False
        self._stalled: Cancels | None = None

    def start(self) -> None:
        self._reads.open += 1
        self._next()

    # -- from the connection ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self._slow = True
        if self._stalled is None:
            self._stalled = self._loop.call_later(_STALLED_S, self._wire.abort)

    def resume(self) -> None:
        if self._ended:
            return  # its rest must be taken in time, too
        self._slow = False
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self._next()

    def gone(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._end()

    # -- from the bookie ----------------------------------------------------------------------------------------------

    def answer(self, request: int, code: BookieCode, entry: int, value: int, body: Sequence[Buffer]) -> None:
        """value: 1 where more of the same read follows."""
        if self._ended:
            return
        if code != BookieCode.OK:
            self._break(
                404 if code in (BookieCode.NO_SUCH_LEDGER, BookieCode.NO_SUCH_ENTRY) else 503,
                bytes(body[0]).decode() if body else code.name,
            )
            return
        sealed = next((at for at, block in enumerate(body) if is_sealed(block)), -1)
        if sealed >= 0:
            body = body[:sealed]
        if body:
            self._send(body)
            _, first, count = peek_block(body[-1])
            self._at = first + count
        if sealed >= 0:
            self._break(404, "these entries are encrypted at rest: a broker can open them")
        elif not value:
            self._reading = False
            self._loop.call_soon(self._next)  # other connections have their turn between two reads

    def acked(self, ledger: int, writer: int, through: int) -> None: ...

    def flush(self) -> None: ...

    def lost(self, ledger: int, writer: int, code: BookieCode, text: str) -> None: ...

    def _next(self) -> None:
        if self._ended or self._slow or self._reading:
            return
        ranges = list(islice(self._wanted.ranges(self._at), _STRIPES_A_READ))
        if ranges:
            self._reading = True
            self._reads.bookie.read_ranges(self._wanted.ledger, ranges, _READ_BYTES, self)
            return
        self._send((_END,))
        self._reads.answers += 1
        self._close()

    def _send(self, body: Sequence[Buffer]) -> None:
        self._reads.sent_bytes += sum(map(len, body))
        self._wire.writelines(body if self._begun else [_HEAD, *body])
        self._begun = True

    def _break(self, status: int, text: str) -> None:
        """Without the mark: what was sent is not all."""
        if self._begun:
            self._close()
        else:
            self._end()
            say(self._wire, status, text)

    def _close(self) -> None:
        """Once what was sent is taken."""
        self._end()
        if self._stalled is None:
            self._stalled = self._loop.call_later(_STALLED_S, self._wire.abort)
        self._wire.close()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._reads.open -= 1


def say(wire: Wire, status: int, text: str) -> None:
    body = json.dumps({"reason": text}).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: application/json\r\nContent-Length: "
        f"{len(body)}\r\nConnection: close\r\n\r\n"
    )
    wire.writelines([head.encode(), body])
    wire.close()
