"""Where the program begins: what has to be answered soon imports its own area alone, and asks once."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest
import typer

from heliograph.cli import rest
from heliograph.cli.entry import ALONE
from heliograph.cli.main import AREAS

pytestmark = pytest.mark.slow

NAMESPACE = "public/orders"
STATUS = {"mode": "active-passive", "active": "us", "epoch": 7, "state": "open", "operation": None, "asks": ""}
PLAN = {"kind": "failover", "namespace": NAMESPACE, "source": "us", "target": "eu"}
SIDE = {"region": "eu", "unreachable": "nothing came"}
COST = {"source": SIDE, "target": SIDE, "at_risk": None, "active": "us", "epoch": 7, "steps": {}}
SCRIPT = """
import json, sys
from heliograph.cli.entry import main
for words in json.loads(sys.argv.pop()):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
print(json.dumps(sorted(sys.modules)))
"""


@contextmanager
def broker() -> Iterator[tuple[str, list[str]]]:
    """An admin address, and what it was asked."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def _answer(self, found: Any) -> None:
            asked.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            text = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self._answer({**STATUS, "targets": {}} if NAMESPACE in self.path else {"namespaces": [], "events": []})

        def do_POST(self) -> None:
            self._answer({**PLAN, "cost": COST})

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_is_asked_in_a_disaster_imports_no_other_area_and_asks_once() -> None:
    with broker() as (admin, asked):
        commands = [["dr", "status"], ["dr", "status", NAMESPACE]]
        commands.append(["dr", "failover", NAMESPACE, "--to", "eu", "--dry-run"])
        given = json.dumps([[*words, "--admin", admin] for words in commands])
        done = subprocess.run([sys.executable, "-c", SCRIPT, given], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    base = "/heliograph/v1/dr"
    assert asked == [f"GET {base}", f"GET {base}/{NAMESPACE}", f"POST {base}/{NAMESPACE}/operations"]
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    others = {area.__name__ for area in AREAS} - {*ALONE.values()}
    assert not imported & {*others, "heliograph.cli.main", "heliograph.spark", "region_node", "asyncio"}


def test_authorities_are_read_for_an_address_that_wants_some(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str | None] = []
    made = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda cafile: read.append(cafile) or made())
    monkeypatch.setenv("HELIOGRAPH_CA", "ca.pem")
    rest._opener("http://127.0.0.1:1/x")
    assert read == []
    rest._opener("https://127.0.0.1:1/x")
    assert read == ["ca.pem"]


def test_a_group_that_is_imported_alone_is_whole() -> None:
    every = typer.Typer()
    for area in AREAS:
        area.register(every)
    for point in entry_points(group="heliograph.commands"):
        point.load()(every)
    for name, module in ALONE.items():
        alone = typer.Typer()
        import_module(module).register(alone)
        assert commands_of(alone, name) == commands_of(every, name) != []


def commands_of(app: typer.Typer, group: str) -> list[str | None]:
    (found,) = (one.typer_instance for one in app.registered_groups if one.name == group)
    assert found is not None
    return [one.name for one in found.registered_commands]
