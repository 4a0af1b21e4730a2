"""Whom a receiver listens to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import NotFound
from heliograph.wire import link as wire
from heliograph.wire.run import Buffer
from replicator.causes import Cause
from replicator.log import ReplicatedLog
from replicator.receiver import LinkReceiver


@pytest.mark.parametrize(
    ("peer", "source", "number", "cause"),
    [
        ("eu", "eu", 2, Cause.NOT_FOUND),  # heard: the topic is asked for
        ("", "eu", 2, Cause.NOT_FOUND),
        ("eu", "ap", 3, Cause.UNAUTHORIZED),
        ("eu", "eu", 3, Cause.REFUSED),
        ("", "xx", 9, Cause.REFUSED),
    ],
)
def test_a_sender_is_heard_as_the_region_that_it_has_proven_to_be(peer: str, source: str, number: int, cause: Cause) -> None:
    written: list[Buffer] = []
    asked: list[tuple[str, str]] = []

    async def open_log(topic: str, region: str) -> ReplicatedLog:
        asked.append((topic, region))
        raise NotFound("no such topic")

    def write(buffers: Sequence[Buffer]) -> None:
        written.extend(buffers)

    async def body() -> None:
        receiver = LinkReceiver(write, open_log, sim.clock(), region="us", region_number={"us": 1, "eu": 2, "ap": 3}.get, peer=peer)
        frame = b"".join(bytes(b) for b in wire.open_frame(1, "persistent://a/b/c", source, number))
        size = int.from_bytes(frame[4:8], "big")
        receiver.on_frame(*wire.command_content(memoryview(frame)[8 : 8 + size]), memoryview(b""))
        await asyncio.sleep(0.01)

    sim = Simulation(0)
    sim.run(body())
    frame = b"".join(bytes(b) for b in written)
    size = int.from_bytes(frame[4:8], "big")
    kind, fields = wire.parse(*wire.command_content(memoryview(frame)[8 : 8 + size]))
    assert kind is wire.Kind.CLOSE
    _, code, _ = wire.read_close(fields)
    assert code == cause
    assert bool(asked) == (cause is Cause.NOT_FOUND)
