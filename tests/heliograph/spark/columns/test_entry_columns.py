"""Entries to columns: every form that a client writes, against the library that made it, and broken ones among good
ones.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from heliograph.client.block_reader import TopicSnapshot  # noqa: E402
from heliograph.model.errors import CorruptData  # noqa: E402
from heliograph.spark.columns.entry_columns import MessageRows  # noqa: E402
from heliograph.spark.scan.task_reading import RAW  # noqa: E402
from heliograph.wire.pulsar import pulsar_pb2 as pb  # noqa: E402
from heliograph.wire.run import FLAG_HIDDEN, Run  # noqa: E402

TOPIC = "persistent://a/b/t-partition-3"
SNAPSHOT = TopicSnapshot(TOPIC, ((7, 10, 100),), (7, 9), (1, 2, 0xAB), {1: "us", 2: "eu"})
TIME = pa.timestamp("us", "UTC")
INT, LONG = pa.int32(), pa.int64()
WHERE = [
    ("region", INT),
    ("epoch", INT),
    ("incarnation", pa.string()),
    ("ledger", LONG),
    ("entry", LONG),
    ("batch_index", INT),
]
TYPES = {
    **dict.fromkeys(("topic", "key", "producer_name", "origin_region"), pa.string()),
    **dict.fromkeys(("sequence_id", "ledger", "entry", "schema_version"), pa.int64()),
    **dict.fromkeys(("batch_index", "partition"), pa.int32()),
    **dict.fromkeys(("publish_time", "event_time", "stored_time", "origin_time"), TIME),
    "value": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "coordinate": pa.struct(WHERE),
}
"""As Spark makes them of the source's schema."""


def entry(payload: bytes, **fields: Any) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1000, **fields).SerializeToString()
    return len(metadata).to_bytes(4, "big") + metadata + payload


def batch(singles: list[tuple[dict[str, Any], bytes]], **fields: Any) -> bytes:
    parts = []
    for given, value in singles:
        single = pb.SingleMessageMetadata(payload_size=len(value), **given).SerializeToString()
        parts += [len(single).to_bytes(4, "big"), single, value]
    return entry(b"".join(parts), num_messages_in_batch=len(singles), **fields)


def gathered(entries: list[bytes], wanted: set[str], *, keep_bad: bool = False, **columns: Any) -> MessageRows:
    rows = MessageRows(frozenset(wanted), keep_bad=keep_bad)
    rows.add(TOPIC, SNAPSHOT, 7, 40, Run(entries, [len(e) for e in entries], **columns))
    return rows


def listed(rows: MessageRows, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*[rows.column(name, TYPES[name]).to_pylist() for name in names], strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_the_quick_way_and_the_whole_way_cut_a_batch_alike(seed: int) -> None:
    rng = random.Random(seed)
    singles = []
    for n in range(rng.randrange(1, 60)):
        given: dict[str, Any] = {}
        if rng.random() < 0.3:
            given["partition_key"] = "k" * rng.randrange(1, 200)
        if rng.random() < 0.3:
            given["event_time"] = rng.randrange(1, 1 << 45)
        if rng.random() < 0.5:
            given["sequence_id"] = n
        if rng.random() < 0.1:
            given["null_value"] = True
        if rng.random() < 0.1:
            given["compacted_out"] = True
        size = 0 if "null_value" in given else rng.choice((0, 1, 127, 128, 16_383, 16_384, rng.randrange(300)))
        singles.append((given, rng.randbytes(size)))
    made = batch(singles)
    quick, whole = gathered([made], {"batch_index"}), gathered([made], {"batch_index", "key"})
    expected = [
        (None if g.get("null_value") else v, n) for n, (g, v) in enumerate(singles) if not g.get("compacted_out")
    ]
    assert list(zip(quick.values, quick.column("batch_index", pa.int32()).to_pylist(), strict=True)) == expected
    assert quick.values == whole.values
    keys = [g.get("partition_key") for g, _ in singles if not g.get("compacted_out")]
    assert whole.column("key", pa.string()).to_pylist() == keys


def test_what_an_entry_says_stands_beside_each_of_its_messages() -> None:
    single = entry(
        b"x",
        partition_key="k",
        properties=[pb.KeyValue(key="a", value="b")],
        event_time=2000,
        schema_version=(3).to_bytes(8, "big"),
    )
    hidden, two = entry(b"h"), batch([({}, b"y"), ({"sequence_id": 9}, b"z")])
    rows = gathered([single, hidden, two], RAW, flags=[0, FLAG_HIDDEN, 0])
    assert listed(
        rows, "value", "key", "sequence_id", "batch_index", "ledger", "entry", "schema_version", "partition"
    ) == [
        (b"x", "k", 5, -1, 7, 40, 3, 3),
        (b"y", None, 5, 0, 7, 42, None, 3),
        (b"z", None, 9, 1, 7, 42, None, 3),
    ]
    assert listed(rows, "properties", "origin_region", "producer_name", "topic")[0] == ([("a", "b")], "us", "p", TOPIC)
    assert [each.timestamp() for each in rows.column("publish_time", TYPES["publish_time"]).to_pylist()] == [1.0] * 3
    assert rows.column("event_time", TYPES["event_time"]).to_pylist()[0].timestamp() == 2.0
    where = rows.column("coordinate", TYPES["coordinate"]).to_pylist()
    assert where[2] == {
        "region": 1,
        "epoch": 2,
        "incarnation": "00000000000000ab",
        "ledger": 7,
        "entry": 42,
        "batch_index": 1,
    }
    assert rows.schema_versions() == [(TOPIC, 3, 0, 1), (TOPIC, None, 1, 3)]
    assert rows.place(2) == f"{TOPIC} 7:42, message 1"


def test_whom_an_entry_is_for_is_known_where_it_is_asked() -> None:
    made = [entry(b"a", replicate_to=["us", "cn"]), batch([({}, b"b"), ({}, b"c")])]
    rows = gathered(made, {"replicate_to"})
    assert rows.column("replicate_to", pa.string()).to_pylist() == ["us,cn", None, None]
    assert rows.column("first_sequence_id", pa.int64()).to_pylist() == [5, 5, 5]
    assert gathered(made[1:], {"replicate_to"}).column("replicate_to", pa.string()).to_pylist() == [None, None]


def times(rows: MessageRows) -> list[tuple[float, float]]:
    return [(stored.timestamp(), origin.timestamp()) for stored, origin in listed(rows, "stored_time", "origin_time")]


def test_a_replicated_entry_has_the_coordinate_of_its_origin() -> None:
    where = {"origin": (2, 1, 5), "spans": ((3, 8, 1), (4, 0, 1)), "time_ms": 9000, "origin_time_ms": 7500}
    rows = gathered([entry(b"a"), entry(b"b")], {"coordinate", "origin_region"}, **where)
    assert times(rows) == [(9.0, 7.5)] * 2 and times(gathered([entry(b"own")], set(), time_ms=3000)) == [(3.0, 3.0)]
    assert listed(gathered([entry(b"of an old version")], set()), "stored_time", "origin_time") == [(None, None)]
    assert [
        (c["region"], c["ledger"], c["entry"]) for c in rows.column("coordinate", TYPES["coordinate"]).to_pylist()
    ] == [(2, 3, 8), (2, 4, 0)]
    assert rows.column("origin_region", pa.string()).to_pylist() == ["eu", "eu"]


def test_pieces_of_a_compressed_message_come_as_they_are_stored() -> None:
    """A message is compressed before it is cut: none of its pieces can be opened by itself."""
    stored = pa.compress(random.Random(1).randbytes(500) + b"x" * 5000, codec="zstd", asbytes=True)
    given: dict[str, Any] = {
        "compression": pb.ZSTD,
        "uncompressed_size": 5500,
        "uuid": "u",
        "num_chunks_from_msg": 2,
        "total_chunk_msg_size": len(stored),
    }
    pieces = [entry(part, chunk_id=number, **given) for number, part in enumerate((stored[:200], stored[200:]))]
    for wanted in ({"coordinate"}, RAW):
        rows = gathered(pieces, {*wanted, "sealed"})
        assert rows.column("sealed", pa.string()).to_pylist() == ["piece"] * 2
        assert rows.values == [stored[:200], stored[200:]] and not rows.bad
    alone = entry(stored, compression=pb.ZSTD, uncompressed_size=5500)
    assert [len(value or b"") for value in gathered([alone], set()).values] == [5500]


SHORT = entry(b"x")[:9], entry(b"\1\2", num_messages_in_batch=2), batch([({}, b"abc")])[:-1]
BROKEN = (b"", b"\0\0\0\xff", *SHORT, entry(b"x", compression=3, uncompressed_size=9))


@pytest.mark.parametrize("wanted", [set(), {"key", "batch_index"}], ids=["quick", "whole"])
@pytest.mark.parametrize("broken", range(len(BROKEN)))
def test_an_entry_that_cannot_be_taken_apart_is_one_bad_row(broken: int, wanted: set[str]) -> None:
    entries = [batch([({}, b"a"), ({}, b"b")]), BROKEN[broken], entry(b"c")]
    rows = gathered(entries, wanted, keep_bad=True)
    assert rows.values == [b"a", b"b", BROKEN[broken], b"c"] and rows.bad == [2]
    assert rows.column("entry", pa.int64()).to_pylist() == [40, 40, 41, 42]
    for name in wanted:
        assert len(rows.column(name, TYPES[name])) == 4
    with pytest.raises(CorruptData, match="7:41 cannot be read"):
        gathered(entries, wanted)


@pytest.mark.parametrize("in_batch", [False, True])
def test_what_no_column_can_hold_of_one_message_ends_nothing(in_batch: bool) -> None:
    """Times in nanoseconds, negative numbers as Java's clients write them, text that is no UTF-8: the row is there, and
    so are the others.
    """
    nanos, negative, properties = 1_700_000_000_000_000_000, (1 << 64) - 5000, [pb.KeyValue(key="NAME", value="TEXT")]
    odd: dict[str, Any] = {
        "partition_key": "KKKK",
        "properties": properties,
        "event_time": nanos,
        "sequence_id": (1 << 64) - 1,
    }
    early: dict[str, Any] = {"event_time": negative, "sequence_id": 7}
    if in_batch:
        made = [batch([(odd, b"a"), (early, b"b")], replicate_to=["NAME"])]
    else:
        base = {"producer_name": "p", "publish_time": nanos, "schema_version": b"\xff" * 8}
        whole = [
            pb.MessageMetadata(**{**base, **given}, replicate_to=["NAME"]).SerializeToString() for given in (odd, early)
        ]
        made = [
            len(metadata).to_bytes(4, "big") + metadata + value
            for metadata, value in zip(whole, (b"a", b"b"), strict=True)
        ]
    bad = {b"KKKK": b"\xff\xfe\xfd\xfc", b"NAME": b"n\xff\xffe", b"TEXT": b"\x80abc"}
    for good, wrong in bad.items():
        made = [each.replace(good, wrong) for each in made]
    rows = gathered(made, RAW)
    columns = {
        name: rows.column(name, kind).to_pylist()
        for name, kind in {**TYPES, "replicate_to": pa.string(), "base64_key": pa.bool_()}.items()
    }
    assert columns["value"] == [b"a", b"b"]
    assert columns["key"] == ["//79/A==", None] and columns["base64_key"] == [True, False]
    assert columns["properties"] == [[("n\ufffd\ufffde", "\ufffdabc")], []]
    assert [None if at is None else at.timestamp() for at in columns["event_time"]] == [None, -5.0]
    assert columns["sequence_id"] == [-1, 7]
    assert columns["replicate_to"] == ["n\ufffd\ufffde"] * 2
    if not in_batch:
        assert columns["publish_time"] == [None, None] and columns["schema_version"] == [-1, -1]


def test_a_value_asked_for_as_text_is_text() -> None:
    assert gathered([entry("né".encode()), entry(b"\xff")], {"value"}).column("value", pa.string()).to_pylist() == [
        "né",
        "\ufffd",
    ]
