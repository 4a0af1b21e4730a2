"""BookiePool: the bookies of the region as one broker sees them.

Is: a watch on their registrations, one client each, and the placement of new ensembles. Isn't: quorum logic.
Invariants: a bookie is chosen only while it is registered as writable and is not being emptied; one that has just
failed is chosen only where there is no other.
A client of a bookie whose registration is gone stays usable: its lease may have ended while its data is still there to
be read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from itertools import islice

import msgpack

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import BookieUnavailable, CorruptData, NotEnoughBookies
from heliograph.model.ledger_homes import home_of
from heliograph.model.ledger_metadata import ANYWHERE, Affinity, LedgerMetadata
from heliograph.model.striping import Striping
from heliograph.runtime.clock import Rng
from local_meta import keys
from storage.ledger.bookies.bookie_labels import Labels
from storage.ledger.bookies.bookie_port import BookiePort
from storage.ledger.bookies.placement import Candidate, choose, racks
from storage.ledger.bookies.quarantine import Quarantine

log = logging.getLogger("storage.ledger.pool")

_WOKEN_AT_ONCE = 256
"""So many of those that wait for a bookie are called in one pass of the event loop."""

ClientFactory = Callable[[str, str, int], BookiePort]


class _Waiters:
    """Who waits for a bookie: each open ledger may, so that they are not all called in one pass of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._waking: dict[object, Callable[[], None]] = {}
        """Those that have not been called yet since the last change."""

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        token = object()
        self._callbacks[token] = callback

        def stop() -> None:
            self._callbacks.pop(token, None)
            self._waking.pop(token, None)

        return stop

    def wake(self) -> None:
        """Calls the first ones now; where it is under way already, whoever is to be called yet is called once."""
        under_way = bool(self._waking)
        self._waking.update(self._callbacks)
        if not under_way:
            self._wake_some()

    def _wake_some(self) -> None:
        try:
            for token in list(islice(self._waking, _WOKEN_AT_ONCE)):
                if (callback := self._waking.pop(token, None)) is not None:
                    callback()
        finally:
            if self._waking:
                self._loop.call_soon(self._wake_some)

    def close(self) -> None:
        self._waking.clear()


class BookiePool:
    """Hands out clients and places ensembles."""

    def __init__(
        self,
        meta: MetadataStore,
        client_factory: ClientFactory,
        rng: Rng,
        *,
        racks_min: int = 1,
        region_level: Callable[[], int] = lambda: 1,
    ) -> None:
        """racks_min: on so many racks the copies of an entry lie, or nothing is put anywhere. region_level: the
        region's feature level: a bookie of an earlier version gets nothing new, since it refuses what it does not know.
        """
        self.racks_min = racks_min
        self._meta, self._factory, self._rng = meta, client_factory, rng
        self._loop = asyncio.get_running_loop()
        self._region_level = region_level
        self._levels: dict[str, int] = {}
        self._addresses: dict[str, tuple[str, int]] = {}
        self._http: dict[str, str] = {}
        self._writable: dict[str, bool] = {}
        self._racks: dict[str, str] = {}
        self._groups: dict[str, str] = {}
        self._free_bytes: dict[str, int] = {}
        self._lost_dirs: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.floors: dict[str, int] = {}
        """By bookie: the ledger from which on all are of its life."""
        self.limbo: dict[str, bool] = {}
        """Bookies which say that they may have lost something: they store nothing, and what they have is no copy to
        count on -> whether that is only until somebody says which life of theirs this is.
        """
        self._away: dict[str, float] = {}
        self._made_at = self._loop.time()
        self._clients: dict[str, BookiePort] = {}
        self._quarantine = Quarantine()
        self._waiters = _Waiters()
        self._draining: dict[str, None] = {}
        self.labels: dict[str, Labels] = {}
        """What an operator says of a bookie, which counts above what it says of itself."""
        self._stops = [
            meta.watch(keys.BOOKIES, self._on_registration),
            meta.watch(keys.DECOMMISSIONS, self._on_decommission),
            meta.watch(keys.BOOKIE_LABELS, self._on_labels),
        ]

    async def ready(self) -> None:
        """Returns once the bookies that were registered at the start are known."""
        await self._meta.synced(keys.BOOKIES)
        await self._meta.synced(keys.DECOMMISSIONS)
        await self._meta.synced(keys.BOOKIE_LABELS)

    def client(self, bookie: str) -> BookiePort:
        """Raises BookieUnavailable where its address was never seen."""
        client = self._clients.get(bookie)
        if client is None:
            address = self._addresses.get(bookie)
            if address is None:
                raise BookieUnavailable(f"bookie {bookie} is not registered")
            self._clients[bookie] = client = self._factory(bookie, *address)
        return client

    def http_address(self, bookie: str) -> str:
        """host:port where it gives entries to who has a permit; "": nowhere, or it is away."""
        return self._http.get(bookie, "") if bookie in self._writable else ""

    def registered(self, bookie: str) -> bool:
        return bookie in self._writable

    def comes_soon(self, bookie: str, within_s: float) -> bool:
        """Whether one that did not answer may do so soon: it is registered, or was less than `within_s` ago as far as
        is known here. One that is in limbo, or was being emptied, is not waited for.
        """
        if bookie in self._writable:
            return bookie not in self.limbo
        since = self._away.get(bookie, self._made_at)
        return bookie not in self._draining and self._loop.time() - since < within_s

    def lacks(self, bookie: str, ledger: int) -> bool:
        """Whether that bookie is in limbo, or a directory of it failed in which it had that ledger: what it still has
        of it is no copy to count on.
        """
        if bookie in self.limbo:
            return True
        directories, lost = self._lost_dirs.get(bookie, (1, ()))
        return bool(lost) and home_of(ledger, directories) in lost

    def forgot(self, bookie: str, ledger: int) -> bool:
        """Whether that bookie is there, in a life that began after the ledger was made: it takes no more of its entries
        from its writer, and may have lost those that it had.
        """
        return bookie in self._writable and bookie not in self.limbo and ledger < self.floors.get(bookie, 0)

    def failed_directories(self) -> list[tuple[str, int]]:
        """(bookie, index of a ledger directory), of those that are registered."""
        return sorted((b, at) for b, (_, lost) in self._lost_dirs.items() if b in self._writable for at in lost)

    def rack(self, bookie: str) -> str:
        """As an operator says, else as it says of itself; "" where nobody says anything."""
        labels = self.labels.get(bookie)
        return labels.rack if labels is not None else self._racks.get(bookie, "")

    def group(self, bookie: str) -> str | None:
        """As of `rack`; None of one that is not registered."""
        if bookie not in self._writable:
            return None
        labels = self.labels.get(bookie)
        return labels.group if labels is not None else self._groups.get(bookie, "")

    def draining(self, bookie: str) -> bool:
        """Whether it is being emptied: it is still read from, and gets nothing new."""
        return bookie in self._draining

    def all_registered(self) -> list[str]:
        return sorted(self._writable)

    def all_draining(self) -> list[str]:
        return sorted(self._draining)

    def writable(self) -> list[str]:
        least = self._region_level()
        return sorted(
            b
            for b, writable in self._writable.items()
            if writable and b not in self._draining and self._levels[b] >= least
        )

    def best_first(self, bookies: Sequence[str]) -> list[str]:
        """For a read: those that are there, then those that have just failed, then those that are not registered; else
        in the order given.
        """
        return sorted(bookies, key=lambda b: (b not in self._writable, self.suspected(b)))

    def pick(self, count: int, write_quorum: int = 0, affinity: Affinity = ANYWHERE) -> tuple[str, ...]:
        """`count` writable bookies, as `placement` chooses; of a striped ensemble at least `write_quorum`. Raises
        NotEnoughBookies.
        """
        found, least = self._allowed((), affinity), write_quorum or count
        if len(found) < least:
            kept = f" of the groups {', '.join((*affinity.primary, *affinity.secondary))}" if affinity.primary else ""
            raise NotEnoughBookies(
                f"{least} bookies{kept} are needed, and only {len(found)} are writable in this region"
            )
        well = [b for b in found if not self.suspected(b)]
        width = min(count, max(len(well), least))  # rather narrower than on one that has just failed
        chosen = choose([self._candidate(b, affinity) for b in found], width, (), self._rng, least)
        for places in Striping(width, least).sets:
            if (lies := racks((chosen[place] for place in places), self.rack)) < min(self.racks_min, least):
                raise NotEnoughBookies(
                    f"the copies of an entry would lie on {lies} racks, and broker.racks_min is {self.racks_min}: "
                    "start bookies on other racks, or lower it"
                )
        return tuple(chosen)

    def spare(
        self,
        exclude: Collection[str],
        beside: Sequence[Sequence[str]] = (),
        affinity: Affinity = ANYWHERE,
        forgiven_s: float | None = None,
    ) -> str | None:
        """A writable bookie outside `exclude` that has not just failed; None where there is none.

        forgiven_s: rather one that failed so long ago, and may be well again, than none.
        beside: who has the other copies, write set by write set; each keeps to `racks_min` with it.
        """
        found = [
            self._candidate(b, affinity)
            for b in self._allowed(exclude, affinity)
            if (
                not self.suspected(b)
                or (forgiven_s is not None and self._quarantine.held_s(b, self._loop.time()) >= forgiven_s)
            )
            and all(racks((*others, b), self.rack) >= min(self.racks_min, len(others) + 1) for others in beside)
        ]
        chosen = choose(
            found, 1, [self.rack(b) for b in dict.fromkeys(b for others in beside for b in others)], self._rng
        )
        return chosen[0] if chosen else None

    def can_go_on(self, write_quorum: int, affinity: Affinity, but: str = "", *, forgiven: bool = False) -> bool:
        """Whether a ledger could be made without `but`, of bookies that have not just failed; or, forgiven, of any."""
        well = [b for b in self._allowed((but,), affinity) if forgiven or not self.suspected(b)]
        return len(well) >= write_quorum and racks(well, self.rack) >= min(self.racks_min, write_quorum)

    def _allowed(self, exclude: Collection[str], affinity: Affinity) -> list[str]:
        return [b for b in self.writable() if b not in exclude and affinity.allows(self.group(b) or "")]

    def _candidate(self, bookie: str, affinity: Affinity) -> Candidate:
        secondary = bool(affinity.primary) and (self.group(bookie) or "") not in affinity.primary
        return Candidate(bookie, self.rack(bookie), self._free_bytes.get(bookie, 0), self.suspected(bookie), secondary)

    def suspect(self, bookie: str) -> None:
        """It has just failed, or is slow: nothing new is put on it for a while, where there are others."""
        self._quarantine.on_failed(bookie, self._loop.time())

    def suspected(self, bookie: str) -> bool:
        """Whether it has just failed, or was slow."""
        return self._quarantine.holds(bookie, self._loop.time())

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back after registrations came, went, or changed: soon, and once for changes that come together. Returns
        "stop". For those who wait for a bookie.
        """
        return self._waiters.add(callback)

    def close(self) -> None:
        for stop in self._stops:
            stop()
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._waiters.close()

    def free_bytes(self, bookie: str) -> int:
        """What it said last; 0: nothing."""
        return self._free_bytes.get(bookie, 0)

    def _on_registration(self, key: str, value: bytes | None, _version: int) -> None:
        bookie = keys.id_of(key)
        if value is None:
            if self._writable.pop(bookie, None) is not None:
                self._away[bookie] = self._loop.time()
            self.limbo.pop(bookie, None)
        else:
            fields = msgpack.unpackb(value)
            address = (fields["host"], fields["port"])
            if self._addresses.get(bookie) != address:
                self._addresses[bookie] = address
                if (old := self._clients.pop(bookie, None)) is not None:
                    old.close()
            self._http[bookie] = (
                f"{_host(fields['host'])}:{fields['http_port']}"
                if fields.get("gives_entries") and fields.get("http_port")
                else ""
            )
            writable, rack, free = (
                bool(fields.get("writable", True)),
                str(fields.get("rack", "")),
                int(fields.get("free_bytes", 0)),
            )
            group = str(fields.get("group", ""))
            self._levels[bookie] = level = int(fields.get("level", 1))
            if level < (present := self._region_level()):
                log.warning("bookie.older", extra={"bookie": bookie, "level": level, "region_level": present})
            directories, lost = fields.get("lost_dirs", (1, ()))
            floor = int(fields.get("floor", 0))
            before = (
                self._writable.get(bookie),
                self._racks.get(bookie),
                self._groups.get(bookie),
                self._lost_dirs.get(bookie),
                self.limbo.get(bookie),
                self.floors.get(bookie, 0),
            )
            limbo, in_doubt = fields.get("limbo", ("", False))
            self.limbo.pop(bookie, None)
            if limbo:
                self.limbo[bookie] = bool(in_doubt)
            self._lost_dirs[bookie] = int(directories), tuple(lost)
            self.floors[bookie] = floor
            said = (writable, rack, group, self._lost_dirs[bookie], self.limbo.get(bookie), floor) == before
            only_space = said and self._free_bytes.get(bookie) != free
            self._writable[bookie], self._racks[bookie], self._groups[bookie], self._free_bytes[bookie] = (
                writable,
                rack,
                group,
                free,
            )
            if only_space:
                return
            self._quarantine.on_registered(bookie, self._loop.time())
        self._waiters.wake()

    def _on_decommission(self, key: str, value: bytes | None, _version: int) -> None:
        if value is None:
            self._draining.pop(keys.id_of(key), None)
        else:
            self._draining[keys.id_of(key)] = None
        self._waiters.wake()

    def _on_labels(self, key: str, value: bytes | None, _version: int) -> None:
        bookie = keys.id_of(key)
        if value is None:
            self.labels.pop(bookie, None)
        else:
            try:
                self.labels[bookie] = Labels.decode(value)
            except CorruptData as error:  # what was heard last holds
                log.warning("bookie.labels_unreadable", extra={"bookie": bookie, "error": str(error)})
                return
        self._waiters.wake()


def ends_for(pool: BookiePool, metadata: LedgerMetadata, bookie: str) -> bool:
    """Whether `bookie` began a new life since an open ledger was made, so that it takes nothing of it any more, and the
    next ledger can be made: then this one is ended where there is no spare.
    """
    return pool.forgot(bookie, metadata.ledger) and pool.can_go_on(
        metadata.write_quorum, metadata.affinity, forgiven=True
    )


def _host(name: str) -> str:
    """As a URL has it."""
    return f"[{name}]" if ":" in name else name
