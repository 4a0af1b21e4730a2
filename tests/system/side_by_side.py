"""Heliograph and a real Apache Pulsar side by side, and one client of each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from benchmarks.servers import Heliograph, Pulsar, Server
from tests.region_node.rest_client import Rest

PATIENCE_MS = 60_000
"""For what must come, from either server, on a machine that does other things too."""


class Side:
    """One system under the script."""

    def __init__(self, server: Server) -> None:
        service, web = next(iter(server.regions.values()))
        self.peer = isinstance(server, Pulsar)
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(
            f"pulsar://127.0.0.1:{service}", logger=quiet, operation_timeout_seconds=PATIENCE_MS // 1000
        )
        self.admin = f"http://127.0.0.1:{web}/admin/v2"

    def rest(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status, and the answer; None of what is refused: the two word that in their own ways."""
        status, answer = Rest(self.admin)(method, path, body)
        return status, None if status >= 400 else answer


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("a real Pulsar needs Maven and a JDK, which are absent here")
    folder: Path = tmp_path_factory.mktemp("peers")
    servers: list[Server] = []
    try:
        servers.append(Heliograph(folder / "ours"))
        servers.append(Pulsar(folder / "theirs"))
        ours, theirs = Side(servers[0]), Side(servers[1])
        try:
            yield ours, theirs
        finally:
            ours.client.close()
            theirs.client.close()
    finally:
        for server in servers:
            server.stop()
