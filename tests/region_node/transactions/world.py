"""A small world of transactions: topics and subscriptions as participants, coordinators that crash and linger, and a
network that loses answers.

Is: real coordinators (`StoredCoordinator`) over a store in memory, real buffers and pending acknowledgements, checks.
Isn't: brokers, frames, disks: a topic's log is a list, which a crash keeps, and from which its buffer is made again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import HeliographError, MetadataUnavailable, OutcomeUnknown, TopicClosed
from heliograph.wire.run import FLAG_HIDDEN, FLAG_MARKER, Run, TxnId
from region_node.transactions.coordinators.coordinator import CoordinatorSettings
from region_node.transactions.coordinators.stored_coordinator import StoredCoordinator
from region_node.transactions.participants.pending_acks import PendingAcks
from region_node.transactions.participants.transaction_errors import (
    NoCoordinator,
    NoSuchTransaction,
    TransactionConflict,
    TransactionState,
)
from replicator.log.transaction_buffer import ABORT, COMMIT, TransactionBuffer, below, marker_run

MESSAGES = 12


class Topic:
    """A log, its buffer, and a subscription whose cursor is a set of entries."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[Run] = []
        self.buffer = TransactionBuffer()
        self.acked: set[int] = set()
        self.stored = PendingAcks().encode()
        self.pending = PendingAcks()

    def crash(self, rng: random.Random) -> None:
        """Comes back from the log, from a snapshot in its middle, and from what was stored of the subscription."""
        first, second = TransactionBuffer(), TransactionBuffer()
        half = rng.randrange(len(self.log) + 1)
        for at, run in enumerate(self.log[:half]):
            if run.transaction is not None:
                first.confirm(0, at, run)
        second.load(first.dump())
        for at, run in enumerate(self.log[half:], half):
            if run.transaction is not None:
                second.confirm(0, at, run)
        self.buffer, self.pending = second, PendingAcks.decode(self.stored)

    def append(self, run: Run) -> None:
        self.log.append(run)
        if run.transaction is not None:
            self.buffer.confirm(0, len(self.log) - 1, run)

    def publish(self, txn: TxnId | None, text: str) -> bool:
        if txn is not None and self.buffer.refuses(txn):
            return False
        self.append(Run([text.encode()], [len(text)], transaction=txn))
        return True

    def end(self, txn: TxnId, commit: bool, low: int) -> None:
        """What `TopicTransactions.end` does."""
        for _, tc, number in [k for k in self.buffer.open if k[1] == txn[0] and k[2] < low]:
            self.append(marker_run((tc, number), ABORT, low))
        ended = self.buffer.ended(txn)
        if ended is not None:
            if ended != (COMMIT if commit else ABORT):
                raise TransactionState(f"{txn} has ended the other way in {self.name}")
            return
        self.append(marker_run(txn, COMMIT if commit else ABORT, low))

    def end_acks(self, txn: TxnId, commit: bool, low: int) -> None:
        """What `SubscriptionTransactions.end` does, on a cursor that is stored with it."""
        for stale in self.pending.stale(txn[0], low):
            self.pending.take(stale)
        held = self.pending.take(txn, low)
        if held is not None and commit:
            self.acked |= {entry for _, entry in held.whole}
        self.stored = self.pending.encode()

    def read(self) -> list[str]:
        end = self.buffer.undecided_from()
        pieces = [(0, at, run) for at, run in enumerate(self.log)]
        shown = self.buffer.committed_view(pieces if end is None else below(pieces, end))
        return [
            bytes(run.parts[0]).decode()
            for _, _, run in shown
            if run.flags is None or not run.flags[0] & (FLAG_HIDDEN | FLAG_MARKER)
        ]


class Store(EmbeddedStore):
    """Loses answers, and is away now and then."""

    rng: random.Random

    async def txn(self, ops: Any) -> int:
        if self.rng.random() < 0.05:
            raise MetadataUnavailable("away")
        await asyncio.sleep(0.1 * self.rng.random())
        version = await super().txn(ops)
        if self.rng.random() < 0.05:
            raise OutcomeUnknown("the answer is lost")
        return version


class World:
    """`coordinators`: number -> those that run; the last one is the owner's, the others do not know yet that they are
    no owners.
    """

    kept: type[StoredCoordinator] = StoredCoordinator

    def __init__(self, sim: Simulation, seed: int, *, topics: int = 4, coordinators: int = 2) -> None:
        self.sim, self.rng = sim, random.Random(seed)
        self.store = Store(KvMachine())
        self.store.rng = self.rng
        self.topics = {f"t{n}": Topic(f"t{n}") for n in range(topics)}
        self.coordinators: dict[int, list[StoredCoordinator]] = {n: [] for n in range(coordinators)}
        self.told: dict[TxnId, bool] = {}
        """What a client heard: True: committed."""
        self.asked: dict[TxnId, set[bool]] = {}
        self.sent: dict[TxnId, list[tuple[str, str]]] = {}
        self.acks: dict[TxnId, list[tuple[str, int]]] = {}
        self.plain: dict[str, list[str]] = {name: [] for name in self.topics}
        self.trouble = 0.3

    # -- participants, as coordinators reach them ----------------------------------------------------------------------

    async def end_partition(
        self, topic: str, txn: TxnId, *, commit: bool, low: int, others: Sequence[str] = (), again: bool = False
    ) -> bool:
        await self._way(lambda: self.topics[topic].end(txn, commit, low))
        return True

    async def end_subscription(self, topic: str, subscription: str, txn: TxnId, *, commit: bool, low: int) -> None:
        await self._way(lambda: self.topics[topic].end_acks(txn, commit, low))

    async def _way(self, act: Any) -> None:
        await asyncio.sleep(self.rng.random() * 0.05)
        if self.rng.random() < self.trouble:
            raise TopicClosed("lost on the way there")
        act()
        self.check()
        await asyncio.sleep(self.rng.random() * 0.05)
        if self.rng.random() < self.trouble:
            raise TopicClosed("lost on the way back")

    # -- coordinators --------------------------------------------------------------------------------------------------

    async def coordinator(self, number: int) -> StoredCoordinator:
        running = self.coordinators[number]
        if running and running[-1].failed is None and self.rng.random() < 0.9:
            return running[-1]
        if running and self.rng.random() < 0.5:
            await running.pop().close()  # a crash; else it lingers, and must find itself fenced
        settings = CoordinatorSettings(kept_ms=5000)
        for _ in range(20):
            try:
                made = await self.kept.load(number, self.store, self, self.sim.clock(), self.rng, settings)
                running.append(made)
                return made
            except HeliographError:
                await asyncio.sleep(0.05)
        raise NoCoordinator("never came up")

    async def ask(self, number: int, call: Any, tries: int = 30) -> Any:
        """A client's request, tried again where that is allowed."""
        for _ in range(tries):
            try:
                async with asyncio.timeout(3):
                    return await call(await self.coordinator(number))
            except (NoCoordinator, TimeoutError):
                await asyncio.sleep(0.1 * self.rng.random())
        raise NoCoordinator("gave up")

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            for number in self.coordinators:
                try:
                    await (await self.coordinator(number)).tick()
                except NoCoordinator:
                    continue

    async def crashes(self) -> None:
        while True:
            await asyncio.sleep(0.2 * self.rng.random())
            self.topics[self.rng.choice(sorted(self.topics))].crash(self.rng)
            self.check()

    # -- clients -------------------------------------------------------------------------------------------------------

    async def client(self, name: int) -> None:
        for number in range(MESSAGES):
            if self.rng.random() < 0.3:
                topic = self.rng.choice(sorted(self.topics))
                self.topics[topic].publish(None, f"p{name}-{number}")
                self.plain[topic].append(f"p{name}-{number}")
            await self.transaction(f"{name}-{number}")

    async def transaction(self, name: str) -> None:
        tc = self.rng.randrange(len(self.coordinators))
        try:
            txn: TxnId = await self.ask(tc, lambda c: c.begin(self.rng.choice((400, 60_000)), "me"))
            self.sent[txn], self.acks[txn], self.asked[txn] = [], [], set()
            for topic in self.rng.sample(sorted(self.topics), self.rng.randrange(1, 4)):
                await self.ask(tc, lambda c, t=topic: c.join(txn[1], [t], [(t, "s")], "me"))
                for part in range(self.rng.randrange(1, 3)):
                    text = f"{name}-{topic}-{part}"
                    if self.topics[topic].publish(txn, text):
                        self.sent[txn].append((topic, text))
                await asyncio.sleep(0.02 * self.rng.random())
                self._ack(txn, topic)
            if self.rng.random() < 0.15:
                return  # the client is gone
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.random())  # about as long as some have time
            commit = self.rng.random() < 0.6
            self.asked[txn].add(commit)
            await self.ask(tc, lambda c: c.end(txn[1], commit=commit, owner="me"))
            self.told[txn] = commit
        except (TransactionState, NoSuchTransaction, NoCoordinator):
            return  # its time was over, or nobody answered

    def _ack(self, txn: TxnId, topic: str) -> None:
        found = self.topics[topic]
        entry = self.rng.randrange(len(found.log))
        try:
            found.pending.check(txn, [(0, entry)], [])
        except TransactionConflict:
            return
        if entry not in found.acked:
            found.pending.add(txn, [(0, entry)], [])
            found.stored = found.pending.encode()
            self.acks[txn].append((topic, entry))

    # -- what must hold ------------------------------------------------------------------------------------------------

    def ends(self, txn: TxnId) -> set[int]:
        """COMMIT, ABORT: what the logs of topics say."""
        key = (txn,)
        return {
            m.parts[0][1]
            for topic in self.topics.values()
            for m in topic.log
            if m.flags is not None and (m.transaction,) == key
        }

    def check(self) -> None:
        """At every step: no transaction is committed in one topic and aborted in another, or the other way than its
        client heard.
        """
        for txn in self.sent:
            ends = self.ends(txn)
            assert len(ends) <= 1, f"{txn} is committed in one topic and aborted in another"
            if txn in self.told:
                assert ends <= {COMMIT if self.told[txn] else ABORT}, f"{txn}: the client heard {self.told[txn]}"

    def check_end(self) -> None:
        """Once everything has come to rest: each transaction is there whole, or not at all; nothing is open, nothing is
        held.
        """
        self.check()
        for topic in self.topics.values():
            assert not topic.buffer.open, f"{topic.name} has open transactions: {list(topic.buffer.open)}"
            assert not topic.pending.held, f"{topic.name} has acknowledgements pending: {list(topic.pending.held)}"
            shown = topic.read()
            wanted = [
                text
                for txn, sent in self.sent.items()
                if self.ends(txn) == {COMMIT}
                for name, text in sent
                if name == topic.name
            ]
            assert sorted(shown) == sorted(wanted + self.plain[topic.name])
        for txn, sent in self.sent.items():
            committed = self.ends(txn) == {COMMIT}
            assert not committed or True in self.asked[txn]
            assert self.told.get(txn) is not True or not sent or committed
            for topic, entry in self.acks[txn]:
                holders = [t for t, acks in self.acks.items() if (topic, entry) in acks and self.ends(t) == {COMMIT}]
                assert (entry in self.topics[topic].acked) == bool(holders), f"{topic}:{entry}"

    async def run(self) -> None:
        background = [asyncio.ensure_future(self.tick()), asyncio.ensure_future(self.crashes())]
        await asyncio.gather(*(self.client(name) for name in range(3)))
        self.trouble = 0.0
        background.pop().cancel()
        assert not background[0].done()
        for _ in range(400):
            await asyncio.sleep(0.5)
            if all(not t.buffer.open and not t.pending.held for t in self.topics.values()):
                break
        background.pop().cancel()
        self.check_end()
        for running in self.coordinators.values():
            for coordinator in running:
                await coordinator.close()
