"""Registered schemas: payloads of several versions and types into the same columns, against the libraries that wrote
them.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from datetime import UTC, datetime
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
fastavro = pytest.importorskip("fastavro")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402

from heliograph.client.block_reader import TopicSnapshot  # noqa: E402
from heliograph.model.errors import ConfigError  # noqa: E402
from heliograph.spark.columns.declared_columns import CORRUPT, Declared  # noqa: E402
from heliograph.spark.columns.entry_columns import MessageRows  # noqa: E402
from heliograph.spark.columns.registered_columns import Registered, registered_columns  # noqa: E402
from heliograph.spark.columns.registered_schemas import columns_of  # noqa: E402
from heliograph.wire.pulsar import pulsar_pb2 as pb  # noqa: E402
from heliograph.wire.run import Run  # noqa: E402

TOPIC = "persistent://a/b/t"
SNAPSHOT = TopicSnapshot(TOPIC, ((1, 9, 9),), (1, 9), (1, 1, 1), {1: "us"})
FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": ["null", "string"], "default": None}],
}
SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "aliases": ["who"], "type": ["null", "string"], "default": None},
        {"name": "paid", "type": "boolean", "default": True},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
    ],
}
AT = datetime(2026, 1, 2, tzinfo=UTC)


class Registry:
    """As much of a BlockReader as the columns want."""

    def __init__(self, **schemas: list[tuple[str, Any]]) -> None:
        self._rows = {
            f"persistent://a/b/{topic}": [
                {"version": n, "type": kind, "data": json.dumps(data), "properties": {}}
                for n, (kind, data) in enumerate(rows)
            ]
            for topic, rows in schemas.items()
        }
        self.asked = 0

    def schemas(self, topic: str) -> list[dict[str, Any]]:
        self.asked += 1
        return self._rows.get(topic, [])


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def read(
    registry: Registry,
    schema: Any,
    messages: list[tuple[int | None, bytes]],
    mode: str = "PERMISSIVE",
    keys: dict[int, tuple[str, bool]] | None = None,
) -> list[dict[str, Any]]:
    """keys: by number of the message; whether they are base64."""
    declared = Declared(schema, mode)
    made = Registered(declared)
    made.learn(registry)  # type: ignore[arg-type]
    rows = MessageRows(
        frozenset(name[1:] for name in declared.about) | ({"key", "base64_key"} if made.keyed else set()), keep_bad=True
    )
    for entry, (version, payload) in enumerate(messages):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=entry, publish_time=1)
        if keys and entry in keys:
            metadata.partition_key, metadata.partition_key_b64_encoded = keys[entry]
        if version is not None:
            metadata.schema_version = version.to_bytes(8, "big")
        head = metadata.SerializeToString()
        whole = len(head).to_bytes(4, "big") + head + payload
        rows.add(TOPIC, SNAPSHOT, 1, entry, Run([whole], [len(whole)]))
    found: list[dict[str, Any]] = made.of(rows).to_pylist()
    return found


def test_avro_of_two_versions_is_read_into_the_newest() -> None:
    registry = Registry(t=[("AVRO", FIRST), ("AVRO", SECOND)])
    kinds = [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("paid", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("_schema_version", pa.int64()),
    ]
    given = {"id": 1 << 40, "customer": "b", "paid": False, "at": AT}
    messages = [
        (0, avro(FIRST, {"id": 1, "who": "a"})),
        (1, avro(SECOND, given)),
        (None, avro(SECOND, {**given, "at": None})),
    ]
    found = read(registry, pa.schema([*kinds, (CORRUPT, pa.string())]), messages)
    assert found == [
        {"id": 1, "customer": "a", "paid": True, "at": None, "_schema_version": 0, CORRUPT: None},
        {**given, "_schema_version": 1, CORRUPT: None},
        {**given, "at": None, "_schema_version": None, CORRUPT: None},
    ]
    assert registry.asked == 1


def test_the_newest_is_the_last_that_came_whatever_its_number() -> None:
    """Each region counts versions by itself, above 2^40 times its number."""
    registry = Registry(t=[("AVRO", FIRST), ("AVRO", SECOND)])
    for row, version in zip(registry.schemas(TOPIC), (1 << 40, 0), strict=True):
        row["version"] = version
    schema = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("paid", pa.bool_())])
    given = {"id": 5, "customer": "b", "paid": False, "at": None}
    found = read(registry, schema, [(0, avro(SECOND, given)), (1 << 40, avro(FIRST, {"id": 1, "who": "a"}))])
    assert found == [{"id": 5, "customer": "b", "paid": False}, {"id": 1, "customer": "a", "paid": True}]


def test_a_payload_that_its_schema_cannot_read_is_a_bad_row() -> None:
    registry = Registry(t=[("AVRO", FIRST)])
    schema = pa.schema([("id", pa.int32()), (CORRUPT, pa.string())])
    found = read(
        registry,
        schema,
        [(0, avro(FIRST, {"id": 1})), (0, b""), (7, avro(FIRST, {"id": 2})), (0, avro(FIRST, {"id": 3}))],
    )
    assert [r["id"] for r in found] == [1, None, None, 3] and [r[CORRUPT] is not None for r in found] == [
        False,
        True,
        True,
        False,
    ]
    narrow = pa.schema([("id", pa.int8()), (CORRUPT, pa.string())])
    assert [
        r["id"]
        for r in read(registry, narrow, [(0, avro(FIRST, {"id": 300})), (0, avro(FIRST, {"id": 3}))], "DROPMALFORMED")
    ] == [3]
    with pytest.raises(ConfigError, match="1:1, message 0"):
        read(registry, schema, [(0, avro(FIRST, {"id": 1})), (0, b"")], "FAILFAST")


def test_versions_that_avro_does_not_resolve_go_by_name() -> None:
    other = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "string"}, {"name": "more", "type": "int"}],
    }
    registry = Registry(t=[("AVRO", FIRST), ("AVRO", other)])
    found = read(
        registry,
        pa.schema([("id", pa.int32()), ("who", pa.string()), (CORRUPT, pa.string())]),
        [(0, avro(FIRST, {"id": 1, "who": "a"}))],
    )
    assert found == [{"id": 1, "who": "a", CORRUPT: None}]


def test_json_and_primitive_types() -> None:
    registry = Registry(t=[("JSON", FIRST), ("INT32", ""), ("STRING", "")])
    schema = pa.schema([("id", pa.int32()), ("value", pa.string()), (CORRUPT, pa.string())])
    found = read(registry, schema, [(0, b'{"id": 4}'), (2, b"text"), (0, b"nonsense")])
    assert [(r["id"], r["value"], r[CORRUPT]) for r in found] == [
        (4, None, None),
        (None, "text", None),
        (None, None, "nonsense"),
    ]
    assert columns_of({"type": "INT64", "data": ""}).simpleString() == "struct<value:bigint>"
    numbers = read(
        Registry(t=[("DOUBLE", "")]), pa.schema([("value", pa.float64())]), [(0, struct.pack(">d", 2.5)), (0, b"short")]
    )
    assert [r["value"] for r in numbers] == [2.5, None]


def protobuf() -> tuple[dict[str, str], Any]:
    """(definition as Pulsar's registry holds it, message class)."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="x", syntax="proto3")
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_UINT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="kind", number=2, type=kinds.TYPE_ENUM, type_name=".x.Kind", label=kinds.LABEL_OPTIONAL)
    order.field.add(name="lines", number=3, type=kinds.TYPE_MESSAGE, type_name=".x.Line", label=kinds.LABEL_REPEATED)
    order.field.add(name="first", number=4, type=kinds.TYPE_MESSAGE, type_name=".x.Line", label=kinds.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    order.field.add(
        name="tags", number=5, type=kinds.TYPE_MESSAGE, type_name=".x.Order.TagsEntry", label=kinds.LABEL_REPEATED
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    files = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()
    names = {"rootMessageTypeName": "x.Order", "rootFileDescriptorName": "o.proto"}
    return {"fileDescriptorSet": files, **names}, message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Order"))


def test_protobuf_with_nested_repeated_map_and_enum_fields() -> None:
    definition, order = protobuf()
    row = {"type": "PROTOBUF_NATIVE", "data": json.dumps(definition)}
    want = "struct<id:decimal(20,0),kind:string,lines:array<struct<sku:string>>,first:struct<sku:string>,tags:map<string,int>>"  # noqa: E501
    assert columns_of(row).simpleString() == want
    from pyspark.sql.pandas.types import to_arrow_schema

    message = order(id=(1 << 64) - 1, kind=1, lines=[{"sku": "a"}, {"sku": "b"}], tags={"t": 5})
    found = read(
        Registry(t=[("PROTOBUF_NATIVE", definition)]),
        to_arrow_schema(columns_of(row), timezone="UTC"),
        [(0, message.SerializeToString())],
    )
    assert {**found[0], "id": int(found[0]["id"])} == {
        "id": (1 << 64) - 1,
        "kind": "PAID",
        "lines": [{"sku": "a"}, {"sku": "b"}],
        "first": None,
        "tags": [("t", 5)],
    }


def test_the_columns_of_topics_are_those_of_their_newest_schema() -> None:
    registry: Any = Registry(t=[("AVRO", FIRST), ("AVRO", SECOND)], u=[("JSON", SECOND)], v=[("AVRO", FIRST)], none=[])
    found = registered_columns(registry, [f"persistent://a/b/{name}" for name in ("t", "u", "none")])
    assert (
        found.simpleString()
        == f"struct<id:bigint,customer:string,paid:boolean,at:timestamp,_topic:string,{CORRUPT}:string>"
    )
    for names, what in ((("t", "v"), "different schemas"), (("none",), "no topic has")):
        with pytest.raises(ConfigError, match=what):
            registered_columns(registry, [f"persistent://a/b/{name}" for name in names])


@pytest.mark.parametrize(
    ("kind", "data", "what"),
    [
        ("AVRO", {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}, "union of 2"),
        ("AVRO", {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}, "holds itself"),
        ("AVRO", "int", "no record"),
        ("AVRO", {"type": "record"}, "cannot be read"),
        ("KEY_VALUE", {}, "cannot be read"),
        ("PROTOBUF", {}, "no columns here"),
        ("PROTOBUF_NATIVE", {"fileDescriptorSet": "!"}, "cannot be read"),
    ],
)
def test_what_has_no_columns_is_said(kind: str, data: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        columns_of({"type": kind, "data": json.dumps(data)})


def key_value(key: tuple[str, Any], value: tuple[str, Any], encoding: str) -> dict[str, Any]:
    """A row of the registry, as brokers show it."""
    properties = {"key.schema.type": key[0], "value.schema.type": value[0], "kv.encoding.type": encoding}
    return {
        "version": 0,
        "type": "KEY_VALUE",
        "data": json.dumps({"key": key[1], "value": value[1]}),
        "properties": properties,
    }


def registry_of(*rows: dict[str, Any]) -> Registry:
    made = Registry(t=[])
    made._rows[TOPIC] = [{**row, "version": number} for number, row in enumerate(rows)]
    return made


def inline(*halves: bytes | None) -> bytes:
    return b"".join(b"\xff\xff\xff\xff" if half is None else len(half).to_bytes(4, "big") + half for half in halves)


def test_a_key_and_a_value_are_two_columns() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    first, second = (
        key_value(("STRING", ""), ("AVRO", FIRST), "INLINE"),
        key_value(("STRING", ""), ("AVRO", SECOND), "INLINE"),
    )
    wanted = columns_of(second)
    assert (
        wanted.simpleString() == "struct<key:string,value:struct<id:bigint,customer:string,paid:boolean,at:timestamp>>"
    )
    schema = to_arrow_schema(wanted, timezone="UTC").append(pa.field(CORRUPT, pa.string()))
    given = {"id": 5, "customer": "b", "paid": False, "at": AT}
    messages = [
        (0, inline(b"k0", avro(FIRST, {"id": 1, "who": "a"}))),
        (1, inline(b"k1", avro(SECOND, given))),
        (1, inline(None, avro(SECOND, given))),
        (1, inline(b"k3", None)),
        (1, inline(b"k4", b"nonsense")),
        (1, b"\0\0\0\x09short"),
    ]
    found = read(registry_of(first, second), schema, messages)
    assert [row["key"] for row in found] == ["k0", "k1", None, "k3", "k4", None]
    assert [row["value"] for row in found] == [
        {"id": 1, "customer": "a", "paid": True, "at": None},
        given,
        given,
        None,
        None,
        None,
    ]
    assert [row[CORRUPT] is not None for row in found] == [False] * 4 + [True] * 2


def test_keys_may_be_the_messages_own() -> None:
    separated = key_value(("JSON", FIRST), ("INT64", ""), "SEPARATED")
    schema = pa.schema(
        [("key", pa.struct([("id", pa.int32()), ("who", pa.string())])), ("value", pa.int64()), (CORRUPT, pa.string())]
    )
    payload = struct.pack(">q", 7)
    keys = {
        0: (base64.b64encode(b'{"id": 1, "who": "a"}').decode(), True),
        1: ('{"id": 2}', False),
        2: ('{"id": "no", "who": "c"}', False),
    }
    found = read(registry_of(separated), schema, [(0, payload)] * 4, keys=keys)
    assert [row["key"] for row in found] == [
        {"id": 1, "who": "a"},
        {"id": 2, "who": None},
        {"id": None, "who": "c"},
        None,
    ]
    assert {row["value"] for row in found} == {7} and [row[CORRUPT] is not None for row in found] == [
        False,
        False,
        True,
        False,
    ]
    made, wrong = Registered(Declared(schema, "PERMISSIVE")), dict[int, None]()
    made.learn(registry_of(separated))  # type: ignore[arg-type]
    made.columns([(TOPIC, 0, 0, 2)], [payload, payload], wrong)
    assert list(wrong) == [0, 1], "who has no keys says so, and gives no nulls for them"


def test_one_payload_that_avro_does_not_resolve_changes_no_other() -> None:
    """Of an enum that lost a symbol: its payloads go by name, the others have their defaults."""
    kinds = [{"type": "enum", "name": "k", "symbols": symbols} for symbols in (["a", "b"], ["a"])]
    schemas = [{"type": "record", "name": "r", "fields": [{"name": "kind", "type": kind}]} for kind in kinds]
    schemas[1]["fields"].append({"name": "more", "type": "int", "default": 9})  # type: ignore[attr-defined]
    messages = [(0, avro(schemas[0], {"kind": kind})) for kind in ("a", "b", "a")]
    found = read(
        Registry(t=[("AVRO", each) for each in schemas]),
        pa.schema([("kind", pa.string()), ("more", pa.int32()), (CORRUPT, pa.string())]),
        messages,
    )
    assert [(row["kind"], row["more"], row[CORRUPT]) for row in found] == [
        ("a", 9, None),
        ("b", None, None),
        ("a", 9, None),
    ]


def test_a_schema_that_is_no_record_makes_bad_rows() -> None:
    found = read(
        Registry(t=[("AVRO", "string")]),
        pa.schema([("id", pa.int32()), (CORRUPT, pa.string())]),
        [(0, avro("string", "text"))],
    )
    assert found[0]["id"] is None and found[0][CORRUPT]


def test_times_of_the_registry() -> None:
    day = 20_000
    for kind, payload, value in (
        ("TIMESTAMP", struct.pack(">q", 1_767_312_000_000), AT),
        ("INSTANT", struct.pack(">qi", 1_767_312_000, 5_000), AT.replace(microsecond=5)),
        ("LOCAL_DATE", struct.pack(">q", day), datetime(2024, 10, 4).date()),
        ("LOCAL_DATE_TIME", struct.pack(">qq", day, 7_000), datetime(2024, 10, 4, microsecond=7)),
        ("BYTES", b"\xff", b"\xff"),
    ):
        from pyspark.sql.pandas.types import to_arrow_schema

        assert read(
            Registry(t=[(kind, "")]),
            to_arrow_schema(columns_of({"type": kind, "data": ""}), timezone="UTC"),
            [(0, payload)],
        ) == [{"value": value}]
