"""Compacted: a topic beside those of a world whose messages have keys, and which is compacted now and then in every
region, while everything else goes on.

Is: one story of a world: clients of every region that write keys of their own, now and then an empty value, which
takes a key away; compactions, and readers of what they leave; and what must hold of it. Isn't: compaction by size, or
of a topic whose log is trimmed (`tests/region_node/compaction`).

A compacted reader finds nothing of a key behind a newer value of it, and of the keys that are written where it reads,
at any time, the last value that was acknowledged before it began, or a later one; in the end the last value of every
key in every region, and behind one more compaction each key once, and none that was taken away.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import History, Message, Violation
from geo_tests.sim.pulsar_client import Client, Delivered, Pending, Producer, Reader, encode_entry
from geo_tests.sim.region import NAMESPACE
from heliograph.model.errors import HeliographError

if TYPE_CHECKING:
    from geo_tests.sim.world import World

TOPIC = f"persistent://{NAMESPACE}/compacted"
MESSAGES = 10
"""Per region."""
KEYS = 4
"""Of each region."""
EMPTY = 0.15
"""The part of messages that take their key away."""
ENDS_S = 60.0
_READ_S = 3.0


class KeyedProducer(Producer):
    def put(self, sequence: int, key: str, payload: bytes) -> None:
        self._put(Pending(sequence, payload, encode_entry(self.shown, sequence, payload, 1, key=key)))


class Compacted:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng: random.Random = world.sim.rng("compacted")
        self.history = History(TOPIC)
        self.publishing = True
        self._keys: dict[Message, str] = {}
        self._producers: list[KeyedProducer] = []
        self._clients: list[asyncio.Task[Any]] = []
        self._work: list[asyncio.Task[Any]] = []

    def begin(self) -> None:
        for region in self.world.regions:
            rng = self.world.sim.rng(f"compacted-{region}")
            producer = self._producer(region, Client(self.world.regions[region].addresses(), rng))
            self._producers.append(producer)
            self._clients.append(self.world.at_client(region, producer.run))
            self._work += [
                self.world.at_client(region, self._write, region, producer, rng),
                self.world.at_client(region, self._look_now_and_then, region),
            ]

    def _producer(self, region: str, client: Client) -> KeyedProducer:
        name = f"{region}-compacted"

        def on_receipt(sequence: int, ledger: int, entry: int) -> None:
            self.history.acknowledge(name, sequence, ledger, entry)

        return KeyedProducer(client, TOPIC, name, on_receipt)

    async def _write(self, region: str, producer: KeyedProducer, rng: random.Random) -> None:
        pace = self.world.settings.chaos_s / MESSAGES
        for sequence in range(MESSAGES):
            key = f"{region}-{rng.randrange(KEYS)}"
            payload = b"" if rng.random() < EMPTY else f"{producer.name}:{sequence}:{key}".encode()
            self._keys[producer.name, sequence] = key
            self.history.submit(region, producer.name, sequence, payload)
            producer.put(sequence, key, payload)
            await asyncio.sleep(pace * rng.uniform(0.1, 1.6))

    async def _look_now_and_then(self, region: str) -> None:
        """Compacts, and reads."""
        while self.publishing:
            await asyncio.sleep(self.rng.uniform(1.0, 5.0))
            self._compact(region)
            if self.rng.random() < 0.5:
                await self._look(region)

    def _compact(self, region: str) -> None:
        for there, topic, node, _ in self.world.probes.owners():
            if (there, topic) == (region, TOPIC):
                loaded = node.roles[0].topics.loaded[TOPIC]
                try:
                    node.machine.run(loaded.compact)
                except HeliographError as error:
                    self.world.trace(f"{TOPIC} is not compacted in {region}: {error}")
                else:
                    self.world.verdict.kinds.append("compaction")
                    self.world.trace(f"{TOPIC} is compacted in {region}")

    async def _look(self, region: str) -> None:
        """Of the keys that are written here: whatever was acknowledged by now."""
        wanted = self._last(lambda message: self.history.submitted[message][0] == region)
        try:
            found = await self._read(region, _READ_S)
        except TimeoutError:
            return
        self._judge(region, found, wanted)
        self.world.verdict.kinds.append("compacted reading")

    def _last(self, of: Callable[[Message], bool]) -> dict[str, Message]:
        """Key -> what was acknowledged of it last."""
        return {self._keys[m]: m for m in sorted(self.history.acknowledged) if of(m)}

    async def _read(self, region: str, limit_s: float = 60.0) -> Sequence[Delivered]:
        client = Client(self.world.regions[region].addresses(), self.world.sim.rng(f"compacted-reader-{region}"))
        reader = Reader(client, TOPIC, compacted=True)
        return await self.world.sim.call(f"{region}-client", lambda: reader.read_all(limit_s=limit_s))

    def _judge(self, region: str, found: Sequence[Delivered], wanted: dict[str, Message]) -> dict[str, Message]:
        """Returns the last value of each key."""
        last: dict[str, Message] = {}
        for item in found:
            self.history.check_known(region, item)
            message = (item.producer, item.sequence)
            key = self._keys[message]
            if key in last and last[key] >= message:
                raise Violation(f"{TOPIC} in {region}: {message} of {key} is read behind {last[key]}")
            last[key] = message
        for key, message in wanted.items():
            got = last.get(key)
            if got is None and self._may_be_gone(key, message):
                continue
            if got is None or got < message:
                raise Violation(f"{TOPIC} in {region}: of {key} {got} is read, {message} was acknowledged")
        return last

    def _may_be_gone(self, key: str, since: Message) -> bool:
        """Whether its value from then on was empty once."""
        return any(
            not payload
            for message, (_, payload) in self.history.submitted.items()
            if message >= since and self._keys[message] == key
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        world = self.world
        self.publishing = False
        await world._until("all that has keys is published", self._published, ENDS_S)
        await world._until(f"every region has all of {TOPIC}", self._arrived, ENDS_S)
        self.history.check({region: await world.read(TOPIC, region) for region in world.regions})
        wanted = self._last(lambda _: True)
        for region in world.regions:
            self._judge(region, await self._read(region), wanted)
        await world._until(f"{TOPIC} is compacted everywhere", self._compacted, ENDS_S)
        kept = {key: m for key, m in wanted.items() if self.history.submitted[m][1]}
        for region in world.regions:
            found = await self._read(region)
            if self._judge(region, found, wanted) != kept or len(found) != len(kept):
                raise Violation(f"{TOPIC} in {region}: compacted to its end it reads {found}, and not {kept}")
        for producer in self._producers:
            producer.close()
        await asyncio.gather(*self._clients)

    def _published(self) -> str:
        left = [(p.name, len(p.pending), p.last_error) for p in self._producers if p.pending]
        return str(left) if left or not all(task.done() for task in self._work) else ""

    def _logs(self) -> dict[str, Any]:
        return {region: log for region, topic, _, log in self.world.probes.owners() if topic == TOPIC}

    def _arrived(self) -> str:
        """Their vectors are one."""
        vectors = {region: str(log.vector) for region, log in self._logs().items()}
        return "" if len(vectors) == len(self.world.regions) and len(set(vectors.values())) == 1 else str(vectors)

    def _compacted(self) -> str:
        """Asks for it where it is not."""
        left = [region for region in self.world.regions if not self._is_compacted(region)]
        for region in left:
            self._compact(region)
        return f"not in {left}" if left else ""

    def _is_compacted(self, region: str) -> bool:
        for there, topic, node, log in self.world.probes.owners():
            if (there, topic) == (region, TOPIC):
                state = node.roles[0].topics.loaded[TOPIC].compacted
                made = None if state is None else state.view.compacted
                return made is not None and made.horizon >= log.ledger.last_confirmed
        return False
