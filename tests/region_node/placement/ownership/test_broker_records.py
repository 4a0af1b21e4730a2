"""What brokers write of themselves and their bundles reads back, older ones too, and clients get addresses for them."""

from __future__ import annotations

import msgpack
import pytest

from heliograph.model.errors import CorruptData
from heliograph.model.feature_levels import LEVEL
from region_node.placement.ownership.broker_records import BrokerRecord, OwnerRecord

LISTENERS = {"": "pulsar://b:6650", "https": "https://b:8443", "inside": "https://b:8444", "link": "pulsar://b:6651"}


def test_an_address_is_of_its_name_and_links_fall_back_to_that_of_links_in_general() -> None:
    record = BrokerRecord("b", {**LISTENERS, "link-eu": "pulsar://eu:1", "outside": "pulsar://o:1"})
    assert record.url("") == "pulsar://b:6650" and record.url("outside") == "pulsar://o:1"
    assert record.url("link-eu") == "pulsar://eu:1" and record.url("link-ap") == record.url("link") == "pulsar://b:6651"
    assert record.url("other") is record.url("linked") is record.url("li") is None
    assert record.url("https") is record.url("inside") is None, "what is no client's is not looked up"
    assert record.admin_url_tls == "https://b:8443" and record.admin_urls() == ("", "https://b:8443", "https://b:8444")
    bare = BrokerRecord("b", {"": "pulsar://b:6650"})
    assert bare.url("link-eu") is bare.url("link") is None and bare.admin_url_tls == bare.inside_url_by(True) == ""


@pytest.mark.parametrize(
    ("inside", "plainly", "by_tls"),
    [
        ("https://b.pods:6670", "http://outside:8080", "https://b.pods:6670"),
        ("http://b.pods:8080", "http://b.pods:8080", ""),
        (None, "http://outside:8080", ""),  # from a version that said it by TLS alone
    ],
)
def test_brokers_ask_each_other_inside_and_never_plainly_where_they_have_tls(
    inside: str | None, plainly: str, by_tls: str
) -> None:
    listeners = {"": "pulsar://outside:6650"} | ({} if inside is None else {"inside": inside})
    record = BrokerRecord("b", listeners, "http://outside:8080")
    assert (record.inside_url_by(False), record.inside_url_by(True)) == (plainly, by_tls)


def test_records_read_back() -> None:
    record = BrokerRecord("b", LISTENERS, "http://b:8080", 77, 1234, LEVEL + 1)
    assert BrokerRecord.decode("b", record.encode()) == record
    assert (
        BrokerRecord.decode("b", BrokerRecord("b").encode()) == BrokerRecord("b") and BrokerRecord("b").level == LEVEL
    )
    for owner in (OwnerRecord("b", 7), OwnerRecord("b", 7, "c")):
        assert OwnerRecord.decode(owner.encode()) == owner
    assert "to" not in msgpack.unpackb(OwnerRecord("b", 7).encode()), "only what is being released says it"


def test_a_record_of_an_earlier_version_has_neither_lease_nor_level() -> None:
    old = BrokerRecord.decode("b", msgpack.packb({"format": 1}))
    assert old == BrokerRecord("b", {}, "", 0, 0, 1)
    assert OwnerRecord.decode(msgpack.packb({"format": 1, "broker": "b", "lease": 3})) == OwnerRecord("b", 3)


@pytest.mark.parametrize("blob", (b"", b"\xc1", msgpack.packb([1]), msgpack.packb({}), msgpack.packb({"format": 2})))
def test_what_is_no_record_of_this_format_is_refused(blob: bytes) -> None:
    with pytest.raises(CorruptData, match="broker record"):
        BrokerRecord.decode("b", blob)
    with pytest.raises(CorruptData, match="owner record"):
        OwnerRecord.decode(blob)
