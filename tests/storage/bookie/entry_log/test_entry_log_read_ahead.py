"""An entry log is read as its reader says: alone what is asked for, or with what lies behind it, and again alone as
soon as somebody publishes.
"""

from __future__ import annotations

from typing import Any

from storage.bookie.entry_log.entry_log import EntryLog
from tests.storage.bookie.entry_log.indexes import index_of


class Files:
    """A disk of one file, and what was done with it in order."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def open(self, _name: str) -> Files:
        return self

    def close(self) -> None:
        self.done.append("closed")

    def expect_scattered(self) -> None:
        self.done.append("scattered")

    def expect_sequence(self) -> None:
        self.done.append("sequence")

    def pread(self, size_bytes: int, offset: int) -> bytes:
        self.done.append((offset, size_bytes))
        return bytes(size_bytes)

    def pread_around(self, size_bytes: int, offset: int) -> bytes:
        self.done.append(("around", offset, size_bytes))
        return bytes(size_bytes)


def test_a_log_changes_how_it_is_read_only_where_its_reader_does() -> None:
    log = EntryLog(1, index_of({3: [(0, 1, 100)]}))
    disk: Any = Files()
    for offset, goes_on in enumerate((False, True, True, False, False, True)):
        log.read(disk, offset, 1, goes_on)
    assert disk.done == [
        "scattered",
        (0, 1),
        "sequence",
        (1, 1),
        (2, 1),
        "scattered",
        (3, 1),
        (4, 1),
        "sequence",
        (5, 1),
    ]
    log.close()
    log.read(disk, 6, 1, True)
    assert disk.done[-4:] == ["closed", "scattered", "sequence", (6, 1)], "opened again it begins anew"


def test_a_large_piece_of_a_long_read_goes_around_the_cache() -> None:
    log = EntryLog(1, index_of({3: [(0, 1, 100)]}))
    disk: Any = Files()
    for size, goes_on in ((1 << 20, True), (1 << 20, False), (512 << 10, True)):
        assert len(log.read(disk, 0, size, goes_on)) == size
    assert disk.done == ["scattered", ("around", 0, 1 << 20), (0, 1 << 20), "sequence", (0, 512 << 10)]
