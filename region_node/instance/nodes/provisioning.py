"""Provisioning: the regions of a plan in the global configuration, and the supervisor's way to the metadata of each.

Is: what a start writes, and what a region that joins or leaves changes there. Isn't: the steps of joining and leaving
(`region_node.instance.plan.region_growth`), or processes.
Invariants: repeated, it changes only what differs; it goes through a region whose configuration node runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path

from global_config import keys
from global_config.admin import ConfigAdmin
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import rows_under
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo
from heliograph.model.errors import MetadataUnavailable, OutcomeUnknown
from heliograph.runtime.clock import SystemClock, system_rng
from region_node.instance.nodes.processes import READY_S, Processes, say
from region_node.instance.plan import founding
from region_node.instance.plan.layout import HOST, InstancePlan, NodePlan, RegionPlan, door, link_urls
from region_node.instance.plan.region_growth import admit, check_dismissal, dismiss
from region_node.security.tls import only

_AGAIN_S = 0.5
_COPIES = 2
"""So many copies of an entry are counted on where no namespace wants more."""


class Provisioning:
    """Writes and reads an instance's configuration. plan: returns the present one; joining and leaving change it."""

    def __init__(self, data: Path, plan: Callable[[], InstancePlan], processes: Processes) -> None:
        self._data, self._plan, self._processes = data, plan, processes

    async def write(self) -> None:
        """The regions, and `public/default`, once the nodes that are needed for it are ready. Raises HeliographError.

        On a busy machine a majority of the regions may be there long after the first of them: then it is tried again,
        for READY_S.
        """
        home, clock = self._home(), SystemClock()
        await self._ready(home.metadata)
        deadline = clock.monotonic() + READY_S
        while True:
            try:
                await self._write(home)
                return
            except (MetadataUnavailable, OutcomeUnknown):
                if clock.monotonic() > deadline:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _write(self, home: RegionPlan) -> None:
        with contextlib.closing(self._config_of(home)) as store:
            admin, plan = ConfigAdmin(store), self._plan()
            learners = [region.name for region in plan.regions if not region.voter]
            for name, node in plan.voters().items():
                if plan.founders:  # maybe its joining, or its leaving, was interrupted
                    await self._ready(node)
                    await admit(store, plan, name, _say_joining, voter=name not in learners)
            for region in plan.regions:
                info, began = _info(plan, region), not plan.founders or region.name in plan.founders
                await (founding.found(store, info) if began else admin.ensure_region(info))

    async def check_dismissal(self, name: str) -> None:
        """Raises NotAllowed with why the region cannot go."""
        with contextlib.closing(self._config_of(self._home(but=name))) as store:
            await check_dismissal(store, name)

    async def write_quorum(self, region: str) -> tuple[int, str]:
        """The largest number of copies that a namespace of the region wants, and why. Raises HeliographError."""
        most, why = _COPIES, "each entry is kept by two"
        with contextlib.closing(self._config_of(self._home())) as store:
            for key, value, _ in await rows_under(store, keys.NAMESPACES):
                namespace = NamespacePolicies.decode(value)
                wanted = int(namespace.policies.get("persistence", {}).get("bookkeeperWriteQuorum", _COPIES))
                if region in namespace.regions and wanted > most:
                    most, why = (
                        wanted,
                        f"namespace {key.removeprefix(keys.NAMESPACES)} keeps {wanted} copies of each entry",
                    )
        return most, why

    async def dismiss(self, name: str, others: list[str]) -> None:
        """Takes the region out of the configuration. Raises NotAllowed with why it cannot go, HeliographError."""
        with contextlib.closing(self._config_of(self._home(but=name))) as store:
            await dismiss(store, name, others)

    def metadata(self, region: str) -> tuple[str, ssl.SSLContext | None]:
        """Where a region's own metadata is reached, and how."""
        return f"{HOST}:{self._plan().region(region).metadata.ports['meta']}", self._inside(region, "broker", "meta")

    async def _ready(self, node: NodePlan) -> None:
        await self._processes.find(node.name).ready.wait()

    def _home(self, but: str = "") -> RegionPlan:
        """A region whose configuration node runs, through which the instance is changed; the first where none does."""
        regions = [region for region in self._plan().regions if region.name != but]
        return next(
            (region for region in regions if self._processes.find(region.metadata.name).pid is not None), regions[0]
        )

    def _config_of(self, region: RegionPlan) -> MetaClient:
        address, tls = f"{HOST}:{region.metadata.ports['config']}", self._inside(region.name, "config", "config")
        return MetaClient([address], clock=SystemClock(), rng=system_rng(), ssl=tls)

    def _inside(self, region: str, own: str, peer: str) -> ssl.SSLContext | None:
        if not self._plan().tls:
            return None
        folder = self._data / "tls"
        cert, key = (str(folder / f"{own}.{region}.{end}") for end in ("pem", "key"))
        return only((peer,), region, str(folder / "ca.pem"), cert, key)


def _say_joining(text: str) -> None:
    say("region.joining", what=text)


def _info(plan: InstancePlan, region: RegionPlan) -> RegionInfo:
    return RegionInfo(
        name=region.name,
        number=region.number,
        service_url=f"pulsar://{HOST}:{door(plan, region.name, region.service_port)}",
        admin_url=f"http://{HOST}:{region.admin_port}",
        link_urls=link_urls(plan, region),
    )
