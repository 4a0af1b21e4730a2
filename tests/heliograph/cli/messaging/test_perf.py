"""`heliograph perf` counts what is stored, not what was sent, and what came, not what was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from heliograph.cli.messaging.perf import consume_all, produce_all
from heliograph.cli.show import Output

OK, TOO_LARGE = "Ok", "MessageTooBig"


class Refused(Exception):
    """Of the client."""


class Producer:
    """Answers every n-th message with an error, and when it is flushed one of them never."""

    def __init__(self, refuses: int, silent: int = 0) -> None:
        self.refuses, self.silent, self.sent = refuses, silent, 0

    def send_async(self, data: bytes, answered: Callable[[str, object], None]) -> None:
        self.sent += 1
        if self.sent > self.silent:
            answered(TOO_LARGE if self.refuses and self.sent % self.refuses == 0 else OK, None)

    def flush(self) -> None:
        if self.refuses:
            raise Refused


@pytest.fixture
def produce(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, Any], int]]:
    def run(producer: Producer) -> tuple[dict[str, Any], int]:
        pulsar = SimpleNamespace(Result=SimpleNamespace(Ok=OK), PulsarException=Refused)
        code = 0
        try:
            produce_all(producer, pulsar, 100, 100, Output(True), quiet_s=0.05)
        except typer.Exit as ended:
            code = ended.exit_code
        return json.loads(capsys.readouterr().out), code

    return run


def test_what_is_refused_is_not_produced(produce: Callable[..., tuple[dict[str, Any], int]]) -> None:
    found, code = produce(Producer(0))
    assert (found["messages"], found["failed"], code) == (100, 0, 0)
    found, code = produce(Producer(4))
    assert (found["messages"], found["failed"], code) == (75, 25, 1)
    assert found["mb_per_s"] <= round(found["messages_per_s"] * 100 / 1e6, 2) + 0.01


def test_what_is_never_answered_is_not_produced_either(produce: Callable[..., tuple[dict[str, Any], int]]) -> None:
    found, code = produce(Producer(0, silent=1))
    assert (found["messages"], found["failed"], code) == (99, 1, 1)


class Quiet(Exception):
    """Of the client: nothing has come."""


class Consumer:
    """Has so many messages of 10 bytes. `acknowledged`: through which number each time."""

    def __init__(self, count: int) -> None:
        self.left, self.taken = count, 0
        self.acknowledged: list[int] = []

    def receive(self, timeout_millis: int) -> Any:
        if not self.left:
            raise Quiet
        self.left, self.taken = self.left - 1, self.taken + 1
        number = self.taken
        return SimpleNamespace(data=lambda: b"x" * 10, number=number)

    def acknowledge_cumulative(self, message: Any) -> None:
        self.acknowledged.append(message.number)


@pytest.mark.parametrize(
    ("there", "wanted", "taken", "acknowledged"),
    (
        (2500, 2500, 2500, [1000, 2000, 2500]),
        (2500, 2200, 2200, [1000, 2000, 2200]),
        (2200, 2500, 2200, [1000, 2000]),
        (2500, 1000, 1000, [1000]),
        (0, 10, 0, []),
    ),
)
def test_what_came_is_counted_and_acknowledged_now_and_then(
    there: int, wanted: int, taken: int, acknowledged: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """What waits is left to the subscription where fewer were asked for."""
    consumer = Consumer(there)
    consume_all(consumer, SimpleNamespace(Timeout=Quiet), wanted, Output(True))
    found = json.loads(capsys.readouterr().out)
    assert found["messages"] == taken == consumer.taken and consumer.acknowledged == acknowledged
    assert found["mb_per_s"] == pytest.approx(found["messages_per_s"] * 10 / 1e6, abs=0.01)


def test_nothing_that_came_is_of_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    for there, said in ((0, "consumed 0 messages of 0 B"), (3, "consumed 3 messages of 10 B")):
        consume_all(Consumer(there), SimpleNamespace(Timeout=Quiet), 5, Output())
        assert said in capsys.readouterr().out
