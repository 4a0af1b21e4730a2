"""CompactingTopic: a loaded topic as its compaction sees it, and those who read it compacted.

Is: beginning a compaction by command or by policy, where the compacted view ends, truncating both. Isn't: a compaction
(`region_node.compaction`).
Invariants: nothing of it is made for a topic that nobody compacts or truncates; a compaction and a truncation are never
under way at once.
"""

from __future__ import annotations

from typing import Any

from heliograph.model.errors import NotAllowed
from heliograph.model.positions import BEFORE_ALL, Position
from region_node.compaction.compaction_state import TopicCompaction
from region_node.compaction.compactor import Compactor
from region_node.compaction.keyed_entries import last_kept_index
from region_node.topics.positions import last_visible
from region_node.topics.topic_subscriptions import SubscribingTopic
from replicator.log.deletion import truncate


class CompactingTopic(SubscribingTopic):
    """What `Topic` does with it."""

    __slots__ = ("_compaction", "_compactor")

    _compaction: TopicCompaction | None
    _compactor: Compactor | None

    def compaction(self) -> TopicCompaction:
        """How it is compacted, and what a consumer reads that wants it so; made when it is first asked for. Raises
        NotAllowed.
        """
        if self._compaction is None:
            if self._compactor is None:
                raise NotAllowed(f"{self.text} cannot be compacted here")
            self._compaction = self._compactor.of(self)
        return self._compaction

    @property
    def compacted(self) -> TopicCompaction | None:
        """The same; None where nobody has asked for it, and nothing is compacted."""
        return self._compaction

    def compact(self) -> None:
        """Begins to, in the background. Raises NotAllowed; AlreadyExists where that is under way."""
        self.compaction()
        assert self._compactor is not None
        self._compactor.start(self)

    async def compact_if_due(self) -> None:
        """Once what is not compacted is larger than the policy says."""
        threshold = self.policies.limit("compactionThreshold")
        if not threshold or self._compactor is None or self.volatile:
            return
        await self._compactor.hold_log(self)
        state = self.compaction()
        horizon = state.view.compacted.horizon if state.view.compacted is not None else BEFORE_ALL
        if (
            state.status != "RUNNING"
            and not state.truncating
            and self.ledger.bytes_between(horizon, self.ledger.last_confirmed) > threshold
        ):
            self.compact()

    async def truncate(self) -> None:
        """Nothing that was published so far is there any more. Raises AlreadyExists while it is being
        compacted.
        """
        if self._compactor is None or self.volatile:
            await self._truncate_log()
            return
        state = self.compaction()
        state.truncating += 1
        try:
            await self._compactor.truncate(self)
            await self._truncate_log()
        finally:
            state.truncating -= 1

    async def _truncate_log(self) -> None:
        log: Any = self.log
        self._dropped(await truncate(log), "truncated")
        self.touch()

    async def last_message(self) -> tuple[Position, int]:
        """(position of the last entry that clients see, its last batch index or -1); entry -1: nothing is there."""
        return ((0, -1), -1) if self.volatile else await last_visible(self.readable)

    async def last_compacted_message(self) -> tuple[Position, int]:
        """The same, for a consumer that reads it compacted: what was taken away is not there."""
        view = self.compaction().view
        found = await last_visible(self.readable)
        if view.compacted is None or found[0] > view.compacted.horizon:
            return found
        kept = await view.last()
        return ((-1, -1), -1) if kept is None else (kept[0], last_kept_index(kept[1].parts[0]))

    async def before_time_compacted(self, publish_ms: int) -> Position:
        """The same, for a consumer that reads it compacted: also where only the compacted ledger goes back so far."""
        target = await self.before_time(publish_ms)
        found = (
            await self.compaction().view.before_publish_time(publish_ms)
            if target < self.ledger.first_position()
            else None
        )
        return target if found is None else min(found, target)
