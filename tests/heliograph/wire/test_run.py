"""Runs and blocks: every cut is a run, every block comes back, a wrong byte is noticed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.model.errors import CorruptData
from heliograph.wire.block import decode_block, encode_block, peek_block, verify_block
from heliograph.wire.run import Run, join


def make_run(rng: random.Random) -> Run:
    count = rng.randrange(1, 20)
    parts = [rng.randbytes(rng.randrange(0, 40)) for _ in range(count)]
    producers = []
    left = count
    while left:
        size = rng.randrange(1, left + 1)
        first = rng.randrange(1000)
        pairs = None if rng.random() < 0.5 else tuple((first + 2 * i, first + 2 * i + 1) for i in range(size))
        producers.append((f"p{rng.randrange(3)}", size, first, pairs))
        left -= size
    spans = []
    left = count
    at = 0
    while left:
        size = rng.randrange(1, left + 1)
        at += rng.randrange(1, 4)
        spans.append((7, at, size))
        at += size
        left -= size
    replicated = rng.random() < 0.5
    return Run(
        parts,
        [len(p) for p in parts],
        counts=None if rng.random() < 0.5 else [rng.randrange(1, 9) for _ in parts],
        flags=None if rng.random() < 0.5 else [rng.randrange(8) for _ in parts],
        time_ms=rng.randrange(1 << 40),
        first_index=rng.randrange(1 << 40),
        origin=(rng.randrange(9), 1, rng.getrandbits(64)) if replicated else None,
        spans=tuple(spans) if replicated else (),
        origin_time_ms=5 if replicated else 0,
        checksums=[rng.getrandbits(32) for _ in parts] if replicated else None,
        producers=tuple(producers),
        leadership=rng.choice((0, 1, 1 << 40)),
    )


def columns(run: Run) -> list[tuple[object, ...]]:
    """One row an entry: what a run says of it."""
    rows: list[tuple[object, ...]] = []
    names = [
        (name, first + i, first + i) if pairs is None else (name, *pairs[i])
        for name, size, first, pairs in run.producers
        for i in range(size)
    ]
    index = run.first_index
    for i in range(run.count):
        messages = 1 if run.counts is None else run.counts[i]
        flag = 0 if run.flags is None else run.flags[i]
        where = run.coordinate(i) if run.origin is not None else None
        checksum = None if run.checksums is None else run.checksums[i]
        rows.append(
            (
                bytes(run.parts[i]),
                run.lengths[i],
                messages,
                flag,
                index,
                run.origin,
                where,
                checksum,
                names[i] if names else None,
                run.time_ms,
                run.leadership,
            )
        )
        index += messages
    return rows


@pytest.mark.parametrize("seed", range(60))
def test_a_block_comes_back(seed: int) -> None:
    run = make_run(random.Random(seed))
    block = b"".join(encode_block(run, 11, 5))
    assert peek_block(block) == (11, 5, run.count)
    ledger, first, back = decode_block(block)
    assert (ledger, first) == (11, 5)
    assert columns(back) == columns(run)
    assert back.size_bytes == run.size_bytes


@pytest.mark.parametrize("seed", range(60))
def test_every_cut_is_a_run_and_cuts_join_again(seed: int) -> None:
    rng = random.Random(seed)
    run = make_run(rng)
    rows = columns(run)
    for start in range(run.count):
        stop = rng.randrange(start + 1, run.count + 1)
        assert columns(run.cut(start, stop)) == rows[start:stop]
        _, _, back = decode_block(b"".join(encode_block(run.cut(start, stop), 1, start)))
        assert columns(back) == rows[start:stop]
    middle = rng.randrange(run.count + 1)
    pieces = [run.cut(a, b) for a, b in ((0, middle), (middle, run.count)) if a < b]
    assert columns(join(pieces)) == rows


@pytest.mark.parametrize("seed", range(40))
def test_select_keeps_what_was_asked(seed: int) -> None:
    rng = random.Random(seed)
    run = make_run(rng)
    keep = [i for i in range(run.count) if rng.random() < 0.6] or [0]
    without_index = [row[:4] + row[5:] for row in columns(run)]
    assert [row[:4] + row[5:] for row in columns(run.select(keep))] == [without_index[i] for i in keep]


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_bit_is_noticed(seed: int) -> None:
    rng = random.Random(seed)
    block = bytearray(b"".join(encode_block(make_run(rng), 3, 4)))
    for _ in range(50):
        at, bit = rng.randrange(len(block)), 1 << rng.randrange(8)
        block[at] ^= bit
        with pytest.raises(CorruptData):
            verify_block(block)
        block[at] ^= bit
    verify_block(block)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_and_nothing_else(blob: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_block(blob)


def test_small_entries_are_joined_once_and_parts_stay_views_of_it() -> None:
    run = Run([b"ab", b"c", b""], [2, 1, 0])
    assert b"".join(run.buffers()) == b"abc"
    assert [bytes(p) for p in run.parts] == [b"ab", b"c", b""]
    assert run.buffers() == (b"abc",)
