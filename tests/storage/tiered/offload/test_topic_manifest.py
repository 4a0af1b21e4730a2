"""What a restore needs of a topic reads back as it was, and holds a state that is not ahead of what is stored."""

from __future__ import annotations

import struct

import crc32c
import msgpack
import pytest

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import ManagedLedgerMetadata, OffloadState
from storage.tiered.offload.topic_manifest import TopicManifest, merge_states, stored_end
from tests.storage.managed_ledger.world import TOPIC
from tests.storage.tiered.ledger_infos import infos

STORED, BEGUN, GONE = OffloadState.STORED, OffloadState.BEGUN, OffloadState.LOCAL_GONE


def test_a_manifest_reads_back_and_notices_damage() -> None:
    metadata = ManagedLedgerMetadata(
        tuple(infos((1, 5, 10, OffloadState.STORED), (2, 5, 0, None))), b"", (2, 3), properties={"a": "b"}, next_index=9
    )
    manifest = TopicManifest(
        TOPIC, 123, metadata, (((1, 3), b"x"), ((2, 3), b"y")), (("c", b"cursor"),), {"namespace": "{}"}, 4
    )
    blob = manifest.encode()
    assert TopicManifest.decode(blob) == manifest and manifest.end == (1, 9)
    for at in range(len(blob)):
        bad = bytearray(blob)
        bad[at] ^= 16
        if 5 <= at < 8:
            continue  # padding
        with pytest.raises(CorruptData):
            TopicManifest.decode(bytes(bad))
        with pytest.raises(CorruptData):
            TopicManifest.decode(blob[:at])


def test_states_are_kept_until_what_is_stored_reaches_them() -> None:
    states = merge_states((), ((3, 5), b"3:5"), (2, 9))
    assert states == (((3, 5), b"3:5"),)
    states = merge_states(states, ((4, 1), b"4:1"), (2, 9))
    assert states == (((3, 5), b"3:5"),)
    states = merge_states(states, ((6, 1), b"6:1"), (4, 9))
    assert states == (((3, 5), b"3:5"), ((6, 1), b"6:1"))
    states = merge_states(states, ((6, 4), b"6:4"), (6, 4))
    assert states == (((6, 4), b"6:4"),)


def test_what_the_store_has_ends_with_the_last_of_the_first_ledgers_that_it_has() -> None:
    def end(*ledgers: tuple[int, int, int, OffloadState | None]) -> tuple[int, int]:
        return stored_end(ManagedLedgerMetadata(tuple(infos(*ledgers))))

    assert end() == end((1, 5, 10, None)) == end((1, 5, 10, BEGUN), (2, 5, 10, STORED)) == (-1, -1)
    assert end((1, 5, 10, STORED)) == end((1, 5, 10, GONE)) == (1, 9)
    assert end((1, 5, 10, GONE), (2, 5, 10, STORED), (3, 5, 10, BEGUN), (4, 5, 10, STORED)) == (2, 9)


def test_a_manifest_of_another_format_is_refused_by_its_name_and_one_of_another_shape_as_damaged() -> None:
    def blob(version: int, body: bytes, magic: bytes = b"HELM") -> bytes:
        return struct.pack(">4sB3xII", magic, version, len(body), crc32c.crc32c(body)) + body

    metadata = ManagedLedgerMetadata().encode()
    fields = [TOPIC, 1, metadata, [[1, 2, b"x"]], [["c", b"y"]], {}, 0]
    whole = msgpack.packb(fields)
    assert TopicManifest.decode(blob(1, whole)).states == (((1, 2), b"x"),)
    for bad in (blob(2, whole), blob(1, whole, b"HELT")):
        with pytest.raises(CorruptData, match="not known here"):
            TopicManifest.decode(bad)
    for bad in (blob(1, whole) + b"x", blob(1, whole)[:-1]):
        with pytest.raises(CorruptData, match="checksum"):
            TopicManifest.decode(bad)
    others = (fields[:-1], [*fields, 0], [*fields[:3], [[1, b"x"]], *fields[4:]], 7, [*fields[:3], 7, *fields[4:]])
    for body in (*map(msgpack.packb, others), whole[:-1], b"\xc1"):
        with pytest.raises(CorruptData):
            TopicManifest.decode(blob(1, body))


def test_of_states_that_come_in_any_order_the_newest_that_is_covered_and_the_oldest_behind_it_stay() -> None:
    def state(ledger: int, entry: int) -> tuple[tuple[int, int], bytes]:
        return (ledger, entry), b"%d:%d" % (ledger, entry)

    former = (state(5, 0), state(2, 1), state(9, 9))
    assert merge_states(former, state(3, 4), (3, 4)) == (state(3, 4), state(5, 0))
    assert merge_states(former, state(3, 4), (3, 3)) == (state(2, 1), state(3, 4))
    assert merge_states(former, state(4, 0), (9, 9)) == (state(9, 9),)
    assert merge_states((), state(4, 0), (-1, -1)) == (state(4, 0),)
