"""Audit: which bookies count as lost, and which fragments of a ledger have to be copied because of that.

Is: the decisions of auto-recovery, as plain values. Isn't: I/O, the copy, or who decides.
Invariants: only a fragment that can grow no more is copied: of a ledger that is not closed the last one belongs to its
live writer, or to its recovery; everything in an earlier one is confirmed. A copy is recorded only in the fragment that
it was made of; one that lacks entries splits it, so that the lost bookie stays named for these alone.
Source: docs/protocols/storage.md, "Auto-recovery".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from heliograph.model.configuration.setting import check_bounds, setting
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState

FRAGMENTS_MAX = 256
"""A ledger is split around what cannot be read into so many fragments at the most: beyond, the shortest stretches that
can be read wait for their copy with what lies around them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoverySettings:
    enabled: bool = setting(True, theirs="autoRecoveryDaemonEnabled")
    """This broker looks for lost bookies, and copies."""
    lost_after_s: float = setting(60.0, "s", above=0, theirs="lostBookieRecoveryDelay")
    """A bookie whose registration is gone for so long counts as lost: longer than a restart takes."""
    bytes_per_s: int = setting(32 << 20, "B/s", least=1, theirs="replicationRateByBytes")
    """What one broker copies at most."""
    marks_max: int = setting(1000, "ledgers", least=1)
    """Ledgers that wait at one time for a copy in place of a lost bookie's, and as many for one that a bookie lacks;
    further ones are found when these are done.
    """
    scan_s: float = setting(3600.0, "s", above=0, theirs="auditorPeriodicBookieCheckInterval")
    """How often every ledger is looked at although no bookie has gone."""
    check_s: float = setting(86400.0, "s", above=0, theirs="auditorPeriodicCheckInterval")
    """How long the check takes that asks each bookie whether it holds what it should of every ledger."""
    rescan_s: float = setting(10.0, "s", above=0)
    """How often, while an open ledger still names a lost bookie; and the pause before a copy that failed is tried
    again.
    """
    tick_s: float = setting(1.0, "s", above=0)
    """How often this broker looks for what it is to do."""
    abandoned_after_s: float = setting(600.0, "s", above=0, theirs="openLedgerRereplicationGracePeriod (ms)")
    """An open ledger that still names a lost bookie after so long, although there is a spare, has no writer any more:
    it is closed by recovery.
    """
    orphan_grace_s: float = setting(3600.0, "s", above=0)
    """A ledger that no topic names is deleted after so long."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.auto_recovery")


class LostBookies:
    """Since when each known bookie is away."""

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._registered: dict[str, None] = {}
        self._away: dict[str, float] = {}

    def on_registered(self, bookies: Iterable[str], now: float) -> None:
        """These are registered now, and no others."""
        present = dict.fromkeys(bookies)
        for bookie in self._registered:
            if bookie not in present:
                self._away.setdefault(bookie, now)
        for bookie in present:
            self._away.pop(bookie, None)
        self._registered = present

    def on_named(self, bookies: Iterable[str], now: float) -> None:
        """Ledgers name these: one that was never seen here is away from now on."""
        for bookie in bookies:
            if bookie not in self._registered:
                self._away.setdefault(bookie, now)

    def lost(self, now: float) -> list[str]:
        """Nobody is lost while nobody at all is registered: then it is the metadata that was away, or the whole
        region.
        """
        if not self._registered:
            return []
        return sorted(b for b, since in self._away.items() if now - since >= self._lost_after_s)


@dataclass(frozen=True, slots=True)
class Repair:
    """Entries `first` to `last` lack the copies of `lost`; they lie, or lay, on `ensemble`."""

    first: int
    last: int
    ensemble: tuple[str, ...]
    lost: tuple[str, ...]


def repairs(metadata: LedgerMetadata, lost: Collection[str]) -> list[Repair]:
    """What has to be copied, in the order of the entries. Fragments without an entry have nothing to copy."""
    found: list[Repair] = []
    fragments = metadata.fragments
    for index, (first, ensemble) in enumerate(fragments):
        if index + 1 < len(fragments):
            last = fragments[index + 1][0] - 1
            if metadata.state == LedgerState.CLOSED:
                last = min(last, metadata.last_entry)
        elif metadata.state == LedgerState.CLOSED:
            last = metadata.last_entry
        else:
            break
        gone = tuple(b for b in ensemble if b in lost)
        if gone and first <= last:
            found.append(Repair(first, last, ensemble, gone))
    return found


def waits_for_its_writer(metadata: LedgerMetadata, lost: Collection[str]) -> bool:
    """Whether a lost bookie is named where nobody but the writer, or a recovery, may replace it."""
    return metadata.state != LedgerState.CLOSED and any(b in lost for b in metadata.fragments[-1][1])


def with_copy(
    metadata: LedgerMetadata, repair: Repair, lost: str, spare: str, unread: Sequence[tuple[int, int]] = ()
) -> LedgerMetadata | None:
    """The metadata with `spare`, which holds every entry of `repair` but those of `unread`, in the place of `lost`,
    which stays named for these; None where that fragment is another one by now.

    unread: [first, last] of each, ascending and apart.
    """
    for current in repairs(metadata, (lost,)):
        same_place = current.ensemble.index(lost) == repair.ensemble.index(lost)  # else it has other stripes by now
        same = same_place and (current.first, current.last) == (repair.first, repair.last)
        if same and spare not in current.ensemble:
            ensemble = tuple(spare if b == lost else b for b in current.ensemble)
            fragments: list[tuple[int, tuple[str, ...]]] = []
            for first, before in metadata.fragments:
                pieces = [(first, False)]
                if first == repair.first:
                    pieces = _pieces(repair, unread, FRAGMENTS_MAX - len(metadata.fragments) + 1)
                for at, copied in pieces:
                    places = ensemble if copied else before
                    # where nobody adds any more, those that have become one are one again
                    if metadata.state != LedgerState.CLOSED or not fragments or fragments[-1][1] != places:
                        fragments.append((at, places))
            return replace(metadata, fragments=tuple(fragments))
    return None


def _pieces(repair: Repair, unread: Sequence[tuple[int, int]], pieces_max: int) -> list[tuple[int, bool]]:
    """(first entry, whether it was copied) of each piece that the repair falls into, in turn; of more than `pieces_max`
    the longest that were copied.
    """
    copied: list[tuple[int, int]] = []
    at = repair.first
    for first, last in [*unread, (repair.last + 1, repair.last + 1)]:
        if at < first:
            copied.append((at, first - 1))
        at = last + 1
    if unread and len(copied) + len(unread) > pieces_max:
        longest = sorted(copied, key=lambda part: part[0] - part[1])[: max(0, (pieces_max - 1) // 2)]
        copied = sorted(longest)
    pieces: list[tuple[int, bool]] = []
    at = repair.first
    for first, last in copied:
        if at < first:
            pieces.append((at, False))
        pieces.append((first, True))
        at = last + 1
    if at <= repair.last:
        pieces.append((at, False))
    return pieces


def is_surplus(metadata: LedgerMetadata, bookie: str) -> bool:
    """Whether what `bookie` holds of this ledger is no copy any more. Whoever deletes it sees first that no copy to it
    is under way.
    """
    return metadata.state == LedgerState.CLOSED and all(bookie not in ensemble for _, ensemble in metadata.fragments)
