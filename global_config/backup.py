"""What a restore of the global configuration changes in what the backup holds.

Is: the rules, row by row. Isn't: files (heliograph.kv.backup_file).
Invariants: a region's number is never given to another one: numbers that may have been given out since the backup are
passed over. A region's epoch may come back lower than it was; its brokers raise it again where their metadata is
another than the one it was raised for, and a topic's own epoch never falls. A tombstone may be of a topic that was
purged, and made again, since: it asks first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from global_config import keys
from heliograph.kv.engine.table_rows import Row
from heliograph.model.configuration.tombstones import TOMBSTONES, Tombstone
from heliograph.model.errors import CorruptData

NUMBERS_MARGIN = 1000


def restored_counters(counters: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted({**counters, keys.NUMBERS: max(counters.get(keys.NUMBERS, 0), 1) + NUMBERS_MARGIN}.items())


def restored_rows(rows: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, bytes]]:
    for key, (value, _, lease) in rows:
        if not lease:
            yield key, _asking(value) if key.startswith(TOMBSTONES) else value


def _asking(value: bytes) -> bytes:
    """What cannot be read is obeyed by nobody, and stays as it is."""
    try:
        return replace(Tombstone.decode(value), asks="the configuration was restored from a backup").encode()
    except CorruptData:
        return value
