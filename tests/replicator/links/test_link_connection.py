"""One connection of links: whether its target is heard."""

from __future__ import annotations

from typing import Any, cast

from heliograph.client.pulsar_connection import BrokerConnection
from replicator.links.link_connection import LinkConnection
from tests.region_node.topics.fake_storage import FakeClock


class Client:
    """What a link's connection asks of a broker's."""

    closed = None
    heard = False
    on_private: Any = None
    on_closed: Any = None
    on_writable: Any = None

    def write(self, buffers: Any) -> None: ...


def test_a_target_is_heard_in_the_middle_of_a_frame() -> None:
    client, clock = Client(), FakeClock()
    connection = LinkConnection(
        ("eu", "a:1"), cast(BrokerConnection, client), clock, lambda _: None, lambda call: call()
    )
    for second in range(1, 9):
        clock.now += 1
        connection.beat()
        assert connection.heard.silent_s == second
    client.heard = True
    connection.beat()
    assert connection.heard.silent_s == 0 and not client.heard
    clock.now += 6
    connection.beat()
    assert connection.heard.silent_s == 6


def test_a_silence_is_not_told_shorter_by_a_heartbeat_that_is_sent_into_it() -> None:
    client, clock = Client(), FakeClock()
    connection = LinkConnection(
        ("eu", "a:1"), cast(BrokerConnection, client), clock, lambda _: None, lambda call: call()
    )
    connection.beat()
    clock.now += 0.25
    client.heard = True
    connection.heard.bytes()  # as every frame does
    for silent_s in (0.75, 1.75, 2.75):
        clock.now = connection.heard.at + silent_s
        connection.beat()
        assert connection.heard.silent_s == silent_s
