"""A client of Node.js that is JavaScript alone (`pulsar-flex`): it works here as with a real Pulsar (`make oracle`).

The official one for Node.js is C++ that its package fetches from elsewhere while it is installed
(docs/protocols/differences.md).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cache import once
from tests.region_node.either import Either
from tests.region_node.live import TOPICS, until
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.system, pytest.mark.either]
VERSION = "1.1.1"
SCRIPT = Path(__file__).parent / "node" / "script.js"


def modules() -> Path:
    """The folder `node_modules` with the client. Skips in one sentence where that cannot be."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("the client for Node.js needs node and npm on this machine; they are absent")

    def fetch(scratch: Path) -> None:
        command = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(scratch),
            f"pulsar-flex@{VERSION}",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the client for Node.js cannot be fetched: {done.stderr[-200:]}")

    return once(f"pulsar-flex-{VERSION}", fetch) / "node_modules"


def test_what_it_publishes_and_gets(region: Either, rest: Rest) -> None:
    environment = {**os.environ, "NODE_PATH": str(modules())}
    tries = 0

    def done() -> subprocess.CompletedProcess[str] | None:
        """It waits a few seconds for an answer, and has no setting for that: on a busy machine the whole script is run
        again, with another topic.
        """
        nonlocal tries
        tries += 1
        command = ["node", str(SCRIPT), region.service_url().removeprefix("pulsar://"), f"flex-{tries}"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0 or "ResponseTimeoutError" in ended.stderr, ended.stderr
        return None if ended.returncode else ended

    script: subprocess.CompletedProcess[str] = until(done, 300)
    seen: dict[str, Any] = json.loads(script.stdout.splitlines()[-1])
    bodies = ["alone", "a", "b", "c", "last"]
    assert [one["text"] for one in seen["first"]] == bodies == seen["second"] and seen["refused"] == "refused"
    stats = until(
        lambda: (
            (found := rest("GET", f"{TOPICS}/node-flex-{tries}/stats")[1])["subscriptions"]["e"]["msgBacklog"] == 0
            and found
        )
    )
    assert stats["msgInCounter"] == 5
