"""Scripts by the official Java client (`java/ClientCases.java`): it sees the same from Heliograph and from a real
Pulsar.
"""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import Heliograph, Pulsar, Server
from tests.system.jvm import program

pytestmark = [pytest.mark.system, pytest.mark.timeout(1000)]
AS_HERE = "\nacknowledgmentAtBatchIndexLevelEnabled=true\n"


def seen(server: Server) -> dict[str, Any]:
    service, web = next(iter(server.regions.values()))
    command = [*program("ClientCases"), f"pulsar://127.0.0.1:{service}", f"http://127.0.0.1:{web}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=800)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_java_client_sees_the_same(tmp_path: Path) -> None:
    program("ClientCases")
    servers: list[Server] = []
    try:
        servers.append(Heliograph(tmp_path / "ours"))
        servers.append(Pulsar(tmp_path / "theirs", settings=AS_HERE))
        with ThreadPoolExecutor(2) as pool:
            ours, theirs = pool.map(seen, servers)
    finally:
        for server in servers:
            server.stop()
    assert len(theirs) >= 18
    assert [name for name, value in theirs.items() if str(value).startswith("error")] == []
    assert {name: ours[name] for name in theirs} == theirs
