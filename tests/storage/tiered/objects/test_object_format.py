"""The object's format: what is written is read back, by any range; anything else is refused, at every byte."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import LedgerInfo, ManagedLedgerMetadata, OffloadRecord, OffloadState
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from storage.tiered.objects import object_names
from storage.tiered.objects.object_format import (
    FOOTER_BYTES,
    HEAD_BYTES,
    Index,
    IndexWriter,
    check_head,
    cut_blocks,
    encode_head,
)
from tests.storage.tiered.ledger_infos import ATTEMPT, infos

TOPIC = "persistent://public/default/a topic/with ünusual=name"


def made(rng: random.Random, ledger: int = 7, every: int = 300) -> tuple[bytes, Index]:
    writer = IndexWriter(every)
    body = bytearray()
    for _ in range(rng.randrange(1, 30)):
        parts = [rng.randbytes(rng.randrange(0, 90)) for _ in range(rng.randrange(1, 9))]
        block = b"".join(
            encode_block(Run(parts, [len(part) for part in parts], first_index=writer.entries), ledger, writer.entries)
        )
        writer.add(len(parts), len(block))
        body += block
    tail = writer.finish(ledger, TOPIC)
    blob = encode_head(ledger, writer.entries, ATTEMPT) + bytes(body) + tail
    return blob, Index.decode(tail, len(blob))


@pytest.mark.parametrize("seed", range(20))
def test_every_entry_is_found_by_its_index_in_ranges_of_any_size(seed: int) -> None:
    rng = random.Random(seed)
    blob, index = made(rng)
    check_head(blob[:HEAD_BYTES], 7, index.entries, ATTEMPT)
    assert index.topic == TOPIC and index.ledger == 7
    for entry in range(index.entries):
        first, start, stop = index.range_of(entry, rng.choice([1, 200, 1000, 1 << 20]))
        assert HEAD_BYTES <= start < stop <= index.end and first <= entry
        runs = cut_blocks(blob[start:stop], 7, first)
        assert runs[0][0] == first and runs[-1][0] + runs[-1][1].count > entry
    whole = cut_blocks(blob[HEAD_BYTES : index.end], 7, 0)
    assert sum(run.count for _, run in whole) == index.entries


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_anywhere_is_noticed(seed: int) -> None:
    rng = random.Random(seed)
    blob, index = made(rng)
    tail_at = index.end
    for at in range(len(blob)):
        bad = bytearray(blob)
        bad[at] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptData):
            check_head(bad[:HEAD_BYTES], 7, index.entries, ATTEMPT)
            Index.decode(bytes(bad[tail_at:]), len(bad))
            cut_blocks(bytes(bad[HEAD_BYTES:tail_at]), 7, 0)


def test_what_is_cut_off_or_anothers_is_refused() -> None:
    blob, index = made(random.Random(1))
    tail = blob[index.end :]
    for cut in range(len(tail)):
        with pytest.raises(CorruptData):
            Index.decode(tail[cut + 1 :], len(blob))
        with pytest.raises(CorruptData):
            Index.decode(tail[: len(tail) - cut - 1], len(blob))
    with pytest.raises(CorruptData):
        Index.decode(tail, len(blob) + 1)
    body = blob[HEAD_BYTES : index.end]
    for bad in (body[:-1], body + b"\0", body[1:]):
        with pytest.raises(CorruptData):
            cut_blocks(bad, 7, 0)
    with pytest.raises(CorruptData, match="should be"):
        cut_blocks(body, 8, 0)
    with pytest.raises(CorruptData, match="should be"):
        cut_blocks(body, 7, 1)
    for ledger, entries, attempt in (
        (8, index.entries, ATTEMPT),
        (7, index.entries + 1, ATTEMPT),
        (7, index.entries, "0" * 32),
    ):
        with pytest.raises(CorruptData):
            check_head(blob[:HEAD_BYTES], ledger, entries, attempt)
    newer = bytearray(tail)
    newer[-FOOTER_BYTES + 4] = 2
    with pytest.raises(CorruptData):
        Index.decode(bytes(newer), len(blob))


@pytest.mark.parametrize(
    "topic", ["persistent://a/b/c", "persistent://a/b/c-partition-3", TOPIC, "persistent://t=1/n:2/%2F~.x"]
)
def test_keys_lead_back_to_topic_ledger_and_attempt(topic: str) -> None:
    for kind in (object_names.LEDGER, object_names.MANIFEST):
        name = object_names.ObjectName(object_names.holder_of("us-1", "ab" * 16), topic, kind, 42, ATTEMPT)
        key = object_names.key(name)
        assert (
            object_names.parse(key) == name
            and key.startswith(object_names.folder(name.holder, topic))
            and "%" not in key
        )
    for key in ("", "a/b/c", "h/a/b/c/ledger/x-y", "h/a/b/c/other/1-y", "h/a/b/c/ledger/1"):
        assert object_names.parse(key) is None


def test_metadata_from_before_there_were_tiers_is_read_and_records_read_back() -> None:
    metadata = ManagedLedgerMetadata(
        tuple(infos((1, 5, 10, OffloadState.LOCAL_GONE), (2, 5, 20, None), (3, 0, 0, None))), b"", (2, 3), owner=4
    )
    assert ManagedLedgerMetadata.decode(metadata.encode()) == metadata
    assert [len(info.fields()) for info in metadata.ledgers] == [6, 5, 5]
    record = OffloadRecord(ATTEMPT, "us-1", OffloadState.STORED, "s3://b", 1 << 40, 900, 1_700_000_000_000)
    assert OffloadRecord.of(record.fields()) == record and len(record.fields()) == 7
    sealed = replace(record, seal_form=2)
    assert OffloadRecord.of(sealed.fields()) == sealed and len(sealed.fields()) == 8
    for anew in (replace(record, data_key=1 << 62), replace(sealed, data_key=3)):
        assert OffloadRecord.of(anew.fields()) == anew
        many = tuple(LedgerInfo(number, 5, 50, number, number, anew) for number in range(1200))
        assert ManagedLedgerMetadata.decode(ManagedLedgerMetadata(many).encode()).ledgers == many
