"""Rules that are broken on purpose, and that a world finds only where more goes on beside its topics (`stories`).

Is: patches. Isn't: the settings, or the seed that finds each (`test_world`).
"""

from __future__ import annotations

from typing import Any

from heliograph.model.feature_levels import LEVEL
from heliograph.model.positions import Position
from region_node.compaction import compactor
from region_node.compaction.latest_keys import LatestKeys
from region_node.process.feature_level import RegionLevel
from region_node.topics.topic import Topic
from region_node.transactions.coordinators.coordinator import TransactionCoordinator, Txn
from region_node.transactions.coordinators.replicated_transactions import Arrivals
from replicator.log.transaction_buffer import TransactionBuffer
from tests.broken_rules import BrokenRules


def readers_pass_an_open_transaction(patch: BrokenRules) -> None:
    patch.setattr(TransactionBuffer, "unseen_from", lambda self: None)


def what_was_aborted_is_shown(patch: BrokenRules) -> None:
    patch.setattr(TransactionBuffer, "is_aborted", lambda self, run: False)


def the_time_of_a_transaction_is_never_over(patch: BrokenRules) -> None:
    def expired(self: TransactionCoordinator, now_ms: int) -> list[Txn]:
        return []

    patch.setattr(TransactionCoordinator, "expired", expired)


def each_topic_shows_its_part_alone(patch: BrokenRules) -> None:
    """What another region committed in several topics is shown in one while the others lack it."""

    def on_held(self: Arrivals, topic: Topic) -> None:
        buffer = topic.transactions.buffer
        assert buffer is not None
        for key in list(buffer.held):
            buffer.release(key)

    patch.setattr(Arrivals, "on_held", on_held)


def the_first_value_of_a_key_stays(patch: BrokenRules) -> None:
    def message(self: LatestKeys, number: int, key: bytes, *, tombstone: bool = False) -> None:
        if self._put(number, key) == -1 and not tombstone:
            self._set(number)

    patch.setattr(LatestKeys, "message", message)


def a_compaction_stands_for_what_came_meanwhile(patch: BrokenRules) -> None:
    """Its horizon is the end of the topic when it is done."""
    finish = compactor.CompactedWriter.finish

    async def finished(self: compactor.CompactedWriter, horizon: Position) -> Any:
        return await finish(self, self._topic.readable.last_confirmed)

    patch.setattr(compactor.CompactedWriter, "finish", finished)


def a_level_rises_above_older_processes(patch: BrokenRules) -> None:
    async def upkeep(self: RegionLevel) -> None:
        if self.present < LEVEL and self._view.region(self._region) is not None:
            await self._raise(LEVEL)

    patch.setattr(RegionLevel, "upkeep", upkeep)


def a_level_never_rises(patch: BrokenRules) -> None:
    async def upkeep(self: RegionLevel) -> None:
        pass

    patch.setattr(RegionLevel, "upkeep", upkeep)
