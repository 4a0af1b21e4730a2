"""Sealing: encryption at rest, as the ledgers of one broker see it.

Is: the data keys of the region's tenants as the global configuration has them, made and rotated by compare-and-set; who
seals, and opening. Isn't: ciphers (`cipher`), wrapping (`keyring`), or a policy: `wanted` says which topics are sealed.
Invariants: a topic whose policy wants it is never written in the clear: without a usable data key no ledger is made for
it. A key seals only once it is in the configuration durably, so that whoever reads what it sealed finds it there.
Nothing is removed but by `remove`: what the configuration lacks otherwise, since an older copy of it was restored, is
put back there by every broker that has it, and no ledger is made for that tenant before.
Why the global configuration: the keys outlive the region's own metadata, which may be restored from an older backup,
and lost keys are lost data. They lie there wrapped by the region's master key, which other regions do not have.
Source: docs/operating/keys.md; docs/decisions/0114-runs-are-sealed-by-the-broker.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from global_config import keys
from global_config.write_retries import Tries, busy
from heliograph.kv.metadata_store import ABSENT, MetadataStore, rows_under
from heliograph.model.errors import HeliographError, KeyMissing, NotAllowed, NotFound, OutcomeUnknown, VersionConflict
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import CautiousClock, Rng
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.run import Run
from storage.sealing.cipher import UNSEALED, WITH_HEADER, Ciphers, RunSealer
from storage.sealing.keyring import DataKey, Keyring, MasterKeys, TenantKeys, new_secret, refusal, without

log = logging.getLogger("storage.sealing.sealing")

RETRY_S = 5.0


class MasterSource(Protocol):
    """named: where master keys come from, or would; for errors."""

    named: str

    def read(self) -> MasterKeys | None:
        """As they are now; None where none are set."""
        ...


async def _permitted() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SealingRules:
    """`wanted`: whether a topic (its full name) is sealed. `permit`: raises where not every process of the region would
    understand it. `form`: the newest one that every process of the region understands.
    """

    wanted: Callable[[str], bool] = lambda topic: False
    permit: Callable[[], Awaitable[None]] = _permitted
    form: Callable[[], int] = lambda: WITH_HEADER


class Sealing:
    """Seals and opens runs of one broker, and keeps the data keys of its region."""

    def __init__(
        self,
        config: MetadataStore,
        region: str,
        masters: MasterSource,
        expiry: CautiousClock,
        rng: Rng,
        rules: SealingRules = SealingRules(),
    ) -> None:
        """expiry: by which what deletes by time goes."""
        self.wanted, self.form, self._permit = rules.wanted, rules.form, rules.permit
        self._config, self._region, self._source, self._expiry, self._rng = config, region, masters, expiry, rng
        self._ring = Keyring(region, masters.read())
        self._ciphers = Ciphers(self._secret)
        self._prefix = keys.data_keys(region)
        self._stop: Callable[[], None] | None = None
        self._tasks, self._mended = TaskSet("data keys are not put back any more"), set[str]()

    async def start(self) -> None:
        """Returns once the region's keys are known. Raises ConfigError where one of them cannot be opened."""
        self._stop = self._config.watch(self._prefix, self._heard)
        await self._config.synced(self._prefix)
        if self._ring.refused:
            raise refusal(self._ring.refused.values(), self._source.named)

    async def close(self) -> None:
        if self._stop is not None:
            self._stop()
        await self._tasks.close()

    # -- the way of runs ----------------------------------------------------------------------------------------------

    async def ensure(self, topic: str) -> int:
        """Makes the tenant's first key, where the topic is to be sealed. Returns the form of the next ledger's runs;
        UNSEALED: it is not to be sealed. Raises KeyMissing, NotAllowed; what the configuration raises.
        """
        if not self.wanted(topic):
            return UNSEALED
        tenant = TopicName.parse(topic).tenant
        if tenant in self._ring.lost:
            await self._put_back(tenant)
        if self._ring.current(tenant) is None:
            await self._add(tenant, first=True)
        return self.form()

    def sealer(self, topic: str, ledger: int, form: int) -> RunSealer | None:
        """For a writer of a new ledger, after `ensure`, which said `form`; None where the topic is not sealed, and was
        not then.
        """
        if form == UNSEALED and not self.wanted(topic):
            return None
        tenant = TopicName.parse(topic).tenant

        begin = self._ring.current(tenant)
        if begin is None:
            raise KeyMissing(
                self._ring.refused.get(
                    tenant, f"tenant {tenant} has no data key any more in region {self._region}: try again"
                )
            )
        return RunSealer(
            ledger, self._rng.getrandbits(64), begin, lambda: self._ring.current(tenant), form or self.form()
        )

    async def anew(self, topic: str, ledger: int) -> tuple[int, RunSealer]:
        """(number of the tenant's newest data key, what seals with it, and with no later one, for a new ledger). Raises
        as `ensure`.
        """
        tenant = TopicName.parse(topic).tenant
        if tenant in self._ring.lost:
            await self._put_back(tenant)
        key = self._ring.current(tenant)
        if key is None:
            raise KeyMissing(self._ring.refused.get(tenant, f"tenant {tenant} has no data key that is known here"))
        return key[0], RunSealer(ledger, self._rng.getrandbits(64), key, lambda: key, self.form())

    async def sealed(
        self, topic: str, ledger: int, closed_ms: int, first: int, run: Run, form: int, data_key: int = 0
    ) -> Run:
        """What is to be written in the place of lost entries, or to an object store: as it came where it is sealed, or
        is not to be. Raises as `ensure`.

        closed_ms: of the ledger. The key of that time is taken, not today's: which ledgers may need a key is told from
        their times before it is removed. form: at least this one is each run of the ledger, whatever is wanted today.
        data_key: number of the one that the ledger was sealed with anew, which is taken then; 0: it was not.
        """
        if run.seal is not None or not (form or self.wanted(topic)):
            return run
        await self.ensure(topic)
        tenant = TopicName.parse(topic).tenant
        key = self._ring.numbered(data_key) if data_key else self._ring.at(tenant, closed_ms)
        if key is None:
            raise KeyMissing(
                self._ring.refused.get(
                    tenant, f"the data key of tenant {tenant} for ledger {ledger} is not known here: try again"
                )
            )
        return RunSealer(ledger, self._rng.getrandbits(64), key, lambda: key, form or self.form())(run, first)

    async def opened(
        self, ledger: int, runs: Sequence[tuple[int, Run]], *, looking: bool = True
    ) -> list[tuple[int, Run]]:
        """[(first entry, run)], open. Raises KeyMissing; CorruptData where one is not what was sealed there.

        looking: the configuration is asked for a key that is not known here; raises what that raises.
        """
        out: list[tuple[int, Run]] = []
        for first, run in runs:
            if run.seal is not None:
                if looking and self._ring.secret(run.seal.key) is None:
                    await self.look()
                run = self._ciphers.opened(ledger, first, run)
            out.append((first, run))
        return out

    def seals_with(self, topic: str) -> int:
        """Number of the data key that seals what is written of a topic now; 0: none that is known here can."""
        key = self._ring.current(TopicName.parse(topic).tenant)
        return 0 if key is None else key[0]

    def knows(self, key: int) -> bool:
        """Whether what that data key sealed opens here, as far as is known without a look."""
        return self._ring.secret(key) is not None

    # -- keys ---------------------------------------------------------------------------------------------------------

    @property
    def master(self) -> str:
        """Name of the current master key; "": none is set."""
        masters = self._source.read()
        return "" if masters is None else masters.current

    def listing(self) -> dict[str, tuple[DataKey, ...]]:
        """Tenant -> its data keys, the oldest first; the last one seals."""
        return {tenant: self._ring.stored[tenant].keys for tenant in sorted(self._ring.stored)}

    async def rotate(self, tenant: str) -> DataKey:
        """A new data key, with which every run from now on is sealed. Raises KeyMissing without a master key, and what
        the configuration raises.
        """
        return await self._add(tenant, first=False)

    async def rewrap(self) -> int:
        """Wraps every data key by the current master key; returns of how many tenants. After it the older master keys
        are not needed any more.

        Raises MetadataUnavailable where others change a tenant's keys all the time; what the configuration raises.
        """
        self._masters()
        await self.look()
        changed = 0
        for tenant in sorted(self._ring.stored):
            async for _ in Tries(self._rng):
                stored, version = await self._read(tenant)
                wanted = self._ring.rewrapped(tenant) or (stored if tenant in self._ring.lost else None)
                if wanted is None:
                    break
                if await self._put(tenant, wanted, version):
                    changed += 1
                    break
            else:  # who believes that it was rewrapped removes the older master key
                raise busy()
        return changed

    async def remove(self, tenant: str, number: int) -> None:
        """What it sealed cannot be read by anybody any more. Raises NotFound; NotAllowed for the one that seals."""
        async for _ in Tries(self._rng):
            stored, version = await self._read(tenant)
            if number not in [key.number for key in stored.keys]:
                raise NotFound(f"tenant {tenant} has no data key {number:016x} in region {self._region}")
            if stored.keys[-1].number == number:
                raise NotAllowed(f"data key {number:016x} is the one with which tenant {tenant} seals: rotate first")
            if await self._put(tenant, without(stored, number), version):
                return
        raise busy()

    async def _add(self, tenant: str, *, first: bool) -> DataKey:
        """first: only where there is none; another broker may be about it too."""
        masters = self._masters()
        await self._permit()
        async for _ in Tries(self._rng):
            stored, version = await self._read(tenant)
            if stored.keys and self._ring.current(tenant) is None:
                raise KeyMissing(self._ring.refused.get(tenant, f"the data key of tenant {tenant} cannot be opened"))
            if first and stored.keys:
                if tenant in self._ring.lost and not await self._put(tenant, stored, version):
                    continue
                return stored.keys[-1]
            key = masters.wrap(self._region, tenant, new_secret(), *self._times(stored.keys))
            if await self._put(tenant, replace(stored, keys=(*stored.keys, key)), version):
                log.info("keys.made", extra={"tenant": tenant, "key": f"{key.number:016x}", "master": key.master})
                return key
        raise busy()

    def _times(self, before: Sequence[DataKey]) -> tuple[int, int]:
        """(the latest, the earliest) that a key can be made that follows those: by a wrong clock more is kept of it and
        of the one before it, and never less.
        """
        latest, earliest = self._expiry.latest_ms(), self._expiry.wall_ms()
        if not before:
            return latest, earliest
        return max(latest, before[-1].created_ms + 1), max(earliest, before[-1].earliest_ms)

    async def _put_back(self, tenant: str) -> None:
        """What the configuration lost of the tenant's keys. Raises what the configuration raises."""
        async for _ in Tries(self._rng):
            stored, version = await self._read(tenant)
            if tenant not in self._ring.lost or await self._put(tenant, stored, version):
                return
        raise busy()

    async def _read(self, tenant: str) -> tuple[TenantKeys, int]:
        """The tenant's keys, with those that the configuration lost, and the version that stands there. Raises
        CorruptData: what is damaged is not written over.
        """
        found = await self._config.get(keys.data_key(self._region, tenant))
        if found is not None:
            TenantKeys.decode(found[0])
        self._take(tenant, None if found is None else found[0])
        return self._ring.stored.get(tenant, TenantKeys(removed=())), ABSENT if found is None else found[1]

    async def _put(self, tenant: str, wanted: TenantKeys, expected: int) -> bool:
        """Whether it landed; what is there then is known here at once."""
        key, blob, lost = keys.data_key(self._region, tenant), wanted.encode(), tenant in self._ring.lost
        try:
            await self._config.put(key, blob, expected=expected)
        except (VersionConflict, OutcomeUnknown):
            found = await self._config.get(key)
            if found is None or found[0] != blob:
                return False
        self._take(tenant, blob)
        if lost:
            log.warning("keys.put_back", extra={"tenant": tenant, "keys": len(wanted.keys)})
        return True

    def _masters(self) -> MasterKeys:
        masters = self._ring.masters = self._source.read()
        if masters is None:
            raise KeyMissing(
                f"region {self._region} has no master key, so nothing can be encrypted at rest here: make one by "
                "`heliograph keys master FILE`, "
                f"and set {self._source.named} on every broker"
            )
        return masters

    # -- what is known here -------------------------------------------------------------------------------------------

    def _secret(self, number: int) -> bytes:
        found = self._ring.secret(number)
        if found is None:
            why = next(
                iter(self._ring.refused.values()),
                f"it is not among the data keys of region {self._region}: was it removed?",
            )
            raise KeyMissing(f"data key {number:016x}, and {why}")
        return found

    async def look(self) -> None:
        """Reads what is stored: the watch may be behind the broker that has made a key."""
        for key, blob, _ in await rows_under(self._config, self._prefix):
            self._take(keys.tenant_of(key), blob)

    def _heard(self, key: str, value: bytes | None, _: int) -> None:
        tenant = keys.tenant_of(key)
        self._take(tenant, value)
        if tenant in self._ring.refused:
            log.error("keys.refused", extra={"tenant": tenant, "error": self._ring.refused[tenant]})
        if tenant in self._ring.lost and tenant not in self._mended:
            self._mended.add(tenant)
            self._tasks.spawn(self._mend(tenant))

    async def _mend(self, tenant: str) -> None:
        try:
            while tenant in self._ring.lost:
                try:
                    await self._put_back(tenant)
                except HeliographError as error:  # it is away, or others are faster
                    log.warning("keys.not_put_back", extra={"tenant": tenant, "error": str(error)})
                    await asyncio.sleep(RETRY_S)
        finally:
            self._mended.discard(tenant)

    def _take(self, tenant: str, blob: bytes | None) -> None:
        self._ring.masters = self._source.read()
        for number in self._ring.heard(tenant, blob):
            self._ciphers.forget(number)
