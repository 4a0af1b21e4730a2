"""The tick of the listener for Kafka: who is closed because he is silent, and that nobody is blamed for what the broker
did not read.
"""

from __future__ import annotations

from region_node.faces.kafka.connection.kafka_listener import _TICK_S
from tests.region_node.faces.kafka.harness import Client, Face, request, with_face
from tests.region_node.faces.pulsar.harness import settle


def test_who_is_silent_or_does_not_sign_in_is_closed_unless_the_broker_itself_stood_still() -> None:
    async def run(face: Face) -> None:
        listener, clock = face.listener, face.clock
        idle, unknown = Client(listener), Client(listener)
        unknown.protocol.session.login.principal = None
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


def test_no_request_is_begun_while_answers_are_not_taken() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        one = request("metadata", 1, {"topics": None})
        client.raw(one)
        await settle(200)
        client.protocol.pause_writing()
        client.raw(one * 50)
        await settle(1000)
        assert len(client.answers()) == 1 and not client.transport.reading
        client.protocol.resume_writing()
        await settle(2000)
        assert len(client.answers()) == 50 and client.transport.reading

    with_face(run)


def test_one_address_has_so_many_connections() -> None:
    async def run(face: Face) -> None:
        first, second, third = (Client(face.listener, "10.0.0.1") for _ in range(3))
        other = Client(face.listener, "10.0.0.2")
        assert [one.protocol.closed for one in (first, second, third, other)] == [False, False, True, False]
        first.protocol.close()
        await settle()
        assert not Client(face.listener, "10.0.0.1").protocol.closed
        assert Client(face.listener, "10.0.0.1").protocol.closed

    with_face(run, connections_per_address=2)
