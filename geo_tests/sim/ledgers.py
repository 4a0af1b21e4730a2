"""LedgerWorld: bookies, one metadata node, and writers that take one topic from each other; no brokers, no clients.

Is: the smaller world, for the invariants of storage: a confirmed entry survives, at most one writer confirms in a
ledger, the state that a new writer restores is exactly what the log holds, cursors never pass what nobody acknowledged,
every entry gets all of its copies in the end. Isn't: links, or protocol.

Writers open the topic without asking anybody (no leases here): each opening fences the one before. Bookies are killed,
lose power, also in the middle of an operation, are cut off from writers, and have slow disks, one at a time; writers
are killed at any moment.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from geo_tests.sim.checkers import Violation
from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import prefix_end
from heliograph.model.errors import HeliographError, LeaseLost
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.block import peek_block
from heliograph.wire.run import Run
from local_meta import keys
from local_meta.node import LocalMetaNode
from storage.bookie.serving.bookie import Bookie, BookieSettings, DirectoryPlace
from storage.bookie.serving.bookie_server import BookieServer
from storage.bookie.serving.enrolment import Enrolment
from storage.ledger.bookies.bookie_client import BookieClient, BookieClientSettings
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.ledger_context import LedgerContext, LedgerSettings
from storage.ledger.repair.autorecovery import AutoRecovery
from storage.ledger.repair.lost_bookies import AutoRecoverySettings
from storage.managed_ledger.cache.entry_cache import EntryCache
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings

TOPIC = "persistent://sim/ns/log"
META = "meta"
BOOKIE_PORT, META_PORT = 3181, 7001
_ENTRY = struct.Struct(">HI")

SMALL_BOOKIE = BookieSettings(
    segment_bytes=32 << 10,
    frame_bytes_max=16 << 10,
    write_cache_bytes=16 << 10,
    journal_pending_bytes=64 << 10,
    read_bytes_max=8 << 10,
    free_bytes_min=0,
)
QUICK_LEDGER = LedgerSettings(add_timeout_s=1.0, lost_after_s=3.0, retry_max_s=0.5)
QUICK_RECOVERY = AutoRecoverySettings(lost_after_s=0.5, scan_s=2.0, check_s=2.0, rescan_s=0.5, tick_s=0.1)
SMALL_LEDGERS = ManagedLedgerSettings(
    ledger_entries_max=40,
    checkpoint_entries=16,
    checkpoint_bytes=8 << 10,
    checkpoint_interval_s=0.05,
    pending_timeout_s=8.0,
    close_timeout_s=2.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerWorldSettings:
    writers: int = 2
    lives: int = 4
    """How often somebody takes the topic over, beside those that follow a fault at once."""
    duration_s: float = 12.0
    faults: int = 7


class CountingState:
    """A LogState: what each writer has in the log, and how many entries there are."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.entries = 0
        self.at: Position = BEFORE_ALL

    def restore(self, blob: bytes) -> None:
        if blob:
            pairs, self.entries, at = msgpack.unpackb(blob, strict_map_key=False)
            self.last, self.at = dict(pairs), (at[0], at[1])

    def replay(self, ledger: int, first: int, run: Run) -> None:
        if (ledger, first) <= self.at:
            raise Violation(f"entry {ledger}:{first} is given again behind {self.at}")
        for part in run.parts:
            life, number = _ENTRY.unpack_from(part)
            self.last[life] = number
        self.entries += run.count
        self.at = (ledger, first + run.count - 1)

    def snapshot(self) -> bytes:
        packed: bytes = msgpack.packb([sorted(self.last.items()), self.entries, self.at])
        return packed


@dataclass
class LedgerHistory:
    """What writers appended and saw confirmed."""

    appended: dict[tuple[int, int], bytes] = field(default_factory=dict)
    confirmed: dict[Position, tuple[int, int]] = field(default_factory=dict)
    acked: set[Position] = field(default_factory=set)
    acked_durably: set[Position] = field(default_factory=set)

    def confirm(self, ledger: int, first: int, run: Run) -> None:
        for index, part in enumerate(run.parts):
            entry = _ENTRY.unpack_from(part)
            place = (ledger, first + index)
            if place in self.confirmed:
                raise Violation(f"{place} was confirmed for {self.confirmed[place]} and for {entry}")
            self.confirmed[place] = entry

    def check(self, found: list[tuple[Position, bytes]], state: CountingState, first: Position) -> None:
        """`found`: the whole log, as the last reader sees it, from `first` on: what lies below was trimmed, and must
        have been acknowledged.
        """
        seen: dict[tuple[int, int], Position] = {}
        last: dict[int, int] = {}
        places = dict(found)
        for place, data in found:
            entry = _ENTRY.unpack_from(data)
            if self.appended.get(entry) != data:
                raise Violation(f"{place} holds {data[:20]!r}, which nobody appended")
            if entry in seen:
                raise Violation(f"{entry} lies at {seen[entry]} and at {place}")
            if last.get(entry[0], -1) >= entry[1]:
                raise Violation(f"{place}: {entry} behind {last[entry[0]]}")
            seen[entry], last[entry[0]] = place, entry[1]
        for place, entry in self.confirmed.items():
            if place < first:
                if place not in self.acked:
                    raise Violation(
                        f"{entry} was confirmed at {place} and was trimmed (up to {first}), though nobody "
                        "acknowledged it"
                    )
                continue
            if place not in places:
                raise Violation(f"{entry} was confirmed at {place} and is gone")
            if _ENTRY.unpack_from(places[place]) != entry:
                raise Violation(f"{entry} was confirmed at {place}, where now {_ENTRY.unpack_from(places[place])} lies")
        if any(state.last.get(life) != number for life, number in last.items()) or (
            first <= (0, 0) and state.entries != len(found)
        ):
            raise Violation(
                f"the restored state says {state.entries} entries, {state.last}; the log holds {len(found)}, {last}"
            )

    def check_cursor(
        self, mark_delete: Position, is_acked: Callable[[Position], bool], found: list[tuple[Position, bytes]]
    ) -> None:
        """What counts as acknowledged was acknowledged; what was acknowledged and flushed still is."""
        for place, _ in found:
            counted = place <= mark_delete or is_acked(place)
            if counted and place not in self.acked:
                raise Violation(
                    f"{place} counts as acknowledged (mark-delete position {mark_delete}), and nobody acknowledged it"
                )
            if not counted and place in self.acked_durably:
                raise Violation(
                    f"{place} was acknowledged durably, and is not any more (mark-delete position {mark_delete})"
                )


class LedgerWorld:
    """One run."""

    def __init__(
        self, seed: int, settings: LedgerWorldSettings | None = None, trace: Callable[[str], None] | None = None
    ) -> None:
        self.seed, self.settings = seed, settings or LedgerWorldSettings()
        self.sim = Simulation(seed)
        self.rng = self.sim.rng("world")
        self.history = LedgerHistory()
        count, self.quorums = self.rng.choice(
            ((4, (2, 2, 2)), (3, (2, 2, 2)), (4, (3, 3, 2)), (3, (3, 3, 2)), (5, (3, 3, 3)), (2, (2, 2, 2)))
        )
        """How many bookies; ensemble, write quorum, ack quorum."""
        self.bookies = [self.sim.machine(f"bookie-{i}") for i in range(count)]
        self.writers = [self.sim.machine(f"writer-{i}") for i in range(self.settings.writers)]
        self.lives = 0
        self.copied_bytes = 0
        """What repairs brought after the last fault."""
        self.trims = self.rng.random() < 0.3
        """Whether ledgers that everybody has acknowledged are deleted."""
        self.sync_s = self.rng.choice(((0.0003, 0.0015), (0.005, 0.05)))
        """How long a sync of a journal takes while nothing is wrong: the slower, the more is lost by a power cut."""
        self._trace = trace

    def trace(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.sim.now():10.4f}  {text}")

    def run(self) -> LedgerHistory:
        """Raises Violation or SimFailure."""
        try:
            self.sim.run(self._main(), limit_s=300)
        finally:
            self.sim.close()
        return self.history

    async def _main(self) -> None:
        self.sim.machine(META).start(self._metadata)
        for bookie in self.bookies:
            bookie.platter("journal").sync_s = self.sync_s
            bookie.start(self._bookie)
        await asyncio.sleep(0.5)
        loop, settings = self.sim.loop, self.settings
        for _ in range(settings.lives):
            loop.call_later(self.rng.uniform(0.0, 0.9) * settings.duration_s, self._take_over)
        for _ in range(settings.faults):
            loop.call_later(self.rng.uniform(0.0, 0.9) * settings.duration_s, self._strike)
        self._take_over()
        await asyncio.sleep(settings.duration_s)
        for bookie in self.bookies:
            self._heal(bookie)
        for machine in [self.sim.machine(META), *self.bookies]:
            if not machine.running:
                machine.start(self._metadata if machine.host == META else self._bookie)
        await asyncio.sleep(1.0)
        for bookie in self.rng.sample(
            self.bookies, self.quorums[2] - 1
        ):  # a confirmed entry survives the loss of so many
            if self.quorums[0] < len(self.bookies):
                self.trace(f"{bookie.host} is gone for good")
                bookie.power_cut()
        try:
            await self.sim.call("reader", self._check, limit_s=120)
        except HeliographError as error:
            raise Violation(f"all is healed, and the topic cannot be taken over and read: {error}") from error

    # -- processes ------------------------------------------------------------------------------------------------

    async def _metadata(self, machine: Machine) -> None:
        await LocalMetaNode(
            node_id=META,
            disk=machine.disk("meta"),
            clock=machine.clock,
            rng=machine.rng,
            host=machine.host,
            port=META_PORT,
        ).start()

    async def _bookie(self, machine: Machine) -> None:
        bookie = Bookie(
            [DirectoryPlace(machine.disk("journal"), machine.disk("journal"))],
            [DirectoryPlace(machine.disk("ledgers"), machine.disk("ledgers"))],
            SMALL_BOOKIE,
            bookie_id=machine.host,
            instance="sim",
            rng=machine.rng,
            clock=machine.clock,
        )
        bookie.open()
        if not bookie.in_doubt:
            raise Violation(f"{machine.host} is in limbo: {bookie.limbo}")
        await BookieServer(bookie).start(machine.host, BOOKIE_PORT)
        store = self._store(machine)
        await Enrolment(bookie, store, rng=machine.rng).start()
        while bookie.limbo:
            if "ledgers name it" in bookie.limbo:
                raise Violation(f"{machine.host} is in limbo: {bookie.limbo}")
            await asyncio.sleep(0.05)
        self.trace(f"{machine.host} is up")
        value = msgpack.packb({"host": machine.host, "port": BOOKIE_PORT, "http_port": 0, "writable": True})
        while True:
            try:
                lease = await store.grant(3000)
                await store.put(keys.bookie(machine.host), value, lease=lease)
                while True:
                    await asyncio.sleep(1.0)
                    await store.renew(lease)
            except LeaseLost:
                pass
            except HeliographError:
                await asyncio.sleep(0.2)

    async def _writer(self, machine: Machine) -> None:
        """One life: takes the topic over, appends and acknowledges until it is fenced or killed."""
        self.lives += 1
        life, rng = self.lives, machine.rng
        factory = await self._factory(machine)
        state = CountingState()
        try:
            log = await factory.open(TOPIC, state, self.quorums, create=True)
            cursor = await log.open_cursor("sub", BEFORE_ALL)
            log.set_retention(*self._retention())
        except HeliographError as error:
            self.trace(f"{machine.host} could not open: {error!r}")
            return
        self.trace(f"{machine.host} opened as {life}: {log.last_confirmed}, {state.entries} entries")
        number = 0
        failed: list[HeliographError] = []

        def done(ledger: int, first: int, run: Run) -> None:
            state.replay(ledger, first, run)
            self.history.confirm(ledger, first, run)

        log.wake_on_append(lambda: None)
        while not failed and log.failed is None:
            run, number = self._run(life, number, rng)
            log.append_run(run, done, failed.append)
            if rng.random() < 0.3:
                await self._acknowledge(log, cursor, rng)
            await asyncio.sleep(rng.choice((0.0, 0.002, 0.02, 0.2)))
        self.trace(f"{machine.host} as {life} ends: {failed[:1]} {log.failed!r}")

    def _run(self, life: int, number: int, rng: random.Random) -> tuple[Run, int]:
        parts: list[bytes] = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            data = _ENTRY.pack(life, number) + bytes([number % 256]) * rng.choice((0, 20, 300))
            self.history.appended[(life, number)] = data
            parts.append(data)
            number += 1
        return Run(parts, [len(p) for p in parts]), number

    async def _acknowledge(self, log: ManagedLedger, cursor: Any, rng: random.Random) -> None:
        """Some of what is next, at random; sometimes waits until that is durable."""
        try:
            found = await log.read(log.next_position(cursor.mark_delete), 20, 1 << 20)
        except HeliographError:
            return
        places = [(ledger, first + i) for ledger, first, run in found for i in range(run.count)]
        chosen = [p for p in places if rng.random() < 0.6]
        if not chosen:
            return
        self.history.acked.update(chosen)
        cursor.ack(chosen)
        if rng.random() < 0.3:
            try:
                await cursor.flushed()
            except HeliographError:
                return
            self.history.acked_durably.update(chosen)

    async def _check(self) -> None:
        machine = self.sim.machine("reader")
        factory = await self._factory(machine)
        state = CountingState()
        log = await factory.open(TOPIC, state, self.quorums, create=True)
        log.set_retention(*self._retention())
        found: list[tuple[Position, bytes]] = []
        position = log.first_position()
        while runs := await log.read(position, 50, 4096):
            for ledger, first, run in runs:
                found += [((ledger, first + i), bytes(part)) for i, part in enumerate(run.parts)]
            position = log.next_position(found[-1][0])
        cursor = await log.open_cursor("sub", BEFORE_ALL)
        self.trace(
            f"read {len(found)} entries, {len(self.history.confirmed)} confirmed; mark-delete position "
            f"{cursor.mark_delete}"
        )
        self.history.check(found, state, log.first_position() if self.trims else (0, 0))
        self.history.check_cursor(cursor.mark_delete, cursor.is_acked, found)
        await self._complete(factory.context)

    async def _complete(self, context: LedgerContext) -> None:
        """Whoever was away, and for how long: the auditor finds what each bookie missed, and it is brought there, or
        elsewhere.
        """
        recovery = AutoRecovery(context, "reader", QUICK_RECOVERY)
        await recovery.start()
        deadline = self.sim.now() + 40
        while missing := await self._missing(context):
            if self.sim.now() > deadline:
                raise Violation(f"all is healed, and there is a copy too few: {missing}")
            await asyncio.sleep(0.5)
        self.trace(
            f"copies are complete: {recovery.check.found} ledgers lacked some, {recovery.repair.copied_bytes} bytes "
            "were copied"
        )
        self.copied_bytes = recovery.repair.copied_bytes
        await recovery.stop()

    async def _missing(self, context: LedgerContext) -> str:
        """The first entry that a bookie is named for, and does not give; "" where there is none, and no ledger is
        marked. Reads from each bookie.
        """
        for _, blob, _ in await context.meta.range(keys.LEDGERS, prefix_end(keys.LEDGERS)):
            metadata = LedgerMetadata.decode(blob)
            ends = [first - 1 for first, _ in metadata.fragments[1:]] + [metadata.last_entry]
            for (at, ensemble), end in zip(metadata.fragments, ends, strict=True):
                for bookie in ensemble if metadata.state == LedgerState.CLOSED else ():
                    entry, last = at, min(end, metadata.last_entry)
                    while entry <= last:
                        if bookie not in metadata.write_set(entry):  # another stripe
                            entry += 1
                            continue
                        try:
                            blocks = await context.pool.client(bookie).read(metadata.ledger, entry, last, 1 << 20)
                        except HeliographError as error:
                            return f"{metadata.ledger}:{entry} on {bookie}: {error}"
                        _, start, count = peek_block(blocks[-1])
                        entry = start + count
        marks = await context.meta.range(keys.UNDERREPLICATED, prefix_end(keys.UNDERREPLICATED), limit=1)
        return f"{marks[0][0]} is marked" if marks else ""

    def _retention(self) -> tuple[int, int]:
        return (0, 0) if self.trims else (-1, -1)

    def _store(self, machine: Machine) -> MetaClient:
        return MetaClient([f"{META}:{META_PORT}"], clock=machine.clock, rng=machine.rng)

    async def _factory(self, machine: Machine) -> ManagedLedgerFactory:
        store = self._store(machine)
        client = BookieClientSettings(connect_timeout_s=0.5, answer_timeout_s=1.0, backoff_max_s=0.3)
        pool = BookiePool(
            store,
            lambda bookie, host, port: BookieClient(bookie, host, port, rng=machine.rng, settings=client),
            machine.rng,
        )
        await pool.ready()
        return ManagedLedgerFactory(
            store, pool, EntryCache(64 << 10), SMALL_LEDGERS, machine.clock, machine.rng, ledger_settings=QUICK_LEDGER
        )

    # -- faults ---------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        machine = self.rng.choice(self.writers)
        if machine.running and self.rng.random() < 0.6:
            machine = next((m for m in self.writers if not m.running), machine)  # the other one lives on, as a zombie
        if machine.running:
            machine.kill() if self.rng.random() < 0.5 else machine.power_cut()
        machine.start(self._writer)

    def _strike(self) -> None:
        """One fault of one bookie, at most one at a time; often somebody takes the topic over right then."""
        if not all(b.running for b in self.bookies):
            return
        bookie, kind = self.rng.choice(self.bookies), self.rng.randrange(9)
        self.trace(f"fault {kind} on {bookie.host}")
        if kind == 0:
            bookie.kill()
        elif kind == 1:
            bookie.power_cut()
        elif kind == 2:
            bookie.platter(self.rng.choice(("journal", "ledgers"))).cut_after(self.rng.randrange(1, 25))
        elif kind == 3:
            bookie.platter("journal").sync_s = (0.1, 1.5)
        elif kind == 4:
            self.sim.network.cut(self.rng.choice(self.writers).host, bookie.host, one_way=self.rng.random() < 0.5)
        elif kind == 5:
            self.sim.network.latency(self.rng.choice(self.writers).host, bookie.host, 0.05, 0.4)
        elif (
            kind >= 7
        ):  # it goes while the metadata is slow: an ensemble change takes long, and its writer may die in it
            for writer in self.writers:
                self.sim.network.latency(writer.host, META, 0.1, 0.6)
            bookie.kill()
            self.sim.loop.call_later(self.rng.uniform(0.02, 1.0), self._take_over)
        else:
            for machine in self.bookies:
                machine.power_cut()
                self.sim.loop.call_later(self.rng.uniform(0.2, 2.0), self._heal, machine)
        if self.rng.random() < 0.6:
            self.sim.loop.call_later(
                self.rng.choice((0.001, 0.01, 0.1, 0.5, 1.5)) * self.rng.uniform(0.5, 1.5), self._take_over
            )
        self.sim.loop.call_later(self.rng.choice((0.05, 0.3, 2.0)) * self.rng.uniform(0.5, 2.0), self._heal, bookie)

    def _heal(self, bookie: Machine) -> None:
        for writer in self.writers:
            self.sim.network.heal(writer.host, bookie.host)
            for other in (bookie.host, META):
                self.sim.network.latency(writer.host, other, 0.0001, 0.0004)
        for platter in bookie.platters().values():
            platter.cancel_cut()
            platter.sync_s = self.sync_s
        if not bookie.running:
            bookie.start(self._bookie)
