"""BookieCookie: what the region's metadata says of the life of a bookie.

Is: the value at `/bookie-cookies/{id}`, written by compare-and-set: by the bookie at each start, by an operator's grant
of a new life, and by the auditor as it marks what an earlier life held. Isn't: the judgement
(`storage.bookie.serving.enrolment`).
Source: docs/protocols/storage.md, "Identity".
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Self

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieCookie:
    salt: int = 0
    """The one in its directories' cookies."""
    start: int = 0
    """The number of its last start."""
    by: int = 0
    """Drawn by the process that started: tells it from another one on copies of the same directories."""
    floor: int = 0
    """Ledgers below were made before its present life: what it has not of them, it may have lost."""
    marked: int = 0
    """Of the ledgers below `floor`, those below this one have got their marks, so that it gets its copies again."""
    granted: bool = False
    """An operator lets it begin a new life on whatever directories it has."""

    def encode(self) -> bytes:
        return pack(list(astuple(self)))

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Reads the stored value. Raises CorruptData."""
        try:
            salt, start, by, floor, marked, granted = unpack("cookie of a bookie", blob)
            return cls(
                salt=int(salt),
                start=int(start),
                by=int(by),
                floor=int(floor),
                marked=int(marked),
                granted=bool(granted),
            )
        except (TypeError, ValueError) as error:
            raise CorruptData(f"cookie of a bookie: {error}") from error
