"""Committed: the offsets that one group has committed, as they are kept in the region's metadata.

Is: rows of a group, in memory and stored; merging with what another coordinator wrote. Isn't: a judgement who may
commit (`consumer_group`).
Invariants: a commit is answered once it is durable; what is written is never over what somebody else wrote meanwhile:
it is read again and merged; rows of a group lie in one range, so that they move with their coordinator and go with one
deletion.
Source: docs/protocols/kafka.md, "Groups".

    /kafka/offsets/{group}/{topic}/{partition // 256 :05}
        ->  [1, {partition: [offset, leader epoch, metadata, wall ms]}]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgpack

from heliograph.kv.metadata_store import ABSENT, MetadataStore, Put, pages_under
from heliograph.model.errors import CorruptData, HeliographError, NotAllowed, VersionConflict
from heliograph.runtime.throttle import RowPace

OFFSETS = "/kafka/offsets/"
FORMAT = 1
_CHUNK = 256
_TRIES = 16
ROW_BYTES = 300
"""What a row takes in memory beside its text."""


class Row(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    at_ms: int


Key = tuple[str, int]
"""(Kafka's name of the topic, partition)."""


def group_prefix(group: str) -> str:
    return f"{OFFSETS}{quote(group, safe='')}/"


class Committed:
    """Holds what one group has committed. Made by its coordinator, which alone writes it as a rule."""

    def __init__(self, meta: MetadataStore, group: str) -> None:
        self._meta, self.group = meta, group
        self.rows: dict[Key, Row] = {}
        self.size_bytes = 0
        """What its rows take in memory."""
        self.key_changes = 0
        """How often the partitions that it has rows of may have changed."""
        self._versions: dict[str, int] = {}

    async def load(self) -> None:
        """Reads what others have written: of what is known already nothing is decoded again. Others have their turn
        meanwhile; what is written here meanwhile stays.
        """
        before, seen, pace = dict(self._versions), set[str](), RowPace()
        async for rows in pages_under(self._meta, group_prefix(self.group)):
            for key, blob, version in rows:
                await pace.row()
                seen.add(key)
                if self._versions.get(key, ABSENT) < version:
                    await pace.rows(self._replace(key, blob, version))
        for key, version in before.items():
            if key not in seen and self._versions.get(key) == version:
                del self._versions[key]
                self._drop(self._of(key))

    async def read(self, keys: Iterable[Key]) -> None:
        """Reads what is stored of these partitions, and of those beside them, alone."""
        for chunk in {self._chunk(key) for key in keys}:
            await self._read_again(chunk)

    def _replace(self, chunk: str, blob: bytes, version: int) -> int:
        """Takes what is stored there for what it knew. Returns how many rows that are."""
        known = self._of(chunk)
        for key in known:
            del self.rows[key]
        self._read(chunk, blob, version)
        found = self._of(chunk)
        self.size_bytes += size_of(found.values()) - size_of(known.values())
        self.key_changes += known.keys() != found.keys()
        return len(found)

    def _read(self, key: str, blob: bytes, version: int) -> None:
        topic = unquote(key.split("/")[-2])
        self._versions[key] = version
        for partition, row in decode(blob).items():
            mine = self.rows.get((topic, partition))
            if mine is None or row.at_ms >= mine.at_ms:
                self.rows[topic, partition] = row

    def puts(self, rows: dict[Key, Row]) -> Iterator[tuple[Put, dict[Key, Row]]]:
        """What writes them beside all that is committed already, where nobody else has written since: each put, and
        which of them are in it. `written` once that is durable.
        """
        for chunk, mine in self._by_chunk(rows).items():
            yield self._put(chunk, {**self._of(chunk), **mine}), mine

    def written(self, rows: dict[Key, Row], version: int) -> None:
        self._add(rows)
        self._versions.update(dict.fromkeys(self._by_chunk(rows), version))

    async def put(self, rows: dict[Key, Row], *, over_later: bool = True) -> None:
        """Returns once they are durable, whoever else writes. over_later: also over what somebody else has committed
        later, and we have not known of. Raises VersionConflict where others write again and again, or have committed
        later, and NotAllowed where a chunk is too large, once all else is written, and what the metadata raises.
        """
        refused: HeliographError | None = None
        for chunk, mine in self._by_chunk(rows).items():
            try:
                await self._put_chunk(chunk, mine, over_later)
            except (NotAllowed, VersionConflict) as error:
                refused = error
        if refused is not None:
            raise refused

    async def _put_chunk(self, chunk: str, mine: dict[Key, Row], over_later: bool) -> None:
        late: VersionConflict | None = None
        for left in reversed(range(_TRIES)):
            try:
                await self._write(chunk, {**self._of(chunk), **mine})
                break
            except VersionConflict as error:
                if not left:
                    raise
                known = self._of(chunk)
                await self._read_again(chunk)
                later = {
                    key
                    for key, row in self._of(chunk).items()
                    if key in mine and row.at_ms > mine[key].at_ms and row != known.get(key)
                }
                if later and not over_later:
                    mine, late = {key: row for key, row in mine.items() if key not in later}, error
        self._add(mine)
        if late is not None:
            raise late

    def growth(self, rows: dict[Key, Row]) -> int:
        """How many bytes more it takes in memory with these."""
        return size_of(rows.values()) - size_of(self.rows[key] for key in rows if key in self.rows)

    def _add(self, rows: dict[Key, Row]) -> None:
        before = len(self.rows)
        self.size_bytes += self.growth(rows)
        self.rows.update(rows)
        self.key_changes += len(self.rows) != before

    def forget(self, keys: Collection[Key]) -> None:
        """Drops rows that somebody else has deleted; what is stored beside them is read again before it counts."""
        for chunk in {self._chunk(key) for key in keys if key in self.rows}:
            self._versions.pop(chunk, None)
        self._drop(keys)

    def _drop(self, keys: Iterable[Key]) -> None:
        gone = [row for key in keys if (row := self.rows.pop(key, None)) is not None]
        self.size_bytes -= size_of(gone)
        self.key_changes += bool(gone)

    def _by_chunk(self, rows: dict[Key, Row]) -> dict[str, dict[Key, Row]]:
        chunks: dict[str, dict[Key, Row]] = {}
        for key, row in rows.items():
            chunks.setdefault(self._chunk(key), {})[key] = row
        return chunks

    async def delete(self, keys: Iterable[Key]) -> None:
        """What another coordinator has committed since we knew of these rows stays. Raises VersionConflict where others
        write again and again, and what the metadata raises.
        """
        doomed = {key: self.rows[key] for key in keys if key in self.rows}
        for chunk in sorted({self._chunk(key) for key in doomed}):
            for tries_left in reversed(range(_TRIES)):
                left = {key: row for key, row in self._of(chunk).items() if doomed.get(key) != row}
                try:
                    if left:
                        await self._write(chunk, left)
                    elif chunk in self._versions:
                        await self._meta.delete(chunk, expected=self._versions[chunk])
                        self._versions.pop(chunk, None)
                    break
                except VersionConflict:
                    if not tries_left:
                        raise
                    await self._read_again(chunk)
        self._drop([key for key, row in doomed.items() if self.rows.get(key) == row])

    async def delete_all(self) -> None:
        await self.delete(list(self.rows))

    def _chunk(self, key: Key) -> str:
        return f"{group_prefix(self.group)}{quote(key[0], safe='')}/{key[1] // _CHUNK:05d}"

    def _of(self, chunk: str) -> dict[Key, Row]:
        topic, number = unquote(chunk.split("/")[-2]), int(chunk.rpartition("/")[2])
        first = number * _CHUNK
        if len(self.rows) < _CHUNK:
            return {key: row for key, row in self.rows.items() if key[0] == topic and key[1] // _CHUNK == number}
        return {
            (topic, index): self.rows[topic, index]
            for index in range(first, first + _CHUNK)
            if (topic, index) in self.rows
        }

    def _put(self, chunk: str, rows: dict[Key, Row]) -> Put:
        return Put(
            chunk, encode({partition: row for (_, partition), row in rows.items()}), self._versions.get(chunk, ABSENT)
        )

    async def _write(self, chunk: str, rows: dict[Key, Row]) -> None:
        put = self._put(chunk, rows)
        self._versions[chunk] = await self._meta.put(put.key, put.value, expected=put.expected)

    async def _read_again(self, chunk: str) -> None:
        """What is stored is true: a row that is not there any more was deleted, with its topic or its partition."""
        found = await self._meta.get(chunk)
        if found is not None:
            self._replace(chunk, *found)
        else:
            self._versions.pop(chunk, None)
            self._drop(self._of(chunk))


def size_of(rows: Iterable[Row]) -> int:
    """How many bytes they take in memory, at most: text with one character beyond ASCII has up to four for each."""
    return sum(ROW_BYTES + len(row.metadata) * (1 if row.metadata.isascii() else 4) for row in rows)


def encode(rows: dict[int, Row]) -> bytes:
    packed: bytes = msgpack.packb([FORMAT, {partition: list(row) for partition, row in rows.items()}])
    return packed


def decode(blob: bytes) -> dict[int, Row]:
    """Returns the rows of one chunk, by partition. Raises CorruptData."""
    try:
        number, rows = msgpack.unpackb(blob, strict_map_key=False)
        if number != FORMAT:
            raise CorruptData(f"committed offsets: format {number}; this version reads {FORMAT}")
        return {int(partition): Row(*row) for partition, row in rows.items()}
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"committed offsets: {error}") from error
