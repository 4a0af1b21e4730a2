"""What parts two regions' versions of a topic's schema, for people.

Is: both sides of each number, and a unified diff of them. Isn't: finding a conflict
(`schema_registry.conflicting`), or deciding it (`replicator.links.parked_links`).
Source: docs/protocols/links.md, "Parked links".
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from heliograph.model.errors import CorruptData
from region_node.schemas.schema_registry import shown


def differences(here: Mapping[int, bytes], there: Mapping[int, bytes], names: tuple[str, str]) -> list[dict[str, Any]]:
    """One row a number of `there` that is not the same here: number, here, there (None: nothing is there under it),
    diff. names: of the two regions.
    """
    rows = []
    for number, value in sorted(there.items()):
        if here.get(number) == value:
            continue
        ours, theirs = _shown(number, here.get(number)), _shown(number, value)
        lines = difflib.unified_diff(
            _lines(theirs), _lines(ours), f"{names[1]}/{number}", f"{names[0]}/{number}", lineterm=""
        )
        rows.append({"number": number, "here": ours, "there": theirs, "diff": "\n".join(lines)})
    return rows


def _shown(number: int, value: bytes | None) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        return shown(number, value)
    except CorruptData as error:
        return {"unreadable": str(error)}


def _lines(version: dict[str, Any] | None) -> list[str]:
    """Without the time, which parts nothing; a definition that is JSON over several lines."""
    if version is None:
        return []
    fields = {key: value for key, value in version.items() if key != "time_ms"}
    try:
        fields["data"] = json.loads(fields["data"])
    except (KeyError, ValueError):
        pass
    return json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
