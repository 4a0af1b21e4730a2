"""The simulated world's clients come back after anything a server may do, and one that dies fails its world at once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from geo_tests.sim.loop import SimFailure
from geo_tests.sim.pulsar_client import Client, Connection, Consumer
from geo_tests.sim.world import WorldSettings, run_seed
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand

SMALL = WorldSettings(regions=("us", "eu"), brokers=1, topics=1, messages=4, chaos_s=1.0, faults=0)


class Answering(Connection):
    """Answers everything with success. closes: and closes the consumer before whoever asked hears of the answer."""

    def __init__(self, *, closes: bool) -> None:
        super().__init__()
        self.closes, self.sent = closes, list[int]()

    async def ask(self, command: BaseCommand, part: Any) -> BaseCommand:
        if self.closes:
            self._command(BaseCommand(type=BaseCommand.CLOSE_CONSUMER), b"")
        return BaseCommand(type=BaseCommand.SUCCESS)

    def send(self, command: BaseCommand, payload: bytes = b"") -> None:
        self.sent.append(command.type)

    def close(self) -> None:
        self.lost = True


class ClosedOnce(Client):
    """The first connection closes its consumer at once."""

    def __init__(self) -> None:
        super().__init__((), random.Random(1))
        self.opened: list[Answering] = []

    async def open(self, topic: str) -> Connection:
        self.opened.append(Answering(closes=not self.opened))
        return self.opened[-1]

    async def pause(self) -> None:
        await asyncio.sleep(0)


def test_a_consumer_that_is_closed_right_behind_the_answer_comes_back() -> None:
    async def run() -> list[Answering]:
        client = ClosedOnce()
        consumer = Consumer(client, "topic", "sub", lambda _: None)
        running = asyncio.ensure_future(consumer.run())
        while not running.done() and not (client.opened and client.opened[-1].sent):  # noqa: ASYNC110
            await asyncio.sleep(0)
        consumer.close()
        await running
        return client.opened

    first, second = asyncio.run(run())
    assert first.lost and not first.sent
    assert second.sent == [BaseCommand.FLOW]


def test_a_client_that_dies_fails_the_world_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(_: Consumer) -> None:
        raise AssertionError("what no server may do")

    monkeypatch.setattr(Consumer, "_acknowledge", dies)
    with pytest.raises(SimFailure, match="what no server may do"):
        run_seed(0, SMALL)
