"""One link as its source shows it, and the part of a cursor that a link uses.

Is: values and a port. Isn't: a link (`replicator.links.link`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from heliograph.model.positions import Position


class LinkCursor(Protocol):
    """The part of the managed ledger's cursor that a link uses."""

    mark_delete: Position
    properties: dict[str, str]
    also: Callable[[], Mapping[str, str]] | None
    """Properties that are asked for at each write, and stored in it."""
    reading: Callable[[], Position] | None
    """Where the link reads, as long as it does: what it still needs stays in the entry cache."""

    @property
    def backlog_entries(self) -> int: ...

    def ack_cumulative(self, position: Position) -> None: ...

    def reset(self, mark_delete: Position) -> None: ...

    def set_properties(self, properties: dict[str, str]) -> None: ...

    async def flushed(self) -> None:
        """Returns once everything said so far is stored."""
        ...


class LinkHistory:
    """The newest eight ends of a link; nothing of one that never ended."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: tuple[tuple[int, str, str], ...] = ()

    def add(self, at_ms: int, cause: str, text: str) -> None:
        """Adds an end of the link; beyond eight the oldest goes. at_ms: wall clock; cause: a `Cause`."""
        self._ends = (*self._ends[-7:], (at_ms, cause, text))

    def shown(self) -> list[dict[str, Any]]:
        return [{"at_ms": at_ms, "cause": str(cause), "text": text} for at_ms, cause, text in self._ends]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStats:
    """One link, as its source knows it; backlog and age are of what was first published here and is not done with."""

    source: str
    target: str
    topic: str
    state: str
    cause: str
    cause_text: str
    remedy: str
    """What to do about the cause."""
    restarts: int
    history: list[dict[str, Any]]
    """The newest ends of the link: at_ms, cause, text."""
    connected: bool
    """It is open, and its target is heard."""
    silent_s: float | None
    """For how long nothing was heard from the target: on the link's connection; where there is none, on any to its
    region, since this broker began. None: a Pulsar cluster without a connection.
    """
    backlog_entries: int
    backlog_messages: int
    backlog_bytes: int
    age_s: float
    rate_out: float
    """Messages a second that the target acknowledged."""
    throughput_out: float
    """Bytes a second that the target acknowledged."""
    rtt_ms: float
    clock_offset_ms: float
    in_flight_bytes: int
    rewinds: int
    progress: float
    """How much of what was first published here the target has, or need not have: 0 to 1."""
    slowed: bool
    """By the policy replicatorDispatchRate, now."""
    run_bytes: int
    """The bytes of all runs that this link has sent since the topic was loaded here."""
    wire_bytes: int
    """The same as they went out: fewer where they were compressed."""
