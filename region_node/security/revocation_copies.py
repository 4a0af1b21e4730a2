"""RevocationCopies: a region's own copy of what was revoked, in its metadata.

Is: the copy in both directions: what the configuration has that is newer is written here, for bookies and metadata
nodes, which do not ask the configuration; what is newer here, since an older configuration was restored, is put back
there. Isn't: a refusal (`region_node.security.authentication.revocations`, `region_node.security.ca_trust`).
Invariants: of two records of one name the newer wins, in either direction, by a compare-and-set: so all brokers of a
region may do it at once, and one that has heard of less does no harm; what is not in the configuration leaves the copy
once it was lifted, or has run out, and comes back there otherwise. Nothing is looked at but on a change.
Keys: /security/revocations/{kind}/{name, quoted} of the region's metadata.
Source: docs/security.md, "Revocation".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.kv.unreadable_records import tell_unreadable
from heliograph.model.configuration.revocations import REVOCATIONS, Revocation
from heliograph.model.errors import CorruptData, HeliographError, NotAllowed
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet
from local_meta import keys

log = logging.getLogger("region_node.security.revocations")

COPIES = keys.REVOKED
RETRY_S = 5.0
"""After so long it is tried again where a store is away, or another broker was faster."""
Known = dict[str, tuple[Revocation, bytes, int] | None]
"""Kind and name, as keys end -> the record, as it is stored, its version; None: it cannot be read."""


class RevocationCopies:
    """One broker's part in it, from `start` until `stop`. `retry_s`: after so long it tries again."""

    def __init__(self, config: MetadataStore, meta: MetadataStore, clock: Clock, *, retry_s: float = RETRY_S) -> None:
        self._config, self._meta, self._clock, self._retry_s = config, meta, clock, retry_s
        self._there: Known = {}
        self._here: Known = {}
        self._changed = asyncio.Event()
        self._stops: list[Callable[[], None]] = []
        self._tasks = TaskSet("the copy of what was revoked has ended")

    async def start(self) -> None:
        """Returns once both lists are known."""
        for store, prefix, known in ((self._config, REVOCATIONS, self._there), (self._meta, COPIES, self._here)):
            self._stops.append(store.watch(prefix, partial(self._on_change, prefix, known)))
            await store.synced(prefix)
        self._tasks.spawn(self._run())

    async def stop(self) -> None:
        for stop in self._stops:
            stop()
        await self._tasks.close()

    def _on_change(self, prefix: str, known: Known, key: str, value: bytes | None, version: int) -> None:
        name = key.removeprefix(prefix)
        if value is None:
            known.pop(name, None)
        else:
            try:
                known[name] = Revocation.decode(value), value, version
            except CorruptData as error:  # of a newer version: brokers of that one copy it
                known[name] = None
                tell_unreadable(key, error)
        self._changed.set()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._agree()
            except HeliographError as error:  # a store is away, or another broker was faster
                log.info("revocations.not_copied", extra={"error": str(error)})
                await asyncio.sleep(self._retry_s)
                self._changed.set()

    async def _agree(self) -> None:
        for name in sorted({*self._there, *self._here}):
            there, here = self._there.get(name), self._here.get(name)
            if (there is None and name in self._there) or (here is None and name in self._here):
                continue  # nobody knows which one is newer
            if here is None or (there is not None and there[0].age > here[0].age):
                if there is not None:
                    await self._meta.put(COPIES + name, there[1], expected=_version(here))
            elif there is None and here[0].over(self._clock.wall_ms(), kept_ms=0):
                await self._meta.delete(COPIES + name, expected=here[2])
            elif there is None or here[0].age > there[0].age:
                try:
                    await self._config.put(REVOCATIONS + name, here[1], expected=_version(there))
                except NotAllowed as error:  # what another region has lifted, that one puts back
                    log.info("revocation.not_put_back", extra={"key": name, "error": str(error)})
                    continue
                log.warning("revocation.put_back", extra={"kind": here[0].kind, "revoked": here[0].name})


def _version(found: tuple[Revocation, bytes, int] | None) -> int:
    return ABSENT if found is None else found[2]
