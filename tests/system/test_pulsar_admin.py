"""The official pulsar-admin, line by line (`admin_lines.txt`): against Heliograph and a real Pulsar it does and prints the same."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import Heliograph, Pulsar, Server
from tests.system.jvm import AdminShell, jars

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
LINES = [line for line in (Path(__file__).parent / "admin_lines.txt").read_text().splitlines() if line and not line.startswith("#")]
SCHEMA = {"type": "AVRO", "schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}), "properties": {}}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    jars()
    folder: Path = tmp_path_factory.mktemp("admin")
    servers: list[Server] = []
    try:
        servers.append(Heliograph(folder / "ours"))
        servers.append(Pulsar(folder / "theirs"))
        yield servers[0], servers[1]
    finally:
        for server in servers:
            server.stop()


def walk(server: Server, schema: Path) -> list[dict[str, Any] | None]:
    """What each line did; None for those that are Heliograph's only."""
    (name, (_, web)) = next(iter(server.regions.items()))
    with AdminShell(web) as admin:
        out: list[dict[str, Any] | None] = []
        for line in LINES:
            words = shlex.split(line.lstrip("!-?").replace("{cluster}", name).replace("{schema}", str(schema)))
            out.append(None if line.startswith("-") and server.kind == "pulsar" else admin(words))
    return out


def differs(line: str, ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> bool:
    assert ours is not None
    if theirs is None:  # only ours: refused, with a sentence
        return bool(ours["ok"]) or len(ours["err"].split()) < 5
    if line.startswith("?"):
        return not ours["ok"] or bool(theirs["ok"])
    if line.startswith("!"):
        return bool(ours["ok"] != theirs["ok"])
    return (ours["ok"], ours["out"].strip()) != (theirs["ok"], theirs["out"].strip())


def test_every_line_does_and_prints_the_same(both: tuple[Server, Server], tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    with ThreadPoolExecutor(2) as pool:
        ours, theirs = pool.map(lambda server: walk(server, schema), both)
    assert [(line, a, b) for line, a, b in zip(LINES, ours, theirs, strict=True) if differs(line, a, b)] == []
    done = sum(1 for a in ours if a is not None and a["ok"])
    assert done > 0.7 * len(LINES)  # most lines are to succeed: a server that refuses everything would be alike, too
