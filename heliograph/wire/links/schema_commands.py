"""SCHEMAS: the versions of a topic's schema, from the source of a link to its target, before the messages that name
them.

Is: bytes to meaning and back. Isn't: a registry. Framing is the link's (`heliograph.wire.links.link_commands`):

    1011 SCHEMAS    stream, [number, value] ...
    1012 OVERRULE   the same: an operator has decided that the target takes these in place of what it has under these
                    numbers; from level 6
    1007 CLOSE      stream, cause, text [, [[number, value] ...]]: what the target has, where versions conflict; older
                    ones leave that field out

A value is what the source's registry stores: a version byte, then msgpack [type, name, data, {properties}, time ms];
opaque on a link. Numbers are unique in the instance. From feature level 3, source to target.
Invariants: whatever arrives is accepted or raises PeerError.   Source: docs/protocols/links.md, "Schemas".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heliograph.model.errors import PeerError
from heliograph.wire.links.command_fields import fields, number
from heliograph.wire.links.link_commands import LinkFrameKind, frame
from heliograph.wire.run import Buffer

ROWS_MAX = 1100
"""So many rows of one frame are read."""
ROWS_SENT = 1000
"""So many rows go into one frame. A topic may have more: what one region deletes stays in the others."""
BYTES_MAX = 4 << 20
"""Bounds the values of all frames that tell a topic's versions together."""

SchemaRow = tuple[int, bytes]
"""Holds (number of the version, its value as the registry stores it)."""


def schemas_frames(stream: int, rows: Sequence[SchemaRow]) -> list[Buffer]:
    return _frames(LinkFrameKind.SCHEMAS, stream, rows)


def overrule_frames(stream: int, rows: Sequence[SchemaRow]) -> list[Buffer]:
    return _frames(LinkFrameKind.OVERRULE, stream, rows)


def _frames(kind: LinkFrameKind, stream: int, rows: Sequence[SchemaRow]) -> list[Buffer]:
    """As many frames as the rows take, and one where there are none."""
    return [
        part
        for start in range(0, len(rows) or 1, ROWS_SENT)
        for part in frame(kind, [stream, *([at, value] for at, value in rows[start : start + ROWS_SENT])])
    ]


def schemas_stream(given: list[Any]) -> int:
    """The stream of a SCHEMAS or an OVERRULE, whatever its rows are."""
    return number(fields(given, 1)[0])


def read_schemas(given: list[Any]) -> tuple[int, list[SchemaRow]]:
    """(stream, rows), of SCHEMAS and OVERRULE."""
    return schemas_stream(given), _rows(given[1:])


def close_rows(given: list[Any]) -> list[SchemaRow]:
    """What a CLOSE tells of the target's versions; none: it tells nothing."""
    if len(given) < 4:
        return []
    if not isinstance(given[3], list):
        raise PeerError("link: expected versions of a schema")
    return _rows(given[3])


def _rows(given: list[Any]) -> list[SchemaRow]:
    if len(given) > ROWS_MAX:
        raise PeerError(f"link: more than {ROWS_MAX:,} versions of a schema in one frame")
    rows: list[SchemaRow] = []
    for item in given:
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[1], bytes) or not item[1]:
            raise PeerError("link: a schema has a number and a value")
        rows.append((number(item[0]), item[1]))
    return rows
