"""A Replica without Raft: a log in this process that several nodes apply, with faults that a test sets."""

from __future__ import annotations

import asyncio

from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import MetadataUnavailable, OutcomeUnknown


class SharedLog:
    """The committed log of a group, and who leads it."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.leader: str | None = None
        self.replicas: dict[str, LogReplica] = {}

    def elect(self, node: str | None) -> None:
        for replica in self.replicas.values():
            if replica.is_leader and replica.node != node and replica.on_role_change:
                self.leader = None
                replica.on_role_change(False)
        self.leader = node
        if node is not None:
            replica = self.replicas[node]
            replica.catch_up()
            if replica.on_role_change:
                replica.on_role_change(True)


class LogReplica:
    """One node. `lose_answers`: proposals are committed, and their outcome stays unknown. `lag`: it doesn't apply.

    `deposed`: it still takes itself for the leader, and reaches no majority.
    """

    def __init__(self, log: SharedLog, node: str, machine: KvMachine) -> None:
        self.log, self.node, self.machine = log, node, machine
        self.on_role_change = None
        self.lose_answers = 0
        self.lag = False
        self.deaf = False
        self.deposed = False
        log.replicas[node] = self

    @property
    def leader(self) -> str | None:
        return None if self.deaf else self.log.leader

    @property
    def is_leader(self) -> bool:
        return self.log.leader == self.node

    @property
    def term(self) -> int:
        return 1

    def catch_up(self) -> bytes:
        answer = b""
        while not self.lag and self.machine.index < len(self.log.entries):
            index = self.machine.index + 1
            answer = self.machine.apply(index, self.log.entries[index - 1])
        return answer

    async def propose(self, command: bytes, *, timeout_s: float) -> bytes:
        if not self.is_leader:
            raise MetadataUnavailable("not the leader")
        self.log.entries.append(command)
        answer = self.catch_up()
        loop = asyncio.get_running_loop()
        for replica in self.log.replicas.values():
            if replica is not self:
                loop.call_later(0.01, replica.catch_up)
        await asyncio.sleep(0.001)
        if self.lose_answers:
            self.lose_answers -= 1
            raise OutcomeUnknown("the answer was lost")
        return answer

    async def read_barrier(self, *, timeout_s: float) -> None:
        await asyncio.sleep(0.001)
        if not self.is_leader or self.deposed:
            raise MetadataUnavailable("no majority confirmed the leader")
