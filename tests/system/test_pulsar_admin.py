"""The official pulsar-admin and pulsarctl, line by line (`admin_lines.txt`, `pulsarctl_lines.txt`): against Heliograph
and a real Pulsar they do and print the same.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import Heliograph, Pulsar, Server
from tests.region_node.rest_client import Rest
from tests.system.jvm import AdminShell, jars
from tests.system.programs import pulsarctl

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
Outcome = dict[str, Any]
"""`ok`, `out`, and `err`: what was printed."""
SCHEMA = {
    "type": "AVRO",
    "schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}),
    "properties": {},
}


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


def read_lines(name: str) -> list[str]:
    return [
        line for line in (Path(__file__).parent / name).read_text().splitlines() if line and not line.startswith("#")
    ]


def walk(server: Server, lines: list[str], schema: Path, run: Callable[[list[str]], Outcome]) -> list[Outcome | None]:
    """What each line did; None for those that are Heliograph's only."""
    name = next(iter(server.regions))
    out: list[Outcome | None] = []
    for line in lines:
        words = shlex.split(line.lstrip("!-?").replace("{cluster}", name).replace("{schema}", str(schema)))
        out.append(None if line.startswith("-") and server.kind == "pulsar" else run(words))
    return out


def differs(line: str, ours: Outcome | None, theirs: Outcome | None) -> bool:
    assert ours is not None
    if theirs is None:  # only ours: refused, with a sentence
        return bool(ours["ok"]) or len(ours["err"].split()) < 5
    if line.startswith("?"):
        return not ours["ok"] or bool(theirs["ok"])
    if line.startswith("!"):
        return bool(ours["ok"] != theirs["ok"])
    return (ours["ok"], ours["out"].strip()) != (theirs["ok"], theirs["out"].strip())


def compare(
    both: tuple[Server, Server],
    file: str,
    folder: Path,
    walked: Callable[[Server, list[str], Path], list[Outcome | None]],
) -> None:
    """walked: what each line of the file did at that server, with that file of a schema."""
    schema, lines = folder / "schema.json", read_lines(file)
    schema.write_text(json.dumps(SCHEMA))
    with ThreadPoolExecutor(2) as pool:
        ours, theirs = pool.map(lambda server: walked(server, lines, schema), both)
    assert [(line, a, b) for line, a, b in zip(lines, ours, theirs, strict=True) if differs(line, a, b)] == []
    done = sum(1 for a in ours if a is not None and a["ok"])
    assert done > 0.7 * len(lines)  # most lines are to succeed: a server that refuses everything would be alike, too


def web_port(server: Server) -> int:
    return next(iter(server.regions.values()))[1]


def test_every_line_of_pulsar_admin_does_and_prints_the_same(both: tuple[Server, Server], tmp_path: Path) -> None:
    def walked(server: Server, lines: list[str], schema: Path) -> list[Outcome | None]:
        with AdminShell(web_port(server)) as admin:
            return walk(server, lines, schema, admin)

    compare(both, "admin_lines.txt", tmp_path, walked)


@pytest.mark.timeout(2400)  # the first time, it is built
def test_every_line_of_pulsarctl_does_and_prints_the_same(both: tuple[Server, Server], tmp_path: Path) -> None:
    program = str(pulsarctl())

    def walked(server: Server, lines: list[str], schema: Path) -> list[Outcome | None]:
        url = f"http://127.0.0.1:{web_port(server)}"
        rest = Rest(url)

        def run(words: list[str]) -> Outcome:
            if words[0].startswith("+"):
                return {"ok": rest(words[0][1:], f"/admin/v2/{words[1]}")[0] == 204, "out": "", "err": ""}
            command = [program, "-C", "false", "-s", url, *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"HOME": str(tmp_path)})
            said = " ".join(re.findall(r"code: \d+", done.stdout + done.stderr)[:1]) if done.returncode else done.stdout
            return {"ok": done.returncode == 0, "out": said, "err": done.stderr}

        return walk(server, lines, schema, run)

    compare(both, "pulsarctl_lines.txt", tmp_path, walked)
