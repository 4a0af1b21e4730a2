"""SCHEMAS: the versions of a topic's schema, from the source of a link to its target, before the messages that name them.

Is: bytes to meaning and back. Isn't: a registry. Framing is the link's (`heliograph.wire.link`):

    1011 SCHEMAS    stream, [number, value] ...

A value is what the source's registry stores: a version byte, then msgpack [type, name, data, {properties}, time ms]; opaque on a link. Numbers are
unique in the instance. From feature level 3, source to target.
Invariants: whatever arrives is accepted or raises PeerError.   Source: docs/protocols/links.md, "Schemas".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heliograph.model.errors import PeerError
from heliograph.wire.link import Kind, frame
from heliograph.wire.link_fields import fields, number
from heliograph.wire.run import Buffer

ROWS_MAX = 1100
BYTES_MAX = 4 << 20
"""Of the values of one frame."""

SchemaRow = tuple[int, bytes]
"""(number, value)."""


def schemas_frame(stream: int, rows: Sequence[SchemaRow]) -> list[Buffer]:
    return frame(Kind.SCHEMAS, [stream, *([at, value] for at, value in rows)])


def read_schemas(given: list[Any]) -> tuple[int, list[SchemaRow]]:
    """(stream, rows)."""
    stream = number(fields(given, 1)[0])
    if len(given) > ROWS_MAX:
        raise PeerError(f"link: more than {ROWS_MAX} versions of a schema in one frame")
    rows: list[SchemaRow] = []
    for item in given[1:]:
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[1], bytes) or not item[1]:
            raise PeerError("link: a schema has a number and a value")
        rows.append((number(item[0]), item[1]))
    return stream, rows
