"""Marks: what the metadata says of a ledger that lacks copies, for whoever repairs it next.

Is: the value of `/underreplicated/{id}`, and the addition to it. Isn't: the finding, or the repair.
Invariants: an addition loses nothing of what stands there. A version that knows only of lost bookies reads those, and
takes the mark away when they are dealt with: what else it said is found again by the check of what bookies hold.
Source: docs/protocols/storage.md, "Auto-recovery".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from heliograph.kv.metadata_store import MetadataStore
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import CorruptData, VersionConflict
from heliograph.model.ledger_metadata import pack, unpack
from local_meta import keys

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Mark:
    lost: Sequence[str] = ()
    """Bookies that are gone for good: others get copies in their place."""
    lacking: Mapping[str, int] = field(default_factory=dict)
    """Bookies that are there, or will be again, and may lack entries -> an entry up to which all is confirmed: they get
    what they lack.
    """
    nowhere: bool = False
    """They have got what they lacked, but for entries of which no bookie has a copy."""

    def encode(self) -> bytes:
        lacking = [[bookie, through] for bookie, through in sorted(self.lacking.items())]
        return pack([list(self.lost), lacking, *([True] if self.nowhere else [])])

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        lost, *more = unpack("mark of a ledger", blob)
        try:
            lacking = {str(bookie): int(through) for bookie, through in (more[0] if more else ())}
            return cls(tuple(lost), lacking, len(more) > 1 and more[1] is True)
        except (TypeError, ValueError) as error:
            raise CorruptData(f"mark of a ledger: {error}") from error

    @classmethod
    def read(cls, ledger: int, blob: bytes) -> Self:
        """As `decode`; one that cannot be read is told, and says nothing: it is written anew with the next addition,
        and what it said is found again.
        """
        return readable(cls.decode, keys.underreplicated(ledger), blob) or cls()

    def with_lacking(self, bookies: Mapping[str, int]) -> Mark:
        return replace(
            self,
            lacking={**self.lacking, **{b: max(through, self.lacking.get(b, -1)) for b, through in bookies.items()}},
            nowhere=False,
        )

    def with_lost(self, bookies: Iterable[str]) -> Mark:
        return replace(self, lost=tuple(dict.fromkeys([*self.lost, *bookies])))


async def mark_lost(meta: MetadataStore, ledger: int, bookies: Iterable[str], since: int | None = None) -> int:
    """bookies: as `Mark.lost`. Returns the version of the mark, which stands until whoever repairs the ledger finds
    nothing more to do.

    since: the version of a mark that must have stood until now. Raises VersionConflict where another stands, and what
    the metadata raises.
    """
    key = keys.underreplicated(ledger)
    found = await meta.get(key)
    before, version = (Mark.read(ledger, found[0]), found[1]) if found is not None else (Mark(), -1)
    return await meta.put(key, before.with_lost(bookies).encode(), expected=version if since is None else since)


async def mark_lacking(meta: MetadataStore, ledger: int, bookies: Mapping[str, int]) -> None:
    """bookies: as `Mark.lacking`. Raises VersionConflict where others changed the mark again and again, and what the
    metadata raises.
    """
    key = keys.underreplicated(ledger)
    for attempt in range(_ATTEMPTS):
        found = await meta.get(key)
        before, version = (Mark.read(ledger, found[0]), found[1]) if found is not None else (Mark(), -1)
        # written also where it says so already: whoever repairs it just now may have looked before these were lacking
        try:
            await meta.put(key, before.with_lacking(bookies).encode(), expected=version)
            return
        except VersionConflict:
            if attempt == _ATTEMPTS - 1:
                raise


async def look_again(meta: MetadataStore, ledger: int) -> None:
    """Something of what no bookie had was brought back: whoever repairs the ledger finds out what is left. Raises what
    the metadata raises.
    """
    key = keys.underreplicated(ledger)
    found = await meta.get(key)
    if found is not None and (mark := Mark.read(ledger, found[0])).nowhere:
        with contextlib.suppress(VersionConflict):  # then somebody looks at it just now
            await meta.put(key, replace(mark, nowhere=False).encode(), expected=found[1])
