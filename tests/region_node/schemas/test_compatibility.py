"""Strategies: each row was asked of a real broker too (tests/system has the same steps)."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace

import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker
from avro.schema import RecordSchema
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from region_node.schemas import compatibility
from region_node.schemas.compatibility import IncompatibleSchema, check_consumer, check_new, strategy_of
from region_node.schemas.schema_definition import (
    SCHEMA_PROPERTIES_BYTES_MAX,
    TYPES,
    InvalidSchema,
    Schema,
    check_definition,
    parse_avro,
)
from tests.region_node.schemas.definitions import INT, LONG, OPTIONAL, REQUIRED, avro, plain


def fits(schema: Schema, existing: list[Schema], strategy: str) -> bool:
    try:
        check_new(schema, existing, strategy)
    except IncompatibleSchema:
        return False
    return True


STEPS = [
    avro(INT),
    avro(LONG),
    avro(LONG, OPTIONAL),
    avro(OPTIONAL),
    avro(INT, REQUIRED),
    avro(INT, kind="JSON"),
    plain("STRING"),
    plain("INT32"),
]
TAKEN = {
    "BACKWARD": [0, 1, 2, 3],
    "FORWARD": [0, 4],
    "FULL": [0],
    "BACKWARD_TRANSITIVE": [0, 1, 2, 3],
    "FORWARD_TRANSITIVE": [0, 4],
    "FULL_TRANSITIVE": [0],
    "ALWAYS_COMPATIBLE": [0, 1, 2, 3, 4, 5, 6, 7],
    "ALWAYS_INCOMPATIBLE": [0],
}
"""Strategy -> which of the steps a topic takes, one behind another."""


@pytest.mark.parametrize("strategy", TAKEN)
def test_what_a_topic_takes_one_behind_another(strategy: str) -> None:
    existing: list[Schema] = []
    taken = []
    for number, step in enumerate(STEPS):
        if fits(step, existing, strategy):
            existing.append(step)
            taken.append(number)
    assert taken == TAKEN[strategy]


def test_only_transitive_strategies_look_behind_the_last_schema() -> None:
    first, second, third = avro(INT, REQUIRED), avro(INT), avro(INT, {"name": "c", "type": "int", "default": 1})
    assert fits(second, [first], "BACKWARD") and fits(third, [first, second], "BACKWARD")
    assert not fits(third, [first, second], "BACKWARD_TRANSITIVE")  # its c is a number, the first one's a text


def test_names_of_records_do_not_matter_and_those_of_enums_do() -> None:
    assert fits(avro(INT, name="Other"), [avro(INT)], "FULL")
    one, other = ({"name": "e", "type": {"type": "enum", "name": name, "symbols": ["A"]}} for name in ("E", "F"))
    assert not fits(avro(other), [avro(one)], "FULL") and fits(avro(one, name="X"), [avro(one)], "FULL")


def test_a_recursive_schema_ends() -> None:
    tree = avro({"name": "next", "type": ["null", "R"], "default": None})
    assert fits(tree, [tree], "FULL")


def test_wide_records_are_compared_with_one_table_of_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = 0
    fields_dict = RecordSchema.fields_dict.fget

    def counted(self: RecordSchema) -> object:
        nonlocal tables
        tables += 1
        return fields_dict(self)

    monkeypatch.setattr(RecordSchema, "fields_dict", property(counted))
    fields = [{"name": f"f{number}", "type": "int", "default": 0} for number in range(100)]
    assert fits(avro(*fields), [avro(*fields[1:])], "FULL") and tables == 2


ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}


@pytest.mark.parametrize("seed", range(4))
def test_fields_are_matched_as_the_library_matches_them(seed: int) -> None:
    rng = random.Random(seed)

    def drawn() -> Schema:
        fields = []
        for name in rng.sample("abcdef", rng.randrange(1, 5)):
            kind = rng.choice(["int", "long", "string", ["null", "int"], ENUM, {**ENUM, "default": "A"}])
            kind = {**kind, "name": f"E{name}"} if isinstance(kind, dict) else kind
            field = {"name": name, "type": kind}
            if rng.random() < 0.4:
                field["aliases"] = rng.sample("abcdef", 2)
            if kind == "int" and rng.random() < 0.6:
                field["default"] = 1
            fields.append(field)
        return avro(*fields)

    for _ in range(60):
        reader, writer = drawn(), drawn()
        (ours, library) = (
            each.get_compatibility(parse_avro(reader.data), parse_avro(writer.data))
            for each in (compatibility._checker(), ReaderWriterCompatibilityChecker())  # type: ignore[no-untyped-call]
        )
        for part in ("compatibility", "messages", "locations", "incompatibilities"):
            assert getattr(ours, part) == getattr(library, part)


def key_value(key: Schema, value: Schema) -> Schema:
    data = b"".join(len(half.data).to_bytes(4, "big") + half.data for half in (key, value))
    return Schema(
        TYPES["KEY_VALUE"], "t", data, {"key.schema.type": key.type_name, "value.schema.type": value.type_name}
    )


def test_both_halves_of_a_key_value_count() -> None:
    old = key_value(plain("STRING"), avro(INT))
    check_definition(old)
    assert fits(key_value(plain("STRING"), avro(LONG)), [old], "BACKWARD")
    assert not fits(key_value(plain("STRING"), avro(INT, REQUIRED)), [old], "BACKWARD")
    assert not fits(key_value(plain("INT32"), avro(INT)), [old], "BACKWARD")


def native(root: str) -> Schema:
    files = base64.b64encode(FileDescriptorSet().SerializeToString()).decode()
    return Schema(
        TYPES["PROTOBUF_NATIVE"],
        "t",
        json.dumps({"rootMessageTypeName": root, "rootFileDescriptorName": "f", "fileDescriptorSet": files}).encode(),
    )


def test_the_root_message_of_a_native_protobuf_schema_stays() -> None:
    assert fits(native("a.M"), [native("a.M")], "FULL") and not fits(native("a.N"), [native("a.M")], "FULL")


@pytest.mark.parametrize(
    ("schema", "existing", "strategy", "may"),
    [
        (avro(INT), [], "FULL", False),
        (avro(INT), [], "ALWAYS_COMPATIBLE", True),
        (avro(INT, OPTIONAL), [avro(INT)], "FORWARD", True),  # readers are asked whether they can read the last one
        (avro(INT, REQUIRED), [avro(INT)], "FULL", False),
        (plain("STRING"), [avro(INT)], "FULL", False),
        (avro(INT), [avro(INT)], "ALWAYS_INCOMPATIBLE", True),
        (avro(LONG), [avro(INT)], "ALWAYS_INCOMPATIBLE", False),
        (avro(LONG), [avro(INT, REQUIRED), avro(INT)], "BACKWARD_TRANSITIVE", True),
    ],
)
def test_consumers(schema: Schema, existing: list[Schema], strategy: str, may: bool) -> None:
    if may:
        check_consumer(schema, existing, strategy)
    else:
        with pytest.raises(IncompatibleSchema):
            check_consumer(schema, existing, strategy)


@pytest.mark.parametrize(
    "schema",
    [
        Schema(TYPES["AVRO"], "t", b"nonsense"),
        Schema(TYPES["JSON"], "t", b"{}"),
        Schema(TYPES["AVRO"], "t", b"\xff"),
        Schema(TYPES["AVRO"], "t", b'{"type":"array","items":' * 5000),
        Schema(TYPES["AVRO"], "t", b'{"type":"array","items":' * 3000 + b'"int"' + b"}" * 3000),
        Schema(TYPES["AVRO"], "t", b'{"type":"record","name":5,"fields":7}'),
        Schema(TYPES["STRING"], "t", bytes(600 << 10)),
        Schema(TYPES["KEY_VALUE"], "t", b""),
        Schema(TYPES["KEY_VALUE"], "t", b"\x00\x00\x00\x09a"),
        Schema(TYPES["KEY_VALUE"], "t", bytes(8) + b"more"),
        Schema(TYPES["KEY_VALUE"], "t", bytes(8), {"key.schema.type": "KEY_VALUE"}),
        Schema(TYPES["PROTOBUF_NATIVE"], "t", b""),
        Schema(TYPES["PROTOBUF_NATIVE"], "t", b'{"rootMessageTypeName":"M","fileDescriptorSet":"***"}'),
        Schema(99, "t", b""),
        Schema(21, "t", b""),
    ],
)
def test_definitions_that_make_no_sense(schema: Schema) -> None:
    with pytest.raises(InvalidSchema):
        check_definition(schema)


def test_what_is_not_set_means_full() -> None:
    assert strategy_of("UNDEFINED") == strategy_of("") == "FULL" and strategy_of("FORWARD") == "FORWARD"


def with_properties(text: str, **more: str) -> Schema:
    made = key_value(plain("STRING"), plain("STRING"))
    return replace(made, properties={**made.properties, "key.schema.properties": text, **more})


def test_properties_are_parsed_only_where_their_texts_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, parsed = json.loads, list[str]()
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    own = with_properties('{"a": "1"}')
    assert own.same(with_properties('{"a": "1"}')) and not own.same(plain("STRING")) and not parsed
    others = [with_properties(f'{{"a":"{n}"}}') for n in range(10)]
    assert [own.same(other) for other in others] == [n == 1 for n in range(10)]
    assert len(parsed) == 11, "its own once"
    large = json.dumps({"a": "x" * SCHEMA_PROPERTIES_BYTES_MAX})
    parsed.clear()
    assert with_properties(large).same(with_properties(large)) and not with_properties(large).same(own) and not parsed
    for schema in (with_properties(large), with_properties("", x=large), Schema(1, "t", b"", {"x": large})):
        with pytest.raises(InvalidSchema, match="bytes of properties"):
            check_definition(schema)
    assert not parsed


@pytest.mark.parametrize("text", ("[" * 50_000, '{"a":' * 50_000))
def test_what_is_nested_too_deep_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema):
        with_properties(text[: SCHEMA_PROPERTIES_BYTES_MAX - 1000]).same(with_properties(""))
    for schema in (
        with_properties(text[: SCHEMA_PROPERTIES_BYTES_MAX - 1000]),
        Schema(TYPES["PROTOBUF_NATIVE"], "t", text.encode()),
    ):
        with pytest.raises(InvalidSchema):
            check_definition(schema)
