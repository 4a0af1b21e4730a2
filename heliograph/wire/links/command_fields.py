"""The fields of the link's private commands, as msgpack gives them: each is what it must be, or a PeerError.

Is: checks of one value each. Isn't: a command (`heliograph.wire.links.link_commands`,
`heliograph.wire.links.audit_commands`).
Source: docs/protocols/links.md, "Frames".
"""

from __future__ import annotations

from typing import Any

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.errors import CorruptData, PeerError
from heliograph.model.positions import Position

NAME_MAX = 256


def number(value: Any, low: int = 0, high: int = (1 << 64) - 1) -> int:
    if type(value) is not int or not low <= value <= high:
        raise PeerError(f"link: {value!r:.40} is no number from {low} to {high}")
    return value


def text(value: Any, limit: int = NAME_MAX) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        raise PeerError(f"link: expected 1 to {limit} characters")
    return value


def fields(given: list[Any], count: int) -> list[Any]:
    """Later versions may append fields."""
    if len(given) < count:
        raise PeerError(f"link: {len(given)} fields where {count} are needed")
    return given[:count]


def position(ledger: Any, entry: Any) -> Position:
    high = (1 << 63) - 1
    return number(ledger, -1, high), number(entry, -1, high)


def vector(blob: Any) -> Vector:
    if not isinstance(blob, bytes):
        raise PeerError("link: expected a vector")
    try:
        return Vector.decode(blob)
    except CorruptData as error:
        raise PeerError(f"link: {error}") from error


def coordinate(values: Any) -> tuple[Origin, Position]:
    if not isinstance(values, list) or len(values) != 5:
        raise PeerError("link: a coordinate has five numbers")
    region, epoch, incarnation, ledger, entry = values
    return (number(region, high=(1 << 32) - 1), number(epoch, high=(1 << 32) - 1), number(incarnation)), position(
        ledger, entry
    )
