"""The documentation's spark-submit lines, as far as they go without a cluster: Spark's own client takes them, and asks
for the right driver.

Is: spark-submit itself, against an API server of Kubernetes that says yes to whatever is made. Isn't: a pod that runs
(`test_spark_setup` and `test_spark_yarn` have real drivers and executors).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.system.spark_setup import SPARK_SUBMIT, recipes

pytestmark = pytest.mark.system
DOCS = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def submit(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {
        key: value for key, value in os.environ.items() if key not in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "KUBECONFIG")
    } | {"HOME": str(folder)}
    return subprocess.run([str(SPARK_SUBMIT), *words], capture_output=True, text=True, timeout=400, cwd=folder, env=env)


class Api(ThreadingHTTPServer):
    """What is made, by kind."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Says)
        self.made: dict[str, dict[str, Any]] = {}


class Says(BaseHTTPRequestHandler):
    """Yes to whatever is made; nothing is there before."""

    server: Api

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._answer(
            404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        )

    def _make(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body["metadata"]["uid"] = f"uid-{len(self.server.made)}"
        self.server.made[body["kind"]] = body
        self._answer(201, body)

    do_POST = do_PATCH = do_PUT = _make

    def log_message(self, *_: Any) -> None:
        """Not to the test's output."""


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_spark_submit_knows_every_option_of_the_recipes(tmp_path: Path) -> None:
    known = submit(["--help"], tmp_path)
    text = known.stdout + known.stderr
    found = recipes()
    assert {master.partition(":")[0] for master in found} == {"spark", "yarn", "k8s"}
    for words in found.values():
        assert all(re.search(rf"(?m)^\s+{word}\b", text) for word in words if word.startswith("--")), words
    yarn = submit(next(words for master, words in found.items() if master == "yarn"), tmp_path)
    assert yarn.returncode == 1 and "HADOOP_CONF_DIR or YARN_CONF_DIR must be set" in yarn.stderr, (
        "all else was understood"
    )


def test_kubernetes_is_asked_for_the_driver_of_the_recipe(api: Api, tmp_path: Path) -> None:
    words = next(words for master, words in recipes().items() if master.startswith("k8s://"))
    words = [f"k8s://http://127.0.0.1:{api.server_port}" if word.startswith("k8s://") else word for word in words]
    done = submit(["--conf", "spark.kubernetes.submission.waitAppCompletion=false", *words], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (driver,) = api.made["Pod"]["spec"]["containers"]
    assert driver["image"] == "REGISTRY/spark-py" and "driver" in driver["args"]
    assert driver["args"][driver["args"].index("--class") + 1] == "org.apache.spark.deploy.PythonRunner"
    assert "local:///opt/app.py" in driver["args"] or "/opt/app.py" in driver["args"]
    path = next((each["value"] for each in driver["env"] if each["name"] == "PYTHONPATH"), "")
    assert path == "/opt/heliograph.zip", "a stream's process beside the driver finds our wheel"
    told = api.made["ConfigMap"]["data"]["spark.properties"].replace("\\:", ":")
    assert re.search(r"(?m)^spark\.submit\.pyFiles=.*/opt/heliograph\.zip$", told), told
    assert "spark.pyspark.python=/opt/py/bin/python" in told
