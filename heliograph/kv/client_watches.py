"""Watch: one watch of a metadata client, and how far it has come.

Is: listings and events to changes, each told once and in order, over any number of connections. Isn't: a connection, or
a frame.
Invariants: a watch never goes back in time, but with its whole group, all of which it then tells; it tells every
deletion that happened while it was cut off; what was stopped, also by its own callback, is told nothing any more. A
watch that the server refuses holds up no other one, and is asked for again on the next connection. After `forget` all
is told again, whatever versions there are.
"""

from __future__ import annotations

import asyncio
import logging

from heliograph.kv.metadata_store import WatchCallback
from heliograph.kv.unreadable_records import tell_change
from heliograph.model.errors import NotAllowed, PeerError

log = logging.getLogger("heliograph.kv")

Rows = list[tuple[str, int, bytes | None]]
"""Holds (key, version, value) of each key; value None: the client is said to have it in that version."""


class Watch:
    """`since`: the index that it has come to; -1: it knows nothing yet. refused: why the present connection does not
    give it; "" where it does.
    """

    __slots__ = (
        "_anew",
        "_callback",
        "_heard",
        "_known",
        "_listing",
        "_refusal_logged",
        "_stopped",
        "asked",
        "caught_up",
        "prefix",
        "refused",
        "since",
    )

    def __init__(self, prefix: str, callback: WatchCallback) -> None:
        self.prefix, self._callback = prefix, callback
        self.since = -1
        self._anew = False
        """Whether what is known may have the versions of what is there, and be something else."""
        self.asked = False
        """Whether the present connection was asked for it."""
        self._known: dict[str, int] = {}
        self._listing: Rows = []
        self.caught_up = self._stopped = False
        """caught_up: whether the present connection has told all that there was, or refuses to."""
        self.refused = ""
        self._heard, self._refusal_logged = asyncio.Event(), False

    async def synced(self) -> None:
        """Returns once it has told what there was, or was stopped. Raises NotAllowed where it is refused."""
        while not self.refused and not self._heard.is_set():
            await self._heard.wait()
        if self.refused:
            raise NotAllowed(self.refused)

    def forget(self) -> None:
        """The table is that of another history: all of it is news on the next connection."""
        self.since, self._anew = -1, True

    def ask(self, *, judged: bool) -> int | None:
        """From which index on the present connection is to be asked for it now; None: it is not. judged: its history
        is known there.
        """
        if self.asked or not (judged or self.since < 0):
            return None
        self.asked = True
        return self.since

    def on_refused(self, why: str) -> None:
        self.refused, self.caught_up = why, True
        self._heard.set()
        if not self._refusal_logged:
            self._refusal_logged = True
            log.warning("metadata.watch_refused", extra={"prefix": self.prefix, "error": why})

    def on_disconnected(self) -> None:
        self._listing, self.caught_up, self.asked = [], False, False
        if self.refused:
            self.refused = ""
            if self.since < 0:
                self._heard.clear()

    def stop(self) -> None:
        """It is told nothing more."""
        self._stopped = True
        self._heard.set()

    def on_listing(self, index: int, last: bool, found: Rows) -> None:
        """A part of what is there now, or of what has changed since. Raises PeerError."""
        self._listing += found
        if not last:
            return
        listing, self._listing = self._listing, []
        present = {key for key, _, _ in listing}
        gone = [key for key in self._known if key not in present]
        if any(value is None and self._known.get(key) != version for key, version, value in listing):
            self.since = -1  # a change was cut in two by the loss of a connection: take everything anew
            raise PeerError("metadata listing: it lacks a value that this side never had")
        anew = self._anew or index < self.since  # a version may be another one than that of the same number before
        self._anew = False
        news = [row for row in listing if anew or self._known.get(row[0]) != row[1]]
        if self.since >= 0:
            news.sort(key=lambda row: (row[1], row[0]))
        self.since = index
        for key in gone:
            self._tell(key, None, index)
        for key, version, value in news:
            self._tell(key, value, version)
        self.caught_up = True
        self._heard.set()

    def on_event(self, index: int, found: Rows) -> None:
        self.since = max(self.since, index)
        for key, version, value in found:
            self._tell(key, value, version)

    def _tell(self, key: str, value: bytes | None, version: int) -> None:
        if self._stopped:  # maybe by its own callback
            return
        if value is None:
            self._known.pop(key, None)
        else:
            self._known[key] = version
        tell_change(self._callback, key, value, version)
