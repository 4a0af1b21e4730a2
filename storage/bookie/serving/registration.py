"""Registration: says in the region's metadata that a bookie is alive, where it is, and whether it takes adds.

Is: one key under a lease, renewed, and put again where the lease was lost. Isn't: a reason to trust a bookie; fencing
and quorums decide that.
Invariants: the key goes within one lease of the end of the process; nothing here stops the bookie where the metadata is
away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgpack

from heliograph.kv.metadata_store import LEASE_TTL_MS, MetadataStore
from heliograph.model.errors import LeaseLost, MetadataError, NotAllowed, StorageError
from heliograph.model.feature_levels import LEVEL
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from local_meta.keys import bookie

log = logging.getLogger("storage.bookie.registration")

_RENEW_S = 1.0
_FREE_STEP = 0.1
"""By how much the free space must have changed to be said again."""


class Registration:
    """One bookie's key. `writable` is asked whenever the key is put; call `changed` when its answer is another.

    rack: its label for placement. free_bytes: asked once a second. dropped: why each directory that has failed is not
    used any more.
    lost_dirs: how many ledger directories there are, and which of them were dropped: auto-recovery copies what was
    there.
    limbo: why it cannot say what it does not hold, "" where it can; and whether a new life would end that.
    floor: ledgers below it are older than its life; 0: of none.
    gives_entries: over HTTP, to who has a permit. level: the feature level that it speaks.
    """

    def __init__(
        self,
        meta: MetadataStore,
        *,
        bookie_id: str,
        host: str,
        port: int,
        http_port: int,
        writable: Callable[[], bool],
        clock: Clock,
        rng: Rng,
        rack: str = "",
        group: str = "",
        free_bytes: Callable[[], int] = lambda: 0,
        dropped: Callable[[], list[str]] = list,
        lost_dirs: Callable[[], tuple[int, list[int]]] = lambda: (1, []),
        limbo: Callable[[], tuple[str, bool]] = lambda: ("", False),
        floor: Callable[[], int] = lambda: 0,
        gives_entries: bool = False,
        level: int = LEVEL,
    ) -> None:
        self._meta, self._key = meta, bookie(bookie_id)
        self._host, self._port, self._http_port, self._writable = host, port, http_port, writable
        self._rng, self._rack, self._group, self._free_bytes = rng, rack, group, free_bytes
        self._dropped, self._lost_dirs, self._gives_entries = dropped, lost_dirs, gives_entries
        self._limbo, self._floor, self._level = limbo, floor, level
        self._said_free = 0
        self._lease = 0
        self._refused = ""
        self._said: tuple[bool, list[str], tuple[str, bool], int] | None = None
        self._wake = asyncio.Event()
        self._tasks = TaskSet("the registration of the bookie has ended")

    async def start(self) -> None:
        """Returns at once where the metadata is away: it goes on trying."""
        await self._once()
        self._tasks.spawn(every(lambda: _RENEW_S * self._rng.uniform(0.8, 1.0), self._once, wake=self._wake))

    async def stop(self) -> None:
        """Ends the renewals and revokes the lease, so that the key goes at once; where the metadata is away, it goes
        with its lease.
        """
        await self._tasks.close()
        if self._lease:
            try:
                await self._meta.revoke(self._lease)
            except (MetadataError, NotAllowed):
                pass  # the lease ends by itself
            self._lease = 0

    def changed(self) -> None:
        """`writable` may answer something else now."""
        self._wake.set()

    def _free(self) -> int:
        try:
            return self._free_bytes()
        except (OSError, StorageError):
            return self._said_free  # a directory that can't be asked says so elsewhere

    async def _once(self) -> None:
        """One step: a lease where there is none, its renewal, the key where it is not there or says something else."""
        try:
            if self._lease:
                await self._meta.renew(self._lease)
            else:
                self._lease, self._said = await self._meta.grant(LEASE_TTL_MS), None
            said, free = (self._writable(), self._dropped(), self._limbo(), self._floor()), self._free()
            if said != self._said or abs(free - self._said_free) > _FREE_STEP * self._said_free:
                fields = {
                    "host": self._host,
                    "port": self._port,
                    "http_port": self._http_port,
                    "writable": said[0],
                    "rack": self._rack,
                    "level": self._level,
                }
                fields |= {"group": self._group} if self._group else {}
                fields |= {"gives_entries": True} if self._gives_entries else {}
                fields |= {"limbo": said[2]} if said[2][0] else {}
                fields |= {"floor": said[3]} if said[3] else {}
                fields |= {"free_bytes": free, "dropped_dirs": said[1], "lost_dirs": self._lost_dirs()}
                await self._meta.put(self._key, msgpack.packb(fields), lease=self._lease)
                self._said, self._said_free = said, free
        except LeaseLost:
            self._lease = 0
            self._wake.set()
        except NotAllowed as error:  # by metadata of another version, or under the lease lies what is not its own
            self._lease = 0
            if self._refused != str(error):
                self._refused = str(error)
                log.warning("bookie.registration_refused", extra={"key": self._key, "error": self._refused})
        except MetadataError:
            pass  # unavailable: the next pass tries again
