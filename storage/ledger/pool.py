"""BookiePool: the bookies of the region as one broker sees them.

Is: a watch on their registrations, one client each, and the placement of new ensembles. Isn't: quorum logic.
Invariants: a bookie is chosen only while it is registered as writable; one that has just failed is chosen only where there is no other.
A client of a bookie whose registration is gone stays usable: its lease may have ended while its data is still there to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import msgpack

from heliograph.model.errors import BookieUnavailable, NotEnoughBookies
from heliograph.raft.store import MetadataStore
from heliograph.runtime.clock import Rng
from local_meta import keys
from storage.ledger.port import BookiePort

SUSPECT_S = 5.0
"""For how long a bookie that failed is the last choice."""
ClientFactory = Callable[[str, str, int], BookiePort]


class BookiePool:
    """Hands out clients and places ensembles."""

    def __init__(self, meta: MetadataStore, client_factory: ClientFactory, rng: Rng) -> None:
        self._meta, self._factory, self._rng = meta, client_factory, rng
        self._loop = asyncio.get_running_loop()
        self._addresses: dict[str, tuple[str, int]] = {}
        self._writable: dict[str, bool] = {}
        self._clients: dict[str, BookiePort] = {}
        self._suspects: dict[str, float] = {}
        self._waiting: dict[object, Callable[[], None]] = {}
        self._stop = meta.watch(keys.BOOKIES, self._on_registration)

    async def ready(self) -> None:
        """Returns once the bookies that were registered at the start are known."""
        await self._meta.synced(keys.BOOKIES)

    def client(self, bookie: str) -> BookiePort:
        """Raises BookieUnavailable where its address was never seen."""
        client = self._clients.get(bookie)
        if client is None:
            address = self._addresses.get(bookie)
            if address is None:
                raise BookieUnavailable(f"bookie {bookie} is not registered")
            self._clients[bookie] = client = self._factory(bookie, *address)
        return client

    def registered(self, bookie: str) -> bool:
        return bookie in self._writable

    def writable(self) -> list[str]:
        return sorted(b for b, writable in self._writable.items() if writable)

    def pick(self, count: int, exclude: Collection[str] = ()) -> tuple[str, ...]:
        """`count` writable bookies by chance, the suspects last. Raises NotEnoughBookies."""
        found = [b for b in self.writable() if b not in exclude]
        if len(found) < count:
            raise NotEnoughBookies(f"{count} bookies are needed, and only {len(found)} more are writable in this region")
        self._rng.shuffle(found)
        found.sort(key=self._suspicious)
        return tuple(found[:count])

    def spare(self, exclude: Collection[str]) -> str | None:
        """A writable bookie outside `exclude` that has not just failed; None where there is none."""
        found = [b for b in self.writable() if b not in exclude and not self._suspicious(b)]
        return self._rng.choice(found) if found else None

    def suspect(self, bookie: str) -> None:
        """It has just failed."""
        self._suspects[bookie] = self._loop.time() + SUSPECT_S

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back whenever a registration comes, goes, or changes. Returns "stop". For those who wait for a bookie."""
        token = object()
        self._waiting[token] = callback

        def stop() -> None:
            self._waiting.pop(token, None)

        return stop

    def close(self) -> None:
        self._stop()
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _suspicious(self, bookie: str) -> bool:
        return self._suspects.get(bookie, 0.0) > self._loop.time()

    def _on_registration(self, key: str, value: bytes | None, _version: int) -> None:
        bookie = keys.id_of(key)
        if value is None:
            self._writable.pop(bookie, None)
        else:
            fields = msgpack.unpackb(value)
            address = (fields["host"], fields["port"])
            if self._addresses.get(bookie) != address:
                self._addresses[bookie] = address
                if (old := self._clients.pop(bookie, None)) is not None:
                    old.close()
            self._writable[bookie] = bool(fields.get("writable", True))
            self._suspects.pop(bookie, None)
        for callback in list(self._waiting.values()):
            callback()
