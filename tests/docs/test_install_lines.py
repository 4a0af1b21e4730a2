"""Nobody is told to take our packages from an index: whatever has their name there is not ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("deploy", "docs", "heliograph", "packaging", "region_node", "requirements", "storage", "terraform", "tools")
_ENDINGS = (".py", ".md", ".sh", ".tf", ".toml", ".yaml")
_TOLD = re.compile(
    r"pip3? (?:install|download)[^`\n#]*(?<![./*\w-])heliograph(?![\w./*-]*\.(?:whl|zip))|heliograph(?:-server)?\["
)


def test_no_page_and_no_message_names_ours_to_pip() -> None:
    files = [p for folder in _FOLDERS for p in sorted((ROOT / folder).rglob("*")) if p.suffix in _ENDINGS]
    files += [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "deploy" / "Dockerfile"]
    records = ROOT / "docs" / "decisions"
    found = [(p, hit[0]) for p in files if records not in p.parents for hit in _TOLD.finditer(p.read_text())]
    assert not found, found


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("pip install heliograph-server", True),
        ("run: pip install 'heliograph[redis]'", True),
        ("Wants `heliograph[delta]`", True),
        ("pip download --dest . heliograph && mv x y", True),
        ("pip install --no-index dist/*.whl", False),
        ("pip install --no-index ./heliograph-0.1.0-py3-none-any.whl", False),
        ("`pip install pulsar-client` and `heliograph produce`", False),
    ],
)
def test_such_a_line_is_found(line: str, told: bool) -> None:
    assert bool(_TOLD.search(line)) is told
