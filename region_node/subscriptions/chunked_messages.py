"""Chunked messages on a shared subscription: whoever got the first piece of a message gets the others. A core.

Is: which consumer has begun a message, and which pieces wait until it has room. Isn't: dispatch, or putting messages
together (clients do).
Invariants: while its consumer is there, all pieces of a message go to it; pieces that it has no room for hold nobody
else up.
Bounds: OPEN_MAX messages that were begun (the oldest is forgotten: its client gives it up too), ASIDE_MAX pieces aside;
beyond, everybody waits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.wire.pulsar.entry_metadata import as_bytes, entry_metadata
from heliograph.wire.run import Run
from region_node.subscriptions.consumer import Consumer
from region_node.subscriptions.sticky_keys import key_digest

OPEN_MAX = 10_000
ASIDE_MAX = 20_000
_CHUNKS = b"\xd8\x01"
"""The tag of `num_chunks_from_msg` in an entry's metadata; where these bytes are found, the metadata is decoded to be
sure.
"""
_SMALL = 256
_SIZE = struct.Struct(">I").unpack_from

Chunk = tuple[str, int, int]
"""Names one piece of a message: (the message's uuid, index of the piece, count of its pieces)."""


def chunked_entries(run: Run) -> dict[int, Chunk]:
    """Index in the run -> which piece of which message; of entries that are pieces."""
    if run.body is not None and run.size_bytes < _SMALL * run.count and _CHUNKS not in bytes(run.body):
        return {}
    out: dict[int, Chunk] = {}
    for index, part in enumerate(run.parts):
        if len(part) <= 10:
            continue
        at = 10 if part[0] == 14 else 4  # a checksum, or no metadata of 200 MB
        if _CHUNKS in bytes(part[at : at + _SIZE(part, at - 4)[0]]):
            try:
                metadata, _ = entry_metadata(part)
            except CorruptData:
                continue
            if metadata.num_chunks_from_msg > 1:
                out[index] = metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg
    return out


class ChunkHolders:
    """Remembers who holds which message of one subscription; made when its first piece comes."""

    def __init__(self) -> None:
        self._open: dict[bytes, Consumer] = {}
        """By the digest of the message's uuid."""
        self._aside: dict[Consumer, list[Position]] = {}
        self._count = 0

    def holder(
        self, chunk: Chunk, here: list[Consumer], choose: Callable[[], Consumer], open_max: int = OPEN_MAX
    ) -> Consumer:
        """Who gets this piece. here: the consumers there are; choose: who is next; open_max: where so many messages are
        begun, the oldest is forgotten for another one.
        """
        uuid, (_, index, count) = key_digest(as_bytes(chunk[0])), chunk
        found = self._open.get(uuid)
        if found is None or found not in here or index == 0:
            if found is None and len(self._open) >= open_max:
                del self._open[next(iter(self._open))]
            found = self._open[uuid] = choose()
        if index == count - 1:
            del self._open[uuid]
        return found

    def keep(self, chunk: Chunk, consumer: Consumer) -> None:
        """Nothing was handed out after all: the piece is still to come."""
        self._open[key_digest(as_bytes(chunk[0]))] = consumer

    def put_aside(self, position: Position, consumer: Consumer) -> bool:
        """Has a piece wait until `consumer` has room; False: ASIDE_MAX wait already, and nothing was done."""
        if self._count >= ASIDE_MAX:
            return False
        self._aside.setdefault(consumer, []).append(position)
        self._count += 1
        return True

    def free(self, room: Callable[[Consumer], bool]) -> list[Position]:
        """What waited for consumers that have room now, or have gone."""
        out: list[Position] = []
        for consumer in [c for c in self._aside if room(c)]:
            out += self._aside.pop(consumer)
        self._count -= len(out)
        return out
