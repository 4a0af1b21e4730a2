"""AuditLog: every change that somebody made, or tried to make, through any face of this broker.

Is: who (role, address), what (method, path), the outcome, and the values before and after where the handler tells them
(`Admin.changed`), else, or where these are too long to be shown whole, what was given; and never a message that is
published. Each goes to the process's log as `admin.change`, which is the lasting record, and the newest `KEPT` stay
here to be asked for, a quarter of them for what was refused, fewer where they are large. Isn't: a log of reads.
Invariants: a record is written once the outcome is known, also of a refusal; a request that is only sent on to its
owner is recorded there; secrets (tokens, credentials, passwords) never get in. Whatever a client says, its record is
made: of each value the beginning alone is looked at, in bounded time, and what cannot be read is `unreadable`. What is
refused pushes out no record of what was done.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from heapq import merge
from typing import Any

from heliograph.runtime.clock import Clock
from region_node.runtime.rate_meter import iso_time
from region_node.runtime.redaction import Beginning
from region_node.runtime.request_ids import current

log = logging.getLogger("region_node.audit")

KEPT = 1000
_VALUE_CHARS = 2000
"""Of each value: a line of the log has room for all of them."""
KEPT_CHARS = 8 << 20
"""Of all records that stay here, as JSON."""
_UNREADABLE = "unreadable"


class AuditLog:
    """`kept_chars`: so many of the newest records stay here at most, as JSON."""

    def __init__(self, clock: Clock, *, kept_chars: int = KEPT_CHARS) -> None:
        self._clock = clock
        refused = KEPT // 4
        self._done, self._refused = _Newest(KEPT - refused, kept_chars * 3 // 4), _Newest(refused, kept_chars // 4)
        self._count = 0

    def change(
        self,
        *,
        role: str,
        address: str,
        method: str,
        path: str,
        status: int,
        given: Any = None,
        refused: bool = False,
        **more: Any,
    ) -> None:
        """Records one that was answered with `status`. given: what the client said, recorded where `more` does not have
        the values before and after whole; None: it is not for a log. refused: nothing of it can have been done.
        """
        entry: dict[str, Any] = {
            "time": iso_time(self._clock.wall_ms()),
            "role": role or "anonymous",
            "address": address,
            "method": method,
            "path": path,
            "status": status,
            "request": current(),
        }
        is_cut = not more.keys() & {"before", "after"}
        for name, value in more.items():
            entry[name], cut = _shown(value)
            is_cut = is_cut or cut
        if given is not None and is_cut:
            entry["given"], _ = _shown(given)
        log.info("admin.change", extra={"change": self._keep(entry, self._refused if refused else self._done)})

    def note(self, event: dict[str, Any]) -> None:
        """Records what nobody did through a face: a promise that was broken, or is kept again."""
        who = {"time": iso_time(self._clock.wall_ms()), "role": "broker", "address": ""}
        entry = {**who, "method": "EVENT", "path": event["event"], "status": 0, "after": _shown(event)[0]}
        self._keep(entry, self._done)

    def newest(self, count: int) -> list[dict[str, Any]]:
        """Returns the last `count` records, at most KEPT, the newest last."""
        kept = list(merge(self._done.records, self._refused.records))
        return [json.loads(record) for _, record in kept[-count:]] if count > 0 else []

    def _keep(self, entry: dict[str, Any], among: _Newest) -> str:
        record = json.dumps(entry, default=str)
        self._count += 1
        among.add(self._count, record)
        return record


class _Newest:
    """The newest records of one kind: at most `count_max`, and at most `chars_max` characters of more than one."""

    def __init__(self, count_max: int, chars_max: int) -> None:
        self._count_max, self._chars_max, self._chars = count_max, chars_max, 0
        self.records: deque[tuple[int, str]] = deque()
        """(number, JSON) each: so their size is known."""

    def add(self, number: int, record: str) -> None:
        self.records.append((number, record))
        self._chars += len(record)
        while len(self.records) > self._count_max or (self._chars > self._chars_max and len(self.records) > 1):
            self._chars -= len(self.records.popleft()[1])


def _shown(value: Any) -> tuple[Any, bool]:
    """(what is recorded of a value, whether that is a part of it only)."""
    try:
        shown = Beginning(value, _VALUE_CHARS)
    except Exception:  # whatever it is that cannot be read: that somebody changed something is recorded
        return _UNREADABLE, True
    return shown.value, shown.is_cut
