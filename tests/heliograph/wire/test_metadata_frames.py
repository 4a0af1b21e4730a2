"""Frames of the metadata: split at any byte, bounded, and fuzzed: accepted or PeerError, nothing else."""

from __future__ import annotations

import random

import pytest

from heliograph.kv.machine_commands import open_answer
from heliograph.model.errors import HeliographError, PeerError
from heliograph.wire.metadata_frames import (
    FRAME_BYTES_MAX,
    HANDSHAKE_BYTES_MAX,
    Frame,
    MetadataFrameCutter,
    body,
    fields,
    frame,
    rows,
)


def cut_all(cutter: MetadataFrameCutter) -> list[tuple[int, int, bytes]]:
    found = []
    while (each := cutter.next()) is not None:
        found.append(each)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 13, 14, 15, 64, 10_000])
def test_frames_come_whole_wherever_reads_are_cut(size: int) -> None:
    frames = [
        (Frame.GET, 1, b""),
        (Frame.COMMAND, 2**64 - 1, bytes(300)),
        (Frame.HELLO, 0, b"x"),
        (200, 5, b"unknown kinds are cut too"),
    ]
    data = b"".join(frame(*each) for each in frames)
    cutter, found = MetadataFrameCutter(FRAME_BYTES_MAX), []
    for at in range(0, len(data), size):
        cutter.feed(data[at : at + size])
        found += cut_all(cutter)
    assert found == frames


def test_a_frame_above_the_limit_is_refused_before_it_is_read() -> None:
    for limit in (HANDSHAKE_BYTES_MAX, FRAME_BYTES_MAX):
        cutter = MetadataFrameCutter(limit)
        cutter.feed((limit + 1).to_bytes(4, "big"))
        with pytest.raises(PeerError, match="allowed here"):
            cutter.next()


@pytest.mark.parametrize("seed", range(200))
def test_any_bytes_are_frames_or_a_peer_error(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(frame(Frame.LISTING, 1, body(5, True, [["/a", 1, b"x"], ["/b", 2, None]])) * 3)
    for _ in range(rng.randrange(1, 5)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    cutter = MetadataFrameCutter(1 << 16)
    try:
        cutter.feed(bytes(data[: rng.randrange(len(data) + 1)]))
        for _, _, payload in cut_all(cutter):
            _, _, found = fields(payload, int, bool, list)
            rows(found)
    except PeerError:
        pass


@pytest.mark.parametrize("seed", range(200))
def test_any_bytes_are_an_answer_or_a_known_error(seed: int) -> None:
    rng = random.Random(seed)
    blob = bytearray(
        rng.choice(
            [b"\x01\x93\x00\x01\x91\xc3", b"\x01\x94\x01\xa2/a\xff\x05", b"\x01\x92\x06\xa1x", b"\x01\x93\x08\xa0\xa1x"]
        )
    )
    blob[rng.randrange(len(blob))] = rng.randrange(256)
    try:
        open_answer(bytes(blob))
    except HeliographError:
        pass
