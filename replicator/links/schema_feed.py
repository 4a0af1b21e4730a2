"""Schemas on links: what a region's registry has of a topic goes to its targets before the messages that name it, and
what comes is taken over.

Is: the port to the registry, and the order of one link's frames. Isn't: a registry, or what may follow what
(`region_node.schemas`).
Invariants: while a version that is new here has not been sent on an open link, that link sends no run; a target keeps
what it has under a number.
Source: docs/protocols/links.md, "Schemas".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from heliograph.model.errors import LinkError
from heliograph.runtime.task_set import report_unexpected
from heliograph.wire.links.schema_commands import SchemaRow
from replicator.health.link_causes import Cause

if TYPE_CHECKING:
    from replicator.links.link import Link


class SchemaConflict(LinkError):
    """Another schema is here under a number that arrives. `rows`: what is here under such numbers, then under numbers
    that did not arrive, as much as a frame takes."""

    def __init__(self, text: str, rows: Sequence[SchemaRow]) -> None:
        super().__init__(Cause.SCHEMA_CONFLICT, text)
        self.rows = tuple(rows)


class SchemaLinks(Protocol):
    """`replicator.manager.link_manager.LinkManager`, as a registry tells it of versions."""

    def schemas_changed(self, topic: str) -> None:
        """The topic, or one of its partitions, has a new version of this region's own."""
        ...

    def unpark(self, topic: str) -> None:
        """Its links that are parked look again."""
        ...


class SchemaHost(Protocol):
    """The schema registry of this region."""

    def follow(self, links: SchemaLinks) -> None:
        """From now on `links` hears of new versions."""
        ...

    def has(self, topic: str) -> bool:
        """False: it certainly has none, as far as this broker has heard; costs nothing."""
        ...

    async def dump(self, topic: str) -> Sequence[SchemaRow]:
        """Every version, as it is stored. Raises MetadataError."""
        ...

    async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
        """Takes over what is not here yet. Raises MetadataError, SchemaConflict, and LinkError (SCHEMA_REFUSED) for
        what this version cannot read; after the latter two nothing is changed.
        """
        ...

    async def overrule(self, topic: str, rows: Sequence[SchemaRow]) -> None:
        """An operator's decision: takes `rows` in place of what is here under their numbers; that goes on under new
        ones. Raises MetadataError, and LinkError (SCHEMA_REFUSED).
        """
        ...


class SchemaFeed:
    """Sends the schemas of one link. `behind`: something is to be sent before the next run."""

    __slots__ = ("_link", "_overrules", "_sending", "_told", "behind")

    def __init__(self, link: Link) -> None:
        self._link = link
        self.behind = self._sending = False
        self._told: tuple[tuple[int, int], ...] = ()
        """(number, checksum) of what this stream was told: a decision may change what is under a number."""
        self._overrules: frozenset[int] = frozenset()
        """Numbers whose version the target is to take in place of its own."""

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
        """The registry has, or may have, something new; that may end a conflict."""
        self._link.unpark()
        host = self._link.manager.schemas
        if host is not None and self._link.asks:
            self.behind = True
            if not self._sending:
                self._sending = True
                self._link.manager.spawn(self._send(host))

    def overrule(self, numbers: Iterable[int]) -> None:
        """With the next stream the target takes these in place of what it has. Once: where that does not arrive, the
        link is parked again.
        """
        self._overrules = frozenset(numbers)

    async def _send(self, host: SchemaHost) -> None:
        link = self._link
        try:
            while self.behind:
                self.behind = False
                rows = await host.dump(link.log.topic)
                told = {row: (row[0], zlib.crc32(row[1])) for row in rows}
                fresh = [row for row, mark in told.items() if mark not in self._told]
                overrules = [row for row in fresh if row[0] in self._overrules]
                if fresh and not link.send_schemas(fresh, overrules):
                    break  # the next stream is told everything
                self._overrules = frozenset()
                self._told += tuple(told[row] for row in fresh)
        except Exception as error:  # whatever it is, nothing goes out before what was not told
            report_unexpected(error, "a link's work failed")
            self.behind = False
            link.restart(Cause.METADATA, f"the versions of the topic's schema cannot be read: {error}")
        finally:
            self._sending = False
        link.pump()
