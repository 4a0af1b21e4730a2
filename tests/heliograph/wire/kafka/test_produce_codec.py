"""The short way of Produce says what the schema says, for every version, and leaves to it whatever is out of the
ordinary.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from heliograph.model.errors import PeerError
from heliograph.wire.kafka.message_codec import BY_NAME, decode_any, decode_request, encode_answer, encode_any
from heliograph.wire.kafka.produce_codec import FIRST, LAST, decode_produce, encode_produce
from tests.heliograph.wire.kafka.made_messages import made
from tests.region_node.faces.kafka.harness import request

PRODUCE = BY_NAME["produce"]
VERSIONS = range(PRODUCE.lowest, PRODUCE.highest + 1)


def ordinary(rng: random.Random, version: int, topics: int = 1, parts: int = 1) -> dict[str, Any]:
    def rows() -> list[dict[str, Any]]:
        return [
            {"index": rng.randrange(1 << 20), "records": rng.randbytes(rng.choice([0, 61, 126, 127, 128, 20_000]))}
            for _ in range(parts)
        ]

    named = [
        {"topic_id": rng.randbytes(16)} if version >= 13 else {"name": f"t{rng.randrange(99)}"} for _ in range(topics)
    ]
    transactional = rng.choice([None, "", "id"]) if version >= 3 else None
    head = {"transactional_id": transactional, "acks": rng.choice([-1, 0, 1]), "timeout": rng.randrange(1 << 30)}
    return {**head, "topic_data": [{**name, "partition_data": rows()} for name in named]}


def framed(rng: random.Random, version: int, fields: dict[str, Any]) -> bytearray:
    """Without its size, from a client with or without a name."""
    frame = request("produce", version, fields, correlation=rng.getrandbits(31))[4:]
    client = rng.choice([None, b"", b"rdkafka", "é".encode() * 40])
    return bytearray(frame if client is None else frame[:8] + len(client).to_bytes(2, "big") + client + frame[10:])


@pytest.mark.parametrize("version", VERSIONS)
def test_both_ways_read_and_write_the_same(version: int) -> None:
    rng, short = random.Random(version), 0
    for _ in range(60):
        fields = (
            ordinary(rng, version, rng.randrange(3), rng.randrange(4))
            if rng.random() < 0.7
            else made(rng, PRODUCE.request, version, version >= FIRST)
        )
        for topic in fields["topic_data"]:
            for part in topic["partition_data"]:
                part["records"] = rng.randbytes(70) if isinstance(part["records"], list) else part["records"]
        frame = framed(rng, version, fields)
        assert decode_request(frame) == decode_any(frame)
        short += decode_produce(frame) is not None
    assert (short > 30) == (version >= FIRST), "what clients send all day goes the short way"
    short = 0
    for _ in range(60):
        rows: list[dict[str, Any]] = []
        for _ in range(rng.randrange(4)):
            rows.append(
                {"index": rng.randrange(9), "error_code": rng.choice([0, 3]), "base_offset": rng.randrange(1 << 40)}
            )
            if rng.random() < 0.2:
                rows[-1]["error_message"] = rng.choice([None, "why"])
        plain = [
            {
                "name": rng.choice(["t", "x" * 200]),
                "topic_id": rng.choice([None, rng.randbytes(16)]),
                "partition_responses": rows,
            }
        ] * rng.randrange(3)
        answer: dict[str, Any] = {"responses": plain, "throttle_time": rng.randrange(99)}
        if rng.random() < 0.4:
            answer = made(rng, PRODUCE.answer, version, version >= FIRST)
        elif version >= 13:
            plain[:] = [{**row, "topic_id": row["topic_id"] or bytes(16)} for row in plain]
        number = rng.getrandbits(31)
        assert b"".join(encode_answer(PRODUCE, version, number, answer)) == b"".join(
            encode_any(PRODUCE, version, number, answer)
        )
        short += encode_produce(version, number, answer) is not None
    assert (short > 10) == (FIRST <= version <= LAST)


@pytest.mark.parametrize("version", VERSIONS)
def test_bad_bytes_are_what_the_schema_says_they_are(version: int) -> None:
    rng = random.Random(version)
    for number in range(400):
        frame = framed(rng, version, ordinary(rng, version, 1, rng.randrange(1, 3)))
        if number % 2:
            del frame[rng.randrange(len(frame)) :]
        for _ in range(rng.randrange(1, 4) if not number % 2 else 0):
            frame[rng.randrange(8, min(60, len(frame)))] = rng.choice([0, 1, 2, 127, 128, 129, 255, rng.randrange(256)])
        try:
            expected = decode_any(frame)
        except PeerError:
            with pytest.raises(PeerError):
                decode_request(frame)
        else:
            assert decode_request(frame) == expected


def test_what_is_no_produce_request_is_left_alone() -> None:
    assert decode_produce(b"") is None and decode_produce(request("metadata", 12, {"topics": []})[4:]) is None
