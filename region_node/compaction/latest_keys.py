"""LatestKeys: which messages of a topic are the last of their key, in bounded memory, however many keys there are. A
core.

Is: one bit a message ("stays"), and a table from keys to the last message seen, filled by reading the topic once; where
the keys are more than fit, by reading it again for the others. Isn't: reading, or the choice of what is a message
(`keyed_entries`).
Invariants: after the last pass exactly those messages have their bit that were given by `message` with a value and by
no later one of the same key, those of a chunked message likewise together, and those given by `keep`. Two keys are the
same where 128 bits of their hash are.
Cost: 24 bytes a key and its share of free places (about 45), one bit a message.

A number is given to each message in the order of reading, from 0; every pass must give the same ones.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from struct import Struct

_TABLES = 256
_HALVES = Struct("<QQ").unpack
_OPEN_CHUNKS_MAX = 100_000


class _Table:
    """Open addressing over three columns; small, so that doubling it is no pause."""

    __slots__ = ("_high", "_low", "_numbers", "_size", "used")

    def __init__(self) -> None:
        self._clear(16)

    def _clear(self, size: int) -> None:
        self._size, self.used = size, 0
        self._low, self._high, self._numbers = (
            array("Q", bytes(8 * size)),
            array("Q", bytes(8 * size)),
            array("q", b"\xff" * (8 * size)),
        )

    def put(self, low: int, high: int, number: int) -> int:
        """The number that the key had before, or -1."""
        mask, lows, numbers = self._size - 1, self._low, self._numbers
        at = high & mask
        while numbers[at] >= 0:
            if lows[at] == low and self._high[at] == high:
                before = numbers[at]
                numbers[at] = number
                return before
            at = (at + 1) & mask
        lows[at], self._high[at], numbers[at] = low, high, number
        self.used += 1
        if self.used * 3 > self._size * 2:
            self._grow()
        return -1

    def _grow(self) -> None:
        rows = [
            (low, high, number)
            for low, high, number in zip(self._low, self._high, self._numbers, strict=True)
            if number >= 0
        ]
        self._clear(2 * self._size)
        for row in rows:
            self.put(*row)


class LatestKeys:
    """keys_max: of one pass. Call `begin`, give every message, call `begin` again, until it returns False; then ask
    `stays`.
    """

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._bits = bytearray()
        self._tables: dict[int, _Table] = {}
        self._later = set(range(_TABLES))
        self._used = 0
        self.passes = 0
        self._chunks: dict[str, array[int]] = {}
        """Of messages whose last chunk is still to come: the numbers of those that came, the first at 0."""
        self._groups: dict[int, array[int]] = {}
        """Number of a last chunk -> those of the chunks before it."""

    def begin(self) -> bool:
        """Whether the topic must be read (once more)."""
        if not self._later:
            return False
        self._tables = {index: _Table() for index in self._later}
        self._later = set()
        self._used = 0
        self._chunks = {}
        self.passes += 1
        return True

    def keep(self, number: int) -> None:
        """Sets the bit of message `number` for good: no later message takes it away. It is for what has no key."""
        self._set(number)

    def message(self, number: int, key: bytes, *, tombstone: bool = False) -> None:
        before = self._put(number, key)
        if before is None:
            return
        if before >= 0:
            self._drop(before)
        if not tombstone:
            self._set(number)

    def chunk(self, number: int, key: bytes | None, uuid: str, index: int, count: int) -> None:
        """One of `count` pieces of a message: it stays with the others, as soon as the last of them is there. key None:
        nothing comes after it.
        """
        if index == 0:
            while len(self._chunks) >= _OPEN_CHUNKS_MAX:  # the oldest was never finished
                del self._chunks[next(iter(self._chunks))]
            self._chunks[uuid] = array("q")
        known = self._chunks.get(uuid)
        if (
            known is None or len(known) != index
        ):  # begun before what is there, or sent twice: no client can put it together
            self._chunks.pop(uuid, None)
            return
        known.append(number)
        if index < count - 1:
            return
        del self._chunks[uuid]
        if key is not None:
            before = self._put(number, key)
            if before is None:
                return
            if before >= 0:
                self._drop(before)
        self._groups[number] = known[:-1]
        for piece in known:
            self._set(piece)

    def stays(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bits) and bool(self._bits[at] & 1 << (number & 7))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _put(self, number: int, key: bytes) -> int | None:
        """The earlier message of that key, -1: none; None: another pass looks at this key."""
        low, high = _HALVES(blake2b(key, digest_size=16).digest())
        table = self._tables.get(low & _TABLES - 1)
        if table is None:
            return None
        had = table.used
        before = table.put(low, high, number)
        self._used += table.used - had
        if self._used > self._keys_max and len(self._tables) > 1:
            self._put_off()
        return before

    def _put_off(self) -> None:
        """Half of the keys are looked at in a later pass; what was marked of them is marked again then."""
        for index in list(self._tables)[len(self._tables) // 2 :]:
            self._used -= self._tables.pop(index).used
            self._later.add(index)

    def _set(self, number: int) -> None:
        at = number >> 3
        if at >= len(self._bits):
            self._bits.extend(bytes(max(4096, at + 1 - len(self._bits))))
        self._bits[at] |= 1 << (number & 7)

    def _drop(self, number: int) -> None:
        for piece in (number, *self._groups.pop(number, ())):
            at = piece >> 3
            if at < len(self._bits):
                self._bits[at] &= ~(1 << (piece & 7))
