"""Sessions of clients, of both protocols: nobody sets anything on one but its own methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NAMES = {"session", "_session"}


def set_from_outside(source: str) -> Iterator[int]:
    """The lines that set an attribute of what is called a session."""
    for node in ast.walk(ast.parse(source)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in (inner for each in targets if each is not None for inner in ast.walk(each)):
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                owner = target.value
                if getattr(owner, "id", None) in NAMES or getattr(owner, "attr", None) in NAMES:
                    yield target.lineno


def test_nothing_is_set_on_a_session_from_outside() -> None:
    faces = [path for face in ("kafka", "pulsar") for path in (ROOT / "region_node/faces" / face).rglob("*.py")]
    faces = [path for path in faces if path.stem != "fetch_sessions"]  # those are what clients fetch
    assert [(path.name, line) for path in faces for line in set_from_outside(path.read_text())] == []


def test_what_sets_it_is_found() -> None:
    source = "session.a = 1\nself._session.b += 1\nsession.c, x = 1, 2\nself.session = y\nhandle.topic = session.d\n"
    assert sorted(set_from_outside(source)) == [1, 2, 3]
