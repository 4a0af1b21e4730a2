"""EffectiveLeaderships: writes down which regions have heard of a leadership, as soon as all of their brokers say so.

Is: a look at what brokers tell that they obey, and the mark of it in the leadership. Isn't: the rule who has heard
(`region_node.dr.leadership.leadership_changes.unheard`), or the question of an operator, who is answered at once.
Invariants: what is marked is never taken back, so that a region which heard and is lost later can be failed over; any
broker of any region marks, and all of them may do it at once.
Source: docs/protocols/leadership.md, "Effective".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from heliograph.kv.metadata_store import MetadataStore, Put
from heliograph.model.configuration.leadership import Writer, leadership, namespace_of
from heliograph.model.errors import HeliographError, VersionConflict
from heliograph.runtime.clock import Clock
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from region_node.dr.leadership.leadership_changes import Switching, unheard, with_heard
from region_node.dr.leadership.write_gates import Gate, Writing

log = logging.getLogger("region_node.dr")

LOOK_S = 2.0
_LOOKED_AT = 1000
"""Of more that are not effective others have their turn in the next round."""
_AT_ONCE = 100
"""So many are marked by one transaction."""


class EffectiveLeaderships:
    """One broker's look, from `start` until `stop`."""

    def __init__(
        self, core: Writing, store: MetadataStore, regions_of: Callable[[str], Sequence[str]], clock: Clock
    ) -> None:
        """regions_of: a namespace -> its regions; none where it does not exist."""
        self._core, self._store, self._regions_of = core, store, regions_of
        self._switching = Switching(store, clock.wall_ms)
        self._from = 0
        self._tasks = TaskSet("the look for leaderships that nobody may have heard of has ended")

    async def start(self) -> None:
        self._tasks.spawn(every(LOOK_S, self._look))

    async def stop(self) -> None:
        await self._tasks.close()

    async def _look(self) -> None:
        if not self._core.registered:
            return
        try:
            await self._mark()
        except HeliographError as error:  # the next round looks again
            log.info("leadership.not_marked", extra={"error": str(error)})

    async def _mark(self) -> None:
        left: list[tuple[Gate, list[str]]] = []
        for gate in (*self._core.gates(), *self._core.subscription_gates()):
            if regions := self._lacking(gate):
                left.append((gate, regions))
        if len(left) > _LOOKED_AT:  # those that nobody of a region can hear of stand in nobody's way
            self._from = (self._from + _LOOKED_AT) % len(left)
            left = [*left[self._from :], *left[: self._from]][:_LOOKED_AT]
        found: dict[str, dict[str, Writer]] = {}
        for region in dict.fromkeys(region for _, regions in left for region in regions):
            found[region] = await self._switching.writers(region)
        for start in range(0, len(left), _AT_ONCE):
            marks = []
            for gate, regions in left[start : start + _AT_ONCE]:
                record, name, version = gate.record, gate.namespace, gate.version
                if record is None:
                    continue
                new = with_heard(
                    record, regions, unheard(name, record, version, {region: found[region] for region in regions})
                )
                if new is not None:
                    marks.append(Put(leadership(name), new.encode(), expected=version))
            if marks:
                try:
                    await self._store.txn(marks)
                except VersionConflict:
                    pass  # somebody else marks them too, or changes one: the next round sees that

    def _lacking(self, gate: Gate) -> list[str]:
        """The regions of which it is not known that they have heard; none where it cannot be read, or is nobody's."""
        record = gate.record
        if record is None or not record.active:
            return []
        return [region for region in self._regions_of(namespace_of(gate.namespace)) if region not in record.heard]
