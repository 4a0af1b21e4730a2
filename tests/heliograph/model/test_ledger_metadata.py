"""Metadata values come back as they were; another format is refused with a sentence."""

from __future__ import annotations

import random
from dataclasses import replace

import msgpack
import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.model.configuration.policy_table import applied, checked
from heliograph.model.errors import ConfigError, CorruptData
from heliograph.model.ledger_metadata import (
    TRIMMED_MS,
    LedgerInfo,
    LedgerMetadata,
    LedgerPage,
    LedgerState,
    ManagedLedgerMetadata,
    OffloadRecord,
    OffloadState,
)


def test_ledger_metadata() -> None:
    ledger = LedgerMetadata(7, 2, 2, ((0, ("a", "b")),)).with_fragment(10, ("a", "c"))
    assert ledger.ensemble_at(9) == ("a", "b") and ledger.ensemble_at(10) == ("a", "c") == ledger.ensemble_at(99)
    assert LedgerMetadata.decode(ledger.encode()) == ledger
    assert ledger.with_fragment(10, ("d", "c")).fragments == ((0, ("a", "b")), (10, ("d", "c")))
    assert LedgerMetadata.decode(ledger.encode()).state is LedgerState.OPEN


def test_managed_ledger_metadata() -> None:
    value = ManagedLedgerMetadata(
        (LedgerInfo(1, 5, 50, 9, 0), LedgerInfo(2, first_index=5)), b"state", (1, 4), (1, 4), {"k": "v"}
    )
    assert ManagedLedgerMetadata.decode(value.encode()) == value
    assert ManagedLedgerMetadata.decode(ManagedLedgerMetadata().encode()) == ManagedLedgerMetadata()


def test_the_first_ledger_left_is_no_older_than_the_last_trimmed_one() -> None:
    infos = (LedgerInfo(3, 5, 50, 30, 0), LedgerInfo(4, 5, 50, 40, 5), LedgerInfo(5, first_index=10))
    trimmed = ManagedLedgerMetadata(infos, properties={TRIMMED_MS: "20"})
    assert ManagedLedgerMetadata.decode(trimmed.encode()).spans() == [(20, 30), (30, 40), (40, 0)]
    paged = replace(trimmed, ledgers=infos[2:], pages=(LedgerPage.of(1, 2, infos[:2]),))
    assert ManagedLedgerMetadata.decode(paged.encode()).spans() == [(20, 40), (40, 0)], "a page counts as one ledger"
    for unknown in ({}, {TRIMMED_MS: ""}, {TRIMMED_MS: "x"}, {TRIMMED_MS: "-4"}):
        assert replace(trimmed, properties=unknown).spans()[0] == (0, 30), "what is not said is not guessed"
    assert ManagedLedgerMetadata(properties={TRIMMED_MS: "20"}).spans() == []


@pytest.mark.parametrize("blob", [b"", b"\x02\x90", b"\x01", b"\x01\xc1", b"\x01\x80"])
def test_other_formats_are_refused(blob: bytes) -> None:
    with pytest.raises(CorruptData):
        LedgerMetadata.decode(blob)


def test_policies_come_back_and_unknown_fields_are_skipped() -> None:
    for value in (
        NamespacePolicies(regions=("us", "eu"), policies={"deduplication": True}),
        TenantInfo(admin_roles=("a",), allowed_regions=("us",)),
        RegionInfo(name="us", number=1, link_urls={"eu": ["pulsar+ssl://127.0.0.1:1"]}),
    ):
        assert type(value).decode(value.encode()) == value
        assert type(value).decode(value.encode()[:-1] + b', "later": 1}') == value
    with pytest.raises(CorruptData, match="newer"):
        TenantInfo.decode(b'{"format": 99}')


def test_policies_of_before_the_table_are_taken_over() -> None:
    old = (
        b'{"format": 1, "regions": ["us"], "bundles": 2, "deduplication": true, "retention_minutes": -1, '
        b'"retention_mb": 7, "message_ttl_s": 5,'
    )
    old += b' "ensemble": 3, "write_quorum": 3, "ack_quorum": 2}'
    found = NamespacePolicies.decode(old)
    policies = applied(found.policies)
    assert (
        found.regions == ("us",)
        and policies.deduplication
        and policies.retention == (-1, 7)
        and policies.limit("messageTTL") == 5
    )
    assert (policies.ensemble, policies.write_quorum, policies.ack_quorum) == (3, 3, 2)
    assert checked(found.policies) == found.policies and NamespacePolicies.decode(found.encode()) == found
    assert (
        NamespacePolicies.decode(b'{"format": 1, "regions": [], "deduplication": false, "ensemble": 2}').policies == {}
    )


def test_bundles_are_checked() -> None:
    with pytest.raises(ConfigError, match="bundles"):
        NamespacePolicies(bundles=0)


def _many(count: int, rng: random.Random, every: int = 1) -> ManagedLedgerMetadata:
    infos, ledger, closed, index = [], 10**9, 1_790_000_000_000, 10**11
    for number in range(count):
        ledger, closed, index = ledger + rng.randrange(1, 200), closed + rng.randrange(10**7), index + 50_000
        record = OffloadRecord(
            f"{rng.getrandbits(128):032x}",
            f"us-east-1-{number % 2:032x}",
            OffloadState(rng.randrange(3)),
            "s3://a-bucket-of-ours/tiers" if number % 3 else "",
            rng.randrange(2**28),
            70_000,
            closed + rng.randrange(10**7),
            2 * (number % 5 == 0),
        )
        infos.append(
            LedgerInfo(ledger, 50_000, rng.randrange(2**28), closed, index, record if number % every == 0 else None)
        )
    infos.append(LedgerInfo(ledger + 5, 3, 300, 0, index + 50_000))
    return ManagedLedgerMetadata(tuple(infos), b"state" * 1000, (ledger, 4), None, {"k": "v"}, index, 77)


@pytest.mark.parametrize(("count", "every", "version"), [(999, 1, 1), (1000, 1, 2), (2500, 2, 2), (1500, 2, 1)])
def test_a_topic_with_very_many_offloaded_ledgers_is_stored_in_columns(count: int, every: int, version: int) -> None:
    value = _many(count, random.Random(count), every)
    blob = value.encode()
    assert blob[0] == version and ManagedLedgerMetadata.decode(blob) == value
    odd = replace(
        value.ledgers[0],
        offload=replace(value.ledgers[0].offload or OffloadRecord("", ""), attempt="Not Hex", holder="", stored_ms=0),
    )
    two = replace(odd, offload=replace(odd.offload or OffloadRecord("", ""), data_key=2**64 - 1, also="ab"))
    for one in (odd, two):
        value = replace(value, ledgers=(one, *value.ledgers[1:]))
        assert ManagedLedgerMetadata.decode(value.encode()) == value


def test_a_value_of_the_metadata_holds_eighteen_thousand_offloaded_ledgers() -> None:
    assert len(_many(18_000, random.Random(1)).encode()) < 1 << 20


def test_damaged_columns_are_an_error_that_says_so() -> None:
    fields = msgpack.unpackb(_many(1000, random.Random(2)).encode()[1:])
    for spoil in ([], [1], [fields[0][0][:1], *fields[0][1:]], [*fields[0][:3], fields[0][3][:-1], *fields[0][4:]]):
        with pytest.raises(CorruptData):
            ManagedLedgerMetadata.decode(bytes([2]) + msgpack.packb([spoil, *fields[1:]]))
