"""What a restore of a region's local metadata changes in what the backup holds.

Is: the rules, row by row, and what must be known of the bookies for them. Isn't: files (heliograph.kv.backup_file),
asking bookies, or the raise of the region's epoch, which the brokers see to when they find another `/instance` than the
one that the global configuration knows.
Invariants: no ledger id, and no number of another counter, is given out that may have been given out before, also by a
metadata that is lost; nothing is taken for deleted that a bookie holds, or might hold (one of its bookies was not
asked); keys under a lease are gone, because whoever held it is; so is the secret by which brokers know each other,
since whoever had the backup may know it; the restored metadata has an `/instance` of its own, so that no bookie deletes
by it before an operator confirms.
Source: docs/architecture.md, "Coordinates"; docs/operating.md, "Backup and restore".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgpack

from heliograph.kv.engine.table_rows import Row
from heliograph.kv.history import HISTORY
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import ConfigError, CorruptData
from heliograph.model.ledger_metadata import (
    LedgerInfo,
    LedgerMetadata,
    LedgerPage,
    LedgerState,
    ManagedLedgerMetadata,
    OffloadState,
    encode_page,
    page_ledgers,
    stored,
)
from heliograph.runtime.clock import Rng
from local_meta import keys
from local_meta.located_ledger import NOWHERE, LocatedLedger

LEDGER_IDS_MARGIN = 1_000_000
"""Ids that may have been given out since the backup and stand on no bookie any more, or not yet, where the clock is
wrong. No more: a metadata that is founded anew soon after begins at the clock, which is by then to be above them.
"""

COUNTERS_MARGIN = 1_000_000
"""Numbers of every other counter that may have been given out since the backup, where the clock is wrong: what was
published under them lies in topics.
"""


@dataclass(slots=True)
class Survey:
    """What a first pass over a backup tells."""

    keys: int = 0
    leased: int = 0
    ledgers: set[int] = field(default_factory=set)
    topics: int = 0
    bookies: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Id -> (host, port) of those that were registered then."""
    named_bookies: set[str] = field(default_factory=set)
    """Those that a ledger names."""


@dataclass(slots=True)
class RestoredKeys:
    """What the second pass did."""

    keys: int = 0
    vanished: set[int] = field(default_factory=set)
    """Closed ledgers that bookies have no more: deleted since the backup, or moved to an object store."""
    pages: dict[tuple[str, int], tuple[LedgerInfo, ...]] = field(default_factory=dict)
    """(topic, key) -> what is left of a page that lost some; () where nothing is."""
    unreadable: list[str] = field(default_factory=list)
    """Keys of records that cannot be read: they are restored as they were."""


def survey(rows: Iterable[tuple[str, Row]]) -> Survey:
    """Reads what a restore must know of all rows of a backup. Raises CorruptData where a bookie's address cannot be
    read.
    """
    found = Survey()
    for key, (value, _, lease) in rows:
        found.keys += 1
        found.leased += bool(lease)
        if key.startswith(keys.LEDGERS):
            found.ledgers.add(keys.ledger_of(key))
            if (ledger := readable(LedgerMetadata.decode, key, value)) is not None:
                for _, bookies in ledger.fragments:
                    found.named_bookies.update(bookies)
        elif key.startswith(keys.MANAGED_LEDGERS):
            found.topics += 1
        elif key.startswith(keys.BOOKIES):
            found.bookies[keys.id_of(key)] = _address(key, value)
    return found


def ledger_ids_from(counters: Mapping[str, int], known: Survey, held: Mapping[str, Iterable[int]], wall_ms: int) -> int:
    """The first ledger id that a restored metadata may give out: as for one that begins empty (`node`), and above
    all that is known. held: bookie -> the ledgers it holds, of those that were asked. wall_ms: now.
    """
    highest = max(known.ledgers, default=-1)
    for ledgers in held.values():
        highest = max(highest, max(ledgers, default=-1))
    return max(counters.get(keys.LEDGER_IDS, 0) + LEDGER_IDS_MARGIN, highest + 1 + LEDGER_IDS_MARGIN, wall_ms)


def restored_counters(counters: Mapping[str, int], first_ledger: int, wall_ms: int) -> list[tuple[str, int]]:
    """The next number of every counter. wall_ms: now, which no counter comes near to by what it gives out, so that a
    backup which is restored twice gives other numbers each time.
    """
    begun = {name: max(following + COUNTERS_MARGIN, wall_ms) for name, following in counters.items()}
    return sorted({**begun, keys.LEDGER_IDS: first_ledger}.items())


def new_instance(rng: Rng) -> str:
    """The text at `/instance`. Random, so that no two restores of one backup are taken for each other."""
    return f"{rng.getrandbits(128):032x}"


def restored_rows(
    rows: Iterable[tuple[str, Row]], held: Mapping[str, Iterable[int]], instance: str, done: RestoredKeys
) -> Iterator[tuple[str, bytes]]:
    """rows: in the order of their keys, so ledgers come before the pages that name them, and both before the topics.
    done: is filled in.
    """
    present: set[int] = set()
    for ledgers in held.values():
        present.update(ledgers)
    for key, (value, _, lease) in rows:
        if lease or key in (keys.INSTANCE, HISTORY) or key.startswith(keys.BROKERS_SECRET):
            continue
        try:
            kept = _kept(key, value, present, held, done)
        except CorruptData:
            kept = value
            done.unreadable.append(key)
        if kept is not None:
            done.keys += 1
            yield key, kept
    done.keys += 1
    yield keys.INSTANCE, instance.encode()


def _kept(
    key: str, value: bytes, present: set[int], held: Mapping[str, Iterable[int]], done: RestoredKeys
) -> bytes | None:
    """What is left of it; None: nothing. Raises CorruptData where it cannot be read."""
    if key.startswith(keys.LEDGERS) and _vanished(LedgerMetadata.decode(value), present, held):
        done.vanished.add(keys.ledger_of(key))
        return None
    if key.startswith(keys.LOCATED):
        return _located(LocatedLedger.decode(value), done.vanished)
    if key.startswith(keys.LEDGER_PAGES) and done.vanished:
        return _page_without(keys.topic_of(key), keys.ledger_of(key), value, done)
    if key.startswith(keys.MANAGED_LEDGERS) and done.vanished:
        return _without(keys.topic_of(key), value, done)
    return value


def _vanished(ledger: LedgerMetadata, present: set[int], held: Mapping[str, Iterable[int]]) -> bool:
    """It had entries, all its bookies were asked, and nobody holds it: it was deleted since. (What is open is recovered
    when its topic is loaded.)
    """
    if ledger.state is not LedgerState.CLOSED or ledger.last_entry < 0 or ledger.ledger in present:
        return False
    return all(bookie in held for _, bookies in ledger.fragments for bookie in bookies)


def _located(place: LocatedLedger, vanished: set[int]) -> bytes | None:
    """Since the backup its entries may have come to lie elsewhere, which the place named already where it was whole
    then.
    """
    if place.next in vanished:
        place = replace(place, next=NOWHERE, next_key=0, copied_ms=0)
    if (place.ledger if place.at < 0 else place.at) in vanished:
        if not place.copied_ms:
            vanished.add(place.ledger)
            return None
        vanished.discard(place.ledger)
        place = place.moved
    return place.encode()


def _without(name: str, value: bytes, done: RestoredKeys) -> bytes:
    topic = ManagedLedgerMetadata.decode(value)
    changed = any((name, page.key) in done.pages for page in topic.pages)
    if not changed and not any(info.ledger in done.vanished for info in topic.ledgers):
        return value
    pages: list[LedgerPage] = []
    for page in topic.pages:
        left = done.pages.get((name, page.key))
        if left is None:
            pages.append(page)
        elif still := [info for info in left if info.ledger >= page.first.ledger]:
            pages.append(LedgerPage.of(page.key, len(left) - len(still), still))
    return replace(topic, ledgers=_left(topic.ledgers, done.vanished), pages=tuple(pages)).encode()


def _page_without(topic: str, key: int, value: bytes, done: RestoredKeys) -> bytes | None:
    """None: nothing is left of it."""
    infos = page_ledgers(value)
    if not any(info.ledger in done.vanished for info in infos):
        return value
    done.pages[topic, key] = left = _left(infos, done.vanished)
    return encode_page(left) if left else None


def _left(infos: Sequence[LedgerInfo], vanished: set[int]) -> tuple[LedgerInfo, ...]:
    """What an object store has whole is read from there; the rest is gone."""
    left: list[LedgerInfo] = []
    for info in infos:
        if info.ledger not in vanished:
            left.append(info)
        elif info.offload is not None and stored(info):
            left.append(replace(info, offload=replace(info.offload, state=OffloadState.LOCAL_GONE)))
    return tuple(left)


def _address(key: str, value: bytes) -> tuple[str, int]:
    try:
        fields = msgpack.unpackb(value)
        return str(fields["host"]), int(fields["port"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{key}: {error}") from error


def addresses(
    known: Survey, given: Mapping[str, tuple[str, int]], without: Iterable[str]
) -> dict[str, tuple[str, int]]:
    """Whom to ask: every bookie that was registered or that a ledger names, less those that are given up. Raises
    ConfigError where none has an address.
    """
    left_out = set(without)
    wanted = sorted((set(known.bookies) | known.named_bookies | set(given)) - left_out)
    found = {**known.bookies, **given}
    missing = [bookie for bookie in wanted if bookie not in found]
    if missing:
        raise ConfigError(
            f"ledgers of the backup name bookie {missing[0]}, and the backup has no address of it: give it with "
            f"--bookie {missing[0]}=HOST:PORT, "
            f"or --without-bookie {missing[0]} if it is gone for good"
        )
    return {bookie: found[bookie] for bookie in wanted}
