"""Schemas on links: what a region's registry has of a topic goes to its targets before the messages that name it, and what comes is taken over.

Is: the port to the registry, and the order of one link's frames. Isn't: a registry, or what may follow what (`region_node.schemas`).
Invariants: while a version that is new here has not been sent on an open link, that link sends no run; a target keeps what it has under a number.
Source: docs/protocols/links.md, "Schemas".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from heliograph.model.errors import HeliographError
from heliograph.wire.link_schemas import SchemaRow
from replicator.causes import Cause

if TYPE_CHECKING:
    from replicator.link import Link


class SchemaHost(Protocol):
    """The schema registry of this region."""

    def has(self, topic: str) -> bool:
        """False: it certainly has none, as far as this broker has heard; costs nothing."""
        ...

    async def dump(self, topic: str) -> Sequence[SchemaRow]:
        """Every version, as it is stored. Raises MetadataError."""
        ...

    async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
        """Takes over what is not here yet. Raises CorruptData, MetadataError."""
        ...


class SchemaFeed:
    """Of one link. `behind`: something is to be sent before the next run."""

    __slots__ = ("_link", "_sending", "_told", "behind")

    def __init__(self, link: Link) -> None:
        self._link = link
        self.behind = self._sending = False
        self._told: tuple[int, ...] = ()
        """Numbers that this stream was told."""

    @property
    def sending(self) -> bool:
        return self._sending

    def opened(self) -> None:
        """A new stream: it knows nothing."""
        self._told = ()
        host = self._link.manager.schemas
        if host is not None and host.has(self._link.log.topic):
            self.changed()

    def changed(self) -> None:
        """The registry has, or may have, something new."""
        host = self._link.manager.schemas
        if host is not None and self._link.asks:
            self.behind = True
            if not self._sending:
                self._sending = True
                self._link.manager.spawn(self._send(host))

    async def _send(self, host: SchemaHost) -> None:
        link = self._link
        try:
            while self.behind:
                self.behind = False
                rows = await host.dump(link.log.topic)
                fresh = [row for row in rows if row[0] not in self._told]
                if fresh and not link.send_schemas(fresh):
                    break  # the next stream is told everything
                self._told += tuple(row[0] for row in fresh)
        except HeliographError as error:
            self.behind = False
            link.restart(Cause.METADATA, f"the versions of the topic's schema cannot be read: {error}")
        finally:
            self._sending = False
        link.pump()
