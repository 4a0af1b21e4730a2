"""Real processes that may open no more files: bookies whose write cache has to go to an entry log, and a broker to
which more connections come than it may have. What was confirmed stays, and all goes on once there are some again.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pulsar
import pytest

from tests.region_node.live import provisioned, until
from tests.region_node.region_processes import Process
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.wan, pytest.mark.slow]

TOPIC = "persistent://public/default/descriptors"
LARGE = bytes(4 << 20)
PATIENCE_S = 180.0
MANY = 12
"""So many of them are more than one generation of a bookie's write cache (32 MiB)."""


@contextmanager
def limited(*processes: Process) -> Iterator[None]:
    """The processes may open nothing more: the soft limit is the lowest number that is free."""
    before = {}
    try:
        for process in processes:
            pid = process.popen.pid
            used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
            free = next(number for number in range(len(used) + 1) if number not in used)
            before[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[pid][1]))
        yield
    finally:
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def bodies(service: str) -> list[bytes]:
    with closing(pulsar.Client(service)) as client:
        reader, found = client.create_reader(TOPIC, pulsar.MessageId.earliest), []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=60_000).data()[:16].strip(b"\0"))
    return found


def test_what_was_confirmed_stays_and_all_goes_on(tmp_path: Path) -> None:
    with provisioned(tmp_path) as region, closing(pulsar.Client(region.service_url())) as client:
        bookies = [region.processes[f"us-bookie-{number}"] for number in range(2)]
        broker = region.processes["us-broker-0"]
        rest = Rest(region.admin_url())
        producer = client.create_producer(TOPIC, send_timeout_millis=0, batching_enabled=False)
        wanted, confirmed = [b"first"], list[bytes]()
        producer.send(b"first")

        def send(body: bytes, filled: bytes = b"") -> None:
            def answered(result: pulsar.Result, _: object) -> None:
                if result == pulsar.Result.Ok:
                    confirmed.append(body)

            wanted.append(body)
            producer.send_async(body + filled[len(body) :], answered)

        with limited(*bookies):
            for number in range(MANY):
                send(b"%d" % number, LARGE)
            until(lambda: not any(row["writable"] for row in rest("GET", "/heliograph/v1/bookies")[1]), PATIENCE_S)
            assert all(process.popen.poll() is None for process in bookies)
        until(lambda: len(confirmed) == MANY, PATIENCE_S)
        crowd = []
        with limited(broker):
            for _ in range(30):
                with suppress(OSError):
                    crowd.append(socket.create_connection(("127.0.0.1", broker.ports["pulsar"]), 5))
            send(b"in the crowd")
            until(lambda: b"in the crowd" in confirmed)
        for one in crowd:
            one.close()
        send(b"behind it")
        until(lambda: len(confirmed) == len(wanted) - 1)
        assert until(lambda: bodies(region.service_url())) == wanted
        for process in bookies:
            assert process.terminate() == 0, "it closes as it should"
