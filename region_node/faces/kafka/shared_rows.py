"""SharedRows: what Kafka's tools have set for the whole instance, as each broker follows it.

Is: rows of the global configuration under some prefixes, and beneath them those that an earlier version has left in
this region's metadata, until they are moved. Isn't: what a row means (`scram`,
`region_node.faces.kafka.quotas.quota_table`).
Invariants: a row of the configuration hides the region's of the same key, but for keys that are each region's own;
while a process of an earlier version may run in the region, rows are written where it reads them, too; a region that is
cut off goes by what it heard last; what is deleted is gone in both places before anybody is told so, and while a region
may have a row of that key to move, what is left says so.
Source: docs/decisions/0246-kafkas-users-and-quotas-are-the-instances.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.errors import MetadataUnavailable, VersionConflict
from heliograph.runtime.every import every
from region_node.faces.kafka.metadata_wait import until

log = logging.getLogger("region_node.kafka")

MOVE_S = 10.0
_TRIES = 16
_GONE = b"\0"
"""In the place of a row that is deleted: a region that has not moved its rows yet may have one."""


@dataclass(frozen=True, slots=True)
class RowStores:
    """shared: whether every process of this region knows such rows of the configuration; everywhere: of every region.
    sync_s: so long is waited for what there is, after the start.
    """

    config: MetadataStore
    own: MetadataStore
    shared: Callable[[], bool]
    everywhere: Callable[[], bool]
    sync_s: float = 5.0


class SharedRows:
    """Watches from the start, so it is made on the event loop; `close` ends that."""

    def __init__(
        self,
        stores: RowStores,
        prefixes: Sequence[str],
        changed: Callable[[str], None],
        regional: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """changed: told of each key that may have another value. regional: whether a key is each region's own."""
        self._stores, self._prefixes, self._changed, self._regional = stores, prefixes, changed, regional
        self._rows: tuple[dict[str, tuple[bytes, int]], dict[str, tuple[bytes, int]]] = ({}, {})
        """Of the configuration, and of the region: key -> (value, version)."""
        self._listeners: list[Callable[[str], None]] = []
        self._stops = [
            store.watch(prefix, partial(self._on_row, rows))
            for store, rows in zip((stores.config, stores.own), self._rows, strict=True)
            for prefix in prefixes
        ]

    def close(self) -> None:
        for stop in self._stops:
            stop()

    def _on_row(self, rows: dict[str, tuple[bytes, int]], key: str, value: bytes | None, version: int) -> None:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = bytes(value), version
        self._changed(key)
        for listener in list(self._listeners):
            listener(key)

    async def synced(self) -> None:
        """Returns once all that was there is known. Raises MetadataUnavailable."""
        try:
            async with asyncio.timeout(self._stores.sync_s):
                for prefix in self._prefixes:
                    await self._stores.config.synced(prefix)
                    await self._stores.own.synced(prefix)
        except TimeoutError as error:
            raise MetadataUnavailable("what Kafka's tools have set is not known here yet: try again") from error

    def get(self, key: str) -> bytes | None:
        found = None if self._regional(key) else self._rows[0].get(key)
        found = found or self._rows[1].get(key)
        return None if found is None or found[0] == _GONE else found[0]

    async def change(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Applies `change` to the value (it may be called several times); None is no value. Returns whether there was
        one, once this broker knows of the new one. Raises VersionConflict where others change it again and again, and
        what the stores raise.
        """
        own, config = self._stores.own, self._stores.config
        if self._regional(key):
            return await self._write(own, key, change, None)
        beneath = await own.get(key)
        before = None if beneath is None else beneath[0]
        if beneath is not None and change(before) is None:
            await own.delete(key, expected=beneath[1])
        if self._stores.shared():
            found = await self._write(config, key, change, before)
            if beneath is not None:
                await own.delete(key)
            return found
        shared = await config.get(key)
        found = shared is not None and await self._write(config, key, change, before)
        kept = await self._write(own, key, change, None if shared is None or shared[0] == _GONE else shared[0])
        return found or kept or beneath is not None

    async def _write(
        self, store: MetadataStore, key: str, change: Callable[[bytes | None], bytes | None], beneath: bytes | None
    ) -> bool:
        """beneath: the value where the store has none."""
        for left in reversed(range(_TRIES)):
            found = await store.get(key)
            there = beneath if found is None else None if found[0] == _GONE else found[0]
            value, before = change(there), ABSENT if found is None else found[1]
            if value is None and store is self._stores.config and not self._stores.everywhere():
                value = _GONE
            try:
                if value is not None:
                    await store.put(key, value, expected=before)
                elif found is not None:
                    await store.delete(key, expected=before)
            except VersionConflict:
                if not left:
                    raise
                continue
            if value is not None or found is not None:
                await self._seen(self._rows[store is self._stores.own], key, before)
            return there is not None
        raise AssertionError("the last try raises")

    async def _seen(self, rows: dict[str, tuple[bytes, int]], key: str, before: int) -> None:
        await until(lambda: rows.get(key, (b"", ABSENT))[1] != before, self._on_change)

    def _on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return partial(self._listeners.remove, callback)

    # -- what an earlier version left ----------------------------------------------------------------------------------

    async def move(self) -> None:
        """Puts what is left in the region's metadata into the configuration, again and again; ends only when it is
        cancelled.
        """
        await every(
            MOVE_S,
            self._move_all,
            first_s=0.0,
            failed=lambda error: log.warning("kafka.rows_not_moved", extra={"error": str(error)}),
        )

    async def _move_all(self) -> None:
        for key, (value, version) in list(self._rows[1].items()) if self._stores.shared() else ():
            if not self._regional(key):
                await self._move(key, value, version)

    async def _move(self, key: str, value: bytes, version: int) -> None:
        """What was changed, or deleted, since it was looked at is left alone."""
        own, config = self._stores.own, self._stores.config
        found = await own.get(key)
        if found is None or found[1] != version:
            return
        put = ABSENT
        try:
            put = await config.put(key, value, expected=ABSENT)
        except VersionConflict:
            shared = await config.get(key)
            if shared is None:
                return  # it was deleted just now: so is this one, next time
            if shared[0] != value:
                log.warning("kafka.row_dropped", extra={"key": key, "holds": "the instance's"})
        try:
            await own.delete(key, expected=version)
        except VersionConflict:  # it was deleted, or changed, while it was put there
            if put != ABSENT:
                with contextlib.suppress(VersionConflict):
                    await config.delete(key, expected=put)
