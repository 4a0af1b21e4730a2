"""What a factory of managed ledgers does, whoever makes it: one conformance suite over the real one and its fake."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from heliograph.model.errors import NotFound, TopicClosed
from heliograph.model.topic_names import topic_hash
from tests.storage.managed_ledger.world import Names, run_of

NAMESPACE, OTHER = "t/n", "t/nn"
QUORUMS = (2, 2, 2)
Settle = Callable[[], Awaitable[None]]
"""Until what was appended is confirmed."""
Case = Callable[[Any, Settle], Awaitable[None]]


def named(name: str, namespace: str = NAMESPACE) -> str:
    return f"persistent://{namespace}/{name}"


async def a_topic_is_made_where_that_is_asked_for(factory: Any, settle: Settle) -> None:
    topic = named("x")
    with pytest.raises(NotFound):
        await factory.open(topic, Names(), QUORUMS, create=False)
    assert not await factory.exists(topic) and await factory.names(NAMESPACE) == []
    made = await factory.open(topic, Names(), QUORUMS, create=True)
    assert made.topic == topic and await factory.exists(topic)
    await made.close()
    again = await factory.open(topic, Names(), QUORUMS, create=False)
    assert again.topic == topic
    await again.close()


async def the_state_of_the_next_owner_has_heard_of_everything(factory: Any, settle: Settle) -> None:
    topic, first = named("x"), Names()
    ledger, done = await factory.open(topic, first, QUORUMS, create=True), list[str]()

    def confirmed(number: int, entry: int, run: Any) -> None:
        first.confirm(run)
        done.append("done")

    for name in ("a", "b", "c"):
        ledger.append_run(run_of(name), confirmed, done.append)
    await settle()
    assert done == ["done"] * 3 and first.seen == ["a", "b", "c"]
    await ledger.close()
    second = Names()
    ledger = await factory.open(topic, second, QUORUMS, create=False)
    assert second.seen == ["a", "b", "c"]
    await ledger.close()
    refused = list[Any]()
    ledger.append_run(run_of("d"), confirmed, refused.append)
    assert [type(error) for error in refused] == [TopicClosed]


async def names_are_those_of_one_namespace(factory: Any, settle: Settle) -> None:
    for topic in (named("b"), named("a"), named("a", OTHER), named("c-partition-0")):
        await (await factory.open(topic, Names(), QUORUMS, create=True)).close()
    assert await factory.names(NAMESPACE) == [named("a"), named("b"), named("c-partition-0")]
    assert await factory.count(NAMESPACE) == 3 and await factory.count(OTHER) == 1
    assert await factory.names("t/none") == [] and await factory.count("t/none") == 0
    for low, high in ((0, 1 << 32), (0, 1 << 31), (1 << 31, 1 << 32)):
        found = [name async for page in factory.names_between(NAMESPACE, low, high) for name in page]
        wanted = [name for name in await factory.names(NAMESPACE) if low <= topic_hash(name) < high]
        assert found == sorted(wanted, key=topic_hash)


async def what_is_deleted_is_gone_and_can_be_made_again(factory: Any, settle: Settle) -> None:
    topic = named("x")
    with pytest.raises(NotFound):
        await factory.delete(topic)
    ledger = await factory.open(topic, Names(), QUORUMS, create=True)
    ledger.append_run(run_of("a"), lambda *_: None, lambda *_: None)
    await settle()
    await ledger.open_cursor("s", (-1, -1))
    await ledger.close()
    await factory.delete(topic)
    assert not await factory.exists(topic) and await factory.names(NAMESPACE) == []
    with pytest.raises(NotFound):
        await factory.delete(topic)
    with pytest.raises(NotFound):
        await factory.open(topic, Names(), QUORUMS, create=False)
    state = Names()
    again = await factory.open(topic, state, QUORUMS, create=True)
    assert state.seen == [] and not again.cursors
    await again.close()


EVERY: Sequence[Case] = (
    a_topic_is_made_where_that_is_asked_for,
    the_state_of_the_next_owner_has_heard_of_everything,
    names_are_those_of_one_namespace,
    what_is_deleted_is_gone_and_can_be_made_again,
)


def conforms(test: Callable[[Case], None]) -> Any:
    return pytest.mark.parametrize("case", EVERY, ids=[case.__name__ for case in EVERY])(test)
