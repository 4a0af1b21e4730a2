"""Space: whether a directory has room for more.

Is: two watermarks, so that a disk at the edge doesn't flap. Isn't: who makes room.
Invariants: below the lower one no adds are taken; above the upper one they are; between them it stays as it was.
"""

from __future__ import annotations

from storage.bookie.bookie_settings import BookieSettings
from storage.bookie.directories.cookie import DirectoryPlace


def why_full(place: DirectoryPlace, settings: BookieSettings, before: str) -> str:
    """Why nothing more goes there; "" where it does. before: the last answer, or what a write said. Blocking, but
    short; raises OSError.
    """
    free = place.disk.free_bytes()
    if free < settings.free_bytes_min:
        return f"less than {settings.free_bytes_min >> 20} MiB free{on(place)}: make room on its disk"
    return before if free < settings.free_bytes_enough else ""


def on(place: DirectoryPlace) -> str:
    return f" on {place.name}" if place.name else ""
