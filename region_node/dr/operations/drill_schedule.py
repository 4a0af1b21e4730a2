"""DrillSchedule: drills that begin by themselves, when they are due, and what they leave behind.

Is: which namespaces are drilled how often (in the global configuration), who runs one when it is due, going on with one
whose broker has gone, removing the shadows of those that were given up. Isn't: a step of a drill
(`region_node.dr.operations.drill`), or the operation (`region_node.dr.operations.operation_steps`).
Invariants: a drill that is due is begun by one broker of all regions, by compare-and-set of when the next one is; one
that was begun and not finished is gone on with by whichever broker looks next, and by one; one that waits keeps no
other from beginning; a drill never begins while something else is under way.
Keys: /dr/schedules/{tenant}/{namespace} (Schedule).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.configuration_records import _Value
from heliograph.model.errors import CorruptData, HeliographError, NotAllowed, VersionConflict
from heliograph.runtime.clock import Clock
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from region_node.dr.operations.operation import DRILL
from region_node.dr.operations.operation_driver import OperationDriver
from region_node.dr.operations.operation_steps import Conductor

log = logging.getLogger("region_node.dr")

SCHEDULES = "/dr/schedules/"
BY = "schedule"
"""Who asked for it, in the operation and its report."""
EVERY_S_MIN, EVERY_S_MAX = 60.0, 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(_Value):
    """How often one namespace is drilled, and when next (wall time). `to`: the region that is to take over; "": the
    only other one.
    """

    every_s: float
    next_ms: int
    to: str = ""
    by: str = ""
    said: str = ""
    """Why the last one could not begin; "": it could."""

    def __post_init__(self) -> None:
        if not EVERY_S_MIN <= self.every_s <= EVERY_S_MAX:
            raise NotAllowed(
                f"a drill can be repeated every {EVERY_S_MIN:.0f} s to every {EVERY_S_MAX / 86_400:.0f} days, not "
                f"every {self.every_s:g} s"
            )


def schedule(namespace: str) -> str:
    return SCHEDULES + namespace


class DrillSchedule:
    """One broker's. `conductor`: made for each use, with the credentials of this broker."""

    def __init__(
        self,
        store: MetadataStore,
        conductor: Callable[[], Conductor],
        *,
        clock: Clock,
        region: str = "",
        look_s: float = 5.0,
    ) -> None:
        """region: this broker's, where it removes the shadows that nobody needs any more. look_s: between two looks at
        what is due.
        """
        self.known: dict[str, tuple[Schedule, int]] = {}
        """Namespace -> (schedule, version)."""
        self._looked_at: dict[str, None] = {}
        """Namespaces that are looked at, or drilled, here now."""
        self._store, self._conductor, self._clock, self._region, self._look_s = store, conductor, clock, region, look_s
        self._driver = OperationDriver(store, conductor, clock, look_s)
        self._stop_watch: Callable[[], None] = lambda: None
        self._tasks = TaskSet("scheduled drills has ended")

    async def start(self) -> None:
        self._stop_watch = self._store.watch(SCHEDULES, self._heard)
        await self._store.synced(SCHEDULES)
        self._tasks.spawn(every(self._look_s, self._look))

    async def stop(self) -> None:
        self._stop_watch()
        await self._tasks.close()

    def _heard(self, key: str, value: bytes | None, version: int) -> None:
        namespace = key.removeprefix(SCHEDULES)
        try:
            if value is None:
                self.known.pop(namespace, None)
            else:
                self.known[namespace] = Schedule.decode(value), version
        except (CorruptData, NotAllowed) as error:
            log.error("drill.schedule_unreadable", extra={"namespace": namespace, "error": str(error)})

    async def _look(self) -> None:
        await self._sweep()
        for namespace in sorted(self.known):
            if namespace not in self._looked_at:
                self._looked_at[namespace] = None
                self._tasks.spawn(self._look_at(namespace))

    async def _look_at(self, namespace: str) -> None:
        try:
            if (known := self.known.get(namespace)) is None:
                return
            if await self._due(namespace, *known) or await self._driver.left_behind(namespace, DRILL, BY):
                await self._drill(namespace, known[0])
        except HeliographError as error:  # the next look tries again
            log.info("drill.waits", extra={"namespace": namespace, "error": str(error)})
        finally:
            del self._looked_at[namespace]

    async def _sweep(self) -> None:
        try:
            drill = self._conductor().drill
            for name in [] if drill is None else await drill.sweep(self._region):
                log.warning("drill.shadow_removed", extra={"namespace": name})
        except HeliographError as error:  # the next look tries again
            log.info("drill.shadow_stays", extra={"error": str(error)})

    async def _due(self, namespace: str, found: Schedule, version: int) -> bool:
        """Whether it is time, and this broker is the one that takes it."""
        now = self._clock.wall_ms()
        if now < found.next_ms:
            return False
        step_ms = int(found.every_s * 1000)
        following = found.next_ms + step_ms * (
            1 + (now - found.next_ms) // step_ms
        )  # what was missed is not made up for
        try:
            await self._store.put(
                schedule(namespace), replace(found, next_ms=following, said="").encode(), expected=version
            )
        except VersionConflict:
            return False
        return True

    async def _drill(self, namespace: str, found: Schedule) -> None:
        conductor = self._conductor()
        try:
            operation = await conductor.begin(DRILL, namespace, found.to, BY)
        except HeliographError as error:
            log.warning("drill.not_begun", extra={"namespace": namespace, "error": str(error)})
            await self._say(namespace, str(error))
            return
        log.warning("drill.begun", extra={"namespace": namespace, "id": operation.id, "to": operation.target})
        ended = await self._driver.drive(operation)
        if ended is None:
            return
        log.warning(
            "drill.ended",
            extra={
                "namespace": namespace,
                "id": ended.id,
                "state": ended.state,
                "passed": ended.report.get("passed"),
            },
        )

    async def _say(self, namespace: str, why: str) -> None:
        known = self.known.get(namespace)
        if known is not None:
            try:
                await self._store.put(schedule(namespace), replace(known[0], said=why).encode(), expected=known[1])
            except VersionConflict:
                pass  # another broker has taken it meanwhile; the log has it
