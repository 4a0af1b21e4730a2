"""The console's pages, run in node as they are served, upon answers that a test gives (`pages.mjs`)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from region_node.faces.admin.server import console_server
from region_node.faces.admin.server.admin_server import ROUTES

PAGES = Path(__file__).with_name("pages.mjs")


def shown(folder: Path, *pages: dict[str, Any]) -> list[dict[str, Any]]:
    """What the pages show: by a table's name its rows, and all text. Skips in one sentence where node is absent."""
    if (node := shutil.which("node")) is None:
        pytest.skip("the console's pages are run by node, which is absent")
    for path in console_server.FILES.glob("*.js"):
        shutil.copy(path, folder)
    (folder / "paths.js").write_text(console_server.paths(ROUTES))
    (folder / "package.json").write_text('{"type": "module"}')
    done = subprocess.run([node, PAGES, folder], input=json.dumps(pages), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def calls(**names: str) -> dict[str, str]:
    """The name of a call in the pages -> method and path, with those names in it."""
    named = json.loads(console_server.paths(ROUTES).removeprefix("export const PATHS = ").removesuffix(";\n"))
    return {name: re.sub(r"\{(\w+)\}", lambda at: names.get(at[1], at[0]), path) for name, path in named.items()}
