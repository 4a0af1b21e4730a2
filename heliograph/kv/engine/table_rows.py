"""The rows of a machine's table, by key: the port behind which they lie in memory or in an embedded store.

Is: what KvMachine asks of its rows, rows in memory, and how many keys lie under which prefix. Isn't: commands,
snapshots, or a store (`heliograph.kv.engine.layered_rows`).
Invariants: keys come in the order of their code points; an iterator is not held over a change.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from heliograph.model.errors import NotAllowed

Row = tuple[bytes, int, int]
"""(value, version, lease or 0)."""
COUNTED_PARTS = 3
"""Keys are counted by their first parts: `/ml/public/default/…` under `/ml/public/default/`."""


class TableRows(Protocol):
    """What a table needs. Reads raise CorruptData where what they find is damaged."""

    def get(self, key: str) -> Row | None: ...

    def set(self, key: str, row: Row) -> None: ...

    def remove(self, key: str) -> None:
        """Takes the row out; the key must be there."""
        ...

    def items(self, start: str, end: str) -> Iterator[tuple[str, Row]]:
        """The rows of the keys in [start, end), in order."""
        ...


class SortedKeys:
    """An ordered set of strings in blocks: insert and remove in O(log n + block), ranges in O(log n + k)."""

    BLOCK = 512

    def __init__(self, keys: list[str] | None = None) -> None:
        """keys: they must be sorted and distinct."""
        keys = keys or []
        self._blocks = [keys[i : i + self.BLOCK] for i in range(0, len(keys), self.BLOCK)]
        self._lasts = [block[-1] for block in self._blocks]

    def add(self, key: str) -> None:
        """`key` must not be there."""
        if not self._blocks:
            self._blocks, self._lasts = [[key]], [key]
            return
        at = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        block = self._blocks[at]
        insort(block, key)
        if len(block) > 2 * self.BLOCK:
            self._blocks[at : at + 1] = [block[: self.BLOCK], block[self.BLOCK :]]
            self._lasts[at : at + 1] = [block[self.BLOCK - 1], block[-1]]
        else:
            self._lasts[at] = block[-1]

    def remove(self, key: str) -> None:
        """Takes the key out; it must be there."""
        at = bisect_left(self._lasts, key)
        block = self._blocks[at]
        index = bisect_left(block, key)
        assert block[index] == key
        del block[index]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._blocks)

    def between(self, start: str, end: str) -> Iterator[str]:
        """The keys in [start, end), in order. Not to be held over a change."""
        at = bisect_left(self._lasts, start)
        if at == len(self._blocks):
            return
        index = bisect_left(self._blocks[at], start)
        for block in self._blocks[at:]:
            for key in block[index:]:
                if key >= end:
                    return
                yield key
            index = 0


class MemoryRows:
    """Rows in memory: they are gone with the process, and made again from a snapshot and the log."""

    def __init__(self, table: dict[str, Row] | None = None) -> None:
        """table: it is taken over, not copied; the caller lets it alone."""
        self._table = {} if table is None else table
        self._keys = SortedKeys(sorted(self._table))

    def get(self, key: str) -> Row | None:
        return self._table.get(key)

    def set(self, key: str, row: Row) -> None:
        if key not in self._table:
            self._keys.add(key)
        self._table[key] = row

    def remove(self, key: str) -> None:
        del self._table[key]
        self._keys.remove(key)

    def items(self, start: str, end: str) -> Iterator[tuple[str, Row]]:
        table = self._table
        return ((key, table[key]) for key in self._keys.between(start, end))


class KeyCounts:
    """How many keys there are, in all and under each prefix of COUNTED_PARTS parts."""

    def __init__(self, total: int = 0, under: dict[str, int] | None = None) -> None:
        """under: it is taken over, not copied; the caller lets it alone."""
        self.total = total
        self._under = {} if under is None else under
        self._changed: dict[str, None] = {}

    def add(self, key: str, by: int = 1) -> None:
        """by: 1, or -1 where `key` went."""
        self.total += by
        parts = key.split("/", COUNTED_PARTS + 1)
        if len(parts) == COUNTED_PARTS + 2 and not parts[0]:
            prefix = key[: len(key) - len(parts[-1])]
            count = self._under.get(prefix, 0) + by
            if count:
                self._under[prefix] = count
            else:
                self._under.pop(prefix, None)
            self._changed[prefix] = None

    def under(self, prefix: str) -> int:
        """Raises NotAllowed where keys are not counted by this prefix."""
        if len(prefix.split("/")) != COUNTED_PARTS + 2 or not (prefix.startswith("/") and prefix.endswith("/")):
            raise NotAllowed(
                f"prefix {prefix[:200]!r}: keys are counted by their first {COUNTED_PARTS} parts, as in "
                "/ml/tenant/namespace/"
            )
        return self._under.get(prefix, 0)

    def take_changed(self) -> dict[str, int]:
        """What has changed since the last call: prefix -> count, 0 where no key is left."""
        changed = {prefix: self._under.get(prefix, 0) for prefix in self._changed}
        self._changed = {}
        return changed

    def give_back(self, changed: dict[str, int]) -> None:
        """What `take_changed` told was of no use: it is told again."""
        self._changed.update(dict.fromkeys(changed))
