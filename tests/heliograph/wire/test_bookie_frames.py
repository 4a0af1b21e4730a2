"""Frames of a bookie: cut at any byte, refused where wrong, and nothing copied that need not be."""

from __future__ import annotations

import random
from collections import deque

import pytest

from heliograph.model.errors import BookieUnavailable, LedgerFenced, NoSuchEntry, PeerError
from heliograph.wire.bookie_frames import (
    HEAD,
    BookieCode,
    FrameBuffer,
    Kind,
    SlabPool,
    decode_acks,
    encode,
    encode_acks,
    error_of,
    split_blocks,
)
from tests.storage.bookie.history import add, block


def _feed(buffer: FrameBuffer, data: bytes, sizes: random.Random | None = None) -> list[bytes]:
    """What comes out, frame by frame, where the bytes come in pieces of at most what the buffer takes."""
    out: list[bytes] = []
    at = 0
    while at < len(data):
        room = buffer.get_buffer()
        assert len(room) > 0
        size = min(len(room), len(data) - at, 1 if sizes is None else sizes.choice((1, 7, 40, 1000, 70_000, 2_000_000)))
        room[:size] = data[at : at + size]
        at += size
        view, ends = buffer.received(size)
        start = 0
        for end in ends:
            out.append(bytes(view[start:end]))
            start = end
        assert start == len(view)
    return out


def test_byte_by_byte() -> None:
    frames = [add(1, 0, 3), encode(Kind.FENCE, ledger=1, request=9), add(2, 5, 1, lac=4)]
    assert _feed(FrameBuffer(), b"".join(frames)) == frames


@pytest.mark.parametrize("seed", range(30))
def test_any_cut_of_small_and_large_frames(seed: int) -> None:
    rng = random.Random(seed)
    frames = []
    for index in range(rng.randrange(1, 60)):
        size = rng.choice((0, 10, 300, 4000, 66_000, 600_000, 1_500_000) if index % 9 == 0 else (0, 10, 300, 4000))
        frames.append(encode(Kind.ADD, body_bytes=size, ledger=index) + rng.randbytes(size))
    assert _feed(FrameBuffer(), b"".join(frames), rng) == frames


def test_views_stay_true_while_reading_goes_on() -> None:
    buffer = FrameBuffer()
    kept: list[tuple[memoryview, bytes]] = []
    rng = random.Random(3)
    for index in range(400):
        frame = encode(Kind.ADD, body_bytes=900, ledger=index) + rng.randbytes(900)
        room = buffer.get_buffer()
        size = min(len(room), len(frame))
        room[:size] = frame[:size]
        first, _ = buffer.received(size)
        if size < len(frame):
            rest = frame[size:]
            buffer.get_buffer()[: len(rest)] = rest
            first, _ = buffer.received(len(rest))
        kept.append((first, frame))
    assert all(view == frame for view, frame in kept)


@pytest.mark.parametrize(
    "head",
    [
        HEAD.pack(HEAD.size - 1, 1, 1, 0, 0, 0, 0, 0),
        HEAD.pack(5000, 1, 1, 0, 0, 0, 0, 0),
        HEAD.pack(HEAD.size, 2, 1, 0, 0, 0, 0, 0),
        b"\xff" * HEAD.size,
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_a_wrong_head_is_the_peers_fault(head: bytes) -> None:
    with pytest.raises(PeerError):
        _feed(FrameBuffer(4096), head)


@pytest.mark.parametrize("seed", range(100))
def test_noise_is_cut_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(b"".join(add(1, index, 1) for index in range(20)))
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        _feed(FrameBuffer(1 << 16), bytes(data), rng)
    except PeerError:
        pass


def test_a_slab_is_used_again_only_when_no_view_of_it_is_left() -> None:
    pool = SlabPool()
    kept = [pool.take() for _ in range(3)]
    parts = [slab[100:200] for slab in kept]
    for number, slab in enumerate(kept):
        slab[:300] = bytes([number]) * 300
    del kept, slab
    others = [pool.take() for _ in range(5)]
    for other in others:
        other[:300] = b"x" * 300
    assert [bytes(part) for part in parts] == [bytes([number]) * 100 for number in range(3)]
    assert len(pool) == 8
    del parts, others, other
    for _ in range(20):
        pool.take()
    assert len(pool) == 8
    pool.trim()
    assert len(pool) == 8, "some were taken since the last look"
    held = pool.take()
    pool.trim()
    pool.trim()
    assert len(pool) == 1
    held[0] = 1


def test_frames_in_recycled_slabs_stay_true() -> None:
    rng = random.Random(8)
    pool = SlabPool()
    buffers = [FrameBuffer(pool=pool) for _ in range(3)]
    held: deque[tuple[memoryview, list[int], bytes]] = deque()
    for _ in range(300):
        buffer = rng.choice(buffers)
        frames = b"".join(
            encode(Kind.ADD, body_bytes=size) + rng.randbytes(size) for size in rng.choices((100, 5000, 70_000), k=20)
        )
        at = 0
        got: list[tuple[memoryview, list[int]]] = []
        while at < len(frames):
            room = buffer.get_buffer()
            size = min(len(room), len(frames) - at)
            room[:size] = frames[at : at + size]
            at += size
            got.append(buffer.received(size))
            del room
        held.append((memoryview(b""), [], b""))
        offset = 0
        for view, ends in got:
            held.append((view, ends, frames[offset : offset + len(view)]))
            offset += len(view)
        while len(held) > 60:
            view, _, expected = held.popleft()
            assert view == expected
            del view
    assert len(pool) < 60


def test_frames_larger_than_half_a_slab_use_the_same_memory_again() -> None:
    rng, pool = random.Random(3), SlabPool()
    buffer, held = FrameBuffer(pool=pool), deque[tuple[memoryview, bytes]]()
    frames = [
        encode(Kind.ADD, body_bytes=size) + rng.randbytes(size)
        for size in rng.choices((1_000_000, 1_030_000, 1_048_576, 600_000), k=40)
    ]
    data, at, done = b"".join(frames), 0, 0
    while at < len(data):
        room = buffer.get_buffer()
        size = min(len(room), len(data) - at, rng.choice((1000, 60_000, 1 << 20)))
        room[:size] = data[at : at + size]
        at += size
        del room
        view, ends = buffer.received(size)
        start = 0
        for end in ends:
            held.append((view[start:end], frames[done]))
            start, done = end, done + 1
        del view
        while len(held) > 3:
            kept, expected = held.popleft()
            assert kept == expected
            del kept
    assert done == len(frames) and len(pool) <= 12, "of four sizes, as many as are held at once"
    held.clear()
    pool.trim()
    pool.trim()
    assert len(pool) <= 1, "but for the one that is read into, all of it goes back"


def test_a_pool_has_few_sizes_whatever_frames_come() -> None:
    """One slab of each size that frames may have would be a gigabyte of a bookie, which none of them can use but the
    next of its size.
    """
    rng, pool, sizes = random.Random(6), SlabPool(), dict[int, None]()
    for size in [rng.randrange(1 << 19, 16 << 20) + 1 for _ in range(300)] + [(1 << 19) + 1, 1 << 20, 16 << 20]:
        slab = pool.take(size)
        assert len(slab) == size <= len(slab.obj) <= 1.25 * size
        sizes[len(slab.obj)] = None
        del slab
    assert len(pool) == len(sizes) == 20 and sum(sizes) < 130 << 20


def test_acks_and_blocks() -> None:
    frame = encode_acks([((7, 1), 3), ((9, 0xFFFFFFFF), -1)])
    assert list(decode_acks(memoryview(frame))) == [(7, 1, 3), (9, 0xFFFFFFFF, -1)]
    with pytest.raises(PeerError):
        decode_acks(memoryview(frame[:-1]))
    one, two = block(1, 0, 2), block(1, 2, 3)
    assert split_blocks(memoryview(one + two)) == [one, two]
    for wrong in (one + two[:-1], one + b"\0" * 8, one[:7]):
        with pytest.raises(PeerError):
            split_blocks(memoryview(wrong))


def test_codes_and_errors() -> None:
    assert isinstance(error_of(BookieCode.FENCED, "x"), LedgerFenced)
    assert isinstance(error_of(BookieCode.NO_SUCH_ENTRY, "x"), NoSuchEntry)
    assert isinstance(error_of(BookieCode.UNKNOWN, "x"), BookieUnavailable)
    assert isinstance(error_of(999, "of a later version"), BookieUnavailable)
