"""What parts two regions' versions of a topic's schema, for people.

Is: both sides of each number, and a unified diff of them. Isn't: finding a conflict
(`schema_registry.conflicting`), or deciding it (`replicator.links.parked_links`).
Source: docs/protocols/links.md, "Parked links".
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from heliograph.model.errors import CorruptData
from region_node.schemas.schema_registry import shown

TEXT_MAX = 256 << 10
"""Characters of one side, as it is laid out; of more no diff is made."""
LINES_MAX = 500
"""Lines of one side from the first that differs to the last; of more no diff is made: its cost is their square."""
_CONTEXT = 3
_TOO_LARGE = "no diff is made of schemas so large or so different: compare both sides"
_PLACE = re.compile(r"@@ -(\d+)(.*) \+(\d+)")


def differences(
    here: Mapping[int, bytes], there: Mapping[int, bytes], names: tuple[str, str]
) -> Iterator[dict[str, Any]]:
    """One row a number of `there` that is not the same here: number, here, there (None: nothing is there under it),
    diff. names: of the two regions.
    """
    for number, value in sorted(there.items()):
        if here.get(number) == value:
            continue
        ours, theirs = _shown(number, here.get(number)), _shown(number, value)
        diff = _diff(_lines(theirs), _lines(ours), f"{names[1]}/{number}", f"{names[0]}/{number}")
        yield {"number": number, "here": ours, "there": theirs, "diff": diff}


def _diff(old: list[str] | None, new: list[str] | None, old_name: str, new_name: str) -> str:
    """What both begin and end with is left out before it is compared, but for the context."""
    if old is None or new is None:
        return _TOO_LARGE
    shorter, head, tail = min(len(old), len(new)), 0, 0
    while head < shorter and old[head] == new[head]:
        head += 1
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    if max(len(old), len(new)) - head - tail > LINES_MAX:
        return _TOO_LARGE
    head, tail = max(0, head - _CONTEXT), max(0, tail - _CONTEXT)
    old, new = (lines[head : len(lines) - tail] for lines in (old, new))
    found = difflib.unified_diff(old, new, old_name, new_name, lineterm="", n=_CONTEXT)
    return "\n".join(
        _PLACE.sub(lambda at: f"@@ -{int(at[1]) + head}{at[2]} +{int(at[3]) + head}", line)
        if line[:2] == "@@"
        else line
        for line in found
    )


def _shown(number: int, value: bytes | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        return shown(number, value)
    except CorruptData as error:
        return {"unreadable": str(error)}


def _lines(version: dict[str, Any] | None) -> list[str] | None:
    """Without the time, which parts nothing; a definition that is JSON over several lines. None: it is too large."""
    if version is None:
        return []
    fields = {key: value for key, value in version.items() if key != "time_ms"}
    try:
        fields["data"] = json.loads(fields["data"])
    except (KeyError, ValueError, RecursionError):
        pass
    pieces, room = list[str](), TEXT_MAX
    try:
        for piece in json.JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False).iterencode(fields):
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                return None
    except RecursionError:
        return None
    return "".join(pieces).splitlines()
