"""TopicTransactions: one topic as a participant: what may be published into a transaction, and its end in the topic's
log.

Is: refusals, markers, waiting for them to be durable. Isn't: which entries readers see
(`replicator.log.transaction_buffer`, `committed_view`), or whether a transaction commits (the coordinator).
Invariants: a marker stands behind every entry of its transaction that was taken, and nothing is taken behind it; ending
again is answered by what the log holds; an end that could not be stored is as if it had not been asked for, but for
publishes, which stay refused until it is.
Source: docs/protocols/transactions.md, "The end in a topic".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from heliograph.model.errors import HeliographError, LinkError, NotAllowed, NotFound, TopicTerminated
from heliograph.wire.run import Origin, Run, TxnId
from region_node.transactions.participants.committed_view import CommittedView
from region_node.transactions.participants.transaction_errors import TransactionState
from replicator.health.link_causes import Cause
from replicator.log.transaction_buffer import ABORT, COMMIT, Key, TransactionBuffer, marker_run, verdict_run

if TYPE_CHECKING:
    from region_node.topics.topic import Topic


class TopicTransactions:
    """Made when a topic is loaded that holds transactions, or when the first one comes."""

    __slots__ = ("_ending", "_topic", "_view")

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._ending: dict[TxnId, int] = {}
        self._view: CommittedView | None = None

    @property
    def buffer(self) -> TransactionBuffer | None:
        log = self._topic.log.transactional
        return None if log is None else log.transactions

    def refusal(self, txn: TxnId) -> HeliographError | None:
        """Why nothing may be published into the transaction; None: it may."""
        topic = self._topic
        if topic.volatile or topic.log.transactional is None:
            return NotAllowed(f"{topic.text} is not persistent: it takes part in no transaction")
        if txn in self._ending:
            return NotAllowed(f"transaction {txn[0]}:{txn[1]} is ending: begin another one")
        reason = "" if self.buffer is None else self.buffer.refuses(txn)
        return NotAllowed(reason) if reason else None

    def may_have_ended(self, txn: TxnId) -> bool:
        """Says whether its end may have been stored here and is forgotten: its coordinator knows then."""
        buffer = self.buffer
        return buffer is not None and (None, *txn) not in buffer.open and buffer.may_have_committed(txn)

    def watch_held(self) -> None:
        """Whoever asks for a held transaction's other topics hears of it; where nobody does, nothing is held."""
        buffer, topic = self.buffer, self._topic
        if buffer is None:
            return

        def tell() -> None:
            if topic.on_held is not None:
                topic.on_held(topic)
            else:
                for key in list(buffer.held):
                    buffer.release(key)

        buffer.on_held = tell
        if buffer.held:
            tell()

    def view(self) -> CommittedView:
        """What clients read: decided, and not aborted. Only where there is a buffer."""
        if self._view is None:
            assert self.buffer is not None
            self._view = CommittedView(self._topic.ledger, self.buffer)
        return self._view

    @property
    def open(self) -> int:
        """How many transactions are open here."""
        return 0 if self.buffer is None else len(self.buffer.open)

    async def end(self, txn: TxnId, *, commit: bool, low: int, others: Sequence[str] = (), again: bool = False) -> bool:
        """Returns once that is durable; False: the topic is terminated, and has no part in it. low: everything of that
        coordinator below it has ended.
        others: the topics that it commits in beside this one. again: it has ended here, and had named more of them: it
        is said once more for other regions. Raises TransactionState, LinkError where its commit may still come back
        from another region, and what storage raises.
        """
        action = COMMIT if commit else ABORT
        buffer = self.buffer
        for key in [
            key
            for key in (buffer.open if buffer is not None else {})
            if key[0] is None and key[1] == txn[0] and key[2] < low and not self._comes_back(key)
        ]:
            await self._append(
                (key[1], key[2]), ABORT, low
            )  # published without being registered: nobody will ever end it
        if buffer is not None and (ended := buffer.ended(txn)) is not None:
            self._ending.pop(txn, None)
            if ended != action:
                raise TransactionState(
                    f"transaction {txn[0]}:{txn[1]} was {'aborted' if ended == ABORT else 'committed'} in "
                    f"{self._topic.text}"
                )
            if again and not self._topic.terminated:
                await self._stored(marker_run(txn, action, low, others), lambda: None)
            return True
        if not commit and self._comes_back((None, *txn)):
            self._ending.setdefault(txn, ABORT)
            raise LinkError(
                Cause.TRANSACTION_OPEN,
                f"transaction {txn[0]}:{txn[1]} may have been committed since the backup: it is aborted once no region "
                f"may bring back more of {self._topic.text}",
            )
        if self._topic.terminated and (buffer is None or (None, *txn) not in buffer.open):
            # Nothing of it is open here, and nothing can come. Was it told before a coordinator's crash, and forgotten
            # since? Then other regions still wait for this topic's part; where there is none, they wait in vain, which
            # ends.
            return buffer is not None and commit and buffer.may_have_committed(txn)
        await self._append(txn, action, low, others)
        return True

    def _comes_back(self, key: Key) -> bool:
        """Whether it is open, and the region's metadata was restored since it began: its commit may be elsewhere."""
        log = self._topic.log.transactional
        found = None if log is None or log.transactions is None else log.transactions.open.get(key)
        return log is not None and found is not None and log.awaits_past(found.first)

    async def decide(self, origin: Origin, txn: TxnId, *, commit: bool) -> None:
        """Ends a transaction of another region in this region's log; returns once that is durable. Raises NotFound
        where it is not open here, and what storage raises.
        """
        if self.buffer is None or (origin, *txn) not in self.buffer.open:
            raise NotFound(f"transaction {txn[0]}:{txn[1]} of that region is not open in {self._topic.text}")
        await self._stored(verdict_run(origin, txn, COMMIT if commit else ABORT), lambda: None)

    async def _append(self, txn: TxnId, action: int, low: int, others: Sequence[str] = ()) -> None:
        if self._ending.get(txn, action) != action:
            raise TransactionState(f"transaction {txn[0]}:{txn[1]} is ending the other way in {self._topic.text}")
        if self._topic.terminated:
            raise TopicTerminated(f"{self._topic.text} is terminated")
        self._ending[txn] = action
        await self._stored(marker_run(txn, action, low, others), lambda: self._ending.pop(txn, None))

    async def _stored(self, run: Run, confirmed: Callable[[], object]) -> None:
        """Until it is durable. confirmed: called then."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: object) -> None:
            confirmed()
            if not stored.done():
                stored.set_result(None)

        def failed(error: HeliographError) -> None:
            if not stored.done():
                stored.set_exception(error)

        self._topic.log.publish(run, done, failed)
        await stored
