"""Merge eyes: what becomes of edits that regions keep while they are cut off, as the configuration's log tells it.

Is: an eye on the tables of the regions and of the configuration, the product's rule of merging written down once more,
for one value, and what must hold. Isn't: the edits (`cut_off_edits`, tests/global_config/test_deferred_edits.py).

Each edit that a region kept is merged once, in its order: its value is taken where the configuration has what the edit
found, is there already, or is a conflict that is listed. Every edit that was accepted was kept, or written at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geo_tests.sim.checkers import Violation
from global_config import keys
from global_config.deferred_edits import CONFLICTS, EDITS, MERGED
from global_config.policy_edits import PROPERTIES, Edit
from heliograph.model.configuration.configuration_records import NamespacePolicies, TopicPolicies

Value = list[Any]
"""[] where it is not set, else [value], as edits have it."""
Place = tuple[str, str]
"""(key of the configuration, name of the policy or property)."""
_WORDS = (b"/config-merged/", keys.NAMESPACES.encode(), keys.TOPIC_POLICIES.encode())


class MergeEyes:
    """On one namespace, and one topic. fail: told what does not hold, as soon as it is seen."""

    def __init__(self, namespace: str, topic: str, regions: Sequence[str], fail: Callable[[str], None]) -> None:
        self._namespace, self._topic, self._regions, self._fail = (
            keys.namespace(namespace),
            keys.topic_policies(topic),
            regions,
            fail,
        )
        self._edits: dict[tuple[str, int], Edit] = {}
        """(region, id) -> what the region kept."""
        self._applied: set[int] = set()
        """Indexes of the configuration's log that were looked at."""
        self.merged: set[tuple[str, int]] = set()
        self.conflicts: set[tuple[str, int]] = set()
        self._written: Counter[tuple[Place, str, str]] = Counter()
        """(place, before, after) -> how often it was written at once."""
        self._accepted: Counter[tuple[Place, str, str]] = Counter()

    def accept(self, place: Place, before: Value, after: Value) -> None:
        """An operator was told that it is done."""
        if before != after:
            self._accepted[place, str(before), str(after)] += 1

    def watch_region(self, region: str, machine: Any) -> None:
        """machine: the table of one of its voters."""

        def keep(*_: Any) -> None:
            for _, value, _ in machine.under(EDITS):
                edit = Edit.decode(value)
                self._edits[region, edit.id] = edit

        keep()
        machine.observe(keep)

    def watch_configuration(self, driven: Any, machine: Any) -> None:
        """driven: whose `apply` the log drives; machine: the table, of one of its nodes."""
        apply = driven.apply

        def applied(index: int, command: bytes) -> Any:
            if index in self._applied or not any(word in command for word in _WORDS):
                return apply(index, command)
            before = self._state(machine)
            answer = apply(index, command)
            self._applied.add(index)
            self._on_applied(*before, *self._state(machine))
            return answer

        driven.apply = applied

    def _state(self, machine: Any) -> tuple[dict[str, int], dict[Place, Value], frozenset[str]]:
        """(how far each region is merged, the values, the conflicts) now."""
        marks = {name: int(found[0]) for name in self._regions if (found := machine.get(MERGED + name))}
        values: dict[Place, Value] = {}
        if (found := machine.get(self._namespace)) is not None:
            for name, value in NamespacePolicies.decode(found[0]).policies.items():
                values[self._namespace, name] = [value]
        if (found := machine.get(self._topic)) is not None:
            topic = TopicPolicies.decode(found[0])
            values.update({(self._topic, name): [value] for name, value in (topic.policies | topic.properties).items()})
        return marks, values, frozenset(key for key, _, _ in machine.under(CONFLICTS))

    def _on_applied(
        self,
        marks: dict[str, int],
        before: dict[Place, Value],
        _listed: frozenset[str],
        moved: dict[str, int],
        after: dict[Place, Value],
        listed: frozenset[str],
    ) -> None:
        changed = {
            place: (before.get(place, []), after.get(place, []))
            for place in {**before, **after}
            if before.get(place, []) != after.get(place, [])
        }
        through = {name: mark for name, mark in moved.items() if marks.get(name, 0) != mark}
        if not through:
            self._written.update((place, str(was), str(value)) for place, (was, value) in changed.items())
            return
        ((region, number),) = through.items()
        what = f"edit {number} of {region}"
        if number < marks.get(region, 0) or (region, number) in self.merged:
            self._fail(f"{what} is merged again: {region} was merged through {marks.get(region, 0)}")
        self.merged.add((region, number))
        if (edit := self._edits.get((region, number))) is None:
            return self._fail(f"{what} is merged, and nobody kept it")
        conflicts = False
        for place, (was, mine) in _changes(edit).items():
            known, found = before.get(place, []), after.get(place, [])
            conflict = known not in (was, mine)
            conflicts = conflicts or conflict
            if found != (known if conflict else mine):
                self._fail(f"{what}, which makes {mine} of {was}, made {place[1]} {found}: it was {known}")
            changed.pop(place, None)
        if changed:
            self._fail(f"{what} changed something else: {changed}")
        if conflicts:
            self.conflicts.add((region, number))
        if conflicts != any(key.startswith(f"{CONFLICTS}{region}/{number:020d}.") for key in listed):
            self._fail(f"{what} is {'no' if conflicts else 'a'} listed conflict: {edit.changes}, it was {before}")

    def judge(self) -> None:
        """In the end, when nothing waits any more. Raises Violation."""
        if left := sorted(self._edits.keys() - self.merged):
            raise Violation(f"edits that nobody merged, and that wait nowhere: {left}")
        done = self._written.copy()
        for edit in self._edits.values():
            done.update((place, str(was), str(mine)) for place, (was, mine) in _changes(edit).items())
        if lost := self._accepted - done:
            raise Violation(f"edits were accepted, and are neither kept nor written: {lost}")


def _changes(edit: Edit) -> dict[Place, tuple[Value, Value]]:
    """Place -> (what it found, what it set)."""
    found: dict[Place, tuple[Value, Value]] = {}
    for (name,), was, mine in edit.changes:
        if name == PROPERTIES:
            old, new = was[0] if was else {}, mine[0] if mine else {}
            both = {(edit.key, one): (value_at(old, one), value_at(new, one)) for one in {**old, **new}}
            found.update({place: change for place, change in both.items() if change[0] != change[1]})
        else:
            found[edit.key, name] = was, mine
    return found


def value_at(fields: Mapping[str, Any], name: str) -> Value:
    return [fields[name]] if name in fields else []
