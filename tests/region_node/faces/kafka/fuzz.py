"""Fuzzing of Kafka's listener: any bytes and any requests, beside a bystander who must not notice.

Is: the cases, and `python -m tests.region_node.faces.kafka.fuzz --cases 100000 [--seed N]`, which runs them by the
thousand and prints the seed of what fails.
Isn't: assertions about answers (`geo_tests/wan/test_kafka_requests.py`).
"""

from __future__ import annotations

import random
import struct
from typing import Any

import crc32c

from heliograph.wire.kafka.message_codec import BY_NAME, decode_fields, encode_fields
from heliograph.wire.kafka.record_batches import build_batch
from tests.heliograph.wire.kafka.made_messages import made
from tests.region_node.faces.fuzzing import PER_SEED, damaged, in_pieces, main
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.hostile import KafkaCases
from tests.region_node.faces.pulsar.harness import settle

NAMES = sorted(BY_NAME)
HOT = ("produce", "produce", "fetch", "join_group", "sync_group", "offset_commit", "metadata", "list_offsets")
_WAITS = ("max_wait", "timeout", "session_timeout", "rebalance_timeout")


def sensible(rng: random.Random, fields: Any) -> Any:
    """So that something is reached: a topic and partitions that are there, no long waits."""
    if isinstance(fields, list):
        return [sensible(rng, each) for each in fields]
    if not isinstance(fields, dict):
        return fields
    out: dict[str, Any] = {}
    for key, value in fields.items():
        if key in _WAITS:
            out[key] = rng.choice([0, 100, 6000]) if key == "session_timeout" else rng.choice([0, 50])
        elif key in ("topic", "name", "group_id", "key") and isinstance(value, str) and rng.random() < 0.8:
            out[key] = rng.choice("xyg")
        elif key in ("partition", "index", "partition_index") and rng.random() < 0.8:
            out[key] = rng.choice([0, 1])
        elif key == "records" and rng.random() < 0.9:
            out[key] = batch(rng)
        elif key == "num_partitions":
            out[key] = rng.choice([-1, 0, 1, 2, 1 << 30])
        elif key == "count":
            out[key] = rng.choice([-1, 0, 3, 1 << 30])
        else:
            out[key] = sensible(rng, value)
    return out


def batch(rng: random.Random) -> bytes:
    """A record batch, often right, sometimes with a wrong byte, or with right checksums around nonsense."""
    records = [
        (
            rng.randrange(1 << 40),
            None if rng.random() < 0.3 else b"k",
            None if rng.random() < 0.3 else rng.randbytes(9),
            (),
        )
    ] * rng.randrange(1, 4)
    out = bytearray(build_batch(records, codec=rng.randrange(5)))
    if rng.random() < 0.3:
        struct.pack_into(">qhi", out, 43, rng.randrange(3), rng.randrange(2), rng.randrange(4))
    if rng.random() < 0.3:
        out[rng.randrange(len(out))] = rng.randrange(256)
    if rng.random() < 0.8 and len(out) > 21:
        struct.pack_into(">I", out, 17, crc32c.crc32c(bytes(out[21:])))
    return bytes(out)


def any_request(rng: random.Random, correlation: int) -> tuple[bytes, str, int]:
    """(frame, name, version); name "": nobody can say what it is."""
    api = BY_NAME[rng.choice(HOT if rng.random() < 0.3 else NAMES)]
    version = rng.randint(api.lowest, api.highest)
    fields = made(rng, api.request, version, api.is_flexible(version))
    if rng.random() < 0.8:
        fields = sensible(rng, fields)
    try:
        body = encode_fields(api.name, version, fields, answer=False)
    except (TypeError, AttributeError, struct.error):  # senseless beyond what the protocol can say
        body = rng.randbytes(rng.randrange(40))
    head = struct.pack(">hhih", api.key, version, correlation, 1) + b"f" + (b"\0" if api.is_flexible(version) else b"")
    return (len(head) + len(body)).to_bytes(4, "big") + head + body, api.name, version


def check(answer: bytes, asked: dict[int, tuple[str, int]]) -> None:
    """It is the answer to something, and can be read."""
    name, version = asked[int.from_bytes(answer[:4], "big")]
    if name == "api_versions" and answer[4:6] == b"\0\x23":
        version = 0
    api = BY_NAME[name]
    decode_fields(name, version, answer[5 if api.is_flexible(version) and name != "api_versions" else 4 :], answer=True)


async def _bystander(client: Client, case: int) -> None:
    """What it stores is stored, in order, and read again."""
    part = {"index": 0, "records": build_batch([(1, None, b"%d" % case, ())])}
    fields = {
        "transactional_id": None,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": "quiet", "partition_data": [part]}],
    }
    row = (await client.ask("produce", 7, fields))["responses"][0]["partition_responses"][0]
    assert (row["error_code"], row["base_offset"]) == (0, case // 20), row


def run(seed: int, cases: int = PER_SEED) -> None:
    """Raises AssertionError, or whatever escaped the listener."""

    async def test(face: Face) -> None:
        rng = random.Random(seed)
        bystander = Client(face.listener)
        for name in ("quiet", "x", "y"):
            topic: dict[str, Any] = {
                "name": name,
                "num_partitions": 2,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            await bystander.ask("create_topics", 2, {"topics": [topic], "timeout": 1000, "validate_only": False})
        for case in range(cases):
            client = Client(face.listener)
            asked: dict[int, tuple[str, int]] = {}
            data = b""
            for number in range(rng.randrange(1, 5)):
                frame, name, version = any_request(rng, number)
                if name in ("create_topics", "create_partitions", "delete_topics") and rng.random() < 0.9:
                    continue
                asked[number] = name, version
                data += frame
            data, whole = damaged(rng, data, 0.3)
            await in_pieces(rng, data, client.raw)
            await settle()
            for answer in client.answers():
                if whole:
                    check(answer, asked)
            if case % 20 == 0:
                await _bystander(bystander, case)
            if rng.random() < 0.9:
                client.protocol.close()
        for connection in list(face.listener.opened.all):
            if connection is not bystander.protocol:
                connection.close()
        for _ in range(100):
            await settle()
            if list(face.listener.opened.all) == [bystander.protocol] and face.broker.budget.used == 0:
                break
        assert list(face.listener.opened.all) == [bystander.protocol]
        assert face.broker.budget.used == 0

    with_face(test)


if __name__ == "__main__":
    main("tests.region_node.faces.kafka.fuzz", __doc__.partition("\n\n")[0], run, KafkaCases)
