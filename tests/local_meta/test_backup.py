"""The rules of a restore, for the local metadata and for the global configuration."""

from __future__ import annotations

import random
from dataclasses import replace

import msgpack
import pytest

from global_config import backup as config_rules
from global_config import keys as config_keys
from heliograph.kv.engine.table_rows import Row
from heliograph.model.errors import ConfigError, CorruptData
from heliograph.model.ledger_metadata import (
    LedgerInfo,
    LedgerMetadata,
    LedgerPage,
    LedgerState,
    ManagedLedgerMetadata,
    OffloadRecord,
    OffloadState,
    encode_page,
    local_gone,
    page_ledgers,
)
from local_meta import keys
from local_meta.backup import (
    COUNTERS_MARGIN,
    LEDGER_IDS_MARGIN,
    RestoredKeys,
    addresses,
    ledger_ids_from,
    new_instance,
    restored_counters,
    restored_rows,
    survey,
)
from local_meta.located_ledger import LocatedLedger

TOPIC = "persistent://public/default/t"


def ledger(number: int, *bookies: str, state: LedgerState = LedgerState.CLOSED, last: int = 9) -> tuple[str, Row]:
    return keys.ledger(number), (
        LedgerMetadata(number, 2, 2, ((0, bookies),), state, last, topic=TOPIC).encode(),
        number,
        0,
    )


def bookie(name: str, port: int) -> tuple[str, Row]:
    return keys.bookie(name), (
        msgpack.packb({"host": "10.0.0.1", "port": port, "http_port": 0, "writable": True}),
        3,
        77,
    )


def topic(*ledgers: int) -> tuple[str, Row]:
    return keys.managed_ledger(TOPIC), (
        ManagedLedgerMetadata(tuple(LedgerInfo(number, closed_ms=1) for number in ledgers)).encode(),
        5,
        0,
    )


ROWS = [
    bookie("b0", 1),
    bookie("b1", 2),
    (keys.INSTANCE, (b"old", 1, 0)),
    ledger(3, "b0", "b1"),
    ledger(4, "b0", "b1"),
    ledger(5, "b0", "b2"),
    ledger(6, "b0", "b1", last=-1),
    ledger(7, "b0", "b1", state=LedgerState.OPEN, last=-1),
    topic(3, 4, 5, 6, 7),
    (keys.owner("public/default", 1), (b"me", 4, 76)),
]


def restore(held: dict[str, list[int]]) -> tuple[dict[str, bytes], RestoredKeys]:
    done = RestoredKeys()
    rows = dict(restored_rows(ROWS, held, "new", done))
    assert done.keys == len(rows)
    return rows, done


def test_what_hung_on_a_lease_is_gone_and_the_instance_is_another() -> None:
    rows, _ = restore({})
    assert rows[keys.INSTANCE] == b"new"
    assert not [key for key in rows if key.startswith((keys.BOOKIES, keys.OWNERS))]
    assert rows[keys.managed_ledger(TOPIC)] == dict(ROWS)[keys.managed_ledger(TOPIC)][0]
    assert len({new_instance(random.Random(seed)) for seed in range(50)}) == 50


def test_the_secret_of_the_brokers_stays_in_the_backup() -> None:
    rows = [(f"{keys.BROKERS_SECRET}{end}", (bytes(64), 3, 0)) for end in ("", "-before")]
    assert [key for key, _ in restored_rows(rows, {}, "new", RestoredKeys())] == [keys.INSTANCE]


def test_no_ledger_id_comes_twice() -> None:
    known = survey(ROWS)
    assert known.ledgers == {3, 4, 5, 6, 7} and known.topics == 1 and known.leased == 3
    assert ledger_ids_from({}, known, {}, 0) == 8 + LEDGER_IDS_MARGIN
    assert ledger_ids_from({keys.LEDGER_IDS: 100}, known, {"b0": [3, 20]}, 0) == 100 + LEDGER_IDS_MARGIN
    assert ledger_ids_from({keys.LEDGER_IDS: 100}, known, {"b0": [3], "b1": [5000]}, 0) == 5001 + LEDGER_IDS_MARGIN
    clock_ms = 1_800_000_000_000
    begun = {keys.LEDGER_IDS: clock_ms - 86_400_000}  # founded a day ago, as many ledgers as there were
    assert ledger_ids_from(begun, known, {}, clock_ms) == clock_ms, "above all that was given since the backup"


def test_no_number_of_another_counter_comes_twice() -> None:
    """What was published since the backup has producers' and transactions' numbers that it does not know of."""
    made = {keys.LEDGER_IDS: 100, "other": 4}
    now_ms = 1_800_000_000_000
    assert restored_counters(made, 7000, now_ms) == [(keys.LEDGER_IDS, 7000), ("other", now_ms)]
    assert dict(restored_counters(made, 7000, now_ms + 1000))["other"] >= now_ms + 1000, "the same backup once more"
    assert dict(restored_counters(made, 7000, 0))["other"] == 4 + COUNTERS_MARGIN, "the clock is wrong"


def test_a_ledger_that_was_deleted_since_is_forgotten_again() -> None:
    rows, done = restore({"b0": [3], "b1": [3]})
    assert done.vanished == {4}  # 5: one of its bookies was not asked; 6: empty; 7: open, its topic recovers it
    assert keys.ledger(4) not in rows and keys.ledger(5) in rows
    kept = ManagedLedgerMetadata.decode(rows[keys.managed_ledger(TOPIC)])
    assert [info.ledger for info in kept.ledgers] == [3, 5, 6, 7]
    assert restore({"b0": [3]})[1].vanished == set()
    assert restore({"b0": [], "b1": [4]})[1].vanished == {3}


def test_a_ledger_that_lies_in_an_object_store_is_kept() -> None:
    """Its copies on bookies were deleted since, or were not there any more."""
    stored, begun = OffloadRecord("ab", "us-1", OffloadState.STORED, size_bytes=9), OffloadRecord("cd", "us-1")
    infos = (
        LedgerInfo(3, closed_ms=1, offload=stored),
        LedgerInfo(4, closed_ms=1, offload=begun),
        LedgerInfo(6, closed_ms=1),
    )
    key, (_, *about) = topic()
    rows = [ledger(3, "b0"), ledger(4, "b0"), ledger(6, "b0"), (key, (ManagedLedgerMetadata(infos).encode(), *about))]
    done = RestoredKeys()
    restored = dict(restored_rows(rows, {"b0": [6]}, "new", done))  # type: ignore[arg-type]
    assert done.vanished == {3, 4} and keys.ledger(3) not in restored
    kept = ManagedLedgerMetadata.decode(restored[key]).ledgers
    assert [(info.ledger, local_gone(info)) for info in kept] == [(3, True), (6, False)]


def test_pages_of_ledgers_lose_what_was_deleted_since_too() -> None:
    """Of the first page the first ledger was trimmed before; of the second nothing is left."""
    stored = OffloadRecord("ab", "us-1", OffloadState.STORED, size_bytes=9)
    infos = [
        LedgerInfo(number, 10, 100, closed_ms=1, offload=stored if number == 4 else None) for number in range(2, 9)
    ]
    pages = (LedgerPage.of(2, 1, infos[1:3]), LedgerPage.of(5, 0, infos[3:5]))
    key, (_, *about) = topic()
    rows = [
        *(ledger(number, "b0") for number in range(3, 9)),
        (keys.ledger_page(TOPIC, 2), (encode_page(infos[:3]), 5, 0)),
        (keys.ledger_page(TOPIC, 5), (encode_page(infos[3:5]), 5, 0)),
        (key, (ManagedLedgerMetadata(tuple(infos[5:]), pages=pages).encode(), *about)),
    ]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows), "in this order they lie in a backup"
    done = RestoredKeys()
    restored = dict(restored_rows(rows, {"b0": [3, 7, 8]}, "new", done))  # type: ignore[arg-type]
    assert done.vanished == {4, 5, 6} and keys.ledger_page(TOPIC, 5) not in restored
    found = ManagedLedgerMetadata.decode(restored[key])
    assert [page.key for page in found.pages] == [2] and [info.ledger for info in found.ledgers] == [7, 8]
    left = page_ledgers(restored[keys.ledger_page(TOPIC, 2)])
    assert found.pages[0] == LedgerPage.of(2, 1, left[1:]) and [(i.ledger, local_gone(i)) for i in left] == [
        (2, False),
        (3, False),
        (4, True),
    ]
    assert dict(restored_rows(rows, {}, "new", RestoredKeys()))[key] == rows[-1][1][0]  # type: ignore[arg-type]


def test_what_cannot_be_read_is_restored_as_it_is_and_named() -> None:
    """A ledger, a page, and a topic; all others are restored as ever."""
    bad = b"\xffno record"
    other = "persistent://public/default/other"
    rows = [
        *(row for row in ROWS if row[0].startswith(keys.LEDGERS)),
        (keys.ledger(9), (bad, 5, 0)),
        (keys.ledger_page(other, 2), (bad, 5, 0)),
        (keys.managed_ledger(other), (bad, 5, 0)),
        topic(3, 4, 5, 6, 7),
    ]
    known = survey(rows)
    assert 9 in known.ledgers and known.topics == 2
    done = RestoredKeys()
    restored = dict(restored_rows(rows, {"b0": [3], "b1": [3]}, "new", done))
    assert done.vanished == {4} and [i.ledger for i in ManagedLedgerMetadata.decode(restored[topic()[0]]).ledgers] == [
        3,
        5,
        6,
        7,
    ]
    assert done.unreadable == [keys.ledger(9), keys.ledger_page(other, 2), keys.managed_ledger(other)]
    assert {restored[key] for key in done.unreadable} == {bad}


def test_every_bookie_is_asked_that_may_hold_something() -> None:
    known = survey(ROWS)
    with pytest.raises(ConfigError, match="--bookie b2=HOST:PORT"):
        addresses(known, {}, ())
    assert addresses(known, {"b2": ("h", 9), "b0": ("h", 8)}, ()) == {
        "b0": ("h", 8),
        "b1": ("10.0.0.1", 2),
        "b2": ("h", 9),
    }
    assert sorted(addresses(known, {}, ["b2", "b1"])) == ["b0"]
    with pytest.raises(CorruptData):
        survey([(keys.bookie("x"), (b"\x01", 1, 0))])


def test_the_global_configuration_gives_no_number_twice() -> None:
    rows: list[tuple[str, Row]] = [(config_keys.region("us"), (b"{}", 4, 0)), ("/leased", (b"", 4, 9))]
    assert dict(config_rules.restored_rows(rows, 0)).pop(config_keys.region("us")) == b"{}"
    assert dict(config_rules.restored_counters({config_keys.NUMBERS: 4}))[config_keys.NUMBERS] > 1000
    assert dict(config_rules.restored_counters({}))[config_keys.NUMBERS] > 1000


def test_a_ledger_that_moved_since_the_backup_is_read_where_its_copy_lay_already() -> None:
    """7 was copied whole to 70 then, 8 to 80 only in part, 9 had moved to 90; since then all of them were deleted that
    had a copy, and 90.
    """
    closed = LedgerMetadata(7, 1, 1, ((0, ("b1",)),), LedgerState.CLOSED, 4, 50, TOPIC)
    records = [replace(closed, ledger=number) for number in (7, 8, 70, 80, 90)]
    places = [
        LocatedLedger(7, TOPIC, next=70, next_key=2, copied_ms=5),
        LocatedLedger(8, TOPIC, next=80, next_key=2),
        LocatedLedger(9, TOPIC, 90, 2),
    ]
    infos = tuple(LedgerInfo(number, 5, 50, 1) for number in (7, 8, 9))
    rows = [(keys.ledger(record.ledger), (record.encode(), 1, 0)) for record in records]
    rows += [(keys.located(place.ledger), (place.encode(), 1, 0)) for place in places]
    rows += [(keys.managed_ledger(TOPIC), (ManagedLedgerMetadata(infos).encode(), 1, 0))]
    assert rows == sorted(rows)
    done = RestoredKeys()
    kept = dict(restored_rows(rows, {"b1": [70, 80]}, "new", done))
    assert LocatedLedger.decode(kept[keys.located(7)]) == LocatedLedger(7, TOPIC, 70, 2)
    assert [info.ledger for info in ManagedLedgerMetadata.decode(kept[keys.managed_ledger(TOPIC)]).ledgers] == [7]
    assert keys.located(8) not in kept and keys.located(9) not in kept
    kept = dict(restored_rows(rows, {"b1": [7, 8, 90]}, "new", RestoredKeys()))
    assert LocatedLedger.decode(kept[keys.located(7)]) == LocatedLedger(7, TOPIC), "the copy went"
    assert [info.ledger for info in ManagedLedgerMetadata.decode(kept[keys.managed_ledger(TOPIC)]).ledgers] == [7, 8, 9]
