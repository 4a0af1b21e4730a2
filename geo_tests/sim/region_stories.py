"""Stories of whole regions: production's composition on virtual time, and a script in place of faults and clients.

Is: the start of the regions, publishing with receipts, reading, processes that are begun anew; and `given`, which tells
what a test presupposes from what it is about. Isn't: an expectation of any test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from geo_tests.sim.pulsar_client import Client, Producer
from geo_tests.sim.region import NAMESPACE, Node
from geo_tests.sim.world import START_S, World, WorldSettings

TOPIC = f"persistent://{NAMESPACE}/topic-0"
PUBLISH_S = 30.0


class NotAsGiven(Exception):
    """What a test presupposes does not hold, so that it shows nothing; never what a known fault ends with."""


@contextmanager
def given() -> Iterator[None]:
    """Around all that must hold before the promise is looked at: what fails in here is not the known fault."""
    try:
        yield
    except AssertionError as error:
        raise NotAsGiven(f"the scene does not play as it should: {error}") from error


class Story(World):
    """One run. `tell` is what happens once every broker is up."""

    def __init__(
        self, tell: Callable[[Story], Coroutine[Any, Any, None]], regions: tuple[str, ...], *, seed: int = 1
    ) -> None:
        super().__init__(seed, WorldSettings(regions=regions, brokers=1, topics=1, faults=0))
        self._tell, self._producers = tell, 0

    @classmethod
    def play(cls, tell: Callable[[Story], Coroutine[Any, Any, None]], *regions: str) -> None:
        """Raises NotAsGiven where the story does not come to its end."""
        with given():
            cls(tell, regions).run()

    async def _main(self) -> None:
        await self._start()
        for name in self.regions:
            self.sim.machine(f"{name}-client", zone=name).start(_nothing)
        await self._tell(self)

    async def publish(self, region: str, topic: str, bodies: Iterable[bytes]) -> None:
        """Returns once each of them has its receipt. The producer has a name that is this call's alone."""
        waiting = list(bodies)
        receipts: list[int] = []
        self._producers += 1
        name = f"{region}-{self._producers}"
        client = Client(self.regions[region].addresses(), self.sim.rng(f"producer {name}"))

        def on_receipt(sequence: int, _ledger: int, _entry: int) -> None:
            receipts.append(sequence)

        def lacking() -> str:
            return "" if len(receipts) == len(waiting) else f"{len(receipts)} of {len(waiting)}, {producer.last_error}"

        producer = Producer(client, topic, name, on_receipt, window=len(waiting))
        for sequence, body in enumerate(waiting):
            assert producer.send(sequence, body)
        machine = self.sim.machine(f"{region}-client")
        running = machine.run(asyncio.get_running_loop().create_task, producer.run())
        await self._until(f"{name} has its receipts", lacking, PUBLISH_S)
        producer.close()
        await running

    async def bodies(self, region: str, topic: str) -> list[bytes]:
        """What a reader finds in that region, from the earliest message on."""
        return [bytes(delivered.payload) for delivered in await self.read(topic, region)]

    async def begin_anew(self, nodes: Iterable[Node]) -> None:
        """These processes have been killed before, and start now; returns once they are ready."""
        started = list(nodes)
        for node in started:
            node.revive()
        await self._until("they are up again", lambda: all(node.is_ready() for node in started), START_S)


async def _nothing(_: Any) -> None:
    pass
