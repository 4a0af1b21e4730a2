"""Entries of an offloaded ledger, straight from the object store: a range of an object's bytes, as a broker told where
they lie.

Is: HTTP with a URL that the broker signed, or a file of a folder that this machine sees; blocks cut to a range of
entries. Isn't: credentials, or the object's index: the broker reads that. Invariants: nothing is given that was not
verified against its checksum, its ledger, and its place; what breaks is an ObjectUnread, and says nothing about the
entries: a broker can be asked for the same.
"""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from http.client import HTTPException
from typing import Any, NamedTuple

from heliograph.model.errors import CorruptData, StorageError
from heliograph.wire.run import Run

_TIMEOUT_S = 60
_BLOCK_BYTES_MAX = 64 << 20


class ObjectUnread(StorageError):
    """The object could not be read from here to the end of what was asked for."""


class ObjectRange(NamedTuple):
    """Bytes [start, stop) of the object at `url`, the blocks of `ledger` from entry `first` on."""

    url: str
    ledger: int
    first: int
    start: int
    stop: int


def read_object(where: ObjectRange, first: int, last: int) -> Generator[tuple[int, Run], None, None]:
    """(first entry, run) from `first` to `last`, both included, in order. Raises ObjectUnread, as early as at the first
    run.
    """
    from heliograph.wire.block import decode_block  # as in `block_reader`

    try:
        with _opened(where) as stream:
            left, entry = where.stop - where.start, where.first
            while left > 0 and entry <= last:
                head = fill(stream.readinto, bytearray(8))
                size = int.from_bytes(head[4:8], "big")
                if not 48 <= size <= min(left, _BLOCK_BYTES_MAX):
                    raise CorruptData(f"a block of {size} bytes")
                block = bytearray(size)
                block[:8] = head
                ledger, at, run = decode_block(fill(stream.readinto, block, 8))
                if run.seal is not None:
                    raise CorruptData("its entries are encrypted at rest: only a broker can open them")
                if (ledger, at) != (where.ledger, entry):
                    raise CorruptData(f"entry {ledger}:{at} lies where {where.ledger}:{entry} is looked for")
                left, entry = left - size, at + run.count
                if entry > first:
                    start, stop = max(first - at, 0), min(run.count, last - at + 1)
                    yield at + start, run.cut(start, stop)
            if entry <= last:
                raise CorruptData(f"it ends before entry {last}")
    except (OSError, EOFError, HTTPException, ValueError, CorruptData) as error:
        raise ObjectUnread(f"{where.url.partition('?')[0]}: {error}") from error


def _opened(where: ObjectRange) -> Any:
    parts = urllib.parse.urlsplit(where.url)
    if parts.scheme == "file":
        file = open(urllib.parse.unquote(parts.path), "rb")  # noqa: SIM115 - whoever asked closes it
        file.seek(where.start)
        return file
    if parts.scheme not in ("http", "https"):
        raise OSError(f"no way to read {parts.scheme}:// from here")
    answer = urllib.request.urlopen(
        urllib.request.Request(where.url, headers={"Range": f"bytes={where.start}-{where.stop - 1}"}),
        timeout=_TIMEOUT_S,
    )
    if answer.status != 206 and where.start:
        answer.close()
        raise OSError(f"the store answered {answer.status} to a request for a range")
    return answer


def fill(readinto: Callable[[memoryview], int | None], into: bytearray, at: int = 0) -> bytearray:
    """Reads until `into` is full, from `at` on. Raises EOFError."""
    view = memoryview(into)
    while at < len(into):
        count = readinto(view[at:])
        if not count:
            raise EOFError("it ends inside a block")
        at += count
    return into
