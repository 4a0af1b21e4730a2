"""A real Prometheus for a test, over the rules of `deploy/prometheus`, with every pause cut to a second.

Is: the server, and what is asked of it. Isn't: the rules' own tests (`promtool`), or what is scraped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.servers import free_port
from geo_tests.wan.instance import eventually
from tests.system import programs

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
PATIENCE_S = 240.0
"""For what is scraped, recorded, federated, and judged, one after the other, on a machine that has other things to
do.
"""
_ASK = (
    "import sys, urllib.request as u; sys.stdout.buffer.write(u.build_opener(u.ProxyHandler({})).open(sys.argv[1], "
    "timeout=30).read())"
)


class Prometheus:
    """A server over a folder of its own. prefix: of every command line, where it is elsewhere than the test (`ip netns
    exec NAME`).
    """

    def __init__(self, folder: Path, config: str, others: dict[str, str], *, prefix: Sequence[str] = ()) -> None:
        folder.mkdir()
        for rules in ("recording.yaml", "alerts.yaml"):
            text = re.sub(r"for: \d+[mh]", "for: 1s", (RULES / rules).read_text())
            (folder / rules).write_text(text)
        for name, text in others.items():
            (folder / name).write_text(text)
        every = {"scrape": "2s", "evaluation": "1s"}  # a scrape may take as long as the time between two of them
        text = re.sub(
            r"(scrape|evaluation)_interval: \d+s", lambda found: f"{found[1]}_interval: {every[found[1]]}", config
        )
        (folder / "prometheus.yaml").write_text(text)
        self._folder, self._prefix = folder, list(prefix)
        self._begin()
        try:
            eventually(self._ready, "Prometheus is ready", PATIENCE_S)
        except BaseException:  # nobody else knows of it yet
            self.stop()
            raise

    def _begin(self) -> None:
        self.port = free_port()
        command = [*self._prefix, str(programs.prometheus()), f"--config.file={self._folder / 'prometheus.yaml'}"]
        command += [f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            said = (self._folder / "log").read_text()
            assert "address already in use" in said.splitlines()[-1], said[-3000:]
            self._begin()  # somebody was quicker
        return b"is Ready" in self._fetch("/-/ready")

    def _fetch(self, path: str) -> bytes:
        """Empty where it does not answer."""
        words = [*self._prefix, sys.executable, "-SE", "-c", _ASK, f"http://127.0.0.1:{self.port}{path}"]
        return subprocess.run(words, capture_output=True).stdout

    def get(self, path: str) -> Any:
        return json.loads(eventually(lambda: self._fetch(f"/api/v1/{path}"), "Prometheus answers", PATIENCE_S))["data"]

    def ask(self, query: str) -> list[Any]:
        found: list[Any] = self.get(f"query?{urllib.parse.urlencode({'query': query})}")["result"]
        return found

    def targets(self) -> dict[str, str]:
        return {row["scrapeUrl"]: row["health"] for row in self.get("targets?state=active")["activeTargets"]}

    def firing(self) -> set[tuple[str, str, str]]:
        rows = [row for row in self.get("alerts")["alerts"] if row["state"] == "firing"]
        return {
            (row["labels"]["alertname"], row["labels"].get("cluster", ""), row["labels"].get("remote_cluster", ""))
            for row in rows
        }

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:  # nothing may stay
            self._process.kill()
            raise
