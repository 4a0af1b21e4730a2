"""What the answers of a region's other brokers mean for transactions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.model.errors import NotFound, NotOwner
from region_node.placement.ownership.broker_calls import BrokerCalls
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.transactions.coordinators.transaction_calls import ARRIVED, END, TransactionCalls
from region_node.transactions.participants.transaction_errors import TransactionState

OWNER, TOPIC, OTHER = BrokerRecord("b"), "persistent://t/n/a", "persistent://t/n/b"


class Answers(BrokerCalls):
    """Gives them in turn; errors are raised."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers, self.asked = list(answers), list[tuple[str, Any]]()

    async def call(self, record: BrokerRecord, method: str, path: str, body: Any = None) -> Any:
        assert record is OWNER and method == "POST"
        self.asked.append((path, body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_broker_of_an_earlier_version_is_not_waited_for() -> None:
    async def main() -> None:
        answers = Answers(NotFound("404"), {"gone": "it is not there"}, {"ended": [True, False]})
        others, wanted = TransactionCalls(answers), [(2, 1, 0, 1), (2, 1, 0, 2)]
        assert await others.arrived(OWNER, OTHER, TOPIC, wanted) == [True, True]
        with pytest.raises(NotFound, match="it is not there"):
            await others.arrived(OWNER, OTHER, TOPIC, wanted)
        assert await others.arrived(OWNER, OTHER, TOPIC, wanted) == [True, False]
        assert answers.asked[0] == (
            ARRIVED,
            {"topic": OTHER, "by": TOPIC, "transactions": [[2, 1, 0, 1], [2, 1, 0, 2]]},
        )

    asyncio.run(main())


def test_what_an_owner_says_of_an_end_is_what_it_would_raise_here() -> None:
    async def main() -> None:
        answers = Answers(
            {}, {"empty": True}, {"gone": "deleted"}, {"contradicted": "aborted"}, NotFound("no such path")
        )
        others = TransactionCalls(answers)

        async def end(*, again: bool = False) -> bool:
            return await others.end(OWNER, TOPIC, None, (3, 7), True, 5, [OTHER], again)

        assert await end() and not await end(again=True)
        for kind in (NotFound, TransactionState, NotOwner):
            with pytest.raises(kind):
                await end()
        asked = {"topic": TOPIC, "subscription": None, "most": 3, "least": 7, "commit": True, "low": 5}
        assert answers.asked[:2] == [
            (END, {**asked, "others": [OTHER]}),
            (END, {**asked, "others": [OTHER], "again": True}),
        ]

    asyncio.run(main())
