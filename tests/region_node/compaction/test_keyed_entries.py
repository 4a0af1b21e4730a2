"""What compaction sees in an entry, and what it leaves of one."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cramjam
import crc32c
import pytest

from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from region_node.compaction.keyed_entries import PAYLOAD_MAX, KeyedMessage, last_kept_index, open_entry, without
from tests.region_node.faces.pulsar.codec import entry

PACK: dict[int, Callable[[bytes], bytes]] = {
    pb.NONE: lambda data: data,
    pb.LZ4: lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    pb.ZLIB: zlib.compress,
    pb.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
    pb.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}


BOMB_BYTES = 2 * PAYLOAD_MAX


@cache
def _bomb(kind: int) -> bytes:
    return PACK[kind](bytes(BOMB_BYTES))


def batch(rows: list[tuple[str | None, bytes]], kind: Any = pb.NONE, **metadata: Any) -> bytes:
    plain = b""
    for key, value in rows:
        single = pb.SingleMessageMetadata(payload_size=len(value))
        if key is not None:
            single.partition_key = key
        head = single.SerializeToString()
        plain += struct.pack(">I", len(head)) + head + value
    return entry(PACK[kind](plain), batch=len(rows), compression=kind, uncompressed_size=len(plain), **metadata)


def test_single_messages() -> None:
    assert open_entry(entry(b"v", partition_key="k")).messages == (KeyedMessage(b"k"),)
    assert open_entry(entry(b"", partition_key="k")).messages == (KeyedMessage(b"k", empty=True),)
    assert open_entry(entry(b"v", partition_key="k", null_value=True)).messages == (KeyedMessage(b"k", empty=True),)
    assert open_entry(entry(b"x", partition_key="k", uncompressed_size=0)).messages == (KeyedMessage(b"k", empty=True),)
    assert open_entry(entry(b"v")).messages == (KeyedMessage(None),)
    assert open_entry(b"\0\0\0\xff nothing").messages == (KeyedMessage(None),)
    assert open_entry(entry(b"v", partition_key="k", uuid="u", chunk_id=1, num_chunks_from_msg=3)).chunk == ("u", 1, 3)


@pytest.mark.parametrize("kind", list(PACK))
def test_a_batch_loses_messages_and_keeps_its_indexes(kind: Any) -> None:
    whole = batch([("a", b"1"), ("b", b""), (None, b"2"), ("c", b"3" * 500)], kind)
    opened = open_entry(whole)
    assert opened.batch
    assert opened.messages == (
        KeyedMessage(b"a"),
        KeyedMessage(b"b", empty=True),
        KeyedMessage(None),
        KeyedMessage(b"c"),
    )
    left = without(whole, [True, False, False, True])
    assert open_entry(left).messages == (
        KeyedMessage(b"a"),
        KeyedMessage(None, empty=True, gone=True),
        KeyedMessage(None, empty=True, gone=True),
        KeyedMessage(b"c"),
    )
    metadata, payload = entry_metadata(left)
    assert (metadata.num_messages_in_batch, metadata.compression) == (4, kind)
    assert crc32c.crc32c(left[6:]) == struct.unpack(">I", left[2:6])[0]
    assert list(metadata.compacted_batch_indexes) == [1, 2]
    assert (
        last_kept_index(whole),
        last_kept_index(left),
        last_kept_index(without(left, [True, False, False, False])),
    ) == (3, 3, 0)
    assert b"3" * 500 not in bytes(payload) or kind == pb.NONE


def test_what_cannot_be_opened_is_one_message() -> None:
    secret = batch(
        [("a", b"1"), ("b", b"2")], encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")], partition_key="outer"
    )
    assert open_entry(secret).messages == (KeyedMessage(b"outer"),)
    assert not open_entry(secret).batch
    damaged = entry(b"\0\0\0\x05abc", batch=2)
    endless = entry(b"", batch=300_000)
    assert open_entry(endless).messages == (KeyedMessage(None, empty=True),)
    assert open_entry(damaged).messages == (KeyedMessage(None),)
    bomb = entry(PACK[pb.ZLIB](b"0" * 1000), batch=1, compression=pb.ZLIB, uncompressed_size=10)
    assert not open_entry(bomb).batch
    huge = entry(b"x", batch=1, compression=pb.LZ4, uncompressed_size=1 << 31)
    assert not open_entry(huge).batch


_OPENED_ALONE = """
import resource, sys
from pathlib import Path
from region_node.compaction.keyed_entries import open_entry

whole = Path(sys.argv[1]).read_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert not open_entry(whole).batch
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("said", [0, 1000])
@pytest.mark.parametrize("kind", [pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_a_batch_that_is_larger_than_it_says_never_becomes_that_large(kind: int, said: int, tmp_path: Path) -> None:
    (tmp_path / "entry").write_bytes(entry(_bomb(kind), batch=1, compression=kind, uncompressed_size=said))
    alone = subprocess.run(
        [sys.executable, "-c", _OPENED_ALONE, str(tmp_path / "entry")], check=True, capture_output=True, text=True
    )
    assert int(alone.stdout) < (BOMB_BYTES - PAYLOAD_MAX // 2) >> 10, "KiB"


@pytest.mark.parametrize("size", range(0, 120, 7))
def test_cut_bytes_raise_nothing(size: int) -> None:
    whole = batch([("a", b"1"), ("b", b"2"), ("c", b"3")], pb.SNAPPY)
    assert open_entry(whole[:size]).messages
