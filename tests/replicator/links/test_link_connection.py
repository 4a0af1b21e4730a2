"""One connection of links: whether its target is heard."""

from __future__ import annotations

from typing import Any, cast

import pytest

from heliograph.client.pulsar_connection import BrokerConnection
from heliograph.model.coordinates import MISSING_MAX, Vector
from heliograph.wire.links import link_commands as wire
from replicator.links.link_connection import LinkConnection
from tests.region_node.topics.fake_storage import FakeClock
from tests.replicator.link_world import parsed


class Client:
    """What a link's connection asks of a broker's."""

    closed = None
    heard = False
    on_private: Any = None
    on_closed: Any = None
    on_writable: Any = None
    writable = True

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def write(self, buffers: Any) -> None:
        self.frames.append(b"".join(bytes(part) for part in buffers))


def test_a_target_is_heard_in_the_middle_of_a_frame() -> None:
    client, clock = Client(), FakeClock()
    connection = LinkConnection(
        ("eu", "a:1"), cast(BrokerConnection, client), clock, lambda _: None, lambda call: call()
    )
    for second in range(1, 9):
        clock.now += 1
        connection.beat()
        assert connection.heard.silent_s == second
    clock.now += 1
    client.heard = True
    connection.beat()
    assert connection.heard.silent_s == 1 and not client.heard, "when it came nobody knows: not before the last one"
    clock.now += 6
    connection.beat()
    assert connection.heard.silent_s == 7


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


class Holey:
    """A stream whose region lacks as many ranges as a vector names."""

    vector = Vector()
    for at in range(MISSING_MAX):
        vector.skip((1, 1, 7), (0, 2 * at), (0, 2 * at + 1))

    def beat(self) -> Any:
        return None, {"us": self.vector}, wire.Risk(1, 1, 1, 1)


@pytest.mark.parametrize("writable", (True, False))
def test_what_streams_tell_goes_in_frames_that_the_other_side_takes(writable: bool) -> None:
    client = Client()
    client.writable = writable
    connection = LinkConnection(
        ("eu", "a:1"), cast(BrokerConnection, client), FakeClock(), lambda _: None, lambda call: call()
    )
    numbers = [connection.open(cast(Any, Holey()), f"persistent://a/b/{at}", "us", 1) for at in range(70)]
    client.frames.clear()
    for number in numbers:
        connection.touch(number)
    told: list[int] = []
    for _ in range(1 if writable else 3):
        connection.touch(1)  # what was told already, and has something new, takes no other's turn
        connection.beat()
    for frame in client.frames:
        assert len(frame) < wire.HEARTBEAT_BYTES + (64 << 10)
        kind, fields, _ = parsed(frame)
        assert kind is wire.LinkFrameKind.HEARTBEAT
        told += [stream[0] for stream in fields[3:]]
    assert set(told) == set(numbers) and len(client.frames) == 3
    assert sum(parsed(frame)[1][0] > 0 for frame in client.frames) == (1 if writable else 3), "by one a way is measured"
