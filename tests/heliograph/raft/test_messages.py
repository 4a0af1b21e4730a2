"""Raft messages: what is encoded comes back; anything else is refused with PeerError and nothing else."""

from __future__ import annotations

import random

import pytest

from heliograph.model.errors import PeerError
from heliograph.raft.messages import (
    COMMAND,
    CONFIG,
    NOOP,
    Append,
    AppendReply,
    Config,
    Founding,
    FoundingStage,
    Heartbeat,
    HeartbeatReply,
    Message,
    Proof,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotReply,
    StartKnown,
    StartNumber,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    decode,
    decode_config,
    encode,
    encode_config,
)

META = SnapshotMeta(9, 4, Config(("a", "bé"), ("c",)), 1 << 40, 0xFFFFFFFF)
EXAMPLES: list[Message] = [
    VoteRequest(1, 2, 3),
    VoteRequest(1, 2, 3, True, False),
    VoteRequest(1, 2, 3, False, True),
    VoteRequest(1, 2, 3, numbered=False),
    VoteReply(1, True),
    VoteReply(1, False, True),
    VoteReply(1, True, numbered=False),
    Append(5, 6, 7, 8, []),
    Append(5, 6, 7, 8, [(1, NOOP, b""), (1 << 60, COMMAND, b"x" * 1000), (5, CONFIG, encode_config(META.config))]),
    AppendReply(1, 2, True),
    AppendReply(1, 2, False, 3, 4),
    AppendReply(1, 2, False, 3, 4, 1 << 62),
    Heartbeat(1, 2, 3),
    HeartbeatReply(1, 2),
    HeartbeatReply(1, 2, 1 << 62),
    Proof(1, 1 << 62, 3),
    Founding(0, FoundingStage.FRESH, (("a", 1 << 62),)),
    Founding(0, FoundingStage.FOUNDED, (("a", 1), ("bé", 2))),
    SnapshotChunk(1, META, 77, b"data"),
    SnapshotChunk(1, META, 0, b""),
    SnapshotReply(1, 2, 3),
    TimeoutNow(3),
    StartNumber(0, 1 << 62),
    StartKnown(0, 1 << 62),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=repr)
def test_round_trip(message: Message) -> None:
    raw = encode(message)
    assert raw[0] == 1
    assert decode(raw) == message
    assert decode(bytearray(raw)) == message
    assert decode(memoryview(raw)) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=repr)
def test_cut_off_is_refused(message: Message) -> None:
    raw = encode(message)
    data = len(message.data) if isinstance(message, SnapshotChunk) else 0
    for size in range(len(raw) - data):
        with pytest.raises(PeerError):
            decode(raw[:size])
    if not isinstance(message, SnapshotChunk):
        with pytest.raises(PeerError):
            decode(raw + b"x")


def test_unknown_version_kind_role_and_entry_kind_are_refused() -> None:
    raw = bytearray(encode(Heartbeat(1, 2, 3)))
    for at, value in ((0, 2), (1, 0), (1, 99)):
        with pytest.raises(PeerError):
            decode(bytes(raw[:at]) + bytes([value]) + bytes(raw[at + 1 :]))
    with pytest.raises(PeerError):
        decode(encode(Append(1, 0, 0, 0, [(1, 3, b"")])))
    config = bytearray(encode_config(Config(("a",))))
    config[3] = 7
    with pytest.raises(PeerError):
        decode_config(config)


def test_noise_is_accepted_or_refused() -> None:
    rng = random.Random(5)
    for _ in range(20_000):
        raw = bytearray(encode(rng.choice(EXAMPLES)))
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            decode(raw[: rng.randrange(len(raw) + 1)] if rng.random() < 0.3 else raw)
        except PeerError:
            pass
