"""Storage without brokers: seeds that hold, and wrong rules that are found within a few seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from geo_tests.sim.ledgers import LedgerWorld
from geo_tests.sim.loop import collect
from heliograph.model.errors import BookieUnavailable, HeliographError, VersionConflict
from heliograph.model.ledger_metadata import LedgerMetadata
from storage.bookie.directories.journal_dir import JournalDir
from storage.ledger.bookies.bookie_port import END
from storage.ledger.recovery import ledger_recovery, recovery_rules
from storage.ledger.repair.ledger_repair import LedgerRepair
from storage.ledger.repair.replica_check import CopyCheck
from storage.ledger.writing import ledger_append
from storage.managed_ledger.cursors import cursor
from storage.managed_ledger.log import log_tail as tail
from storage.managed_ledger.retention import ledger_retention, trim_rule
from tests.broken_rules import BrokenRules
from tests.geo_tests.sim.mutants import the_mark_delete_position_jumps_over_gaps

SEEDS = 24
MUTANT_SEEDS = 240


def run(seed: int) -> LedgerWorld:
    world = LedgerWorld(seed)
    try:
        world.run()
    finally:
        collect()
    return world


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_storage_holds(block: int) -> None:
    confirmed = copied = 0
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        world = run(seed)
        confirmed, copied = confirmed + len(world.history.confirmed), copied + world.copied_bytes
    assert confirmed > 300 and copied > 0


def test_the_same_seed_gives_the_same_run() -> None:
    def trace(seed: int) -> list[str]:
        lines: list[str] = []
        LedgerWorld(seed, trace=lines.append).run()
        return lines

    assert trace(3) == trace(3) != trace(4)


# -- wrong rules -------------------------------------------------------------------------------------------------------


def lac_does_not_wait_for_the_recorded_ensemble(patch: BrokenRules) -> None:
    def advance(self: ledger_append.LedgerAppend) -> bool:
        reached = sorted(self._durable.values())[-self._ack_quorum]
        if reached <= self.lac:
            return False
        self.lac = reached
        return True

    patch.setattr(ledger_append.LedgerAppend, "_advance", advance)


def one_ack_is_enough(patch: BrokenRules) -> None:
    made = ledger_append.LedgerAppend.__init__
    patch.setattr(
        ledger_append.LedgerAppend,
        "__init__",
        lambda self, ensemble, quorum, striping=None: made(self, ensemble, 1, striping),
    )


def recovery_does_not_fence(patch: BrokenRules) -> None:
    async def fence(context: Any, core: recovery_rules.LedgerRecovery, ledger: int) -> None:
        for bookie in core.ensemble:
            core.on_fenced(bookie, -1)

    patch.setattr(ledger_recovery, "_fence", fence)


def one_fence_is_enough(patch: BrokenRules) -> None:
    """With three bookies and an ack quorum of two, the writer can still confirm on the other two."""

    async def fence(context: Any, core: recovery_rules.LedgerRecovery, ledger: int) -> None:
        for bookie in core.unfenced():
            with suppress(HeliographError):
                core.on_fenced(bookie, *await context.pool.client(bookie).fence(ledger))
                return
        raise BookieUnavailable("none answered the fence")

    patch.setattr(recovery_rules.LedgerRecovery, "fenced", property(lambda self: len(self._fenced) >= 1))
    patch.setattr(ledger_recovery, "_fence", fence)


def a_time_out_is_absence(patch: BrokenRules) -> None:
    async def read_tail(context: Any, core: recovery_rules.LedgerRecovery, metadata: LedgerMetadata) -> list[Any]:
        ledger, tail = metadata.ledger, list[Any]()
        while not core.ended:
            for bookie in core.to_ask():
                try:
                    blocks = await context.pool.client(bookie).read(ledger, core.next, END, ledger_recovery.READ_BYTES)
                    pieces = ledger_recovery._pieces(ledger, core.next, bookie, blocks)
                except HeliographError:
                    core.on_absent(bookie)
                    if core.ended:
                        break
                else:
                    tail += pieces
                    core.on_found(pieces[-1][0] + pieces[-1][1] - 1)
                    break
            else:
                if not core.ended:
                    raise BookieUnavailable(f"ledger {ledger}: a bookie of entry {core.next} is to come")
        return tail

    patch.setattr(ledger_recovery, "_read_tail", read_tail)


def the_recovered_tail_is_not_written_again(patch: BrokenRules) -> None:
    async def write_tail(
        context: Any, metadata: LedgerMetadata, tail: list[Any]
    ) -> tuple[tuple[str, ...], dict[str, None]]:
        return metadata.fragments[-1][1], {}

    patch.setattr(ledger_recovery, "_write_tail", write_tail)


def a_bookie_acknowledges_before_its_sync(patch: BrokenRules) -> None:
    write = JournalDir.commit

    def commit(self: JournalDir) -> None:
        for (peer, ledger, writer), through in self._acks.items():
            peer.acked(ledger, writer, through)
        self._acks = {}
        write(self)

    patch.setattr(JournalDir, "commit", commit)


def entries_are_confirmed_before_the_topic_names_the_ledger(patch: BrokenRules) -> None:
    drain = tail.LogTail.drain

    def drained(self: tail.LogTail) -> None:
        self._recorded = 1 << 60
        drain(self)

    patch.setattr(tail.LogTail, "drain", drained)


def an_acknowledgement_is_not_stored(patch: BrokenRules) -> None:
    async def flushed(self: cursor.Cursor) -> None:
        pass

    patch.setattr(cursor.Cursor, "flushed", flushed)


def trimming_passes_the_slowest_cursor(patch: BrokenRules) -> None:
    count = trim_rule.trim_count
    patch.setattr(
        ledger_retention, "trim_count", lambda infos, slowest, through, *more: count(infos, through, through, *more)
    )
    patch.setattr(ledger_retention.LedgerRetention, "_waits", lambda *_: False)


def the_claim_ignores_a_conflict(patch: BrokenRules) -> None:
    """The topic's metadata is written without looking at the version."""
    from heliograph.kv.metadata_client import MetaClient
    from heliograph.kv.metadata_store import Put

    txn = MetaClient.txn

    async def blind(self: MetaClient, ops: Sequence[Any]) -> int:
        try:
            return await txn(self, ops)
        except VersionConflict:
            return await txn(
                self, [Put(op.key, op.value) if isinstance(op, Put) and op.key.startswith("/ml/") else op for op in ops]
            )

    patch.setattr(MetaClient, "txn", blind)


def what_a_bookie_missed_is_not_brought(patch: BrokenRules) -> None:
    async def refill(self: LedgerRepair, *_: object) -> bool:
        return True

    patch.setattr(LedgerRepair, "_refill", refill)


def bookies_are_not_asked_what_they_hold(patch: BrokenRules) -> None:
    """Then only what a writer knows of is marked, and writers die."""

    async def judge(self: CopyCheck, *_: object) -> None:
        pass

    patch.setattr(CopyCheck, "_judge", judge)


MUTANTS: Iterable[Callable[[BrokenRules], None]] = (
    lac_does_not_wait_for_the_recorded_ensemble,
    one_ack_is_enough,
    recovery_does_not_fence,
    one_fence_is_enough,
    a_time_out_is_absence,
    the_recovered_tail_is_not_written_again,
    a_bookie_acknowledges_before_its_sync,
    entries_are_confirmed_before_the_topic_names_the_ledger,
    the_mark_delete_position_jumps_over_gaps,
    an_acknowledgement_is_not_stored,
    trimming_passes_the_slowest_cursor,
    the_claim_ignores_a_conflict,
    what_a_bookie_missed_is_not_brought,
    bookies_are_not_asked_what_they_hold,
)
FOUND_BY: dict[Callable[[BrokenRules], None], int] = {
    lac_does_not_wait_for_the_recorded_ensemble: 26,
    a_time_out_is_absence: 152,
    the_recovered_tail_is_not_written_again: 26,
    an_acknowledgement_is_not_stored: 29,
    entries_are_confirmed_before_the_topic_names_the_ledger: 13,
    the_claim_ignores_a_conflict: 4,
    trimming_passes_the_slowest_cursor: 1,
    a_bookie_acknowledges_before_its_sync: 33,
    one_ack_is_enough: 1,
}
"""Seeds that are tried first: a rare interleaving is not searched for again each time."""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_a_wrong_rule_is_found(mutant: Callable[[BrokenRules], None], broken: BrokenRules) -> None:
    mutant(broken)
    broken.look(run, (FOUND_BY.get(mutant, 0), *range(MUTANT_SEEDS)))
