"""`heliograph perf produce` counts what is stored, not what was sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from heliograph.cli.messaging.perf import produce_all

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
            produce_all(producer, pulsar, 100, 100, json_output=True, quiet_s=0.05)
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
