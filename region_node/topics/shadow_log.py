"""ShadowLog: the log of a shadow topic, as its consumers read it.

Is: the source's ledgers by way of a `ShadowLedger`, and which of its transactions are decided. Isn't: a writer:
producers are refused, links are not made, and what the source knows for its writers (vectors, deduplication) is not
kept.
Invariants: an entry of a transaction is shown here exactly where it is shown at the source.
Source: docs/protocols/pulsar.md, "Shadow topics".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.configuration.policy_table import Applied
from heliograph.model.errors import NotAllowed
from heliograph.runtime.clock import Rng
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from replicator.log.write_order import Done, Failed
from storage.managed_ledger.log.shadow_ledger import REFUSAL

if TYPE_CHECKING:
    from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory


class _ShadowState(TopicState):
    """What is stored of the source, of which only the transactions go on."""

    def replay(self, ledger: int, first: int, run: Run) -> None:
        if run.flags is not None and any(flag & FLAG_HIDDEN for flag in run.flags) and run.count > 1:
            for index in range(run.count):
                self.replay(ledger, first + index, run.cut(index, index + 1))
        elif run.transaction is not None:
            self._confirm_transactional(ledger, first, run)
            if self.transactions is not None and first == 0:  # as long as the source's, not as long as its past
                self.transactions.trimmed(self.positions.first())


class ShadowLog(ReplicatedLog):
    """One loaded topic. Nobody publishes to it."""

    __slots__ = ()

    @classmethod
    async def follow(
        cls,
        factory: ManagedLedgerFactory,
        topic: str,
        source: str,
        *,
        region: RegionInfo,
        policies: Applied,
        rng: Rng,
        create: bool,
    ) -> Self:
        """source: a full name. Raises NotFound where the shadow does not exist and `create` is not set; NotAllowed
        where it is no shadow of that source.
        """
        state = _ShadowState(
            region=region.number, epoch=region.epoch, rng=rng, deduplication=False, settings=DedupSettings()
        )
        persistence = (policies.ensemble, policies.write_quorum, policies.ack_quorum)
        return cls(await factory.open_shadow(topic, source, state, persistence, create=create), state)

    def publish(self, run: Run, done: Done, failed: Failed) -> None:
        failed(NotAllowed(REFUSAL))
