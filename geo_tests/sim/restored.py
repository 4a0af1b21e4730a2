"""Restored: the global configuration goes back to an older backup, while everything that was made since goes on.

Is: a backup that is taken as `heliograph backup --config` takes it, a restore by the rules of `global_config.backup`
into emptied folders of every region, the operator's part afterwards (docs/operating.md, "The global configuration is
lost"), and what must hold. Isn't: what else happens meanwhile (`faults`, `remade`).

One backup of three is older than one of the regions: that region, its number, and all that names it are not in it, and
are made again. A namespace of the world's is always made behind the backup: its topic has messages, subscriptions, and
links of which the restored configuration knows nothing.

What was made since is neither deleted nor cut off: each topic keeps every cursor that it had when the configuration
went back, of subscriptions and of links; nobody takes a region that the configuration has forgotten for one that ended;
a tombstone that comes back deletes nothing before it is answered; each region keeps its number and epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from geo_tests.sim.beside import Beside
from geo_tests.sim.checkers import Violation
from geo_tests.sim.region import CONFIG_PORT
from geo_tests.sim.remade import TOPIC as REMADE
from global_config import keys
from global_config.admin import ConfigAdmin
from global_config.backup import restored_counters, restored_rows
from heliograph.kv.backup_client import fetch
from heliograph.kv.backup_file import (
    RESTORED_TERM,
    BackedUpStore,
    BackupReader,
    BackupWriter,
    Info,
    group_of,
    restored_index,
    restored_pieces,
)
from heliograph.kv.engine.table_image import head_of
from heliograph.kv.engine.table_rows import Row
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import rows_under
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.model.configuration.tombstones import TOMBSTONES, Tombstone
from heliograph.model.errors import AlreadyExists, HeliographError, VersionConflict
from heliograph.raft.disk import life_file
from heliograph.raft.disk.snapshot_file import write_snapshot

if TYPE_CHECKING:
    from geo_tests.sim.remade import Remade
    from geo_tests.sim.world import World

TENANT = "sim"
NAMESPACE = f"{TENANT}/since"
TOPIC = f"persistent://{NAMESPACE}/topic"
_ADMIN = "restoring-admin"
_OLDER = 1 / 3
"""The part of backups that are older than one of the regions."""
READER = "reader-"
"""Cursors that begin so go with their readers."""
_TRY_S = 0.2
_LOOK_S = 0.05
_DISTURBED_S = 40.0
_ENDS_S = 60.0
_CONFIG = "data/config"


class Restored:
    """Of one world; nothing happens before `begin`. remade: whose topic a tombstone of the backup may name."""

    def __init__(self, world: World, remade: Remade) -> None:
        self._world, self._remade = world, remade
        self._rng = world.sim.rng("restored")
        self._since = Beside(world, TOPIC, "since")
        self._forgotten = ""
        """The region that the backup is older than; "": it knows all."""
        self._had: dict[tuple[str, str], set[str]] = {}
        """(region, topic) -> names of the cursors that it was seen with since shortly before the configuration went
        back.
        """
        self._backup: asyncio.Future[None] | None = None
        self._going_back: asyncio.Future[None] | None = None
        self._operating: asyncio.Future[None] | None = None
        self._looking: asyncio.Future[None] | None = None
        self.count = 0
        """So often it went back."""
        self.incomplete = False
        """Whether the configuration lacks what an operator has to make again."""

    @property
    def begun(self) -> bool:
        return self._backup is not None

    def begin(self) -> bool:
        """Takes the backup; a world has one. False: it has one already."""
        if self._backup is not None:
            return False
        if self._rng.random() < _OLDER:
            self._forgotten = self._rng.choice(sorted(self._world.regions))
        self._backup = asyncio.ensure_future(self._world.sim.call(_ADMIN, self._back_up, limit_s=600.0))
        self._backup.add_done_callback(self._world.sim.report)
        return True

    def end(self) -> None:
        """The configuration is lost, and restored, in half of the worlds only once nobody deletes anything."""
        self._going_back = asyncio.ensure_future(self._go_back())
        self._going_back.add_done_callback(self._world.sim.report)

    async def _go_back(self) -> None:
        assert self._backup is not None
        await self._backup
        if self._rng.random() < 0.5:
            await self._world._until("nobody deletes anything", lambda: not self._remade.deleting, _ENDS_S)
            await asyncio.sleep(self._rng.uniform(0.0, 3.0))
        self.count += 1
        self._look()
        self._restore()
        self._looking = asyncio.ensure_future(self._look_again())
        self._looking.add_done_callback(self._world.sim.report)
        self._operating = asyncio.ensure_future(self._world.sim.call(_ADMIN, self._operate, limit_s=600.0))
        self._operating.add_done_callback(self._world.sim.report)

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        if self._backup is None:
            return
        await self._world._until("there is a backup, and it is restored", lambda: self.count == 1, _ENDS_S)
        assert self._operating is not None
        await self._world._until("all is made again that the backup lacked", self._operating.done, _ENDS_S)
        await self._since.finish()
        if self._looking is not None:
            self._looking.cancel()
        await self._world.sim.call(_ADMIN, self._check_configuration, limit_s=_ENDS_S)

    # -- the backup ----------------------------------------------------------------------------------------------------

    async def _back_up(self) -> None:
        """From any region that answers, and then what the backup shall not know."""
        machine = self._world.sim.machines[_ADMIN]
        disk = machine.disk("backups")
        if self._remade.begun and self._rng.random() < 0.7:  # else it is hardly ever made while a tombstone stands
            await self._world._until("the topic is being deleted", lambda: self._remade.deleting, _ENDS_S)
            await asyncio.sleep(self._rng.uniform(0.2, 1.0))
        while True:
            node = self._rng.choice(sorted(self._world.regions))
            address = f"{self._world.regions[node].metadata.name}:{CONFIG_PORT}"
            store = MetaClient([address], clock=machine.clock, rng=machine.rng)
            file = disk.open("configuration", create=True)
            file.truncate(0)
            writer = BackupWriter(file)
            try:
                await fetch(store, address, partial(self._on_piece, writer, node))
                file.datasync()
                break
            except HeliographError as error:
                self._world.trace(f"no backup from {node}: {error}")
                await asyncio.sleep(_TRY_S)
            finally:
                file.close()
                store.close()
        disk.sync_directory()
        older = f", older than {self._forgotten}" if self._forgotten else ""
        self._world.trace(f"the configuration is backed up{older}")
        await self._make_since()
        self._since.publish()
        self._since.consume()

    def _on_piece(self, writer: BackupWriter, node: str, piece: bytes) -> None:
        if not writer.size_bytes:
            made_ms = self._world.sim.clock().wall_ms()
            writer.begin(Info(BackedUpStore.GLOBAL, node, made_ms, head_of(piece).index, "simulated"))
        writer.add(piece)

    async def _make_since(self) -> None:
        names = tuple(self._world.regions)
        kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        policies = NamespacePolicies(regions=names, bundles=1, policies={"deduplication": True, "retention": kept})
        await self._until_taken(lambda admin: admin.create_namespace(NAMESPACE, policies))

    # -- the restore ---------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """As `heliograph restore` of each region: all processes down, the folders moved away, and made anew."""
        world, now_ms = self._world, self._world.sim.clock().wall_ms()
        nodes = [region.metadata for region in world.regions.values()]
        for node in nodes:
            node.kill()
            world.faults.disturbed(node.region.name, _DISTURBED_S)
        file = world.sim.machines[_ADMIN].disk("backups").open("configuration")
        reader = BackupReader(file)
        list(reader.rows())
        index = restored_index(reader.info.index, now_ms / 1000)
        for node in nodes:
            platter = node.machine.platter(_CONFIG)
            platter.put_back({})
            platter.fail_syncs = False  # an operator restores to a disk that works
            disk = platter.disk()
            rows = restored_rows(self._older(reader.rows()), now_ms)
            pieces = restored_pieces(index, restored_counters(dict(reader.head.counters)), rows)
            write_snapshot(disk, index, RESTORED_TERM, group_of(world.regions), pieces)
            life_file.restore(disk)
            disk.close()
            platter.unplug()
        file.close()
        self.incomplete = True
        for node in nodes:
            node.revive()
        world.trace("the configuration is restored")

    def _older(self, rows: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
        """As a backup has them that was made before one of the regions was."""
        gone = self._forgotten
        for key, (value, version, lease) in rows:
            if gone and key.startswith(keys.REGION_NUMBERS) and value == gone.encode():
                continue
            if gone and (key == keys.region(gone) or key.startswith(keys.data_keys(gone))):
                continue
            if gone and key.startswith(keys.NAMESPACES):
                old = NamespacePolicies.decode(value)
                policies = {name: value for name, value in old.policies.items() if name != "replicationTopology"}
                value = replace(old, regions=_without(old.regions, gone), policies=policies).encode()
            elif gone and key.startswith(keys.TENANTS):
                tenant = TenantInfo.decode(value)
                value = replace(tenant, allowed_regions=_without(tenant.allowed_regions, gone)).encode()
            yield key, (value, version, lease)

    # -- the operator --------------------------------------------------------------------------------------------------

    async def _operate(self) -> None:
        """Makes again what was made since the backup, and answers what asks."""
        world, names = self._world, tuple(self._world.regions)
        await asyncio.sleep(self._rng.uniform(0.0, 6.0))
        for info in [region.info() for region in world.regions.values()]:
            await self._until_taken(lambda admin, info=info: admin.ensure_region(info))
        await self._until_taken(lambda admin: admin.update_tenant(TENANT, TenantInfo(allowed_regions=names)))
        self.incomplete = False
        world.reconfiguration.again()
        await self._make_since()
        world.trace("all is made again that the backup lacked")
        while not await self._answered():  # noqa: ASYNC110
            await asyncio.sleep(_TRY_S)

    async def _answered(self) -> bool:
        """Whether no tombstone asks any more: what was made again is wanted."""
        if self._remade.deleting:
            return False
        store = self._store()
        try:
            for key, value, version in await rows_under(store, TOMBSTONES):
                if Tombstone.decode(value).asks:
                    self._world.trace(f"{key} is taken away: {Tombstone.decode(value).asks}")
                    await store.delete(key, expected=version)
                    self._world.verdict.kinds.append("a restored tombstone asked")
        except (HeliographError, VersionConflict) as error:
            self._world.trace(f"nobody can answer: {error}")
            return False
        finally:
            store.close()
        return True

    async def _until_taken(self, call: Any) -> None:
        store = self._store()
        while True:
            try:
                await call(ConfigAdmin(store))
                break
            except AlreadyExists:
                break
            except HeliographError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(_TRY_S)
        store.close()

    def _store(self) -> MetaClient:
        nodes = [f"{region.metadata.name}:{CONFIG_PORT}" for region in self._world.regions.values()]
        machine = self._world.sim.machines[_ADMIN]
        return MetaClient(nodes, clock=machine.clock, rng=machine.rng)

    # -- what must hold ------------------------------------------------------------------------------------------------

    async def _look_again(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> None:
        """Every topic has the cursors that it had; but for one that an admin deletes."""
        for region, topic, _, log in self._world.probes.owners():
            had = self._had.setdefault((region, topic), set())
            if (gone := had.difference(log.ledger.cursors)) and topic != REMADE:
                raise Violation(f"{topic} in {region} has no cursor {sorted(gone)} since the configuration went back")
            had.update(name for name in log.ledger.cursors if not name.startswith(READER))

    async def _check_configuration(self) -> None:
        store = self._store()
        for name, region in self._world.regions.items():
            found = await store.get(keys.region(name))
            info = None if found is None else RegionInfo.decode(found[0])
            if info is None or (info.number, info.epoch) != (region.number, 1):
                raise Violation(f"{name} is {info}, and nobody rebuilt it")
        if left := await rows_under(store, TOMBSTONES):
            raise Violation(f"tombstones are left: {left}")
        store.close()


def _without(regions: tuple[str, ...], gone: str) -> tuple[str, ...]:
    return tuple(region for region in regions if region != gone)
