"""RaftLog: the entries that a member holds in memory, by index.

Is: a list of entries behind a base (the last index that was compacted away, and its term). Isn't: the disk (`storage`),
or any rule of Raft.
Invariants: entries stand at base + 1 .. last, without gaps; `term(base)` is known. Index 0 has term 0 and is never an
entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.raft.messages import ENTRY_OVERHEAD, Entry


class RaftLog:
    def __init__(self, base_index: int = 0, base_term: int = 0, entries: Sequence[Entry] = ()) -> None:
        self.base_index, self.base_term = base_index, base_term
        self._entries = list(entries)

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1][0] if self._entries else self.base_term

    def term(self, index: int) -> int:
        """Term of the entry at `index`, base included; -1 where nothing is known of it."""
        at = index - self.base_index
        if at == 0:
            return self.base_term
        return self._entries[at - 1][0] if 0 < at <= len(self._entries) else -1

    def slice(self, first: int, end: int) -> list[Entry]:
        """Entries [first, end); `first` lies behind the base."""
        return self._entries[first - self.base_index - 1 : end - self.base_index - 1]

    def slice_bytes(self, first: int, bytes_max: int) -> tuple[list[Entry], int]:
        """Entries from `first` on, at least one if there is one, and their bytes, about `bytes_max` at most."""
        start = end = first - self.base_index - 1
        size_bytes = 0
        while end < len(self._entries):
            more = ENTRY_OVERHEAD + len(self._entries[end][2])
            if end > start and size_bytes + more > bytes_max:
                break
            size_bytes += more
            end += 1
        return self._entries[start:end], size_bytes

    def append(self, entries: Sequence[Entry]) -> None:
        self._entries.extend(entries)

    def truncate(self, first: int) -> None:
        """Drops `first` and everything behind it."""
        del self._entries[first - self.base_index - 1 :]

    def compact(self, index: int) -> None:
        """Drops everything up to `index`, which becomes the base."""
        if index > self.base_index:
            self.base_term = self.term(index)
            del self._entries[: index - self.base_index]
            self.base_index = index

    def reset(self, base_index: int, base_term: int) -> None:
        """Drops everything: the log goes on behind a snapshot."""
        self.base_index, self.base_term, self._entries = base_index, base_term, []

    def last_at_or_below(self, index: int, term: int) -> int:
        """The largest index <= `index` whose term is <= `term`: where two logs may still agree."""
        index = min(index, self.last_index)
        while index > self.base_index and self.term(index) > term:
            index -= 1
        return index
