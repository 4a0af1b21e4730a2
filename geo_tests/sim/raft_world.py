"""RaftWorld: cores of a Raft group, stepped directly on virtual time, with everything that can go wrong, and clients
that write down what they saw.

Is: members (a core, what its disk holds durably, a small key-value machine with client sessions), a network that loses,
repeats, delays, reorders, and cuts, clocks that run wrong, crashes that lose what was not synced; the invariants of
Raft, checked after every step. Isn't: the shell, sockets,
files: those have simulations of their own.
Everything follows from the seed. `RaftWorld(seed, core=Mutant).run()` raises Violation.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import crc32c

from geo_tests.sim.raft_client import Client
from geo_tests.sim.raft_history import FOREVER, Operation, is_linearizable
from geo_tests.sim.raft_member import (
    FAULTS_S,
    HEAL_S,
    KEEP_ENTRIES,
    KEYS,
    NOTED_S,
    DurableState,
    Member,
    SessionKv,
    Violation,
)
from heliograph.raft.core import Actions, CoreSettings, RaftCore, RaftRole
from heliograph.raft.founding import Founders
from heliograph.raft.messages import COMMAND, Config, Entry, Message, SnapshotChunk, SnapshotMeta, decode, encode
from heliograph.raft.raft_log import RaftLog
from heliograph.raft.starts import Starts


class RaftWorld:
    """One run. `core`: the class under test, or a mutant of it."""

    def __init__(self, seed: int, *, core: type[RaftCore] = RaftCore) -> None:
        self.seed, self.core_class = seed, core
        self.rng = rng = random.Random(f"raft {seed}")
        self.lives = random.Random(f"lives {seed}")
        self.time = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self.config, spare = self._draw_group()
        self.alone = (
            len(self.config.voters) == 1
        )  # it leads before its vote for itself is durable: nobody can have seen that
        self.members = {name: Member(name) for name in (*self.config.members, *spare)}
        self.asked = (*self.config.voters, *spare)  # whom clients turn to
        self.settings = CoreSettings(
            election_timeout_s=rng.choice((0.6, 0.3)),
            heartbeat_s=0.12,
            append_bytes_max=rng.choice((100, 400, 10_000)),
            inflight_appends_max=rng.choice((1, 4, 64)),
            chunk_bytes=rng.choice((60, 10_000)),
            read_rounds_max=rng.choice((1, 4)),
            lag_entries_max=(0, 4, 1000)[seed % 3],
        )
        self.loss = rng.choice((0.0, 0.02, 0.1, 0.25))
        self.repetition = rng.choice((0.0, 0.05, 0.2))
        self.delay_s = rng.choice(((0.001, 0.005), (0.001, 0.05), (0.02, 0.06), (0.001, 0.2), (0.001, 1.0)))
        self.sync_s = rng.choice(((0.0005, 0.003), (0.001, 0.05), (0.01, 0.2)))
        self.trouble_s = rng.choice((0.15, 0.4, 1.0))
        self.cruelty = rng.choice(
            (0.0, 0.01, 0.05)
        )  # chance of a power cut right after something was sent or is about to be stored
        self.coups = rng.choice((0.0, 0.0, 0.6))  # chance that a new leader does not last
        self.cut: set[tuple[str, str]] = set()
        for number, member in enumerate(self.members.values()):
            member.keeps = (seed + number) % 2 == 1
            member.rate, member.offset = rng.choice((1.0, 1.0, 0.5, 2.0)), rng.uniform(0, 1000)
        # what the world knows
        self.leaders: dict[int, tuple[str, int]] = {}
        self.entries: dict[tuple[int, int], tuple[int, int, bytes]] = {}  # (index, term) -> (term before, kind, data)
        self.committed: dict[int, Entry] = {}
        self.digests: dict[int, int] = {}
        self.histories: dict[str, list[Operation]] = {key: [] for key in KEYS}
        self.tokens = 0
        self.steps = 0
        self.answered = 0
        self.committed_at = 0.0
        self.made_for_others = 0  # snapshots of members that need none themselves
        self.notes = 0  # commits that were written down by themselves
        self.resumed = 0  # starts with more than a snapshot that is known to be committed

    def _draw_group(self) -> tuple[Config, tuple[str, ...]]:
        """The first configuration, and members that wait outside of it."""
        count = self.rng.choice((1, 3, 3, 3, 3, 5, 4, 2))
        learners = ("n9",) if self.rng.random() < 0.2 else ()
        return Config(tuple(f"n{i}" for i in range(count)), learners), ()

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for name in self.members:
            self._start(name)
        clients = [Client(self, f"c{i}") for i in range(self.rng.choice((3, 5, 8)))]
        for client in clients:
            self.after(self.rng.random(), client.next)
        self.after(self.rng.random(), self._trouble)
        self._run_until(FAULTS_S)
        self._heal()
        done_at: list[float] = []
        probe = Client(self, "probe")
        self.after(self.settings.election_timeout_s * 4, probe.last, lambda: done_at.append(self.time))
        self._run_until(FAULTS_S + HEAL_S)
        if not done_at:
            raise Violation("liveness: after healing nothing is committed")
        self._check_convergence()
        for key, history in self.histories.items():
            if not is_linearizable(history):
                raise Violation(f"linearizability: the history of {key} has no order")

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.time + delay, self._number, call, args))

    def _run_until(self, end: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end:
            self.time, _, call, args = heapq.heappop(queue)
            call(*args)
            self.steps += 1
        self.time = end

    # -- members ------------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        member = self.members[name]
        if member.core is not None:  # it runs
            return
        member.lives += 1
        disk = member.durable
        if not disk.life:
            disk.life = self.lives.randrange(1, 1 << 63)
        member.kv = SessionKv()
        config = self.config if name in self.config.members else Config(())
        newest = disk.newest()
        if newest is not None:
            config = newest[0].config
            member.kv.restore(newest[1])
        member.core = self.core_class(
            name,
            config=config,
            term=disk.term,
            vote=disk.vote,
            log=RaftLog(disk.base, disk.base_term, disk.entries),
            snapshot=disk.snapshot,
            settings=self.settings,
            rng=self.rng,
            now=member.now(self.time),
            commit=disk.commit,
            owed=disk.owed,
            founders=Founders(
                name, disk.life, self.config.voters if name in self.config.voters else (), disk.proven or ()
            ),
            proven=disk.proven is not None,
            starts=self._starts(disk),
        )
        member.seen_commit, member.tick_at = max(disk.base, disk.commit), FOREVER
        self.resumed += disk.commit > disk.base
        self._check_note(member)
        self._pump(member)

    def _starts(self, disk: DurableState) -> Starts:
        disk.starts = disk.starts.begun(self.lives.getrandbits(32))
        return Starts(disk.starts)

    def _crash(self, name: str) -> None:
        member = self.members[name]
        if member.core is None:
            return
        kept = list(member.unstored)
        through = self.rng.randrange(len(kept) + 1)
        for batch in kept[:through]:
            self._store(member, batch)
        if through < len(kept):
            self._store(member, kept[through], self.rng)
        member.core = None
        member.making, member.durable.incoming = False, b""
        member.durable.received.clear()
        member.batches.clear()
        member.unstored.clear()
        member.disk_busy = False
        member.waiting.clear()
        member.reads.clear()

    def _pump(self, member: Member) -> None:
        """Takes and carries out actions until there are none; checks the member; arms its clock."""
        core = member.core
        assert core is not None
        while True:
            actions = core.take_actions()
            if actions:
                if not self.alone:
                    self._check_new(member, core, actions)
                for number, _, offset, data in actions.pieces:
                    member.durable.incoming = member.durable.incoming[:offset] + data
                    self.after(self.rng.uniform(*self.sync_s), self._piece_stored, member, member.lives, number)
                if actions.snapshot is not None:
                    member.durable.received[actions.snapshot.index] = member.durable.incoming
                if actions.wants_snapshot and not member.making:
                    member.making = True
                    self._snapshot(member.name, for_others=True)
                member.batches.append((actions, actions.stores))
                if actions.stores or actions.note_commit:
                    member.unstored.append(actions)
            elif member.batches and not member.batches[0][1]:
                self._release(member, core, member.batches.popleft()[0])
            else:
                break
        self._check(member, core)
        if not member.disk_busy and member.unstored:
            member.disk_busy = True
            self.after(self.rng.uniform(*self.sync_s), self._synced, member, member.lives)
        if member.batches and self.time < FAULTS_S and self.rng.random() < self._cruelty(member, core):
            self.after(self.rng.choice((0.0, 0.001, 0.03)), self._crash, member.name)
            self.after(self.rng.choice((0.03, 0.05, 0.3, 1.0)), self._start, member.name)
        at = max((core.next_deadline() - member.offset) / member.rate, self.time)
        if at < member.tick_at:
            member.tick_at = at
            self.after(at - self.time, self._tick, member, member.lives, at)

    def _cruelty(self, member: Member, core: RaftCore) -> float:
        """Worse for who has just voted: its vote must not be forgotten."""
        voted = any(batch.hard_state is not None for batch in member.unstored)
        return self.cruelty * 8 if voted and core.vote not in ("", member.name) else self.cruelty

    def _tick(self, member: Member, life: int, at: float) -> None:
        if member.core is not None and member.lives == life and member.tick_at == at:
            member.tick_at = FOREVER
            member.core.tick(member.now(self.time) + 1e-9)
            self._pump(member)

    def _synced(self, member: Member, life: int) -> None:
        """Group commit: everything that waits is durable now."""
        if member.core is None or member.lives != life:
            return
        member.disk_busy = False
        member.batches = deque((batch, False) for batch, _ in member.batches)
        while member.unstored:
            batch = member.unstored.popleft()
            self._store(member, batch)
            member.core.on_durable(batch.durable_mark)
            if batch.starts is not None:
                member.core.on_starts_stored(batch.starts, True)
            member.durable.owed = member.core.owed
        if member.keeps and member.kv.index > member.core.log.base_index + 8:
            self._snapshot(member.name)
        self._pump(member)

    def _store(self, member: Member, batch: Actions, rng: random.Random | None = None) -> None:
        member.durable.store(batch, rng)
        self.notes += batch.note_commit
        self._check_note(member)

    def _release(self, member: Member, core: RaftCore, actions: Actions) -> None:
        if self.alone:
            self._check_new(member, core, actions)
        for to, message in actions.sends:
            self.send(member.name, to, message)
        for to, meta, offset in actions.chunks:
            if member.durable.snapshot == meta:
                data = member.durable.blob[offset : offset + self.settings.chunk_bytes]
                self.send(member.name, to, SnapshotChunk(actions.term, meta, offset, data))
            else:
                core.on_chunk_missing(to, meta)
        if actions.snapshot is not None:
            member.kv.restore(member.durable.blob)
            self._check_digest(member)
        for index, entry in enumerate(actions.committed, actions.committed_first):
            if index != member.kv.index + 1:
                raise Violation(f"state machine safety: {member.name} applies {index} behind {member.kv.index}")
            if entry[1] == COMMAND:
                client, sequence, answer = member.kv.apply(index, entry[2])
                waiter = member.waiting.pop((client, sequence), None)
                if waiter is not None:
                    waiter(answer)
            member.kv.advance(index, entry)
            self._check_digest(member)
        for tokens, index in actions.reads:
            if member.kv.index < index:
                raise Violation(
                    "reads: answered before the index is applied"
                )  # batches are released in order, so it is applied
            for token in tokens:
                key, reply = member.reads.pop(token)
                reply(member.kv.table.get(key))
        for token in actions.lost_reads:
            member.reads.pop(token, None)

    # -- the network --------------------------------------------------------------------------------------------------

    def send(self, sender: str, to: str, message: Message) -> None:
        rng = self.rng
        for _ in range(2 if rng.random() < self.repetition else 1):
            if rng.random() >= self.loss:
                self.after(rng.uniform(*self.delay_s), self._deliver, sender, to, message)

    def _deliver(self, sender: str, to: str, message: Message) -> None:
        member = self.members[to]
        if member.core is None or (sender, to) in self.cut:
            return
        if self._number % 16 == 0:
            message = decode(encode(message))
        member.core.receive(sender, message, member.now(self.time))
        self._pump(member)

    # -- trouble ------------------------------------------------------------------------------------------------------

    def _trouble(self) -> None:
        if self.time >= FAULTS_S:
            return
        rng, names = self.rng, sorted(self.members)
        match rng.randrange(9):
            case 0 | 1:
                self._crash(rng.choice(names))
            case 2:
                self._crash(max(names, key=self._leads))
            case 3:
                for name in names:
                    self._crash(name)
            case 4:
                side = {name for name in names if rng.random() < 0.5}
                self.cut = {(a, b) for a in names for b in names if (a in side) != (b in side)}
            case 5:
                leader = max(names, key=self._leads)
                self.cut = {
                    pair for other in names for pair in ((leader, other), (other, leader)) if rng.random() < 0.9
                }
                if rng.random() < 0.7:  # and it thinks that less time goes by than does
                    self.members[leader].set_rate(self.time, 0.2)
            case 6:
                self.cut = set()
                self.members[rng.choice(names)].set_rate(self.time, rng.choice((0.5, 1.0, 2.0)))
            case _:
                self._snapshot(rng.choice(names))
        for name in names:
            if self.members[name].core is None and rng.random() < 0.7:
                self._start(name)
        self.after(rng.uniform(0, self.trouble_s * 2), self._trouble)

    def _leads(self, name: str) -> int:
        core = self.members[name].core
        return core.term if core is not None and core.role is RaftRole.LEADER else -1

    def _snapshot(self, name: str, for_others: bool = False) -> None:
        member = self.members[name]
        if member.core is None or (member.kv.index <= member.core.log.base_index and not for_others):
            return
        blob = member.kv.snapshot()
        meta = replace(member.core.describe_snapshot(member.kv.index), size_bytes=len(blob), crc=crc32c.crc32c(blob))
        done = self._saved if member.keeps and not for_others else self._snapshot_stored
        self.after(self.rng.uniform(*self.sync_s), done, member, member.lives, meta, blob)

    def _snapshot_stored(self, member: Member, life: int, meta: SnapshotMeta, blob: bytes) -> None:
        if member.core is not None and member.lives == life:
            member.making = False
            self.made_for_others += member.keeps
            member.durable.compact(meta, blob)
            member.core.on_snapshot_stored(meta, KEEP_ENTRIES)
            self._pump(member)

    def _saved(self, member: Member, life: int, meta: SnapshotMeta, blob: bytes) -> None:
        if member.core is not None and member.lives == life:
            member.durable.keep(meta, blob)
            if not member.making:
                member.core.on_kept(meta.index, KEEP_ENTRIES, member.now(self.time))
            self._pump(member)

    def _piece_stored(self, member: Member, life: int, number: int) -> None:
        if member.core is not None and member.lives == life:
            if self.time < FAULTS_S and self.rng.random() < 0.05:
                member.core.on_piece_failed(number)
            else:
                member.core.on_piece_stored(number)
            self._pump(member)

    def _heal(self) -> None:
        self.cut, self.loss, self.repetition = set(), 0.0, 0.0
        self.delay_s, self.sync_s = (0.001, 0.02), (0.0005, 0.003)
        for name in sorted(self.members):
            self.members[name].set_rate(self.time, self.rng.choice((0.9, 1.0, 1.1)))
            self._start(name)

    # -- invariants ---------------------------------------------------------------------------------------------------

    def _check_new(self, member: Member, core: RaftCore, actions: Actions) -> None:
        """Log matching: the same index and term is the same entry, behind the same term; so, step by step, the same
        log.
        """
        before = core.log.term(actions.first_index - 1) if actions.entries else 0
        for index, entry in enumerate(actions.entries, actions.first_index):
            known = self.entries.setdefault((index, entry[0]), (before, entry[1], entry[2]))
            if before >= 0 and known != (before, entry[1], entry[2]):
                raise Violation(f"log matching: {member.name} at {index}, term {entry[0]}")
            before = entry[0]

    def _check(self, member: Member, core: RaftCore) -> None:
        if (
            core.role is RaftRole.LEADER
            and core.term != member.led
            and (not self.alone or member.durable.term == core.term)
        ):
            member.led = core.term
            first = self.leaders.setdefault(core.term, (member.name, member.lives))
            if first != (member.name, member.lives):
                raise Violation(f"one leader a term: {member.name} and {first[0]} in {core.term}")
            if self.time < FAULTS_S and self.rng.random() < self.coups:
                ends = self.rng.uniform(0, 0.5)
                self.after(ends, self._crash, member.name)
                self.after(ends + self.rng.choice((0.03, 0.5, 1.5)), self._start, member.name)
            for index, entry in self.committed.items():
                if index > core.log.base_index and core.log.term(index) != entry[0]:
                    raise Violation(
                        f"leader completeness: {member.name} leads {core.term} without committed entry {index}"
                    )
        if core.commit != member.seen_commit:
            if core.commit < member.seen_commit:
                raise Violation(f"commits only grow: {member.name} from {member.seen_commit} to {core.commit}")
            self._check_commits(member, core)
            member.seen_commit = core.commit

    def _check_commits(self, member: Member, core: RaftCore) -> None:
        first = max(member.seen_commit, core.log.base_index) + 1
        for index, entry in enumerate(core.log.slice(first, core.commit + 1), first):
            known = self.committed.get(index)
            if known is None:
                voters = core.config.voters  # the first that knows it committed is the leader that did it
                holders = sum(self.members[name].durable.holds(index, entry[0]) for name in voters)
                if holders * 2 <= len(voters):
                    raise Violation(
                        f"durability: {member.name} commits {index}, which {holders} of {len(voters)} voters hold"
                    )
                self.committed[index] = entry
                self.committed_at = self.time
            elif known != entry:
                raise Violation(f"state machine safety: {member.name} commits another entry at {index}")

    def _check_note(self, member: Member) -> None:
        """What a disk says is committed was committed, and lies there; so whoever comes back alone may apply it."""
        disk = member.durable
        if disk.commit > disk.base + len(disk.entries):
            raise Violation(
                f"commit note: {member.name} notes {disk.commit} and holds entries to {disk.base + len(disk.entries)}"
            )
        for index in range(disk.base + 1, disk.commit + 1):
            if self.committed.get(index) != disk.entries[index - disk.base - 1]:
                raise Violation(
                    f"commit note: {member.name} notes {disk.commit}, and its entry {index} was not committed"
                )

    def _check_digest(self, member: Member) -> None:
        if self.digests.setdefault(member.kv.index, member.kv.digest) != member.kv.digest:
            raise Violation(f"state machine safety: {member.name} differs at {member.kv.index}")

    def _check_convergence(self) -> None:
        leaders = [name for name in self.members if self._leads(name) >= 0]
        if len(leaders) != 1:
            raise Violation(f"liveness: {leaders} lead after healing")
        core = self.members[leaders[0]].core
        assert core is not None
        for member in self.members.values():
            if member.kv.index < core.commit - 8:
                raise Violation(f"liveness: {member.name} is at {member.kv.index}, the leader at {core.commit}")
            if not self.alone and self.time - self.committed_at > NOTED_S and member.durable.commit < core.commit:
                raise Violation(
                    f"liveness: {member.name} notes {member.durable.commit}, the leader has committed {core.commit}"
                )


def violations(
    core: type[RaftCore], seeds: Iterable[int], world: type[RaftWorld] = RaftWorld
) -> Iterator[tuple[int, str]]:
    """(seed, what was found) for each seed that a core fails."""
    for seed in seeds:
        try:
            world(seed, core=core).run()
        except (Violation, AssertionError) as error:
            yield seed, str(error)
