"""DeferredEdits: a region's changes of policies while it is cut off from the configuration: stored here, obeyed here at
once, merged later.

Is: the policies of namespaces and of topics in all regions, as edits in the region's own metadata; what this region
obeys meanwhile; merging when the configuration is heard again; the list of conflicts, and their end. Isn't: the rule of
merging (`global_config.policy_edits`), or any other part of the
configuration: regions, tenants, grants, partitions, who is active wait for a majority.
Invariants: an edit is durable in the region's metadata before anybody is told that it was made; edits of a region
become durable in the order of their ids, and are merged in it; each is merged once, also when two brokers try, one
stands still in the middle, or one dies between the two stores: how far the region is merged is compared and set with
each merge, never goes back, and never goes away. Ids go on above it where the region's metadata was restored or made
anew. Conflicts are written with the merge. An edit whose number another one was merged under, as where the metadata was
restored while the configuration could not be reached, becomes conflicts: none goes without a word.
Keys: of the region's metadata /config-edits/{id:020}, and /config-edit-last, the last id that was given; of the
configuration /config-conflicts/{region}/{id:020}.{index}, /config-merged/{region}, the last id that was merged, and
/config-merged/{region}/edit, that id, a space, and the SHA-256 of the edit.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

from global_config import keys
from global_config.policy_edits import PROPERTIES, Change, Conflict, Edit, difference, flat, merged, taken
from global_config.view import ConfigView
from global_config.write_retries import Tries, busy
from heliograph.kv.metadata_store import ABSENT, Check, Delete, MetadataStore, Op, Put
from heliograph.model.configuration.configuration_records import NamespacePolicies, TopicPolicies
from heliograph.model.configuration.policy_table import checked
from heliograph.model.errors import (
    CorruptData,
    HeliographError,
    MetadataUnavailable,
    NotAllowed,
    NotFound,
    VersionConflict,
)
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet

log = logging.getLogger("global_config")

EDITS = "/config-edits/"
CONFLICTS = "/config-conflicts/"
MERGED = "/config-merged/"
LAST = "/config-edit-last"
EDITS_MAX = 10_000
TAKEN = "its number was another edit's: the region's metadata was restored while the configuration could not be reached"
"""Why an edit was not merged; see `DeferredEdits`."""


class DeferredEdits:
    """One broker's. `view`: the copy that it obeys; what is pending lies above what the configuration told last."""

    def __init__(
        self,
        config: MetadataStore,
        meta: MetadataStore,
        view: ConfigView,
        *,
        region: str,
        clock: Clock,
        every_s: float = 2.0,
    ) -> None:
        self._config, self._meta, self._view, self._region, self._clock, self._every_s = (
            config,
            meta,
            view,
            region,
            clock,
            every_s,
        )
        self._edits: dict[str, Edit] = {}
        self.conflicts: dict[str, Conflict] = {}
        """Holds the conflicts of every region, by their keys."""
        self.merged = 0
        self._mark = MERGED + region
        self._through = 0
        """As the configuration told last."""
        self._stops: list[Callable[[], None]] = []
        self._tasks = TaskSet("the merging of deferred edits has ended")

    async def start(self) -> None:
        """Returns once what is pending is obeyed here."""
        self._stops = [
            self._meta.watch(EDITS, self._heard),
            self._config.watch(CONFLICTS, self._heard_conflict),
            self._config.watch(self._mark, self._heard_mark),
        ]
        await self._meta.synced(EDITS)
        self._tasks.spawn(every(self._every_s, self._round, failed=self._put_off))

    async def stop(self) -> None:
        for stop in self._stops:
            stop()
        await self._tasks.close()

    # -- making them ---------------------------------------------------------------------------------------------------

    async def topic(
        self, topic: str, change: Callable[[TopicPolicies], TopicPolicies], by: str = ""
    ) -> tuple[TopicPolicies, TopicPolicies]:
        """topic: its full name. (before, after), as this region has them. Raises NotAllowed, MetadataUnavailable."""
        before = self._view.topic_policies(topic) or TopicPolicies()
        after = change(before)
        checked(after.policies, before.policies)
        await self._keep(keys.topic_policies(topic), flat(before), flat(after), by)
        return before, after

    async def namespace(
        self, name: str, change: Callable[[NamespacePolicies], NamespacePolicies], by: str = ""
    ) -> NamespacePolicies:
        """Changes the policies of a namespace and nothing else of it. Raises NotFound, NotAllowed, MetadataUnavailable
        (another part of it, which needs a majority).
        """
        before = self._view.namespace(name)
        if before is None:
            raise NotFound(f"namespace {name!r} does not exist")
        after = change(before)
        if replace(after, policies=before.policies) != before:
            raise MetadataUnavailable(
                f"only policies of {name!r} can be changed while the global configuration cannot be reached: regions, "
                "grants, and bundles wait"
            )
        checked(after.policies, before.policies)
        await self._keep(keys.namespace(name), before.policies, after.policies, by)
        return after

    async def _keep(self, key: str, before: dict[str, Any], after: dict[str, Any], by: str) -> None:
        changes = difference(before, after)
        if not changes:
            return
        if len(self._edits) >= EDITS_MAX:
            raise NotAllowed(f"{EDITS_MAX} edits wait for the global configuration already: connect the regions first")
        async for _ in Tries():
            last, version = _number(await self._meta.get(LAST))
            number = max(last, self._through, *(edit.id for edit in self._edits.values())) + 1
            edit = Edit(id=number, key=key, by=by, made_ms=self._clock.wall_ms(), changes=changes)
            ops = [Put(f"{EDITS}{number:020d}", edit.encode(), ABSENT), Put(LAST, b"%d" % number, version)]
            try:
                await self._meta.txn(ops)
            except VersionConflict:
                continue
            log.warning("config.edit_deferred", extra={"key": key, "id": number, "by": by})
            return
        raise busy()

    def waits(self, key: str) -> bool:
        """Whether edits of that key are not merged yet."""
        return any(edit.key == key for edit in self._edits.values())

    def status(self) -> dict[str, Any]:
        return {
            "region": self._region,
            "stale_s": self._view.stale_s(),
            "pending": [asdict(edit) for _, edit in sorted(self._edits.items())],
            "conflicts": [
                {"name": key.removeprefix(CONFLICTS), **asdict(conflict)}
                for key, conflict in sorted(self.conflicts.items())
            ],
        }

    # -- what is heard -------------------------------------------------------------------------------------------------

    def _heard(self, key: str, value: bytes | None, _version: int) -> None:
        known = self._edits.pop(key, None)
        edit = None if value is None else Edit.decode(value)
        if edit is not None:
            self._edits[key] = edit
        changed = edit or known
        if changed is not None:
            pending = [found.changes for _, found in sorted(self._edits.items()) if found.key == changed.key]
            self._view.set_pending(changed.key, pending)

    def _heard_conflict(self, key: str, value: bytes | None, _version: int) -> None:
        self.conflicts.pop(key, None)
        if value is not None:
            self.conflicts[key] = Conflict.decode(value)

    def _heard_mark(self, key: str, value: bytes | None, version: int) -> None:
        if key == self._mark:
            self._through = 0 if value is None else _number((value, version))[0]

    # -- merging -------------------------------------------------------------------------------------------------------

    async def _round(self) -> None:
        if self._edits and not self._config.stale_s():
            await self.merge()

    def _put_off(self, error: HeliographError) -> None:
        log.info("config.merge_waits", extra={"edits": len(self._edits), "error": str(error)})

    async def merge(self) -> None:
        """Everything that is pending, in its order. Raises MetadataUnavailable, OutcomeUnknown: again later."""
        for key, edit in sorted(self._edits.items()):
            await self._merge(key, edit)

    async def _merge(self, key: str, edit: Edit) -> None:
        async for _ in Tries():
            through, version = _number(await self._config.get(self._mark))
            if through < edit.id:
                try:
                    last = Put(_edit_of(self._mark), _named(edit))
                    marks = [Put(self._mark, b"%d" % edit.id, version), last]
                    await self._config.txn([*await self._operations(edit), *marks])
                except VersionConflict:
                    continue
                self.merged += 1
            elif await self._is_another(key, edit, through):
                await self._refuse(edit)
            await self._meta.delete(key)
            return
        raise busy()

    async def _is_another(self, key: str, edit: Edit, through: int) -> bool:
        """Whether what was merged under its number is not this edit, which waits still. Whoever merges one takes it
        away before the next: so what waits below the last one was never merged.
        """
        if await self._meta.get(key) is None:
            return False
        if edit.id < through:
            return True
        found = await self._config.get(_edit_of(self._mark))
        number = b"%d " % edit.id  # else an earlier version has merged the last one
        return found is not None and found[0].startswith(number) and found[0] != _named(edit)

    async def _refuse(self, edit: Edit) -> None:
        found = await self._config.get(edit.key)
        gone = found is None and edit.key.startswith(keys.NAMESPACES)
        before = {} if gone else _opened(edit.key, None if found is None else found[0])[0]
        left = [[path, was, mine, [before[path[0]]] if path[0] in before else []] for path, was, mine in edit.changes]
        await self._config.txn(list(self._conflicts(edit, left, TAKEN, f"{edit.made_ms}.")))

    async def _operations(self, edit: Edit) -> list[Op]:
        found = await self._config.get(edit.key)
        version = ABSENT if found is None else found[1]
        ops: list[Op] = []
        gone = await self._gone(edit, found)
        if gone:
            left = [[path, before, after, []] for path, before, after in edit.changes]
        else:
            before, build = _opened(edit.key, None if found is None else found[0])
            after, left = merged(before, edit.changes)
            try:
                value = build(after)
            except NotAllowed as error:  # each alone was allowed, both together are not
                gone, value = str(error), None
                left = [
                    [path, was, mine, [before[path[0]]] if path[0] in before else []]
                    for path, was, mine in edit.changes
                ]
            if value is None or after == before:
                ops.append(Check(edit.key, version))
            else:
                ops.append(Put(edit.key, value, version))
                if edit.key.startswith(keys.NAMESPACES):
                    ops.append(Put(keys.GUARD, b""))
        return [*ops, *self._conflicts(edit, left, gone)]

    def _conflicts(self, edit: Edit, left: Iterable[Change], because: str, apart: str = "") -> Iterator[Op]:
        """left: [path, before, mine, theirs] each. because: ""; both were changed. apart: of its number's other edit's,
        and may be written again.
        """
        for index, (path, was, mine, theirs) in enumerate(left):
            conflict = Conflict(
                region=self._region,
                id=edit.id,
                key=edit.key,
                path=tuple(path),
                before=tuple(was),
                mine=tuple(mine),
                theirs=tuple(theirs),
                by=edit.by,
                made_ms=edit.made_ms,
                merged_ms=self._clock.wall_ms(),
                **({"because": because} if because else {}),
            )
            log.warning("config.conflict", extra={"key": edit.key, "path": "/".join(path), "by": edit.by})
            name = f"{CONFLICTS}{self._region}/{edit.id:020d}.{apart}{index}"
            yield Put(name, conflict.encode(), None if apart else ABSENT)

    async def _gone(self, edit: Edit, found: tuple[bytes, int] | None) -> str:
        if edit.key.startswith(keys.TOPIC_POLICIES):
            namespace = TopicName.parse(edit.key.removeprefix(keys.TOPIC_POLICIES)).namespace
            return (
                ""
                if await self._config.get(keys.namespace(namespace)) is not None
                else f"namespace {namespace} was deleted"
            )
        return "" if found is not None else f"namespace {edit.key.removeprefix(keys.NAMESPACES)} was deleted"

    # -- conflicts -----------------------------------------------------------------------------------------------------

    async def resolve(self, name: str, take: str) -> Conflict:
        """name: as `status` shows it. take: "mine", what the region wanted, or "theirs", what stands there. Raises
        NotFound, NotAllowed.
        """
        key = CONFLICTS + name
        async for _ in Tries():
            found = await self._config.get(key)
            if found is None:
                raise NotFound(f"there is no conflict {name!r}: `heliograph conflicts list` shows them")
            conflict = Conflict.decode(found[0])
            ops: list[Op] = [Delete(key, found[1])]
            if take == "mine":
                at = await self._config.get(conflict.key)
                if at is None and conflict.key.startswith(keys.NAMESPACES):
                    raise NotAllowed(
                        f"{conflict.key.removeprefix(keys.NAMESPACES)} was deleted: nothing can be set there"
                    )
                before, build = _opened(conflict.key, None if at is None else at[0])
                value = build(taken(before, conflict))
                assert value is not None
                ops.append(Put(conflict.key, value, ABSENT if at is None else at[1]))
            elif take != "theirs":
                raise NotAllowed(f"take mine or theirs, not {take!r}")
            try:
                await self._config.txn(ops)
            except VersionConflict:
                continue
            return conflict
        raise busy()


def _edit_of(mark: str) -> str:
    return f"{mark}/edit"


def _named(edit: Edit) -> bytes:
    return f"{edit.id} {hashlib.sha256(edit.encode()).hexdigest()}".encode()


def _number(found: tuple[bytes, int] | None) -> tuple[int, int]:
    """(the number that a key holds, its version); (0, ABSENT): there is none. Raises CorruptData."""
    if found is None:
        return 0, ABSENT
    if not found[0].isdigit():
        raise CorruptData(f"the number of a deferred edit: {found[0][:40]!r} is none")
    return int(found[0]), found[1]


def _opened(key: str, blob: bytes | None) -> tuple[dict[str, Any], Callable[[dict[str, Any]], bytes | None]]:
    """(what the level holds, and what makes the stored value of another such). The latter raises NotAllowed."""
    if key.startswith(keys.NAMESPACES):
        assert blob is not None
        namespace = NamespacePolicies.decode(blob)
        return namespace.policies, lambda fields: replace(
            namespace, policies=checked(fields, namespace.policies)
        ).encode()
    topic = TopicPolicies() if blob is None else TopicPolicies.decode(blob)
    return flat(topic), lambda fields: topic_of(fields, topic.policies).encode()


def topic_of(fields: dict[str, Any], before: dict[str, Any]) -> TopicPolicies:
    """Makes a topic's policies of their fields. before: those that it has (`checked`). Raises NotAllowed where one has
    a value that it may not have.
    """
    policies = {name: value for name, value in fields.items() if name != PROPERTIES}
    return TopicPolicies(policies=checked(policies, before), properties=fields.get(PROPERTIES, {}))
