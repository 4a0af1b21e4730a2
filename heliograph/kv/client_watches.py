"""Watches: what a metadata client watches, and how far each of its watches has come.

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
from collections.abc import Iterator

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
        "_heard",
        "_refusal_logged",
        "anew",
        "asked",
        "callback",
        "known",
        "listed",
        "listing",
        "prefix",
        "refused",
        "since",
    )

    def __init__(self, prefix: str, callback: WatchCallback) -> None:
        self.prefix, self.callback = prefix, callback
        self.since = -1
        self.anew = False
        """Whether what is known may have the versions of what is there, and be something else."""
        self.asked = False
        """Whether the present connection was asked for it."""
        self.known: dict[str, int] = {}
        self.listing: Rows = []
        self.listed = False
        """Whether the present connection has given the whole listing."""
        self.refused = ""
        self._heard, self._refusal_logged = asyncio.Event(), False

    async def synced(self) -> None:
        """Returns once it has told what there was, or was stopped. Raises NotAllowed where it is refused."""
        while not self.refused and not self._heard.is_set():
            await self._heard.wait()
        if self.refused:
            raise NotAllowed(self.refused)

    def on_synced(self) -> None:
        self._heard.set()

    def ask(self, *, judged: bool) -> bool:
        """Whether the present connection is to be asked for it now. judged: its history is known there."""
        asks = not self.asked and (judged or self.since < 0)
        self.asked |= asks
        return asks

    def on_refused(self, why: str) -> None:
        self.refused = why
        self._heard.set()
        if not self._refusal_logged:
            self._refusal_logged = True
            log.warning("metadata.watch_refused", extra={"prefix": self.prefix, "error": why})

    def on_disconnected(self) -> None:
        self.listing, self.listed, self.asked = [], False, False
        if self.refused:
            self.refused = ""
            if self.since < 0:
                self._heard.clear()


class Watches:
    """By the number that the server is told."""

    def __init__(self) -> None:
        self._of: dict[int, Watch] = {}

    def __iter__(self) -> Iterator[tuple[int, Watch]]:
        return iter(list(self._of.items()))

    def add(self, number: int, watch: Watch) -> None:
        self._of[number] = watch

    def drop(self, number: int) -> bool:
        """Returns whether it was there."""
        watch = self._of.pop(number, None)
        if watch is not None:
            watch.on_synced()
        return watch is not None

    def clear(self) -> None:
        for number in list(self._of):
            self.drop(number)

    def forget(self) -> None:
        """The table is that of another history: all of it is news on the next connection."""
        for watch in self._of.values():
            watch.since, watch.anew = -1, True

    @property
    def listed(self) -> bool:
        """Whether every one that is not refused has caught up on the present connection."""
        return all(watch.listed or watch.refused for watch in self._of.values())

    def on_disconnected(self) -> None:
        for watch in self._of.values():
            watch.on_disconnected()

    def on_refused(self, number: int, why: str) -> None:
        watch = self._of.get(number)
        if watch is not None:
            watch.on_refused(why)

    def on_listing(self, number: int, index: int, last: bool, found: Rows) -> None:
        """A part of what is there now, or of what has changed since. Raises PeerError."""
        watch = self._of.get(number)
        if watch is None:
            return
        watch.listing += found
        if not last:
            return
        listing, watch.listing = watch.listing, []
        present = {key for key, _, _ in listing}
        gone = [key for key in watch.known if key not in present]
        if any(value is None and watch.known.get(key) != version for key, version, value in listing):
            watch.since = -1  # a change was cut in two by the loss of a connection: take everything anew
            raise PeerError("metadata listing: it lacks a value that this side never had")
        anew = watch.anew or index < watch.since  # a version may be another one than that of the same number before
        watch.anew = False
        news = [row for row in listing if anew or watch.known.get(row[0]) != row[1]]
        if watch.since >= 0:
            news.sort(key=lambda row: (row[1], row[0]))
        watch.since = index
        for key in gone:
            self._tell(number, watch, key, None, index)
        for key, version, value in news:
            self._tell(number, watch, key, value, version)
        watch.listed = True
        watch.on_synced()

    def on_event(self, number: int, index: int, found: Rows) -> None:
        watch = self._of.get(number)
        if watch is None:
            return
        watch.since = max(watch.since, index)
        for key, version, value in found:
            self._tell(number, watch, key, value, version)

    def _tell(self, number: int, watch: Watch, key: str, value: bytes | None, version: int) -> None:
        if number not in self._of:  # stopped meanwhile, maybe by its own callback
            return
        if value is None:
            watch.known.pop(key, None)
        else:
            watch.known[key] = version
        tell_change(watch.callback, key, value, version)
