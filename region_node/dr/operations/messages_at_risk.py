"""What would be lost if a region were lost now: one answer, from what both sides say, for every plan and status.

Is: which side's number counts, and whether it is one. Isn't: the numbers (`region_node.dr.operations.namespace_facts`).
Invariants: what is not known is None, beside the last number that was known and its age; it is never 0.
Source: docs/operating/disaster-recovery.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMED = 3

Side = Mapping[str, Any] | None
"""What one region says; None: it does not answer."""


def at_risk(source: str, target: str, published: Side, lacks: Side) -> dict[str, Any]:
    """What of `source` is not in `target`. published: as the source says (`namespace_facts.not_in`); lacks: as the
    target says (`namespace_facts.lacking`). The source knows best.

    messages, bytes: None where they are not known; `last` is then what was known `ago_s` seconds ago, None where
    nothing ever was. age_s: what the oldest of it may be old. text: all of it, in words.
    """
    side = published if published is not None else lacks
    if side is None:
        text = f"it is not known how much of {source} is missing in {target}: neither answers"
        return {"messages": None, "bytes": None, "age_s": None, "said_by": "", "last": None, "text": text}
    why = _unknown(source, target, side, side is published)
    messages, size, ago_s = side["messages"], side["bytes"], 0.0 if side is published else side["silent_s"]
    age_s = side["age_s"] if side is published else max(side["age_s_max"], side["unheard_s"])
    found = {
        "messages": None if why else messages,
        "bytes": None if why else size,
        "age_s": age_s,
        "said_by": source if side is published else target,
        "last": {"messages": messages, "bytes": size, "ago_s": ago_s},
    }
    counted = f"{messages} messages ({size} bytes)"
    if not why:
        oldest = f", the oldest {age_s:.1f} s old" if messages else ""
        return {**found, "text": f"{counted} of {source} are missing in {target}{oldest}"}
    when = f"when it was heard last, {ago_s:.1f} s ago" if ago_s else "as far as it is known"
    text = (
        f"it is not known how much of {source} is missing in {target} ({why}): {counted} {when}, and there may be more"
    )
    return {**found, "text": text}


def _unknown(source: str, target: str, side: Mapping[str, Any], published: bool) -> str:
    """Why the side's number is not all there is; "": it is."""
    why = [f"no broker has loaded {_some(side, 'missing')}"] if side["missing"] else []
    if unlisted := side.get("unlisted"):
        why.append(f"which topics there are could not be read: {unlisted}")
    if published:
        if side["uncounted"]:
            why.append(f"{source} has no link to {target} for {_some(side, 'uncounted')}")
        return "; ".join(why)
    if side["silent_s"]:
        why.append(f"nothing was heard of {source} for {side['silent_s']:.1f} s")
    if side["unheard"]:
        since = f" since they were loaded, {side['unheard_s']:.1f} s ago" if side["unheard_s"] else ""
        why.append(f"{source} told nothing of {_count(side, 'unheard')} topics{since}")
    elif not side["told"]:
        why.append(f"{target} has no topic of the namespace in common with {source}, which may have others")
    if untold := side.get("untold", f"{target} does not say which topics {source} alone has"):
        why.append(untold)
    return "; ".join(why)


def _count(side: Mapping[str, Any], key: str) -> int:
    """How many topics are in the list `key`, of which a few may be named."""
    count: int = side.get("counts", {}).get(key, 0)
    return max(count, len(side[key]))


def _some(side: Mapping[str, Any], key: str) -> str:
    names, count = side[key], _count(side, key)
    return ", ".join(names[:_NAMED]) + (f" and {count - _NAMED} more" if count > len(names[:_NAMED]) >= _NAMED else "")
