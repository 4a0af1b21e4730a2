"""What the connections of one broker share, and settings that cannot be."""

from __future__ import annotations

import pytest

from heliograph.model.errors import ConfigError
from heliograph.wire.pulsar.frame_cutter import MESSAGE_BYTES_MAX
from region_node.faces.pulsar.session.pulsar_broker import ListenerSettings
from tests.region_node.faces.pulsar.harness import Broker, with_broker


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep_alive_s": 0}, "above 0"),
        ({"message_bytes_max": MESSAGE_BYTES_MAX + 1}, "message_bytes_max must be"),
        ({"inflight_bytes_max": 1000, "message_bytes_max": 1001}, "less than one message"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ListenerSettings(**given)


def test_no_two_producers_are_given_one_name() -> None:
    async def test(broker: Broker) -> None:
        assert len({broker.listener.broker.unique_name() for _ in range(100)}) == 100

    with_broker(test)


def test_who_brings_too_much_that_is_not_durable_is_not_read_from() -> None:
    async def test(broker: Broker) -> None:
        client, shared = await broker.client(), broker.listener.broker
        shared.budget.take(client.protocol, shared.settings.inflight_bytes_max + 1)
        assert not client.transport.reading
        shared.budget.give(shared.settings.inflight_bytes_max + 1)
        assert client.transport.reading

    with_broker(test)
