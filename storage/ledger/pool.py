"""BookiePool: the bookies of the region as one broker sees them.

Is: a watch on their registrations, one client each, and the placement of new ensembles. Isn't: quorum logic.
Invariants: a bookie is chosen only while it is registered as writable and is not being emptied; one that has just failed is chosen only where
there is no other.
A client of a bookie whose registration is gone stays usable: its lease may have ended while its data is still there to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import msgpack

from heliograph.model.errors import BookieUnavailable, NotEnoughBookies
from heliograph.raft.store import MetadataStore
from heliograph.runtime.clock import Rng
from local_meta import keys
from storage.ledger.placement import Candidate, choose
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
        self._racks: dict[str, str] = {}
        self._free_bytes: dict[str, int] = {}
        self._clients: dict[str, BookiePort] = {}
        self._suspects: dict[str, float] = {}
        self._waiting: dict[object, Callable[[], None]] = {}
        self._draining: dict[str, None] = {}
        self._stops = [meta.watch(keys.BOOKIES, self._on_registration), meta.watch(keys.DECOMMISSIONS, self._on_decommission)]

    async def ready(self) -> None:
        """Returns once the bookies that were registered at the start are known."""
        await self._meta.synced(keys.BOOKIES)
        await self._meta.synced(keys.DECOMMISSIONS)

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

    def draining(self, bookie: str) -> bool:
        """Whether it is being emptied: it is still read from, and gets nothing new."""
        return bookie in self._draining

    def all_registered(self) -> list[str]:
        return sorted(self._writable)

    def all_draining(self) -> list[str]:
        return sorted(self._draining)

    def writable(self) -> list[str]:
        return sorted(b for b, writable in self._writable.items() if writable and b not in self._draining)

    def best_first(self, bookies: Sequence[str]) -> list[str]:
        """For a read: those that are there, then those that have just failed, then those that are not registered; else in the order given."""
        return sorted(bookies, key=lambda b: (b not in self._writable, self._suspicious(b)))

    def pick(self, count: int, exclude: Collection[str] = ()) -> tuple[str, ...]:
        """`count` writable bookies, as `placement` chooses. Raises NotEnoughBookies."""
        found = [b for b in self.writable() if b not in exclude]
        if len(found) < count:
            raise NotEnoughBookies(f"{count} bookies are needed, and only {len(found)} more are writable in this region")
        return tuple(choose([self._candidate(b) for b in found], count, (), self._rng))

    def spare(self, exclude: Collection[str], beside: Sequence[str] = ()) -> str | None:
        """A writable bookie outside `exclude` that has not just failed; None where there is none. beside: who has the other copies."""
        found = [self._candidate(b) for b in self.writable() if b not in exclude and not self._suspicious(b)]
        chosen = choose(found, 1, [self._racks.get(b, "") for b in beside], self._rng)
        return chosen[0] if chosen else None

    def _candidate(self, bookie: str) -> Candidate:
        return Candidate(bookie, self._racks.get(bookie, ""), self._free_bytes.get(bookie, 0), self._suspicious(bookie))

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
        for stop in self._stops:
            stop()
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
            writable, rack, free = bool(fields.get("writable", True)), str(fields.get("rack", "")), int(fields.get("free_bytes", 0))
            only_space = self._writable.get(bookie) == writable and self._racks.get(bookie) == rack and self._free_bytes.get(bookie) != free
            self._writable[bookie], self._racks[bookie], self._free_bytes[bookie] = writable, rack, free
            if only_space:
                return
            self._suspects.pop(bookie, None)
        self._changed()

    def _on_decommission(self, key: str, value: bytes | None, _version: int) -> None:
        if value is None:
            self._draining.pop(keys.id_of(key), None)
        else:
            self._draining[keys.id_of(key)] = None
        self._changed()

    def _changed(self) -> None:
        for callback in list(self._waiting.values()):
            callback()
