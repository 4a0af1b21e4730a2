"""Beside: one more topic of a world, beside those that it has from the start: its clients, and what must hold of it.

Is: producers of one name in each region, a durable subscription in each, and a history of each incarnation of the
topic. Isn't: the story that makes, deletes, or forgets the topic (`remade`, `restored`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import History, Violation
from geo_tests.sim.pulsar_client import Client, Consumer, Delivered, Producer

if TYPE_CHECKING:
    from geo_tests.sim.world import World

MESSAGES = 4
"""Per region and incarnation."""
ENDS_S = 60.0


class Beside:
    """One topic; name: of its producers, behind that of their region."""

    def __init__(self, world: World, topic: str, name: str) -> None:
        self.world, self.topic, self._name = world, topic, name
        self._histories: list[History] = []
        """Of each incarnation."""
        self._consumers: list[Consumer] = []
        self._clients: list[asyncio.Task[Any]] = []
        self._producers: list[Producer] = []

    def publish(self) -> None:
        """By producers of the same names as before, from the same sequence on: the topic is a new one."""
        world, self._producers, number = self.world, [], len(self._histories)
        history = History(f"{self.topic}, incarnation {number}")
        self._histories.append(history)
        for region in world.regions:
            client = Client(world.regions[region].addresses(), world.sim.rng(f"{self._name}-{region}-{number}"))
            name = f"{region}-{self._name}"

            def on_receipt(sequence: int, ledger: int, entry: int, name: str = name) -> None:
                history.acknowledge(name, sequence, ledger, entry)

            producer = Producer(client, self.topic, name, on_receipt)
            for sequence in range(MESSAGES):
                payload = f"{name}:{sequence}:{number}".encode()
                history.submit(region, name, sequence, payload)
                assert producer.send(sequence, payload)
            self._producers.append(self._start(region, producer))

    def consume(self) -> None:
        """In every region, from now on."""
        world = self.world
        for region in world.regions:
            client = Client(world.regions[region].addresses(), world.sim.rng(f"{self._name}-{region}-c"))
            self._consumers.append(self._start(region, Consumer(client, self.topic, "sub", self._on_message(region))))

    def stop_publishing(self) -> None:
        """Else they would publish again what has no receipt, rightly."""
        for producer in self._producers:
            producer.close()

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        world = self.world
        history = self._histories[-1]
        await world._until(f"producers of {self.topic} have their receipts", self._acknowledged, ENDS_S)
        await world._until(f"consumers of {self.topic} have everything", self._consumed, ENDS_S)
        found = {region: await world.read(self.topic, region) for region in world.regions}
        history.check(found)
        for one in (*self._producers, *self._consumers):
            one.close()
        await asyncio.gather(*self._clients)

    def _start(self, region: str, client: Any) -> Any:
        self._clients.append(self.world.at_client(region, client.run))
        return client

    def _on_message(self, region: str) -> Any:
        def on_message(delivered: Delivered) -> None:
            self._histories[-1].consume(region, delivered)

        return on_message

    def _acknowledged(self) -> str:
        history = self._histories[-1]
        lacking = [message for message in history.submitted if message not in history.acknowledged]
        duplicates = [message for message, at in history.acknowledged.items() if at < (0, 0)]
        if len(duplicates) == len(history.submitted):
            raise Violation(
                f"{self.topic} was made again, and all that is published is taken for what was there before"
            )
        return f"{lacking}, {[p.last_error for p in self._producers]}" if lacking else ""

    def _consumed(self) -> str:
        lacking = {region: self._histories[-1].lacking(region) for region in self.world.regions}
        return str({region: found for region, found in lacking.items() if found} or "")
