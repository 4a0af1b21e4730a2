"""A real Prometheus for a test, over the rules of `deploy/prometheus`, with every pause cut to a second.

Is: the server, and what is asked of it. Isn't: the rules' own tests (`promtool`), or what is scraped.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.servers import free_port
from geo_tests.wan.instance import eventually
from tests.system import programs

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


class Prometheus:
    """A server over a folder of its own. prefix: of every command line, where it is elsewhere than the test (`ip netns exec NAME`)."""

    def __init__(self, folder: Path, config: str, others: dict[str, str], *, prefix: Sequence[str] = ()) -> None:
        folder.mkdir()
        for rules in ("recording.yaml", "alerts.yaml"):
            text = re.sub(r"for: \d+[mh]", "for: 1s", (RULES / rules).read_text())
            (folder / rules).write_text(text)
        for name, text in others.items():
            (folder / name).write_text(text)
        (folder / "prometheus.yaml").write_text(re.sub(r"(scrape|evaluation)_interval: \d+s", r"\1_interval: 1s", config))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._prefix = list(prefix)
        command = [*prefix, str(programs.prometheus()), f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)
        eventually(self._ready, "Prometheus is ready")

    def _ready(self) -> bool:
        return b"is Ready" in self._fetch("/-/ready")

    def _fetch(self, path: str) -> bytes:
        """Empty where it does not answer."""
        words = [*self._prefix, "curl", "-s", "--max-time", "10", f"{self.url}{path}"]
        return subprocess.run(words, capture_output=True).stdout

    def get(self, path: str) -> Any:
        return json.loads(self._fetch(f"/api/v1/{path}"))["data"]

    def ask(self, query: str) -> list[Any]:
        found: list[Any] = self.get(f"query?{urllib.parse.urlencode({'query': query})}")["result"]
        return found

    def targets(self) -> dict[str, str]:
        return {row["scrapeUrl"]: row["health"] for row in self.get("targets?state=active")["activeTargets"]}

    def firing(self) -> set[tuple[str, str, str]]:
        rows = [row for row in self.get("alerts")["alerts"] if row["state"] == "firing"]
        return {(row["labels"]["alertname"], row["labels"].get("cluster", ""), row["labels"].get("remote_cluster", "")) for row in rows}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
