"""LayeredRows: what was applied lately in memory, above an embedded store that holds the rest.

Is: rows whose changes gather in a layer, and go to the store layer by layer, in one batch each. Isn't: the store, or a
decision when to do so.
Invariants: a read finds what was written last, wherever it lies; the store never holds part of a layer; a layer that
could not be stored (a full disk) is still read, and goes with the next.
"""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.kv.engine.table_rows import Row, SortedKeys
from heliograph.kv.engine.table_store import Done, TableBatch, TableStore

_ROW_BYTES = 200
"""What a row costs in memory beside its key and value."""


class _Layer:
    __slots__ = ("keys", "rows", "size_bytes")

    def __init__(self) -> None:
        self.rows: dict[str, Row | None] = {}
        self.keys = SortedKeys()
        self.size_bytes = 0

    def put(self, key: str, row: Row | None) -> None:
        """Puts a row above the lower layers' one; None: the key is gone."""
        if key not in self.rows:
            self.keys.add(key)
            self.size_bytes += _ROW_BYTES + len(key)
        self.rows[key] = row
        self.size_bytes += 0 if row is None else len(row[0])

    def items(self, start: str, end: str) -> Iterator[tuple[str, Row | None]]:
        rows = self.rows
        return ((key, rows[key]) for key in self.keys.between(start, end))


class LayeredRows:
    """Implements heliograph.kv.engine.table_rows.TableRows."""

    def __init__(self, store: TableStore) -> None:
        self.store = store
        self._active, self._leaving = _Layer(), _Layer()
        self.saving = False

    @property
    def unsaved_bytes(self) -> int:
        """Says about how much memory the layers take; never too little."""
        return self._active.size_bytes + self._leaving.size_bytes

    def get(self, key: str) -> Row | None:
        for layer in (self._active, self._leaving):
            if key in layer.rows:
                return layer.rows[key]
        return self.store.get(key)

    def set(self, key: str, row: Row) -> None:
        self._active.put(key, row)

    def remove(self, key: str) -> None:
        self._active.put(key, None)

    def items(self, start: str, end: str) -> Iterator[tuple[str, Row]]:
        found: Iterator[tuple[str, Row | None]] = iter(self.store.items(start, end))
        for layer in (self._leaving, self._active):
            if layer.rows:
                found = _above(layer.items(start, end), found)
        return ((key, row) for key, row in found if row is not None)

    def save(self, mark: bytes, counts: dict[str, int], done: Done) -> None:
        """Hands everything over; one at a time. done(error): it was not stored, and is still here."""
        assert not self.saving
        self.saving = True
        self._leaving, self._active = self._active, _Layer()

        def saved(error: BaseException | None) -> None:
            self.saving = False
            if error is not None:
                for key, row in self._active.rows.items():
                    self._leaving.put(key, row)
                self._active = self._leaving
            self._leaving = _Layer()
            done(error)

        self.store.commit(TableBatch(self._leaving.rows, counts, mark), saved)

    def drop_layers(self) -> None:
        """The store's table was replaced as a whole."""
        assert not self.saving
        self._active = _Layer()


def _above(
    upper: Iterator[tuple[str, Row | None]], lower: Iterator[tuple[str, Row | None]]
) -> Iterator[tuple[str, Row | None]]:
    """Both in order, in order; where both have a key, the upper one's."""
    below = next(lower, None)
    for key, row in upper:
        while below is not None and below[0] < key:
            yield below
            below = next(lower, None)
        if below is not None and below[0] == key:
            below = next(lower, None)
        yield key, row
    while below is not None:
        yield below
        below = next(lower, None)
