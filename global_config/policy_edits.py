"""Edits: changes of policies that were made while the region could not reach the configuration, and what becomes of
them afterwards.

Is: an edit as a value, the difference of two levels of policies, and merging edit by edit, key by key. Isn't: storage
or a network (`global_config.deferred_edits`).
The rule, for each key: what the configuration still has as the edit found it takes the edit's value; what somebody else
made the same stays; maps are merged entry by entry; everything else is a conflict: the configuration keeps its value,
and the conflict says both.
Invariants: of an edit, every change is afterwards in the configuration, or was there already, or is a conflict; what an
edit did not know is never overwritten.
Source: docs/protocols/metadata.md, "Edits while cut off".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.model.configuration.configuration_records import TopicPolicies, _Value

Fields = Mapping[str, Any]
"""Name of a policy -> value, as one level holds them; what is not there is not set."""
PROPERTIES = "properties"
Change = list[Any]
"""[path, before, after]: path is a list of names, before and after are [] (not set) or [value]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit(_Value):
    """Holds the changes of one key of the configuration; `id` rises in its region, which is their order."""

    id: int
    key: str
    by: str = ""
    made_ms: int = 0
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict(_Value):
    """`theirs` stands in the configuration, `mine` was wanted by the region; each [] or [value]."""

    region: str
    id: int
    key: str
    path: tuple[str, ...]
    before: tuple[Any, ...]
    mine: tuple[Any, ...]
    theirs: tuple[Any, ...]
    by: str = ""
    made_ms: int = 0
    merged_ms: int = 0
    because: str = "both were changed"


def flat(value: TopicPolicies) -> dict[str, Any]:
    """With the properties as one more map; no policy of a topic has that name."""
    return {**value.policies, **({PROPERTIES: value.properties} if value.properties else {})}


def difference(before: Fields, after: Fields) -> tuple[Change, ...]:
    return tuple(
        [[name], _at(before, name), _at(after, name)]
        for name in sorted({*before, *after})
        if _at(before, name) != _at(after, name)
    )


def merged(fields: Fields, changes: tuple[Change, ...]) -> tuple[dict[str, Any], list[Change]]:
    """(what the level holds then, changes that could not be made: [path, before, mine, theirs])."""
    out, conflicts = dict(fields), list[Change]()
    for path, before, after in changes:
        name = path[-1]
        _merge(out, name, path, before, after, conflicts)
    return out, conflicts


def _merge(
    out: dict[str, Any], name: str, path: list[str], before: list[Any], after: list[Any], conflicts: list[Change]
) -> None:
    theirs = _at(out, name)
    if theirs == after:
        return
    if theirs == before:
        _set(out, name, after)
    elif _maps(theirs) and _maps(after) and (not before or _maps(before)):
        inner, old = dict(theirs[0]), before[0] if before else {}
        for entry in sorted({*old, *after[0]}):
            was, mine = _at(old, entry), _at(after[0], entry)
            if was != mine:
                _merge(inner, entry, [*path, entry], was, mine, conflicts)
        out[name] = inner
    else:
        conflicts.append([path, before, after, theirs])


def taken(fields: Fields, conflict: Conflict) -> dict[str, Any]:
    """With what the region wanted, whatever stands there."""
    out: dict[str, Any] = dict(fields)
    *maps, last = conflict.path
    inner = out
    for name in maps:
        there = inner.get(name)
        inner[name] = dict(there) if isinstance(there, dict) else {}
        inner = inner[name]
    _set(inner, last, list(conflict.mine))
    return out


def _at(fields: Fields, name: str) -> list[Any]:
    return [fields[name]] if name in fields else []


def _set(fields: dict[str, Any], name: str, value: list[Any]) -> None:
    if value:
        fields[name] = value[0]
    else:
        fields.pop(name, None)


def _maps(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], dict)
