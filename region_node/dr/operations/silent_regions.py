"""SilentRegions: regions whose active-passive namespaces fail over by themselves, and that are lost as far as is seen
here; and what every other region says of them.

Is: for how long no broker of a region has had a lease in the global configuration, counted here; and a vote of each
broker of the others under its own lease: for how long nothing came from that region on any link of it. Isn't: a
decision (`region_node.dr.operations.automatic_failover`), or a number of what is at risk.
Invariants: monotonic clocks count, each at its own place, and no wall clock; two looks that are further apart than a
lease lasts say nothing of what lies between; a region says that another one is silent once all of its brokers with a
lease do. While every region has a lease nothing is written, and nothing is asked.
Keys: /dr/silences/{region}/{broker}.{lease} (Vote, under that broker's lease).
Source: docs/protocols/leadership.md, "Failing over by itself".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from global_config import keys
from heliograph.kv.metadata_store import Check, MetadataStore, pages_under
from heliograph.model.configuration.configuration_records import _Value
from heliograph.model.errors import HeliographError
from heliograph.runtime.clock import Clock
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.leadership.lease_holders import LeaseHolders
from region_node.dr.leadership.write_leases import WriteLeases
from replicator.health.incoming_stats import IncomingStats

log = logging.getLogger("region_node.dr")

_CHECKED = 50
"""So many votes of a region must stand still when an operation begins: a few brokers more would only say the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote(_Value):
    """What one broker says: nothing came from these regions for so many seconds at least. 0: it has heard of one.
    begins: whether it could begin a failover, and ask for its steps, for which it wants an admin interface.
    """

    silent_s: dict[str, float] = field(default_factory=dict)
    begins: bool = True


@dataclass(frozen=True, slots=True)
class Said:
    """silent: regions whose every broker says so; there: those of which somebody says anything at all, and could begin
    a failover. checks: fail where it is otherwise by the time of a write, or this broker has lost its lease; none: it
    has said nothing itself. mute: brokers with a lease that say nothing, of those regions.
    """

    silent: list[str]
    there: list[str]
    checks: list[Check]
    mute: list[str]


class SilentRegions:
    """What one broker sees of them, and says."""

    def __init__(
        self, leases: WriteLeases, incoming: IncomingStats, *, region: str, clock: Clock, begins: bool = True
    ) -> None:
        """leases: this broker's; incoming: what its links hear; region: where it is. begins: as in `Vote`."""
        self._begins = begins
        self._leases, self._incoming, self._region, self._clock = leases, incoming, region, clock
        self._store: MetadataStore = leases.store
        self._switching = Switching(self._store, clock.wall_ms)
        self._gap_s = leases.settings.ttl_ms / 1000
        self._holders = LeaseHolders(self._store, self._came)
        self._without: dict[str, tuple[float, float]] = {}
        """Region without any -> the first and the last look that found it so, in the clock's monotonic seconds."""
        self._looked_at = self._awake_since = clock.monotonic()
        self._told: tuple[str, Vote, Check] | None = None
        """Under which lease, what, and what fails once that lease has ended, or it says something else."""

    async def start(self) -> None:
        await self._holders.start()

    def stop(self) -> None:
        self._holders.stop()

    def _came(self, region: str) -> None:
        self._without.pop(region, None)

    def lost_s(self, region: str) -> float:
        """For how long no broker of the region has had a lease, as far as it was seen here without a gap."""
        found = self._without.get(region)
        if found is None or self._clock.monotonic() - found[1] > self._gap_s:
            return 0.0
        return found[1] - found[0]

    async def look(self, wanted: Mapping[str, Collection[float]]) -> None:
        """Looks for those of the regions that have no lease, and tells for how long nothing came from them. wanted:
        region -> how many seconds somebody waits for.
        """
        now = self._clock.monotonic()
        if now - self._looked_at > self._gap_s:  # what came meanwhile may not have been read
            self._awake_since = now
        self._looked_at = now
        for region in [region for region in self._without if region not in wanted]:
            del self._without[region]
        for region in wanted:
            if region != self._region and not self._holders.there(region):
                await self._ask(region)
        await self._tell(
            {region: self._reached(region, after) for region, after in wanted.items() if region in self._without}
        )

    async def _ask(self, region: str) -> None:
        try:
            found = await self._switching.writers(region)
        except HeliographError as error:  # the next look asks again
            log.info("silence.not_known", extra={"region": region, "error": str(error)})
            return
        now = self._clock.monotonic()
        since, last = self._without.pop(region, (now, now))
        if not found:
            self._without[region] = since if now - last <= self._gap_s else now, now

    def _reached(self, region: str, after: Collection[float]) -> float:
        """The longest of `after` for which nothing came from the region. (So a vote changes as often as somebody waits
        for it.)
        """
        silent_s = self.silent_s(region)
        return max((wanted for wanted in after if wanted <= silent_s), default=0.0)

    def silent_s(self, region: str) -> float:
        """For how long nothing came from it on any link of this broker; where it never had one, for how long it has
        listened.
        """
        listened_s, found = self._clock.monotonic() - self._awake_since, self._incoming.regions.get(region)
        if found is None or not (found.on or found.ended):
            return listened_s
        return min(found.silent_s, listened_s)

    async def _tell(self, silent_s: dict[str, float]) -> None:
        lease, vote = self._leases.registered_as, Vote(silent_s=silent_s, begins=self._begins)
        told = None if self._told is None or self._told[0] != lease else self._told[1]
        if not lease or told == (vote if silent_s else None):
            return
        key = f"{keys.SILENCES}{self._region}/{lease}"
        try:
            if silent_s:
                version = await self._store.put(key, vote.encode(), lease=self._leases.lease)
                self._told = lease, vote, Check(key, version)
            else:
                await self._store.delete(key)
                self._told = None
        except HeliographError as error:  # the next look tells it again
            log.info("silence.not_told", extra={"error": str(error)})

    async def said(self, region: str, others: Sequence[str], after_s: float) -> Said:
        """What `others` say of `region` now, and whether they have heard nothing of it for `after_s`. Raises
        MetadataUnavailable.
        """
        votes = {
            key.removeprefix(keys.SILENCES): (Vote.decode(value), Check(key, version))
            async for rows in pages_under(self._store, keys.SILENCES)
            for key, value, version in rows
        }
        mute = list[str]()
        silent, there, own = list[str](), list[str](), None if self._told is None else self._told[2]
        checks = {} if own is None else {own.key: own}
        for other in others:
            leases = await self._switching.writers(other)
            found = [votes.get(f"{other}/{lease}") for lease in leases]
            mute += [f"{lease} of {other}" for lease, vote in zip(leases, found, strict=True) if vote is None]
            told = [vote for vote in found if vote is not None]
            if any(vote.begins for vote, _ in told):
                there.append(other)
            if told and all(vote is not None and vote[0].silent_s.get(region, 0.0) >= after_s for vote in found):
                silent.append(other)
                checks.update({check.key: check for _, check in told[:_CHECKED]})
        if await self._switching.writers(region):
            silent.clear()
        return Said(silent, there, list(checks.values()) if own is not None else [], mute)
