"""A topic and its subscriptions: what one of them does wrong is its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.region_node.faces.pulsar.codec import entry, send
from tests.region_node.faces.pulsar.harness import Broker, messages, with_broker


@pytest.mark.parametrize(("domain", "does"), [("persistent", "run_ready"), ("non-persistent", "offer")])
def test_an_error_of_one_subscription_keeps_nothing_from_the_others(
    domain: str, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{domain}://public/default/t"

    async def test(broker: Broker) -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        client = await broker.client()
        await client.producer(1, name)
        for number, reader in enumerate(("broken", "other"), 1):
            await client.subscribe(number, name, reader)
            await client.flow(10, consumer_id=number)
        subscription = broker.topics.loaded[name].subscriptions["broken"]
        broken = subscription.dispatcher if does == "run_ready" else subscription
        before = getattr(type(broken), does)

        def fails(each: Any, *words: Any) -> None:
            if each is broken:
                raise ValueError("broken")
            before(each, *words)

        monkeypatch.setattr(type(broken), does, fails)
        came = await client.do(*(send(1, n, entry(b"%d" % n, sequence=n)) for n in range(3)))
        assert [message.consumer_id for message, _ in messages(came)] == [2] * 3
        assert told and {type(context["exception"]) for context in told} == {ValueError}

    with_broker(test)
