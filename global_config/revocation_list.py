"""RevocationList: the writes to the list of what was revoked, each one a checked transaction.

Is: adding, lifting, and how much there may be. Isn't: the record (`heliograph.model.configuration.revocations`), who
may call it, or the copies by which callers are judged (`region_node.security.authentication.revocations`).
Invariants: a record in force is never deleted, only lifted; what is over is deleted `KEPT_MS` later, when another one
is added, so that every region has heard of it by then. What another region has revoked is never weakened: the leader of
the configuration would refuse it (`global_config.region_write_rights`).
Source: docs/security.md, "Revocation".
"""

from __future__ import annotations

from dataclasses import replace

from global_config import keys
from global_config.write_retries import Tries, busy
from heliograph.kv.metadata_store import ABSENT, OPS_MAX, Delete, MetadataStore, Put, rows_under
from heliograph.model.configuration.revocations import REVOCATIONS, Revocation, revocation
from heliograph.model.errors import CorruptData, NotAllowed, NotFound, VersionConflict
from heliograph.runtime.clock import Rng

RECORDS_MAX = 10_000
KEPT_MS = 30 * 86_400_000
"""A region that is cut off for longer puts back what was lifted meanwhile."""


class RevocationList:
    """Over a linearizable store of the global configuration. records_max: how many there may be, lifted ones included.
    Every call raises MetadataUnavailable, OutcomeUnknown.
    """

    def __init__(self, store: MetadataStore, rng: Rng | None = None, *, records_max: int = RECORDS_MAX) -> None:
        self._store, self._rng, self._records_max = store, rng, records_max

    async def _others(self, record: Revocation, region: str) -> tuple[str, ...]:
        """Those beside this one that have revoked it, and are there still."""
        return tuple([name for name in record.regions if name != region and await self._store.get(keys.region(name))])

    async def add(self, record: Revocation) -> tuple[Revocation | None, Revocation]:
        """Puts a record in the place of one of the same name. Returns that one, and what is there now: newer by its own
        times, and as strong as both where other regions have revoked it too. Raises NotAllowed: there are too many.
        """
        region = "".join(record.regions)
        async for _ in Tries(self._rng):
            rows = await self._rows()
            before = next(((found, version) for found, version in rows if found.key == record.key), None)
            over = [
                Delete(found.key, version)
                for found, version in rows
                if found.over(record.since_ms, kept_ms=KEPT_MS) and found.key != record.key
            ]
            if before is None and len(rows) - len(over) >= self._records_max:
                raise NotAllowed(
                    f"{len(rows)} revocations are kept, and there may be {self._records_max}: lift those that are "
                    "needed no more with `heliograph revocations remove` (they go 30 days later), revoke tokens by "
                    "their subject instead of one by one, or take the key that signed them out"
                )
            if before is not None:  # by a clock that is ahead
                record = replace(record, since_ms=max(record.since_ms, before[0].since_ms + 1))
                if not before[0].lifted_ms and (others := await self._others(before[0], region)):
                    record = _with(record, before[0], tuple(sorted({*others, region} - {""})))
            put = Put(record.key, record.encode(), ABSENT if before is None else before[1])
            try:
                try:
                    await self._store.txn([put, *over[: OPS_MAX - 1]])
                except NotAllowed:  # by the leader's clock something is not over for long enough: that can wait
                    if not over:
                        raise
                    await self._store.txn([put])
            except VersionConflict:
                continue
            return None if before is None else before[0], record
        raise busy()

    async def lift(self, kind: str, name: str, now_ms: int, by: str, region: str = "") -> tuple[Revocation, Revocation]:
        """What it names counts again, or, where other regions have revoked it too, is revoked by these alone. Returns
        the record before and after. Raises NotFound; NotAllowed: it is others' alone.
        """
        async for _ in Tries(self._rng):
            stored = await self._store.get(revocation(kind, name))
            before = None if stored is None else Revocation.decode(stored[0])
            if stored is None or before is None or before.lifted_ms:
                raise NotFound(f"no {kind} {name!r} is revoked: `heliograph revocations list` shows what is")
            after = replace(before, lifted_ms=now_ms, lifted_by=by)
            if others := await self._others(before, region):
                if region not in before.regions:
                    raise NotAllowed(f"{kind} {name!r} was revoked in {' and '.join(others)}: lift it there")
                after = replace(before, since_ms=before.since_ms + 1, regions=others)
            try:
                await self._store.put(after.key, after.encode(), expected=stored[1])
            except VersionConflict:
                continue
            return before, after
        raise busy()

    async def _rows(self) -> list[tuple[Revocation, int]]:
        found: list[tuple[Revocation, int]] = []
        for _, value, version in await rows_under(self._store, REVOCATIONS):
            try:
                found.append((Revocation.decode(value), version))
            except CorruptData:  # of a newer version: that one has it in its list
                continue
        return found


def _with(record: Revocation, before: Revocation, regions: tuple[str, ...]) -> Revocation:
    """The new one, that revokes what the one before does as well."""
    return replace(
        record,
        regions=regions,
        before_ms=_stronger(record.before_ms, before.before_ms),
        until_ms=_stronger(record.until_ms, before.until_ms),
    )


def _stronger(one: int, other: int) -> int:
    """The later of two times, where 0 is later than any."""
    return max(one, other) if one and other else 0
