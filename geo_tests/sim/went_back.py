"""Went back: a region whose own metadata is lost, and restored from a backup that was made before.

Is: one story of a world once all is well: the backup, what is published behind it, while another region is cut off in
half of the worlds, the restore by the rules of `local_meta.backup`, what the region publishes afterwards, and what must
hold. Isn't: a loss of messages that no other region has, or of bookies; or a backup while appends fail: what a ledger's
writer gave up, and published again in the next one, the restored region finds at the end of the first one.

What it had published since the backup lies in ledgers that its metadata does not know. It comes back to it from the
others, once, in order, under the old coordinates, and to its subscriptions; nothing is twice in any region, also of
what is published meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from geo_tests.sim.reborn import Reborn
from geo_tests.sim.region import BOOKIE_PORT, META_PORT
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
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.errors import HeliographError
from heliograph.raft.disk import life_file
from heliograph.raft.disk.snapshot_file import write_snapshot
from local_meta import backup as rules
from storage.ledger.bookies.bookie_client import BookieClient

if TYPE_CHECKING:
    from geo_tests.sim.region import Region

_ADMIN = "metadata-admin"
_META = "data/meta"
_TRY_S = 0.2
_ENDS_S = 90.0


class WentBack(Reborn):
    """Of one world; nothing happens before `begin`. Its clients afterwards are those of a region that comes again."""

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        if not self.begun:
            return
        world = self._world
        region = world.regions[self._rng.choice(sorted(world.regions))]
        await world.sim.call(_ADMIN, self._back_up, region, limit_s=_ENDS_S)
        clients, heal = await self._publish_since(region)
        held = await world.sim.call(_ADMIN, self._ask_bookies, region, limit_s=_ENDS_S)
        known = self._restore(region, held)
        lost = 0
        world.probes.reports.went_back(region.name, known)
        for history in world.histories.values():
            lost += history.go_back(region.name, known)
        world.trace(f"the metadata of {region.name} is restored, which does not know of {lost} messages")
        if lost:
            world.verdict.kinds.append("a region lost its tail")
        for node in region.nodes:
            node.revive()
        clients += [self._publish(region, topic) for topic in world.topics]
        await asyncio.sleep(self._rng.uniform(0.0, 8.0))
        heal()
        await world._until(f"{region.name} has receipts", self._acknowledged, _ENDS_S)
        await world._until("every region has everything", world._consumed_everywhere, _ENDS_S)
        await world._until(f"{region.name} has all that the others have", partial(self._whole, region), _ENDS_S)
        for producer, task in clients:
            producer.close()
            await task

    async def _publish_since(self, region: Region) -> tuple[list[Any], Callable[[], None]]:
        """To ledgers that the backup cannot know, while another region is cut off from it in half of the worlds: those
        that it did not pass on to others. Returns the clients, and what ends the cut.
        """
        world, cut, network = self._world, "", self._world.sim.network
        for node in region.brokers:
            node.kill()
            node.revive()
        if self._rng.random() < 0.5 and not any(log.state.trees for *_, log in world.probes.claims()):
            cut = self._rng.choice([name for name in sorted(world.regions) if name != region.name])
            network.cut(region.name, cut)
            world.trace(f"{cut} gets nothing of {region.name}")
        clients = [self._publish(region, topic, "since") for topic in world.topics]
        await world._until(f"{region.name} has receipts", self._acknowledged, _ENDS_S)

        def lacking() -> str:
            others = [name for name in world.regions if name not in (cut, region.name)]
            return str(
                {name: len(found) for h in world.histories.values() for name in others if (found := h.lacking(name))}
                or ""
            )

        await world._until(f"every region has what {region.name} published", lacking, _ENDS_S)
        return clients, lambda: network.heal(region.name, cut) if cut else None

    def _whole(self, back: Region) -> str:
        """Every topic holds of each origin as much as the others do: what came from them links bring again."""
        name = back.name
        logs = [
            (region, topic, log) for region, topic, _, log in self._world.probes.owners() if topic in self._world.topics
        ]
        if len(logs) < len(self._world.topics) * len(self._world.regions):
            return f"owners of {[(region, topic) for region, topic, _ in logs]} only"
        mine = {topic: log for region, topic, log in logs if region == name}
        for region, topic, log in logs:
            if mine[topic].origin[1] != 2:
                raise Violation(f"{topic} in {name} goes on under {mine[topic].origin}")
            for origin in log.vector:
                if mine[topic].vector.prefix(origin) < log.vector.prefix(origin):
                    return f"{region} has {topic} of {origin} through {log.vector.prefix(origin)}, {name} has less"
        return ""

    # -- the operator --------------------------------------------------------------------------------------------------

    async def _back_up(self, region: Region) -> None:
        machine = self._world.sim.machines[_ADMIN]
        disk, address = machine.disk("backups"), f"{region.metadata.name}:{META_PORT}"
        while True:
            store = MetaClient([address], clock=machine.clock, rng=machine.rng)
            file = disk.open("metadata", create=True)
            file.truncate(0)
            writer = BackupWriter(file)
            try:
                await fetch(store, address, partial(self._on_piece, writer, region.name))
                file.datasync()
                break
            except HeliographError as error:
                self._world.trace(f"no backup of {region.name}: {error}")
                await asyncio.sleep(_TRY_S)
            finally:
                file.close()
                store.close()
        disk.sync_directory()
        self._world.trace(f"the metadata of {region.name} is backed up")

    def _on_piece(self, writer: BackupWriter, name: str, piece: bytes) -> None:
        if not writer.size_bytes:
            made_ms = self._world.sim.clock().wall_ms()
            writer.begin(Info(BackedUpStore.LOCAL, name, made_ms, head_of(piece).index, "simulated"))
        writer.add(piece)

    async def _ask_bookies(self, region: Region) -> dict[str, list[int]]:
        """Bookie -> the ledgers that it holds; its brokers, and its metadata, are stopped before."""
        machine = self._world.sim.machines[_ADMIN]
        for node in (*region.brokers, *region.voters):
            node.kill()
        file = machine.disk("backups").open("metadata")
        known = rules.survey(BackupReader(file).rows())
        file.close()
        held: dict[str, list[int]] = {}
        given = {node.name: (node.name, BOOKIE_PORT) for node in region.bookies}  # one may have been away just then
        for name, (host, port) in rules.addresses(known, given, ()).items():
            client = BookieClient(name, host, port, rng=machine.rng)
            while name not in held:
                try:
                    held[name] = await client.ledgers()
                except HeliographError as error:
                    self._world.trace(f"{name} does not say what it holds: {error}")
                    await asyncio.sleep(_TRY_S)
            client.close()
        return held

    def _restore(self, region: Region, held: dict[str, list[int]]) -> Collection[int]:
        """As `heliograph restore` does. Returns the ledgers that the metadata knows now."""
        world, now_ms = self._world, self._world.sim.clock().wall_ms()
        file = world.sim.machines[_ADMIN].disk("backups").open("metadata")
        reader = BackupReader(file)
        known = rules.survey(reader.rows())
        counters = dict(reader.head.counters)
        first = rules.ledger_ids_from(counters, known, held, now_ms)
        instance, index = f"{self._rng.getrandbits(128):032x}", restored_index(reader.info.index, now_ms / 1000)
        for node in region.voters:
            for path, platter in node.machine.platters().items():
                if path.startswith(_META):
                    platter.put_back({})
                    platter.fail_syncs = False  # an operator restores to a disk that works
            platter = node.machine.platter(_META)
            disk = platter.disk()
            rows = rules.restored_rows(reader.rows(), held, instance, rules.RestoredKeys())
            pieces = restored_pieces(index, rules.restored_counters(counters, first, now_ms), rows)
            write_snapshot(disk, index, RESTORED_TERM, group_of([voter.name for voter in region.voters]), pieces)
            life_file.restore(disk)
            disk.close()
            platter.unplug()
        file.close()
        return known.ledgers
