"""Sticky keys: which consumer of a Key_Shared subscription a message belongs to. Cores.

Is: the hash of an entry's key, and the three ways to divide the hashes among consumers. Isn't: permits, order, or
dispatch.
Invariants: while there is a consumer, `AutoSplit` and `ConsistentHash` give each hash to exactly one; ranges of
`Sticky` never overlap.
Source: docs/protocols/pulsar.md, "Key_Shared"; the hash is Murmur3 (32 bits, seed 0, sign bit cleared) modulo 65536.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

from heliograph.model.errors import ConsumerAssignError, CorruptData
from heliograph.wire.pulsar.entry_metadata import as_bytes, entry_metadata
from heliograph.wire.run import Buffer
from region_node.subscriptions.consumer import Consumer

HASHES = 65536
RING_POINTS = 100
RANGES_MAX = 1000
"""Ranges that one sticky consumer may name."""
KEY_BYTES = 64
"""What is remembered of a key at most."""
KEY_HASHED_MAX = 1024
"""Bytes of a key that is hashed as it is: Murmur3 goes word by word, and of a key of 5 MB that takes a second."""
_MASK = 0xFFFFFFFF


def murmur3_32(data: bytes) -> int:
    """MurmurHash3 x86 of 32 bits, seed 0."""
    value, whole = 0, len(data) & ~3
    for at in range(0, whole, 4):
        value ^= _mix(int.from_bytes(data[at : at + 4], "little"))
        value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        value ^= _mix(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


def _mix(word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    return (word << 15 & _MASK | word >> 17) * 0x1B873593 & _MASK


def key_hash(key: bytes) -> int:
    """Returns the hash by which a key has its consumer, 0 to 65535, as Pulsar computes it; of one of more than
    KEY_HASHED_MAX bytes that of its digest.
    """
    return (murmur3_32(key if len(key) <= KEY_HASHED_MAX else key_digest(key)) & 0x7FFFFFFF) % HASHES


def sticky_key(entry: Buffer) -> bytes:
    """The ordering key, else the partition key, else what no other entry has. An entry that cannot be read has the
    empty key.
    """
    try:
        metadata, _ = entry_metadata(entry)
    except CorruptData:
        return b""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = as_bytes(metadata.partition_key)
        if metadata.partition_key_b64_encoded:
            with contextlib.suppress(binascii.Error, ValueError):
                return base64.b64decode(key)
        return key
    return b"%b-%d" % (as_bytes(metadata.producer_name), metadata.sequence_id)


def key_digest(key: bytes) -> bytes:
    """Stands for a key, or for another name that a client gives, where it is remembered: a key may have megabytes."""
    return key if len(key) < KEY_BYTES else hashlib.blake2b(key, digest_size=KEY_BYTES).digest()


class HashRanges(Protocol):
    """How the hashes are divided."""

    def add(self, consumer: Consumer) -> None: ...

    def remove(self, *consumers: Consumer) -> None: ...

    def owner(self, key_hash: int) -> Consumer | None: ...

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        """Its hashes, as (first, last)."""
        ...


class AutoSplit:
    """Who joins gets the lower half of the widest range; who goes leaves its range to the neighbour above, or below
    where there is none.
    """

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        if not self._ends:
            self._ends, self._owners = [HASHES - 1], [consumer]
            return
        widths = [end - (self._ends[i - 1] if i else -1) for i, end in enumerate(self._ends)]
        at = max(range(len(widths)), key=lambda i: (widths[i], -i))
        self._ends.insert(at, self._ends[at] - (widths[at] + 1) // 2)
        self._owners.insert(at, consumer)

    def remove(self, *consumers: Consumer) -> None:
        gone = set(consumers)
        left = [(end, owner) for end, owner in zip(self._ends, self._owners, strict=True) if owner not in gone]
        self._ends, self._owners = [end for end, _ in left], [owner for _, owner in left]
        if self._ends:
            self._ends[-1] = HASHES - 1

    def owner(self, key_hash: int) -> Consumer | None:
        return self._owners[bisect_left(self._ends, key_hash)] if self._ends else None

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        return [
            ((self._ends[i - 1] + 1 if i else 0), end)
            for i, end in enumerate(self._ends)
            if self._owners[i] is consumer
        ]


class ConsistentHash:
    """Each consumer has RING_POINTS points on the circle of hashes, by its name; a hash belongs to the next point at or
    after it.

    Who joins takes from all a little, who goes leaves to all a little, and who comes back with the same name has the
    same hashes again.
    Consumers of one name are told apart by a number, the lowest that is free. On a point that several have, the first
    by name counts.
    """

    def __init__(self) -> None:
        self._points: list[int] = []
        """In order; []: they are put in order when somebody asks."""
        self._owners: dict[int, list[tuple[str, int, Consumer]]] = {}
        self._numbers: dict[Consumer, int] = {}
        self._taken: dict[str, set[int]] = {}
        """Name -> numbers."""

    def add(self, consumer: Consumer) -> None:
        taken = self._taken.setdefault(consumer.name, set())
        number = self._numbers[consumer] = next(n for n in range(len(taken) + 1) if n not in taken)
        taken.add(number)
        for point in self._points_of(consumer.name, number):
            owners = self._owners.setdefault(point, [])
            owners.append((consumer.name, number, consumer))
            owners.sort(key=lambda row: row[:2])
        self._points = []

    def remove(self, *consumers: Consumer) -> None:
        for consumer in consumers:
            number = self._numbers.pop(consumer, None)
            if number is None:
                continue
            self._taken[consumer.name].remove(number)
            if not self._taken[consumer.name]:
                del self._taken[consumer.name]
            for point in self._points_of(consumer.name, number):
                self._owners[point] = [row for row in self._owners[point] if row[2] is not consumer]
                if not self._owners[point]:
                    del self._owners[point]
        self._points = []

    def _in_order(self) -> list[int]:
        self._points = sorted(self._owners)
        return self._points

    @staticmethod
    def _points_of(name: str, number: int) -> list[int]:
        return list(dict.fromkeys(key_hash(f"{name}\0{number}\0{index}".encode()) for index in range(RING_POINTS)))

    def owner(self, key_hash: int) -> Consumer | None:
        points = self._points or self._in_order()
        if not points:
            return None
        return self._owners[points[bisect_left(points, key_hash) % len(points)]][0][2]

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        out: list[tuple[int, int]] = []
        last = -1
        points = self._points or self._in_order()
        for point in [*points, HASHES - 1] if points else []:
            if point > last and self.owner(point) is consumer:
                if out and out[-1][1] == last:
                    out[-1] = (out[-1][0], point)
                else:
                    out.append((last + 1, point))
            last = point
        return out


class Sticky:
    """Each consumer says itself which ranges are its own (`Consumer.hash_ranges`); hashes of nobody wait."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._taken: list[tuple[int, int, Consumer]] = []

    def check(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Raises ConsumerAssignError where `ranges` are none, too many, out of bounds, or overlap each other or another
        consumer's.
        """
        if not ranges:
            raise ConsumerAssignError("a sticky Key_Shared consumer must name its hash ranges")
        if len(ranges) > RANGES_MAX:
            raise ConsumerAssignError(
                f"{len(ranges)} hash ranges; a consumer names at most {RANGES_MAX}: join those that lie side by side"
            )
        for first, last in ranges:
            if not 0 <= first <= last < HASHES:
                raise ConsumerAssignError(f"hash range [{first}, {last}] is not within [0, {HASHES - 1}]")
        before = -1, -1
        for first, last in sorted(ranges):
            at = bisect_right(self._starts, last) - 1
            low, high = before if first <= before[1] or at < 0 else self._taken[at][:2]
            if first <= high:
                raise ConsumerAssignError(f"hash range [{first}, {last}] overlaps [{low}, {high}]")
            before = first, last

    def add(self, consumer: Consumer) -> None:
        ranges = consumer.hash_ranges or ()
        self.check(ranges)
        self._taken = sorted([*self._taken, *((first, last, consumer) for first, last in ranges)], key=lambda t: t[0])
        self._starts = [first for first, _, _ in self._taken]

    def remove(self, *consumers: Consumer) -> None:
        gone = set(consumers)
        self._taken = [taken for taken in self._taken if taken[2] not in gone]
        self._starts = [first for first, _, _ in self._taken]

    def owner(self, key_hash: int) -> Consumer | None:
        at = bisect_right(self._starts, key_hash) - 1
        return self._taken[at][2] if at >= 0 and key_hash <= self._taken[at][1] else None

    def ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        return [(first, last) for first, last, owner in self._taken if owner is consumer]
