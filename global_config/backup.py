"""What a restore of the global configuration changes in what the backup holds.

Is: the rules, row by row. Isn't: files (heliograph.kv.backup_file).
Invariants: a region's number is never given to another one, nor a partitioned topic's incarnation: numbers that may
have been given out since the backup are passed over. A region's epoch may come back lower than it was; its brokers
raise it again where their metadata is another than the one it was raised for, and a topic's own epoch never falls. What
may have ended since, or gone on, is not obeyed as it stands: a tombstone may be of a topic that was purged, and made
again, and asks first; a leadership may have moved, and asks which region is the active one; an operation that was under
way is cancelled; what failed over by itself may have been told not to, or was held, and asks. No epoch of a leadership
comes twice, also of those that were made since.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from global_config import keys
from heliograph.kv.engine.table_rows import Row
from heliograph.kv.history import HISTORY
from heliograph.model.configuration.leadership import (
    DELETED,
    ENDED,
    FENCED,
    FLOOR,
    LEADERSHIP,
    LEADERSHIPS,
    SUBSCRIPTIONS,
    Leadership,
)
from heliograph.model.configuration.tombstones import TOMBSTONES, Tombstone
from heliograph.model.errors import CorruptData

NUMBERS_MARGIN = 1000
EPOCHS_MARGIN = 1_000_000
DOUBTED = (TOMBSTONES, LEADERSHIPS, SUBSCRIPTIONS, keys.OPERATIONS, keys.AUTOMATIC)
"""Begin the keys of which an older state is not obeyed as it stands."""
WHY = "the configuration was restored from a backup"
_RESTORED_DIGITS_MAX = 16
RESTORED_AHEAD_MS = 24 * 3600 * 1000
"""What stands at `keys.RESTORED` further ahead of the clock is not believed, and not written."""


def restored_ms(value: bytes) -> int:
    """What stands at `keys.RESTORED`. Raises CorruptData: it is no time."""
    if not value.isdigit() or len(value) > _RESTORED_DIGITS_MAX:
        raise CorruptData(f"when the configuration was restored: {value[:40]!r} is no time")
    return int(value)


def restored_counters(counters: Mapping[str, int]) -> list[tuple[str, int]]:
    """What they gave out since the backup is passed over."""
    margins = {keys.NUMBERS: NUMBERS_MARGIN, keys.INCARNATIONS: EPOCHS_MARGIN}
    given = {name: max(counters.get(name, 0), 1) + margin for name, margin in margins.items()}
    return sorted({**counters, **given}.items())


def restored_rows(rows: Iterable[tuple[str, Row]], now_ms: int) -> Iterator[tuple[str, bytes]]:
    """rows: by key, and so are those that are returned. now_ms: by the wall clock; epochs begin there, so that they are
    others each time the same backup is restored.
    """
    own = [(FLOOR, max(EPOCHS_MARGIN, now_ms)), (keys.RESTORED, now_ms)]
    for key, (value, _, lease) in rows:
        if lease or key == HISTORY:
            continue
        while own and key > own[0][0]:
            yield _number(*own.pop(0))
        if own and key == own[0][0]:
            _, number = own.pop(0)
            yield _number(key, max(number, _floor(value, now_ms)) if key == FLOOR else number)
        else:
            yield key, restored_value(key, value, now_ms)
    for key, number in own:
        yield _number(key, number)


def _floor(value: bytes, now_ms: int) -> int:
    """0: it cannot be read."""
    with suppress(ValueError):
        return _epoch(int(value), now_ms)
    return 0


def _number(key: str, number: int) -> tuple[str, bytes]:
    return key, str(number).encode()


def restored_value(key: str, value: bytes, now_ms: int, why: str = WHY) -> bytes:
    """What stands at a key of a configuration that is older than what followed. What cannot be read is obeyed by
    nobody, and stays as it is. why: for people.
    """
    try:
        if key in (FLOOR, DELETED):
            return str(_epoch(int(value), now_ms)).encode()
        if key.startswith(TOMBSTONES):
            return replace(Tombstone.decode(value), asks=why).encode()
        if key.startswith(LEADERSHIP):
            return replace(_later(value, now_ms), state=FENCED, to="", asks=why).encode()
        if key.startswith(SUBSCRIPTIONS):  # at worst a message comes twice
            return _later(value, now_ms).encode()
        if key.startswith(ENDED):
            return str(_epoch(int(value), now_ms)).encode()
        if key.startswith(keys.OPERATIONS):
            return _cancelled(value, why)
        if key.startswith(keys.AUTOMATIC):
            return json.dumps({**json.loads(value), "asks": why}, sort_keys=True).encode()
    except (CorruptData, KeyError, ValueError, TypeError):
        pass
    return value


def _epoch(old: int, now_ms: int) -> int:
    """One that was not used since: all earlier ones began at an earlier time, or low, and rose by one a move. Never
    above the time, but where the clock is behind what is known: a later one would not be above it, and may be the same.
    """
    return now_ms if now_ms > old else old + EPOCHS_MARGIN


def _later(value: bytes, now_ms: int) -> Leadership:
    """Nobody has heard of it, and what was published under it may have been published under another one since."""
    old = Leadership.decode(value)
    epoch = _epoch(old.epoch, now_ms)
    return replace(old, epoch=epoch, began=epoch, heard=())


def _cancelled(value: bytes, why: str) -> bytes:
    operation: dict[str, Any] = json.loads(value)
    if operation["state"] != "running":
        return value
    return json.dumps({**operation, "state": "cancelled", "waiting": why}, sort_keys=True).encode()
