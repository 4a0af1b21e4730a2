"""OperationDriver: asks for the steps of an operation that no person asks for, one broker at a time.

Is: asking until it is done, and taking over what another broker has left. Isn't: a step
(`region_node.dr.operations.operation_steps`), or when something begins.
Invariants: whoever asks for the steps of one that waits writes its record again and again, and leaves it to whoever
else does; one that changed, or was written, since the last look is not left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import VersionConflict
from heliograph.runtime.clock import Clock
from region_node.dr.operations.operation import Operation, operation_key, with_report
from region_node.dr.operations.operation_steps import Conductor

_PAUSE_S = 0.5


class OperationDriver:
    """One broker's. `conductor`: made for each use, with the credentials of this broker."""

    def __init__(self, store: MetadataStore, conductor: Callable[[], Conductor], clock: Clock, look_s: float) -> None:
        """look_s: what nobody has asked for that long is left behind."""
        self._store, self._conductor, self._clock, self._look_s = store, conductor, clock, look_s

    async def left_behind(self, namespace: str, kind: str, by: str) -> bool:
        """One of that kind that `by` began is under way, and nobody has done a step for `look_s`: this broker goes
        on with it.
        """
        operation, version = await self._conductor().operation(namespace)
        if operation is None or not operation.running or operation.kind != kind or operation.by != by:
            return False
        await asyncio.sleep(self._look_s)
        try:  # one broker takes it
            await self._store.put(operation_key(namespace), operation.encode(), expected=version)
        except VersionConflict:
            return False
        return True

    async def drive(self, operation: Operation, patience_s: float = inf) -> Operation | None:
        """Asks for each step until it is done. Returns what it is then; None: somebody else goes on with it, or has
        begun something else in its place, or no step was done for `patience_s`.
        """
        conductor = self._conductor()
        told, told_at, since = 0, 0.0, self._clock.monotonic()
        while operation.running:
            before = operation
            operation = await conductor.advance(operation.namespace, self._look_s / 2)
            told = conductor.renewed or told
            if operation.running and (operation.kind != before.kind or operation.id != before.id):
                return None  # something else was begun in its place
            if operation.step != before.step:
                since = self._clock.monotonic()
            elif self._clock.monotonic() - since >= patience_s:
                return None
            if operation != before:
                told = 0
            if operation.waiting and self._clock.monotonic() >= told_at + self._look_s / 2:
                told, told_at = await self._told(operation, told), self._clock.monotonic()
                if not told:
                    return None  # another broker asks for its steps, or it is another one by now
            if operation == before or operation.waiting:
                await asyncio.sleep(_PAUSE_S)
        return operation

    async def tells(self, ended: Operation) -> bool:
        """Whether this broker is the one that tells of its end: several may have asked for its steps."""
        found, version = await self._conductor().operation(ended.namespace)
        if found is None or found.id != ended.id or found.report.get("told"):
            return False
        try:
            await self._store.put(
                operation_key(ended.namespace), with_report(found, told=True).encode(), expected=version
            )
        except VersionConflict:
            return False
        return True

    async def _told(self, operation: Operation, told: int) -> int:
        """Tells other brokers that this one waits for it. told: the version when it did so last, 0 if the record has
        changed since. Returns that of now; 0: somebody else writes it.
        """
        found, version = await self._conductor().operation(operation.namespace)
        if found != operation or told not in (0, version):
            return 0
        try:
            return await self._store.put(operation_key(operation.namespace), operation.encode(), expected=version)
        except VersionConflict:
            return 0
