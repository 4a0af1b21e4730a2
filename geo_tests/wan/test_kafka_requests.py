"""Requests by hand, senseless ones among them, against a real broker: an answer or the end of that connection, and
never a fault of ours.
"""

from __future__ import annotations

import random
import socket
import struct
from typing import Any

import pytest

from geo_tests.wan.kafka_support import DEADLINE_S, ask, create, producer, send, servers
from heliograph.wire.kafka.message_codec import BY_NAME, decode_fields, encode_fields
from tests.heliograph.wire.kafka.made_messages import made
from tests.region_node.region_processes import Region

pytestmark = pytest.mark.wan


@pytest.fixture(name="region")
def _region(kafka_region: Region) -> Region:
    return kafka_region


def test_bad_input_closes_that_connection_only(region: Region) -> None:
    create(region, "fuzzed")
    good = producer(region)
    rng = random.Random(7)
    host, port = servers(region).split(":")
    heads = [
        struct.pack(">hhih", rng.choice([0, 1, 3, 11, 14, 18, 22]), rng.randrange(13), 1, 4) + b"fuzz"
        for _ in range(120)
    ]
    frames = [head + rng.randbytes(rng.randrange(80)) for head in heads]
    frames += [rng.randbytes(rng.randrange(1, 60)) for _ in range(60)]
    for frame in frames:
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
            raw.sendall(len(frame).to_bytes(4, "big") + frame)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
        raw.sendall(b"\x7f\xff\xff\xff")
        assert raw.recv(10) == b""
    assert send(good, "fuzzed", [b"still there"])[0] == (0, 0)
    log = region.processes["us-broker-0"].log_path.read_text()
    assert "Traceback" not in log, log[-3000:]


def test_any_request_is_answered_or_ends_its_connection(region: Region) -> None:
    """Requests of every kind and version, well-formed and senseless: an answer that can be read, or the end of that
    connection, and never a fault of ours.
    """
    create(region, "x", 2)
    host, port = servers(region).split(":")
    rng = random.Random(11)
    names = sorted(BY_NAME)

    def sensible(fields: Any) -> Any:
        """So that something is reached: a topic and partitions that are there, no long waits."""
        if isinstance(fields, dict):
            for key in fields:
                if key in ("max_wait", "timeout", "session_timeout", "rebalance_timeout"):
                    fields[key] = rng.choice([0, 100, 6000]) if key == "session_timeout" else rng.choice([0, 50])
                elif key in ("topic", "name", "group_id") and isinstance(fields[key], str) and rng.random() < 0.7:
                    fields[key] = "x"
                elif (
                    key in ("partition", "index", "partition_index", "partitions", "partition_indexes")
                    and rng.random() < 0.8
                ):
                    fields[key] = (
                        rng.choice([0, 1])
                        if not isinstance(fields[key], list) or any(isinstance(p, dict) for p in fields[key])
                        else [0]
                    )
                    if key in ("partitions", "partition_indexes") and not isinstance(fields[key], list):
                        fields[key] = []
                else:
                    sensible(fields[key])
        elif isinstance(fields, list):
            for each in fields:
                sensible(each)
        return fields

    answered = 0
    for round_number in range(450):
        api = BY_NAME[names[round_number % len(names)]]
        version = rng.randint(api.lowest, api.highest)
        fields = made(rng, api.request, version, api.is_flexible(version))
        if rng.random() < 0.6:
            fields = sensible(fields)
        try:
            body = encode_fields(api.name, version, fields, answer=False)
        except (TypeError, AttributeError):
            continue  # made senseless beyond what the protocol can say
        head = (
            struct.pack(">hhih", api.key, version, round_number, 1)
            + b"f"
            + (b"\0" if api.is_flexible(version) else b"")
        )
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
            raw.sendall((len(head) + len(body)).to_bytes(4, "big") + head + body)
            if api.name in ("join_group", "sync_group") or (api.name == "produce" and fields["acks"] == 0):
                continue  # may wait for others, or for nothing
            data = b""
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                more = raw.recv(65536)
                if not more:
                    break
                data += more
        if data:
            assert int.from_bytes(data[4:8], "big") == round_number
            decode_fields(
                api.name,
                version,
                data[9 if api.is_flexible(version) and api.name != "api_versions" else 8 :],
                answer=True,
            )
            answered += 1
    log = region.processes["us-broker-0"].log_path.read_text()
    assert "Traceback" not in log, log[-4000:]
    assert answered > 300
    assert send(producer(region), "after-fuzz", [b"still there"]) == [(0, 0)]


def test_frames_in_any_pieces(region: Region) -> None:
    """A request that comes byte by byte, several at once, and one that is much larger than what is set aside for it."""
    create(region, "pieces")
    host, port = servers(region).split(":")
    api = BY_NAME["metadata"]
    body = struct.pack(">hhih", api.key, 4, 5, -1) + encode_fields(
        "metadata", 4, {"topics": [{"name": "pieces"}]}, answer=False
    )
    frame = len(body).to_bytes(4, "big") + body

    def answer(raw: socket.socket) -> bytes:
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            more = raw.recv(4 + int.from_bytes(data[:4], "big") - len(data) if len(data) >= 4 else 4 - len(data))
            assert more, "closed"
            data += more
        return data

    with (
        socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw,
        socket.create_connection((host, int(port)), timeout=DEADLINE_S) as other,
    ):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(frame)):
            raw.sendall(frame[index : index + 1])
            if index % 7 == 0:
                other.sendall(frame)  # between two pieces of the one, all of another
                assert answer(other)[4:8] == b"\0\0\0\5"
        assert answer(raw)[4:8] == b"\0\0\0\5"
        raw.sendall(frame * 5 + frame[:9])
        assert [answer(raw)[4:8] for _ in range(5)] == [b"\0\0\0\5"] * 5
        raw.sendall(frame[9:])
        assert answer(raw)[4:8] == b"\0\0\0\5"
        parts = {"name": "pieces", "partition_data": [{"index": 0, "records": bytes(9 << 20)}]}
        found = ask(raw, "produce", 7, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [parts]})
        assert found["responses"][0]["partition_responses"][0]["error_code"] == 10
        raw.sendall(frame)
        assert answer(raw)[4:8] == b"\0\0\0\5"
