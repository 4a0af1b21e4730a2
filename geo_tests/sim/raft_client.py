"""RaftClient: asks a simulated Raft group, and writes down what it saw.

Is: one client of `geo_tests.sim.raft_world`, whose history is judged by `raft_history`. Isn't: the real one
(`heliograph.kv.metadata_client`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from geo_tests.sim.raft_history import FOREVER, Operation, State
from geo_tests.sim.raft_member import CLIENT_TIMEOUT_S, FAULTS_S, HEAL_S, KEYS, Request
from heliograph.raft.core import RaftRole

if TYPE_CHECKING:
    from geo_tests.sim.raft_world import RaftWorld


class Client:
    """Asks one thing at a time, asks again elsewhere where no answer comes, and writes down when it called and what it
    learned.
    """

    def __init__(self, world: RaftWorld, name: str) -> None:
        self._world, self._name = world, name
        self._session, self._sequence, self._values = 0, 0, 0
        self._versions = dict.fromkeys(KEYS, 0)
        self._home = world.rng.choice(("", *world.asked))  # asks here first each time
        self._target = ""
        self._kinds = world.rng.choice(
            (("get", "put", "cas", "cas"), ("get", "get", "get", "get", "get", "get", "put"))
        )
        self._done: Callable[[], None] | None = None

    def next(self) -> None:
        world, rng = self._world, self._world.rng
        if world.time >= FAULTS_S + HEAL_S / 3 and self._done is None:
            return
        self._sequence += 1
        self._values += 1
        key = rng.choice(KEYS)
        kind = rng.choice(self._kinds) if self._done is None else "put"
        operation = Operation(world.time, FOREVER, kind, f"{self._name}.{self._values}".encode(), self._versions[key])
        world.histories[key].append(operation)
        self._ask(Request(f"{self._name}/{self._session}", self._sequence, operation, key), 0)

    def last(self, done: Callable[[], None]) -> None:
        """One put, again and again until it is answered."""
        self._done = done
        self.next()

    def _ask(self, request: Request, attempt: int) -> None:
        world = self._world
        if request.operation.returned != FOREVER:
            return
        if (
            attempt == 8 and self._done is None
        ):  # give up: nobody knows; a new session, so that the old request can never be mistaken for a new one
            self._session += 1
            self._sequence = 0
            self.next()
            return
        names = world.asked
        if attempt or not self._target:
            self._target = world.rng.choice(names)
        elif self._home:
            self._target = self._home
        if world.rng.random() >= world.loss:
            world.after(world.rng.uniform(*world.delay_s), self._arrive, request, self._target)
        world.after(CLIENT_TIMEOUT_S if self._done is None else 0.3, self._ask, request, attempt + 1)

    def _arrive(self, request: Request, name: str) -> None:
        world, operation = self._world, request.operation
        member = world.members[name]
        core = member.core
        if core is None or operation.returned != FOREVER:
            return
        if core.role is not RaftRole.LEADER:
            if core.leader in world.asked and world.rng.random() < 0.7:
                self._target = core.leader
                world.after(world.rng.uniform(*world.delay_s), self._arrive, request, core.leader)
            return
        if operation.kind == "get":
            world.tokens += 1
            member.reads[world.tokens] = (request.key, lambda state: self._reply(request, state, 0))
            core.read(world.tokens)
        else:
            command = [
                request.client,
                request.sequence,
                operation.kind,
                request.key,
                operation.value.decode(),
                operation.expected,
            ]
            member.waiting[request.client, request.sequence] = lambda version: self._reply(request, None, version)
            core.propose([json.dumps(command).encode()])
        world._pump(member)

    def _reply(self, request: Request, state: State, version: int) -> None:
        world = self._world
        if world.rng.random() >= world.loss:
            world.after(world.rng.uniform(*world.delay_s), self._learn, request, state, version)

    def _learn(self, request: Request, state: State, version: int) -> None:
        operation = request.operation
        if operation.returned != FOREVER:
            return
        operation.returned, operation.seen, operation.version = self._world.time, state, version
        self._world.answered += 1
        if operation.kind == "get":
            self._versions[request.key] = state[1] if state is not None else 0
        elif version > 0:
            self._versions[request.key] = version
        if self._done is not None:
            self._done()
        elif request.client == f"{self._name}/{self._session}":
            self._world.after(self._world.rng.expovariate(20), self.next)
