"""KnownLeaderships: up to which number the leaderships of a namespace are registered.

Is: the number that a run of another region may name at most, as the global configuration has it: of a namespace that
has a leadership that one's, else its last one's, or the one below which a restore lets nothing begin. Isn't: who
publishes (`region_node.dr.leadership.write_gates`), or what follows (`replicator.receiving.receiver_stream`).
Invariants: what is read of the store's watch may be late, and so too low, never too high; `newest` is never late.
Bounds: a number for each namespace that has a leadership, or had one, as the configuration has them.
Source: docs/protocols/links.md, "Whose word counts".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.leadership import ENDED, FLOOR, LEADERSHIP, LEADERSHIPS, Leadership, leadership
from heliograph.model.errors import CorruptData


class KnownLeaderships:
    """One watch tells what begins, ends, and is forgotten, in the order in which it happens."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._floor = 0
        self._began: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        self._stop: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self._stop = self._store.watch(LEADERSHIPS, self._heard)
        await self._store.synced(LEADERSHIPS)

    async def stop(self) -> None:
        self._stop()

    def known(self, namespace: str) -> int:
        """0: it never had one."""
        if (began := self._began.get(namespace)) is not None:
            return began
        return max(self._floor, self._ended.get(namespace, 0))

    def ended(self, namespace: str) -> int:
        """The last epoch of the leadership that ended there last; 0: none did."""
        return self._ended.get(namespace, 0)

    async def newest(self, namespace: str) -> int:
        """The same, asked of whoever decides about the configuration. Raises MetadataUnavailable, CorruptData."""
        if (found := await self._store.get(leadership(namespace))) is not None:
            return Leadership.decode(found[0]).began
        told = [await self._store.get(key) for key in (ENDED + namespace, FLOOR)]
        return max(_number(row[0]) if row is not None else 0 for row in told)

    def _heard(self, key: str, value: bytes | None, version: int) -> None:
        if key == FLOOR:
            self._floor = 0 if value is None else _number(value)
        elif key.startswith(LEADERSHIP):
            _put(self._began, key.removeprefix(LEADERSHIP), None if value is None else _beginning(value))
        elif key.startswith(ENDED):
            _put(self._ended, key.removeprefix(ENDED), None if value is None else _number(value))


def _put(numbers: dict[str, int], namespace: str, number: int | None) -> None:
    if number is None:
        numbers.pop(namespace, None)
    else:
        numbers[namespace] = number


def _beginning(value: bytes) -> int:
    with contextlib.suppress(CorruptData):
        return Leadership.decode(value).began
    return 0


def _number(value: bytes) -> int:
    with contextlib.suppress(ValueError):
        return int(value)
    return 0
