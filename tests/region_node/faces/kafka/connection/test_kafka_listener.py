"""The tick of the listener for Kafka: who is closed because he is silent, and that nobody is blamed for what the broker
did not read.
"""

from __future__ import annotations

from region_node.faces.kafka.connection.kafka_listener import _TICK_S
from tests.region_node.faces.kafka.harness import Client, Face, with_face


def test_who_is_silent_or_does_not_sign_in_is_closed_unless_the_broker_itself_stood_still() -> None:
    async def run(face: Face) -> None:
        listener, clock = face.listener, face.clock
        idle, unknown = Client(listener), Client(listener)
        unknown.protocol.login.principal = None
        listener._next_tick(clock.now)
        clock.now += 1000
        listener._tick()
        assert not idle.protocol.closed and not unknown.protocol.closed, "all that they have sent meanwhile lies unread"
        for _ in range(3):
            clock.now += _TICK_S
            listener._tick()
        assert unknown.protocol.closed and not idle.protocol.closed
        for _ in range(3):
            clock.now += _TICK_S
            listener._tick()
        assert idle.protocol.closed

    with_face(run, handshake_timeout_s=5.0, idle_s=11.0)
