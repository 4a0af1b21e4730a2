"""Rules that are broken on purpose in more than one simulation. Each must be found.

Is: patches. Isn't: the mutants of one world alone, which stand beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from global_config import backup, view
from global_config.deferred_edits import DeferredEdits
from global_config.policy_edits import Edit
from global_config.write_retries import Tries
from heliograph.kv import metadata_store
from heliograph.kv.metadata_store import ABSENT, Put
from heliograph.model.configuration.tombstones import TOMBSTONES, Tombstone
from heliograph.model.errors import VersionConflict
from heliograph.raft.core import RaftCore
from heliograph.raft.disk import life_file
from heliograph.raft.leader import Leading
from heliograph.raft.progress import Progress
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.links.unopened_topics import UnopenedTopics
from region_node.dr.operations import operation_steps
from region_node.dr.operations.operation import Operation
from region_node.topics.serving.deferred_deletion import Tombstones
from replicator.dedup import version_vector
from replicator.health.unopened_topics import UnopenedLinks
from replicator.manager import ended_origins
from replicator.sending import link_sender
from storage.bookie.directories.cookie import DiskIdentity
from storage.bookie.serving import enrolment
from storage.ledger.bookies.bookie_cookie import BookieCookie
from storage.managed_ledger.cursors import cursor
from tests.broken_rules import BrokenRules


def the_mark_delete_position_jumps_over_gaps(patch: BrokenRules) -> None:
    def advance(self: cursor.Cursor) -> None:
        for ledger in sorted(self._acked):
            pairs = list(self._acked[ledger].pairs())
            if pairs and (ledger, pairs[-1][1] - 1) > self.mark_delete:
                self._move((ledger, pairs[-1][1] - 1))
                return

    patch.setattr(cursor.Cursor, "_advance", advance)


def what_is_gone_is_not_named(patch: BrokenRules) -> None:
    """A target goes on behind what its source does not have any more, and says that it lacks nothing."""

    def confirm_skip(self: version_vector.Intake, record: SkipRecord) -> None:
        self.confirm(record.origin, record.through)

    patch.setattr(version_vector.Intake, "confirm_skip", confirm_skip)


def what_was_sent_is_not_at_risk(patch: BrokenRules) -> None:
    """A source says that its target lacks what was not sent yet, and nothing else."""

    def backlog(self: link_sender.LinkSender) -> Any:
        found, oldest_ms = told(self)
        return (found, oldest_ms) if not self.in_flight_bytes else ((0, 0, 0), 0)

    told = link_sender.LinkSender.backlog
    patch.setattr(link_sender.LinkSender, "backlog", backlog)


def what_a_region_has_alone_is_in_no_number(patch: BrokenRules) -> None:
    """A source tells nothing of topics that its target has not opened yet."""

    def told(self: UnopenedLinks, target: str) -> UnopenedTopics:
        return replace(counted(self, target), rows={})

    counted = UnopenedLinks.told
    patch.setattr(UnopenedLinks, "told", told)


def a_tombstone_goes_with_the_first_copy(patch: BrokenRules) -> None:
    """It is taken away once one region has purged: a region that has not heard of it yet brings the topic back."""

    async def settle(self: Tombstones, found: Tombstone, version: int, waits: set[str]) -> None:
        await settled(self, replace(found, regions=found.purged) if found.purged else found, version, waits)

    settled = Tombstones.settle
    patch.setattr(Tombstones, "settle", settle)


def what_a_restored_tombstone_names_goes(patch: BrokenRules) -> None:
    """It is obeyed as it stands, whatever was made under its name since."""
    restored = backup.restored_value

    def as_it_stands(key: str, value: bytes, now_ms: int, why: str = "") -> bytes:
        return value if key.startswith(TOMBSTONES) else restored(key, value, now_ms)

    async def asked(self: Tombstones, found: Tombstone, version: int) -> bool:
        return False

    patch.setattr(backup, "restored_value", as_it_stands)
    patch.setattr(Tombstones, "_asked", asked)


def a_region_that_a_backup_lacks_has_left_for_good(patch: BrokenRules) -> None:
    """A number that was heard of once is a region's for ever, also where the configuration went back."""

    def number_given(numbers: dict[int, str], broken: dict[str, str], key: str, value: bytes | None) -> None:
        if value is not None:
            heard(numbers, broken, key, value)

    heard = view._number_given
    patch.setattr(view, "_number_given", number_given)


def what_an_ended_region_left_is_nobodys(patch: BrokenRules) -> None:
    """Who had nothing of it before shows it under a name that no region ever had."""

    async def name(self: ended_origins.EndedOrigins, log: Any, origin: Any) -> str:
        return f"region-{origin[0]}"

    patch.setattr(ended_origins.EndedOrigins, "_name", name)


def a_region_does_not_fetch_its_own_past(patch: BrokenRules) -> None:
    """What it published since the backup that it was restored from is in the other regions alone."""

    def fetches(self: ended_origins.EndedOrigins, log: Any, origin: Any, through: Any) -> bool:
        return not log.state.is_own(origin) and fetched(self, log, origin, through)

    fetched = ended_origins.EndedOrigins._fetched
    patch.setattr(ended_origins.EndedOrigins, "_fetched", fetches)


def what_was_merged_is_merged_again(patch: BrokenRules) -> None:
    """Of two brokers that merge a region's edits, each merges all of them."""

    async def merge(self: DeferredEdits, key: str, edit: Edit) -> None:
        async for _ in Tries():
            found = await self._config.get(self._mark)
            mark = Put(self._mark, b"%d" % edit.id, ABSENT if found is None else found[1])
            try:
                await self._config.txn([*await self._operations(edit), mark])
            except VersionConflict:
                continue
            await self._meta.delete(key)
            return

    patch.setattr(DeferredEdits, "_merge", merge)


def of_a_range_only_its_first_page_is_read(patch: BrokenRules) -> None:
    async def pages_between(store: Any, start: str, end: str) -> AsyncIterator[Any]:
        if rows := await store.range(start, end):
            yield rows

    patch.setattr(metadata_store, "pages_between", pages_between)


def a_switchover_waits_for_no_delivery(patch: BrokenRules) -> None:
    async def deliver(self: operation_steps.Conductor, op: Operation) -> Operation:
        return op.passed("all is in both", self._wall_ms())

    patch.setattr(operation_steps.Conductor, "_deliver", deliver)


def a_founder_votes_before_it_has_learned(patch: BrokenRules) -> None:
    """A voter takes its empty folder for that of the first hour."""

    def begin(self: RaftCore, now: float) -> None:
        if self.unproven:
            self._found()
        began(self, now)

    began = RaftCore._begin
    patch.setattr(RaftCore, "_begin", begin)


def a_folder_is_proven_once_it_was_started_with(patch: BrokenRules) -> None:
    """A voter with an empty folder that is started again counts."""
    patch.setattr(life_file, "begin", lambda disk, life: life_file.prove(disk, life, ()))


def a_voter_holds_for_ever_what_it_has_said(patch: BrokenRules) -> None:
    """A leader does not ask a voter again that says it holds less than before."""

    def on_refused(self: Leading, member: str, progress: Progress, index: int, *hint: int) -> None:
        if index > progress.match:
            refused(self, member, progress, index, *hint)

    refused = Leading._on_refused
    patch.setattr(Leading, "_on_refused", on_refused)


def an_older_copy_is_believed(patch: BrokenRules) -> None:
    """A voter does not heed that others know of a later start of it."""

    def put_back(self: RaftCore, start: int, now: float) -> None:
        self.starts.own = start

    patch.setattr(RaftCore, "_put_back", put_back)


def empty_disks_are_believed(patch: BrokenRules) -> None:
    """A bookie without its directories is the one that it was."""
    doubt_of = enrolment.doubt_of

    def doubts(disk: DiskIdentity, record: BookieCookie | None, forgot: bool = False) -> str:
        return "" if disk.fresh else doubt_of(disk, record, forgot)

    patch.setattr(enrolment, "doubt_of", doubts)
