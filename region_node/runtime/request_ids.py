"""Request ids: one name for a request to the admin interface: in its answer, in each line of the log that is written
for it, at brokers that are asked on.

Is: the name that a client gives (X-Request-Id), or one of ours, and which request is being handled now. Isn't: the ids
of Pulsar's binary commands; those count by connection, and clients log them themselves.
Invariants: a name is short and has no character that could begin a line or a field; once a request is answered nobody
speaks in its name any more, whatever goes on behind it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

HEADER = "X-Request-Id"
_GOOD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


@dataclass(slots=True)
class _Handled:
    name: str
    open: bool = True


_NOW: ContextVar[_Handled | None] = ContextVar("request", default=None)


def accepted(given: str) -> str:
    """What the client gave, where that may be a name; else a new one."""
    return given if _GOOD.fullmatch(given) else secrets.token_hex(8)


@contextmanager
def handling(name: str) -> Iterator[None]:
    request = _Handled(name)
    token = _NOW.set(request)
    try:
        yield
    finally:
        request.open = False  # tasks that were begun meanwhile have a copy of this context
        _NOW.reset(token)


def current() -> str:
    """Returns the id of the request that is being handled here; "": none is, or it has been answered."""
    request = _NOW.get()
    return request.name if request is not None and request.open else ""


def header() -> dict[str, str]:
    """For whoever is asked on the request's behalf."""
    return {HEADER: name} if (name := current()) else {}
