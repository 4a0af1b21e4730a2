"""ClientTimes: how long a drill's clients took to go on in the region that took over, as its report has it.

Is: a core: numbers of what clients have seen, in words, too. Isn't: a client (`drill_client`), or a verdict of a drill.
Invariants: it is measured where every client has published and read behind the switch; of fewer that is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any


def told(found: Mapping[str, Any]) -> dict[str, Any]:
    """found: as `DrillClients.status` says it. acked, read: from the switch's beginning to each client's first."""
    acked, read, count = found["acked_s"], found["read_s"], int(found["count"])
    measured = count > 0 and len(acked) == len(read) == count
    said = "" if measured else found["said"] or ("no answer yet" if count else "the broker that had them has ended")
    return {"measured": measured, "clients": count, "acked": _times(acked), "read": _times(read), "said": said}


def text(part: Mapping[str, Any]) -> str:
    """In words, with numbers of those that have done it."""
    words = [
        f"{part[key]['clients']} of {part['clients']} {what} after {part[key]['p50_s']:.2f} s (p50), "
        f"{part[key]['max_s']:.2f} s (max)"
        if part[key]["clients"]
        else f"none of {part['clients']} {what}"
        for key, what in (("acked", "published"), ("read", "read"))
    ]
    return "; ".join([*words, *([part["said"]] if part["said"] else [])])


def _times(found: Sequence[float]) -> dict[str, Any]:
    if not found:
        return {"clients": 0}
    return {"clients": len(found), "p50_s": median(found), "max_s": max(found)}
