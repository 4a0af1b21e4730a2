"""Copies of a message that are damaged in one region, and the audit that finds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from geo_tests.wan.instance import Instance, eventually, heliograph


def audit(instance: Instance, region: str, topic: str, *options: str) -> dict[str, Any]:
    done = heliograph("audit", topic, "--now", "--json", "--admin", instance.admin(region), *options, check=False)
    assert done.returncode in (0, 1), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)["report"]
    assert answer["left"] == 0 if done.returncode == 0 else answer["left"] or answer["error"]
    return answer


def logs_with(instance: Instance, region: str, body: bytes) -> list[Path]:
    """Entry logs of the region's bookies in which a message lies."""
    return [
        path
        for path in sorted((instance.data).rglob(f"*{region}*/**/log-*"))
        if path.is_file() and body in path.read_bytes()
    ]


def restart_bookies(instance: Instance, region: str) -> None:
    """What is only in their journals is in their entry logs afterwards."""
    for row in instance.status()["regions"][region]["processes"]:
        if "bookie" in row["name"]:
            heliograph("process", "kill", row["name"], "--data", str(instance.data))
            heliograph("process", "start", row["name"], "--data", str(instance.data))


def damage(instance: Instance, region: str, body: bytes) -> None:
    """Every copy of that message in the region."""
    paths = eventually(
        lambda: len(found := logs_with(instance, region, body)) >= 2 and found,
        "flushed by every bookie that has a copy",
    )
    for path in paths:
        data = bytearray(path.read_bytes())
        at = data.index(body)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 0x40]))
