"""TreeBook: by which way each origin's entries reach a region, as the origin's own log says it.

Is: the record that names a tree, the trees of each origin in the order of their coordinates, and which of them governs
a coordinate. Isn't: the policy (`heliograph.model.configuration.replication_routes`), who writes a record
(`replicator.log.tree_planting`), or what is sent (`replicator.sending.link_sender`). A record is a hidden entry of the
origin's log, so it has a coordinate: what lies behind it goes by its tree, what lies before it (and the record itself)
by the one before. It travels with the entries, so whoever holds an entry knows the tree that governs it. Before the
first record, and for regions that a tree does not name, the origin delivers itself. A record with nothing before it is
*whole*: it governs itself, too.
Invariants: records of an origin ascend; of each origin the newest are kept, at most RECORDS_MAX in ORIGIN_BYTES_MAX:
the same in every region that has reached them.

A record: u8 version (2: a SKIP begins with 1), u8 whole, msgpack [region of the origin, {target: parent}]

Source: docs/protocols/links.md, "Topologies".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import crc32c
import msgpack

from heliograph.model.coordinates import Origin
from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.wire.run import FLAG_HIDDEN, FLAG_PASSING, FLAG_TREE, Run

VERSION = 2
RECORDS_MAX = 32
RECORD_BYTES_MAX = 16 << 10
"""A source plants no larger one."""
ORIGIN_BYTES_MAX = 32 << 10
"""So much is kept of an origin, but the newest two in any case: the one that governs what comes, and the one before."""
REGION_BYTES_MAX = 128 << 10
"""So much may be kept of all origins of a region: it is in the topic's stored state."""
_ROW_BYTES = 40
"""What is stored with a record: its origin, and its coordinate."""
ENDS_MAX = 64
_REGIONS_MAX = 1024
_FLAGS = FLAG_HIDDEN | FLAG_TREE


class Tree:
    """`parents`: target -> region that delivers to it; who is not named gets everything from `root`, the origin's
    region.
    """

    __slots__ = ("_reach", "_size", "parents", "root", "whole")

    def __init__(self, root: str, parents: Mapping[str, str], whole: bool = False) -> None:
        self.root, self.parents, self.whole = root, dict(parents), whole
        self._reach: dict[str, frozenset[str]] = {}
        self._size = 0

    @property
    def size_bytes(self) -> int:
        """What its record takes in the topic's stored state, at most."""
        self._size = self._size or len(self.encode()) + _ROW_BYTES
        return self._size

    def parent(self, region: str) -> str:
        return self.parents.get(region, self.root)

    def reach(self, region: str) -> frozenset[str]:
        """`region`, and everyone who gets the origin's entries through it."""
        found = self._reach.get(region)
        if found is None:
            reached = {region}
            for _ in self.parents:
                reached |= {target for target, parent in self.parents.items() if parent in reached}
            found = self._reach[region] = frozenset(reached)
        return found

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb([self.root, self.parents])
        return bytes((VERSION, self.whole)) + packed

    @classmethod
    def decode(cls, blob: Any) -> Tree:
        """Reads a record as it lies in a hidden entry. Raises CorruptData."""
        view = memoryview(blob)
        if len(view) < 3 or view[0] != VERSION or view[1] > 1:
            raise CorruptData(f"tree record: {len(view)} bytes that do not begin with version {VERSION}")
        try:
            root, parents = msgpack.unpackb(view[2:])
            names = [root, *parents, *parents.values()]
        except (ValueError, TypeError, AttributeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"tree record: {error}") from error
        if len(names) > 2 * _REGIONS_MAX or not all(isinstance(name, str) and 0 < len(name) <= 256 for name in names):
            raise CorruptData("tree record: expected names of regions")
        return cls(root, parents, bool(view[1]))

    def as_run(self) -> Run:
        """The hidden entry that holds it: of no message."""
        blob = self.encode()
        return Run([blob], [len(blob)], counts=(0,), flags=(_FLAGS,))


def is_tree(run: Run) -> bool:
    """Records are runs of their own."""
    return run.flags is not None and run.flags[0] & _FLAGS == _FLAGS


def is_skip(run: Run) -> bool:
    """Says whether a hidden run that belongs to no transaction holds a SKIP."""
    return run.flags is not None and run.flags[0] & (FLAG_HIDDEN | FLAG_TREE | FLAG_PASSING) == FLAG_HIDDEN


def tree_checksum(run: Run) -> int:
    return int(crc32c.crc32c(run.parts[0]))


class TreeBook:
    """Holds the trees of one topic, by origin. Empty where every origin delivers itself."""

    __slots__ = ("_ends", "_last", "_of")

    def __init__(self) -> None:
        self._of: dict[Origin, list[tuple[Position, Tree]]] = NOTHING
        self._ends: dict[int, int] = NOTHING
        """Ledger of this region -> its last entry, of the newest that were ended."""
        self._last: Position | None = None

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, origin: Origin) -> bool:
        return origin in self._of

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._of)

    def note(self, origin: Origin, at: Position, tree: Tree) -> None:
        """A record of `origin` at its coordinate `at` is durable here. Replayed again it changes nothing."""
        self._of = own(self._of)
        found = self._of.setdefault(origin, [])
        if not found or found[-1][0] < at:
            found.append((at, tree))
            self._of[origin] = _kept(found)

    def with_records(self, origin: Origin, records: Iterable[Run]) -> TreeBook:
        """A book of `origin` alone, which knows those that came, too. Raises CorruptData."""
        book = TreeBook()
        for at, tree in self._of.get(origin, ()):
            book.note(origin, at, tree)
        for at, run in sorted({run.coordinate(0): run for run in records}.items()):
            book.note(origin, at, Tree.decode(run.parts[0]))
        return book

    def uses(self, origin: Origin, parent: str, target: str, prefix: Position) -> bool:
        """Whether something of `origin` that `target`, whose prefix is `prefix`, does not have comes to it from
        `parent`, now or later.
        """
        found = self._of.get(origin, [])
        index = max(0, bisect_right(found, prefix, key=_at) - 1)
        return any(tree.parent(target) == parent for _, tree in found[index:])

    def hands_on(self, origin: Origin, by: str, target: str) -> bool:
        """Whether `target` gets, or got, something of `origin` by way of `by`, which is another region than the
        origin's.
        """
        return by != target and any(
            by != tree.root and target in tree.reach(by) for _, tree in self._of.get(origin, ())
        )

    def newest(self, origin: Origin) -> Tree | None:
        found = self._of.get(origin)
        return found[-1][1] if found else None

    def newest_at(self, origin: Origin) -> Position | None:
        """The coordinate of its record."""
        found = self._of.get(origin)
        return found[-1][0] if found else None

    def behind(self, origin: Origin, prefix: Position) -> int:
        """How many records of `origin` a region has not reached whose prefix is `prefix`."""
        found = self._of.get(origin, [])
        return len(found) - bisect_right(found, prefix, key=_at)

    def behind_bytes(self, origin: Origin, prefix: Position) -> int:
        """What these take, and the one before them, by which goes what such a region lacks first."""
        found = self._of.get(origin, [])
        return sum(tree.size_bytes for _, tree in found[max(0, bisect_right(found, prefix, key=_at) - 1) :])

    def next_record(self, origin: Origin, after: Position) -> Position | None:
        """The coordinate of the first record above `after`."""
        found = self._of.get(origin, [])
        index = bisect_right(found, after, key=_at)
        return found[index][0] if index < len(found) else None

    def record(self, origin: Origin, at: Position) -> Run:
        """The record at coordinate `at` as a link sends it."""
        found = self._of[origin]
        run = found[bisect_left(found, at, key=_at)][1].as_run()
        run.origin, run.spans = origin, ((*at, 1),)
        run.checksums = [tree_checksum(run)]
        return run

    def records(self, origin: Origin, after: Position, through: Position) -> list[Run]:
        """Those in (after, through], as a link sends them."""
        return [self.record(origin, at) for at, _ in self._of.get(origin, ()) if after < at <= through]

    def governing(self, origin: Origin, at: Position) -> Tree | None:
        """By which the entry at coordinate `at` goes; None: the origin delivers itself."""
        found = self._of.get(origin)
        if not found:
            return None
        return self._before(found, bisect_left(found, at, key=_at))

    def following(self, origin: Origin, prefix: Position) -> Tree | None:
        """By which goes what lies next above `prefix`; None: the origin delivers itself."""
        found = self._of.get(origin)
        if not found:
            return None
        return self._before(found, bisect_right(found, prefix, key=_at))

    @staticmethod
    def _before(found: list[tuple[Position, Tree]], index: int) -> Tree | None:
        if index:
            return found[index - 1][1]
        return found[0][1] if found[0][1].whole else None

    def size_with(self, origin: Origin, at: Position, tree: Tree) -> int:
        """What the records of all origins of that region take once this one is noted, too."""
        books = {other: found for other, found in self._of.items() if other[0] == origin[0]}
        found = books.get(origin, [])
        if not found or found[-1][0] < at:
            books[origin] = _kept([*found, (at, tree)])
        return sum(tree.size_bytes for found in books.values() for _, tree in found)

    # -- where this region's ledgers end -------------------------------------------------------------------------------

    def stored(self, ledger: int, last: int) -> None:
        """Something is durable up to (ledger, last): in order."""
        if self._last is not None and self._last[0] != ledger:
            self._ends = own(self._ends)
            self._ends[self._last[0]] = self._last[1]
            while len(self._ends) > ENDS_MAX:
                del self._ends[next(iter(self._ends))]
        self._last = (ledger, last)

    def adjacent(self, mark: Position, first: Position) -> bool:
        """Whether surely nothing lies between `mark` and `first`."""
        if first <= (mark[0], mark[1] + 1):
            return True
        following = [
            ledger
            for ledger in (*self._ends, *((self._last[0],) if self._last is not None else ()))
            if ledger > mark[0]
        ]
        return first[1] == 0 and self._ends.get(mark[0]) == mark[1] and first[0] <= min(following, default=first[0])

    # -- the stored state ----------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        records = [[*origin, *at, tree.encode()] for origin, found in self._of.items() for at, tree in found]
        return [records, sorted(self._ends.items()), self._last]

    @classmethod
    def load(cls, dumped: list[Any]) -> TreeBook:
        """Reads what `dump` made. Raises CorruptData where a record is damaged."""
        book = cls()
        records, ends, last = dumped[:3]
        for region, epoch, incarnation, ledger, entry, blob in records:
            book.note((region, epoch, incarnation), (ledger, entry), Tree.decode(blob))
        book._ends = dict(ends)
        book._last = (last[0], last[1]) if last is not None else None
        return book


def _kept(found: list[tuple[Position, Tree]]) -> list[tuple[Position, Tree]]:
    """found: ascending. The newest of them; after one more it is the same, whatever went before."""
    size, kept = 0, 0
    for _, tree in reversed(found[-RECORDS_MAX:]):
        size += tree.size_bytes
        if size > ORIGIN_BYTES_MAX and kept >= 2:
            break
        kept += 1
    return found[-kept:]


def _at(record: tuple[Position, Tree]) -> Position:
    return record[0]
