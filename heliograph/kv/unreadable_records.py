"""Records of the metadata that cannot be read: of a later version, or damaged by a tool.

Is: what is said of each, in one way by all that walk over records or watch them. Isn't: what is done with one: it is
left as it is, and whatever it may name or own stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from heliograph.kv.metadata_store import WatchCallback
from heliograph.model.errors import CorruptData

log = logging.getLogger("heliograph.metadata")

T = TypeVar("T")
_UNREADABLE = (CorruptData, ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""What a parser may raise of a value that has another shape than it knows."""


def tell_unreadable(key: str, error: Exception) -> None:
    log.error("metadata.unreadable", extra={"key": key, "error": str(error)})


def tell_change(callback: WatchCallback, key: str, value: bytes | None, version: int) -> None:
    """One change, to whoever watches. What cannot be read keeps nothing behind it back, and ends no connection."""
    try:
        callback(key, value, version)
    except _UNREADABLE as error:
        log.error("metadata.unreadable", extra={"key": key, "error": str(error)}, exc_info=error)


def readable(decode: Callable[[bytes], T], key: str, blob: bytes) -> T | None:
    """None where it cannot be read, which is told: whoever walks goes on with the next one."""
    try:
        return decode(blob)
    except _UNREADABLE as error:
        tell_unreadable(key, error)
        return None
