"""Metadata values come back as they were; another format is refused with a sentence."""

from __future__ import annotations

import pytest

from heliograph.model.errors import ConfigError, CorruptData
from heliograph.model.ledgers import LedgerInfo, LedgerMetadata, LedgerState, ManagedLedgerMetadata
from heliograph.model.policies import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.model.policy_table import applied, checked


def test_ledger_metadata() -> None:
    ledger = LedgerMetadata(7, 2, 2, ((0, ("a", "b")),)).with_fragment(10, ("a", "c"))
    assert ledger.ensemble_at(9) == ("a", "b") and ledger.ensemble_at(10) == ("a", "c") == ledger.ensemble_at(99)
    assert LedgerMetadata.decode(ledger.encode()) == ledger
    assert ledger.with_fragment(10, ("d", "c")).fragments == ((0, ("a", "b")), (10, ("d", "c")))
    assert LedgerMetadata.decode(ledger.encode()).state is LedgerState.OPEN


def test_managed_ledger_metadata() -> None:
    value = ManagedLedgerMetadata((LedgerInfo(1, 5, 50, 9, 0), LedgerInfo(2, first_index=5)), b"state", (1, 4), (1, 4), {"k": "v"})
    assert ManagedLedgerMetadata.decode(value.encode()) == value
    assert ManagedLedgerMetadata.decode(ManagedLedgerMetadata().encode()) == ManagedLedgerMetadata()


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
    old = b'{"format": 1, "regions": ["us"], "bundles": 2, "deduplication": true, "retention_minutes": -1, "retention_mb": 7, "message_ttl_s": 5,'
    old += b' "ensemble": 3, "write_quorum": 3, "ack_quorum": 2}'
    found = NamespacePolicies.decode(old)
    policies = applied(found.policies)
    assert found.regions == ("us",) and policies.deduplication and policies.retention == (-1, 7) and policies.limit("messageTTL") == 5
    assert (policies.ensemble, policies.write_quorum, policies.ack_quorum) == (3, 3, 2)
    assert checked(found.policies) == found.policies and NamespacePolicies.decode(found.encode()) == found
    assert NamespacePolicies.decode(b'{"format": 1, "regions": [], "deduplication": false, "ensemble": 2}').policies == {}


def test_bundles_are_checked() -> None:
    with pytest.raises(ConfigError, match="bundles"):
        NamespacePolicies(bundles=0)
