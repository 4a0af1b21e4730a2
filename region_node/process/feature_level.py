"""RegionLevel: the feature level of this broker's region: refused where it is too new, raised once every process speaks
a higher one.

Is: the levels that live brokers and bookies, and the members of the metadata, register with, beside the region's in the
global configuration. Isn't: what a level means (`heliograph.model.feature_levels`).
Invariants: the region's level only rises, to at most the lowest of what is registered; a process of a lower level than
its region's does not serve in it: it would misread what is there. That is asked at the start, and heard of later: the
level may rise while this broker is away, and is not among those that are asked.
Why in the global configuration: other regions and tools see there what a region can do; and it outlives the region's
own metadata.
Source: docs/operating/scaling.md, "Mixed versions".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import ConfigError, NotAllowed
from heliograph.model.feature_levels import LEVEL
from local_meta import keys
from local_meta.node_level import level_of
from region_node.placement.ownership.broker_records import BrokerRecord

if TYPE_CHECKING:
    from global_config.admin import ConfigAdmin
    from global_config.view import ConfigView

log = logging.getLogger("region_node.region_level")


class RegionLevel:
    """Watches from the start. brokers: the live ones. metadata: asks what each member of the metadata speaks, there or
    away (`local_meta.node_level`). level: what this broker speaks.
    """

    def __init__(
        self,
        region: str,
        meta: MetadataStore,
        view: ConfigView,
        config: ConfigAdmin,
        brokers: Callable[[], Sequence[BrokerRecord]],
        metadata: Callable[[], Awaitable[dict[str, int]]],
        level: int = LEVEL,
    ) -> None:
        self._region, self._view, self._config, self._brokers, self._metadata = region, view, config, brokers, metadata
        self._level = level
        self._bookies: dict[str, int] = {}
        self._outgrown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stops = [meta.watch(keys.BOOKIES, self._on_bookie), view.on_change(lambda _key: self._look())]

    def close(self) -> None:
        for stop in self._stops:
            stop()

    @property
    def present(self) -> int:
        """The level of the region; 1 where it is not in the configuration yet."""
        found = self._view.region(self._region)
        return found.feature_level if found is not None else 1

    def spoken(self) -> dict[str, int]:
        """What each live broker and bookie speaks."""
        return {record.broker: record.level for record in self._brokers()} | self._bookies

    def check_own(self) -> None:
        """Raises ConfigError where this version is too old for its region."""
        if self.present > self._level:
            raise ConfigError(
                f"region {self._region} is at feature level {self.present}, and this version speaks "
                f"{self._level}: start the newer version here; a level never falls"
            )

    async def outgrown(self) -> None:
        """Returns never; raises ConfigError once the region's level is above what this version speaks."""
        await asyncio.shield(self._outgrown)

    def _look(self) -> None:
        if self.present > self._level and not self._outgrown.done():
            try:
                self.check_own()
            except ConfigError as error:
                self._outgrown.set_exception(error)
                self._outgrown.exception()  # nobody may wait for it yet

    async def upkeep(self) -> None:
        """Raises the region's level to what all speak. Raises MetadataUnavailable, OutcomeUnknown: it is tried
        again.
        """
        here = self.spoken()
        if not here or self._view.region(self._region) is None or min(here.values()) <= self.present:
            return  # the usual case, in which nobody is asked
        if (lowest := min((await self._everybody()).values())) > self.present:
            await self._raise(lowest)

    async def reach(self, level: int, what: str) -> None:
        """Returns once the region's level is at least that; raises it where everybody speaks it.

        Raises NotAllowed (a process of an older version runs: it is named), MetadataUnavailable.
        """
        if self.present >= level:
            return
        older = sorted(name for name, spoken in (await self._everybody()).items() if spoken < level)
        if older:
            names = ", ".join(older[:5])
            raise NotAllowed(
                f"{what} wants feature level {level} of region {self._region}, but {names} run an older version: "
                "upgrade them first"
            )
        await self._raise(level)

    async def reach_if_spoken(self, level: int, least: int, what: str, paused: Callable[[], bool]) -> None:
        """As `reach` of `level`; where not everybody speaks that, or balancing is paused (who is away may be an older
        one, in the middle of a rolling upgrade), of `least`.
        """
        try:
            await self.reach(least if paused() else level, what)
        except NotAllowed:
            await self.reach(least, what)

    async def _everybody(self) -> dict[str, int]:
        metadata = await self._metadata()
        return metadata | self.spoken()  # in this order: a broker may have come meanwhile

    async def _raise(self, level: int) -> None:
        await self._config.raise_level(self._region, level)
        log.info("region.level", extra={"region": self._region, "level": level})

    def _on_bookie(self, key: str, value: bytes | None, version: int) -> None:
        name = keys.id_of(key)
        if value is None:
            self._bookies.pop(name, None)
            return
        self._bookies[name] = level_of(value, unsaid=1)
