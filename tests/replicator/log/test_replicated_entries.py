"""Entries between regions: addressees, checksums, and the field that the target appends."""

from __future__ import annotations

import crc32c
import pytest

from heliograph.model.errors import PeerError
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Run
from replicator.log.replicated_entries import checked_and_addressed, received
from tests.replicator.link_world import entry

EU = frozenset(("eu",))


def plain(part: bytes) -> bytes:
    """As a client without checksums sends it."""
    return part[6:]


def run_of(*parts: bytes) -> Run:
    return Run(list(parts), [len(p) for p in parts], producers=(("p", len(parts), 0, None),))


def sent(run: Run) -> Run:
    checksums, keep = checked_and_addressed(run, EU)
    assert keep is None
    block = b"".join(bytes(b) for b in encode_block(run.as_replicated((1, 1, 7), 3, 0, checksums), 3, 0))
    return decode_block(block)[2]


def test_only_what_is_addressed_to_the_target_goes() -> None:
    parts = [entry(1, "p", 0), entry(2, "p", 1, ("ap",)), entry(3, "p", 2, ("eu", "ap")), entry(4, "a:colon", 3)]
    checksums, keep = checked_and_addressed(run_of(*parts), EU)
    assert keep == [0, 2, 3] and checksums == [int.from_bytes(p[2:6], "big") for p in parts]
    assert checked_and_addressed(run_of(parts[0], parts[3]), EU)[1] is None
    assert checked_and_addressed(run_of(parts[1]), EU)[1] == []
    assert checked_and_addressed(run_of(plain(parts[1]), plain(parts[0])), EU)[1] == [1]


@pytest.mark.parametrize("size", [1, 700, 5000])
def test_replicated_from_is_appended_once_and_the_rest_stays(size: int) -> None:
    tail = bytes(i % 251 for i in range(size))
    first = entry(1, "p", 0)
    rest = first[6:] + tail
    long = b"\x0e\x01" + crc32c.crc32c(rest).to_bytes(4, "big") + rest
    run = received(sent(run_of(long, plain(long), first)), "us")
    for part, length, before in zip(run.parts, run.lengths, (long, plain(long), first), strict=True):
        assert len(part) == length == len(before) + 4
        metadata, payload = entry_metadata(part)
        old, old_payload = entry_metadata(before)
        assert metadata.replicated_from == "us" and bytes(payload) == bytes(old_payload)
        metadata.ClearField("replicated_from")
        assert metadata == old
    for part in (run.parts[0], run.parts[2]):
        assert int.from_bytes(bytes(part[2:6]), "big") == crc32c.crc32c(bytes(part[6:]))
    assert run.checksums is not None and run.checksums[0] == int.from_bytes(long[2:6], "big")
    assert run.time_ms == 0 and run.spans == ((3, 0, 3),)


def test_an_entry_that_was_damaged_on_the_way_is_refused() -> None:
    for damage in (2, 7, 12, 20):
        run = sent(run_of(entry(1, "p", 0), entry(2, "p", 1)))
        bad = bytearray(bytes(run.parts[1]))
        bad[damage] ^= 1
        broken = Run(
            [run.parts[0], bytes(bad)], run.lengths, origin=run.origin, spans=run.spans, checksums=run.checksums
        )
        with pytest.raises(PeerError):
            received(broken, "us")


def test_a_checksum_that_was_replaced_with_the_data_is_refused() -> None:
    """Both are right for each other, but not what the origin stored."""
    run = sent(run_of(entry(1, "p", 0)))
    forged = Run([entry(2, "p", 0)], run.lengths, origin=run.origin, spans=run.spans, checksums=run.checksums)
    with pytest.raises(PeerError):
        received(forged, "us")
    no_checksum = plain(entry(2, "p", 0))
    with pytest.raises(PeerError):
        received(
            Run([no_checksum], [len(no_checksum)], origin=run.origin, spans=run.spans, checksums=run.checksums), "us"
        )
