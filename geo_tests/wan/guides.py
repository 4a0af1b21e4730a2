"""A page of docs/operating as a script: the commands of its fenced blocks, by heading, in order."""

from __future__ import annotations

from pathlib import Path

OPERATING = Path(__file__).parents[2] / "docs" / "operating"


def commands(page: str) -> dict[str, list[str]]:
    """Heading -> its `heliograph` commands, without prompts and comments. page: name of a file of docs/operating."""
    found: dict[str, list[str]] = {}
    heading, inside = "", False
    for text in (OPERATING / page).read_text().splitlines():
        line = text.strip().removeprefix("$ ")
        if text.startswith("## "):
            heading = text.removeprefix("## ")
        elif line.startswith("```"):
            inside = not inside
        elif inside and line.startswith("heliograph "):
            found.setdefault(heading, []).append(line.partition("  #")[0].partition(" # ")[0].strip())
    return found
