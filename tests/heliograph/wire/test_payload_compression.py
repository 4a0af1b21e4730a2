"""What Pulsar's clients compressed comes out as long as its metadata says, or not at all."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest

from heliograph.model.errors import CorruptData
from heliograph.wire.payload_compression import PULSAR_OF_KAFKA, compress_pulsar, decompress_pulsar

CODECS = sorted(codec for codec in PULSAR_OF_KAFKA.values() if codec)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 3000])
def test_what_has_another_size_than_it_says_is_corrupt(codec: int, size: int) -> None:
    plain = b"abc" * 1000
    packed = compress_pulsar(codec, plain[:size])
    assert decompress_pulsar(codec, packed, size) == plain[:size]
    for said in {size - 1, size + 1, size + 1000, -1}:
        if said >= 0 or size:
            with pytest.raises(CorruptData):
                decompress_pulsar(codec, packed, said)


@pytest.mark.parametrize("codec", CODECS)
def test_no_more_is_unpacked_than_an_entry_says(codec: int) -> None:
    packed = compress_pulsar(codec, bytes(8 << 20))
    tracemalloc.start()
    try:
        for said in (0, 1):
            with pytest.raises(CorruptData):
                decompress_pulsar(codec, packed, said)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_stream_that_is_flushed_and_not_ended_is_whole() -> None:
    """So Pulsar's Java client writes ZLIB."""
    packer = zlib.compressobj()
    packed = packer.compress(b"abc" * 1000) + packer.flush(zlib.Z_SYNC_FLUSH)
    assert decompress_pulsar(2, packed, 3000) == b"abc" * 1000
    with pytest.raises(CorruptData):
        decompress_pulsar(2, packed[:-9], 3000)
