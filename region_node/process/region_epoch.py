"""RegionEpoch: lets a broker serve topics only under an epoch that stands for the metadata it serves them from.

Is: comparing the metadata's `/instance` with the one that the global configuration knows for this region, raising the
epoch where they differ, and noticing that the metadata was replaced, or put back to an earlier state, under a running
broker. Isn't: what an epoch is
used for (replicator.log.topic_state).
Invariants: no topic is opened while the region's epoch stands for another metadata than this one; a region whose
metadata was never known to the configuration may be served at once, because nothing of it can have been restored
before; only who has just read `/instance` speaks for it, so that a broker of the old metadata never raises the epoch
again; nor does one whose metadata has held the epoch and lost it to another.
Source: docs/architecture.md, "Coordinates"; docs/operating.md, "Backup and restore".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import ConfigError, HeliographError, MetadataUnavailable
from heliograph.runtime.clock import Rng
from heliograph.runtime.task_set import cancel_all
from local_meta import keys
from local_meta.metadata_id import instance_of

if TYPE_CHECKING:
    from global_config.admin import ConfigAdmin
    from global_config.view import ConfigView
    from heliograph.kv.client_history import AnotherHistory
    from heliograph.model.configuration.configuration_records import RegionInfo

log = logging.getLogger("region_node.region_epoch")

_RETRY_S = 0.5


class RegionEpoch:
    """One broker's. `start` once the view of the configuration is ready."""

    def __init__(
        self,
        region: str,
        meta: MetadataStore,
        view: ConfigView,
        config: ConfigAdmin,
        rng: Rng,
        put_back: asyncio.Future[AnotherHistory],
    ) -> None:
        """put_back: comes once the metadata lacks what this process was told of it."""
        self.name, self._meta, self._view, self._config, self._rng = region, meta, view, config, rng
        self._instance = ""
        self._held = False  # the region's epoch has stood for our metadata
        self._raising: asyncio.Task[None] | None = None
        self._stop_watch: Callable[[], None] = lambda: None
        self._stop_view: Callable[[], None] = lambda: None
        self._replaced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        put_back.add_done_callback(lambda _: self._begin_anew("was put back to an earlier state"))

    async def start(self) -> None:
        """Raises what the metadata raises."""
        self._instance = await instance_of(self._meta, self._rng)
        self._stop_watch = self._meta.watch(keys.INSTANCE, self._on_instance)
        self._stop_view = self._view.on_change(lambda key: self._agree_soon())
        self._agree_soon()

    async def stop(self) -> None:
        self._stop_watch()
        self._stop_view()
        await cancel_all([self._raising])

    async def replaced(self) -> None:
        """Returns never; raises ConfigError once the metadata is another, or in another history: what this process
        holds in memory speaks of the old one, by versions that come again.
        """
        await asyncio.shield(self._replaced)

    def info(self) -> RegionInfo:
        """This region, with its epoch. Raises MetadataUnavailable: not yet."""
        found = self._view.region(self.name)
        if found is None:
            raise MetadataUnavailable(
                f"region {self.name} is not in the global configuration yet: create it as a cluster first"
            )
        if found.metadata_instance != self._instance:
            self._agree_soon()
            if found.metadata_instance:
                raise MetadataUnavailable(
                    f"the metadata of region {self.name} was restored or rebuilt: its epoch must rise above "
                    f"{found.epoch} first, "
                    "which needs a majority of the regions to reach each other"
                )
        return found

    def _agree_soon(self) -> None:
        """Where the region is in the configuration, and stands for another metadata or none: also where no topic asks
        for it yet.
        """
        found = self._view.region(self.name)
        busy = self._raising is not None and not self._raising.done()
        if found is None:
            return
        if found.metadata_instance == self._instance:
            self._held = True
        elif self._held and found.metadata_instance:
            # brokers of another metadata serve the region now: to raise the epoch again would be to raise it in turn
            # with them
            self._begin_anew()
        elif not busy:
            self._raising = asyncio.get_running_loop().create_task(self._agree())

    async def _agree(self) -> None:
        while True:
            try:
                if await instance_of(self._meta, self._rng) != self._instance:
                    self._begin_anew()
                    return
                info = await self._config.begin_metadata(self.name, self._instance)
            except HeliographError as error:
                log.warning("region.epoch_waits", extra={"region": self.name, "error": str(error)})
                await asyncio.sleep(_RETRY_S)
            else:
                log.info("region.epoch", extra={"region": self.name, "epoch": info.epoch, "metadata": self._instance})
                return

    def _on_instance(self, key: str, value: bytes | None, _version: int) -> None:
        if key == keys.INSTANCE and value is not None and value.decode(errors="replace") != self._instance:
            self._begin_anew()

    def _begin_anew(self, why: str = "was replaced by a restored one") -> None:
        if not self._replaced.done():
            text = f"the metadata of region {self.name} {why}: this broker begins anew"
            self._replaced.set_exception(ConfigError(text))
            self._replaced.exception()
