"""Changes of leadership: how the leadership of a namespace may change, and for whom that must wait.

Is: the transitions as values, and their writes by compare-and-set. Isn't: an order of steps for an operator
(`region_node.dr.operations.operation`).
Invariants: the active region changes only out of `draining` or `fenced`, in a transaction which finds the leadership at
the very version that every broker of the old region obeys, or whose lease has ended; the epoch rises with it. (A broker
that comes between that look and the transaction reads the leadership behind its registration, and finds it closed.) An
ended lease says something only of a broker that has heard of the leadership: nothing flips before every broker of every
region was seen registered behind its making, unless somebody takes that upon himself. An epoch of a namespace is never
used again: where a leadership ends its last one is written down. One that asks, because the configuration went
back, is nobody's until it is set again: under another epoch, as a leadership that begins.
Source: docs/protocols/leadership.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from global_config.write_retries import Tries
from heliograph.kv.metadata_store import ABSENT, OPS_MAX, Check, Delete, MetadataStore, Op, Put, pages_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.configuration.leadership import (
    DELETED,
    DRAINING,
    ENDED,
    FENCED,
    FLOOR,
    LEADERSHIP,
    OPEN,
    SUBSCRIPTIONS,
    Leadership,
    Writer,
    following,
    is_subscription,
    leadership,
    writers,
)
from heliograph.model.errors import CorruptData, MetadataUnavailable, NotAllowed, NotFound, VersionConflict
from heliograph.runtime.clock import Rng

_DELETED = OPS_MAX // 4


def closing(record: Leadership, to: str, state: str, now_ms: int) -> Leadership:
    """The active region stops taking messages (DRAINING), or confirming them (FENCED). Raises NotAllowed."""
    if to == record.active:
        raise NotAllowed(f"{to} is the active region already")
    if record.state == FENCED and state == DRAINING:
        raise NotAllowed("a failover is under way: finish it, or cancel it, first")
    return replace(record, state=state, to=to, since_ms=now_ms)


def reopened(record: Leadership, now_ms: int) -> Leadership:
    """The same region goes on; where the leadership asks, nobody does."""
    return replace(record, state=FENCED if record.asks else OPEN, to="", since_ms=now_ms)


def flipped(record: Leadership, now_ms: int) -> Leadership:
    """The next region is the active one. Raises NotAllowed."""
    if record.state == OPEN or not record.to:
        raise NotAllowed("nothing is closed: there is no region to flip to")
    return replace(record, active=record.to, epoch=following(record.epoch), state=OPEN, to="", asks="", since_ms=now_ms)


def waits_for(namespace: str, version: int, found: Mapping[str, Writer]) -> list[str]:
    """The brokers that do not yet obey the leadership of that version."""
    return sorted(broker for broker, writer in found.items() if not writer.obeys(namespace, version))


def unheard(
    name: str, record: Leadership, version: int, found: Mapping[str, Mapping[str, Writer]]
) -> dict[str, tuple[list[str], int]]:
    """Region -> those of its brokers that may not have heard that there is a leadership, and how many brokers of it are
    known, of the regions in `found`. ([], 0): no broker there has a lease, so nobody knows who there is.
    """
    left: dict[str, tuple[list[str], int]] = {}
    for region, brokers in found.items():
        if region in record.heard:
            continue
        known = {_broker(key) for key in brokers}
        known.update(broker for writer in brokers.values() for broker in writer.beside or ())
        silent = [key for key, writer in brokers.items() if writer.beside is None or not writer.obeys(name, version)]
        silent += sorted(known.difference(map(_broker, brokers)))
        if silent or not known:
            left[region] = silent, len(known)
    return left


def with_heard(
    record: Leadership, regions: Sequence[str], left: Mapping[str, tuple[list[str], int]]
) -> Leadership | None:
    """Those of `regions` that are not in `left` have heard; None: that is known already."""
    heard = {*record.heard, *(region for region in regions if region not in left)}
    return None if len(heard) == len(record.heard) else replace(record, heard=tuple(sorted(heard)))


def unheard_text(left: Mapping[str, tuple[list[str], int]]) -> str:
    """In words, with numbers: who may go on as if there were no leadership. "": nobody."""
    return "; ".join(
        f"{region}: {len(brokers)} of {known} brokers have not said that they know of it ({', '.join(brokers[:3])})"
        if known
        else f"{region}: no broker has a lease, none has said that it knows of it"
        for region, (brokers, known) in sorted(left.items())
    )


def _epoch(value: bytes) -> int:
    """The epoch of one that ended, or below which none begins. Raises CorruptData: then none may begin."""
    try:
        return int(value)
    except ValueError as error:
        raise CorruptData(f"the epoch of earlier leaderships: {value[:40]!r} is none") from error


def _broker(key: str) -> str:
    """Whose the last part of a writer's key is."""
    return key.rpartition(".")[0]


class Switching:
    """The writes, over a linearizable store of the global configuration. Every call raises MetadataUnavailable,
    OutcomeUnknown.
    """

    def __init__(self, store: MetadataStore, wall_ms: Callable[[], int], rng: Rng | None = None) -> None:
        """rng: spreads tries that collided."""
        self._store, self._wall_ms, self._rng = store, wall_ms, rng

    async def all(self) -> dict[str, tuple[Leadership, int]]:
        """Returns namespace -> (leadership, version of its key), of every one that is active-passive."""
        return {
            key.removeprefix(LEADERSHIP): (Leadership.decode(value), version)
            async for rows in pages_under(self._store, LEADERSHIP)
            for key, value, version in rows
        }

    async def get(self, namespace: str) -> tuple[Leadership, int]:
        """Returns the leadership and the version of its key. Raises NotFound where the namespace is active-active."""
        found = await self._store.get(leadership(namespace))
        if found is None:
            raise NotFound(
                f"namespace {namespace} is active-active: every region of it takes messages; `heliograph dr set` "
                "makes it active-passive"
            )
        return Leadership.decode(found[0]), found[1]

    async def writers(self, region: str) -> dict[str, Writer]:
        """Broker -> what it obeys, of those whose lease counts: nothing, where that cannot be read."""
        prefix = writers(region)
        return {
            key.removeprefix(prefix): readable(Writer.decode, key, value) or Writer()
            async for rows in pages_under(self._store, prefix)
            for key, value, _ in rows
        }

    async def unheard(self, name: str, regions: Sequence[str]) -> dict[str, tuple[list[str], int]]:
        """As the function of that name says it; empty: the leadership is effective in all of `regions`. Raises
        NotFound.
        """
        record, version = await self.get(name)
        return unheard(name, record, version, await self._writers_of(record, regions))

    async def settle(self, name: str, regions: Sequence[str]) -> dict[str, tuple[list[str], int]]:
        """The same; who has heard is written down, and counts from then on, whatever becomes of its leases."""
        async for _ in Tries(self._rng):
            record, version = await self.get(name)
            left = unheard(name, record, version, await self._writers_of(record, regions))
            new = with_heard(record, regions, left)
            if new is None or await self._put(name, new, version):
                return left
        raise _busy()

    async def _writers_of(self, record: Leadership, regions: Sequence[str]) -> dict[str, dict[str, Writer]]:
        return {region: await self.writers(region) for region in regions if region not in record.heard}

    async def begin(self, namespace: str, active: str, slo: dict[str, float]) -> Leadership:
        """The namespace becomes active-passive, or promises something else. Raises NotAllowed (another region is the
        active one). One that asks is answered.
        """
        async for _ in Tries(self._rng):
            found = await self._store.get(leadership(namespace))
            if found is None:
                ended = await self._store.get(ENDED + namespace)
                epoch = following(await self._floor() if ended is None else _epoch(ended[0]))
                new = Leadership(active=active, epoch=epoch, began=epoch, since_ms=self._wall_ms(), slo=slo)
                behind = Check(ENDED + namespace, ABSENT if ended is None else ended[1])
                if await self._txn([Put(leadership(namespace), new.encode(), ABSENT), behind]):
                    return new
                continue
            old, version = Leadership.decode(found[0]), found[1]
            if old.asks:
                epoch = following(old.epoch)
                new = Leadership(active=active, epoch=epoch, began=epoch, since_ms=self._wall_ms(), slo=slo or old.slo)
                if await self._put(namespace, new, version):
                    return new
                continue
            if old.active != active:
                raise NotAllowed(f"{namespace} is active in {old.active}: `heliograph dr switchover` moves it")
            new = replace(old, slo=slo)
            if new == old:
                return old
            if await self._put(namespace, new, version):
                return new
        raise _busy()

    async def _floor(self) -> int:
        """Above it the epochs of a namespace begin that has no leadership, and none that ended."""
        found = [await self._store.get(key) for key in (FLOOR, DELETED)]
        return max(0 if row is None else _epoch(row[0]) for row in found)

    async def end(self, namespace: str) -> None:
        """Every region of it takes messages again. Raises NotFound, NotAllowed (it is being moved)."""
        async for _ in Tries(self._rng):
            record, version = await self.get(namespace)
            if record.state != OPEN and not record.asks:
                raise NotAllowed(f"{namespace} is being moved to {record.to}: finish that, or cancel it, first")
            ops: list[Op] = [Delete(leadership(namespace), version)]
            if not is_subscription(namespace):
                ops.append(Put(ENDED + namespace, str(record.epoch).encode()))
            if await self._txn(ops):
                return
        raise _busy()

    async def mark_gone(self, name: str, region: str, regions: Sequence[str], *, gone: bool) -> None:
        """The region does not have the subscription any more (gone), or has it again. Where none of `regions` has it
        the leadership ends. Raises NotFound.
        """
        async for _ in Tries(self._rng):
            old, version = await self.get(name)
            marked = {*old.gone, region} if gone else {*old.gone} - {region}
            if gone and marked.issuperset(regions):
                if await self._txn([Delete(leadership(name), version)]):
                    return
                continue
            new = replace(old, gone=tuple(sorted(marked)))
            if new == old or await self._put(name, new, version):
                return
        raise _busy()

    async def forget(self, name: str) -> None:
        """A topic, or a namespace, is gone in every region: what comes under its name begins anew. name: the topic's
        full name, or `tenant/namespace`.
        """
        await self.forget_subscriptions(name)
        if "://" not in name:
            await self._store.delete(leadership(name))
            await self._store.delete(ENDED + name)

    async def forget_subscriptions(self, name: str) -> None:
        """Those of a topic, or a namespace, that goes begin anew. name: as in `forget`."""
        prefix = f"{SUBSCRIPTIONS}{name}/" if "://" in name else f"{SUBSCRIPTIONS}persistent://{name}/"
        async for rows in pages_under(self._store, prefix):
            for start in range(0, len(rows), _DELETED):
                await self._store.txn([Delete(key) for key, _, _ in rows[start : start + _DELETED]])

    async def change(self, namespace: str, change: Callable[[Leadership], Leadership]) -> tuple[Leadership, int]:
        """What is stored then, with its version. Never of the active region: that is `flip`. Raises NotFound,
        NotAllowed.
        """
        async for _ in Tries(self._rng):
            old, version = await self.get(namespace)
            new = change(old)
            assert new.active == old.active and new.epoch == old.epoch
            if replace(new, since_ms=old.since_ms) == old:
                return old, version
            if await self._put(namespace, new, version):
                return await self.get(namespace)
        raise _busy()

    async def waiting(self, namespace: str) -> list[str]:
        """The brokers of the active region that do not yet obey what the leadership says now."""
        record, version = await self.get(namespace)
        return waits_for(namespace, version, await self.writers(record.active))

    async def flip(
        self,
        namespace: str,
        to: str,
        since_ms: int | None = None,
        *,
        regions: Sequence[str],
        beside: Callable[[], Awaitable[Sequence[Op]]] | None = None,
    ) -> tuple[Leadership | None, list[str]]:
        """(what is stored then, []); or (None, the brokers of the old region that must obey first, or whose lease must
        end; or who of `regions` may not have heard of the leadership).

        regions: those of the namespace; none where somebody has said that whoever has not heard may go on. beside: says
        what the same write does, too; asked only where it would flip.
        Raises NotAllowed, also where it is closed for another region by now; since_ms: or was opened and closed again,
        for the same.
        """
        async for _ in Tries(self._rng):
            record, version = await self.get(namespace)
            if record.state != OPEN and (record.to != to or since_ms not in (None, record.since_ms)):
                raise NotAllowed(
                    f"{namespace} is being moved to {record.to} by somebody else now: finish that, or cancel it, first"
                )
            new = flipped(record, self._wall_ms())
            waits = waits_for(namespace, version, await self.writers(record.active))
            if left := unheard(namespace, record, version, await self._writers_of(record, regions)):
                waits.append(unheard_text(left))
            if waits:
                return None, waits
            more = () if beside is None else await beside()
            if await self._txn([Put(leadership(namespace), new.encode(), version), *more]):
                return new, []
        raise _busy()

    async def _put(self, namespace: str, record: Leadership, version: int) -> bool:
        return await self._txn([Put(leadership(namespace), record.encode(), version)])

    async def _txn(self, ops: list[Op]) -> bool:
        try:
            await self._store.txn(ops)
        except VersionConflict:
            return False
        return True


def _busy() -> MetadataUnavailable:
    return MetadataUnavailable("others change the same leadership all the time: try again")
