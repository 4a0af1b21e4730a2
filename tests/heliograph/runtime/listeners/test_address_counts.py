"""Addresses are counted, and an IPv6 address counts by its network."""

from __future__ import annotations

from heliograph.runtime.listeners.address_counts import AddressCounts


def test_addresses_are_counted_until_they_go() -> None:
    counts = AddressCounts(2)
    assert [counts.take("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert counts.take("10.0.0.2")
    counts.give("10.0.0.1")
    assert counts.take("10.0.0.1")
    assert [counts.take(f"2001:db8::{i}") for i in range(3)] == [True, True, False] and counts.take("2001:db8:0:1::1")
    assert [counts.take(f"::ffff:10.9.0.{i}") for i in range(3)] == [True, True, True]
    for host in (
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.2",
        "2001:db8::5",
        "2001:db8::6",
        "2001:db8:0:1::9",
        *(f"::ffff:10.9.0.{i}" for i in range(3)),
    ):
        counts.give(host)
    assert not len(counts)
    assert all(AddressCounts(0).take("x") for _ in range(99))
