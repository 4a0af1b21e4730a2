"""A node with a table behind an embedded store, beside one in memory."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heliograph.kv.durable_state_machine import DurableMachine
from heliograph.kv.engine.lmdb_store import ROWS_AT_ONCE, LmdbStore
from heliograph.kv.machine_commands import CommandKind, command, open_answer, txn_fields
from heliograph.kv.metadata_store import Op
from heliograph.kv.state_machine import MachineSettings
from heliograph.model.errors import CorruptData


class Steps:
    """The part of a disk that a store uses, one job at a time when the test says so."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()
        self.fail: BaseException | None = None
        """The next job ends with it instead of being run."""
        self.free = 1 << 40

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._jobs.append((job, done))

    def run(self) -> bool:
        """Runs one; False: there is none."""
        if not self._jobs:
            return False
        job, done = self._jobs.popleft()
        failure, self.fail = self.fail, None
        result = None
        if failure is None:
            try:
                result = job()
            except (OSError, CorruptData) as error:
                failure = error
        done(result, failure)
        return True

    def run_all(self) -> None:
        while self.run():
            pass

    def free_bytes(self) -> int:
        return self.free

    def close(self) -> None:
        self._jobs.clear()


class Node:
    """One life after another of a machine over one folder, behind a log that outlives them."""

    def __init__(
        self,
        folder: Path,
        map_bytes: int = 1 << 20,
        settings: MachineSettings | None = None,
        rows_at_once: int = ROWS_AT_ONCE,
    ) -> None:
        """rows_at_once: of the store, where it is not the store's own."""
        self.folder, self.map_bytes, self.settings, self.rows_at_once = folder, map_bytes, settings, rows_at_once
        self.log: list[bytes] = []
        self.errors: list[BaseException | None] = []
        self.start()

    def start(self) -> None:
        self.steps = Steps()
        self.store = LmdbStore(
            self.steps,  # type: ignore[arg-type]
            str(self.folder),
            map_bytes=self.map_bytes,
            rows_at_once=self.rows_at_once,
        )
        self.machine = DurableMachine(self.store, self.settings)
        opened: list[tuple[bytes, BaseException | None]] = []
        self.machine.open_soon(lambda description, error: opened.append((description, error)))
        self.steps.run_all()
        description, error = opened[0]
        if error is not None:
            raise error
        assert description == (b"%d" % self.machine.index if self.machine.index else b"")
        for index, entry in enumerate(self.log[self.machine.index :], self.machine.index + 1):
            self.machine.apply(index, entry)

    def apply(self, entry: bytes) -> bytes:
        self.log.append(entry)
        return self.machine.apply(len(self.log), entry)

    def put(self, *ops: Op) -> None:
        open_answer(self.apply(command(CommandKind.TXN, txn_fields(ops))))

    def save(self) -> None:
        self.machine.save(b"%d" % self.machine.index, self.errors.append)

    def crash(self) -> None:
        """What was not handed to the disk's thread is gone; LMDB itself never half commits (see the test of its
        pages).
        """
        self.store.close()
        self.start()

    def take_over(self, blob: bytes, rng: random.Random) -> None:
        index = len(self.log)
        failures: list[BaseException | None] = []
        taking = self.machine.begin_restore(failures.append)
        self.steps.run_all()
        at = 0
        while at < len(blob):
            size = rng.randrange(1, 400)
            taking.add(blob[at : at + size], failures.append)
            self.steps.run_all()
            at += size
        taking.finish(b"%d" % index, failures.append)
        self.steps.run_all()
        assert not any(failures), failures
