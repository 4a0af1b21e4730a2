"""TransactionCalls: how this broker's transactions reach topics of the region's other brokers.

Is: two questions to the owner of a topic, and what its answers mean. Isn't: the answering side
(`region_node.faces.admin.transactions.transactions`), or when anybody is asked.
Invariants: a broker of an earlier version, which has no such path, ends nothing, and holds nobody up.
Source: docs/protocols/transactions.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.model.errors import NotFound, NotOwner
from heliograph.wire.run import TxnId
from region_node.placement.ownership.broker_calls import BrokerCalls
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.transactions.coordinators.replicated_transactions import Abroad
from region_node.transactions.participants.transaction_errors import TransactionState

END = "/heliograph/v1/transactions/end"
ARRIVED = "/heliograph/v1/transactions/arrived"


class TransactionCalls:
    """Asks over `calls`, as `region_node.transactions.coordinators.replicated_transactions.OtherBrokers` wants it."""

    def __init__(self, calls: BrokerCalls) -> None:
        self._calls = calls

    async def end(
        self,
        owner: BrokerRecord,
        topic: str,
        subscription: str | None,
        txn: TxnId,
        commit: bool,
        low: int,
        others: Sequence[str],
        again: bool,
    ) -> bool:
        asked = {
            "topic": topic,
            "subscription": subscription,
            "most": txn[0],
            "least": txn[1],
            "commit": commit,
            "low": low,
            "others": list(others),
        }
        if again:
            asked["again"] = True
        try:
            answer = await self._calls.call(owner, "POST", END, asked)
        except NotFound as error:  # no such path: it knows nothing of the transaction
            raise NotOwner(str(error)) from error
        if "gone" in answer:
            raise NotFound(answer["gone"])
        if "contradicted" in answer:
            raise TransactionState(answer["contradicted"])
        return "empty" not in answer

    async def arrived(self, owner: BrokerRecord, topic: str, by: str, wanted: Sequence[Abroad]) -> list[bool]:
        try:
            answer = await self._calls.call(
                owner, "POST", ARRIVED, {"topic": topic, "by": by, "transactions": [list(one) for one in wanted]}
            )
        except NotFound:  # no such path: it cannot say, and nothing is waited for
            return [True] * len(wanted)
        if "gone" in answer:
            raise NotFound(answer["gone"])
        return [bool(one) for one in answer["ended"]]
