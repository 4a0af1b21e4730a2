"""Revocations: the list of what was revoked, as this process last heard of it.

Is: a copy of the records, fed by a watch, the question whether a credential is revoked, and word to whoever has
connections that stand. Isn't: the record (`heliograph.model.configuration.revocations`), or a write.
Invariants: the list changes in the order of the store's log, and goes on answering while the store is away; a record
that is in force ends by being lifted alone: one that only vanishes (an older configuration was restored) counts on; of
many changes in one pass of the loop each listener hears once.
Source: docs/security.md, "Revocation".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.revocations import REVOCATIONS, ProvenBy, Revocation, Revoked
from heliograph.model.errors import CorruptData

log = logging.getLogger("region_node.security.revocations")

REVOKED = "revoked"
"""The reason of a refusal, in metrics."""


class Revocations:
    """A list that is empty until `follow` is called."""

    def __init__(self) -> None:
        self._known: dict[str, Revocation] = {}
        """By the key that it has in the configuration."""
        self._names: dict[tuple[str, str], Revocation] = {}
        self._listeners: dict[Callable[[], int | None], str] = {}
        self._waiting: list[tuple[Revocation, asyncio.Future[None]]] = []
        self._telling = False
        self.closed: dict[str, int] = {}
        """Connections that were closed since the start because their credentials were revoked, by face."""

    def follow(self, store: MetadataStore, prefix: str) -> Callable[[], None]:
        """Keeps to the records below `prefix`; returns "stop". `store.synced(prefix)` waits for the first full copy. Of
        several lists, a region's own copy beside the instance's, the newest record of a name counts.
        """
        return store.watch(prefix, partial(self._on_change, prefix))

    def on_change(self, tell: Callable[[], int | None], face: str = "") -> None:
        """tell: called after each change. face: whose connections it closes by what is revoked now; it returns how many
        these were.
        """
        self._listeners[tell] = face
        if face:
            self.closed.setdefault(face, 0)

    async def heard(self, record: Revocation, within_s: float) -> bool:
        """Returns once the list says so and everybody was told; False: not within that time."""
        if self._known.get(record.key) == record and not self._telling:
            return True
        shown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits = record, shown
        self._waiting.append(waits)
        try:
            async with asyncio.timeout(within_s):
                await shown
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(waits)
        return True

    def of(self, proof: ProvenBy) -> Revocation | None:
        """The record by which that credential counts no more; None: it counts."""
        if not self._names:
            return None
        for name in proof.names():
            found = self._names.get(name)
            if found is not None and found.covers(proof):
                return found
        return None

    def records(self) -> list[Revocation]:
        """Those that are in force, in the order of their keys."""
        return sorted(self._names.values(), key=lambda record: record.key)

    def certificates(self) -> frozenset[str]:
        """The serial numbers of those that were revoked."""
        return frozenset(name for kind, name in self._names if kind == Revoked.CERTIFICATE)

    def __len__(self) -> int:
        return len(self._names)

    def _on_change(self, prefix: str, key: str, value: bytes | None, version: int) -> None:
        name = REVOCATIONS + key.removeprefix(prefix)
        before = self._known.get(name)
        if value is None:
            if before is not None and before.lifted_ms:
                del self._known[name]
            return
        try:
            found = Revocation.decode(value)
        except CorruptData as error:
            log.warning("revocation.unreadable", extra={"key": key, "error": str(error)})
            return
        if before is not None and found.age <= before.age:
            return
        self._known[name] = found
        if found.lifted_ms:
            self._names.pop((found.kind, found.name), None)
        else:
            self._names[found.kind, found.name] = found
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        for tell, face in tuple(self._listeners.items()):
            count = tell()
            if face and count:
                self.closed[face] += count
        for record, shown in self._waiting:
            if self._known.get(record.key) == record and not shown.done():
                shown.set_result(None)
