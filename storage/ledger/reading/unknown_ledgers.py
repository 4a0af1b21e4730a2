"""Ledgers that lie on bookies and that the metadata does not know: what was published after the backup that a metadata
was restored from.

Is: finding them, and reading one from whichever bookies hold it. Isn't: a judge of which topic it belonged to (only the
lost metadata knew), or a deletion.
Invariants: what is read is the gapless beginning of the ledger, each entry once and verified, from any copy; it is
fenced first, so that a writer of before adds nothing behind. It may hold entries that were never acknowledged, as any
recovery may.
Source: docs/operating.md, "Backup and restore".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from heliograph.kv.metadata_store import MetadataStore, prefix_end
from heliograph.model.errors import BookieUnavailable, CorruptData, NoSuchEntry, NoSuchLedger
from heliograph.wire.block import decode_block
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.bookies.bookie_port import BookiePort

_READ_BYTES = 1 << 20


class ListingBookie(BookiePort, Protocol):
    async def ledgers(self) -> list[int]:
        """Ids of the ledgers held there, ascending."""
        ...


@dataclass(slots=True)
class Unknown:
    """One such ledger. Numbers are those of its gapless beginning; times are the brokers' wall time."""

    ledger: int
    bookies: list[str]
    entries: int = 0
    messages: int = 0
    size_bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    replicated_entries: int = 0
    """First published in another region, which has them."""
    producers: set[str] = field(default_factory=set)
    beyond_a_gap: bool = False
    """A bookie holds entries behind one that nobody holds."""


async def unknown_ledgers(meta: MetadataStore, bookies: Mapping[str, ListingBookie]) -> dict[int, list[str]]:
    """Ledger -> who holds it. The bookies are asked before the metadata, so a ledger that was just made is not taken
    for unknown.
    """
    held: dict[int, list[str]] = {}
    for name, client in sorted(bookies.items()):
        for ledger in await client.ledgers():
            held.setdefault(ledger, []).append(name)
    start, end = keys.LEDGERS, prefix_end(keys.LEDGERS)
    while page := await meta.range(start, end):
        for key, _, _ in page:
            held.pop(keys.ledger_of(key), None)
        start = page[-1][0] + "\0"
    return dict(sorted(held.items()))


async def read_unknown(ledger: int, holders: Iterable[BookiePort], found: Unknown) -> AsyncIterator[tuple[int, Run]]:
    """(first entry, run), from entry 0 to the first that nobody holds. Fences the ledger first; `found` counts what was
    given out.

    Raises BookieUnavailable where a bookie that does not answer may hold what is next, CorruptData where every copy of
    it is damaged.
    """
    bookies, at = list(holders), 0
    last = max([(await bookie.fence(ledger))[1] for bookie in bookies], default=-1)
    while (run := await _run_at(ledger, at, bookies)) is not None:
        found.entries += run.count
        found.messages += run.messages
        found.size_bytes += run.size_bytes
        found.replicated_entries += run.count if run.origin is not None else 0
        found.first_ms, found.last_ms = found.first_ms or run.time_ms, run.time_ms
        found.producers.update(segment[0] for segment in run.producers)
        yield at, run
        at += run.count
    found.beyond_a_gap = last >= at


async def _run_at(ledger: int, entry: int, bookies: list[BookiePort]) -> Run | None:
    """What begins at `entry`, from the first bookie that has it whole; None where each says that it has not."""
    trouble: BookieUnavailable | CorruptData | None = None
    for bookie in bookies:
        try:
            _, first, run = decode_block((await bookie.read(ledger, entry, entry, _READ_BYTES))[0])
        except (NoSuchEntry, NoSuchLedger):
            continue
        except (BookieUnavailable, CorruptData) as error:
            trouble = error
            continue
        return run.cut(entry - first, run.count)
    if trouble is not None:
        raise trouble
    return None
