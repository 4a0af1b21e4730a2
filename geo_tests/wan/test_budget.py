"""A WAN budget between real processes: no more than so many bytes a second go, and a live topic passes a backlog."""

from __future__ import annotations

import json
import random
import time
from base64 import b85encode
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.instance import Instance, eventually, rest

pytestmark = pytest.mark.long

_BYTES_PER_S = 50_000
"""So little that the backlog of 12 MB outlives the test by far, however slow the machine is."""
_ENTRIES, _ENTRY_BYTES = 400, 30_000


def test_a_budget_is_kept_and_what_is_live_passes_a_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_BROKER__LINK_BUDGET", json.dumps({"eu": _BYTES_PER_S}))
    instance = Instance(tmp_path / "data", regions=("us", "eu"), wan="none")
    try:
        instance.namespace("public/budget", ["us", "eu"], deduplication=False)
        backlog, live = "persistent://public/budget/backlog", "persistent://public/budget/live"
        client = instance.client("us")
        consumer = instance.client("eu").subscribe(live, "s")
        one = client.create_producer(live, batching_enabled=False)
        many = client.create_producer(backlog, batching_enabled=False, block_if_queue_full=True)
        one.send(b"first")
        assert consumer.receive(timeout_millis=60_000).data() == b"first"
        rng = random.Random(5)
        bodies = [
            b85encode(rng.randbytes(_ENTRY_BYTES * 4 // 5)).decode() for _ in range(_ENTRIES)
        ]  # a link can hardly compress it
        for body in bodies:
            many.send_async(body.encode(), lambda *_: None)
        many.flush()

        def link(topic: str) -> dict[str, Any]:
            found = rest(
                "GET", f"{instance.admin('us')}/heliograph/v1/topics/{topic.removeprefix('persistent://')}/links"
            )
            return dict(found["links"][0])

        def sent() -> int:
            return int(link(backlog)["wire_bytes"]) + int(link(live)["wire_bytes"])

        began, before = time.monotonic(), sent()
        for n in range(20):
            one.send(b"live %d" % n)
            assert consumer.receive(timeout_millis=60_000).data() == b"live %d" % n
        eventually(lambda: len(instance.read_all("eu", backlog)) >= 5, "the backlog moves on, too")
        after = sent()
        assert after - before <= _BYTES_PER_S * (time.monotonic() - began) + 2 * _ENTRY_BYTES
        found = link(backlog)
        assert found["backlog_messages"], "what is live did not wait for it"
        assert found["slowed"] and found["state"] == "open" and found["restarts"] == 0
        there = instance.read_all("eu", backlog)
        assert there == bodies[: len(there)]
    finally:
        instance.down()
