"""AuditLog: every change that somebody made, or tried to make, through any face of this broker.

Is: who (role, address), what (method, path), the outcome, and the values before and after where the handler tells them
(`Admin.changed`), else what was given, the beginning of it where it is long, and never a message that is published.
Each goes to the process's log as `admin.change`, which is the lasting record, and the newest `KEPT` stay here to be
asked for. Isn't: a log of reads.
Invariants: a record is written once the outcome is known, also of a refusal; a request that is only sent on to its
owner is recorded there; secrets (tokens, credentials, passwords) never get in.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import Any

from heliograph.runtime.clock import Clock
from region_node.runtime.rate_meter import iso_time
from region_node.runtime.redaction import without_secrets
from region_node.runtime.request_ids import current

log = logging.getLogger("region_node.audit")

KEPT = 1000
_GIVEN_CHARS_MAX = 2000


class AuditLog:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def change(
        self, *, role: str, address: str, method: str, path: str, status: int, given: Any = None, **more: Any
    ) -> None:
        """Records one that was answered with `status`. given: what the client said; None: what it said is in `more`, as
        values before and after, or is not for a log.
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
        if given is not None:
            entry["given"] = _short(without_secrets(given))
        entry.update((name, without_secrets(value)) for name, value in more.items())
        self._newest.append(entry)
        log.info("admin.change", extra={"change": json.dumps(entry, default=str)})

    def note(self, event: dict[str, Any]) -> None:
        """Records what nobody did through a face: a promise that was broken, or is kept again."""
        who = {"time": iso_time(self._clock.wall_ms()), "role": "broker", "address": ""}
        self._newest.append({**who, "method": "EVENT", "path": event["event"], "status": 0, "after": event})

    def newest(self, count: int) -> list[dict[str, Any]]:
        """Returns the last `count` records, at most KEPT, the newest last."""
        return list(self._newest)[-count:] if count > 0 else []


def _short(given: Any) -> Any:
    """As it is, or the beginning of it as a text."""
    text = json.dumps(given, default=str)
    return given if len(text) <= _GIVEN_CHARS_MAX else f"{text[:_GIVEN_CHARS_MAX]}… ({len(text)} characters)"
