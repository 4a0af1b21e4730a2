"""Transacted: topics beside those of a world that clients of every region publish to in transactions, while everything
else goes on.

Is: one story of a world: plain messages, and transactions over two topics that are committed, aborted, or left open;
and what must hold of them. Isn't: acknowledgements in transactions (`tests/region_node/transactions`).

At any time no consumer anywhere gets a message of a transaction whose commit nobody asked for, and in no region one
topic shows its part of a transaction before the other has its own, but where it was published. What stands behind an
open transaction waits: what its region published, and nothing that others did where links are a mesh. In the end what
was committed is in every region, once, in the order of its producer; what was aborted, or left open, is nowhere; of
what its client does not know, all or nothing. Nothing is open or held then, and no subscription lacks an
acknowledgement.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import History, Message, Violation
from geo_tests.sim.pulsar_client import Client, Consumer, Delivered
from geo_tests.sim.region import NAMESPACE
from geo_tests.sim.transaction_client import Coordinator, Ended, TransactionalProducer, TxnId
from region_node.transactions.coordinators.replicated_transactions import abroad

if TYPE_CHECKING:
    from geo_tests.sim.world import World
    from replicator.log.transaction_buffer import TransactionBuffer

TOPICS = tuple(f"persistent://{NAMESPACE}/transacted-{number}" for number in range(2))
UNITS = 18
"""Of all regions together: their clients publish as many plain messages and transactions."""
ENDS_S = 60.0
LOOKS_S = 0.2
_TTL_MS = 30_000
_SHORT_TTL_MS = (800, 4000)
_LEFT_TTL_MS = 3000
PLAIN, COMMIT, ABORT, LEFT = "plain", "committed", "aborted", "left open"
_WEIGHTS = {PLAIN: 3, COMMIT: 5, ABORT: 2, LEFT: 1}
_COORDINATORS = 2


@dataclass
class Transaction:
    """What its client knows of it. asked: it has asked for the commit; outcome "": it does not know."""

    region: str
    messages: list[tuple[str, Message]] = field(default_factory=list)
    waits: set[tuple[str, int]] = field(default_factory=set)
    """(topic, sequence) of what has no answer yet."""
    refused: bool = False
    asked: bool = False
    outcome: str = ""
    txn: TxnId = (-1, -1)


class _Writer:
    """One region's client: a producer of each topic, and a coordinator."""

    def __init__(self, story: Transacted, region: str) -> None:
        world = story.world
        self.region, self._story, self.rng = region, story, world.sim.rng(f"transacted-{region}")
        addresses = world.regions[region].addresses()
        self.coordinator = Coordinator(Client(addresses, self.rng), self.rng.randrange(_COORDINATORS))
        self._changed = asyncio.Event()
        self._next = dict.fromkeys(TOPICS, 0)
        self._of: dict[tuple[str, int], Transaction] = {}
        self._producers = {topic: self._producer(topic, Client(addresses, self.rng)) for topic in TOPICS}

    @property
    def name(self) -> str:
        return f"{self.region}-transacted"

    @property
    def clients(self) -> list[TransactionalProducer]:
        return list(self._producers.values())

    def _producer(self, topic: str, client: Client) -> TransactionalProducer:
        story = self._story

        def on_receipt(sequence: int, ledger: int, entry: int) -> None:
            story.places[topic][self.name, sequence] = (ledger, entry)
            if (found := self._of.get((topic, sequence))) is None:
                story.histories[topic].acknowledge(self.name, sequence, ledger, entry)
            else:
                found.waits.discard((topic, sequence))
            self._changed.set()

        def on_refused(sequence: int) -> None:
            found = self._of[topic, sequence]
            found.refused = True
            found.waits.discard((topic, sequence))
            self._changed.set()

        return TransactionalProducer(client, topic, self.name, on_receipt, on_refused)

    async def work(self) -> None:
        for _ in range(UNITS // len(self._story.world.regions)):
            if not self._story.publishing:
                break
            (what,) = self.rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            if what == PLAIN:
                self.plain(self.rng.choice(TOPICS))
            else:
                await self.transact(what)
            await asyncio.sleep(self.rng.uniform(0.05, 1.0))

    def plain(self, topic: str) -> Message:
        sequence, payload = self._submit(topic, PLAIN)
        assert self._producers[topic].send(sequence, payload)
        return self.name, sequence

    async def transact(self, what: str, ttl_ms: int = 0) -> Transaction:
        """Returns once it has ended as far as the client knows, or is left open. ttl_ms 0: as is usual."""
        found = Transaction(self.region)
        short = what == LEFT or self.rng.random() < 0.15
        found.txn = await self.coordinator.begin(ttl_ms or (self.rng.randint(*_SHORT_TTL_MS) if short else _TTL_MS))
        self._story.begun(found)
        try:
            await self.coordinator.add(found.txn, list(TOPICS))
            for topic in TOPICS:
                for _ in range(self.rng.choice((1, 1, 2))):
                    self._send_in(found, topic)
            while found.waits:
                self._changed.clear()
                await self._changed.wait()
            if what != LEFT:
                found.asked = what == COMMIT and not found.refused
                await self.coordinator.end(found.txn, commit=found.asked)
                self._story.ended(found, COMMIT if found.asked else ABORT)
            else:
                self._story.ended(found, LEFT)
        except Ended as error:
            if error.known or not found.asked:
                self._story.ended(found, ABORT)
            self._story.world.trace(f"transaction {found.txn} of {self.region}: {error}")
        return found

    def _send_in(self, found: Transaction, topic: str) -> None:
        sequence, payload = self._submit(topic, f"{found.txn[0]}:{found.txn[1]}")
        found.messages.append((topic, (self.name, sequence)))
        found.waits.add((topic, sequence))
        self._of[topic, sequence] = self._story.of[topic, (self.name, sequence)] = found
        self._producers[topic].send_in(found.txn, sequence, payload)

    def _submit(self, topic: str, what: str) -> tuple[int, bytes]:
        sequence = self._next[topic]
        self._next[topic] += 1
        payload = f"{self.name}:{sequence}:{what}".encode()
        self._story.histories[topic].submit(self.region, self.name, sequence, payload)
        return sequence, payload


class Transacted:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng: random.Random = world.sim.rng("transacted")
        self.histories = {topic: History(topic) for topic in TOPICS}
        self.places: dict[str, dict[Message, tuple[int, int]]] = {topic: {} for topic in TOPICS}
        self.of: dict[tuple[str, Message], Transaction] = {}
        self.publishing = True
        self.counts = Counter[str]()
        self._transactions: list[Transaction] = []
        self._partly: dict[str, list[Transaction]] = {region: [] for region in world.settings.regions}
        """Region -> those of others that it does not show yet as a whole."""
        self._ended = False
        self._writers: dict[str, _Writer] = {}
        self._work: list[asyncio.Task[Any]] = []
        self._consumers: dict[tuple[str, str], Consumer] = {}
        self._clients: list[asyncio.Task[Any]] = []

    def begin(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())
        self._watching.add_done_callback(self.world.sim.report)
        for region in self.world.regions:
            writer = self._writers[region] = _Writer(self, region)
            for producer in writer.clients:
                self._clients.append(self.world.at_client(region, producer.run))
            for topic in TOPICS:
                client = Client(self.world.regions[region].addresses(), self.world.sim.rng(f"{topic}-{region}-c"))
                consumer = Consumer(client, topic, "sub", self._on_message(region, topic))
                self._consumers[region, topic] = consumer
                self._clients.append(self.world.at_client(region, consumer.run))
            self._work.append(self.world.at_client(region, writer.work))

    def begun(self, found: Transaction) -> None:
        self._transactions.append(found)
        for region in self.world.regions:
            if region != found.region:
                self._partly[region].append(found)

    def ended(self, found: Transaction, outcome: str) -> None:
        """As its client knows: what was committed is acknowledged, anything else is submitted by nobody."""
        found.outcome = outcome
        self.counts[outcome] += 1
        self.world.verdict.transactions += 1
        self.world.verdict.kinds.append(f"transaction {outcome}")
        self.world.trace(f"transaction {found.txn} of {found.region} is {outcome}: {found.messages}")
        for topic, message in found.messages:
            if outcome == COMMIT:
                self.histories[topic].acknowledge(*message, *self.places[topic][message])

    def _on_message(self, region: str, topic: str) -> Callable[[Delivered], None]:
        def on_message(delivered: Delivered) -> None:
            found = self.of.get((topic, (delivered.producer, delivered.sequence)))
            if found is not None and not (found.asked and found.outcome in ("", COMMIT)):
                raise Violation(
                    f"{topic} in {region}: {delivered} is delivered, its transaction {found.txn} was "
                    f"{found.outcome or 'not ended'}"
                )
            self.histories[topic].consume(region, delivered)

        return on_message

    # -- all the time --------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Where another region shows its part of a transaction in one topic, it has that of the other, too."""
        while not self._ended:
            await asyncio.sleep(LOOKS_S)
            if "leave" in self.world.verdict.kinds:  # a region that is none waits for nothing
                continue
            logs = {(region, topic): log for region, topic, _, log in self.world.probes.owners() if topic in TOPICS}
            for region in self.world.regions:
                here = [logs[region, topic].state.transactions for topic in TOPICS if (region, topic) in logs]
                if len(here) == len(TOPICS) and None not in here:
                    self._look_at(region, here, logs)

    def _look_at(self, region: str, here: list[TransactionBuffer], logs: dict[tuple[str, str], Any]) -> None:
        for found in list(self._partly[region]):
            if found.outcome not in ("", COMMIT):
                self._partly[region].remove(found)
            elif found.asked and (origin := logs.get((found.region, TOPICS[0]))) is not None:
                numbers = {one[:2] for one in origin.state.own_origins()}
                ends = [[b.has_ended_abroad(*number, *found.txn) for number in numbers] for b in here]
                held = [any(abroad(key) in {(*n, *found.txn) for n in numbers} for key in b.held) for b in here]
                if all(map(any, ends)) and not any(held):
                    self._partly[region].remove(found)
                elif any(any(end) and not h for end, h in zip(ends, held, strict=True)) and not all(map(any, ends)):
                    raise Violation(
                        f"{region} shows a part of {found.txn} of {found.region}, and lacks the rest: {ends}"
                    )

    # -- the end -------------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Everything is well by now. Raises Violation."""
        world = self.world
        self.publishing = False
        await world._until("clients have ended their transactions", self._worked, ENDS_S)
        await self._at_rest()
        for writer in self._writers.values():
            writer.plain(TOPICS[0])
        await world._until("clients have published once more", self._worked, ENDS_S)
        await self._at_rest()  # every link is up by that: one that had nothing to carry may have been down until now
        await self._hold_up()
        await self._at_rest()
        found = {topic: {region: await world.read(topic, region) for region in world.regions} for topic in TOPICS}
        for found_one in self._transactions:
            if found_one.outcome not in ("", COMMIT):
                for topic, message in found_one.messages:
                    self.histories[topic].submitted.pop(message)
        for topic, history in self.histories.items():
            history.check(found[topic])
            history.check_consumed(found[topic])
        for region in world.regions:
            self._check_whole(region, {(t, (d.producer, d.sequence)) for t in TOPICS for d in found[t][region]})
        await world._until("nothing of transacted topics is left to acknowledge", self._acknowledged, ENDS_S)
        for one in (*(p for w in self._writers.values() for p in w.clients), *self._consumers.values()):
            one.close()
        for writer in self._writers.values():
            writer.coordinator.close()
        self._ended = True
        await asyncio.gather(self._watching, *self._clients)

    async def _at_rest(self) -> None:
        await self.world._until("no transaction is open", self._all_ended, ENDS_S)
        await self.world._until("consumers have all that was committed", self._consumed, ENDS_S)

    def _worked(self) -> str:
        if all(task.done() for task in self._work) and not any(
            producer.pending for writer in self._writers.values() for producer in writer.clients
        ):
            return ""
        return str(
            [
                (region, writer.coordinator.last_error, [(len(p.pending), p.last_error) for p in writer.clients])
                for region, writer in self._writers.items()
            ]
        )

    async def _hold_up(self) -> None:
        """One more is left open in one region: what stands behind it waits there alone, and ends with it."""
        world, topic = self.world, TOPICS[0]
        region = self.rng.choice(sorted(world.regions))
        writer = self._writers[region]
        left = await writer.transact(LEFT, _LEFT_TTL_MS)
        if not left.messages or left.refused:
            return
        behind = writer.plain(topic)
        others = [self._writers[other].plain(topic) for other in world.regions if other != region]
        history, until = self.histories[topic], world.sim.now() + _LEFT_TTL_MS / 1000 - 0.5

        def passed() -> bool:
            elsewhere = [history.consumed.get(there, set()) for there in world.regions if there != region]
            return all(message in consumed for consumed in elsewhere for message in others)

        while world.sim.now() < until and not passed():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)
        if not self._open(region):
            return
        if any(behind in consumed for consumed in history.consumed.values()):
            raise Violation(f"{topic}: {behind} is delivered, and {left.txn} of {region} is open before it")
        if passed():
            world.verdict.kinds.append("behind an open transaction")
        elif world.reconfiguration.wish.kind == "mesh":  # else it may stand before what its region passes on
            raise Violation(f"{topic}: {left.txn} of {region} is open, and holds up what others publish: {others}")

    def _open(self, region: str) -> bool:
        return any(
            log.state.transactions is not None and log.state.transactions.open
            for there, topic, _, log in self.world.probes.owners()
            if (there, topic) == (region, TOPICS[0])
        )

    def _all_ended(self) -> str:
        logs = {(region, topic): log for region, topic, _, log in self.world.probes.owners() if topic in TOPICS}
        for at, log in logs.items():
            buffer = log.state.transactions
            if buffer is not None and (buffer.open or buffer.held):
                return f"{at}: open {list(buffer.open)}, held {[(k, h.waits) for k, h in buffer.held.items()]}"
        return "" if len(logs) == len(TOPICS) * len(self.world.regions) else f"owners of {sorted(logs)} only"

    def _consumed(self) -> str:
        lacking = {
            (topic, region): found
            for topic, history in self.histories.items()
            for region in self.world.regions
            if (found := history.lacking(region))
        }
        return str(lacking or "")

    def _check_whole(self, region: str, found: set[tuple[str, Message]]) -> None:
        """Of each transaction, all or nothing."""
        for one in self._transactions:
            there = [message for message in one.messages if message in found]
            if there and len(there) < len(one.messages):
                raise Violation(f"{region} has {there} of transaction {one.txn} of {one.region}: {one.messages}")

    def _acknowledged(self) -> str:
        backlogs = {
            (region, topic): log.ledger.cursors["sub"].backlog_entries
            for region, topic, _, log in self.world.probes.owners()
            if topic in TOPICS
        }
        return str({at: count for at, count in backlogs.items() if count} or "")
