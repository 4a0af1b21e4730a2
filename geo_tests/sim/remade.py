"""Remade: a topic that is deleted in every region and made again under its name, while everything else goes on.

Is: one story of a world beside its topics: clients, an admin who deletes it as `heliograph dr delete` does, the same
clients again, and what must hold. Isn't: a deletion in one region alone, which takes nothing from the others.

Nothing of the old incarnation is in the new one: no reader finds it, no consumer gets it, and producers that begin
again at sequence 0 under their names are no duplicates. Nothing of the new one is deleted: what was acknowledged of it
is in every region, once and in order. The tombstone goes. Where a region that had not heard of it made its first copy
behind it, it asks, and the admin says that this is meant, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import History, Violation
from geo_tests.sim.pulsar_client import Client, Consumer, Delivered, Producer
from geo_tests.sim.region import CONFIG_PORT, NAMESPACE
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import ABSENT
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from heliograph.model.errors import HeliographError, VersionConflict

if TYPE_CHECKING:
    from geo_tests.sim.world import World

TOPIC = f"persistent://{NAMESPACE}/remade"
MESSAGES = 4
"""Per region and incarnation."""
_ADMIN = "deleting-admin"
_ENDS_S = 60.0


class Remade:
    """Of one world; nothing happens before `begin`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.sim.rng("remade")
        self._histories: list[History] = []
        """Of each incarnation."""
        self._consumers: list[Consumer] = []
        self._clients: list[asyncio.Task[Any]] = []
        self._producers: list[Producer] = []
        self._story: asyncio.Future[None] | None = None

    def begin(self) -> bool:
        """False: it has begun before, or a region is out of the namespace, whose copy nobody would delete."""
        world = self._world
        members = world.reconfiguration.wish.members
        if self._story is not None or not all(map(world.reconfiguration.serves, world.regions)) or not members:
            return False
        self._story = asyncio.ensure_future(self._tell())
        self._story.add_done_callback(world.sim.report)
        return True

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        if self._story is None:
            return
        world = self._world
        await world._until(f"{TOPIC} is deleted and made again", self._story.done, _ENDS_S)
        history = self._histories[-1]
        await world._until(f"producers of {TOPIC} have their receipts", self._acknowledged, _ENDS_S)
        await world._until(f"consumers of {TOPIC} have everything", self._consumed, _ENDS_S)
        found = {region: await world.read(TOPIC, region) for region in world.regions}
        history.check(found)
        for one in (*self._producers, *self._consumers):
            one.close()
        await asyncio.gather(*self._clients)

    # -- the story -----------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        world = self._world
        self._publish()
        for region in world.regions:
            client = Client(world.regions[region].addresses(), world.sim.rng(f"remade-{region}-c"))
            self._consumers.append(self._start(region, Consumer(client, TOPIC, "sub", self._on_message(region))))
        await asyncio.sleep(self._rng.uniform(0.1, 2.0))
        for producer in self._producers:  # else they would publish again what has no receipt, rightly
            producer.close()
        await world.sim.call(_ADMIN, self._delete, limit_s=600.0)
        world.trace(f"{TOPIC} is deleted everywhere")
        self._publish()

    def _publish(self) -> None:
        """By producers of the same names as before, from the same sequence on."""
        world, self._producers, number = self._world, [], len(self._histories)
        history = History(f"{TOPIC}, incarnation {number}")
        self._histories.append(history)
        for region in world.regions:
            client = Client(world.regions[region].addresses(), world.sim.rng(f"remade-{region}-{number}"))
            name = f"{region}-remade"

            def on_receipt(sequence: int, ledger: int, entry: int, name: str = name) -> None:
                history.acknowledge(name, sequence, ledger, entry)

            producer = Producer(client, TOPIC, name, on_receipt)
            for sequence in range(MESSAGES):
                payload = f"{name}:{sequence}:{number}".encode()
                history.submit(region, name, sequence, payload)
                assert producer.send(sequence, payload)
            self._producers.append(self._start(region, producer))

    def _start(self, region: str, client: Any) -> Any:
        def begin() -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(client.run())

        task = self._world.sim.machines[f"{region}-client"].run(begin)
        task.add_done_callback(self._world.sim.report)
        self._clients.append(task)
        return client

    def _on_message(self, region: str) -> Any:
        def on_message(delivered: Delivered) -> None:
            self._histories[-1].consume(region, delivered)

        return on_message

    async def _delete(self) -> None:
        """Returns once every region has purged it."""
        world, machine = self._world, self._world.sim.machines[_ADMIN]
        nodes = [f"{region.metadata.name}:{CONFIG_PORT}" for region in world.regions.values()]
        store = MetaClient(nodes, clock=machine.clock, rng=machine.rng)
        made = Tombstone(
            topic=TOPIC,
            regions=tuple(world.regions),
            since_ms=machine.clock.wall_ms(),
            until_ms=machine.clock.wall_ms(),
        )
        written = False
        while True:
            try:
                found = await store.get(tombstone(TOPIC))
                if found is None and written:
                    break
                if found is None:
                    await store.put(tombstone(TOPIC), made.encode(), expected=ABSENT)
                    written = True
                elif Tombstone.decode(found[0]).asks:
                    again = replace(made, since_ms=machine.clock.wall_ms(), sure=True)
                    await store.put(tombstone(TOPIC), again.encode(), expected=found[1])
            except VersionConflict:
                written = True  # by the try before
            except HeliographError as error:
                world.trace(f"the admin cannot delete {TOPIC}: {error}")
            await asyncio.sleep(0.2)
        store.close()

    # -- what must hold ------------------------------------------------------------------------------------------------

    def _acknowledged(self) -> str:
        history = self._histories[-1]
        lacking = [message for message in history.submitted if message not in history.acknowledged]
        duplicates = [message for message, at in history.acknowledged.items() if at < (0, 0)]
        if len(duplicates) == len(history.submitted):
            raise Violation(f"{TOPIC} was made again, and all that is published is taken for what was there before")
        return f"{lacking}, {[p.last_error for p in self._producers]}" if lacking else ""

    def _consumed(self) -> str:
        lacking = {region: self._histories[-1].lacking(region) for region in self._world.regions}
        return str({region: found for region, found in lacking.items() if found} or "")
