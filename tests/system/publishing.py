"""Publishing that goes on whatever happens, and a look at what was acknowledged."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.region_node.one_topic import TOPIC, read_all

pulsar = pytest.importorskip("pulsar")
MESSAGE_BYTES = 32 << 10


class Load:
    """Publishes without much of a pause until it is stopped; `acked`: how many messages, from the first on, have their
    receipt.
    """

    def __init__(self, url: str, pause_s: float = 0.0005) -> None:
        self._pause_s = pause_s
        self.client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        pace = {"batching_enabled": False, "max_pending_messages": 64, "block_if_queue_full": True}
        self.producer = self.client.create_producer(TOPIC, send_timeout_millis=180_000, **pace)
        self.sent = self.acked = 0
        self.errors: list[Any] = []
        self._on = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._on:
            body = b"%d " % self.sent
            self.sent += 1
            self.producer.send_async(body + bytes(MESSAGE_BYTES - len(body)), self._done)
            time.sleep(self._pause_s)

    def _done(self, result: Any, _message: Any) -> None:
        if result == pulsar.Result.Ok:
            self.acked += 1
        else:
            self.errors.append(result)

    def stop(self) -> int:
        """Returns how many messages were acknowledged: all."""
        self._on = False
        self._thread.join()
        self.producer.flush()
        self.client.close()
        assert not self.errors and self.acked == self.sent
        return self.sent


def check(url: str, count: int) -> None:
    """All are there, in order; a message may be there twice where its first receipt was lost."""
    found = [int(body.split(b" ", 1)[0]) for body in read_all(url)]
    assert list(dict.fromkeys(found)) == list(range(count))
