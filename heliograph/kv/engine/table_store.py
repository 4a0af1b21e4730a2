"""The port to an embedded store that keeps a table durably beside the log.

Is: what `heliograph.kv.engine.layered_rows` needs of one, and what it hands over. Isn't: a store (`lmdb_store`), or the
layers above it.
Invariants of an implementation: a batch is there whole or not at all, also after a power cut, and once `done(None)` was
called it is durable; reads show the state of the last batch whose `done` was called, until the next one's; batches are
taken one at a time. Damage raises CorruptData, at the latest where a row is read. OSError with ENOSPC: nothing of that
batch was stored, and a later one may succeed; any other OSError is final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from heliograph.kv.engine.table_rows import Row

Done = Callable[[BaseException | None], None]


@dataclass(slots=True)
class StoredTable:
    """What lies in a store. mark: as of its last batch; empty where there was none."""

    mark: bytes = b""
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableBatch:
    """rows: key -> row, None where it goes. counts: prefix -> count, 0 where it goes. mark: replaces the one before.

    replaces: these rows and those of `add` since `clear` are the whole table from now on.
    """

    rows: Mapping[str, Row | None]
    counts: Mapping[str, int]
    mark: bytes
    replaces: bool = False


class TableStore(Protocol):
    """Everything is called from the event loop, `done` too; nothing blocks it but a read."""

    def open_soon(self, done: Callable[[StoredTable | None, BaseException | None], None]) -> None:
        """First of all. Errors: OSError, CorruptData."""
        ...

    def discard_soon(self, done: Done) -> None:
        """After `open_soon` has failed: begins with an empty table; what there was is set aside."""
        ...

    def get(self, key: str) -> Row | None: ...

    def items(self, start: str, end: str) -> Iterator[tuple[str, Row]]:
        """The rows of the keys in [start, end), in order. Not to be held over a pass of the loop."""
        ...

    def commit(self, batch: TableBatch, done: Done) -> None: ...

    def clear(self, done: Done) -> None:
        """Begins a new table beside the one that is read; a new beginning drops what there was of it."""
        ...

    def add(self, rows: Sequence[tuple[str, Row]], done: Done) -> None:
        """To the new table, in order. It need not be durable before the batch that `replaces`."""
        ...

    def close(self) -> None:
        """Waits for what was handed over."""
        ...
